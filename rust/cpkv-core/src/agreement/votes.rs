//! Agreement by a reduction that the user supplies, for ranks on several hosts.
//!
//! Every rank has the same operations open, in the same order, so that a row of numbers for each of
//! them can be reduced by minimum. A vote says how things are, not what has changed: a verdict that
//! follows from it twice changes nothing the second time.

use super::{OperationId, Ruling, Verdict};

/// Numbers for each operation.
const NUMBERS: usize = 4;
/// Votes are as long as a multiple of this, so that their size seldom changes.
const MULTIPLE: usize = 256;

/// How one operation is on one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a number of its own")]
pub(crate) struct Vote {
    pub(crate) has_landed: bool,
    pub(crate) has_failed: bool,
    pub(crate) has_ended: bool,
    pub(crate) is_stuck: bool,
}

/// The votes of one rank at one step, to be reduced by minimum over all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Votes {
    operations: Vec<OperationId>,
    numbers: Vec<i64>,
}

impl Votes {
    pub(crate) fn new(votes: impl Iterator<Item = (OperationId, Vote)>) -> Self {
        let (mut operations, mut numbers) = (Vec::new(), Vec::new());
        for (operation, vote) in votes {
            operations.push(operation);
            let settled = vote.has_ended || vote.is_stuck;
            numbers.extend([vote.has_landed, !vote.has_failed, settled, !vote.is_stuck].map(i64::from));
        }
        numbers.resize(numbers.len().next_multiple_of(MULTIPLE), 1);
        Self { operations, numbers }
    }

    /// The numbers, 0 or 1 each.
    #[must_use]
    pub fn numbers(&self) -> &[i64] {
        &self.numbers
    }

    /// What follows if `reduced` is the minimum over all ranks. `None` if it cannot be that.
    #[must_use]
    pub fn verdicts(&self, reduced: &[i64]) -> Option<Vec<Verdict>> {
        let can_be = |(&reduced, &own): (&i64, &i64)| (0..=own).contains(&reduced);
        if reduced.len() != self.numbers.len() || !reduced.iter().zip(&self.numbers).all(can_be) {
            return None;
        }
        let ruling = |numbers: &[i64]| match *numbers {
            [1, ..] => Some(Ruling::Landed),
            [_, _, 1, 1] => Some(Ruling::Drained),
            [_, _, 1, _] => Some(Ruling::Quarantined),
            [_, 0, ..] => Some(Ruling::Failed),
            _ => None,
        };
        let rulings = self.operations.iter().zip(reduced.chunks(NUMBERS));
        Some(
            rulings.filter_map(|(&operation, numbers)| Some(Verdict { operation, ruling: ruling(numbers)? })).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATION: OperationId = OperationId { index: 0, generation: 3 };

    fn votes(vote: Vote) -> Votes {
        Votes::new([(OPERATION, vote)].into_iter())
    }

    fn reduced(left: Vote, right: Vote) -> Option<Ruling> {
        let (left, right) = (votes(left), votes(right));
        let minimum: Vec<i64> =
            left.numbers().iter().zip(right.numbers()).map(|(left, right)| *left.min(right)).collect();
        let verdicts = left.verdicts(&minimum).expect("it can be");
        assert_eq!(right.verdicts(&minimum).as_ref(), Some(&verdicts));
        verdicts.first().map(|verdict| verdict.ruling)
    }

    #[test]
    fn rulings_are_those_of_the_tally() {
        let open = Vote::default();
        let landed = Vote { has_landed: true, has_ended: true, ..open };
        let failed = Vote { has_failed: true, ..open };
        let ended = Vote { has_failed: true, has_ended: true, ..open };
        let stuck = Vote { has_failed: true, is_stuck: true, ..open };
        let healed = Vote { has_failed: true, has_ended: true, ..open };
        assert_eq!(reduced(open, landed), None);
        assert_eq!(reduced(landed, landed), Some(Ruling::Landed));
        assert_eq!(reduced(landed, failed), Some(Ruling::Failed));
        assert_eq!(reduced(landed, ended), Some(Ruling::Drained));
        assert_eq!(reduced(ended, stuck), Some(Ruling::Quarantined));
        assert_eq!(reduced(failed, stuck), Some(Ruling::Failed));
        assert_eq!(reduced(ended, healed), Some(Ruling::Drained));
    }

    #[test]
    fn what_cannot_be_a_minimum_is_refused() {
        let votes = votes(Vote::default());
        assert_eq!(votes.numbers().len(), MULTIPLE);
        assert!(votes.verdicts(&[0; 4]).is_none());
        let mut more = votes.numbers().to_vec();
        more[0] = 1;
        assert!(votes.verdicts(&more).is_none(), "this rank has not landed");
        more[0] = -1;
        assert!(votes.verdicts(&more).is_none());
    }
}
