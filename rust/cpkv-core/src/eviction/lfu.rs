//! Least often hit first; among equals the least recently used.

use super::{EvictionKey, Usage};

pub(super) fn key(usage: &Usage) -> EvictionKey {
    (u64::from(usage.hits), usage.last_access)
}
