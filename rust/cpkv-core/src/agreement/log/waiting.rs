//! Waiting for another rank: how eagerly, for how long, and what ends it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::LogError;
use super::files::Files;
use super::locks::Locks;
use super::memory::Memory;

/// Looks without giving up the processor; the usual wait ends here.
const SPINS: u32 = 200;
/// How long other threads are let in between two looks, before this one begins to sleep.
const YIELDING: Duration = Duration::from_millis(1);
const SHORTEST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How often it is looked whether ranks are still there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a rank is waited for. Only time inside a call of the log counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// When the hook of [`CommitLog::on_wait`](super::CommitLog::on_wait) is called, once in a wait.
    pub warning: Duration,
    /// When the wait ends with [`LogError::Silent`].
    pub deadline: Duration,
}

impl Default for Patience {
    /// 5 s, and 300 s: compiling and capturing graphs take minutes.
    fn default() -> Self {
        Self { warning: Duration::from_secs(5), deadline: Duration::from_secs(300) }
    }
}

/// A rank that is waited for unusually long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    /// The rank.
    pub rank: u32,
    /// How long the call has waited so far.
    pub waited: Duration,
}

/// What a wait is for.
pub(super) enum Progress<T> {
    /// It has come.
    Done(T),
    /// This rank has to do something first.
    Awaiting(u32),
}

/// What a waiting rank looks at and whom it tells.
pub(super) struct Watch {
    pub(super) locks: Locks,
    pub(super) patience: Patience,
    pub(super) hook: Option<Box<dyn FnMut(Waited) + Send>>,
}

impl Watch {
    pub(super) fn new(locks: Locks) -> Self {
        Self { locks, patience: Patience::default(), hook: None }
    }

    /// Asks until the answer is no longer that a rank is awaited, or until `deadline`.
    pub(super) fn wait<T>(
        &mut self,
        files: &Files,
        memory: &Memory,
        deadline: Duration,
        mut ask: impl FnMut() -> Result<Progress<T>, LogError>,
    ) -> Result<T, LogError> {
        for _ in 0..SPINS {
            if let Progress::Done(done) = ask()? {
                return Ok(done);
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        let (mut nap, mut next_look, mut is_warned) = (SHORTEST_NAP, YIELDING, false);
        loop {
            let rank = match ask()? {
                Progress::Done(done) => return Ok(done),
                Progress::Awaiting(rank) => rank,
            };
            let waited = start.elapsed();
            let end = if waited >= next_look {
                next_look = waited + LOOK_EVERY;
                self.locks.look(files, memory, rank).err()
            } else {
                None
            };
            let end = end.or_else(|| (waited >= deadline).then_some(LogError::Silent { rank, waited }));
            if let Some(end) = end {
                // What is waited for may be among the last words (last-words-before-state).
                return match ask()? {
                    Progress::Done(done) => Ok(done),
                    Progress::Awaiting(_) => Err(end),
                };
            }
            if waited >= self.patience.warning && !is_warned {
                is_warned = true;
                if let Some(hook) = &mut self.hook {
                    hook(Waited { rank, waited });
                }
            }
            if waited < YIELDING {
                thread::yield_now();
            } else {
                thread::sleep(nap);
                nap = (nap * 2).min(LONGEST_NAP);
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { locks, patience, hook: _ } = self;
        formatter.debug_struct("Watch").field("locks", locks).field("patience", patience).finish_non_exhaustive()
    }
}

/// Sleeps until it is worth while to look for a file again.
pub(super) fn nap() {
    thread::sleep(LONGEST_NAP);
}
