//! Flush: nothing that is cached now is found any more.

use super::CacheManager;
use crate::agreement::OperationId;
use crate::ids::{NodeIndex, PageId};
use crate::operations::machine::{Event, Reason};
use crate::operations::{Kind, Operation};

impl CacheManager {
    /// Forgets all pages, whatever is under way. What leases or unfinished copies hold stays where
    /// it is until they end, but nobody finds it. Returns the device pages that are free now; they
    /// are the engine's to free if it owns the pool. The others follow with later ticks.
    pub fn flush(&mut self) -> Vec<PageId> {
        // The requests that hold what is being restored go on.
        let is_alive_backup = |operation: &Operation| operation.state.is_alive() && operation.kind != Kind::Restore;
        let backups = self.operations.iter().filter(|(_, operation)| is_alive_backup(operation));
        let alive: Vec<OperationId> = backups.map(|(id, _)| id).collect();
        for id in alive {
            self.advance(id, Event::RolledBack(Reason::Flushed));
        }
        self.note_cleared();
        let mut given_up = Vec::new();
        for root in self.tree.flush_roots() {
            self.remove_unheld_below(root, &mut given_up);
        }
        self.compact();
        self.counters.flushes += 1;
        given_up
    }

    /// Removes everything below `top` that nothing holds, and `top` itself if it is then an empty
    /// root that was flushed.
    fn remove_unheld_below(&mut self, top: NodeIndex, given_up: &mut Vec<PageId>) {
        // Locks are closed towards the root: what is unheld is whole subtrees.
        let mut next = vec![top];
        let mut unheld = Vec::new();
        while let Some(node) = next.pop() {
            if node != top && !self.tree.arena[node].is_locked() {
                unheld.push(node);
            }
            let mut child = self.tree.arena[node].first_child;
            while let Some(index) = child {
                next.push(index);
                child = self.tree.arena[index].next_sibling;
            }
        }
        if unheld.is_empty() {
            self.tree.drop_root_if_empty(top);
        }
        // Parents were found before their children. The root goes with the last of them.
        for node in unheld.into_iter().rev() {
            self.remove_tail(node, self.tree.arena[node].len(), given_up);
        }
    }
}
