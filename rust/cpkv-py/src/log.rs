//! What an operator has to hear of, through `logging`.

use pyo3::prelude::*;

/// Logs a warning of the logger `cpkv`. Nothing may be locked: handlers are anybody's code.
pub(crate) fn warn(py: Python<'_>, text: &str) {
    let logger = py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("cpkv",)));
    if let Err(error) = logger.and_then(|logger| logger.call_method1("warning", ("%s", text))) {
        // What the tick has to say must not be lost with it.
        error.write_unraisable(py, None);
    }
}
