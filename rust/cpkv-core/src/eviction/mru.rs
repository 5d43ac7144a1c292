//! Most recently used first; for scans that are longer than the cache.

use super::{EvictionKey, Usage};

pub(super) fn key(usage: &Usage) -> EvictionKey {
    (u64::MAX - usage.last_access, 0)
}
