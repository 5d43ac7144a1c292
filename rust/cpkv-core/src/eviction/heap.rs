//! The nodes that may be evicted now, in a policy's order.
//!
//! One heap for each lane; a node is in that of the lane of its last page, which is the page that
//! evicting it gives first. The heaps are four-way, their entries know their node and their nodes
//! know their entry, so that a node is entered, taken out or looked up in O(log n), and nothing is
//! ever rebuilt or left behind. Among equal keys the deepest node goes first: they lie on one path,
//! and leaves go first. An entry's depth is that of its entering; a node that is cut shorter stays
//! in front of what it hangs from.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use super::EvictionKey;
use crate::ids::{HeapPosition, Lane, Lanes, NodeIndex, Pages};
use crate::slots::LaneCounts;
use crate::tree::{Arena, HeapPlace, HeapPlaces};

const ARITY: usize = 4;

/// The heaps of one kind; `place` says where in a node its place in them is kept.
#[derive(Debug)]
pub(crate) struct EvictionHeaps {
    heaps: Vec<Heap>,
    place: fn(&mut HeapPlaces) -> &mut Option<HeapPlace>,
}

impl EvictionHeaps {
    pub(crate) fn new(lanes: Lanes, place: fn(&mut HeapPlaces) -> &mut Option<HeapPlace>) -> Self {
        let heap = |lane| Heap { entries: Vec::new(), lane: Lane(lane), place };
        Self { heaps: (0..lanes.count()).map(heap).collect(), place }
    }

    pub(crate) fn len(&self) -> usize {
        self.heaps.iter().map(|heap| heap.entries.len()).sum()
    }

    /// The node to evict first of all, with its key.
    pub(crate) fn first(&self) -> Option<(NodeIndex, EvictionKey)> {
        first_of(self.heaps.iter())
    }

    /// The node to evict first of those whose last page is in one of the `wanted` lanes.
    pub(crate) fn first_in(&self, wanted: &LaneCounts) -> Option<(NodeIndex, EvictionKey)> {
        first_of(self.heaps.iter().filter(|heap| wanted.get(heap.lane) > 0))
    }

    /// Visits the nodes whose last page is in `lane`, the first to evict first, until `visit` breaks.
    /// It may name another node, with its key and depth, that would be entered if the visited one were
    /// gone. O(log n) for each of the visited.
    pub(crate) fn visit_in_order(
        &self,
        lane: Lane,
        mut visit: impl FnMut(NodeIndex) -> ControlFlow<(), Option<(NodeIndex, EvictionKey, Pages)>>,
    ) {
        let entries = &self.heaps[lane.0 as usize].entries;
        let mut next: BinaryHeap<Next> =
            entries.first().map(|&entry| Next { entry, position: Some(0) }).into_iter().collect();
        while let Some(Next { entry, position }) = next.pop() {
            let ControlFlow::Continue(entered) = visit(entry.node) else { return };
            if let Some((node, key, depth)) = entered {
                next.push(Next { entry: Entry { key, depth, node }, position: None });
            }
            let Some(position) = position else { continue };
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(entries.len());
            next.extend(children.map(|position| Next { entry: entries[position], position: Some(position) }));
        }
    }

    /// Enters a node that is in none of the heaps.
    pub(crate) fn insert(&mut self, arena: &mut Arena, node: NodeIndex, lane: Lane, key: EvictionKey, depth: Pages) {
        let heap = &mut self.heaps[lane.0 as usize];
        let entry = Entry { key, depth, node };
        heap.entries.push(entry);
        heap.sift_up(arena, heap.entries.len() - 1, entry);
    }

    /// Takes a node out that is in one of the heaps.
    pub(crate) fn remove(&mut self, arena: &mut Arena, node: NodeIndex) {
        let place = (self.place)(&mut arena[node].heaps).take().expect("the node is in one of these heaps");
        self.heaps[place.lane.0 as usize].remove_at(arena, place.position.index());
    }

    /// Gives memory back that is not used any more.
    pub(crate) fn shrink(&mut self) {
        for heap in &mut self.heaps {
            if heap.entries.len() < heap.entries.capacity() / 4 {
                heap.entries.shrink_to(heap.entries.len() * 2);
            }
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let entries: usize = self.heaps.iter().map(|heap| heap.entries.capacity()).sum();
        entries * size_of::<Entry>() + self.heaps.capacity() * size_of::<Heap>()
    }

    /// Lists the entries that are out of order, not where their node believes, or have another key
    /// than `key_of` their node.
    pub(crate) fn check(
        &self,
        name: &str,
        place_of: impl Fn(NodeIndex) -> Option<HeapPlace>,
        key_of: impl Fn(NodeIndex) -> EvictionKey,
        problems: &mut Vec<String>,
    ) {
        for heap in &self.heaps {
            for (position, entry) in heap.entries.iter().enumerate() {
                let Entry { node, key, .. } = *entry;
                if position > 0 && entry.goes_before(&heap.entries[(position - 1) / ARITY]) {
                    problems.push(format!("{name} heap: entry {position} goes before its parent"));
                }
                let known = place_of(node).map(|place| (place.lane, place.position.index()));
                if known != Some((heap.lane, position)) {
                    problems.push(format!("{name} heap: {node:?} believes to be at {known:?}, is at {position}"));
                }
                if key_of(node) != key {
                    problems.push(format!("{name} heap: {node:?} has key {:?}, entered with {key:?}", key_of(node)));
                }
            }
        }
    }
}

/// An entry that all those in front of it were visited of; the greatest is visited next.
#[derive(PartialEq, Eq)]
struct Next {
    entry: Entry,
    /// In the heap; `None` for what is not in it yet.
    position: Option<usize>,
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        // No two entries have the same node.
        if self.entry.goes_before(&other.entry) { Ordering::Greater } else { Ordering::Less }
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn first_of<'a>(heaps: impl Iterator<Item = &'a Heap>) -> Option<(NodeIndex, EvictionKey)> {
    let firsts = heaps.filter_map(|heap| heap.entries.first());
    let first = firsts.reduce(|left, right| if right.goes_before(left) { right } else { left })?;
    Some((first.node, first.key))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    key: EvictionKey,
    depth: Pages,
    node: NodeIndex,
}

impl Entry {
    /// Written so that the usual case is one comparison of 128 bits.
    fn goes_before(&self, other: &Self) -> bool {
        let wide = |key: EvictionKey| u128::from(key.0) << 64 | u128::from(key.1);
        let (ours, theirs) = (wide(self.key), wide(other.key));
        ours < theirs || (ours == theirs && (Reverse(self.depth), self.node) < (Reverse(other.depth), other.node))
    }
}

#[derive(Debug)]
struct Heap {
    entries: Vec<Entry>,
    lane: Lane,
    place: fn(&mut HeapPlaces) -> &mut Option<HeapPlace>,
}

impl Heap {
    fn remove_at(&mut self, arena: &mut Arena, position: usize) {
        let last = self.entries.pop().expect("the heap is not empty");
        if position == self.entries.len() {
            return;
        }
        if position > 0 && last.goes_before(&self.entries[(position - 1) / ARITY]) {
            self.sift_up(arena, position, last);
        } else {
            self.sift_down(arena, position, last);
        }
    }

    fn put(&mut self, arena: &mut Arena, position: usize, entry: Entry) {
        self.entries[position] = entry;
        let position = u32::try_from(position).ok().and_then(HeapPosition::new).expect("fewer entries than nodes");
        *(self.place)(&mut arena[entry.node].heaps) = Some(HeapPlace { lane: self.lane, position });
    }

    fn sift_up(&mut self, arena: &mut Arena, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if !entry.goes_before(&self.entries[parent]) {
                break;
            }
            self.put(arena, position, self.entries[parent]);
            position = parent;
        }
        self.put(arena, position, entry);
    }

    fn sift_down(&mut self, arena: &mut Arena, mut position: usize, entry: Entry) {
        loop {
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(self.entries.len());
            let earlier = |left: usize, right: usize| {
                if self.entries[right].goes_before(&self.entries[left]) { right } else { left }
            };
            let Some(child) = children.reduce(earlier) else { break };
            if !self.entries[child].goes_before(&entry) {
                break;
            }
            self.put(arena, position, self.entries[child]);
            position = child;
        }
        self.put(arena, position, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Usage;
    use crate::tree::Node;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn lanes(count: u32) -> Lanes {
        Lanes::new(count).expect("positive")
    }

    fn node(arena: &mut Arena, depth: u32) -> NodeIndex {
        arena.insert(Node::new(None, Pages(depth), Usage::default()))
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(operations in prop::collection::vec((0u64..40, any::<bool>()), 1..300)) {
            let mut arena = Arena::default();
            let mut heaps = EvictionHeaps::new(lanes(3), |places| &mut places.device);
            let mut sorted = BTreeSet::new();
            for (number, removes) in operations {
                let lane = u32::try_from(number % 3).expect("small");
                if removes && !sorted.is_empty() {
                    // Any entry, not only the first.
                    let index = usize::try_from(number).expect("small") % sorted.len();
                    let entry: (u64, u32, NodeIndex, u32) = *sorted.iter().nth(index).expect("in range");
                    sorted.remove(&entry);
                    heaps.remove(&mut arena, entry.2);
                    prop_assert_eq!(arena[entry.2].heaps.device, None);
                    arena.remove(entry.2);
                } else {
                    let node = node(&mut arena, 7);
                    heaps.insert(&mut arena, node, Lane(lane), (number, 0), Pages(7));
                    sorted.insert((number, 7, node, lane));
                }
                let first = sorted.first().map(|&(key, _, node, _)| (node, (key, 0)));
                prop_assert_eq!(heaps.first(), first);
                let first = sorted.iter().find(|entry| entry.3 == 1).map(|&(key, _, node, _)| (node, (key, 0)));
                prop_assert_eq!(heaps.first_in(&LaneCounts::single(lanes(3), Lane(1), 9)), first);
                prop_assert_eq!(heaps.len(), sorted.len());
                let key_of = |node| sorted.iter().find(|entry| entry.2 == node).map_or((99, 99), |entry| (entry.0, 0));
                let mut problems = Vec::new();
                heaps.check("test", |node| arena[node].heaps.device, key_of, &mut problems);
                prop_assert!(problems.is_empty(), "{problems:?}");
            }
        }
    }

    #[test]
    fn among_equal_keys_the_deepest_goes_first() {
        let mut arena = Arena::default();
        let mut heaps = EvictionHeaps::new(lanes(2), |places| &mut places.mirror);
        let nodes = [(3, 0), (9, 1), (5, 0)].map(|(depth, lane)| {
            let node = node(&mut arena, depth);
            heaps.insert(&mut arena, node, Lane(lane), (1, 1), Pages(depth));
            node
        });
        assert_eq!(heaps.first().map(|(node, _)| node), Some(nodes[1]));
        let in_lane_0 = LaneCounts::single(lanes(2), Lane(0), 1);
        assert_eq!(heaps.first_in(&in_lane_0).map(|(node, _)| node), Some(nodes[2]));
    }
}
