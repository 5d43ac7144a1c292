//! Oldest first, however often used.

use super::{EvictionKey, Usage};

pub(super) fn key(usage: &Usage) -> EvictionKey {
    (usage.created, 0)
}
