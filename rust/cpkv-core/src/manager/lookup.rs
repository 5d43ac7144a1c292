//! Match: which prefix of a key the cache holds. Changes nothing.

use smallvec::SmallVec;

use super::CacheManager;
use crate::ids::{NodeIndex, Pages, Tokens};
use crate::namespace::Namespace;
use crate::tree::{NodeRef, Step};

/// What a match found. Holds nothing: by the time of the lock it may be less.
#[derive(Clone, Debug)]
pub struct Hit {
    pub(super) namespace: Namespace,
    /// The nodes that hold it, from the root down.
    pub(super) path: SmallVec<[NodeRef; 8]>,
    pub(super) pages: Pages,
    pub(super) device_pages: Pages,
}

impl Hit {
    /// Pages that can be used, on the device or from the host.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Pages among them that are on the device.
    #[must_use]
    pub fn device_pages(&self) -> Pages {
        self.device_pages
    }

    /// Pages among them that are on the host only.
    #[must_use]
    pub fn host_pages(&self) -> Pages {
        self.pages - self.device_pages
    }
}

impl CacheManager {
    /// Finds the longest cached prefix of `tokens`, of no more than `limit` raw tokens.
    #[must_use]
    pub fn match_prefix(&self, tokens: &[i64], namespace: &Namespace, limit: Option<Tokens>) -> Hit {
        let whole_pages = self.shape.pages_in(Tokens(tokens.len()));
        let limit = limit.map_or(whole_pages, |limit| whole_pages.min(self.shape.pages_within(limit)));
        let mut hit =
            Hit { namespace: namespace.clone(), path: SmallVec::new(), pages: Pages::ZERO, device_pages: Pages::ZERO };
        let Some(root) = self.tree.root(namespace) else { return hit };
        self.walk_down(root, tokens, limit, |step| {
            let node = &self.tree.arena[step.node];
            if node.state.tiers.is_none() {
                return false;
            }
            hit.pages += step.pages;
            if node.state.tiers.device {
                hit.device_pages = hit.pages;
            }
            hit.path.push(NodeRef { index: step.node, generation: node.generation });
            true
        });
        hit
    }

    /// Visits the nodes below `start` that stand for the next pages of `tokens`, up to `limit`
    /// pages from the root, as long as `visit` returns true. Some may be in no tier.
    pub(super) fn walk_down(
        &self,
        start: NodeIndex,
        tokens: &[i64],
        limit: Pages,
        mut visit: impl FnMut(Step) -> bool,
    ) {
        let mut parent = start;
        while let Some(step) = self.tree.step_down(parent, tokens, limit) {
            if !visit(step) || step.pages < self.tree.arena[step.node].len() {
                break;
            }
            parent = step.node;
        }
    }
}
