//! Reshape: nodes are split, merged, joined, cut off and hung elsewhere, and their pages stay the same.

use super::{Node, NodeState, Tree};
use crate::ids::{NodeIndex, Pages, Tokens};
use crate::key::KeyKind;
use crate::store::Slice;

impl Tree {
    /// Splits `index` so that a new node, which is returned, takes its first `pages` pages. The
    /// end stays where it was, and with it the locks; both parts are like the whole in everything
    /// else.
    pub(crate) fn split(&mut self, index: NodeIndex, pages: Pages) -> NodeIndex {
        let whole = &self.arena[index];
        debug_assert!(Pages::ZERO < pages && pages < whole.len());
        let slice = whole.slice();
        let parent = whole.parent.expect("only roots have no parent, and they have no pages");
        let mut front = Node::new(Some(slice.up_to(pages)), whole.start() + pages, whole.state.usage);
        front.state = NodeState { locks: 0, ..whole.state };
        front.first_page_hash = whole.first_page_hash;
        front.successor = if self.shape.kind() == KeyKind::Pair { self.token_after(index, pages) } else { 0 };

        self.unlink_from_parent(index);
        let front = self.arena.insert(front);
        self.link_to_buffer(front, slice.buffer);
        self.arena[index].slice = Some(slice.from(pages));
        self.arena[index].first_page_hash = self.hash_first_page(index);
        // First below the new node, which is locked with it.
        self.link_to_parent(index, front);
        self.link_to_parent(front, parent);
        self.rehash(front);
        front
    }

    /// Gives the pages of `index` to its only child, whose index stays.
    pub(crate) fn merge_into_child(&mut self, index: NodeIndex) {
        let node = &self.arena[index];
        let child = node.first_child.expect("the node has a child");
        let parent = node.parent.expect("a root is not merged");
        let (slice, first_page_hash) = (node.slice(), node.first_page_hash);
        // It is locked as long as its child is.
        self.unlink_from_parent(index);
        self.unlink_from_parent(child);
        self.unlink_from_buffer(index);
        self.arena.remove(index);
        let child_node = &mut self.arena[child];
        child_node.slice = Some(Slice { len: slice.len + child_node.len(), ..slice });
        child_node.first_page_hash = first_page_hash;
        self.link_to_parent(child, parent);
    }

    /// The child for which [`Self::merge_into_child`] would change nothing but the number of
    /// nodes.
    pub(crate) fn mergeable_child(&self, index: NodeIndex) -> Option<NodeIndex> {
        let node = &self.arena[index];
        let (Some(slice), Some(child), 1) = (node.slice, node.first_child, node.children) else {
            return None;
        };
        if self.holds_cut_off(index) {
            return None;
        }
        let child_node = &self.arena[child];
        let follows =
            child_node.slice.is_some_and(|next| next.buffer == slice.buffer && next.start == slice.start + slice.len.0);
        // Whatever ends at the node has to find it there.
        let is_alike = node.state == NodeState { locks: 0, ..child_node.state };
        (follows && is_alike).then_some(child)
    }

    /// The node in front of `index`, of which it is the only child, if both together have no more than
    /// `most` tokens.
    pub(crate) fn joinable_parent(&self, index: NodeIndex, most: Tokens) -> Option<NodeIndex> {
        let node = &self.arena[index];
        let parent = node.parent.filter(|&parent| !self.arena[parent].is_root())?;
        let parent_node = &self.arena[parent];
        let is_joinable = parent_node.children == 1 && !self.holds_cut_off(parent);
        (is_joinable && self.shape.tokens_of(parent_node.len() + node.len()) <= most).then_some(parent)
    }

    /// Gives copies of the pages of `index` to its only child, whose index and state stay.
    pub(crate) fn join_into_child(&mut self, index: NodeIndex) {
        let child = self.arena[index].first_child.expect("the node has a child");
        let slices = [index, child].map(|node| self.arena[node].slice());
        let joined = self.store.join(slices[0], slices[1]);
        let front = slices[0].len;
        for (node, slice) in [(index, joined.up_to(front)), (child, joined.from(front))] {
            self.unlink_from_buffer(node);
            self.arena[node].slice = Some(slice);
            self.link_to_buffer(node, joined.buffer);
        }
        for slice in slices {
            self.store.release(slice.buffer, slice.len);
        }
        self.merge_into_child(index);
    }

    /// Whether what was cut off hangs from a node.
    fn holds_cut_off(&self, index: NodeIndex) -> bool {
        let node = &self.arena[index];
        let mut locked = 0;
        let mut next = node.first_child.filter(|_| self.cut_off > 0);
        while let Some(child) = next {
            locked += u32::from(self.arena[child].is_locked());
            next = self.arena[child].next_sibling;
        }
        self.cut_off > 0 && node.locked_children > locked
    }

    /// Cuts a held node off with everything below it, so that nothing finds it any more. It goes on
    /// holding what is in front of it, and goes when it is held no more.
    pub(crate) fn cut_off(&mut self, index: NodeIndex) {
        debug_assert!(self.arena[index].is_locked() && !self.arena[index].is_cut_off);
        let parent = self.arena[index].parent.expect("a root is flushed");
        self.unlink_from_parent(index);
        self.arena[parent].locked_children += 1;
        self.arena[index].is_cut_off = true;
        self.cut_off += 1;
    }

    /// Hangs a node, with everything below it, from another parent that ends where its own does. Both
    /// parents are locked.
    pub(crate) fn relink(&mut self, index: NodeIndex, parent: NodeIndex) {
        debug_assert!(self.arena[parent].is_locked() && self.arena[parent].end == self.arena[index].start());
        self.unlink_from_parent(index);
        self.link_to_parent(index, parent);
    }

    /// Hangs a node with the same pages as `original` below `parent`, in no tier. The rows are copied.
    pub(crate) fn attach_copy(&mut self, original: NodeIndex, parent: NodeIndex) -> NodeIndex {
        let from = &self.arena[original];
        let slice = self.store.copy(from.slice());
        let mut node = Node::new(Some(slice), from.end, from.state.usage);
        (node.first_page_hash, node.end_hash, node.successor) = (from.first_page_hash, from.end_hash, from.successor);
        let index = self.arena.insert(node);
        self.link_to_buffer(index, slice.buffer);
        self.link_to_parent(index, parent);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Usage;
    use crate::key::KeyShape;
    use crate::namespace::Namespace;

    /// A node of two pages, the two behind it that were split off, and a branch of one page between them.
    fn branched() -> (Tree, [NodeIndex; 3]) {
        let mut tree = Tree::new(KeyShape::new(KeyKind::Token, 1).expect("positive"));
        let root = tree.ensure_root(&Namespace::default());
        let back = tree.attach(root, &[1, 2, 3, 4], Pages(4), Usage::default());
        let front = tree.split(back, Pages(2));
        let branch = tree.attach(front, &[1, 2, 9], Pages(3), Usage::default());
        (tree, [front, back, branch])
    }

    #[test]
    fn a_node_is_merged_only_when_nothing_that_was_cut_off_hangs_from_it() {
        let (mut tree, [front, back, branch]) = branched();
        assert_eq!((tree.mergeable_child(front), tree.joinable_parent(back, Tokens(4))), (None, None));
        tree.arena[branch].state.locks = 1;
        tree.arena[front].locked_children = 1;
        tree.cut_off(branch);
        assert_eq!(tree.arena[front].children, 1);
        assert_eq!((tree.mergeable_child(front), tree.joinable_parent(back, Tokens(4))), (None, None));
        // It goes, as it does when its last lease is released.
        tree.arena[branch].state.locks = 0;
        tree.arena[front].locked_children = 0;
        tree.remove(branch);
        assert_eq!((tree.mergeable_child(front), tree.joinable_parent(back, Tokens(4))), (Some(back), Some(front)));
        assert_eq!(tree.joinable_parent(back, Tokens(3)), None);
        tree.merge_into_child(front);
        assert_eq!(tree.tokens_of(back), [1, 2, 3, 4]);
    }
}
