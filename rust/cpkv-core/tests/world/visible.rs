//! What can be seen from outside: the contents of pages and slots, and the events.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use cpkv_core::{CacheEvent, CacheManager, KeyKind, OperationId, OperationKind};

use super::World;
use super::inputs::{NAMESPACES, namespace};
use crate::engine::{Content, ITEMS, TARGET_ITEMS};

impl World {
    /// What the forward writes for a page: it depends on all tokens up to its end, and the draft's
    /// on the token after it.
    pub(super) fn content(&self, space: u8, prompt: &[i64], page: usize) -> Content {
        let end = (page + 1) * self.setup.page_tokens();
        let mut content = [0; ITEMS];
        for (item, value) in content.iter_mut().enumerate() {
            let mut hasher = DefaultHasher::new();
            (item, space, &prompt[..end]).hash(&mut hasher);
            if item >= TARGET_ITEMS && self.setup.config.key == KeyKind::Pair {
                prompt[end].hash(&mut hasher);
            }
            *value = hasher.finish();
        }
        content
    }

    /// The events say exactly what has changed, each page once and parents first.
    fn tell_router(&mut self) {
        for event in self.all(CacheManager::take_events) {
            match event {
                CacheEvent::Stored { medium, parent, hashes, tokens } => {
                    let is_in_place = match parent {
                        Some(parent) => self.router.iter().any(|pages| pages.contains(&parent)),
                        None => (0..NAMESPACES)
                            .any(|number| self.caches[0].page_hashes(&tokens, &namespace(number)) == hashes),
                    };
                    assert!(is_in_place, "stored before its parent");
                    let behind = usize::from(self.setup.config.key == KeyKind::Pair);
                    assert_eq!(tokens.len(), hashes.len() * self.setup.page_tokens() + behind);
                    for hash in hashes {
                        assert!(self.router[medium as usize].insert(hash), "stored twice");
                    }
                }
                CacheEvent::Removed { medium, hashes } => {
                    for hash in hashes {
                        assert!(self.router[medium as usize].remove(&hash), "removed, and was not stored");
                    }
                }
                CacheEvent::Cleared => self.router.iter_mut().for_each(HashSet::clear),
            }
        }
    }

    /// A host slot that is visible holds, on every rank that has a share of it, what was written.
    pub(super) fn check_host(&self, space: u8, prompt: &[i64], page: usize, slot: u32) {
        let expected = self.content(space, prompt, page);
        for (rank, engine) in self.engines.iter().enumerate() {
            if self.setup.is_on(rank, slot) {
                assert_eq!(engine.host.get(&slot), Some(&expected), "page {page} of {prompt:?} in slot {slot}");
            }
        }
    }

    fn check_device(&self, space: u8, prompt: &[i64], page: usize, device: u32) {
        let expected = self.content(space, prompt, page);
        for (rank, engine) in self.engines.iter().enumerate() {
            if self.setup.is_on(rank, device) {
                assert_eq!(engine.device.get(&device), Some(&expected), "page {page} of {prompt:?} in page {device}");
            }
        }
    }

    /// Every page that the cache says it has, on the device and on the host, holds what was
    /// written.
    pub(super) fn check(&mut self) {
        self.all(|cache| {
            cache.check_integrity().unwrap();
            (cache.digest(), cache.stamp())
        });
        self.tell_router();
        let dump = self.caches[0].dump();
        let mut cached: [HashSet<u64>; 2] = Default::default();
        let mut prefixes: HashMap<u32, Vec<i64>> = HashMap::new();
        let mut spaces: HashMap<u32, u8> = HashMap::new();
        let mut waiting: HashSet<u32> = HashSet::new();
        let mut flushed: HashSet<u32> = HashSet::new();
        let mut lost: HashSet<u32> = HashSet::new();
        let restores = dump.operations.iter().filter(|one| one.kind == OperationKind::Restore);
        let restores: HashSet<OperationId> = restores.map(|one| one.operation).collect();
        for node in &dump.nodes {
            let Some(parent) = node.parent else {
                if node.is_flushed {
                    self.seen.note("flushed roots", 1);
                    flushed.insert(node.index);
                    spaces.insert(node.index, self.roots[&node.index]);
                } else {
                    spaces.insert(node.index, node.namespace.as_ref().map_or(0, |name| *name.last().unwrap()));
                }
                prefixes.insert(node.index, Vec::new());
                continue;
            };
            let space = spaces[&parent];
            spaces.insert(node.index, space);
            let mut prefix = prefixes[&parent].clone();
            prefix.extend(&node.tokens);
            prefixes.insert(node.index, prefix.clone());
            let waits = waiting.contains(&parent);
            if waits || node.operation.is_some_and(|id| !self.started.contains(&id)) {
                waiting.insert(node.index);
            }
            prefix.extend(node.successor);
            let is_cut_off = node.is_cut_off || lost.contains(&parent);
            if is_cut_off {
                self.seen.note("nodes that were cut off", 1);
                lost.insert(node.index);
            }
            if is_cut_off || flushed.contains(&parent) {
                flushed.insert(node.index);
            } else {
                let hashes = self.caches[0].page_hashes(&prefix, &namespace(space));
                // A host copy does not become visible before those of the pages in front of it.
                let on_host = &hashes[hashes.len() - node.host_slots.len()..];
                assert!(!waits || on_host.iter().all(|page| self.before.contains(page)), "committed before its parent");
                for (count, cached) in [node.device_pages.len(), node.host_slots.len()].into_iter().zip(&mut cached) {
                    cached.extend(&hashes[hashes.len() - count..]);
                }
            }
            let first = node.end.index() - node.tokens.len() / self.setup.page_tokens();
            for (page, slot) in (first..).zip(&node.host_slots) {
                self.check_host(space, &prefix, page, slot.raw());
            }
            // What is being restored is waited for by whoever reads it, and what was cut off is read by
            // nobody.
            if is_cut_off || node.operation.is_some_and(|id| restores.contains(&id)) {
                continue;
            }
            for (page, device) in (first..).zip(&node.device_pages) {
                self.check_device(space, &prefix, page, device.raw());
            }
            self.seen.note("host pages", node.host_slots.len());
            if space != 0 {
                self.seen.note("host pages in a namespace", node.host_slots.len());
            }
        }
        self.started.clear();
        assert_eq!(self.router, cached);
        [_, self.before] = cached;
        self.roots = spaces;
        let stats = self.caches[0].stats();
        self.seen.note("draining slots", stats.host_draining_slots as usize);
        self.seen.note("quarantined slots", stats.host_quarantined_slots as usize);
    }
}
