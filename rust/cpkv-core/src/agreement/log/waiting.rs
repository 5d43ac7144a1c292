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

/// A wait so far. Its pauses do not count.
#[derive(Debug)]
struct Waiting {
    waited: Duration,
    /// When ranks are looked for next.
    next_look: Duration,
    nap: Duration,
    is_warned: bool,
}

/// What a waiting rank looks at and whom it tells.
pub(super) struct Watch {
    pub(super) locks: Locks,
    pub(super) patience: Patience,
    pub(super) hook: Option<Box<dyn FnMut(Waited) + Send>>,
    /// How long a call waits before it comes back to be made again.
    pub(super) piece: Option<Duration>,
    /// The wait that the last call came back from.
    paused: Option<Waiting>,
}

impl Watch {
    pub(super) fn new(locks: Locks) -> Self {
        Self { locks, patience: Patience::default(), hook: None, piece: None, paused: None }
    }

    /// The next wait is another one.
    pub(super) fn forget_pause(&mut self) {
        self.paused = None;
    }

    /// Asks until the answer is no longer that a rank is awaited, or until `deadline`; goes on with the
    /// wait that was paused last, if one was.
    pub(super) fn wait<T>(
        &mut self,
        files: &Files,
        memory: &Memory,
        deadline: Duration,
        mut ask: impl FnMut() -> Result<Progress<T>, LogError>,
    ) -> Result<T, LogError> {
        let mut waiting = if let Some(paused) = self.paused.take() {
            paused
        } else {
            for _ in 0..SPINS {
                if let Progress::Done(done) = ask()? {
                    return Ok(done);
                }
                std::hint::spin_loop();
            }
            Waiting { waited: Duration::ZERO, next_look: YIELDING, nap: SHORTEST_NAP, is_warned: false }
        };
        let (before, start) = (waiting.waited, Instant::now());
        loop {
            let rank = match ask()? {
                Progress::Done(done) => return Ok(done),
                Progress::Awaiting(rank) => rank,
            };
            let piece = start.elapsed();
            let waited = before + piece;
            let end = if waited >= waiting.next_look {
                waiting.next_look = waited + LOOK_EVERY;
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
            if waited >= self.patience.warning && !waiting.is_warned {
                waiting.is_warned = true;
                if let Some(hook) = &mut self.hook {
                    hook(Waited { rank, waited });
                }
            }
            if self.piece.is_some_and(|longest| piece >= longest) {
                waiting.waited = waited;
                self.paused = Some(waiting);
                return Err(LogError::Paused { rank, waited });
            }
            if waited < YIELDING {
                thread::yield_now();
            } else {
                thread::sleep(waiting.nap);
                waiting.nap = (waiting.nap * 2).min(LONGEST_NAP);
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { locks, patience, hook: _, piece, paused } = self;
        let mut watch = formatter.debug_struct("Watch");
        watch.field("locks", locks).field("patience", patience).field("piece", piece).field("paused", paused);
        watch.finish_non_exhaustive()
    }
}

/// Sleeps until it is worth while to look for a file again.
pub(super) fn nap() {
    thread::sleep(LONGEST_NAP);
}
