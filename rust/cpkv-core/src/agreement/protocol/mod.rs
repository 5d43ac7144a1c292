//! Everything that is lock-free, over words that somebody else owns.
//!
//! This module knows neither files nor processes. It is given `&AtomicU64` and plain positions, so
//! the loom models (`rust/loom`) include it as it is. Each access that orders others takes its
//! ordering from [`Orderings`], where its rule is named; a model weakens one of them and has to
//! fail. `docs/memory-ordering.md` lists every word with its rule, its pair and its models.
//!
//! Words come from memory that others write. Whatever is read of them is checked against what it
//! can be ([`Impossible`]) before it is used as a count or an index.

mod ack;
mod body;
mod entry_place;
mod orderings;
mod presence;
mod report_ring;

pub(crate) use ack::{advance, fail, has_failed, open, reached};
pub(crate) use body::Body;
pub(crate) use entry_place::{EntryPlace, applied, slowest};
pub(crate) use orderings::{Orderings, Product};
pub(crate) use presence::{Presence, announce, presence, publish_header, read_header};
pub(crate) use report_ring::ReportRing;

/// A word that cannot have this value by any order of events: the memory is corrupt or foreign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Impossible {
    /// Which word.
    pub(crate) word: &'static str,
    /// Its value.
    pub(crate) seen: u64,
    /// The least it can be.
    pub(crate) least: u64,
    /// The most it can be.
    pub(crate) most: u64,
}

impl Impossible {
    /// `seen`, if it lies in `least ..= most`.
    pub(crate) fn check(word: &'static str, seen: u64, least: u64, most: u64) -> Result<u64, Self> {
        if (least..=most).contains(&seen) { Ok(seen) } else { Err(Self { word, seen, least, most }) }
    }
}

/// Where in a ring of `capacity` places the position `position` lies.
fn place(position: u64, capacity: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "less than the capacity, a usize")]
    let place = (position % capacity as u64) as usize;
    place
}
