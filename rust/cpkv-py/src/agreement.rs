//! Acknowledgements of copy streams, and the commit log of several ranks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cpkv_core::{LogError, LogGeometry, Patience, Votes, Waited};
use pyo3::prelude::*;

use crate::argument::{Argument, Whole};
use crate::errors;
use crate::log;
use crate::settings::MOST_SECONDS;
use crate::step::Unfinished;
use crate::waiting::{self, PIECE};

/// One sequence number for each copy stream of this rank.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct AckWords(cpkv_core::AckWords);

impl AckWords {
    /// What every stream has reached.
    pub(crate) fn load_all(&self) -> Vec<u64> {
        (0..self.0.streams()).map(|stream| self.0.load(cpkv_core::Stream(stream))).collect()
    }

    fn stream(&self, py: Python<'_>, stream: Whole<'_>) -> PyResult<cpkv_core::Stream> {
        let number = stream.stream(py, "stream")?;
        let last = self.0.streams() - 1;
        if number > last {
            return Err(errors::input(py, format!("stream is {number}, want 0 to {last}")));
        }
        Ok(cpkv_core::Stream(number))
    }
}

/// More streams than any rank has.
const MOST_STREAMS: i64 = 1_024;

#[pymethods]
impl AckWords {
    #[new]
    #[pyo3(signature = (streams), text_signature = "(streams)")]
    fn new(py: Python<'_>, streams: Whole<'_>) -> PyResult<Self> {
        Ok(Self(cpkv_core::AckWords::new(streams.within(py, "streams", 1, MOST_STREAMS)?)))
    }

    #[getter]
    fn streams(&self) -> u32 {
        self.0.streams()
    }

    fn address(&self, py: Python<'_>, stream: Whole<'_>) -> PyResult<usize> {
        Ok(self.0.address(self.stream(py, stream)?))
    }

    fn store(&self, py: Python<'_>, stream: Whole<'_>, sequence: Whole<'_>) -> PyResult<()> {
        let (stream, sequence) = (self.stream(py, stream)?, sequence.sequence(py, "sequence")?);
        self.0.store(stream, sequence);
        Ok(())
    }

    fn load(&self, py: Python<'_>, stream: Whole<'_>) -> PyResult<u64> {
        Ok(self.0.load(self.stream(py, stream)?))
    }

    fn __repr__(&self) -> String {
        format!("AckWords({:?})", self.load_all())
    }
}

/// How the ranks agree, and the tick that does it.
#[derive(Default)]
pub(crate) struct Agreement {
    pub(crate) way: Way,
    /// A tick is under way.
    pub(crate) is_ticking: bool,
    /// What a tick had done by the time it was left.
    pub(crate) unfinished: Option<Unfinished>,
}

/// By what the ranks agree.
#[derive(Default)]
pub(crate) enum Way {
    /// There is one.
    #[default]
    Alone,
    /// On one host, through a log.
    Log(Py<CommitLog>),
    /// On several hosts, by a reduction; with the votes of the last tick and what came of them.
    Reduction(Py<PyAny>, Option<(Votes, Py<PyAny>)>),
}

/// The log by which the ranks of one host agree.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct CommitLog {
    held: Mutex<HeldLog>,
    /// What was waited for too long. Filled without the interpreter, told afterwards.
    waited: Arc<Mutex<Vec<Waited>>>,
    rank: u32,
    fingerprint: u64,
}

/// A log, and whether it is some cache's.
pub(crate) struct HeldLog {
    /// `None` once closed.
    pub(crate) log: Option<cpkv_core::CommitLog>,
    is_claimed: bool,
}

impl CommitLog {
    fn new(mut log: cpkv_core::CommitLog, fingerprint: u64) -> Self {
        let waited = Arc::new(Mutex::new(Vec::new()));
        let hook = Arc::clone(&waited);
        log.on_wait(move |one| hook.lock().unwrap_or_else(PoisonError::into_inner).push(one));
        log.wait_in_pieces(PIECE);
        let rank = log.rank();
        Self { rank, held: Mutex::new(HeldLog { log: Some(log), is_claimed: false }), waited, fingerprint }
    }

    /// Locks the log, without the interpreter: a tick that waits has it for a while. To be done before a
    /// cache is locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HeldLog> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs what was waited for.
    pub(crate) fn tell(&self, py: Python<'_>) -> PyResult<()> {
        let waited = std::mem::take(&mut *self.waited.lock().unwrap_or_else(PoisonError::into_inner));
        for one in waited {
            let text = format!("rank {} waited more than {:?} for rank {}", self.rank, one.waited, one.rank);
            log::warn(py, &text)?;
        }
        Ok(())
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Takes the log for one cache.
    pub(crate) fn claim(&self, py: Python<'_>) -> PyResult<()> {
        let (is_closed, was_claimed) = py.detach(|| {
            let mut held = self.lock();
            let (is_closed, was_claimed) = (held.log.is_none(), held.is_claimed);
            held.is_claimed |= !is_closed;
            (is_closed, was_claimed)
        });
        if is_closed {
            return Err(waiting::closed(py));
        }
        if was_claimed { Err(errors::log(py, "the log is another cache's already".to_owned())) } else { Ok(()) }
    }

    /// Gives the log back, which the cache could not take.
    pub(crate) fn give_back(&self, py: Python<'_>) {
        py.detach(|| self.lock().is_claimed = false);
    }
}

fn geometry(py: Python<'_>, ranks: Whole<'_>, fingerprint: u64) -> PyResult<LogGeometry> {
    Ok(LogGeometry { ranks: ranks.within(py, "ranks", 1, i64::from(cpkv_core::MOST_RANKS))?, fingerprint })
}

/// Where a log is unless another place is given.
const SHARED_MEMORY: &str = "/dev/shm";

fn seconds(py: Python<'_>, name: &str, given: Argument<'_, f64>) -> PyResult<Duration> {
    let wanted = format!("0 to {MOST_SECONDS} seconds");
    let seconds = given.read(py, name, &wanted)?;
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= MOST_SECONDS);
    duration.ok_or_else(|| errors::input(py, format!("{name} is {seconds:?}, want {wanted}")))
}

#[pymethods]
impl CommitLog {
    #[staticmethod]
    #[pyo3(
        signature = (name, nonce, *, ranks, fingerprint, directory = Argument::Read(PathBuf::from(SHARED_MEMORY))),
        text_signature = "(name, nonce, *, ranks, fingerprint, directory='/dev/shm')",
    )]
    fn create(
        py: Python<'_>,
        name: Argument<'_, &str>,
        nonce: Argument<'_, u64>,
        ranks: Whole<'_>,
        fingerprint: Argument<'_, u64>,
        directory: Argument<'_, PathBuf>,
    ) -> PyResult<Self> {
        let (name, nonce) = (name.read(py, "name", "a string")?, nonce.number(py, "nonce")?);
        let fingerprint = fingerprint.number(py, "fingerprint")?;
        let geometry = geometry(py, ranks, fingerprint)?;
        let directory = directory.read(py, "directory", "a path")?;
        let log = cpkv_core::CommitLog::create(&directory, name, nonce, geometry);
        log.map(|log| Self::new(log, fingerprint)).map_err(|error| errors::from_core(py, &error.into()))
    }

    #[staticmethod]
    #[pyo3(
        signature = (
            name, nonce, rank, *, ranks, fingerprint, timeout = Argument::Read(300.0), directory = Argument::Read(PathBuf::from(SHARED_MEMORY))
        ),
        text_signature = "(name, nonce, rank, *, ranks, fingerprint, timeout=300.0, directory='/dev/shm')",
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn join(
        py: Python<'_>,
        name: Argument<'_, &str>,
        nonce: Argument<'_, u64>,
        rank: Whole<'_>,
        ranks: Whole<'_>,
        fingerprint: Argument<'_, u64>,
        timeout: Argument<'_, f64>,
        directory: Argument<'_, PathBuf>,
    ) -> PyResult<Self> {
        let (name, nonce) = (name.read(py, "name", "a string")?, nonce.number(py, "nonce")?);
        let fingerprint = fingerprint.number(py, "fingerprint")?;
        let geometry = geometry(py, ranks, fingerprint)?;
        let directory = directory.read(py, "directory", "a path")?;
        let timeout = seconds(py, "timeout", timeout)?;
        let rank = rank.count(py, "rank")?;
        let start = Instant::now();
        let joined = loop {
            let left = timeout.saturating_sub(start.elapsed());
            match py.detach(|| cpkv_core::CommitLog::join(&directory, name, nonce, rank, geometry, left.min(PIECE))) {
                Err(LogError::NotReady { path, .. }) if left <= PIECE => {
                    break Err(LogError::NotReady { path, waited: start.elapsed() });
                }
                Err(LogError::NotReady { .. }) => py.check_signals()?,
                joined => break joined,
            }
        };
        joined.map(|log| Self::new(log, fingerprint)).map_err(|error| errors::from_core(py, &error.into()))
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn entries(&self, py: Python<'_>) -> PyResult<u32> {
        let entries = py.detach(|| self.lock().log.as_ref().map(cpkv_core::CommitLog::entries));
        entries.ok_or_else(|| waiting::closed(py))
    }

    #[pyo3(signature = (timeout = Argument::Read(300.0)), text_signature = "($self, timeout=300.0)")]
    fn wait_for_all(&self, py: Python<'_>, timeout: Argument<'_, f64>) -> PyResult<()> {
        let timeout = seconds(py, "timeout", timeout)?;
        waiting::wait(py, self, |log| Ok(log.wait_for_all(timeout)?))
    }

    fn remove_name(&self, py: Python<'_>) -> PyResult<()> {
        let removed = py.detach(|| self.lock().log.as_ref().map(cpkv_core::CommitLog::remove_name));
        removed.ok_or_else(|| waiting::closed(py))
    }

    #[pyo3(
        signature = (*, warning = Argument::Read(5.0), deadline = Argument::Read(300.0)),
        text_signature = "($self, *, warning=5.0, deadline=300.0)",
    )]
    fn set_patience(&self, py: Python<'_>, warning: Argument<'_, f64>, deadline: Argument<'_, f64>) -> PyResult<()> {
        let warning = seconds(py, "warning", warning)?;
        let deadline = seconds(py, "deadline", deadline)?;
        let set = py.detach(|| self.lock().log.as_mut().map(|log| log.set_patience(Patience { warning, deadline })));
        set.ok_or_else(|| waiting::closed(py))
    }

    fn close(&self, py: Python<'_>) {
        // A tick may have the log in its hands, and waits with it in pieces.
        py.detach(|| self.lock().log.take());
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let log = slf.get();
        let is_closed = slf.py().detach(|| log.lock().log.is_none());
        if is_closed { Err(waiting::closed(slf.py())) } else { Ok(slf) }
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}
