//! The generational arena of nodes.
//!
//! An index is given again after its node is gone, with another generation. What outlives a call
//! (hits, leases) therefore keeps a [`NodeRef`]; inside a call plain indices do. The lowest free
//! place is taken first, so that what lives moves to the front and the rest can be given back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Index, IndexMut};

use super::node::Node;
use crate::ids::NodeIndex;

/// Fewer places than this are not worth giving back.
const FEW_PLACES: usize = 1_024;

/// A node as seen from outside a call: place and generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeRef {
    pub(crate) index: NodeIndex,
    pub(crate) generation: u32,
}

/// All nodes of a tree.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    places: Vec<Place>,
    free: BinaryHeap<Reverse<NodeIndex>>,
    /// The generation of places that are new; not below that of any place that was given back.
    first_generation: u32,
    /// Places from here on are free. Lowered lazily; since the lowest free place is taken first,
    /// an insertion raises it by one at most, and looking for it costs what insertions have paid.
    end: usize,
}

#[derive(Debug)]
struct Place {
    node: Node,
    is_alive: bool,
}

impl Arena {
    pub(crate) fn insert(&mut self, mut node: Node) -> NodeIndex {
        if let Some(Reverse(index)) = self.free.pop() {
            let place = &mut self.places[index.index()];
            node.generation = place.node.generation;
            *place = Place { node, is_alive: true };
            self.end = self.end.max(index.index() + 1);
            return index;
        }
        let raw = u32::try_from(self.places.len()).expect("fewer nodes than page ids");
        node.generation = self.first_generation;
        self.places.push(Place { node, is_alive: true });
        self.end = self.places.len();
        NodeIndex::new(raw).expect("fewer nodes than page ids")
    }

    pub(crate) fn remove(&mut self, index: NodeIndex) {
        let place = &mut self.places[index.index()];
        place.is_alive = false;
        place.node.generation = place.node.generation.wrapping_add(1);
        self.free.push(Reverse(index));
    }

    pub(crate) fn reference(&self, index: NodeIndex) -> NodeRef {
        NodeRef { index, generation: self[index].generation }
    }

    /// The node that `reference` was made of, if it is still there.
    pub(crate) fn resolve(&self, reference: NodeRef) -> Option<&Node> {
        let place = self.places.get(reference.index.index())?;
        (place.is_alive && place.node.generation == reference.generation).then_some(&place.node)
    }

    /// Whether there is a node in a place.
    pub(crate) fn is_alive(&self, index: NodeIndex) -> bool {
        self.places.get(index.index()).is_some_and(|place| place.is_alive)
    }

    /// Gives the memory of free places at the end back, if they are most of all.
    pub(crate) fn shrink(&mut self) {
        while self.end > 0 && !self.places[self.end - 1].is_alive {
            self.end -= 1;
        }
        if self.places.len() < FEW_PLACES || self.end > self.places.len() / 4 {
            return;
        }
        let given_back = self.places.drain(self.end..).map(|place| place.node.generation);
        self.first_generation = given_back.fold(self.first_generation, u32::max);
        self.places.shrink_to(self.end * 2);
        self.free.retain(|Reverse(index)| index.index() < self.end);
        self.free.shrink_to(self.end);
    }

    /// Live nodes in order of their places, which depends on nothing but the calls made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        let alive = (0..).zip(&self.places).filter(|(_, place)| place.is_alive);
        alive.map(|(raw, place)| (NodeIndex::new(raw).expect("made by insert"), &place.node))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>() + self.free.capacity() * size_of::<Reverse<NodeIndex>>()
    }
}

impl Index<NodeIndex> for Arena {
    type Output = Node;
    fn index(&self, index: NodeIndex) -> &Node {
        &self.places[index.index()].node
    }
}

impl IndexMut<NodeIndex> for Arena {
    fn index_mut(&mut self, index: NodeIndex) -> &mut Node {
        &mut self.places[index.index()].node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_does_not_survive_its_node() {
        let mut arena = Arena::default();
        let first = arena.insert(Node::root());
        let stale = arena.reference(first);
        assert!(arena.resolve(stale).is_some());
        arena.remove(first);
        assert!(arena.resolve(stale).is_none());
        let second = arena.insert(Node::root());
        assert_eq!(first, second);
        assert!(arena.resolve(stale).is_none());
        assert!(arena.resolve(arena.reference(second)).is_some());
        assert_eq!(arena.len(), 1);
    }

    #[test]
    fn memory_comes_back_and_references_do_not() {
        let mut arena = Arena::default();
        let nodes: Vec<_> = (0..10_000).map(|_| arena.insert(Node::root())).collect();
        let stale: Vec<_> = nodes.iter().map(|&node| arena.reference(node)).collect();
        let most = arena.heap_bytes();
        nodes[1..].iter().for_each(|&node| arena.remove(node));
        arena.shrink();
        assert!(arena.heap_bytes() < most / 1_000, "{} of {most}", arena.heap_bytes());
        assert_eq!(arena.len(), 1);
        let again: Vec<_> = (0..10_000).map(|_| arena.insert(Node::root())).collect();
        assert!(again.iter().all(|&node| arena.resolve(arena.reference(node)).is_some()));
        assert!(stale[1..].iter().all(|&reference| arena.resolve(reference).is_none()));
        assert!(arena.resolve(stale[0]).is_some());
    }

    #[test]
    fn a_place_that_is_taken_again_is_not_given_back() {
        let mut arena = Arena::default();
        let nodes: Vec<_> = (0..10_000).map(|_| arena.insert(Node::root())).collect();
        nodes[5_000..].iter().for_each(|&node| arena.remove(node));
        arena.shrink();
        let again = arena.insert(Node::root());
        assert_eq!(again, nodes[5_000]);
        let reference = arena.reference(again);
        nodes[2_000..5_000].iter().for_each(|&node| arena.remove(node));
        arena.shrink();
        assert!(arena.resolve(reference).is_some());
    }

    #[test]
    fn the_lowest_place_is_taken_first() {
        let mut arena = Arena::default();
        let nodes: Vec<_> = (0..10).map(|_| arena.insert(Node::root())).collect();
        for place in [7, 2, 5] {
            arena.remove(nodes[place]);
        }
        assert_eq!([0; 4].map(|_| arena.insert(Node::root()).raw()), [2, 5, 7, 10]);
    }
}
