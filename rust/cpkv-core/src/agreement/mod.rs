//! How ranks agree on what has become of asynchronous operations.
//!
//! A rank *reports* what it sees of an operation: its own copies have landed, have failed, have
//! ended, will never end. From the reports of all ranks a *verdict* is made, and only verdicts
//! change what is replicated. [`Tally`] is the rule by which that happens; a single rank applies
//! its verdicts at once, several exchange reports and verdicts through a commit log.

mod flags;
mod log;
mod protocol;
mod sync;
mod tally;
mod votes;
mod words;

pub use flags::{FailedFlags, FlagError};
pub use log::{CommitLog, LogError, LogGeometry, Patience, Waited};
pub use tally::{MOST_RANKS, Tally};
pub(crate) use votes::Vote;
pub use votes::Votes;
pub use words::{AckWords, MemoryRange, Stream};

/// Names one life of one place in the table of operations.
///
/// Ranks that have done the same have given the same names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OperationId {
    /// The place in the table.
    pub index: u32,
    /// How often the place was used before. A late report of a dead operation is known by it.
    pub generation: u32,
}

impl std::fmt::Display for OperationId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.index, self.generation)
    }
}

/// What one rank says of its own copies of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fact {
    /// Every copy was submitted, and has landed.
    Landed,
    /// A copy has failed, or will not come. Others may still be under way.
    Failed,
    /// No copy is under way any more, however they ended; none will be submitted.
    Ended,
    /// A copy is under way that will not be known to end.
    Stuck,
}

/// A fact and the operation that it is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Report {
    /// The operation.
    pub operation: OperationId,
    /// What is said of it.
    pub fact: Fact,
}

/// What a rank's cache has come to at the end of a step. Ranks that have done the same have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stamp {
    /// The step.
    pub step: u64,
    /// Of the cache: see [`CacheManager::stamp`](crate::CacheManager::stamp).
    pub digest: u64,
}

/// What holds for an operation on all ranks together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ruling {
    /// It has landed on every rank.
    Landed,
    /// It has failed on one at least.
    Failed,
    /// Nothing of it is under way anywhere.
    Drained,
    /// It has ended or is stuck on every rank, and is stuck on one at least.
    Quarantined,
}

/// A ruling and the operation that it is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Verdict {
    /// The operation.
    pub operation: OperationId,
    /// What holds for it.
    pub ruling: Ruling,
}
