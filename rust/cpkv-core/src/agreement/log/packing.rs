//! A report or a verdict as one word.
//!
//! From the lowest bit: 32 bits of generation, 24 of index, 8 of kind. Kinds of reports and of
//! verdicts differ, and none is 0, so neither a word of the other ring nor one that was never
//! written passes for right.

use super::super::protocol::Impossible;
use super::super::{Fact, OperationId, Report, Ruling, Verdict};
use super::LogError;

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
const KIND_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;
/// The first index that does not fit.
pub(super) const INDEX_END: u32 = 1 << INDEX_BITS;

const FACTS: [Fact; 4] = [Fact::Landed, Fact::Failed, Fact::Ended, Fact::Stuck];
const FIRST_FACT: u64 = 0x11;
const RULINGS: [Ruling; 4] = [Ruling::Landed, Ruling::Failed, Ruling::Drained, Ruling::Quarantined];
const FIRST_RULING: u64 = 0x21;

fn pack(operation: OperationId, kind: u64) -> Result<u64, LogError> {
    let OperationId { index, generation } = operation;
    if index >= INDEX_END {
        return Err(LogError::Index { operation, below: INDEX_END });
    }
    Ok(kind << KIND_SHIFT | u64::from(index) << GENERATION_BITS | u64::from(generation))
}

fn unpack<K: Copy>(word: u64, name: &'static str, first: u64, kinds: [K; 4]) -> Result<(OperationId, K), Impossible> {
    let kind = Impossible::check(name, word >> KIND_SHIFT, first, first + 3)?;
    #[expect(clippy::cast_possible_truncation, reason = "24 and 32 bits are meant")]
    let (index, generation) = ((word >> GENERATION_BITS) as u32 & (INDEX_END - 1), word as u32);
    #[expect(clippy::cast_possible_truncation, reason = "0 to 3")]
    let kind = kinds[(kind - first) as usize];
    Ok((OperationId { index, generation }, kind))
}

/// The word of a report.
pub(super) fn pack_report(report: Report) -> Result<u64, LogError> {
    let kind = match report.fact {
        Fact::Landed => 0,
        Fact::Failed => 1,
        Fact::Ended => 2,
        Fact::Stuck => 3,
    };
    pack(report.operation, FIRST_FACT + kind)
}

/// The word of a verdict.
pub(super) fn pack_verdict(verdict: Verdict) -> Result<u64, LogError> {
    let kind = match verdict.ruling {
        Ruling::Landed => 0,
        Ruling::Failed => 1,
        Ruling::Drained => 2,
        Ruling::Quarantined => 3,
    };
    pack(verdict.operation, FIRST_RULING + kind)
}

/// The report of a word.
pub(super) fn unpack_report(word: u64) -> Result<Report, Impossible> {
    let (operation, fact) = unpack(word, "kind of a report", FIRST_FACT, FACTS)?;
    Ok(Report { operation, fact })
}

/// The verdict of a word.
pub(super) fn unpack_verdict(word: u64) -> Result<Verdict, Impossible> {
    let (operation, ruling) = unpack(word, "kind of a verdict", FIRST_RULING, RULINGS)?;
    Ok(Verdict { operation, ruling })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_round() {
        for (index, generation) in [(0, 0), (INDEX_END - 1, u32::MAX), (1, 2), (0, u32::MAX), (INDEX_END - 1, 0)] {
            let operation = OperationId { index, generation };
            for fact in FACTS {
                let report = Report { operation, fact };
                let word = pack_report(report).expect("fits");
                assert_eq!(unpack_report(word), Ok(report));
                assert!(unpack_verdict(word).is_err());
            }
            for ruling in RULINGS {
                let verdict = Verdict { operation, ruling };
                let word = pack_verdict(verdict).expect("fits");
                assert_eq!(unpack_verdict(word), Ok(verdict));
                assert!(unpack_report(word).is_err());
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let operation = OperationId { index: INDEX_END, generation: 0 };
        let error = pack_report(Report { operation, fact: Fact::Landed }).expect_err("too large");
        assert_eq!(error.to_string(), "operation 16777216.0 does not fit the log: its index has to be below 16777216");
    }

    #[test]
    fn foreign_words_are_refused() {
        for word in [0, u64::MAX, 0x15 << KIND_SHIFT, 0x10 << KIND_SHIFT] {
            assert!(unpack_report(word).is_err(), "{word:#x}");
            assert!(unpack_verdict(word).is_err(), "{word:#x}");
        }
    }
}
