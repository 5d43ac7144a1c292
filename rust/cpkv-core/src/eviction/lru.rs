//! Least recently used first.

use super::{EvictionKey, Usage};

pub(super) fn key(usage: &Usage) -> EvictionKey {
    (usage.last_access, 0)
}
