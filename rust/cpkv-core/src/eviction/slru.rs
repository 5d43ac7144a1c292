//! Segmented LRU: pages that proved themselves are protected from a flood of new ones.

use super::{EvictionKey, Usage};

/// Hits that lift pages from the probationary to the protected segment.
const PROTECTED_HITS: u32 = 2;

pub(super) fn key(usage: &Usage) -> EvictionKey {
    (u64::from(usage.hits >= PROTECTED_HITS), usage.last_access)
}
