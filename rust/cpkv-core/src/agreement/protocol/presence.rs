//! Whether a log can be read, and whether a rank takes part in it.

use super::super::sync::AtomicU64;
use super::{Body, Impossible, Orderings};

/// What is known of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    /// It has not joined yet. What a new log is full of.
    Absent = 0,
    /// It has joined, and holds its lock for as long as it lives.
    Joined = 1,
    /// It has left, and will write nothing more.
    Left = 2,
    /// Another rank has found that it died. Written by that rank, only after it had the dead
    /// rank's lock: the dead one writes no more, and all finders write the same.
    Dead = 3,
}

/// Says what has become of a rank. Of its own words it is the last that the rank writes.
pub(crate) fn announce<O: Orderings>(state: &AtomicU64, presence: Presence) {
    state.store(presence as u64, O::STATE_STORE);
}

/// What is known of a rank.
///
/// Who waits for a rank and finds that it has left must look again for what it waits for: it may
/// be among the last words.
pub(crate) fn presence<O: Orderings>(state: &AtomicU64) -> Result<Presence, Impossible> {
    match Impossible::check("state of a rank", state.load(O::STATE_LOAD), 0, 3)? {
        0 => Ok(Presence::Absent),
        1 => Ok(Presence::Joined),
        2 => Ok(Presence::Left),
        _ => Ok(Presence::Dead),
    }
}

/// Writes the header and then says that the log is ready.
pub(crate) fn publish_header<O: Orderings, B: Body>(ready: &AtomicU64, bodies: &[B], header: &[u64]) {
    for (body, &value) in bodies.iter().zip(header) {
        body.put(value);
    }
    ready.store(1, O::READY_STORE);
}

/// The header, if the log is ready. Any value but 0 counts as ready: the header of a file that is
/// no log at all will be refused for what it contains.
pub(crate) fn read_header<O: Orderings, B: Body>(ready: &AtomicU64, bodies: &[B]) -> Option<Vec<u64>> {
    (ready.load(O::READY_LOAD) != 0).then(|| bodies.iter().map(Body::get).collect())
}
