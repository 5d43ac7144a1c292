//! Lowest priority first; among equals the least recently used.

use super::{EvictionKey, Usage};

pub(super) fn key(usage: &Usage) -> EvictionKey {
    // Shifts i32 to u64 in order.
    let rank = i64::from(usage.priority) - i64::from(i32::MIN);
    (rank.cast_unsigned(), usage.last_access)
}
