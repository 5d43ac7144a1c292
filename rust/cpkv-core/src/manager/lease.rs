//! Lock and release: what a request may rely on while it runs.

use super::CacheManager;
use crate::agreement::OperationId;
use crate::error::{Error, Result};
use crate::ids::{NodeIndex, PageId, Pages, SlotId};
use crate::operations::Kind;
use crate::tree::{NodeRef, Tiers};

use super::lookup::Hit;

/// Holds a prefix: neither its device pages nor its host slots are given up while it exists.
///
/// It has to be given back through [`CacheManager::release`]; it cannot be copied, so it cannot be
/// given back twice.
#[derive(Debug)]
#[must_use = "a lease that is dropped without release locks its pages for ever"]
pub struct Lease {
    /// Ends exactly where the lease does, since it is locked and locking split it there.
    pub(super) node: NodeRef,
    pub(super) pages: Pages,
    pub(super) device_pages: Pages,
    /// What the request's pages are worth under the `priority` policy.
    pub(super) priority: i32,
}

impl Lease {
    /// Pages that are held.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Pages among them that the holder may read on the device: those that were there when the
    /// lease was taken, restored through it, or inserted through it.
    #[must_use]
    pub fn device_pages(&self) -> Pages {
        self.device_pages
    }

    /// Pages among them that are to be restored or computed again.
    #[must_use]
    pub fn host_pages(&self) -> Pages {
        self.pages - self.device_pages
    }
}

impl CacheManager {
    /// Holds what `hit` found, as far as it is still there.
    ///
    /// Counts as one use of the prefix, which from now on is worth at least `priority`.
    pub fn lock(&mut self, hit: &Hit, priority: i32) -> Lease {
        let node = self.end_of(hit);
        let (lease, lacks_copies) = self.lock_path(node, priority, true);
        if lacks_copies {
            self.back_up_used(node);
        }
        lease
    }

    /// As [`lock`](Self::lock), and no use of the prefix: for who has not decided yet, and may ask again
    /// and again. It becomes as recent as if it had been used; nothing else changes.
    pub fn pin(&mut self, hit: &Hit, priority: i32) -> Lease {
        let node = self.end_of(hit);
        self.lock_path(node, priority, false).0
    }

    /// The device pages of what is left of `hit`, as long as nothing else is done with the cache.
    #[must_use]
    pub fn pages_of(&self, hit: &Hit) -> Vec<PageId> {
        let deepest = self.deepest_of(hit);
        deepest.map_or_else(Vec::new, |deepest| self.device_pages_to(deepest, Pages::ZERO, hit.pages))
    }

    /// The node that ends where what is left of `hit` does, split off if need be.
    fn end_of(&mut self, hit: &Hit) -> NodeIndex {
        let Some(deepest) = self.deepest_of(hit) else { return self.tree.ensure_root(&hit.namespace) };
        let end = self.tree.arena[deepest].end.min(hit.pages);
        // The part that the hit ends in may have been split off in front.
        let mut path = self.path_up(deepest);
        let node = path.find(|&node| self.tree.arena[node].start() < end).expect("the end is on the path");
        drop(path);
        let pages = end - self.tree.arena[node].start();
        if pages < self.tree.arena[node].len() { self.tree.split(node, pages) } else { node }
    }

    /// The deepest node that is left of `hit`, which may go beyond it; `None` if nothing is.
    ///
    /// A node's index means the same prefix as long as its generation is the same, whatever is
    /// split off in front of it or cut off behind. So the deepest one that is left tells.
    fn deepest_of(&self, hit: &Hit) -> Option<NodeIndex> {
        let left = hit.path.iter().rev().find(|&&node| self.tree.arena.resolve(node).is_some());
        let mut deepest = left.map(|node| node.index);
        if let (true, Some(left)) = (self.tree.has_out_of_reach(), deepest) {
            let is_lost = |node: &NodeIndex| self.tree.arena[*node].is_flushed || self.tree.arena[*node].is_cut_off;
            // Behind what is left of it; nothing, if the whole namespace was flushed.
            if let Some(lost) = self.path_up(left).filter(is_lost).last() {
                deepest = self.tree.arena[lost].parent;
            }
        }
        deepest.filter(|&deepest| !self.tree.arena[deepest].is_root())
    }

    /// The lease, and whether some of its device pages have neither a host copy nor a backup.
    fn lock_path(&mut self, deepest: NodeIndex, priority: i32, is_use: bool) -> (Lease, bool) {
        self.clock += 1;
        self.hold(deepest);
        let (mut device_pages, mut lacks_copies) = (Pages::ZERO, false);
        let mut next = Some(deepest);
        while let Some(index) = next {
            let node = &mut self.tree.arena[index];
            let usage = &mut node.state.usage;
            usage.last_access = self.clock;
            if is_use {
                usage.hits = usage.hits.saturating_add(1);
                usage.priority = usage.priority.max(priority);
            }
            let Tiers { device, host } = node.state.tiers;
            if device {
                device_pages = device_pages.max(node.end);
                lacks_copies |= !host && node.state.pending.is_none() && !node.state.is_partial;
            }
            next = node.parent;
        }
        let pages = self.tree.arena[deepest].end;
        self.counters.leases += 1;
        if is_use {
            self.counters.device_hit_pages += u64::from(device_pages.0);
            self.counters.host_hit_pages += u64::from((pages - device_pages).0);
        }
        (Lease { node: self.tree.arena.reference(deepest), pages, device_pages, priority }, lacks_copies)
    }

    /// Gives a lease back. What it inserted makes everything in front of it as recent as itself.
    #[expect(clippy::needless_pass_by_value, reason = "a lease must not be there any more after its release")]
    pub fn release(&mut self, lease: Lease) {
        let mut next = Some(lease.node.index);
        let mut last_access = 0;
        while let Some(index) = next {
            let usage = &mut self.tree.arena[index].state.usage;
            last_access = last_access.max(usage.last_access);
            usage.last_access = last_access;
            next = self.tree.arena[index].parent;
        }
        if self.let_go(lease.node.index) {
            self.compact();
        }
    }

    /// Refuses a lease that relies on a restore that has failed.
    pub(super) fn check_whole(&self, lease: &Lease) -> Result<()> {
        if self.is_lost(lease) { Err(Error::RestoreFailed) } else { Ok(()) }
    }

    /// Whether a restore has failed that pages of the lease rely on. It can only be released.
    #[must_use]
    pub fn is_lost(&self, lease: &Lease) -> bool {
        self.is_cut_off(lease.node.index)
    }

    /// Whether a node has relied on a restore that has failed.
    pub(super) fn is_cut_off(&self, node: NodeIndex) -> bool {
        self.tree.has_cut_off() && self.path_up(node).any(|node| self.tree.arena[node].is_cut_off)
    }

    /// The restores that pages of the lease wait for, front first. Whoever reads the pages waits for
    /// them layer by layer, also if another request has started them.
    #[must_use]
    pub fn restores_of(&self, lease: &Lease) -> Vec<OperationId> {
        if self.operations.restores() == 0 {
            return Vec::new();
        }
        let pending = self.path_up(lease.node.index).filter_map(|node| self.tree.arena[node].state.pending);
        let mut restores: Vec<OperationId> = pending.map(|index| self.operations.id_at(index)).collect();
        restores.retain(|&id| self.operations.get(id).is_some_and(|operation| operation.kind == Kind::Restore));
        restores.dedup();
        restores.reverse();
        restores
    }

    /// The device pages of the lease from page `first` on, as far as they are on the device now.
    #[must_use]
    pub fn leased_pages(&self, lease: &Lease, first: Pages) -> Vec<PageId> {
        self.device_pages_to(lease.node.index, first, lease.pages)
    }

    /// The device pages `first .. end` on the way to `deepest`, as far as they are on the device now.
    fn device_pages_to(&self, deepest: NodeIndex, first: Pages, end: Pages) -> Vec<PageId> {
        let wanted = (end - first.min(end)).index();
        let mut pages = Vec::with_capacity(wanted);
        for node in self.nodes_from(deepest, first) {
            // Then what is below it is not there either.
            if !self.tiers_of(node).device {
                break;
            }
            let start = self.tree.arena[node].start();
            let rows = &self.tree.rows(node)[(first.max(start) - start).index()..];
            pages.extend(rows.iter().take(wanted - pages.len()).map(|row| row.page()));
        }
        pages
    }

    /// The host slots of the pages from `device_pages` on, one for each of `host_pages`. They are
    /// held, also where another request has restored the page meanwhile.
    ///
    /// # Errors
    /// [`Error::RestoreFailed`].
    pub fn leased_slots(&self, lease: &Lease) -> Result<Vec<SlotId>> {
        self.check_whole(lease)?;
        let nodes = self.nodes_from(lease.node.index, lease.device_pages);
        Ok(nodes.into_iter().flat_map(|node| self.tree.rows(node).iter().map(|row| row.slot())).collect())
    }

    /// The nodes on the way to `deepest` that reach beyond page `first`, from the root down.
    pub(super) fn nodes_from(&self, deepest: NodeIndex, first: Pages) -> Vec<NodeIndex> {
        let mut nodes: Vec<_> = self.path_up(deepest).take_while(|&node| self.tree.arena[node].end > first).collect();
        nodes.reverse();
        nodes
    }
}
