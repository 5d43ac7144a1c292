//! Reserve: host slots for what a forward is going to compute, before it starts.
//!
//! What will be new is found out with the insertion's own key, and below everything that was
//! reserved before: the pages that slots are reserved for are put into the tree at once, in no
//! tier, so that the next reservation of the same prompt finds them and a match does not.

use super::insert::check_count;
use super::{CacheManager, Copies, Lease};
use crate::agreement::OperationId;
use crate::error::{Error, Result};
use crate::eviction::Usage;
use crate::ids::{NodeIndex, OperationIndex, PageId, Pages, SlotId, Tokens};
use crate::operations::{Kind, Operation, machine};
use crate::slots::{IdSet, LaneCounts};

/// A request that is going to be computed.
#[derive(Clone, Copy, Debug)]
pub struct Prefill<'a> {
    /// The tokens of the whole key, as they will be inserted.
    pub tokens: &'a [i64],
    /// One device page for each whole page from `lease.device_pages()` on, as they will be
    /// inserted.
    pub device_pages: &'a [i64],
    /// What the request holds.
    pub lease: &'a Lease,
}

/// What came of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// Nothing of it will be new, or there is no host tier.
    Nothing,
    /// A lane has too few slots that could be freed.
    NoRoom,
    /// Slots were reserved.
    Slots(OperationId),
}

impl CacheManager {
    /// Reserves host slots for what `prefill` will add to the tree: all or none.
    ///
    /// # Errors
    /// [`Error::AssumedCopies`] and what [`Self::insert`] would refuse; then nothing has changed.
    pub fn reserve(&mut self, prefill: Prefill<'_>) -> Result<Reserved> {
        let given = self.check_prefill(prefill)?;
        Ok(self.reserve_checked(prefill, &given))
    }

    /// Reserves for a batch, in its order. One that has no room does not keep others from theirs.
    ///
    /// # Errors
    /// As [`Self::reserve`], if one of them is refused; then nothing has changed.
    pub fn reserve_batch(&mut self, batch: &[Prefill<'_>]) -> Result<Vec<Reserved>> {
        let given: Vec<_> = batch.iter().map(|&prefill| self.check_prefill(prefill)).collect::<Result<_>>()?;
        let mut pages = IdSet::default();
        for (index, page) in given.iter().flat_map(|given| given.iter().enumerate()) {
            if !pages.insert(page.raw()) {
                return Err(Error::PageRepeated { page: page.raw(), index });
            }
        }
        Ok(batch.iter().zip(&given).map(|(&prefill, given)| self.reserve_checked(prefill, given)).collect())
    }

    fn check_prefill(&mut self, prefill: Prefill<'_>) -> Result<Vec<PageId>> {
        if self.copies == Copies::Assumed {
            return Err(Error::AssumedCopies { call: "reserve" });
        }
        let Prefill { tokens, device_pages, lease } = prefill;
        self.check_whole(lease)?;
        let end = self.shape.pages_in(Tokens(tokens.len()));
        self.check_lease(tokens, end, lease)?;
        check_count(device_pages.len(), lease.device_pages, end)?;
        // Claimed to be checked; they stay the request's.
        let given = self.claim_all(device_pages, &[])?;
        self.unclaim(&given);
        Ok(given)
    }

    fn reserve_checked(&mut self, prefill: Prefill<'_>, given: &[PageId]) -> Reserved {
        let Prefill { tokens, lease, .. } = prefill;
        let end = self.shape.pages_in(Tokens(tokens.len()));
        // Nobody will find what is inserted below a flushed root.
        let is_flushed = self.is_out_of_reach(lease.node.index);
        if self.host.is_none() || !self.writes_through() || is_flushed {
            return Reserved::Nothing;
        }
        let mut parent = lease.node.index;
        let mut last = None;
        self.walk_down(parent, tokens, end, |step| {
            last = Some(step);
            true
        });
        if let Some(step) = last {
            let is_whole = step.pages == self.tree.arena[step.node].len();
            parent = if is_whole { step.node } else { self.tree.split(step.node, step.pages) };
        }
        let first = self.tree.arena[parent].end;
        if first == end {
            return Reserved::Nothing;
        }
        let sources = given[(first - lease.device_pages).index()..].to_vec();
        let wanted = LaneCounts::of(self.lanes, sources.iter().map(|page| page.raw()));
        self.hold(parent);
        let Some(slots) = self.take_slots(&wanted, &sources) else {
            self.let_go(parent);
            // No trace is left of the split either.
            if self.tree.mergeable_child(parent).is_some() {
                self.tree.merge_into_child(parent);
            }
            return Reserved::NoRoom;
        };
        self.clock += 1;
        let usage = Usage { created: self.clock, last_access: self.clock, hits: 0, priority: lease.priority };
        let node = self.tree.attach(parent, tokens, end, usage);
        self.hold_instead(node, parent);
        self.counters.reserved_pages += u64::from((end - first).0);
        let operation = Operation::new(Kind::Transaction, first, sources, slots);
        Reserved::Slots(self.open_backup(operation, node))
    }

    /// Slots for pages to be copied, each in its lane, or none at all. What is given up for them
    /// is unlocked.
    pub(super) fn take_slots(&mut self, wanted: &LaneCounts, sources: &[PageId]) -> Option<Vec<SlotId>> {
        let host = self.host.as_ref().expect("slots are the host's");
        if !wanted.iter().all(|(lane, count)| count <= host.slots.free(lane) + host.evictable.get(lane)) {
            return None;
        }
        self.free_slots(wanted);
        let slots = self.deal_slots(wanted, |place| sources[place]);
        self.compact();
        Some(slots)
    }

    /// Opens a backup of the pages that end with `node`, the way to which is locked for it.
    pub(super) fn open_backup(&mut self, mut operation: Operation, node: NodeIndex) -> OperationId {
        self.holds.hold(&operation.pages);
        operation.end = Some(node);
        let first = operation.first;
        let id = self.operations.insert(operation);
        let index = OperationIndex::new(id.index).expect("named by the table");
        let own: Vec<_> = self.path_up(node).take_while(|&node| self.tree.arena[node].end > first).collect();
        for node in own {
            self.tree.arena[node].state.pending = Some(index);
        }
        self.find_parent(id);
        id
    }

    /// Makes a backup wait for the nearest one in front of its pages, if it does not wait already.
    pub(super) fn find_parent(&mut self, id: OperationId) {
        // A restore waits for nothing.
        let may_wait = |one: &Operation| one.kind != Kind::Restore && !one.state.waits_for_parent;
        if self.operations.get(id).is_some_and(may_wait) && self.join_parent(id) {
            self.advance(id, machine::Event::ParentFound);
        }
    }

    /// Enters a backup with the nearest one in front of its pages; false if there is none.
    pub(super) fn join_parent(&mut self, id: OperationId) -> bool {
        let operation = self.operations.get(id).expect("it is open");
        let (end, first) = (operation.end, operation.first);
        let in_front = end.map(|end| self.path_up(end).skip_while(|&node| self.tree.arena[node].end > first));
        let parent = in_front.and_then(|mut nodes| nodes.find_map(|node| self.tree.arena[node].state.pending));
        let Some(parent) = parent.map(|parent| self.operations.id_at(parent)) else { return false };
        self.operations.get_mut(parent).expect("it is open").children.push(id);
        true
    }

    /// The device pages of an operation and the host slot of each, in order: a backup copies from the
    /// pages to the slots, a restore from the slots to the pages.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`].
    pub fn plan(&self, id: OperationId) -> Result<(&[PageId], &[SlotId])> {
        let operation = self.operations.get(id).ok_or(Error::NoSuchOperation { operation: id })?;
        Ok((&operation.pages, &operation.slots))
    }

    /// What an open operation is for.
    #[must_use]
    pub fn operation_kind(&self, id: OperationId) -> Option<Kind> {
        self.operations.get(id).map(|operation| operation.kind)
    }

    /// The pages from the root at which an operation begins.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`].
    pub fn first_page(&self, id: OperationId) -> Result<Pages> {
        let operation = self.operations.get(id).ok_or(Error::NoSuchOperation { operation: id })?;
        Ok(operation.first)
    }
}
