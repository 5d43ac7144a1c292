//! Which tiers hold a node, and what may be evicted: the only place where the ids of rows, the
//! counts of pages and slots, and the heaps change.

use super::{CacheManager, Copies, DevicePages, Medium, device_ids, host_ids};
use crate::eviction::{EvictionHeaps, EvictionKey};
use crate::ids::{Lane, NodeIndex, PageId, Pages, SlotId};
use crate::store::Row;
use crate::tree::{HeapPlace, Tiers};

impl CacheManager {
    // --- Tiers ---

    /// Makes `pages` the device pages of a locked node that has none.
    pub(super) fn gain_device(&mut self, index: NodeIndex, pages: &[PageId]) {
        let rows = self.tree.rows_mut(index);
        debug_assert_eq!(rows.len(), pages.len());
        for (row, &page) in rows.iter_mut().zip(pages) {
            row.device = Some(page);
        }
        let tiers = self.tiers_of(index);
        let pages = self.tree.arena[index].len();
        self.device.cached += pages.0;
        if let (true, Some(host)) = (tiers.host, &mut self.host) {
            host.mirrored += pages.0;
        }
        self.tree.set_tiers(index, Tiers { device: true, ..tiers });
        debug_assert!(self.tree.arena[index].is_locked(), "what is locked is in no heap or count");
        self.note_stored(index, Medium::Device);
    }

    /// Takes the device pages of an unlocked mirror and adds them to `given_up`.
    pub(super) fn lose_device(&mut self, index: NodeIndex, given_up: &mut Vec<PageId>) {
        self.forget_device(index, Pages::ZERO, given_up);
        for row in self.tree.rows_mut(index) {
            row.device = None;
        }
        self.tree.set_tiers(index, Tiers { device: false, host: true });
        // The host copy is whole.
        self.tree.arena[index].state.is_partial = false;
    }

    /// Makes `slots` the host slots of a device node that has none.
    pub(super) fn gain_host(&mut self, index: NodeIndex, slots: &[SlotId]) {
        let rows = self.tree.rows_mut(index);
        debug_assert_eq!(rows.len(), slots.len());
        for (row, &slot) in rows.iter_mut().zip(slots) {
            row.host = Some(slot);
        }
        let node = &self.tree.arena[index];
        let (is_locked, pages) = (node.is_locked(), node.len());
        let host = self.host.as_mut().expect("slots are the host's");
        host.mirrored += pages.0;
        if !is_locked {
            host.evictable.add(host_ids(self.tree.rows(index)));
            host.droppable.add(host_ids(self.tree.rows(index)));
        }
        self.tree.set_tiers(index, Tiers { device: true, host: true });
        self.note_stored(index, Medium::Host);
    }

    /// Frees the host slots of an unlocked mirror.
    pub(super) fn lose_host(&mut self, index: NodeIndex) {
        self.forget_host(index, Pages::ZERO, self.tiers_of(index));
        for row in self.tree.rows_mut(index) {
            row.host = None;
        }
        self.tree.set_tiers(index, Tiers { device: true, host: false });
    }

    /// Removes the last `pages` pages of an unlocked node, below which there is nothing, from the
    /// cache. Device pages among them are added to `given_up`.
    pub(super) fn remove_tail(&mut self, index: NodeIndex, pages: Pages, given_up: &mut Vec<PageId>) {
        let kept = self.tree.arena[index].len() - pages;
        let tiers = self.tiers_of(index);
        if tiers.device {
            self.forget_device(index, kept, given_up);
        }
        if tiers.host {
            // They are mirrors no more.
            self.forget_host(index, kept, Tiers { device: false, ..tiers });
        }
        if kept > Pages::ZERO {
            self.tree.cut_tail(index, pages);
            self.reindex(index);
            return;
        }
        let parent = self.tree.arena[index].parent.expect("a root has no pages");
        self.enter(index, [None; 3]);
        self.tree.remove(index);
        if self.tree.arena[parent].is_root() {
            self.tree.drop_root_if_empty(parent);
        } else {
            self.reindex(parent);
        }
    }

    /// Takes the device pages from row `first` on out of all counts, and hands them back.
    fn forget_device(&mut self, index: NodeIndex, first: Pages, given_up: &mut Vec<PageId>) {
        self.note_removed(index, first, Medium::Device);
        let tiers = self.tiers_of(index);
        let rows: &[Row] = &self.tree.rows(index)[first.index()..];
        let pages = self.tree.arena[index].len() - first;
        self.device.evictable.subtract(device_ids(rows));
        self.device.cached -= pages.0;
        if let (true, Some(host)) = (tiers.host, &mut self.host) {
            host.mirrored -= pages.0;
            host.droppable.subtract(host_ids(rows));
        }
        let before = given_up.len();
        given_up.extend(rows.iter().map(|row| row.page()));
        match &mut self.device.pages {
            DevicePages::Own { pool, .. } => pool.release(given_up[before..].iter().map(|page| page.raw())),
            DevicePages::Engine { cached } => {
                for page in &given_up[before..] {
                    cached.remove(page.raw());
                }
            }
        }
        self.counters.device_evicted_pages += u64::from(pages.0);
        self.history.add_id(given_up.get(before).map(|page| page.raw()));
    }

    /// Takes the host slots from row `first` on out of all counts, and frees them.
    fn forget_host(&mut self, index: NodeIndex, first: Pages, tiers: Tiers) {
        self.note_removed(index, first, Medium::Host);
        let rows = &self.tree.rows(index)[first.index()..];
        let pages = self.tree.arena[index].len() - first;
        let host = self.host.as_mut().expect("the rows are on the host");
        host.evictable.subtract(host_ids(rows));
        host.slots.release(host_ids(rows));
        if tiers.device {
            host.mirrored -= pages.0;
            host.droppable.subtract(host_ids(rows));
        }
    }

    pub(super) fn tiers_of(&self, index: NodeIndex) -> Tiers {
        self.tree.arena[index].state.tiers
    }

    // --- Locks ---

    /// Holds everything from `node` to its root: a lease or an operation ends there. What was not
    /// held before leaves heaps and evictable counts.
    pub(super) fn hold(&mut self, node: NodeIndex) {
        let mut was_locked = self.tree.arena[node].is_locked();
        self.tree.arena[node].state.locks += 1;
        let mut index = node;
        while !was_locked {
            self.leave_counts(index);
            let Some(parent) = self.tree.arena[index].parent else { break };
            was_locked = self.tree.arena[parent].is_locked();
            self.tree.arena[parent].locked_children += 1;
            index = parent;
        }
    }

    /// Takes one hold away. What nothing holds any more can be evicted. What nobody can use any more
    /// is removed: pages that were reserved for and never came, and pages that nothing finds. True if
    /// something was.
    pub(super) fn let_go(&mut self, node: NodeIndex) -> bool {
        self.let_go_known(node, self.is_out_of_reach(node))
    }

    /// The same for a node of which it is known whether something finds it.
    pub(super) fn let_go_known(&mut self, node: NodeIndex, mut is_out_of_reach: bool) -> bool {
        self.tree.arena[node].state.locks -= 1;
        let mut given_up = Vec::new();
        let mut is_removed = false;
        let mut next = Some(node);
        while let Some(index) = next.filter(|&index| !self.tree.arena[index].is_locked()) {
            next = self.tree.arena[index].parent;
            let Some(parent) = next else {
                self.tree.drop_root_if_empty(index);
                break;
            };
            self.enter_counts(index);
            let is_cut_off = self.tree.arena[index].is_cut_off;
            if is_out_of_reach {
                // What is below it is not held either, and was removed by the flush or before this.
                self.remove_tail(index, self.tree.arena[index].len(), &mut given_up);
                is_removed = true;
            } else {
                is_removed |= self.remove_if_empty(index);
            }
            // Only now, or an emptied root would be dropped before its turn.
            self.tree.arena[parent].locked_children -= 1;
            if is_cut_off {
                is_out_of_reach = self.is_out_of_reach(parent);
            }
        }
        self.report_freed(given_up);
        is_removed
    }

    /// Holds `node` in place of `held`, which is on the way to it.
    pub(super) fn hold_instead(&mut self, node: NodeIndex, held: NodeIndex) {
        self.hold(node);
        self.let_go(held);
    }

    /// Takes a node out of heaps and evictable counts, because it is held.
    fn leave_counts(&mut self, index: NodeIndex) {
        self.reindex(index);
        let (tiers, rows) = (self.tiers_of(index), self.tree.rows(index));
        if tiers.device {
            self.device.evictable.subtract(device_ids(rows));
        }
        if let (true, Some(host)) = (tiers.host, &mut self.host) {
            host.evictable.subtract(host_ids(rows));
            if tiers.device {
                host.droppable.subtract(host_ids(rows));
            }
        }
    }

    /// Enters a node in heaps and evictable counts, because nothing holds it any more.
    fn enter_counts(&mut self, index: NodeIndex) {
        let (tiers, rows) = (self.tiers_of(index), self.tree.rows(index));
        if tiers.device {
            self.device.evictable.add(device_ids(rows));
        }
        if let (true, Some(host)) = (tiers.host, &mut self.host) {
            host.evictable.add(host_ids(rows));
            if tiers.device {
                host.droppable.add(host_ids(rows));
            }
        }
        self.reindex(index);
    }

    /// Whether nothing finds a node any more: its namespace was flushed, or a restore in front has
    /// failed.
    pub(super) fn is_out_of_reach(&self, node: NodeIndex) -> bool {
        let is_lost = |node: NodeIndex| self.tree.arena[node].is_flushed || self.tree.arena[node].is_cut_off;
        self.tree.has_out_of_reach() && self.path_up(node).any(is_lost)
    }

    /// Removes a node that is in no tier, if nobody waits for its pages; true if it was.
    pub(super) fn remove_if_empty(&mut self, index: NodeIndex) -> bool {
        let node = &self.tree.arena[index];
        let is_empty = node.state.tiers.is_none() && !node.is_root() && !node.is_locked() && node.children == 0;
        if is_empty {
            self.remove_tail(index, node.len(), &mut Vec::new());
        }
        is_empty
    }

    // --- Heaps ---

    pub(super) fn key_of(&self, index: NodeIndex) -> EvictionKey {
        self.policy.key(&self.tree.arena[index].state.usage)
    }

    /// The key by which mirrors are given up. Where a page that has lost its host copy cannot get
    /// another one at once, those go first whose device pages stay longest.
    pub(super) fn mirror_key(&self, key: EvictionKey) -> EvictionKey {
        match self.copies {
            Copies::Assumed => key,
            Copies::Tracked => (!key.0, !key.1),
        }
    }

    /// Enters a node in the heaps that it belongs to and takes it out of the others. To be called
    /// whenever the tiers, locks, children or last page of an existing node have changed.
    pub(super) fn reindex(&mut self, index: NodeIndex) {
        self.enter(index, self.heaps_of(index));
    }

    /// The lanes in whose heaps a node belongs: device, mirror, sole.
    pub(super) fn heaps_of(&self, index: NodeIndex) -> [Option<Lane>; 3] {
        let node = &self.tree.arena[index];
        // With a single lane the last row need not be looked at.
        let last = || *self.tree.rows(index).last().expect("a leaf has pages");
        let is_single = self.lanes.count() == 1;
        let device_lane = || if is_single { Lane(0) } else { self.lanes.lane_of(last().page().raw()) };
        let host_lane = || if is_single { Lane(0) } else { self.lanes.lane_of(last().slot().raw()) };
        [
            node.is_device_leaf().then(device_lane),
            node.is_mirror_leaf().then(host_lane),
            node.is_sole_leaf().then(host_lane),
        ]
    }

    fn enter(&mut self, index: NodeIndex, wanted: [Option<Lane>; 3]) {
        let node = &self.tree.arena[index];
        let key = self.policy.key(&node.state.usage);
        let (depth, entered, mirror_key) = (node.end, node.heaps, self.mirror_key(key));
        let arena = &mut self.tree.arena;
        let mut change = |heaps: &mut EvictionHeaps, key, wanted: Option<Lane>, entered: Option<HeapPlace>| {
            if wanted == entered.map(|place| place.lane) {
                return;
            }
            if entered.is_some() {
                heaps.remove(arena, index);
            }
            if let Some(lane) = wanted {
                heaps.insert(arena, index, lane, key, depth);
            }
        };
        change(&mut self.device.leaves, key, wanted[0], entered.device);
        if let Some(host) = &mut self.host {
            change(&mut host.mirrors, mirror_key, wanted[1], entered.mirror);
            change(&mut host.soles, key, wanted[2], entered.sole);
        }
    }

    /// Brings heaps and structure in order after the tiers of an unlocked node have changed. Does
    /// not merge it into `keep`.
    pub(super) fn settle(&mut self, index: NodeIndex, keep: Option<NodeIndex>) {
        self.reindex(index);
        if let Some(parent) = self.tree.arena[index].parent {
            self.reindex(parent);
        }
        // Repeated evictions from one leaf would otherwise leave a chain of small nodes. A node
        // that has a child like itself is in no heap.
        if self.tree.mergeable_child(index).is_some_and(|child| Some(child) != keep) {
            self.tree.merge_into_child(index);
        }
    }

    /// Gives back memory that is not used any more; ends every operation that removes pages.
    pub(super) fn compact(&mut self) {
        self.tree.compact();
        self.device.leaves.shrink();
        if let Some(host) = &mut self.host {
            host.mirrors.shrink();
            host.soles.shrink();
        }
    }
}
