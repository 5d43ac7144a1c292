//! The host tier: copies of device pages, and what is given up for new ones.
//!
//! Mirrors (host copies of pages that are on the device) go first, leaves before what they hang
//! from; they are copied late before the device evicts them. Sole copies follow in the policy's
//! order.

use super::{CacheManager, device_ids, host_ids};
use crate::ids::{NodeIndex, PageId, Pages, SlotId};
use crate::slots::LaneCounts;

impl CacheManager {
    /// Copies a new, locked node to the host, whole or not at all; returns the pages copied.
    pub(super) fn write_through(&mut self, node: NodeIndex) -> Pages {
        let Some(host) = &self.host else { return Pages::ZERO };
        let pages = self.tree.arena[node].len();
        let wanted = LaneCounts::of(self.lanes, device_ids(self.tree.rows(node)));
        let is_possible = wanted.iter().all(|(lane, count)| count <= host.slots.free(lane) + host.evictable.get(lane));
        if !is_possible {
            self.counters.host_skipped_pages += u64::from(pages.0);
            return Pages::ZERO;
        }
        self.free_slots(&wanted);
        self.copy_to_host(node);
        self.counters.host_written_pages += u64::from(pages.0);
        pages
    }

    /// Gives each page of a device node a slot in its lane; there are enough.
    pub(super) fn copy_to_host(&mut self, node: NodeIndex) {
        let pages: Vec<PageId> = self.tree.rows(node).iter().map(|row| row.page()).collect();
        let wanted = LaneCounts::of(self.lanes, pages.iter().map(|page| page.raw()));
        let slots = self.deal_slots(&wanted, |place| pages[place]);
        self.gain_host(node, &slots);
    }

    /// Takes free slots, one in the lane of each page; there are enough.
    pub(super) fn deal_slots(&mut self, wanted: &LaneCounts, page_at: impl Fn(usize) -> PageId) -> Vec<SlotId> {
        let lanes = self.lanes;
        let host = self.host.as_mut().expect("copies go to the host");
        let mut slots = Vec::with_capacity(wanted.total() as usize);
        let took = host.slots.deal(
            wanted,
            |place| lanes.lane_of(page_at(place).raw()),
            |_| (),
            |slot| slots.extend(SlotId::new(slot)),
        );
        assert!(took, "slots were freed for all pages");
        slots
    }

    /// Gives up host copies until `wanted` slots are free in each lane, which is possible.
    ///
    /// As with device pages, a leaf that does not end in a wanted lane loses its last page only if
    /// no leaf does.
    pub(super) fn free_slots(&mut self, wanted: &LaneCounts) {
        while let Some(shortage) = self.shortage(wanted) {
            let host = self.host.as_ref().expect("slots are the host's");
            let mirror = host.mirrors.first_in(&shortage);
            let sole = host.soles.first_in(&shortage);
            if let Some((mirror, _)) = mirror {
                self.drop_mirror_tail(mirror, shortage, None);
            } else if let Some((sole, _)) = sole {
                self.evict_sole_tail(sole, shortage);
            } else if let Some((mirror, _)) = host.mirrors.first() {
                self.drop_mirror_tail(mirror, shortage, None);
            } else {
                let (sole, _) = host.soles.first().expect("enough can be given up");
                self.evict_sole_tail(sole, shortage);
            }
        }
    }

    /// Gives up host copies until `wanted` slots are free in each lane for pages of `leaf` that
    /// are copied late, as far as something may be given up for them: mirrors, sole copies that
    /// are worth no more, and mirrors that are in the way of others in the lane. Sole copies below
    /// the leaf could not be reached without it, so they go as well, last.
    pub(super) fn free_slots_for(&mut self, leaf: NodeIndex, wanted: &LaneCounts) {
        let worth = self.key_of(leaf);
        while let Some(shortage) = self.shortage(wanted) {
            let host = self.host.as_ref().expect("slots are the host's");
            let sole = host.soles.first_in(&shortage).filter(|&(_, key)| key <= worth);
            if let Some((mirror, _)) = host.mirrors.first_in(&shortage) {
                self.drop_mirror_tail(mirror, shortage, Some(leaf));
            } else if let Some((sole, _)) = sole {
                self.evict_sole_tail(sole, shortage);
            } else if shortage.iter().any(|(lane, count)| count > 0 && host.droppable.get(lane) > 0) {
                let (mirror, _) = host.mirrors.first().expect("there are mirrors");
                self.drop_mirror_tail(mirror, shortage, Some(leaf));
            } else {
                break;
            }
        }
        // With several lanes, or where a page can be worth more than the one it hangs from (fifo,
        // mru), there may be more below.
        let mut node = leaf;
        while let Some(shortage) = self.shortage(wanted) {
            while let Some(child) = self.tree.arena[node].first_child {
                node = child;
            }
            if node == leaf {
                break;
            }
            let parent = self.tree.arena[node].parent.expect("below the leaf");
            if self.evict_sole_tail(node, shortage) {
                node = parent;
            }
        }
    }

    /// What is missing of `wanted` in each lane; `None` if nothing is.
    pub(super) fn shortage(&self, wanted: &LaneCounts) -> Option<LaneCounts> {
        let host = self.host.as_ref().expect("slots are the host's");
        Some(host.slots.shortage(wanted)).filter(|shortage| !shortage.is_zero())
    }

    /// Gives up the host copies of the last pages of a mirror that are wanted, one at least. Does
    /// not merge what has none any more into `keep`.
    fn drop_mirror_tail(&mut self, node: NodeIndex, mut wanted: LaneCounts, keep: Option<NodeIndex>) {
        let pages = Pages(wanted.consume(host_ids(self.tree.rows(node)).rev()).max(1));
        let front = self.tree.arena[node].len() - pages;
        if front > Pages::ZERO {
            self.tree.split(node, front);
        }
        self.lose_host(node);
        self.counters.mirror_dropped_pages += u64::from(pages.0);
        self.settle(node, keep);
    }

    /// Removes the last pages of a sole copy that are wanted, one at least, from the cache; true
    /// if none of it is left.
    pub(super) fn evict_sole_tail(&mut self, node: NodeIndex, mut wanted: LaneCounts) -> bool {
        let pages = Pages(wanted.consume(host_ids(self.tree.rows(node)).rev()).max(1));
        let is_whole = pages == self.tree.arena[node].len();
        self.evict_sole(node, pages);
        is_whole
    }

    fn evict_sole(&mut self, node: NodeIndex, pages: Pages) {
        self.counters.host_evicted_pages += u64::from(pages.0);
        self.remove_tail(node, pages, &mut Vec::new());
    }

    /// Removes everything below `top` from the cache: sole copies that nothing holds.
    pub(super) fn remove_below(&mut self, top: NodeIndex) {
        let mut node = top;
        loop {
            if let Some(child) = self.tree.arena[node].first_child {
                node = child;
            } else if node == top {
                return;
            } else {
                let parent = self.tree.arena[node].parent.expect("below top");
                self.evict_sole(node, self.tree.arena[node].len());
                node = parent;
            }
        }
    }
}
