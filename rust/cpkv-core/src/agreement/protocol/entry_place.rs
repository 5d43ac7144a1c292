//! One place of the ring of entries, from rank 0 to all.
//!
//! The entry with number n lies at place n modulo the number of places, and is published by its
//! number, stored as n + 1. Rank 0 writes over an entry after every rank has applied it, so a
//! reader finds there the entry that it wants or the one before it at this place, never a later
//! one.

use std::collections::VecDeque;

use super::super::sync::AtomicU64;
use super::{Body, Impossible, Orderings};

/// The shared words of a place.
pub(crate) struct EntryPlace<'a, B> {
    /// The number of the entry, plus 1; 0 if there was none yet.
    pub(crate) number: &'a AtomicU64,
    /// The count of verdicts, then the verdicts.
    pub(crate) bodies: &'a [B],
}

impl<B: Body> EntryPlace<'_, B> {
    /// Writes entry `number` with what fits of the front of `verdicts`.
    ///
    /// Every rank must have applied the entry that was here ([`slowest`]).
    pub(crate) fn publish<O: Orderings>(&self, number: u64, verdicts: &mut VecDeque<u64>) {
        let count = verdicts.len().min(self.bodies.len() - 1);
        self.bodies[0].put(count as u64);
        for (body, verdict) in self.bodies[1..].iter().zip(verdicts.drain(..count)) {
            body.put(verdict);
        }
        self.number.store(number + 1, O::NUMBER_STORE);
    }

    /// Appends the verdicts of entry `number` to `into`, if it was published.
    pub(crate) fn read<O: Orderings>(
        &self,
        number: u64,
        places: usize,
        into: &mut Vec<u64>,
    ) -> Result<bool, Impossible> {
        let seen = self.number.load(O::NUMBER_LOAD);
        if seen != number + 1 {
            let before = (number + 1).saturating_sub(places as u64);
            return Impossible::check("number of an entry", seen, before, before).map(|_| false);
        }
        let verdicts = &self.bodies[1..];
        let count = Impossible::check("count of an entry", self.bodies[0].get(), 0, verdicts.len() as u64)?;
        into.extend(verdicts.iter().map(Body::get).take(usize::try_from(count).unwrap_or(usize::MAX)));
        Ok(true)
    }
}

/// Says that a rank has read the entries before `count` and will not look at them again.
pub(crate) fn applied<O: Orderings>(word: &AtomicU64, count: u64) {
    word.store(count, O::APPLIED_STORE);
}

/// The rank that has applied the fewest entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slowest {
    /// The first such rank.
    pub(crate) rank: u32,
    /// How many entries it has applied.
    pub(crate) applied: u64,
}

/// The slowest of the ranks whose applied counts these are; `written` entries were written.
pub(crate) fn slowest<'a, O: Orderings>(
    applied: impl IntoIterator<Item = &'a AtomicU64>,
    written: u64,
) -> Result<Slowest, Impossible> {
    let mut slowest = Slowest { rank: 0, applied: written };
    for (rank, word) in (0..).zip(applied) {
        let applied = Impossible::check("applied count of a rank", word.load(O::APPLIED_LOAD), 0, written)?;
        if applied < slowest.applied {
            slowest = Slowest { rank, applied };
        }
    }
    Ok(slowest)
}
