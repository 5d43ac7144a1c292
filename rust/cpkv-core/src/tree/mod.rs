//! The page-granular radix tree: which runs of pages hang below which.
//!
//! Owns the nodes, their tokens and ids, the child index and the roots of the namespaces. It keeps
//! the structure right and knows nothing of policies, pools or heaps. Nothing here recurses, also
//! when the tree is dropped: nodes live in one flat arena.
//!
//! A split leaves the *end* of a node under its old index and gives the new index to the part in
//! front, so that whatever refers to a node goes on meaning the same prefix.

mod arena;
mod check;
mod children;
mod node;
mod page_hash;
mod reshape;

pub(crate) use arena::{Arena, NodeRef};
pub(crate) use node::{HeapPlace, HeapPlaces, Node, NodeState, Tiers};
pub(crate) use page_hash::{page_hash, root_hash};

use std::sync::Arc;

use hashbrown::HashMap;

use crate::digest::Digest;
use crate::eviction::Usage;
use crate::ids::{BufferIndex, NodeIndex, OperationIndex, PageId, Pages, SlotId};
use crate::key::{KeyKind, KeyShape};
use crate::namespace::Namespace;
use crate::store::{PageStore, Row, Slice};
use children::{Children, PageHasher};

/// A place in the tree: the first `pages` pages of `node`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) node: NodeIndex,
    pub(crate) pages: Pages,
}

#[derive(Debug)]
pub(crate) struct Tree {
    shape: KeyShape,
    pub(crate) arena: Arena,
    children: Children,
    store: PageStore,
    hasher: PageHasher,
    default_root: NodeIndex,
    roots: HashMap<Arc<[u8]>, NodeIndex>,
    root_names: HashMap<NodeIndex, Arc<[u8]>>,
    name_bytes: usize,
    /// Roots that are kept because something below them is held.
    flushed_roots: usize,
    /// Nodes that were cut off, and are kept because something at or below them is held.
    cut_off: usize,
    /// Nodes know the hash of their last page.
    has_hashes: bool,
}

impl Tree {
    pub(crate) fn new(shape: KeyShape) -> Self {
        let mut arena = Arena::default();
        let default_root = arena.insert(Node::root());
        Self {
            shape,
            arena,
            children: Children::new(),
            store: PageStore::new(shape.page_tokens()),
            hasher: PageHasher::random(),
            default_root,
            roots: HashMap::new(),
            root_names: HashMap::new(),
            name_bytes: 0,
            flushed_roots: 0,
            cut_off: 0,
            has_hashes: false,
        }
    }

    /// Keeps the hash of every node's last page from now on; to be called on an empty tree.
    pub(crate) fn keep_hashes(&mut self) {
        self.has_hashes = true;
        self.rehash(self.default_root);
    }

    /// A tree in whose child index all entries collide.
    #[cfg(test)]
    pub(crate) fn with_colliding_pages(shape: KeyShape) -> Self {
        Self { children: Children::colliding(), ..Self::new(shape) }
    }

    // --- Namespaces ---

    pub(crate) fn root(&self, namespace: &Namespace) -> Option<NodeIndex> {
        match namespace.name() {
            None => Some(self.default_root),
            Some(name) => self.roots.get(name).copied(),
        }
    }

    /// The root of `namespace`, made if there is none.
    pub(crate) fn ensure_root(&mut self, namespace: &Namespace) -> NodeIndex {
        if let Some(root) = self.root(namespace) {
            return root;
        }
        let name = namespace.name().expect("the default namespace has a root");
        let root = self.arena.insert(Node::root());
        self.name_bytes += name.len();
        self.roots.insert(Arc::clone(name), root);
        self.root_names.insert(root, Arc::clone(name));
        self.rehash(root);
        root
    }

    /// Whether something is kept that nothing finds any more.
    pub(crate) fn has_out_of_reach(&self) -> bool {
        self.flushed_roots > 0 || self.cut_off > 0
    }

    /// Whether nodes were cut off that are still held.
    pub(crate) fn has_cut_off(&self) -> bool {
        self.cut_off > 0
    }

    /// Forgets all namespaces; returns their roots, which nothing finds any more.
    pub(crate) fn flush_roots(&mut self) -> Vec<NodeIndex> {
        let mut roots: Vec<_> =
            self.arena.iter().filter(|(_, node)| node.is_root() && !node.is_flushed).map(|(root, _)| root).collect();
        roots.sort_unstable();
        for &root in &roots {
            self.arena[root].is_flushed = true;
        }
        self.flushed_roots += roots.len();
        self.roots.clear();
        self.root_names.clear();
        self.name_bytes = 0;
        self.default_root = self.arena.insert(Node::root());
        self.rehash(self.default_root);
        roots
    }

    /// Forgets the namespace of `root` if nothing is left in it and nothing holds it.
    pub(crate) fn drop_root_if_empty(&mut self, root: NodeIndex) {
        let node = &self.arena[root];
        if root == self.default_root || node.children > 0 || node.is_locked() {
            return;
        }
        if node.is_flushed {
            self.flushed_roots -= 1;
            self.arena.remove(root);
            return;
        }
        let name = self.root_names.remove(&root).expect("a root has a name");
        self.roots.remove(&name);
        self.name_bytes -= name.len();
        self.arena.remove(root);
    }

    pub(crate) fn namespaces(&self) -> usize {
        self.roots.len() + 1
    }

    // --- Looking up ---

    /// The child of `parent` that shares at least its first page with `tokens`, and how many
    /// pages it shares. `tokens` are those of the whole key; at most `limit` pages of it count.
    pub(crate) fn step_down(&self, parent: NodeIndex, tokens: &[i64], limit: Pages) -> Option<Step> {
        let depth = self.arena[parent].end;
        if depth >= limit {
            return None;
        }
        let page_tokens = self.shape.page_tokens();
        let query = &tokens[depth.index() * page_tokens..];
        let key_tokens = page_tokens + self.shape.successor_tokens();
        let first_page = &query[..key_tokens];
        let hash = self.hasher.hash(key_tokens, |index| first_page[index]);
        let node = self.children.find(parent, hash, |candidate| {
            self.arena[candidate].parent == Some(parent)
                && self.store.equal_prefix(self.arena[candidate].slice().up_to(Pages(1)), Pages::ZERO, first_page)
                    == page_tokens
                && (self.shape.kind() == KeyKind::Token
                    || self.token_after(candidate, Pages(1)) == first_page[page_tokens])
        })?;
        Some(Step { node, pages: self.shared_pages(node, query, limit - depth) })
    }

    /// How many pages `query` shares with a node whose first page is known to be equal.
    fn shared_pages(&self, node: NodeIndex, query: &[i64], limit: Pages) -> Pages {
        let page_tokens = self.shape.page_tokens();
        let most = self.arena[node].len().min(limit);
        let rest = self.arena[node].slice().up_to(most);
        let equal = page_tokens + self.store.equal_prefix(rest, Pages(1), &query[page_tokens..]);
        let whole = |tokens: usize| Pages(u32::try_from(tokens / page_tokens).expect("no more than the node has"));
        match self.shape.kind() {
            KeyKind::Token => whole(equal),
            // The last pair of a page needs the token after it as well.
            KeyKind::Pair if equal == most.index() * page_tokens => {
                let last_is_equal = self.token_after(node, most) == query[equal];
                if last_is_equal { most } else { most - Pages(1) }
            }
            KeyKind::Pair => whole(equal - 1),
        }
    }

    /// With pair keys, the token behind the first `pages` pages of a node.
    fn token_after(&self, node: NodeIndex, pages: Pages) -> i64 {
        let node = &self.arena[node];
        if pages < node.len() {
            self.store.token(node.slice(), pages.index() * self.shape.page_tokens())
        } else {
            node.successor
        }
    }

    /// Whether the last page of `node` is what `tokens` (of the whole key) have in its place.
    pub(crate) fn last_page_equals(&self, node: NodeIndex, tokens: &[i64]) -> bool {
        let node = &self.arena[node];
        let page_tokens = self.shape.page_tokens();
        let end = node.end.index() * page_tokens;
        let last_page = node.slice().from(node.len() - Pages(1));
        let is_equal = |page: &[i64]| self.store.equal_prefix(last_page, Pages::ZERO, page) == page_tokens;
        tokens.get(end - page_tokens..end).is_some_and(is_equal)
            && (self.shape.kind() == KeyKind::Token || tokens.get(end) == Some(&node.successor))
    }

    /// The name of a namespace's root; `None` for the default one and for what is no root.
    pub(crate) fn name_of(&self, root: NodeIndex) -> Option<&[u8]> {
        self.root_names.get(&root).map(|name| &**name)
    }

    /// The hash of the page in front of a node; `None` if there is none.
    pub(crate) fn hash_in_front_of(&self, index: NodeIndex) -> Option<u64> {
        let parent = &self.arena[self.arena[index].parent?];
        (!parent.is_root()).then_some(parent.end_hash)
    }

    /// The hashes of the pages of a node.
    pub(crate) fn hashes_of(&self, index: NodeIndex) -> Vec<u64> {
        let node = &self.arena[index];
        let Some(parent) = node.parent else { return Vec::new() };
        let mut hash = self.arena[parent].end_hash;
        let next = |page| {
            hash = page_hash(hash, self.key_of_page(index, page));
            hash
        };
        (0..node.len().index()).map(next).collect()
    }

    /// Brings the hash of a node's last page up to date, if hashes are wanted.
    fn rehash(&mut self, index: NodeIndex) {
        if !self.has_hashes {
            return;
        }
        self.arena[index].end_hash = if self.arena[index].is_root() {
            root_hash(self.shape, self.name_of(index))
        } else {
            *self.hashes_of(index).last().expect("only a root has no pages")
        };
    }

    /// The tokens that a page of a node is known by.
    fn key_of_page(&self, node: NodeIndex, page: usize) -> impl Iterator<Item = i64> {
        let page_tokens = self.shape.page_tokens();
        let slice = self.arena[node].slice();
        let own = (page * page_tokens..(page + 1) * page_tokens).map(move |token| self.store.token(slice, token));
        let end = Pages(u32::try_from(page + 1).expect("no more than the node has"));
        own.chain((self.shape.kind() == KeyKind::Pair).then(|| self.token_after(node, end)))
    }

    /// The tokens of a node's pages.
    pub(crate) fn tokens_of(&self, node: NodeIndex) -> Vec<i64> {
        let Some(slice) = self.arena[node].slice else { return Vec::new() };
        (0..self.shape.tokens_of(slice.len).0).map(|token| self.store.token(slice, token)).collect()
    }

    /// With pair keys, the token after the pages of a node.
    pub(crate) fn successor_of(&self, node: NodeIndex) -> Option<i64> {
        let node = &self.arena[node];
        (self.shape.kind() == KeyKind::Pair && !node.is_root()).then_some(node.successor)
    }

    // --- Ids and tiers ---

    pub(crate) fn rows(&self, node: NodeIndex) -> &[Row] {
        self.arena[node].slice.map_or(&[], |slice| self.store.rows(slice))
    }

    pub(crate) fn rows_mut(&mut self, node: NodeIndex) -> &mut [Row] {
        let slice = self.arena[node].slice();
        self.store.rows_mut(slice)
    }

    /// Changes the tiers of a node; the manager's `residency` is the only caller.
    pub(crate) fn set_tiers(&mut self, index: NodeIndex, tiers: Tiers) {
        let node = &mut self.arena[index];
        let before = std::mem::replace(&mut node.state.tiers, tiers);
        if node.is_cut_off {
            // No child of its parent.
            return;
        }
        let parent = node.parent.expect("a root has no tiers");
        let parent = &mut self.arena[parent];
        parent.device_children = parent.device_children + u32::from(tiers.device) - u32::from(before.device);
        parent.mirror_children = parent.mirror_children + u32::from(tiers.is_mirror()) - u32::from(before.is_mirror());
    }

    // --- Structure ---

    /// Hangs the pages `from .. to` of the key `tokens` below `parent`, which ends at `from`.
    /// The new node is in no tier and its rows are empty.
    pub(crate) fn attach(&mut self, parent: NodeIndex, tokens: &[i64], to: Pages, usage: Usage) -> NodeIndex {
        let page_tokens = self.shape.page_tokens();
        let (start, end) = (self.arena[parent].end.index() * page_tokens, to.index() * page_tokens);
        let slice = self.store.add(&tokens[start..end]);
        let mut node = Node::new(Some(slice), to, usage);
        let key_tokens = page_tokens + self.shape.successor_tokens();
        node.first_page_hash = self.hasher.hash(key_tokens, |index| tokens[start + index]);
        node.successor = if self.shape.kind() == KeyKind::Pair { tokens[end] } else { 0 };
        let index = self.arena.insert(node);
        self.link_to_buffer(index, slice.buffer);
        self.link_to_parent(index, parent);
        self.rehash(index);
        index
    }

    /// Cuts the last `pages` pages off a node that has no children and is longer than that.
    pub(crate) fn cut_tail(&mut self, index: NodeIndex, pages: Pages) {
        let kept = self.arena[index].len() - pages;
        debug_assert!(self.arena[index].children == 0 && kept > Pages::ZERO);
        let successor = if self.shape.kind() == KeyKind::Pair { self.token_after(index, kept) } else { 0 };
        let node = &mut self.arena[index];
        let slice = node.slice();
        node.successor = successor;
        node.end -= pages;
        node.slice = Some(slice.up_to(kept));
        self.store.release(slice.buffer, pages);
        self.rehash(index);
    }

    /// Removes a node that has no children.
    pub(crate) fn remove(&mut self, index: NodeIndex) {
        let slice = self.arena[index].slice();
        debug_assert!(self.arena[index].children == 0 && !self.arena[index].is_locked());
        if self.arena[index].is_cut_off {
            self.cut_off -= 1;
        } else {
            self.unlink_from_parent(index);
        }
        self.unlink_from_buffer(index);
        self.arena.remove(index);
        self.store.release(slice.buffer, slice.len);
    }

    /// Rewrites the buffers that have fallen under half alive, and gives back memory that is not
    /// used any more. Every public operation that removes pages ends with this; indices and
    /// references stay as they are.
    pub(crate) fn compact(&mut self) {
        while let Some(buffer) = self.store.take_sparse() {
            let mut nodes = Vec::new();
            let mut next = self.store.buffer(buffer).first_node;
            while let Some(index) = next {
                nodes.push(index);
                next = self.arena[index].next_in_buffer;
            }
            nodes.sort_unstable_by_key(|&index| self.arena[index].slice().start);
            let slices: Vec<Slice> = nodes.iter().map(|&index| self.arena[index].slice()).collect();
            self.store.rewrite(buffer, &slices);
            let mut start = 0;
            for (index, slice) in nodes.into_iter().zip(slices) {
                self.arena[index].slice = Some(Slice { start, ..slice });
                start += slice.len.0;
            }
        }
        self.arena.shrink();
        self.children.shrink(&self.arena);
        self.store.shrink();
    }

    // --- Links ---

    fn hash_first_page(&self, index: NodeIndex) -> u64 {
        let page_tokens = self.shape.page_tokens();
        let slice = self.arena[index].slice();
        self.hasher.hash(page_tokens + self.shape.successor_tokens(), |token| {
            if token < page_tokens { self.store.token(slice, token) } else { self.token_after(index, Pages(1)) }
        })
    }

    /// Enters a node among the children of `parent`, in front of them.
    fn link_to_parent(&mut self, index: NodeIndex, parent: NodeIndex) {
        let (tiers, is_locked) = (self.arena[index].state.tiers, self.arena[index].is_locked());
        let parent_node = &mut self.arena[parent];
        let next = parent_node.first_child.replace(index);
        parent_node.children += 1;
        parent_node.locked_children += u32::from(is_locked);
        parent_node.device_children += u32::from(tiers.device);
        parent_node.mirror_children += u32::from(tiers.is_mirror());
        let node = &mut self.arena[index];
        node.parent = Some(parent);
        node.next_sibling = next;
        node.previous_sibling = None;
        if let Some(next) = next {
            self.arena[next].previous_sibling = Some(index);
        }
        self.children.insert(&self.arena, index);
    }

    fn unlink_from_parent(&mut self, index: NodeIndex) {
        self.children.remove(&self.arena, index);
        let node = &self.arena[index];
        let parent = node.parent.expect("the node is linked");
        let (tiers, is_locked) = (node.state.tiers, node.is_locked());
        let (next, previous) = (node.next_sibling, node.previous_sibling);
        let parent = &mut self.arena[parent];
        parent.children -= 1;
        parent.locked_children -= u32::from(is_locked);
        parent.device_children -= u32::from(tiers.device);
        parent.mirror_children -= u32::from(tiers.is_mirror());
        match previous {
            Some(previous) => self.arena[previous].next_sibling = next,
            None => parent.first_child = next,
        }
        if let Some(next) = next {
            self.arena[next].previous_sibling = previous;
        }
    }

    fn link_to_buffer(&mut self, index: NodeIndex, buffer: BufferIndex) {
        let next = self.store.buffer_mut(buffer).first_node.replace(index);
        self.arena[index].next_in_buffer = next;
        self.arena[index].previous_in_buffer = None;
        if let Some(next) = next {
            self.arena[next].previous_in_buffer = Some(index);
        }
    }

    fn unlink_from_buffer(&mut self, index: NodeIndex) {
        let node = &self.arena[index];
        let (next, previous, buffer) = (node.next_in_buffer, node.previous_in_buffer, node.slice().buffer);
        match previous {
            Some(previous) => self.arena[previous].next_in_buffer = next,
            None => self.store.buffer_mut(buffer).first_node = next,
        }
        if let Some(next) = next {
            self.arena[next].previous_in_buffer = previous;
        }
    }

    // --- Figures ---

    /// Pages in the tree.
    pub(crate) fn pages(&self) -> u64 {
        self.store.live_pages()
    }

    /// Bytes allocated on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.store.heap_bytes()
            + self.arena.heap_bytes()
            + self.children.heap_bytes()
            + self.roots.allocation_size()
            + self.root_names.allocation_size()
            + self.name_bytes
    }

    /// Adds nodes, tokens and ids, but not what depends on the seed of the hashes.
    pub(crate) fn add_to_digest(&self, digest: &mut Digest) {
        for (index, node) in self.arena.iter() {
            digest.add(u64::from(index.raw()));
            digest.add_id(node.parent.map(NodeIndex::raw));
            digest.add(u64::from(node.end.0));
            digest.add(u64::from(node.state.locks));
            digest.add_id(node.state.pending.map(OperationIndex::raw));
            let flags = [node.is_flushed, node.is_cut_off, node.state.is_partial];
            digest.add(flags.into_iter().fold(0, |flags, flag| flags << 1 | u64::from(flag)));
            let Usage { created, last_access, hits, priority } = node.state.usage;
            digest.add(created);
            digest.add(last_access);
            digest.add(u64::from(hits) << 32 | u64::from(priority.cast_unsigned()));
            if let Some(name) = self.root_names.get(&index) {
                name.iter().for_each(|&byte| digest.add(u64::from(byte)));
            }
            let Some(slice) = node.slice else { continue };
            digest.add(node.successor.cast_unsigned());
            let tokens = self.shape.tokens_of(slice.len).0;
            (0..tokens).for_each(|token| digest.add(self.store.token(slice, token).cast_unsigned()));
            for row in self.store.rows(slice) {
                digest.add_id(row.device.map(PageId::raw));
                digest.add_id(row.host.map(SlotId::raw));
            }
        }
    }
}
