//! The lock that each rank holds while it lives, and the look at those of the others.
//!
//! `flock` locks belong to an open file, not to a process id: the kernel gives the lock away when
//! the process is gone, in whatever container it ran. Two limits: a child that was forked and does
//! not `exec` keeps its parent's lock until it ends itself, and file systems without `flock` cannot
//! hold a log.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::protocol::Presence;
use super::LogError;
use super::files::Files;
use super::memory::Memory;

/// The lock file of this rank, held. Dropping it removes the file and gives up the lock.
#[derive(Debug)]
pub(super) struct OwnLock {
    files: Arc<Files>,
    file: String,
    /// Closed after the file is removed.
    open: OwnedFd,
}

impl OwnLock {
    /// Makes the lock file of `rank` and locks it, before anybody can look for it.
    pub(super) fn new(files: &Arc<Files>, rank: u32) -> Result<Self, LogError> {
        let file = files.lock(rank);
        let open = files.create(&file)?;
        let lock = Self { files: files.clone(), file, open };
        match flock(&lock.open, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(error) => Err(files.system("lock", &lock.file, error)),
        }
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        self.files.remove(&self.file);
    }
}

/// The lock files of the other ranks.
#[derive(Debug)]
pub(super) struct Locks {
    rank: u32,
    opened: Vec<Option<OwnedFd>>,
}

impl Locks {
    pub(super) fn new(rank: u32, ranks: u32) -> Self {
        Self { rank, opened: (0..ranks).map(|_| None).collect() }
    }

    /// Looks for ranks that have died, and then whether `awaited` has left.
    pub(super) fn look(&mut self, files: &Files, memory: &Memory, awaited: u32) -> Result<(), LogError> {
        // Asked first and told last: a rank that leaves because another has died has said so before
        // (last-words-before-state), and the cause is what everybody has to hear.
        let has_left = memory.presence(awaited)? == Presence::Left;
        let own = self.rank;
        for rank in memory.ranks().filter(|&rank| rank != own) {
            match memory.presence(rank)? {
                Presence::Absent | Presence::Left => {}
                Presence::Dead => return Err(LogError::Dead { rank }),
                Presence::Joined => {
                    // A rank says that it leaves before it gives up its lock.
                    if self.is_free(files, rank)? && memory.presence(rank)? != Presence::Left {
                        memory.announce(rank, Presence::Dead);
                        return Err(LogError::Dead { rank });
                    }
                }
            }
        }
        if has_left { Err(LogError::Left { rank: awaited }) } else { Ok(()) }
    }

    /// Whether nobody holds the lock of a rank that has joined.
    pub(super) fn is_free(&mut self, files: &Files, rank: u32) -> Result<bool, LogError> {
        let file = files.lock(rank);
        let opened = &mut self.opened[rank as usize];
        if opened.is_none() {
            *opened = files.open(&file)?.map(|lock| lock.open);
        }
        // Without its file nothing is known of a rank; it has left, or will be silent.
        let Some(open) = opened else { return Ok(false) };
        // Shared, so that two ranks that look at once do not take each other for the owner.
        match flock(&*open, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(files.system("lock", &file, error)),
        }
        flock(&*open, FlockOperation::NonBlockingUnlock).map_err(|error| files.system("unlock", &file, error))?;
        Ok(true)
    }
}
