//! An ack word, and the failed flag that it carries.
//!
//! The flag of an operation is one word: its generation, and whether it has failed. Whoever says
//! that an operation failed does so *before* it advances a word past that operation's copies;
//! landed-before-word then shows the flag to whoever sees the word.

use super::super::sync::{AtomicU64, Ordering};
use super::Orderings;

/// Says that everything up to `sequence` has ended on this stream. Never lowers the word, so late,
/// reordered and repeated acks are harmless.
pub(crate) fn advance<O: Orderings>(word: &AtomicU64, sequence: u64) {
    word.fetch_max(sequence, O::ADVANCE);
}

/// Up to where this stream has come.
pub(crate) fn reached<O: Orderings>(word: &AtomicU64) -> u64 {
    word.load(O::REACHED)
}

/// The flag of an operation that has not failed. Never zero, which is a place not used yet.
fn intact(generation: u32) -> u64 {
    (u64::from(generation) + 1) << 1
}

/// Begins the life `generation` of a place, not failed. Nobody may speak of it before.
pub(crate) fn open(flag: &AtomicU64, generation: u32) {
    // All writes of a flag are exchanges: each then follows the one that it has seen.
    flag.swap(intact(generation), Ordering::Relaxed);
}

/// Sets the flag, for good, if the place is in its life `generation`; whether it is.
pub(crate) fn fail(flag: &AtomicU64, generation: u32) -> bool {
    let intact = intact(generation);
    // An exchange, not a store: a late word about an old life must not touch the present one.
    match flag.compare_exchange(intact, intact | 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(seen) => seen == intact | 1,
    }
}

/// Whether the flag is set; `None` if the place is not in its life `generation`.
pub(crate) fn has_failed(flag: &AtomicU64, generation: u32) -> Option<bool> {
    let seen = flag.load(Ordering::Relaxed);
    (seen & !1 == intact(generation)).then_some(seen & 1 == 1)
}
