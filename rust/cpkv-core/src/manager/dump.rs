//! The whole state as plain data, for a bug report.

use super::CacheManager;
use crate::agreement::OperationId;
use crate::ids::{NodeIndex, PageId, Pages, SlotId};
use crate::operations::Kind;
use crate::operations::machine::State;

/// Everything that the cache knows.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// The runs of pages; every parent comes before its children.
    pub nodes: Vec<NodeDump>,
    /// The operations that are open.
    pub operations: Vec<OperationDump>,
    /// Device pages that only unfinished copies still read.
    pub fenced_pages: Vec<u32>,
}

/// One run of pages, or the root of a namespace.
#[derive(Clone, Debug)]
pub struct NodeDump {
    /// Its place in the arena.
    pub index: u32,
    /// That of the run in front; `None` for a root.
    pub parent: Option<u32>,
    /// The encoded name of the namespace, for the root of one that is not the default.
    pub namespace: Option<Vec<u8>>,
    /// A root that was flushed.
    pub is_flushed: bool,
    /// The first of what relied on a restore that has failed; it hangs from its parent, and no match
    /// finds it.
    pub is_cut_off: bool,
    /// The pages from the root to its end.
    pub end: Pages,
    /// The tokens of its pages.
    pub tokens: Vec<i64>,
    /// With pair keys, the token after them.
    pub successor: Option<i64>,
    /// Its device pages; empty if it is not on the device.
    pub device_pages: Vec<PageId>,
    /// Its host slots; empty if it has no host copy.
    pub host_slots: Vec<SlotId>,
    /// The operation that copies its pages.
    pub operation: Option<OperationId>,
    /// Leases and operations that end at it; they hold everything in front as well.
    pub locks: u32,
    /// Something ends at it or below it.
    pub is_held: bool,
    /// Requests that found it.
    pub hits: u32,
}

/// One open operation.
#[derive(Clone, Debug)]
pub struct OperationDump {
    /// Its name.
    pub operation: OperationId,
    /// Its state.
    pub state: State,
    /// What it is for.
    pub kind: Kind,
    /// The node that its pages end with, as far as the tree knows of it.
    pub node: Option<u32>,
    /// The pages in front of its own.
    pub first: Pages,
    /// What it copies from, or to if it is a restore.
    pub device_pages: Vec<PageId>,
    /// What it copies to, or from if it is a restore.
    pub host_slots: Vec<SlotId>,
}

impl CacheManager {
    /// The whole state, linear in its size.
    #[must_use]
    pub fn dump(&self) -> Dump {
        let mut dump = Dump { fenced_pages: self.holds.fenced().iter().collect(), ..Dump::default() };
        let roots = self.tree.arena.iter().filter(|(_, node)| node.is_root()).map(|(root, _)| root);
        let mut next: Vec<NodeIndex> = roots.collect();
        let cut_off = self.tree.arena.iter().filter(|(_, node)| node.is_cut_off);
        let mut cut_off: Vec<NodeIndex> = cut_off.map(|(top, _)| top).collect();
        // One may hang from what another one has cut off.
        cut_off.sort_by_key(|&top| self.tree.arena[top].end);
        let mut cut_off = cut_off.into_iter();
        // What was cut off hangs from nodes that come before it.
        while let Some(index) = next.pop().or_else(|| cut_off.next()) {
            dump.nodes.push(self.dump_node(index));
            let mut child = self.tree.arena[index].first_child;
            while let Some(index) = child {
                next.push(index);
                child = self.tree.arena[index].next_sibling;
            }
        }
        let operations = self.operations.iter().map(|(id, operation)| OperationDump {
            operation: id,
            state: operation.state,
            kind: operation.kind,
            node: operation.end.map(NodeIndex::raw),
            first: operation.first,
            device_pages: operation.pages.clone(),
            host_slots: operation.slots.clone(),
        });
        dump.operations = operations.collect();
        dump
    }

    fn dump_node(&self, index: NodeIndex) -> NodeDump {
        let node = &self.tree.arena[index];
        let rows = self.tree.rows(index);
        NodeDump {
            index: index.raw(),
            parent: node.parent.map(NodeIndex::raw),
            namespace: self.tree.name_of(index).map(<[u8]>::to_vec),
            is_flushed: node.is_flushed,
            is_cut_off: node.is_cut_off,
            end: node.end,
            tokens: self.tree.tokens_of(index),
            successor: self.tree.successor_of(index),
            device_pages: rows.iter().filter_map(|row| row.device).collect(),
            host_slots: rows.iter().filter_map(|row| row.host).collect(),
            operation: node.state.pending.map(|pending| self.operations.id_at(pending)),
            locks: node.state.locks,
            is_held: node.is_locked(),
            hits: node.state.usage.hits,
        }
    }
}
