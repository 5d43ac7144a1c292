//! Arrays of `i64` that Python passes in.
//!
//! Any one-dimensional contiguous buffer of `int64` is read in place, and its export ends with the
//! call. A list, tuple or range is copied.

use std::fmt::Display;

use pyo3::buffer::{Element, ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PyTuple};

use crate::argument::{Whole, shown};
use crate::errors;
use crate::page_ids::PageIds;

/// An argument of `i64`s, to be read through [`Integers::as_slice`].
pub(crate) enum Integers {
    Borrowed(PyBuffer<i64>),
    Copied(Vec<i64>),
    /// What an allocation has returned, read without the detour of the buffer protocol.
    Ours(Py<PageIds>),
}

impl Integers {
    /// Reads the argument called `name`.
    pub(crate) fn read(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let py = argument.py();
        if let Ok(ids) = argument.cast_exact::<PageIds>() {
            return Ok(Self::Ours(ids.clone().unbind()));
        }
        let is_copied = argument.is_instance_of::<PyList>()
            || argument.is_instance_of::<PyTuple>()
            || argument.is_instance_of::<PyRange>();
        if is_copied {
            return copy(argument, name).map(Self::Copied);
        }
        let refuse = |seen: &dyn Display| {
            errors::input_type(
                py,
                format!("{name}: got {seen}, want a one-dimensional contiguous array of int64, or a list"),
            )
        };
        let buffer = PyUntypedBuffer::get(argument).or_else(|error| {
            // It is no buffer, or not one that tells its elements. Whatever else happens meanwhile is not about it.
            let is_about_it = error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyBufferError>(py)
                || error.is_instance_of::<PyValueError>(py);
            Err(if is_about_it { refuse(&argument.get_type().name()?) } else { error })
        })?;
        if buffer.dimensions() != 1 {
            return Err(refuse(&format_args!("{} dimensions", buffer.dimensions())));
        }
        if !buffer.is_c_contiguous() {
            return Err(refuse(&format_args!("a strided array")));
        }
        let foreign_order: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
        let is_foreign = buffer.format().to_bytes().first().is_some_and(|order| foreign_order.contains(order));
        if is_foreign
            || ElementType::from_format(buffer.format()) != (ElementType::SignedInteger { bytes: size_of::<i64>() })
        {
            return Err(refuse(&format_args!("elements of format '{}'", buffer.format().to_string_lossy())));
        }
        if buffer.item_count() == 0 {
            // It may point anywhere, `array.array` to a place that is not aligned.
            return Ok(Self::Copied(Vec::new()));
        }
        buffer.into_typed().map(Self::Borrowed).map_err(|_| refuse(&format_args!("an unaligned array")))
    }

    /// The numbers. They are read in place: another thread must not write them during the call,
    /// as with any function that releases the interpreter while it reads an array.
    pub(crate) fn as_slice(&self) -> &[i64] {
        match self {
            Self::Copied(numbers) => numbers,
            Self::Ours(ids) => ids.get().as_slice(),
            Self::Borrowed(buffer) => in_place(buffer),
        }
    }
}

/// Copies a list, tuple or range. What its elements raise comes through.
fn copy(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<i64>> {
    let py = argument.py();
    let mut numbers = Vec::new();
    for (index, element) in argument.try_iter()?.enumerate() {
        match element?.extract()? {
            Whole::Read(number) => numbers.push(number),
            Whole::Beyond(seen) => {
                let seen = shown(&seen)?;
                let message = format!("{name}: {seen} at index {index} does not fit 64 bits, want -2**63 to 2**63 - 1");
                return Err(errors::input(py, message));
            }
            Whole::Other(seen) => {
                let (kind, seen) = (seen.get_type().name()?, shown(&seen)?);
                return Err(errors::input_type(
                    py,
                    format!("{name}: got {kind} {seen} at index {index}, want integers"),
                ));
            }
        }
    }
    Ok(numbers)
}

/// The elements of a buffer that is contiguous and not empty.
#[expect(unsafe_code, reason = "PyO3's own view is tied to holding the interpreter and hides the numbers in cells")]
pub(crate) fn in_place<T: Element>(buffer: &PyBuffer<T>) -> &[T] {
    // SAFETY: `PyBuffer` has checked format, item size and alignment, its maker that the items are
    // contiguous. The export, and with it the memory, lives as long as `buffer` is
    // borrowed. Every bit pattern is an element. That nobody writes meanwhile is up to the caller of
    // a long call, as its documentation says; a short one runs with the interpreter held.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<T>(), buffer.item_count()) }
}
