//! Lost: what relied on a restore that has failed.
//!
//! The device pages of the restore were never filled, and what was computed from them is wrong. So the
//! nodes from there on down are cut off the tree: leases that end there go on holding them until they
//! are released, and can do nothing else. What has a host copy hangs in the tree anew, on the host only.

use hashbrown::{HashMap, HashSet};

use super::{CacheManager, Medium, host_ids};
use crate::agreement::OperationId;
use crate::ids::{NodeIndex, OperationIndex, Pages};
use crate::operations::Kind;
use crate::operations::machine::{Event, Reason};
use crate::tree::Tiers;

impl CacheManager {
    /// Takes a restore back from the tree, and everything that relies on it. Returns what follows for
    /// operations on pages behind it.
    pub(super) fn lose_restore(&mut self, id: OperationId, reason: Reason) -> Vec<(OperationId, Event)> {
        self.counters.failed_restores += 1;
        self.outcomes.rolled_back.push(super::RolledBack { operation: id, reason });
        let operation = self.operations.get(id).expect("it is being rolled back");
        let (end, first) = (operation.end.expect("a restore is in the tree"), operation.first);
        let is_own = |&node: &NodeIndex| self.tree.arena[node].state.pending.map(OperationIndex::raw) == Some(id.index);
        // One further in front may have taken it along.
        let Some(top) = self.path_up(end).take_while(is_own).last() else { return Vec::new() };
        let own = self.own_nodes(end, first);
        if self.is_cut_off(top) {
            for node in own {
                self.tree.arena[node].state.pending = None;
            }
            return Vec::new();
        }
        let nodes = self.below(top);
        let behind = self.operations_on(&nodes, id);
        // Until everything is in its place.
        for &node in &nodes {
            self.hold(node);
        }
        let was_flushed = self.tree.has_flushed() && self.is_flushed(top);
        let kept = if was_flushed { HashSet::new() } else { self.reachable_copies(&nodes) };
        for &node in &nodes {
            self.note_lost(node, kept.contains(&node));
        }
        self.tree.cut_off(top);
        self.keep_host_copies(&nodes, &kept);
        for node in own {
            self.tree.arena[node].state.pending = None;
        }
        // Those further down first, since the first that goes takes its parents along.
        for node in nodes.into_iter().rev() {
            self.let_go(node);
        }
        behind.into_iter().map(|other| (other, Event::RolledBack(Reason::RestoreFailed))).collect()
    }

    /// A node and everything below it, parents first.
    fn below(&self, top: NodeIndex) -> Vec<NodeIndex> {
        let mut nodes = vec![top];
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            next += 1;
            let mut child = self.tree.arena[node].first_child;
            while let Some(index) = child {
                nodes.push(index);
                child = self.tree.arena[index].next_sibling;
            }
        }
        nodes
    }

    /// The operations on `nodes`, but for `id`.
    fn operations_on(&self, nodes: &[NodeIndex], id: OperationId) -> Vec<OperationId> {
        let mut operations = Vec::new();
        let mut seen: HashSet<OperationId> = HashSet::new();
        seen.insert(id);
        for pending in nodes.iter().filter_map(|&node| self.tree.arena[node].state.pending) {
            let operation = self.operations.id_at(pending);
            if seen.insert(operation) {
                operations.push(operation);
            }
        }
        operations
    }

    /// Those of `nodes`, the first of which is above the others, that have a host copy, and whose
    /// parents have one.
    fn reachable_copies(&self, nodes: &[NodeIndex]) -> HashSet<NodeIndex> {
        let mut kept = HashSet::new();
        for &node in nodes {
            let is_reachable =
                node == nodes[0] || self.tree.arena[node].parent.is_some_and(|parent| kept.contains(&parent));
            if is_reachable && self.tiers_of(node).host {
                kept.insert(node);
            }
        }
        kept
    }

    fn note_lost(&mut self, node: NodeIndex, keeps_host: bool) {
        let tiers = self.tiers_of(node);
        if tiers.device {
            self.note_removed(node, Pages::ZERO, Medium::Device);
            self.counters.unrestored_pages += u64::from(self.tree.arena[node].len().0);
        }
        if tiers.host && !keeps_host {
            self.note_removed(node, Pages::ZERO, Medium::Host);
        }
    }

    /// Hangs the host copies of those of `nodes` that are `kept` in the tree anew. Open restores go on
    /// holding both the slots that they read and the pages that they write.
    fn keep_host_copies(&mut self, nodes: &[NodeIndex], kept: &HashSet<NodeIndex>) {
        let mut copies: HashMap<NodeIndex, NodeIndex> = HashMap::new();
        for &node in nodes.iter().filter(|node| kept.contains(*node)) {
            let parent = self.tree.arena[node].parent.expect("a root is not restored");
            // The parent of the first was not cut off.
            let copy = self.move_host(node, copies.get(&parent).copied().unwrap_or(parent));
            copies.insert(node, copy);
            let pending = self.tree.arena[node].state.pending.take();
            let restore = pending.map(|pending| self.operations.id_at(pending));
            let restore = restore.and_then(|id| self.operations.get_mut(id)).filter(|one| one.end == Some(node));
            if let Some(restore) = restore {
                debug_assert_eq!(restore.kind, Kind::Restore, "what is backed up has no host copy");
                restore.end = Some(copy);
                restore.reads.push(node);
                self.hold(copy);
            }
        }
    }

    /// Gives the host copy of a held node to a new one below `parent`.
    fn move_host(&mut self, node: NodeIndex, parent: NodeIndex) -> NodeIndex {
        let copy = self.tree.attach_copy(node, parent);
        for row in self.tree.rows_mut(copy) {
            row.device = None;
        }
        for row in self.tree.rows_mut(node) {
            row.host = None;
        }
        let tiers = self.tiers_of(node);
        let pages = self.tree.arena[node].len();
        self.tree.set_tiers(copy, Tiers { device: false, host: true });
        self.tree.set_tiers(node, Tiers { host: false, ..tiers });
        let host = self.host.as_mut().expect("the rows are on the host");
        if tiers.device {
            host.mirrored -= pages.0;
        }
        host.evictable.add(host_ids(self.tree.rows(copy)));
        self.reindex(copy);
        self.reindex(parent);
        copy
    }
}
