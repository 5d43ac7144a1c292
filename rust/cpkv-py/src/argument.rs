//! Arguments that are taken as they come and read when their name is known, so that a refusal has the name
//! and the value that was given.

use cpkv_core::{Lane, Tokens};
use pyo3::exceptions::{PyException, PyOverflowError, PyTypeError, PyUnicodeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors;

/// An argument that should be a `T`.
pub(crate) enum Argument<'py, T> {
    Read(T),
    /// A number that is beyond every `T`.
    Beyond(Bound<'py, PyAny>),
    /// It is of another type.
    Other(Bound<'py, PyAny>),
}

pub(crate) type Whole<'py> = Argument<'py, i64>;

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Argument<'py, T> {
    type Error = PyErr;

    fn extract(argument: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        argument.extract().map(Self::Read).or_else(|error| {
            let (py, error): (_, PyErr) = (argument.py(), error.into());
            if error.is_instance_of::<PyOverflowError>(py) {
                Ok(Self::Beyond(argument.to_owned()))
            } else if error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyUnicodeError>(py) {
                Ok(Self::Other(argument.to_owned()))
            } else {
                Err(error)
            }
        })
    }
}

impl<T> Argument<'_, T> {
    /// The argument called `name`.
    pub(crate) fn read(self, py: Python<'_>, name: &str, wanted: &str) -> PyResult<T> {
        match self {
            Self::Read(value) => Ok(value),
            Self::Beyond(seen) => Err(errors::input(py, format!("{name} is {}, want {wanted}", shown(&seen)?))),
            Self::Other(seen) => Err(errors::input_type(py, format!("{name} is {}, want {wanted}", shown(&seen)?))),
        }
    }
}

/// What was given, for a message: as Python writes it, cut off if that is long.
pub(crate) fn shown(seen: &Bound<'_, PyAny>) -> PyResult<String> {
    const MOST_CHARACTERS: usize = 60;
    match seen.repr().map(|text| text.to_string_lossy().into_owned()) {
        Ok(text) => Ok(match text.char_indices().nth(MOST_CHARACTERS) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }),
        // Also an integer of thousands of digits has none.
        Err(error) if error.is_instance_of::<PyException>(seen.py()) => {
            Ok(format!("of type {}", seen.get_type().name()?))
        }
        Err(error) => Err(error),
    }
}

/// What a sequence called `name` holds.
pub(crate) fn elements<'py>(
    sequence: &Bound<'py, PyAny>,
    name: &str,
    wanted: &str,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = sequence.py();
    let refuse = || -> PyErr {
        shown(sequence).map_or_else(
            |error| error,
            |seen| errors::input_type(py, format!("{name} is {seen}, want a sequence of {wanted}")),
        )
    };
    if sequence.is_instance_of::<PyString>() {
        return Err(refuse());
    }
    let elements = sequence.try_iter();
    match elements {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(refuse()),
        elements => elements?.collect(),
    }
}

/// Reads whether something is so.
pub(crate) fn flag(py: Python<'_>, name: &str, given: Argument<'_, bool>) -> PyResult<bool> {
    given.read(py, name, "True or False")
}

impl Argument<'_, u64> {
    /// A number of 64 bits.
    pub(crate) fn number(self, py: Python<'_>, name: &str) -> PyResult<u64> {
        let wanted = if let Self::Other(_) = self { "an integer" } else { "0 to 18446744073709551615" };
        self.read(py, name, wanted)
    }
}

impl Whole<'_> {
    /// The number, if it is one of `least ..= most`.
    pub(crate) fn within<T: TryFrom<i64>>(self, py: Python<'_>, name: &str, least: i64, most: i64) -> PyResult<T> {
        let number = match self {
            Self::Read(number) => number,
            Self::Beyond(_) => self.read(py, name, &format!("{least} to {most}"))?,
            Self::Other(_) => self.read(py, name, "an integer")?,
        };
        let fits = Some(number).filter(|number| (least..=most).contains(number));
        let fits = fits.and_then(|number| T::try_from(number).ok());
        fits.ok_or_else(|| errors::input(py, format!("{name} is {number}, want {least} to {most}")))
    }

    /// A number of pages, or a page's place in a prompt.
    pub(crate) fn count(self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.within(py, name, 0, i64::from(u32::MAX))
    }

    /// A number that is not 0.
    pub(crate) fn positive(self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.within(py, name, 1, i64::from(u32::MAX))
    }

    /// A bound for a number of tokens, which may be beyond everything.
    pub(crate) fn token_limit(self, py: Python<'_>, name: &str) -> PyResult<Tokens> {
        match self {
            Self::Beyond(limit) if limit.gt(0)? => Ok(Tokens(usize::MAX)),
            limit => limit.within(py, name, 0, i64::MAX).map(Tokens),
        }
    }

    /// A lane; the core knows how many there are.
    pub(crate) fn lane(self, py: Python<'_>, name: &str) -> PyResult<Lane> {
        self.within(py, name, 0, i64::from(u32::MAX)).map(Lane)
    }

    /// A copy stream.
    pub(crate) fn stream(self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.within(py, name, 0, 1_023)
    }

    /// A sequence number or a time.
    pub(crate) fn sequence(self, py: Python<'_>, name: &str) -> PyResult<u64> {
        self.within(py, name, 0, i64::MAX)
    }

    /// What pages are worth.
    pub(crate) fn priority(self, py: Python<'_>, name: &str) -> PyResult<i32> {
        self.within(py, name, i64::from(i32::MIN), i64::from(i32::MAX))
    }
}
