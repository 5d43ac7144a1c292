//! Page and slot ids on their way out of the core: an immutable array of `int64`.
//!
//! numpy, torch, `array` and `memoryview` take it through the buffer protocol without a copy; a
//! slice of it shares its memory. A `memoryview` itself would do, but takes half a microsecond to
//! make, as long as an allocation of pages.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyIterator, PyList, PySlice};
use pyo3::{IntoPyObjectExt, ffi};

use crate::argument::{Whole, shown};
use crate::errors;

#[pyclass(frozen, sequence, module = "cpkv")]
pub(crate) struct PageIds {
    ids: Arc<[i64]>,
    start: usize,
    /// Length and distance in the form that the buffer protocol points to.
    shape: [isize; 1],
    strides: [isize; 1],
}

impl PageIds {
    pub(crate) fn new(ids: impl ExactSizeIterator<Item = u32>) -> Self {
        Self::of(ids.map(i64::from))
    }

    /// Of numbers that are in 64 bits already.
    pub(crate) fn of(numbers: impl ExactSizeIterator<Item = i64>) -> Self {
        let numbers: Arc<[i64]> = numbers.collect();
        let length = numbers.len();
        Self::part_of(numbers, 0, length)
    }

    fn part_of(ids: Arc<[i64]>, start: usize, length: usize) -> Self {
        let signed = |count: usize| isize::try_from(count).expect("no longer than memory");
        Self { ids, start, shape: [signed(length)], strides: [signed(size_of::<i64>())] }
    }

    pub(crate) fn as_slice(&self) -> &[i64] {
        &self.ids[self.start..self.start + self.shape[0].unsigned_abs()]
    }
}

#[pymethods]
impl PageIds {
    fn __len__(&self) -> usize {
        self.as_slice().len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let ids = self.as_slice();
        if let Ok(slice) = index.cast::<PySlice>() {
            let part = slice.indices(self.shape[0])?;
            let (start, length) = (part.start.unsigned_abs(), part.slicelength);
            if part.step == 1 {
                return Self::part_of(Arc::clone(&self.ids), self.start + start, length).into_bound_py_any(py);
            }
            let place = |offset: usize| part.start.wrapping_add(part.step.wrapping_mul(offset.cast_signed()));
            let picked: Arc<[i64]> = (0..length).map(|offset| ids[place(offset).unsigned_abs()]).collect();
            return Self::part_of(picked, 0, length).into_bound_py_any(py);
        }
        let length = ids.len();
        let place = match index.extract()? {
            // Negative ones count from the end.
            Whole::Read(number) => {
                let place = usize::try_from(number).ok();
                place.or_else(|| length.checked_sub(usize::try_from(number.unsigned_abs()).ok()?))
            }
            Whole::Beyond(_) => None,
            other @ Whole::Other(_) => Some(other.within(py, "index", 0, 0)?),
        };
        let id = place.and_then(|place| ids.get(place));
        let Some(id) = id else {
            return Err(PyIndexError::new_err(format!("index {} of {length} page ids", shown(index)?)));
        };
        id.into_bound_py_any(py)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tolist(py)?.try_iter()
    }

    fn __contains__(&self, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id: Whole<'_> = id.extract()?;
        Ok(matches!(id, Whole::Read(id) if self.as_slice().contains(&id)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }

    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.as_slice())
    }

    fn rows<'py>(&self, py: Python<'py>, rows_per_page: Whole<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        let count = i64::from(rows_per_page.positive(py, "rows_per_page")?);
        let refuse = || errors::input(py, format!("rows_per_page is {count}: there are no such rows"));
        let most = self.as_slice().iter().max().copied().unwrap_or(0);
        most.checked_add(1).and_then(|pages| pages.checked_mul(count)).ok_or_else(refuse)?;
        let page_bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<i64>()));
        let page_bytes = page_bytes.ok_or_else(refuse)?;
        let bytes = page_bytes.checked_mul(self.as_slice().len()).ok_or_else(refuse)?;
        PyByteArray::new_with(py, bytes, |written| {
            for (places, page) in written.chunks_exact_mut(page_bytes).zip(self.as_slice()) {
                for (place, row) in places.chunks_exact_mut(size_of::<i64>()).zip(page * count..) {
                    place.copy_from_slice(&row.to_ne_bytes());
                }
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        format!("PageIds({:?})", self.as_slice())
    }

    #[expect(unsafe_code, reason = "the buffer protocol is a C struct that is filled in")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            // SAFETY: the interpreter passes a valid `view`, and expects this of a refusal.
            unsafe { (*view).obj = std::ptr::null_mut() };
            return Err(PyBufferError::new_err("page ids are read-only"));
        }
        let ids = slf.get();
        let asks_for = |flag| flags & flag == flag;
        // SAFETY: the interpreter passes a valid `view`. What it is made to point to belongs to
        // `slf`, which is frozen, does not move, and is kept alive by the reference in `obj` until
        // the view is released. Nothing writes through a read-only view.
        unsafe {
            (*view).buf = ids.as_slice().as_ptr().cast_mut().cast();
            (*view).len = ids.shape[0] * ids.strides[0];
            (*view).itemsize = ids.strides[0];
            (*view).readonly = 1;
            (*view).ndim = 1;
            (*view).format = if asks_for(ffi::PyBUF_FORMAT) { c"q".as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).shape = if asks_for(ffi::PyBUF_ND) { ids.shape.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).strides =
                if asks_for(ffi::PyBUF_STRIDES) { ids.strides.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}
