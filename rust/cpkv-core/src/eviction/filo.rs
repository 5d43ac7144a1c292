//! Youngest first: what came early stays.

use super::{EvictionKey, Usage};

pub(super) fn key(usage: &Usage) -> EvictionKey {
    (u64::MAX - usage.created, 0)
}
