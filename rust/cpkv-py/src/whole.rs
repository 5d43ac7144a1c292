//! Whole numbers that Python passes in.

use cpkv_core::{Lane, Tokens};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors;

/// An integer argument. One that does not fit 64 bits is taken for the nearest that does: it is out
/// of range everywhere, and is refused as such with the name of its argument.
#[derive(Clone, Copy)]
pub(crate) struct Whole(pub(crate) i64);

impl FromPyObject<'_, '_> for Whole {
    type Error = PyErr;

    fn extract(argument: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match argument.extract::<i64>() {
            Ok(number) => Ok(Self(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(argument.py()) => {
                Ok(Self(if argument.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            Err(error) => Err(error),
        }
    }
}

impl Whole {
    /// The number, if it is one of `least ..= most`.
    fn within<T: TryFrom<i64>>(self, py: Python<'_>, name: &str, least: i64, most: i64) -> PyResult<T> {
        let number = Some(self.0).filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| errors::input(py, format!("{name} is {}, want {least} to {most}", self.0)))
    }

    /// A number of pages, or a page's place in a prompt.
    pub(crate) fn count(self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.within(py, name, 0, i64::from(u32::MAX))
    }

    /// A number that is not 0.
    pub(crate) fn positive(self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.within(py, name, 1, i64::from(u32::MAX))
    }

    /// A number of tokens.
    pub(crate) fn tokens(self, py: Python<'_>, name: &str) -> PyResult<Tokens> {
        self.within(py, name, 0, i64::MAX).map(Tokens)
    }

    /// A lane; the core knows how many there are.
    pub(crate) fn lane(self, py: Python<'_>, name: &str) -> PyResult<Lane> {
        self.within(py, name, 0, i64::from(u32::MAX)).map(Lane)
    }

    /// A copy stream.
    pub(crate) fn stream(self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.within(py, name, 0, 1_023)
    }

    /// A sequence number, a tick or a time.
    pub(crate) fn sequence(self, py: Python<'_>, name: &str) -> PyResult<u64> {
        self.within(py, name, 0, i64::MAX)
    }

    /// What pages are worth.
    pub(crate) fn priority(self, py: Python<'_>, name: &str) -> PyResult<i32> {
        self.within(py, name, i64::from(i32::MIN), i64::from(i32::MAX))
    }
}
