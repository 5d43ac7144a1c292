//! What the tree knows about one run of pages.

use crate::eviction::Usage;
use crate::ids::{HeapPosition, Lane, NodeIndex, OperationIndex, Pages};
use crate::store::Slice;

/// The tiers that hold a node's pages. A node is uniform: what holds for one of its pages holds
/// for all; where residency changes in the middle, the node is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tiers {
    pub(crate) device: bool,
    pub(crate) host: bool,
}

impl Tiers {
    /// A host copy of pages that are on the device too.
    pub(crate) fn is_mirror(self) -> bool {
        self.device && self.host
    }

    /// The only copy of the pages.
    pub(crate) fn is_sole(self) -> bool {
        self.host && !self.device
    }

    /// Nobody has the pages yet: they were reserved for, and are not inserted.
    pub(crate) fn is_none(self) -> bool {
        !self.host && !self.device
    }
}

/// Where a node stands in the eviction heaps of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeapPlace {
    pub(crate) lane: Lane,
    pub(crate) position: HeapPosition,
}

/// Where a node stands in the eviction heaps of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HeapPlaces {
    pub(crate) device: Option<HeapPlace>,
    pub(crate) mirror: Option<HeapPlace>,
    pub(crate) sole: Option<HeapPlace>,
}

/// What both parts of a split have from the whole, and what has to be alike for a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NodeState {
    pub(crate) usage: Usage,
    pub(crate) tiers: Tiers,
    /// Leases and operations that end at the node.
    pub(crate) locks: u32,
    /// The operation that copies the node's pages: a backup that will give it its host copy, or a
    /// restore that fills its device pages.
    pub(crate) pending: Option<OperationIndex>,
    /// A part of the device pages was never written: no copy is made of them.
    pub(crate) is_partial: bool,
}

/// One run of pages. A root has no slice and no pages, and is where a namespace begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Counts the lives of this arena place, so that a stale reference is recognised.
    pub(crate) generation: u32,
    pub(crate) parent: Option<NodeIndex>,
    pub(crate) first_child: Option<NodeIndex>,
    pub(crate) next_sibling: Option<NodeIndex>,
    pub(crate) previous_sibling: Option<NodeIndex>,
    pub(crate) next_in_buffer: Option<NodeIndex>,
    pub(crate) previous_in_buffer: Option<NodeIndex>,
    /// `None` for a root.
    pub(crate) slice: Option<Slice>,
    /// Depth of the end of the node, in pages from the root.
    pub(crate) end: Pages,
    /// Hash of the first page of the key, the index entry under the parent.
    pub(crate) first_page_hash: u64,
    /// The hash of the last page, if hashes are kept; for a root what stands in front of the first.
    pub(crate) end_hash: u64,
    /// With pair keys, the token after the last page.
    pub(crate) successor: i64,
    pub(crate) state: NodeState,
    pub(crate) children: u32,
    pub(crate) device_children: u32,
    pub(crate) mirror_children: u32,
    pub(crate) locked_children: u32,
    pub(crate) heaps: HeapPlaces,
    /// The root of a namespace that was flushed: nothing finds it any more.
    pub(crate) is_flushed: bool,
    /// The first of what relied on a restore that failed: nothing finds it any more. It is no child of
    /// its parent, which it still holds.
    pub(crate) is_cut_off: bool,
}

impl Node {
    pub(crate) fn root() -> Self {
        Self::new(None, Pages::ZERO, Usage::default())
    }

    pub(crate) fn new(slice: Option<Slice>, end: Pages, usage: Usage) -> Self {
        Self {
            generation: 0,
            parent: None,
            first_child: None,
            next_sibling: None,
            previous_sibling: None,
            next_in_buffer: None,
            previous_in_buffer: None,
            slice,
            end,
            first_page_hash: 0,
            end_hash: 0,
            successor: 0,
            state: NodeState { usage, ..NodeState::default() },
            children: 0,
            device_children: 0,
            mirror_children: 0,
            locked_children: 0,
            heaps: HeapPlaces::default(),
            is_flushed: false,
            is_cut_off: false,
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.slice.is_none()
    }

    /// Whether a lease or an operation ends at the node or below it.
    pub(crate) fn is_locked(&self) -> bool {
        self.state.locks > 0 || self.locked_children > 0
    }

    /// Pages in the node.
    pub(crate) fn len(&self) -> Pages {
        self.slice.map_or(Pages::ZERO, |slice| slice.len)
    }

    /// Depth of the start of the node, in pages from the root.
    pub(crate) fn start(&self) -> Pages {
        self.end - self.len()
    }

    /// The pages of a node that is not a root.
    pub(crate) fn slice(&self) -> Slice {
        self.slice.expect("only a root has no pages")
    }

    /// Nothing below it is on the device and nothing holds it.
    pub(crate) fn is_device_leaf(&self) -> bool {
        self.state.tiers.device && self.device_children == 0 && !self.is_locked()
    }

    /// A mirror, with no mirror below it, that nothing holds.
    pub(crate) fn is_mirror_leaf(&self) -> bool {
        self.state.tiers.is_mirror() && self.mirror_children == 0 && !self.is_locked()
    }

    /// The only copy of its pages, with nothing below it, that nothing holds.
    pub(crate) fn is_sole_leaf(&self) -> bool {
        self.state.tiers.is_sole() && self.children == 0 && !self.is_locked()
    }
}
