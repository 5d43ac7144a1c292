//! Waiting for another rank, in pieces.
//!
//! In a piece the interpreter is let go and the log is locked. Between two of them nothing is locked:
//! warnings are told, signal handlers run, and what one of them raises ends the wait.

use std::time::Duration;

use cpkv_core::{Error, LogError};
use pyo3::prelude::*;

use crate::agreement::CommitLog;
use crate::errors;

/// How long signal handlers have to wait for their turn at most.
pub(crate) const PIECE: Duration = Duration::from_millis(50);

/// What ends a call of the log.
pub(crate) enum Stop {
    /// The piece. The call is to be made again.
    Paused,
    /// The log was closed.
    Closed,
    /// A refusal, or a rank that is no longer waited for.
    Refused(Error),
    /// The core has panicked.
    Broken(String),
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Self {
        if matches!(error, LogError::Paused { .. }) { Self::Paused } else { Self::Refused(error.into()) }
    }
}

/// Makes a call of `log` again for as long as it pauses.
pub(crate) fn wait(
    py: Python<'_>,
    log: &CommitLog,
    mut call: impl FnMut(&mut cpkv_core::CommitLog) -> Result<(), Stop> + Send,
) -> PyResult<()> {
    loop {
        let called = py.detach(|| log.lock().log.as_mut().map_or(Err(Stop::Closed), &mut call));
        // After the last piece too: what is raised behind the call would take the result with it.
        let told = log.tell(py).and_then(|()| py.check_signals());
        let error = match called {
            Ok(()) => return told,
            Err(Stop::Paused) => None,
            Err(Stop::Closed) => Some(closed(py)),
            Err(Stop::Refused(error)) => Some(errors::from_core(py, &error)),
            Err(Stop::Broken(reason)) => Some(errors::integrity(py, reason)),
        };
        if let Some(error) = told.err().or(error) {
            py.detach(|| log.lock().log.as_mut().map(cpkv_core::CommitLog::forget_pause));
            return Err(error);
        }
    }
}

/// The error for a log that is used after it was closed.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    errors::log(py, "the commit log was closed".to_owned())
}
