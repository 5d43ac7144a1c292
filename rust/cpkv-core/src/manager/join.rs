//! Join: pages that came one by one become one node again.
//!
//! A prompt that grows by a page at a time (decode) would otherwise have a node for each. Joining
//! copies, so only short nodes are joined, and only to what is no longer than they are: a page is
//! copied as often as its node can double. Nothing that a policy decides may depend on it, and what
//! other requests have locked stays as it is. A hit that is not locked yet names nodes, and may come out
//! shorter.

use super::CacheManager;
use crate::eviction::{Policy, Usage};
use crate::ids::{NodeIndex, Tokens};
use crate::tree::NodeState;

/// No more tokens than this are copied into one node.
const MOST_TOKENS: Tokens = Tokens(4_096);

impl CacheManager {
    /// Joins a node with those in front of it that are no longer and not different from it. The node
    /// keeps its index.
    pub(super) fn join_front(&mut self, index: NodeIndex) {
        while let Some(parent) = self.tree.joinable_parent(index, MOST_TOKENS) {
            if self.tree.arena[parent].len() > self.tree.arena[index].len() || !self.is_alike(parent, index) {
                break;
            }
            self.tree.join_into_child(parent);
        }
    }

    /// Whether it makes no difference that a node is a part of the one behind it.
    fn is_alike(&self, front: NodeIndex, back: NodeIndex) -> bool {
        let (is_locked, state) = (self.tree.arena[back].is_locked(), self.tree.arena[back].state);
        let before = self.tree.arena[front].state;
        let Usage { created, last_access, hits, priority } = before.usage;
        // What is in use has its front made as recent as itself by the release of the lease.
        let is_as_recent =
            last_access == state.usage.last_access || (is_locked && last_access < state.usage.last_access);
        let is_as_old = created == state.usage.created || !matches!(self.policy, Policy::Fifo | Policy::Filo);
        // What others have locked may be what the next one has just found.
        let is_found = hits > 0 || state.usage.hits > 0;
        // What others hold without any use may be on the device up to here only, as far as they know.
        let is_shared = state.locks > 1 || self.tree.arena[back].locked_children > 0;
        is_as_recent
            && !is_shared
            && is_as_old
            && !is_found
            && priority == state.usage.priority
            && before == NodeState { usage: before.usage, locks: 0, ..state }
    }
}
