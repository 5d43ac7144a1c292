//! Bind: what an insertion brings, and the backups that it is for.

use smallvec::SmallVec;

use super::insert::Origin;
use super::late::Room;
use super::{CacheManager, DevicePages, Lease};
use crate::agreement::OperationId;
use crate::error::{Error, Result};
use crate::ids::{NodeIndex, OperationIndex, PageId, Pages};
use crate::operations::Kind;
use crate::operations::machine::{Event, Phase, Reason};
use crate::slots::IdSet;

impl CacheManager {
    /// Refuses an operation that is bound already, or was never to be.
    pub(super) fn check_unbound(&self, operation: OperationId) -> Result<()> {
        match self.operations.get(operation) {
            Some(record) if record.was_inserted || record.kind != Kind::Transaction => {
                Err(Error::AlreadyBound { operation })
            }
            _ => Ok(()),
        }
    }

    /// Refuses an insertion of `given`, which begins with the page `first`, if the transaction is not
    /// the one that slots were reserved for those pages by. Returns whether copies of others read some
    /// of them.
    ///
    /// # Errors
    /// [`Error::OtherPage`], [`Error::TransactionLeftOut`].
    pub(super) fn check_transaction(
        &self,
        given: &[PageId],
        first: Pages,
        transaction: Option<OperationId>,
    ) -> Result<bool> {
        if self.operations.is_empty() {
            return Ok(false);
        }
        let mut own = 0..0;
        if let Some((operation, record)) = transaction.and_then(|id| Some((id, self.operations.get(id)?))) {
            let start = (record.first - first.min(record.first)).index().min(given.len());
            own = start..(start + record.pages.len()).min(given.len());
            let mut pairs = own.clone().zip(&record.pages);
            if let Some((index, wanted)) = pairs.find(|&(index, wanted)| given[index] != *wanted) {
                let (page, wanted) = (given[index].raw(), wanted.raw());
                return Err(Error::OtherPage { page, index, operation, wanted });
            }
        }
        let is_foreign = |(index, &page): (usize, &PageId)| self.holds.readers(page) > u32::from(own.contains(&index));
        if !given.iter().enumerate().any(is_foreign) {
            return Ok(false);
        }
        let places = IdSet::of(given.iter().map(|page| page.raw()));
        for (operation, record) in self.operations.iter() {
            if record.state.phase != Phase::Reserved || Some(operation) == transaction {
                continue;
            }
            if let Some(page) = record.pages.iter().find(|page| places.contains(page.raw())) {
                let index = given.iter().position(|given| given == page).expect("it is among them");
                return Err(Error::TransactionLeftOut { page: page.raw(), index, operation });
            }
        }
        Ok(true)
    }

    /// The nodes below those of the lease that slots were reserved for, if the last page of them is
    /// what `tokens` have in its place. The tokens in front of it were read by the reservation.
    pub(super) fn reserved_nodes(
        &self,
        transaction: Option<OperationId>,
        lease: &Lease,
        tokens: &[i64],
        end: Pages,
    ) -> Vec<NodeIndex> {
        let reserved = transaction.and_then(|id| self.operations.get(id));
        let last = reserved.filter(|operation| operation.state.phase == Phase::Reserved).and_then(|one| one.end);
        let Some(last) = last.filter(|&last| self.tree.arena[last].end <= end) else { return Vec::new() };
        if !self.tree.last_page_equals(last, tokens) {
            return Vec::new();
        }
        let mut nodes: Vec<_> = self.path_up(last).take_while(|&node| node != lease.node.index).collect();
        nodes.reverse();
        let is_below = nodes.first().is_some_and(|&top| self.tree.arena[top].parent == Some(lease.node.index));
        if is_below { nodes } else { Vec::new() }
    }

    /// Whether every part of the pages that an insertion brings was written.
    pub(super) fn is_whole(&mut self, origin: Origin) -> bool {
        match origin {
            Origin::Computed => true,
            Origin::Partial => false,
            Origin::Transaction(id) => !self.incomplete.remove(&id),
        }
    }

    /// Brings what an insertion has added under a backup: that of its transaction, and late ones for
    /// the rest. Returns how many of the pages from `first` on have one.
    pub(super) fn back_up_inserted(
        &mut self,
        deepest: NodeIndex,
        first: Pages,
        given: &[PageId],
        origin: Origin,
        has_readers: bool,
    ) -> Pages {
        let transaction = origin.transaction();
        if self.writes_through() {
            // Before the binding, which has to wait for what is in front of its pages.
            self.back_up_front(deepest, first);
            self.back_up_late(deepest, first, Room::Any);
        }
        if let Some(id) = transaction.filter(|&id| self.operations.get(id).is_some()) {
            self.bind(id, deepest);
        }
        // What is bound has a lock on its pages, or is committed.
        let is_unlocked = transaction
            .and_then(|id| self.operations.get(id))
            .is_some_and(|operation| !operation.state.is_alive() || operation.end.is_none());
        if has_readers || is_unlocked {
            self.lock_for_readers(deepest, given);
        }
        let has_copy = |&node: &NodeIndex| {
            let state = self.tree.arena[node].state;
            state.tiers.host || state.pending.is_some()
        };
        let own = self.own_nodes(deepest, first);
        let pages = own
            .iter()
            .filter(|node| has_copy(node))
            .map(|&node| (self.tree.arena[node].end - self.tree.arena[node].start().max(first)).0);
        Pages(pages.sum())
    }

    /// The pages of a transaction are in the tree, the last of them in `deepest`, or other pages
    /// are. What was reserved and is not there is given up.
    fn bind(&mut self, id: OperationId, deepest: NodeIndex) {
        let index = OperationIndex::new(id.index).expect("named by the table");
        let operation = self.operations.get_mut(id).expect("looked up before");
        operation.was_inserted = true;
        let (first, end, reserved) = (operation.first, operation.end, operation.pages.len() as u64);
        let is_own = |node: &NodeIndex| self.tree.arena[*node].state.pending == Some(index);
        let bound = self.own_nodes(deepest, first).into_iter().find(is_own);
        if let (Some(bound), Some(end)) = (bound, end) {
            let missed = self.tree.arena[end].end - self.tree.arena[bound].end;
            if missed > Pages::ZERO {
                self.counters.insert_missed_pages += u64::from(missed.0);
                self.operations.get_mut(id).expect("it is open").end = Some(bound);
                self.leave_path(end, bound);
            }
            self.find_parent(id);
            self.advance(id, Event::Bound);
        } else if self.operation_state(id).is_some_and(|state| state.phase == Phase::Reserved) {
            self.counters.insert_missed_pages += reserved;
            self.advance(id, Event::RolledBack(Reason::InsertMiss));
        }
    }

    /// Keeps the pages of an insertion or a restore that ends with `deepest` from being evicted as
    /// long as copies read them that have no lock on them.
    pub(super) fn lock_for_readers(&mut self, deepest: NodeIndex, given: &[PageId]) {
        let places = IdSet::of(given.iter().map(|page| page.raw()));
        let uses = |id: OperationId, first: Pages, is_bound: bool, pages: &[PageId]| {
            // The path of a bound backup is locked as far as its own pages go.
            let own = if is_bound { self.own_nodes(deepest, first) } else { SmallVec::new() };
            let is_own =
                |node: &&NodeIndex| self.tree.arena[**node].state.pending.map(OperationIndex::raw) == Some(id.index);
            let own_pages: u32 = own.iter().filter(is_own).map(|&node| self.tree.arena[node].len().0).sum();
            pages[own_pages as usize..].iter().any(|page| places.contains(page.raw()))
        };
        let readers: Vec<OperationId> = self
            .operations
            .iter()
            .filter(|(id, operation)| uses(*id, operation.first, operation.end.is_some(), &operation.pages))
            .map(|(id, _)| id)
            .collect();
        for id in readers {
            self.operations.get_mut(id).expect("it is open").reads.push(deepest);
            self.hold(deepest);
        }
    }

    /// Takes those of `pages` that copies read from their request, to be freed after the copies.
    pub(super) fn fence_held(&mut self, pages: &mut Vec<PageId>) {
        if self.operations.is_empty() {
            return;
        }
        pages.retain(|&page| {
            let is_held = self.holds.is_held(page);
            if is_held {
                if let DevicePages::Own { requested, .. } = &mut self.device.pages {
                    requested.remove(page.raw());
                }
                self.holds.fence(page);
            }
            !is_held
        });
    }

    /// Gives up the nodes of a backup from `end` up to `bound`, which stays.
    fn leave_path(&mut self, end: NodeIndex, bound: NodeIndex) {
        let left: Vec<_> = self.path_up(end).take_while(|&node| node != bound).collect();
        for &node in &left {
            self.tree.arena[node].state.pending = None;
        }
        if let Some(&resident) = left.iter().find(|&&node| self.tiers_of(node).device) {
            // Another request has inserted them and relies on the backup.
            self.back_up_late(resident, self.tree.arena[bound].end, Room::Any);
        }
        self.hold_instead(bound, end);
    }
}
