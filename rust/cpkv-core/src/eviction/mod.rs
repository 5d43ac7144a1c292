//! Which pages go first.
//!
//! A policy is one file with one function: from the [`Usage`] of a node to a key, smallest first.
//! The rest (leaves before what they hang from, mirrors before sole copies, locks) is common to
//! all policies. Recency is a logical counter, so that replicas agree.

mod fifo;
mod filo;
mod heap;
mod lfu;
mod lru;
mod mru;
mod priority;
mod slru;

pub(crate) use heap::EvictionHeaps;

/// What policies decide by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// The logical time at which the pages entered the tree.
    pub(crate) created: u64,
    /// The logical time at which a request last used them.
    pub(crate) last_access: u64,
    /// Requests that found them in the cache.
    pub(crate) hits: u32,
    /// What the engine said they are worth; larger stays longer.
    pub(crate) priority: i32,
}

/// What a policy orders nodes by; the smallest goes first.
pub(crate) type EvictionKey = (u64, u64);

/// The order in which pages are given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Least recently used first.
    #[default]
    Lru,
    /// Least often hit first, among equals the least recently used.
    Lfu,
    /// Never or once hit first (the probationary segment), least recently used in each segment.
    Slru,
    /// Oldest first.
    Fifo,
    /// Most recently used first.
    Mru,
    /// Youngest first.
    Filo,
    /// Lowest priority first, among equals the least recently used.
    Priority,
}

impl Policy {
    /// Every policy with its name.
    pub const ALL: [(&'static str, Self); 7] = [
        ("lru", Self::Lru),
        ("lfu", Self::Lfu),
        ("slru", Self::Slru),
        ("fifo", Self::Fifo),
        ("mru", Self::Mru),
        ("filo", Self::Filo),
        ("priority", Self::Priority),
    ];

    /// The policy called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }

    /// Its key for pages used like `usage`.
    pub(crate) fn key(self, usage: &Usage) -> EvictionKey {
        match self {
            Self::Lru => lru::key(usage),
            Self::Lfu => lfu::key(usage),
            Self::Slru => slru::key(usage),
            Self::Fifo => fifo::key(usage),
            Self::Mru => mru::key(usage),
            Self::Filo => filo::key(usage),
            Self::Priority => priority::key(usage),
        }
    }
}
