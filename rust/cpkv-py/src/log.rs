//! What an operator has to hear of, through `logging`.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// Logs a warning of the logger `cpkv`. Nothing may be locked: handlers are anybody's code.
///
/// What a handler does wrong does not concern the caller. What a signal handler raises meanwhile does,
/// and is no `Exception`: it comes back as an error.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let logger = py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("cpkv",)));
    match logger.and_then(|logger| logger.call_method1("warning", ("%s", text))) {
        Err(error) if error.is_instance_of::<PyException>(py) => error.write_unraisable(py, None),
        Err(interrupt) => return Err(interrupt),
        Ok(_) => {}
    }
    Ok(())
}
