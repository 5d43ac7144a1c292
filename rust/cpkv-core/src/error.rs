//! Everything that a call can refuse, named for what the caller can do about it.
//!
//! A refused call leaves the cache as it was. Running out of room is not in here: it is a result.

/// A refused call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration contradicts itself; every conflict is listed.
    #[error("{}", .conflicts.join("; "))]
    Config {
        /// One line for each conflict: the value seen and the value wanted.
        conflicts: Vec<String>,
    },
    /// The number of page ids does not fit the tokens.
    #[error("got {given} page ids, want {wanted}: one for each page from {first} up to {end}")]
    PageCount {
        /// Page ids passed in.
        given: usize,
        /// Page ids wanted.
        wanted: u32,
        /// The page that the first id stands for.
        first: u32,
        /// The page behind the last one.
        end: u32,
    },
    /// A page id lies outside the pool.
    #[error("page id {page} at index {index} is out of range, want 0 to {last}")]
    PageOutOfRange {
        /// The id.
        page: i64,
        /// Where in the argument it stands.
        index: usize,
        /// The largest legal id.
        last: u32,
    },
    /// A page id is given twice in one call.
    #[error("page id {page} at index {index} is given twice in one call")]
    PageRepeated {
        /// The id.
        page: u32,
        /// Where in the argument it stands the second time.
        index: usize,
    },
    /// A page already belongs to the tree at another place.
    #[error("page id {page} at index {index} already holds a page of the cache")]
    PageInTree {
        /// The id.
        page: u32,
        /// Where in the argument it stands.
        index: usize,
    },
    /// A page of an owned pool is used without having been allocated.
    #[error("page id {page} at index {index} is free: allocate it first")]
    PageNotAllocated {
        /// The id.
        page: u32,
        /// Where in the argument it stands.
        index: usize,
    },
    /// A host page can only be loaded into a device page of the lane that holds it.
    #[error("page id {page} at index {index} is in lane {lane}, its host slot in lane {slot_lane}")]
    LaneMismatch {
        /// The id.
        page: u32,
        /// Where in the argument it stands.
        index: usize,
        /// The page's lane.
        lane: u32,
        /// The host slot's lane.
        slot_lane: u32,
    },
    /// There is no such lane.
    #[error("lane {lane} does not exist, want 0 to {last}")]
    NoSuchLane {
        /// The lane asked for.
        lane: i64,
        /// The last lane.
        last: u32,
    },
    /// The tokens are not those that the lease was taken for.
    #[error("the tokens differ from those of the lease: {reason}")]
    LeaseTokens {
        /// What differs.
        reason: String,
    },
    /// The call is for a pool that cpkv owns, and the engine owns this one.
    #[error("{call} is for pages that cpkv allocates; the engine allocates those of this cache")]
    ExternalPool {
        /// The call.
        call: &'static str,
    },
    /// `check_integrity` found the state inconsistent; this is a bug in cpkv.
    #[error("integrity: {}", .problems.join("; "))]
    Integrity {
        /// One line for each violated invariant.
        problems: Vec<String>,
    },
}

/// The result of a call that can be refused.
pub type Result<T> = std::result::Result<T, Error>;
