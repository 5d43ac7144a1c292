//! Restore: host pages of a lease come back to the device.

use super::insert::check_count;
use super::{CacheManager, Lease};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::tree::Step;

/// What became of the pages given to a restore.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Pages given for pages that another request has restored meanwhile. They still belong to
    /// the request, which should go over to the tree's own and free them.
    pub duplicates: Vec<PageId>,
}

impl CacheManager {
    /// Makes `device_pages` the device pages of the host part of `lease`, one for each of its
    /// [`Lease::host_pages`] and each in the lane of its host slot ([`Self::leased_slots`]).
    /// Afterwards the holder may read the whole lease on the device.
    ///
    /// # Errors
    /// [`Error::PageCount`], [`Error::LaneMismatch`] and the page errors of [`Self::insert`];
    /// then nothing has changed.
    pub fn restore(&mut self, lease: &mut Lease, device_pages: &[i64]) -> Result<Restored> {
        check_count(device_pages.len(), lease.device_pages, lease.pages)?;
        let nodes = self.nodes_from(lease.node.index, lease.device_pages);
        let steps: Vec<Step> =
            nodes.into_iter().map(|node| Step { node, pages: self.tree.arena[node].len() }).collect();
        let given = self.claim_all(device_pages, &[])?;
        let checked = self.check_lanes(&steps, &given);
        let has_readers = match checked.and_then(|()| self.check_transaction(&given, lease.device_pages, None)) {
            Ok(has_readers) => has_readers,
            Err(error) => {
                self.unclaim(&given);
                return Err(error);
            }
        };

        let mut restored = Restored::default();
        let claimed = given;
        let mut given = claimed.as_slice();
        for step in steps {
            let (for_step, rest) = given.split_at(step.pages.index());
            given = rest;
            if self.adopt(step.node, for_step, &mut restored.duplicates) {
                self.counters.restored_pages += u64::from(step.pages.0);
            }
        }
        self.unclaim(&restored.duplicates);
        self.fence_held(&mut restored.duplicates);
        if has_readers {
            self.lock_for_readers(lease.node.index, &claimed);
        }
        lease.device_pages = lease.pages;
        self.counters.duplicate_pages += restored.duplicates.len() as u64;
        Ok(restored)
    }

    fn check_lanes(&self, steps: &[Step], given: &[PageId]) -> Result<()> {
        let rows = steps.iter().flat_map(|step| self.tree.rows(step.node));
        for (index, (row, page)) in rows.zip(given).enumerate() {
            let (None, Some(slot)) = (row.device, row.host) else { continue };
            let (lane, slot_lane) = (self.lanes.lane_of(page.raw()), self.lanes.lane_of(slot.raw()));
            if lane != slot_lane {
                let page = page.raw();
                return Err(Error::LaneMismatch { page, index, lane: lane.0, slot_lane: slot_lane.0 });
            }
        }
        Ok(())
    }
}
