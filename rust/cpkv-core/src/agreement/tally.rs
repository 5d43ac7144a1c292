//! The reports of all ranks, and the verdicts that follow from them.

use super::{Fact, Report, Ruling, Verdict};

/// The most ranks that can be told apart.
pub const MOST_RANKS: u32 = u64::BITS;

/// A set of ranks.
type Ranks = u64;

/// What was reported of one operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct Reported {
    /// `None` for a place that nothing was reported of.
    generation: Option<u32>,
    landed: Ranks,
    /// Landed or otherwise ended.
    ended: Ranks,
    stuck: Ranks,
    is_failed: bool,
    is_quarantined: bool,
    /// The last verdict was made. What is reported afterwards is ignored.
    is_over: bool,
}

/// Counts reports until something holds for all ranks.
///
/// Saying the same twice changes nothing, and the order of ranks does not matter. The last verdict
/// on an operation is [`Ruling::Landed`] or [`Ruling::Drained`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tally {
    everyone: Ranks,
    /// By the place of the operation; places are few, since they are used again.
    reported: Vec<Reported>,
    open: usize,
}

impl Tally {
    /// A tally for the ranks `0 .. ranks`.
    ///
    /// # Panics
    /// If there are none or more than [`MOST_RANKS`].
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks, want 1 to {MOST_RANKS}");
        Self { everyone: Ranks::MAX >> (MOST_RANKS - ranks), reported: Vec::new(), open: 0 }
    }

    /// Adds what `rank` reports; the verdict that follows, if one does. A place that is used again
    /// forgets what was reported of its last use.
    pub fn add(&mut self, rank: u32, report: Report) -> Option<Verdict> {
        let Report { operation, fact } = report;
        let mask = 1 << rank;
        let index = operation.index as usize;
        if index >= self.reported.len() {
            self.reported.resize(index + 1, Reported { is_over: true, ..Reported::default() });
        }
        let reported = &mut self.reported[index];
        // Generations may wrap; what is behind by less than half of them is older.
        let age = reported.generation.map(|known| known.wrapping_sub(operation.generation));
        if age.is_some_and(|age| age > 0 && age <= u32::MAX / 2) {
            return None;
        }
        if reported.generation != Some(operation.generation) {
            self.open += usize::from(reported.is_over);
            *reported = Reported { generation: Some(operation.generation), ..Reported::default() };
        } else if reported.is_over {
            return None;
        }
        match fact {
            Fact::Landed => {
                reported.landed |= mask;
                reported.ended |= mask;
            }
            Fact::Failed if !reported.is_failed => {
                reported.is_failed = true;
                return Some(Verdict { operation, ruling: Ruling::Failed });
            }
            Fact::Failed => {}
            Fact::Ended => reported.ended |= mask,
            Fact::Stuck => reported.stuck |= mask,
        }
        let ruling = reported.rule(self.everyone)?;
        if matches!(ruling, Ruling::Landed | Ruling::Drained) {
            reported.is_over = true;
            self.open -= 1;
        }
        Some(Verdict { operation, ruling })
    }

    /// Operations of which something was reported and the last verdict is not made.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }
}

impl Reported {
    fn rule(&mut self, everyone: Ranks) -> Option<Ruling> {
        if self.landed == everyone {
            Some(Ruling::Landed)
        } else if self.ended == everyone {
            Some(Ruling::Drained)
        } else if self.ended | self.stuck == everyone && !self.is_quarantined {
            self.is_quarantined = true;
            Some(Ruling::Quarantined)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::OperationId;

    const OPERATION: OperationId = OperationId { index: 3, generation: 7 };

    fn rulings(ranks: u32, reports: &[(u32, Fact)]) -> Vec<Ruling> {
        let mut tally = Tally::new(ranks);
        let add = |&(rank, fact): &(u32, Fact)| tally.add(rank, Report { operation: OPERATION, fact });
        reports.iter().filter_map(add).map(|verdict| verdict.ruling).collect()
    }

    #[test]
    fn landing_takes_all_ranks() {
        assert_eq!(rulings(1, &[(0, Fact::Landed)]), [Ruling::Landed]);
        assert_eq!(rulings(3, &[(2, Fact::Landed), (0, Fact::Landed)]), []);
        assert_eq!(rulings(3, &[(2, Fact::Landed), (0, Fact::Landed), (1, Fact::Landed)]), [Ruling::Landed]);
    }

    #[test]
    fn saying_it_twice_is_saying_it_once() {
        assert_eq!(rulings(2, &[(0, Fact::Landed), (0, Fact::Landed)]), []);
        assert_eq!(rulings(2, &[(0, Fact::Failed), (1, Fact::Failed)]), [Ruling::Failed]);
        assert_eq!(rulings(2, &[(0, Fact::Ended), (0, Fact::Ended)]), []);
    }

    #[test]
    fn one_failure_is_enough_and_draining_takes_all() {
        let reports = [(0, Fact::Landed), (1, Fact::Failed), (1, Fact::Ended)];
        assert_eq!(rulings(2, &reports), [Ruling::Failed, Ruling::Drained]);
        assert_eq!(rulings(2, &[(0, Fact::Ended), (1, Fact::Landed)]), [Ruling::Drained]);
    }

    #[test]
    fn what_is_stuck_is_quarantined_until_it_has_ended() {
        let reports = [(1, Fact::Failed), (1, Fact::Stuck), (0, Fact::Ended), (1, Fact::Ended)];
        assert_eq!(rulings(2, &reports), [Ruling::Failed, Ruling::Quarantined, Ruling::Drained]);
        assert_eq!(rulings(2, &reports[..2]), [Ruling::Failed]);
    }

    #[test]
    fn a_tally_forgets_what_is_over() {
        let mut tally = Tally::new(MOST_RANKS);
        for rank in 0..MOST_RANKS {
            assert!(tally.is_empty() == (rank == 0));
            let verdict = tally.add(rank, Report { operation: OPERATION, fact: Fact::Landed });
            assert_eq!(verdict.is_some(), rank == MOST_RANKS - 1);
        }
        assert!(tally.is_empty());
        let late = tally.add(0, Report { operation: OPERATION, fact: Fact::Failed });
        assert!(late.is_none() && tally.is_empty(), "it is over");
        let next = OperationId { generation: OPERATION.generation + 1, ..OPERATION };
        assert!(tally.add(0, Report { operation: next, fact: Fact::Failed }).is_some());
        assert_eq!(tally.len(), 1);
        // A report of the life before it neither counts nor makes the place forget.
        assert!(tally.add(1, Report { operation: OPERATION, fact: Fact::Failed }).is_none());
        for rank in 0..MOST_RANKS {
            let verdict = tally.add(rank, Report { operation: next, fact: Fact::Ended });
            assert_eq!(verdict.is_some(), rank == MOST_RANKS - 1);
        }
    }
}
