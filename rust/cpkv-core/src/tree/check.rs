//! Check: links, counts, hashes and buffers of the tree, counted anew.

use hashbrown::HashMap;

use super::{Node, Tree};
use crate::ids::{BufferIndex, NodeIndex, Pages};

impl Tree {
    /// Lists what is wrong with links, counts, hashes and buffers.
    pub(crate) fn check(&self, problems: &mut Vec<String>) {
        let mut live: HashMap<BufferIndex, u32> = HashMap::new();
        let mut roots = 0;
        let mut cut_off: HashMap<NodeIndex, u32> = HashMap::new();
        for parent in self.arena.iter().filter(|(_, node)| node.is_cut_off).filter_map(|(_, node)| node.parent) {
            *cut_off.entry(parent).or_default() += 1;
        }
        if cut_off.values().sum::<u32>() as usize != self.cut_off {
            problems.push(format!("{cut_off:?} cut off, {} counted", self.cut_off));
        }
        for (index, node) in self.arena.iter() {
            self.check_children(index, node, cut_off.get(&index).copied().unwrap_or(0), problems);
            let Some(slice) = node.slice else {
                roots += 1;
                if index != self.default_root && node.children == 0 && !node.is_locked() {
                    problems.push(format!("{index:?}: an empty namespace is kept"));
                }
                continue;
            };
            *live.entry(slice.buffer).or_default() += slice.len.0;
            let Some(parent) = node.parent.map(|parent| &self.arena[parent]) else {
                problems.push(format!("{index:?}: no parent"));
                continue;
            };
            if node.len() == Pages::ZERO || node.start() != parent.end {
                problems.push(format!("{index:?}: {} pages do not follow on {}", node.len(), parent.end));
            }
            if node.first_page_hash != self.hash_first_page(index) {
                problems.push(format!("{index:?}: stale first page hash"));
            }
            let parent = node.parent.expect("checked above");
            if node.is_cut_off {
                if !node.is_locked() {
                    problems.push(format!("{index:?}: cut off, and nobody holds it"));
                }
                continue;
            }
            if self.children.find(parent, node.first_page_hash, |other| other == index).is_none() {
                problems.push(format!("{index:?}: not in the child index"));
            }
        }
        if self.children.len() + roots + self.cut_off != self.arena.len() {
            problems.push(format!("{} index entries for {} nodes", self.children.len(), self.arena.len()));
        }
        if roots != self.namespaces() + self.flushed_roots || self.root_names.len() != self.roots.len() {
            problems.push(format!("{roots} roots for {} namespaces", self.namespaces()));
        }
        self.store.check(|buffer| live.get(&buffer).copied().unwrap_or(0), problems);
    }

    /// `cut_off` nodes hang from it that are not its children.
    fn check_children(&self, index: NodeIndex, node: &Node, cut_off: u32, problems: &mut Vec<String>) {
        let (mut children, mut device, mut mirrors, mut locked, mut previous) = (0, 0, 0, cut_off, None);
        let mut next = node.first_child;
        while let Some(child) = next {
            let child_node = &self.arena[child];
            if child_node.parent != Some(index) || child_node.previous_sibling != previous {
                problems.push(format!("{child:?}: wrong links among the children of {index:?}"));
            }
            children += 1;
            device += u32::from(child_node.state.tiers.device);
            mirrors += u32::from(child_node.state.tiers.is_mirror());
            locked += u32::from(child_node.is_locked());
            previous = Some(child);
            next = child_node.next_sibling;
        }
        let found = (children, device, mirrors, locked);
        let counted = (node.children, node.device_children, node.mirror_children, node.locked_children);
        if found != counted {
            problems.push(format!("{index:?}: children {found:?}, counted {counted:?}"));
        }
    }
}
