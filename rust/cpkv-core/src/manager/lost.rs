//! Lost: what relied on a restore that has failed.
//!
//! The device pages of the restore were never filled, and what was computed from them is wrong. So the
//! nodes from there on down are cut off the tree: leases that end there go on holding them until they
//! are released, and can do nothing else. What has a host copy hangs in the tree anew, on the host only;
//! what is on the host only stays as it is, and whoever holds it goes on holding it.

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::outcome::Follow;
use super::{CacheManager, Medium, RolledBack, host_ids};
use crate::agreement::OperationId;
use crate::ids::{NodeIndex, OperationIndex, Pages};
use crate::operations::Kind;
use crate::operations::machine::{Event, Reason};
use crate::tree::Tiers;

/// What goes with a restore that has failed.
#[derive(Default)]
struct Lost {
    /// The nodes to be cut off, parents first.
    nodes: Vec<NodeIndex>,
    /// Those among them whose host copies can be reached without them.
    kept: HashSet<NodeIndex>,
    /// The nodes right below those that are on the host only, with everything below them.
    host_only: Vec<NodeIndex>,
}

impl CacheManager {
    /// Takes a restore back from the tree, and everything that relies on it. Returns what follows for
    /// operations on pages behind it.
    pub(super) fn lose_restore(&mut self, id: OperationId, reason: Reason) -> Vec<Follow> {
        self.counters.failed_restores += 1;
        self.outcomes.rolled_back.push(RolledBack { operation: id, reason });
        let operation = self.operations.get(id).expect("it is being rolled back");
        let end = operation.end.expect("a restore is in the tree");
        let is_own = |&node: &NodeIndex| self.tree.arena[node].state.pending.map(OperationIndex::raw) == Some(id.index);
        let own: SmallVec<[NodeIndex; 4]> = self.path_up(end).take_while(is_own).collect();
        // One further in front may have taken it along.
        let top = own.last().copied().filter(|&top| !self.is_cut_off(top));
        let behind = top.map(|top| self.cut_off_from(top, id)).unwrap_or_default();
        for node in own {
            self.tree.arena[node].state.pending = None;
        }
        let follow = |operation| Follow { operation, event: Event::RolledBack(Reason::RestoreFailed) };
        behind.into_iter().map(follow).collect()
    }

    /// Cuts off what relies on the pages of `top`, which `id` restores. Returns the other operations on
    /// them.
    fn cut_off_from(&mut self, top: NodeIndex, id: OperationId) -> Vec<OperationId> {
        let lost = self.relying_on(top);
        let behind = self.operations_on(&lost.nodes, id);
        // Until everything is in its place.
        for &node in &lost.nodes {
            self.hold(node);
        }
        for &node in &lost.nodes {
            self.note_lost(node, lost.kept.contains(&node));
        }
        self.tree.cut_off(top);
        let copies = self.keep_host_copies(&lost);
        // Those further down first, since the first that goes takes its parents along.
        for node in copies.into_iter().rev() {
            self.let_go_known(node, false);
        }
        for node in lost.nodes.into_iter().rev() {
            self.let_go_known(node, true);
        }
        behind
    }

    /// What is lost with the pages of `top`.
    fn relying_on(&self, top: NodeIndex) -> Lost {
        let mut lost = Lost { nodes: vec![top], ..Lost::default() };
        let was_found = !self.is_out_of_reach(top);
        let mut next = 0;
        while let Some(&node) = lost.nodes.get(next) {
            next += 1;
            let parent = self.tree.arena[node].parent.filter(|_| node != top);
            let is_reachable = was_found && parent.is_none_or(|parent| lost.kept.contains(&parent));
            if is_reachable && self.tiers_of(node).host {
                lost.kept.insert(node);
            }
            let mut child = self.tree.arena[node].first_child;
            while let Some(index) = child {
                let stays = lost.kept.contains(&node) && self.tiers_of(index).is_sole();
                if stays { &mut lost.host_only } else { &mut lost.nodes }.push(index);
                child = self.tree.arena[index].next_sibling;
            }
        }
        lost
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

    /// Hangs the host copies of those nodes that are kept in the tree anew, and what is on the host only
    /// below them. Returns the new nodes, parents first, each held once. Open restores go on holding both
    /// the slots that they read and the pages that they write.
    fn keep_host_copies(&mut self, lost: &Lost) -> Vec<NodeIndex> {
        let mut copies: HashMap<NodeIndex, NodeIndex> = HashMap::new();
        let mut made = Vec::new();
        let mut restores = self.restores_by_end(&lost.kept);
        for &node in lost.nodes.iter().filter(|node| lost.kept.contains(*node)) {
            let parent = self.tree.arena[node].parent.expect("a root is not restored");
            // The parent of the first was not cut off.
            let copy = self.move_host(node, copies.get(&parent).copied().unwrap_or(parent));
            self.hold(copy);
            copies.insert(node, copy);
            made.push(copy);
            self.tree.arena[node].state.pending = None;
            for id in restores.remove(&node).into_iter().flatten() {
                let restore = self.operations.get_mut(id).expect("it is open");
                restore.end = Some(copy);
                restore.reads.push(node);
                self.hold(copy);
            }
        }
        for &node in &lost.host_only {
            let parent = self.tree.arena[node].parent.expect("it is below another");
            self.tree.relink(node, copies[&parent]);
        }
        for &copy in &made {
            self.reindex(copy);
        }
        made
    }

    /// The open restores that end at one of `nodes`, also such as have failed before.
    fn restores_by_end(&self, nodes: &HashSet<NodeIndex>) -> HashMap<NodeIndex, SmallVec<[OperationId; 1]>> {
        let mut restores: HashMap<NodeIndex, SmallVec<[OperationId; 1]>> = HashMap::new();
        for (id, operation) in self.operations.iter().filter(|(_, operation)| operation.kind == Kind::Restore) {
            if let Some(end) = operation.end.filter(|end| nodes.contains(end)) {
                restores.entry(end).or_default().push(id);
            }
        }
        restores
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
