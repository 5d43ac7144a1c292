//! Everything that the commit log can refuse or find, named for what the caller can do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::super::OperationId;
use super::super::protocol::Impossible;

/// A refused call, a log that is not the wanted one, or a rank that can no longer be waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The name cannot be part of a file name.
    #[error("the name {name:?} of the log is not usable: want 1 to 100 letters, digits, '_', '-' or '.'")]
    Name {
        /// The name.
        name: String,
    },
    /// There is no such rank, it has another part to play, or there are too few or too many.
    #[error("rank {rank} of {ranks} cannot take part: want 1 to {most} ranks, of which 0 creates and the others join")]
    Ranks {
        /// The rank that was to take part.
        rank: u32,
        /// How many ranks were given.
        ranks: u32,
        /// The most there can be.
        most: u32,
    },
    /// A log or a lock of this name and nonce exists: another server has drawn the same nonce, or
    /// the same rank was started twice.
    #[error("{path} exists: is the rank started twice, or the nonce used before?")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot hold the log.
    #[error("no room for {bytes} bytes at {path}: make the file system larger, or name another directory")]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// What the log needs.
        bytes: u64,
    },
    /// The file is a link, a directory or the like.
    #[error("{path} is not a regular file and will not be opened")]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a log of this server.
    #[error("{path}: {field} is {seen:#x}, want {wanted:#x}")]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        field: &'static str,
        /// The value seen.
        seen: u64,
        /// The value wanted.
        wanted: u64,
    },
    /// Rank 0 has not finished the log in time.
    #[error("{path} is not ready after {waited:?}: has rank 0 started, with this name, nonce and directory?")]
    NotReady {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Ranks have not joined in time.
    #[error("ranks {ranks:?} have not joined after {waited:?}")]
    NotJoined {
        /// The ranks that are missing.
        ranks: Vec<u32>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A call of the operating system failed.
    #[error("{call} {path}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The index of an operation does not fit a report.
    #[error("operation {operation} does not fit the log: its index has to be below {below}")]
    Index {
        /// The operation.
        operation: OperationId,
        /// The first index that does not fit.
        below: u32,
    },
    /// Only rank 0 writes entries.
    #[error("rank {rank} does not write entries, rank 0 does")]
    NotRankZero {
        /// The rank that tried.
        rank: u32,
    },
    /// Rank 0 would wait for itself: it has to read its own entries first.
    #[error("rank 0 has not read the last {unread} entries it wrote, and no more fit: read before writing")]
    Unread {
        /// Entries written and not read by rank 0.
        unread: u64,
    },
    /// Rank 0 would wait for itself: it has not written the entry that it wants to read.
    #[error("rank 0 has read all of the {written} entries it wrote: write before reading")]
    Unwritten {
        /// Entries written.
        written: u64,
    },
    /// The shared memory holds what nobody of this server can have written.
    #[error("the log is corrupt: {word} is {seen:#x}, want {least:#x} to {most:#x}")]
    Corrupt {
        /// Which word.
        word: &'static str,
        /// Its value.
        seen: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
    /// The ranks agree by a reduction, and this rank has not taken part in one.
    #[error("the reduction was not started: {reason}")]
    Reduction {
        /// What was raised.
        reason: String,
    },
    /// What this rank has done is not what rank 0 has done.
    #[error(
        "rank {rank} has parted from rank 0: by step {step} its cache was given other calls or has done something else \
         (stamp {own:#018x}, want {of_zero:#018x})"
    )]
    Parted {
        /// This rank.
        rank: u32,
        /// The step at whose end they differ; in the one before that had an entry they did not.
        step: u64,
        /// The stamp of this rank.
        own: u64,
        /// That of rank 0.
        of_zero: u64,
    },
    /// A rank lives and does not come.
    #[error("rank {rank} is silent for {waited:?}")]
    Silent {
        /// The rank waited for.
        rank: u32,
        /// How long it was waited for in this call.
        waited: Duration,
    },
    /// The call waits in pieces and is to be made again. Nothing has changed.
    #[error("rank {rank} is still waited for after {waited:?}")]
    Paused {
        /// The rank waited for.
        rank: u32,
        /// How long it was waited for so far.
        waited: Duration,
    },
    /// The process of a rank is gone.
    #[error("the process of rank {rank} has died")]
    Dead {
        /// The rank.
        rank: u32,
    },
    /// The rank waited for has left.
    #[error("rank {rank} has left")]
    Left {
        /// The rank.
        rank: u32,
    },
}

impl From<Impossible> for LogError {
    fn from(impossible: Impossible) -> Self {
        let Impossible { word, seen, least, most } = impossible;
        Self::Corrupt { word, seen, least, most }
    }
}
