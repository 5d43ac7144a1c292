//! Everything that a call can refuse, named for what the caller can do about it.
//!
//! A refused call leaves the cache as it was. Running out of room is not in here: it is a result.

use crate::agreement::{LogError, OperationId};

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
    /// The page was given back while an unfinished operation has it.
    #[error(
        "page id {page} at index {index} was given back, and an unfinished operation still has it: \
         it comes free with a later tick"
    )]
    PageHeld {
        /// The id.
        page: u32,
        /// Where in the argument it stands.
        index: usize,
    },
    /// Slots were reserved for the page by a transaction that the insertion was not given.
    #[error("page id {page} at index {index} is to be inserted with its transaction {operation}")]
    TransactionLeftOut {
        /// The id.
        page: u32,
        /// Where in the argument it stands.
        index: usize,
        /// The transaction.
        operation: OperationId,
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
    /// Pages of the lease were to be restored, and the restore has failed.
    #[error("a restore of pages of the lease has failed: give the request up, or release the lease and match again")]
    RestoreFailed,
    /// The call is for a pool that cpkv owns, and the engine owns this one.
    #[error("{call} is for pages that cpkv allocates; the engine allocates those of this cache")]
    ExternalPool {
        /// The call.
        call: &'static str,
    },
    /// The call is for copies that an engine makes, and those of this cache are assumed.
    #[error("{call} is for copies that are tracked; those of this cache are assumed")]
    AssumedCopies {
        /// The call.
        call: &'static str,
    },
    /// No operation is open under that name.
    #[error("operation {operation} is not open")]
    NoSuchOperation {
        /// The name.
        operation: OperationId,
    },
    /// The transaction was bound by an earlier insertion.
    #[error("operation {operation} was bound by an earlier insertion")]
    AlreadyBound {
        /// Its name.
        operation: OperationId,
    },
    /// It was said before that everything of the operation was submitted.
    #[error("operation {operation} takes no more copies: it was said that all were submitted")]
    Closed {
        /// Its name.
        operation: OperationId,
    },
    /// The operation is a late backup or a restore.
    #[error("operation {operation} was not reserved before a forward: say that all of it was submitted")]
    NoForward {
        /// Its name.
        operation: OperationId,
    },
    /// Layers are submitted in their order.
    #[error("layer {layer} of operation {operation} comes after layer {last}, want a later one")]
    LayerOrder {
        /// The layer given.
        layer: u32,
        /// The last one before.
        last: u32,
        /// The operation.
        operation: OperationId,
    },
    /// A sequence number has to be 1 or more.
    #[error("sequence is 0 for a copy of operation {operation}, want 1 or more")]
    NoSequence {
        /// Its name.
        operation: OperationId,
    },
    /// A stream that copies were submitted on has no word, so that nothing would ever be heard of them.
    #[error(
        "acks has {words} words, and a copy of operation {operation} was submitted on stream {stream}: want {} or more",
        .stream + 1
    )]
    TooFewAcks {
        /// The operation.
        operation: OperationId,
        /// The stream, the last one that was submitted on.
        stream: usize,
        /// How many words were given.
        words: usize,
    },
    /// The pages inserted are not those that slots were reserved for.
    #[error("page id {page} at index {index} is not that of transaction {operation}, which copies page {wanted}")]
    OtherPage {
        /// The id.
        page: u32,
        /// Where in the argument it stands.
        index: usize,
        /// The transaction.
        operation: OperationId,
        /// The page that was reserved for.
        wanted: u32,
    },
    /// An earlier tick could not agree with the other ranks.
    #[error("the ranks have not agreed in an earlier tick: {reason}")]
    AgreementLost {
        /// What happened then.
        reason: String,
    },
    /// A tick was left out, or came twice.
    #[error("tick {step} is out of order, want {wanted}")]
    WrongStep {
        /// The number given.
        step: u64,
        /// The number wanted.
        wanted: u64,
    },
    /// The first tick has a number that too few others could follow on.
    #[error("the first tick is {step}, want 0 to {most}")]
    FirstStep {
        /// The number given.
        step: u64,
        /// The last one that may be first.
        most: u64,
    },
    /// The ranks could not agree: one of them is dead, silent or has left, or the log is not right.
    #[error(transparent)]
    Log(#[from] LogError),
    /// What a reduction has returned cannot be the minimum over all ranks.
    #[error("the reduced votes are not the minimum of the {numbers} numbers of each rank")]
    NotReduced {
        /// How many numbers there are.
        numbers: usize,
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
