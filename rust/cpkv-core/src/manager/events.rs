//! Prefix-cache events: what routers are told about which pages are where.
//!
//! They are noted where residency changes, so that none is missed and none comes before its time: a
//! host copy is stored when it becomes visible. Parents are told of before their children.

use super::CacheManager;
use crate::ids::{NodeIndex, Pages, Tokens};
use crate::namespace::Namespace;
use crate::tree::{page_hash, root_hash};

/// Where pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// In device memory.
    Device,
    /// In host memory.
    Host,
}

/// A change of what the cache holds. Pages are named by their hashes
/// ([`CacheManager::page_hashes`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheEvent {
    /// Pages can be used from now on.
    Stored {
        /// Where.
        medium: Medium,
        /// The page in front of the first; nothing is in front of the first one of a prompt.
        parent: Option<u64>,
        /// The pages, in the order of the prompt.
        hashes: Vec<u64>,
        /// Their tokens, with pair keys also the one behind them, which the last page is known by.
        tokens: Vec<i64>,
    },
    /// Pages can no longer be used there.
    Removed {
        /// Where.
        medium: Medium,
        /// The pages.
        hashes: Vec<u64>,
    },
    /// Nothing can be used any more.
    Cleared,
}

/// Events that are kept for an engine that does not take them.
const MOST_EVENTS: usize = 65_536;

/// The events that were not taken yet.
#[derive(Debug)]
pub(super) struct Events {
    is_on: bool,
    list: Vec<CacheEvent>,
}

impl Events {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, list: Vec::new() }
    }
}

impl CacheManager {
    /// Takes the events since this was called last. Beyond 65,536 they are dropped and counted
    /// (`dropped_events`).
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events.list)
    }

    /// The names of the whole pages of `tokens`, as events have them.
    #[must_use]
    pub fn page_hashes(&self, tokens: &[i64], namespace: &Namespace) -> Vec<u64> {
        let pages = self.shape.pages_in(Tokens(tokens.len())).index();
        let (page_tokens, key_tokens) =
            (self.shape.page_tokens(), self.shape.page_tokens() + self.shape.successor_tokens());
        let mut hash = root_hash(self.shape, namespace.name().map(|name| &**name));
        (0..pages)
            .map(|page| {
                let start = page * page_tokens;
                hash = page_hash(hash, tokens[start..start + key_tokens].iter().copied());
                hash
            })
            .collect()
    }

    pub(super) fn note_stored(&mut self, index: NodeIndex, medium: Medium) {
        if self.is_noted(index) {
            let parent = self.tree.hash_in_front_of(index);
            let hashes = self.tree.hashes_of(index);
            let mut tokens = self.tree.tokens_of(index);
            tokens.extend(self.tree.successor_of(index));
            self.note(CacheEvent::Stored { medium, parent, hashes, tokens });
        }
    }

    /// Notes that the pages of a node from `first` on leave a tier.
    pub(super) fn note_removed(&mut self, index: NodeIndex, first: Pages, medium: Medium) {
        if self.is_noted(index) {
            let hashes = self.tree.hashes_of(index).split_off(first.index());
            self.note(CacheEvent::Removed { medium, hashes });
        }
    }

    pub(super) fn note_cleared(&mut self) {
        if self.events.is_on {
            self.note(CacheEvent::Cleared);
        }
    }

    /// What was flushed has been told of by then.
    fn is_noted(&self, index: NodeIndex) -> bool {
        self.events.is_on && !(self.is_out_of_reach(index))
    }

    fn note(&mut self, event: CacheEvent) {
        if self.events.list.len() < MOST_EVENTS {
            self.events.list.push(event);
        } else {
            self.counters.dropped_events += 1;
        }
    }
}
