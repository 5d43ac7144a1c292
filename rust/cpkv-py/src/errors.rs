//! The exception tree, and what each refusal of the core becomes.

use cpkv_core::{Error, LogError};
use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyException, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// The exceptions, base first.
struct Exceptions {
    base: Py<PyType>,
    config: Py<PyType>,
    input: Py<PyType>,
    input_type: Py<PyType>,
    page: Py<PyType>,
    lease: Py<PyType>,
    usage: Py<PyType>,
    transaction: Py<PyType>,
    restore: Py<PyType>,
    log: Py<PyType>,
    rank: Py<PyType>,
    integrity: Py<PyType>,
}

static EXCEPTIONS: PyOnceLock<Exceptions> = PyOnceLock::new();

fn exceptions(py: Python<'_>) -> PyResult<&Exceptions> {
    EXCEPTIONS.get_or_try_init(py, || {
        let make = |name: &str, bases: &[&Bound<'_, PyType>], doc: &str| -> PyResult<Py<PyType>> {
            let dict = PyDict::new(py);
            dict.set_item("__module__", "cpkv")?;
            dict.set_item("__doc__", doc)?;
            let class = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, dict))?;
            Ok(class.cast_into::<PyType>()?.unbind())
        };
        let value_error = py.get_type::<PyValueError>();
        let runtime_error = py.get_type::<PyRuntimeError>();
        let base = make("CpkvError", &[&py.get_type::<PyException>()], "Base of everything that cpkv raises.")?;
        let base_type = base.bind(py);
        let log = make("LogError", &[base_type, &runtime_error], "The commit log cannot be made, joined or used.")?;
        let input = make("InputError", &[base_type, &value_error], "An argument has a value that cannot be.")?;
        Ok(Exceptions {
            config: make("ConfigError", &[base_type, &value_error], "The settings contradict each other.")?,
            input_type: make(
                "InputTypeError",
                &[base_type, &py.get_type::<PyTypeError>()],
                "An argument has the wrong type, dtype or shape.",
            )?,
            page: make(
                "PageError",
                &[input.bind(py)],
                "A page id is out of range, given twice, or not the caller's to give.",
            )?,
            lease: make(
                "LeaseError",
                &[base_type, &runtime_error],
                "A lease or hit is used after its release, with other tokens, or with another cache.",
            )?,
            usage: make(
                "UsageError",
                &[base_type, &runtime_error],
                "The call does not fit the way the cache was set up.",
            )?,
            transaction: make(
                "TransactionError",
                &[base_type, &runtime_error],
                "A transaction is used out of order, or with another cache.",
            )?,
            restore: make(
                "RestoreError",
                &[base_type, &runtime_error],
                "Pages of the lease were to be restored, and were not: it can only be released.",
            )?,
            rank: make("RankError", &[log.bind(py)], "Another rank is dead, silent, or has left.")?,
            log,
            integrity: make(
                "IntegrityError",
                &[base_type, &runtime_error],
                "The state of the cache contradicts itself: a bug in cpkv.",
            )?,
            input,
            base,
        })
    })
}

/// Adds the exceptions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let exceptions = exceptions(py)?;
    module.add("CpkvError", &exceptions.base)?;
    module.add("ConfigError", &exceptions.config)?;
    module.add("InputError", &exceptions.input)?;
    module.add("InputTypeError", &exceptions.input_type)?;
    module.add("PageError", &exceptions.page)?;
    module.add("LeaseError", &exceptions.lease)?;
    module.add("UsageError", &exceptions.usage)?;
    module.add("TransactionError", &exceptions.transaction)?;
    module.add("RestoreError", &exceptions.restore)?;
    module.add("LogError", &exceptions.log)?;
    module.add("RankError", &exceptions.rank)?;
    module.add("IntegrityError", &exceptions.integrity)
}

fn raise(py: Python<'_>, which: impl FnOnce(&Exceptions) -> &Py<PyType>, message: String) -> PyErr {
    match exceptions(py) {
        Ok(exceptions) => PyErr::from_type(which(exceptions).bind(py).clone(), message),
        Err(error) => error,
    }
}

/// A refusal of the core as an exception.
pub(crate) fn from_core(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, |exceptions| class_of(exceptions, error), error.to_string())
}

fn class_of<'a>(exceptions: &'a Exceptions, error: &Error) -> &'a Py<PyType> {
    match error {
        Error::Config { .. } => &exceptions.config,
        Error::PageCount { .. } | Error::NoSuchLane { .. } | Error::TooFewAcks { .. } | Error::FirstStep { .. } => {
            &exceptions.input
        }
        Error::PageOutOfRange { .. }
        | Error::PageRepeated { .. }
        | Error::PageInTree { .. }
        | Error::PageNotAllocated { .. }
        | Error::PageHeld { .. }
        | Error::LaneMismatch { .. } => &exceptions.page,
        Error::LeaseTokens { .. } => &exceptions.lease,
        Error::ExternalPool { .. } | Error::AssumedCopies { .. } | Error::WrongStep { .. } => &exceptions.usage,
        Error::NoSuchOperation { .. }
        | Error::AlreadyBound { .. }
        | Error::Closed { .. }
        | Error::LayerOrder { .. }
        | Error::NoForward { .. }
        | Error::NoSequence { .. }
        | Error::OtherPage { .. }
        | Error::TransactionLeftOut { .. } => &exceptions.transaction,
        Error::RestoreFailed => &exceptions.restore,
        Error::Log(
            LogError::Silent { .. } | LogError::Dead { .. } | LogError::Left { .. } | LogError::NotJoined { .. },
        )
        | Error::AgreementLost { .. } => &exceptions.rank,
        Error::Log(_) | Error::NotReduced { .. } => &exceptions.log,
        Error::Integrity { .. } => &exceptions.integrity,
        // The core's enum may grow; the base says no less than is known.
        _ => &exceptions.base,
    }
}

/// An `InputError`.
pub(crate) fn input(py: Python<'_>, message: String) -> PyErr {
    raise(py, |exceptions| &exceptions.input, message)
}

/// An `InputTypeError`.
pub(crate) fn input_type(py: Python<'_>, message: String) -> PyErr {
    raise(py, |exceptions| &exceptions.input_type, message)
}

/// A `LeaseError`.
pub(crate) fn lease(py: Python<'_>, message: &str) -> PyErr {
    raise(py, |exceptions| &exceptions.lease, message.to_owned())
}

/// A `TransactionError`.
pub(crate) fn transaction(py: Python<'_>, message: &str) -> PyErr {
    raise(py, |exceptions| &exceptions.transaction, message.to_owned())
}

/// A `UsageError`.
pub(crate) fn usage(py: Python<'_>, message: &str) -> PyErr {
    raise(py, |exceptions| &exceptions.usage, message.to_owned())
}

/// A `LogError`.
pub(crate) fn log(py: Python<'_>, message: String) -> PyErr {
    raise(py, |exceptions| &exceptions.log, message)
}

/// Warns about an object that was dropped before its time.
pub(crate) fn warn_dropped<Category: PyTypeInfo>(message: &str) {
    Python::attach(|py| {
        // The object may die while an exception is on its way; warning must not swallow it.
        let pending = PyErr::take(py);
        let message = std::ffi::CString::new(message).unwrap_or_default();
        if let Err(error) = PyErr::warn(py, &py.get_type::<Category>(), &message, 1) {
            error.write_unraisable(py, None);
        }
        if let Some(pending) = pending {
            pending.restore(py);
        }
    });
}

/// An `IntegrityError`.
pub(crate) fn integrity(py: Python<'_>, message: String) -> PyErr {
    raise(py, |exceptions| &exceptions.integrity, message)
}
