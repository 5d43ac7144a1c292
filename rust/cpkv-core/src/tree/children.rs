//! One hash table for the children of all nodes, keyed by parent and first page.
//!
//! The hash only finds candidates; the caller compares tokens, so that equal hashes of different
//! pages never share anything. The table is never iterated: no decision depends on its order or
//! on the seed.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::arena::Arena;
use crate::ids::NodeIndex;

/// An odd constant with evenly spread bits (2^64 divided by the golden ratio).
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes pages. The seed is drawn per cache, so that prompts cannot be made to collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageHasher {
    seeds: [u64; 2],
}

impl PageHasher {
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        Self { seeds: [state.hash_one(0), state.hash_one(1)] }
    }

    /// Hashes the tokens `token_at(0) .. token_at(count - 1)`.
    ///
    /// Two chains of multiplications run side by side, since one would wait for itself.
    pub(crate) fn hash(self, count: usize, token_at: impl Fn(usize) -> i64) -> u64 {
        let token_at = |index| token_at(index).cast_unsigned();
        let [mut left, mut right] = self.seeds;
        let mut index = 0;
        while index + 4 <= count {
            left = fold(left ^ token_at(index), self.seeds[1] ^ token_at(index + 1));
            right = fold(right ^ token_at(index + 2), self.seeds[0] ^ token_at(index + 3));
            index += 4;
        }
        while index < count {
            left = fold(left ^ token_at(index), MULTIPLIER);
            index += 1;
        }
        fold(left ^ MULTIPLIER, right ^ self.seeds[0])
    }
}

/// Multiplies to 128 bits and folds the halves together.
pub(super) fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
    {
        (product as u64) ^ ((product >> 64) as u64)
    }
}

fn entry_hash(parent: NodeIndex, first_page_hash: u64, mask: u64) -> u64 {
    fold(first_page_hash ^ u64::from(parent.raw()), MULTIPLIER) & mask
}

fn hash_of(arena: &Arena, child: NodeIndex, mask: u64) -> u64 {
    let node = &arena[child];
    let parent = node.parent.expect("only roots have no parent, and they are not entered");
    entry_hash(parent, node.first_page_hash, mask)
}

/// The index from (parent, first page) to child.
#[derive(Debug)]
pub(crate) struct Children {
    table: HashTable<NodeIndex>,
    /// All ones; zero in tests that need all entries to collide.
    mask: u64,
}

impl Children {
    pub(crate) fn new() -> Self {
        Self { table: HashTable::new(), mask: u64::MAX }
    }

    #[cfg(test)]
    pub(crate) fn colliding() -> Self {
        Self { table: HashTable::new(), mask: 0 }
    }

    /// The child of `parent` that `is_equal` accepts among those with the hash. It is asked about
    /// children of other parents as well.
    pub(crate) fn find(
        &self,
        parent: NodeIndex,
        first_page_hash: u64,
        is_equal: impl Fn(NodeIndex) -> bool,
    ) -> Option<NodeIndex> {
        let hash = entry_hash(parent, first_page_hash, self.mask);
        self.table.find(hash, |&child| is_equal(child)).copied()
    }

    /// Enters a child whose parent and hash are set.
    pub(crate) fn insert(&mut self, arena: &Arena, child: NodeIndex) {
        let mask = self.mask;
        let hash_of = |child: &NodeIndex| hash_of(arena, *child, mask);
        self.table.insert_unique(hash_of(&child), child, hash_of);
    }

    /// Takes a child out; its parent and hash must still be those it was entered with.
    pub(crate) fn remove(&mut self, arena: &Arena, child: NodeIndex) {
        let hash = hash_of(arena, child, self.mask);
        let entry = self.table.find_entry(hash, |&other| other == child);
        entry.expect("a child is entered while it has a parent").remove();
    }

    /// Gives memory back that is not used any more.
    pub(crate) fn shrink(&mut self, arena: &Arena) {
        if self.table.len() < self.table.capacity() / 4 {
            let mask = self.mask;
            self.table.shrink_to(self.table.len() * 2, |&child| hash_of(arena, child, mask));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn equal_pages_below_different_nodes_lie_apart() {
        let places: HashSet<u64> =
            (0..1_000).map(|parent| entry_hash(NodeIndex::new(parent).expect("small"), 7, u64::MAX)).collect();
        assert_eq!(places.len(), 1_000, "a look-up would compare all of them");
    }

    #[test]
    fn hashes_depend_on_every_token_and_its_place() {
        let hasher = PageHasher::random();
        for length in [1, 3, 64, 65] {
            let base: Vec<i64> = (0..).take(length).collect();
            let hash = |tokens: &[i64]| hasher.hash(tokens.len(), |index| tokens[index]);
            for place in 0..length {
                let mut other = base.clone();
                other[place] ^= 1 << 40;
                assert_ne!(hash(&other), hash(&base), "{place} of {length}");
            }
            for place in 1..length {
                let mut swapped = base.clone();
                swapped.swap(place - 1, place);
                assert_ne!(hash(&swapped), hash(&base), "{place} of {length}");
            }
        }
    }
}
