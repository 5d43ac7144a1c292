//! An engine's table of the rows that each request has, read in place.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::argument::Whole;
use crate::errors;
use crate::integers;
use crate::page_ids::PageIds;

#[pyclass(frozen, module = "cpkv")]
pub(crate) struct PageTable {
    /// Contiguous, of two dimensions, not empty. It lies where it does as long as this holds it.
    rows: PyBuffer<i32>,
    rows_per_page: u32,
}

#[pymethods]
impl PageTable {
    #[new]
    fn new(py: Python<'_>, rows: &Bound<'_, PyAny>, rows_per_page: Whole<'_>) -> PyResult<Self> {
        let rows_per_page = rows_per_page.positive(py, "rows_per_page")?;
        let is_table = |rows: &PyBuffer<i32>| rows.dimensions() == 2 && rows.is_c_contiguous() && rows.item_count() > 0;
        let rows = PyBuffer::get(rows).ok().filter(is_table).ok_or_else(|| {
            errors::input_type(py, "rows: want a two-dimensional contiguous array of int32, not empty".to_owned())
        })?;
        Ok(Self { rows, rows_per_page })
    }

    fn pages(&self, py: Python<'_>, place: Whole<'_>, first: Whole<'_>, end: Whole<'_>) -> PyResult<PageIds> {
        let (requests, width) = (self.rows.shape()[0], self.rows.shape()[1]);
        let last = i64::try_from(requests).expect("no more than memory") - 1;
        let place: usize = place.within(py, "place", 0, last)?;
        let end = end.count(py, "end")?;
        let first: u32 = first.within(py, "first", 0, i64::from(end))?;
        let page = self.rows_per_page as usize;
        let row = |page_place: u32| (page_place as usize).saturating_mul(page).min(width);
        let rows = &integers::in_place(&self.rows)[place * width..][row(first)..row(end)];
        // A page of the size of one row is the row: without a division, and without steps.
        let divisor = i64::from(self.rows_per_page);
        Ok(if page == 1 {
            PageIds::of(rows.iter().map(|&row| i64::from(row)))
        } else {
            PageIds::of(rows.iter().step_by(page).map(|&row| i64::from(row).div_euclid(divisor)))
        })
    }

    fn __repr__(&self) -> String {
        format!("PageTable({}x{}, rows_per_page={})", self.rows.shape()[0], self.rows.shape()[1], self.rows_per_page)
    }
}
