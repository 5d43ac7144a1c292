//! Namespaces from Python: `None`, a string, bytes, or a mapping of named parts.

use cpkv_core::Namespace;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::errors;

/// Reads a namespace. A string and the same bytes are different, and so is a mapping with one
/// part; the parts of a mapping are taken in the order of their names.
pub(crate) fn read(argument: Option<&Bound<'_, PyAny>>) -> PyResult<Namespace> {
    let Some(argument) = argument else { return Ok(Namespace::default()) };
    if let Ok(text) = argument.cast::<PyString>() {
        let text = text.to_str().map_err(|_| unspeakable(argument))?;
        return Ok(Namespace::from_parts([("str", text.as_bytes())]));
    }
    if let Ok(bytes) = argument.cast::<PyBytes>() {
        return Ok(Namespace::from_parts([("bytes", bytes.as_bytes())]));
    }
    let Ok(parts) = argument.cast::<PyDict>() else {
        let kind = argument.get_type().name()?;
        let message = format!("namespace: got {kind}, want None, str, bytes or a dict of str to str");
        return Err(errors::input_type(argument.py(), message));
    };
    let mut named = Vec::with_capacity(parts.len());
    for (name, value) in parts {
        let (Ok(name), Ok(value)) = (name.cast_into::<PyString>(), value.cast_into::<PyString>()) else {
            let message = format!("namespace: got {}, want a dict of str to str", argument.repr()?);
            return Err(errors::input_type(argument.py(), message));
        };
        let (Ok(name), Ok(value)) = (name.to_str(), value.to_str()) else {
            return Err(unspeakable(argument));
        };
        named.push((format!("part:{name}"), value.to_owned()));
    }
    if named.is_empty() {
        return Err(errors::input(argument.py(), "namespace: got an empty dict, want None or parts".to_owned()));
    }
    named.sort_unstable();
    Ok(Namespace::from_parts(named.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))))
}

/// The error for a string that has no bytes: half of a surrogate pair.
fn unspeakable(argument: &Bound<'_, PyAny>) -> PyErr {
    match argument.repr() {
        Ok(text) => errors::input(argument.py(), format!("namespace: got {text}, want text without surrogates")),
        Err(error) => error,
    }
}
