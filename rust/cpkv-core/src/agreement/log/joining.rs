//! How a log begins: rank 0 makes it, the others join.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::protocol::Presence;
use super::super::{MOST_RANKS, Stamp, Tally};
use super::exchange::Zero;
use super::files::Files;
use super::layout::{self, FIELDS, Layout, Sizes};
use super::locks::{Locks, OwnLock};
use super::mapping::Mapping;
use super::memory::{self, Memory};
use super::waiting::{self, Progress, Watch};
use super::{CommitLog, LogError, LogGeometry};

impl CommitLog {
    /// Makes the log, as rank 0. `nonce` is drawn at random and made known to all ranks.
    ///
    /// # Errors
    /// [`LogError::Name`], [`LogError::Ranks`], [`LogError::Exists`], [`LogError::NoRoom`],
    /// [`LogError::System`].
    pub fn create(directory: &Path, name: &str, nonce: u64, geometry: LogGeometry) -> Result<Self, LogError> {
        Self::create_sized(directory, name, nonce, geometry, Sizes::default())
    }

    pub(super) fn create_sized(
        directory: &Path,
        name: &str,
        nonce: u64,
        geometry: LogGeometry,
        sizes: Sizes,
    ) -> Result<Self, LogError> {
        let layout = Layout::new(0, geometry, sizes)?;
        let files = Arc::new(Files::new(directory, name, nonce)?);
        let lock = OwnLock::new(&files, 0)?;
        let file = files.log();
        let open = files.create(&file)?;
        let mapped = files.reserve(&file, &open, layout.bytes());
        let mapped = mapped.and_then(|()| files.map(&file, &open, layout.bytes()));
        // Nobody has joined: a file that is not ready is nobody's.
        let mapping = mapped.inspect_err(|_| files.remove(&file))?;
        let log = Self::new(0, Memory::new(mapping, layout), files, lock);
        log.memory.announce(0, Presence::Joined);
        log.memory.publish(nonce);
        Ok(log)
    }

    /// Joins the log that rank 0 makes, as another rank, and waits for it as long as `timeout`.
    ///
    /// # Errors
    /// As [`CommitLog::create`]; [`LogError::NotReady`], [`LogError::NotRegular`],
    /// [`LogError::Mismatch`], and [`LogError::Dead`] if the file is that of a dead server.
    pub fn join(
        directory: &Path,
        name: &str,
        nonce: u64,
        rank: u32,
        geometry: LogGeometry,
        timeout: Duration,
    ) -> Result<Self, LogError> {
        Self::join_sized(directory, name, nonce, rank, geometry, timeout, Sizes::default())
    }

    pub(super) fn join_sized(
        directory: &Path,
        name: &str,
        nonce: u64,
        rank: u32,
        geometry: LogGeometry,
        timeout: Duration,
        sizes: Sizes,
    ) -> Result<Self, LogError> {
        let layout = Layout::new(rank, geometry, sizes)?;
        if rank == 0 {
            return Err(LogError::Ranks { rank, ranks: geometry.ranks, most: MOST_RANKS });
        }
        let files = Arc::new(Files::new(directory, name, nonce)?);
        let start = Instant::now();
        let mapping = loop {
            if let Some(mapping) = ready(&files, &layout, nonce)? {
                break mapping;
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Err(LogError::NotReady { path: files.path(&files.log()), waited });
            }
            waiting::nap();
        };
        let lock = OwnLock::new(&files, rank)?;
        let mut log = Self::new(rank, Memory::new(mapping, layout), files, lock);
        log.watch.locks.look(&log.files, &log.memory, 0)?;
        log.memory.announce(rank, Presence::Joined);
        Ok(log)
    }

    fn new(rank: u32, memory: Memory, files: Arc<Files>, lock: OwnLock) -> Self {
        let ranks = memory.ranks().end;
        Self {
            rank,
            queue: VecDeque::new(),
            sent: 0,
            read: 0,
            stamp: Stamp::default(),
            words: Vec::new(),
            zero: (rank == 0).then(|| Zero::new(Tally::new(ranks), ranks, memory.places())),
            watch: Watch::new(Locks::new(rank, ranks)),
            memory,
            files,
            _lock: lock,
        }
    }

    /// Waits until every rank has joined. Then the file needs no name any more and rank 0 takes it away,
    /// so that a server that dies leaves no memory behind.
    ///
    /// # Errors
    /// [`LogError::NotJoined`], [`LogError::Dead`], [`LogError::Paused`].
    pub fn wait_for_all(&mut self, timeout: Duration) -> Result<(), LogError> {
        let memory = &self.memory;
        let ask = || {
            for rank in memory.ranks() {
                if memory.presence(rank)? == Presence::Absent {
                    return Ok(Progress::Awaiting(rank));
                }
            }
            Ok(Progress::Done(()))
        };
        match self.watch.wait(&self.files, memory, timeout, ask) {
            Err(LogError::Silent { waited, .. }) => {
                let is_absent = |&rank: &u32| matches!(memory.presence(rank), Ok(Presence::Absent));
                Err(LogError::NotJoined { ranks: memory.ranks().filter(is_absent).collect(), waited })
            }
            joined => {
                joined?;
                // Opens the locks of all, which need no names any more once every rank has done so.
                self.watch.locks.look(&self.files, memory, self.rank)?;
                if self.rank == 0 {
                    self.files.remove(&self.files.log());
                }
                Ok(())
            }
        }
    }

    /// Takes the name of this rank's lock away, so that a server that dies leaves nothing behind. Only once
    /// [`CommitLog::wait_for_all`] has returned on every rank: who has not opened the lock by then never
    /// sees this rank die.
    pub fn remove_name(&self) {
        self.files.remove(&self.files.lock(self.rank));
    }
}

/// The log, if it is ready; an error if it is not the wanted one.
fn ready(files: &Files, layout: &Layout, nonce: u64) -> Result<Option<Mapping>, LogError> {
    let file = files.log();
    let Some(opened) = files.open(&file)? else { return Ok(None) };
    // A file has all of its size or none.
    if opened.bytes == 0 {
        return Ok(None);
    }
    if opened.bytes < layout::LEAST_BYTES {
        files.matches(&file, "size in bytes", opened.bytes, layout.bytes())?;
    }
    let mapping = files.map(&file, &opened.open, opened.bytes)?;
    let Some(header) = memory::header(&mapping) else { return Ok(None) };
    for ((field, seen), wanted) in FIELDS.into_iter().zip(header).zip(layout.header(nonce)) {
        files.matches(&file, field, seen, wanted)?;
    }
    files.matches(&file, "size in bytes", opened.bytes, layout.bytes())?;
    Ok(Some(mapping))
}
