//! What a cache should say of itself, counted anew from its dump and from what the test has done.

use std::collections::BTreeSet;

use cpkv_core::machine::Phase;
use cpkv_core::{Lane, OperationKind};

use crate::lab::Lab;

impl Lab {
    /// Device pages that nobody uses.
    pub(crate) fn free_pages(&self) -> u32 {
        match &self.free {
            Some(free) => u32::try_from(free.len()).unwrap(),
            None => self.cache.stats().device_free_pages,
        }
    }

    /// Everything that the cache counts is what its dump has, and nothing is in two places. `held` are the
    /// device pages that requests have, which are not in the tree.
    pub(crate) fn recount(&self, held: u32) {
        self.check();
        let (stats, dump) = (self.cache.stats(), self.cache.dump());
        let lanes = self.cache.lanes();
        let (mut pages, mut slots) = (BTreeSet::new(), BTreeSet::new());
        let mut evictable = vec![0; lanes.count() as usize];
        let (mut free_to_drop, mut mirrors) = (0, 0);
        for node in &dump.nodes {
            for page in &node.device_pages {
                assert!(pages.insert(page.raw()), "{page:?} is in the tree twice");
                evictable[lanes.lane_of(page.raw()).0 as usize] += u32::from(!node.is_held);
            }
            for slot in &node.host_slots {
                assert!(slots.insert(slot.raw()), "{slot:?} is in the tree twice");
                free_to_drop += u32::from(!node.is_held);
                mirrors += u32::from(!node.device_pages.is_empty());
            }
        }
        assert_eq!(stats.device_cached_pages as usize, pages.len());
        for (lane, &evictable) in (0..).zip(&evictable) {
            assert_eq!(self.cache.evictable_pages(Lane(lane)).unwrap(), evictable, "lane {lane}");
        }
        for &page in &dump.fenced_pages {
            assert!(pages.insert(page), "page {page} is fenced and in the tree");
        }
        let used = u32::try_from(pages.len()).unwrap() + held;
        assert_eq!(self.free_pages() + used, stats.device_capacity_pages, "{held} held, {stats:?}");

        let cached = slots.len();
        let (mut open, mut unseen) = ([0; 3], 0);
        for operation in &dump.operations {
            let kind = match operation.state.phase {
                Phase::Draining(_) => 1,
                Phase::Quarantined(_) => 2,
                _ => 0,
            };
            // Those of a restore are in the tree.
            let own = if operation.kind == OperationKind::Restore { &[][..] } else { &operation.host_slots };
            for slot in own {
                assert!(slots.insert(slot.raw()), "{slot:?} has two owners");
                (open[kind], unseen) = (open[kind] + 1, unseen + 1);
            }
        }
        assert_eq!([stats.host_reserved_slots, stats.host_draining_slots, stats.host_quarantined_slots], open);
        assert_eq!((stats.host_cached_slots as usize, stats.host_mirror_slots), (cached, mirrors));
        assert_eq!(stats.host_evictable_slots, free_to_drop);
        assert!(stats.host_cached_slots + unseen <= stats.host_capacity_slots);
    }
    /// Every page that is on the device holds what the forward wrote.
    pub(crate) fn check_device(&self) {
        self.each_page(|tokens, page, node, place| {
            let Some(id) = node.device_pages.get(place) else { return };
            let expected = self.content(tokens, page);
            assert_eq!(self.engine.device.get(&id.raw()), Some(&expected), "page {page} of {tokens:?}");
        });
    }
}
