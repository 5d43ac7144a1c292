//! Restore: host pages of a lease come back to the device.
//!
//! With tracked copies that takes time. The pages are the tree's at once, so that whoever hits them
//! meanwhile waits for the same copies; until those have landed on all ranks, an operation holds the
//! pages and the slots that they are filled from, and nothing that was computed from them is seen on
//! the host. There is an operation for each node, or part of one, so that one that fails leaves those in
//! front of it.

use super::insert::check_count;
use super::{CacheManager, Copies, Lease};
use crate::agreement::OperationId;
use crate::error::{Error, Result};
use crate::ids::{NodeIndex, OperationIndex, PageId, Pages, SlotId};
use crate::operations::{Kind, Operation};
use crate::tree::Step;

/// What became of the pages given to a restore.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// The copies that are to be made now, front first; empty if copies are assumed. Each takes as
    /// long as a backup does, and is told of in the same way: [`CacheManager::submitted`],
    /// [`CacheManager::submitted_all`], [`CacheManager::copy_failed`].
    pub operations: Vec<OperationId>,
    /// Pages given for pages that another request has restored meanwhile. They still belong to
    /// the request, which should go over to the tree's own and free them.
    pub duplicates: Vec<PageId>,
}

impl CacheManager {
    /// Makes `device_pages` the device pages of the host part of `lease`, one for each of its
    /// [`Lease::host_pages`] and each in the lane of its host slot ([`Self::leased_slots`]).
    /// Afterwards the holder may read the whole lease on the device, each layer of it as soon as the
    /// copies of that layer have landed ([`Self::restores_of`]).
    ///
    /// # Errors
    /// [`Error::PageCount`], [`Error::LaneMismatch`], [`Error::RestoreFailed`] and the page errors of
    /// [`Self::insert`]; then nothing has changed.
    pub fn restore(&mut self, lease: &mut Lease, device_pages: &[i64]) -> Result<Restored> {
        self.restore_in_parts(lease, device_pages, None)
    }

    /// Like [`Self::restore`], in operations of no more than `part` pages each: what lands and what
    /// fails then does so by itself.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_in_parts(
        &mut self,
        lease: &mut Lease,
        device_pages: &[i64],
        part: Option<Pages>,
    ) -> Result<Restored> {
        self.check_whole(lease)?;
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
        for step in self.in_parts(steps, part) {
            let (for_step, rest) = given.split_at(step.pages.index());
            given = rest;
            if !self.adopt(step.node, for_step, &mut restored.duplicates) {
                continue;
            }
            match self.copies {
                Copies::Assumed => self.counters.restored_pages += u64::from(step.pages.0),
                Copies::Tracked => restored.operations.push(self.open_restore(step.node)),
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

    /// `steps` with the nodes that are on the host only split.
    fn in_parts(&mut self, steps: Vec<Step>, part: Option<Pages>) -> Vec<Step> {
        let Some(part) = part.filter(|&part| part > Pages::ZERO && self.copies == Copies::Tracked) else {
            return steps;
        };
        let mut parts = Vec::with_capacity(steps.len());
        for Step { node, .. } in steps {
            while !self.tiers_of(node).device && self.tree.arena[node].len() > part {
                parts.push(Step { node: self.tree.split(node, part), pages: part });
            }
            parts.push(Step { node, pages: self.tree.arena[node].len() });
        }
        parts
    }

    /// Opens the restore of a node that has got its device pages.
    fn open_restore(&mut self, node: NodeIndex) -> OperationId {
        let rows = self.tree.rows(node);
        let pages: Vec<PageId> = rows.iter().map(|row| row.page()).collect();
        let slots: Vec<SlotId> = rows.iter().map(|row| row.slot()).collect();
        self.holds.hold(&pages);
        self.hold(node);
        let mut operation = Operation::new(Kind::Restore, self.tree.arena[node].start(), pages, slots);
        operation.end = Some(node);
        let id = self.operations.insert(operation);
        self.tree.arena[node].state.pending = OperationIndex::new(id.index);
        id
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
