//! What becomes of backups: the only place where the machine's effects are carried out.

use smallvec::SmallVec;

use super::CacheManager;
use super::late::Room;
use crate::agreement::{OperationId, Verdict};
use crate::error::{Error, Result};
use crate::ids::{NodeIndex, PageId, Pages};
use crate::operations::machine::{Event, Phase, Reason, State, step};
use crate::operations::{Ending, Kind, Operation};

/// A backup that was rolled back, or a restore that has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RolledBack {
    /// Its name.
    pub operation: OperationId,
    /// Why.
    pub reason: Reason,
}

/// What follows for another operation.
#[derive(Clone, Copy)]
pub(super) struct Follow {
    pub(super) operation: OperationId,
    pub(super) event: Event,
}

impl CacheManager {
    /// Gives a transaction up, because its request was aborted or retracted. Slots and pages are
    /// free once no copy uses them. Giving up what is over changes nothing.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`] for a name that was never given.
    pub fn abort(&mut self, id: OperationId, reason: Reason) -> Result<()> {
        if self.check_operation(id)? {
            self.advance(id, Event::RolledBack(reason));
            // Its owner submits nothing any more.
            if let Some(operation) = self.operations.get_mut(id) {
                operation.local.close();
            }
            self.compact();
        }
        self.incomplete.remove(&id);
        Ok(())
    }

    /// Whether the operation is open.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`] for a name that was never given.
    pub(super) fn check_operation(&self, id: OperationId) -> Result<bool> {
        if self.operations.get(id).is_some() {
            Ok(true)
        } else if self.operations.was_given(id) {
            Ok(false)
        } else {
            Err(Error::NoSuchOperation { operation: id })
        }
    }

    /// The state of an open operation.
    #[must_use]
    pub fn operation_state(&self, id: OperationId) -> Option<State> {
        self.operations.get(id).map(|operation| operation.state)
    }

    /// What will say how an open operation has ended, for as long as somebody holds it.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`] unless it is open.
    pub fn ending(&mut self, id: OperationId) -> Result<Ending> {
        let operation = self.operations.get_mut(id).ok_or(Error::NoSuchOperation { operation: id })?;
        Ok(operation.ending.get_or_insert_default().clone())
    }

    /// Applies what the ranks have agreed on. A verdict on what is over is ignored.
    pub fn apply(&mut self, verdicts: &[Verdict]) {
        for &Verdict { operation, ruling } in verdicts {
            if self.operations.get(operation).is_some() {
                // A late backup of pages in front may have been started meanwhile.
                self.find_parent(operation);
                self.advance(operation, Event::Ruled(ruling));
            }
        }
        self.compact();
    }

    /// Takes an open operation one step on, and those that wait for it.
    pub(super) fn advance(&mut self, id: OperationId, event: Event) {
        let mut events: SmallVec<[Follow; 4]> = SmallVec::new();
        events.push(Follow { operation: id, event });
        // In order, and never nested: what follows from a step is done after it.
        let mut next = 0;
        while let Some(&Follow { operation: id, event }) = events.get(next) {
            next += 1;
            if self.operations.get(id).is_none() {
                continue;
            }
            // A late backup of pages in front may have been opened while it waited for another.
            if event == Event::ParentSettled && self.join_parent(id) {
                continue;
            }
            let Some(operation) = self.operations.get_mut(id) else { continue };
            let (before, kind) = (operation.state, operation.kind);
            let (state, effects) = step(before, event);
            operation.state = state;
            if effects.commit {
                let children = if kind == Kind::Restore { self.restored(id) } else { self.commit(id) };
                let follow = |operation| Follow { operation, event: Event::ParentSettled };
                events.extend(children.into_iter().map(follow));
            }
            if let Some(reason) = effects.roll_back {
                let follow = match kind {
                    Kind::Restore => self.lose_restore(id, reason),
                    Kind::Transaction | Kind::LateBackup => self.roll_back(id, before.phase, reason),
                };
                events.extend(follow);
            }
            if effects.quarantine {
                self.counters.quarantined_operations += 1;
                self.outcomes.quarantined.push(id);
            }
            if effects.release {
                self.release_operation(id);
            }
        }
    }

    /// Makes the host copy visible. Returns what has waited for it.
    fn commit(&mut self, id: OperationId) -> SmallVec<[OperationId; 2]> {
        let operation = self.operations.remove(id);
        let end = operation.end.expect("what is committed is in the tree");
        let own = self.own_nodes(end, operation.first);
        // From the front to the end, which is the order in which routers are told.
        for &node in own.iter().rev() {
            let start = (self.tree.arena[node].start() - operation.first).index();
            let len = self.tree.arena[node].len().index();
            self.tree.arena[node].state.pending = None;
            self.gain_host(node, &operation.slots[start..start + len]);
        }
        let committed = self.tree.arena[end].end - operation.first;
        self.counters.committed_operations += 1;
        self.counters.committed_pages += u64::from(committed.0);
        self.outcomes.committed.push(id);
        self.free_of_operation(&operation, committed);
        let end = self.tree.arena.reference(end);
        self.let_go(end.index);
        self.unlock_reads(&operation);
        // It may have been flushed.
        if self.tree.arena.resolve(end).is_some() {
            self.join_front(end.index);
        }
        operation.children
    }

    /// The pages of a restore are filled. Returns the backups that have waited for it.
    fn restored(&mut self, id: OperationId) -> SmallVec<[OperationId; 2]> {
        let operation = self.operations.remove(id);
        let end = operation.end.expect("a restore is in the tree");
        for node in self.own_nodes(end, operation.first) {
            self.tree.arena[node].state.pending = None;
        }
        self.counters.restored_pages += operation.pages.len() as u64;
        self.outcomes.restored.push(id);
        self.free_of_operation(&operation, Pages::ZERO);
        let end = self.tree.arena.reference(end);
        self.let_go(end.index);
        // It may have been flushed.
        if self.tree.arena.resolve(end).is_some() {
            self.merge_parts(end.index);
        }
        operation.children
    }

    /// Makes the parts that a node was restored in one again.
    fn merge_parts(&mut self, node: NodeIndex) {
        while let Some(parent) = self.tree.arena[node].parent
            && self.tree.mergeable_child(parent) == Some(node)
        {
            self.tree.merge_into_child(parent);
        }
        if self.tree.mergeable_child(node).is_some() {
            self.tree.merge_into_child(node);
        }
    }

    /// Takes a backup back from the tree. Returns what follows for those that wait for it.
    fn roll_back(&mut self, id: OperationId, before: Phase, reason: Reason) -> Vec<Follow> {
        let operation = self.operations.get_mut(id).expect("it is being rolled back");
        let (end, first) = (operation.end, operation.first);
        let (is_late, pages) = (operation.kind == Kind::LateBackup, operation.slots.len());
        let children = std::mem::take(&mut operation.children);
        self.counters.rolled_back_operations += 1;
        self.counters.rolled_back_pages += pages as u64;
        self.outcomes.rolled_back.push(RolledBack { operation: id, reason });
        let Some(end) = end else { return Vec::new() };

        let own = self.own_nodes(end, first);
        for &node in &own {
            self.tree.arena[node].state.pending = None;
        }
        // Device residency is closed towards the root, so that what is there is the front.
        let resident = own.iter().copied().find(|&node| self.tiers_of(node).device);
        // What was computed from a restore that has failed is out of reach already, what is flushed is not yet.
        let may_catch_up = match reason {
            Reason::Flushed | Reason::ParentLost => false,
            // What another request has inserted is whole.
            Reason::TargetMissing | Reason::DraftMissing => before == Phase::Reserved,
            _ => !is_late,
        };
        let catch_up = resident.filter(|_| may_catch_up).and_then(|node| self.back_up_late(node, first, Room::Any));
        if before == Phase::Reserved {
            // Nothing in the tree is read by its copies.
            self.operations.get_mut(id).expect("it is open").end = None;
            self.let_go(end);
        }
        if let Some(catch_up) = catch_up.and_then(|id| self.operations.get_mut(id)) {
            self.counters.donors_lost += 1;
            catch_up.children.extend(children);
            return Vec::new();
        }
        let event = match resident {
            // Whoever inserts the pages will have them backed up.
            _ if reason == Reason::RestoreFailed => Event::RolledBack(reason),
            None => Event::ParentSettled,
            Some(_) if reason == Reason::Flushed => Event::RolledBack(reason),
            Some(_) => Event::RolledBack(Reason::ParentLost),
        };
        children.into_iter().map(|operation| Follow { operation, event }).collect()
    }

    /// Frees what a rolled back operation has kept from being used again.
    fn release_operation(&mut self, id: OperationId) {
        let operation = self.operations.remove(id);
        self.free_of_operation(&operation, Pages::ZERO);
        if let Some(end) = operation.end {
            self.let_go(end);
        }
        self.unlock_reads(&operation);
    }

    fn unlock_reads(&mut self, operation: &Operation) {
        for &end in &operation.reads {
            self.let_go(end);
        }
    }

    /// Frees the slots from `kept` on, and the pages that only the copies have still read.
    fn free_of_operation(&mut self, operation: &Operation, kept: Pages) {
        let host = self.host.as_mut().expect("it has slots");
        host.slots.release(operation.own_slots().iter().skip(kept.index()).map(|slot| slot.raw()));
        let mut free: Vec<PageId> = Vec::new();
        self.holds.release(&operation.pages, |page| free.push(page));
        self.give_back(&free);
        self.report_freed(free);
    }

    /// The nodes with the pages from `first` on, on the way up from `end`.
    pub(super) fn own_nodes(&self, end: NodeIndex, first: Pages) -> SmallVec<[NodeIndex; 4]> {
        self.path_up(end).take_while(|&node| self.tree.arena[node].end > first).collect()
    }
}
