//! The core of cpkv: which pages of which prompts are on the device and on the host, and which of
//! them go first when room is needed.
//!
//! It deals in page ids, slot numbers and counts. It never sees memory that holds KV, has no clock
//! and no thread of its own, and calls nobody back. [`CacheManager`] is the whole interface; the
//! other public types are what goes into it and comes out. One part is an exception: a
//! [`CommitLog`] that waits for another process looks at the time and warns through a hook.
//!
//! From the ground up: [`ids`] and [`key`] say what is counted; `store` keeps tokens and ids,
//! `tree` hangs runs of pages below each other, `slots` knows what is free, `eviction` what goes
//! first; `agreement` lets ranks decide alike about what is asynchronous; `manager` keeps all of them
//! in step.

mod agreement;
mod config;
mod digest;
mod error;
mod eviction;
pub mod ids;
pub mod key;
mod manager;
mod namespace;
mod operations;
mod slots;
mod stats;
mod store;
mod tree;

pub use agreement::{
    AckWords, CommitLog, Fact, FailedFlags, FlagError, LogError, LogGeometry, MOST_RANKS, MemoryRange, OperationId,
    Patience, Report, Ruling, Stamp, Stream, Tally, Verdict, Votes, Waited,
};
pub use config::{CacheConfig, Copies, MOST_LANES, PoolOwner, WritePolicy};
pub use error::{Error, Result};
pub use eviction::Policy;
pub use ids::{Lane, Lanes, PageId, Pages, SlotId, Tokens};
pub use key::{KeyKind, KeyShape};
pub use manager::{
    CacheEvent, CacheManager, Dump, Hit, Inserted, Lease, Medium, NodeDump, OperationDump, Placement, Prefill,
    Reserved, Restored, RolledBack, TickReport,
};
pub use namespace::Namespace;
pub use operations::{Ending, Kind as OperationKind, machine};
pub use slots::RunLengths;
pub use stats::{Counters, Stats};
