//! Evict: device pages for new ones, least valuable leaves first and from their ends.
//!
//! A page that has a host copy stays in the cache. One that has none is copied late, if the host
//! has room for it or holds something that is worth less; otherwise it is lost.
//!
//! What is wanted is wanted in lanes. The least valuable leaf whose last page is in a wanted lane
//! goes first; only if no leaf ends in one does the least valuable of all lose its last page.

use super::placement::Placement;
use super::{CacheManager, Copies, DevicePages, device_ids};
use crate::error::{Error, Result};
use crate::ids::{Lane, NodeIndex, PageId, Pages};
use crate::slots::LaneCounts;

impl CacheManager {
    /// Evicts until `count` device pages of `lane` were given up, or the lane has no more. Returns
    /// all pages given up, which may include some of other lanes. They are free if cpkv owns the
    /// pool, and the engine's to free otherwise.
    ///
    /// # Errors
    /// [`Error::NoSuchLane`].
    pub fn evict(&mut self, lane: Lane, count: u32) -> Result<Vec<PageId>> {
        self.check_lane(lane)?;
        Ok(self.evict_until(LaneCounts::single(self.lanes, lane, count)))
    }

    /// Evicts just enough for [`Self::allocate`] with the same argument. `None`, and nothing was
    /// evicted, if that is impossible.
    ///
    /// # Errors
    /// [`Error::ExternalPool`] if the engine owns the pool, [`Error::NoSuchLane`].
    pub fn evict_for(&mut self, placement: Placement<'_>) -> Result<Option<Vec<PageId>>> {
        let wanted = placement.counts(self.lanes)?;
        let DevicePages::Own { pool, .. } = &self.device.pages else {
            return Err(Error::ExternalPool { call: "evict_for" });
        };
        let shortage = pool.shortage(&wanted);
        if shortage.iter().any(|(lane, count)| count > self.device.evictable.get(lane)) {
            return Ok(None);
        }
        Ok(Some(self.evict_until(shortage)))
    }

    /// Device pages of `lane` that could be evicted now.
    ///
    /// # Errors
    /// [`Error::NoSuchLane`].
    pub fn evictable_pages(&self, lane: Lane) -> Result<u32> {
        self.check_lane(lane)?;
        Ok(self.device.evictable.get(lane))
    }

    fn evict_until(&mut self, mut wanted: LaneCounts) -> Vec<PageId> {
        wanted.limit(&self.device.evictable);
        let mut given_up = Vec::with_capacity(wanted.total() as usize);
        while !wanted.is_zero() {
            let leaves = &self.device.leaves;
            let Some((leaf, _)) = leaves.first_in(&wanted).or_else(|| leaves.first()) else { break };
            let pages = wanted.consume(device_ids(self.tree.rows(leaf)).rev());
            self.evict_tail(leaf, Pages(pages.max(1)), &mut given_up);
        }
        self.compact();
        given_up
    }

    /// Takes the last `pages` pages of a leaf off the device.
    fn evict_tail(&mut self, leaf: NodeIndex, pages: Pages, given_up: &mut Vec<PageId>) {
        if self.host.is_none() || (self.copies == Copies::Tracked && !self.tiers_of(leaf).host) {
            // What is only on the host below it could not be reached without it.
            self.remove_below(leaf);
            self.lose_tail(leaf, pages, given_up);
            return;
        }
        let node = &self.tree.arena[leaf];
        let (is_mirrored, front) = (node.state.tiers.host, node.len() - pages);
        // The tail keeps the index, see `Tree`.
        if front > Pages::ZERO {
            self.tree.split(leaf, front);
        }
        if is_mirrored || self.copy_late(leaf, given_up) {
            self.lose_device(leaf, given_up);
            self.settle(leaf, None);
        }
    }

    /// Gives a leaf that is on the device only a host copy. Its last pages are lost if the host
    /// cannot take them; false if all were.
    fn copy_late(&mut self, leaf: NodeIndex, given_up: &mut Vec<PageId>) -> bool {
        let wanted = LaneCounts::of(self.lanes, device_ids(self.tree.rows(leaf)));
        self.free_slots_for(leaf, &wanted);
        let host = self.host.as_ref().expect("late copies go to the host");
        let fitting = Pages(host.slots.fitting(device_ids(self.tree.rows(leaf))));
        let lost = self.tree.arena[leaf].len() - fitting;
        if lost > Pages::ZERO {
            self.remove_below(leaf);
            self.lose_tail(leaf, lost, given_up);
        }
        if fitting == Pages::ZERO {
            return false;
        }
        self.copy_to_host(leaf);
        self.counters.late_copied_pages += u64::from(fitting.0);
        true
    }

    fn lose_tail(&mut self, leaf: NodeIndex, pages: Pages, given_up: &mut Vec<PageId>) {
        self.counters.lost_pages += u64::from(pages.0);
        self.remove_tail(leaf, pages, given_up);
    }
}
