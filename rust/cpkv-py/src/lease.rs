//! Leases: what a request holds, released once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cpkv_core::Pages;
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;

use crate::argument::{Argument, Whole};
use crate::cache::CacheManager;
use crate::errors;
use crate::page_ids::PageIds;

#[pyclass(frozen, module = "cpkv")]
pub(crate) struct Lease {
    pub(crate) cache: Py<CacheManager>,
    page_tokens: usize,
    /// It is the so manieth of its cache. The same on all ranks.
    number: u64,
    /// `None` once released.
    held: Mutex<Option<cpkv_core::Lease>>,
}

impl Lease {
    pub(crate) fn new(cache: Py<CacheManager>, page_tokens: usize, lease: cpkv_core::Lease, number: u64) -> Self {
        Self { cache, page_tokens, number, held: Mutex::new(Some(lease)) }
    }

    /// Locks the lease; to be done before its cache is locked. A panic while it is locked has
    /// poisoned the cache, which is what counts.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<cpkv_core::Lease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<T>(&self, py: Python<'_>, read: impl FnOnce(&cpkv_core::Lease) -> T) -> PyResult<T> {
        // Not locked any more when the error is made: that may collect garbage, and with it run anything.
        let read = self.lock().as_ref().map(read);
        read.ok_or_else(|| self.was_released(py))
    }

    /// Its number, as messages and `repr` have it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The error if it is used after its release.
    pub(crate) fn was_released(&self, py: Python<'_>) -> PyErr {
        errors::lease(py, &format!("lease {} was released", self.number))
    }

    /// A short call of the core with what the lease holds.
    pub(crate) fn ask<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut cpkv_core::CacheManager, &cpkv_core::Lease) -> T + Send,
    ) -> PyResult<T> {
        self.cache.get().core.call_with(py, self, false, |core, held| call(core, held))
    }
}

/// Locks leases, no two of them the same, in an order that is the same for all threads.
pub(crate) fn lock_all<'a>(leases: &[&'a Lease]) -> Vec<MutexGuard<'a, Option<cpkv_core::Lease>>> {
    let mut order: Vec<usize> = (0..leases.len()).collect();
    order.sort_unstable_by_key(|&place| std::ptr::from_ref(leases[place]));
    let mut locked: Vec<_> = order.into_iter().map(|place| (place, leases[place].lock())).collect();
    locked.sort_unstable_by_key(|&(place, _)| place);
    locked.into_iter().map(|(_, held)| held).collect()
}

#[pymethods]
impl Lease {
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, |lease| lease.pages().index() * self.page_tokens)
    }

    #[getter]
    fn pages(&self, py: Python<'_>) -> PyResult<u32> {
        self.read(py, |lease| lease.pages().0)
    }

    #[getter]
    fn device_pages(&self, py: Python<'_>) -> PyResult<u32> {
        self.read(py, |lease| lease.device_pages().0)
    }

    #[getter]
    fn host_pages(&self, py: Python<'_>) -> PyResult<u32> {
        self.read(py, |lease| lease.host_pages().0)
    }

    #[getter]
    fn released(&self) -> bool {
        self.lock().is_none()
    }

    #[pyo3(signature = (first_page = Argument::Read(0)), text_signature = "($self, first_page=0)")]
    fn page_ids(&self, py: Python<'_>, first_page: Whole<'_>) -> PyResult<PageIds> {
        let first_page = Pages(first_page.count(py, "first_page")?);
        let pages = self.ask(py, |core, lease| core.leased_pages(lease, first_page))?;
        Ok(PageIds::new(pages.iter().map(|page| page.raw())))
    }

    fn host_slots(&self, py: Python<'_>) -> PyResult<PageIds> {
        let slots = self.ask(py, |core, lease| core.leased_slots(lease))?;
        let slots = slots.map_err(|error| errors::from_core(py, &error))?;
        Ok(PageIds::new(slots.iter().map(|slot| slot.raw())))
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let lease = self.lock().take();
        let lease = lease.ok_or_else(|| self.was_released(py))?;
        self.cache.get().core.call(py, false, |core| core.release(lease))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if slf.get().released() { Err(slf.get().was_released(slf.py())) } else { Ok(slf) }
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.released() { Ok(()) } else { self.release(py) }
    }

    fn __repr__(&self) -> String {
        match &*self.lock() {
            Some(lease) => {
                let (device_pages, host_pages) = (lease.device_pages(), lease.host_pages());
                format!("Lease({}, device_pages={device_pages}, host_pages={host_pages})", self.number)
            }
            None => format!("Lease({}, released)", self.number),
        }
    }
}

impl Drop for Lease {
    /// A lease that was forgotten is released by the next tick, and warned about.
    fn drop(&mut self) {
        let Some(lease) = self.lock().take() else { return };
        let pages = lease.pages();
        self.cache.get().forgotten.add_lease(self.number, lease);
        let message = format!("a lease of {pages} pages was dropped without release(): the next tick releases it");
        errors::warn_dropped::<PyResourceWarning>(&message);
    }
}
