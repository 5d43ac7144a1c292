//! Words that are published by another word and never order anything themselves.

use super::super::sync::{AtomicU64, Ordering};

/// A word of a report, an entry or the header: read only after the word that publishes it.
///
/// The product keeps bodies in relaxed atomics, as the memory is shared. The models run the same
/// code over plain cells as well, in which loom finds every access that is not ordered.
pub(crate) trait Body {
    /// The value.
    fn get(&self) -> u64;
    /// Replaces the value.
    fn put(&self, value: u64);
}

impl Body for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn put(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
}
