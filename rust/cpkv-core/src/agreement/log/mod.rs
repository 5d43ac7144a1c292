//! The commit log: how the rank processes of one host exchange reports and verdicts.
//!
//! Owns a file in shared memory and one lock file for each rank. Reports go from each rank to rank
//! 0 through a ring; verdicts go from rank 0 to all ranks, itself included, through a ring of
//! numbered entries. Promises: what was reported arrives once and in order, every rank reads the
//! same entries in the same order, nothing is lost when a ring is full, nobody waits for a rank that
//! is gone, and a rank whose cache is not like that of rank 0 hears of it with the next entry. Nothing
//! here decides about operations; that is the [`Tally`](super::Tally)'s.
//!
//! Must not: print, keep a thread, or trust what it reads. Shared words are touched through
//! `protocol` alone; `mapping` is where they become words. There is no lock but the files', and
//! those are only tried, never waited for.
//!
//! ```text
//! rank r:  report ──► queue ──► ring of reports ──┐
//!                                                 ▼
//! rank 0:  report ──► queue ───────────────────► Tally ──► queue ──► ring of entries ──► read_entry
//! ```

mod error;
mod exchange;
mod files;
mod joining;
mod layout;
mod locks;
mod mapping;
mod memory;
mod packing;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Stamp;
use super::protocol::Presence;
use exchange::Zero;
use files::Files;
use locks::OwnLock;
use memory::Memory;
use waiting::Watch;

pub use error::LogError;
pub use waiting::{Patience, Waited};

/// What all ranks of a log have to agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogGeometry {
    /// How many ranks there are.
    pub ranks: u32,
    /// A digest of whatever else the ranks must have alike.
    pub fingerprint: u64,
}

/// One rank's end of the log. Dropping it says that the rank has left.
///
/// ```
/// use std::time::Duration;
/// use cpkv_core::{CommitLog, Fact, LogGeometry, OperationId, Report, Ruling};
///
/// let directory = std::env::temp_dir();
/// let geometry = LogGeometry { ranks: 2, fingerprint: 7 };
/// let nonce = u64::from(std::process::id()); // ranks would exchange a random one
/// let mut zero = CommitLog::create(&directory, "example", nonce, geometry)?;
/// let mut one = CommitLog::join(&directory, "example", nonce, 1, geometry, Duration::from_secs(9))?;
/// zero.wait_for_all(Duration::from_secs(9))?;
///
/// let operation = OperationId { index: 0, generation: 0 };
/// zero.report([Report { operation, fact: Fact::Landed }])?;
/// one.report([Report { operation, fact: Fact::Landed }])?;
/// zero.write_entry()?;
/// for log in [&mut zero, &mut one] {
///     let mut verdicts = Vec::new();
///     log.read_entry(&mut verdicts)?;
///     assert_eq!(verdicts[0].ruling, Ruling::Landed);
/// }
/// # Ok::<(), cpkv_core::LogError>(())
/// ```
#[derive(Debug)]
pub struct CommitLog {
    rank: u32,
    memory: Memory,
    /// Reports that are not in a ring yet, packed.
    queue: VecDeque<u64>,
    /// Reports put into the ring so far.
    sent: u64,
    /// Entries read so far.
    read: u64,
    /// What this rank's cache had come to when the entry to be read was due.
    stamp: Stamp,
    /// Words on their way; empty between calls.
    words: Vec<u64>,
    /// What only rank 0 has.
    zero: Option<Zero>,
    watch: Watch,
    files: Arc<Files>,
    /// Given up last.
    _lock: OwnLock,
}

impl CommitLog {
    /// Where the files of a log usually are.
    pub const USUAL_DIRECTORY: &str = "/dev/shm";

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Entries that fit: rank 0 is ahead of the slowest rank by so many steps at most.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.memory.places()
    }

    /// How long other ranks are waited for from now on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.watch.patience = patience;
    }

    /// Lets a call that waits come back with [`LogError::Paused`] after `piece`, so that its caller can
    /// look at something else. Nothing is lost: the same call goes on where it was.
    pub fn wait_in_pieces(&mut self, piece: Duration) {
        self.watch.piece = Some(piece);
    }

    /// Gives up a wait that has paused; the next one begins anew.
    pub fn forget_pause(&mut self) {
        self.watch.forget_pause();
    }

    /// What is called, from inside the call that waits, when a rank is waited for longer than
    /// [`Patience::warning`]: once in each such call.
    pub fn on_wait(&mut self, hook: impl FnMut(Waited) + Send + 'static) {
        self.watch.hook = Some(Box::new(hook));
    }
}

impl Drop for CommitLog {
    fn drop(&mut self) {
        // What cannot be sent now is about operations that this rank will not see the end of.
        let _ = self.flush();
        self.memory.announce(self.rank, Presence::Left);
        if self.rank == 0 {
            self.files.remove(&self.files.log());
            self.memory.ranks().for_each(|rank| self.files.remove(&self.files.lock(rank)));
        }
    }
}
