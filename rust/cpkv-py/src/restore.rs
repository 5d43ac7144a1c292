//! Restores: the way back to the device, and who waits for it.

use cpkv_core::{OperationId, OperationKind, Pages};
use pyo3::prelude::*;

use crate::LONG_CALL_PAGES;
use crate::argument::{Argument, Whole};
use crate::cache::{CacheManager, check_cache, page_ids};
use crate::errors;
use crate::integers::Integers;
use crate::lease::Lease;
use crate::page_ids::PageIds;
use crate::tick::read_acks;
use crate::transaction::{Opened, Transaction};

/// What became of the pages given to a restore.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct Restored {
    given: cpkv_core::Restored,
    operations: Vec<Opened>,
    pub(crate) cache: Py<CacheManager>,
}

#[pymethods]
impl CacheManager {
    #[pyo3(signature = (lease, device_pages, *, part_pages = None))]
    fn restore(
        slf: &Bound<'_, Self>,
        lease: Argument<'_, Bound<'_, Lease>>,
        device_pages: &Bound<'_, PyAny>,
        part_pages: Option<Whole<'_>>,
    ) -> PyResult<Restored> {
        let py = slf.py();
        let lease = lease.read(py, "lease", "a Lease")?;
        let lease = lease.get();
        check_cache(slf, lease)?;
        let device_pages = Integers::read(device_pages, "device_pages")?;
        let device_pages = device_pages.as_slice();
        let part = part_pages.map(|pages| pages.positive(py, "part_pages").map(Pages)).transpose()?;
        let is_long = device_pages.len() >= LONG_CALL_PAGES;
        let restored = slf.get().core.call_with(py, lease, is_long, |core, held| {
            let restored = core.restore_in_parts(held, device_pages, part)?;
            Ok((opened(core, &restored.operations), restored))
        })?;
        let (operations, restored) = restored.map_err(|error| errors::from_core(py, &error))?;
        Ok(Restored { given: restored, operations, cache: slf.clone().unbind() })
    }
}

/// What says how restores will have ended.
fn opened(core: &mut cpkv_core::CacheManager, operations: &[OperationId]) -> Vec<Opened> {
    operations.iter().map(|&id| Opened::new(core, id, OperationKind::Restore)).collect()
}

fn transactions(py: Python<'_>, cache: &Py<CacheManager>, operations: &[Opened]) -> Vec<Transaction> {
    operations.iter().map(|opened| Transaction::of(cache.clone_ref(py), opened)).collect()
}

#[pymethods]
impl Lease {
    /// Those that pages of the lease wait for, whoever has started them.
    fn restores(&self, py: Python<'_>) -> PyResult<Vec<Transaction>> {
        let restores = self.ask(py, |core, lease| {
            let restores = core.restores_of(lease);
            opened(core, &restores)
        })?;
        Ok(transactions(py, &self.cache, &restores))
    }

    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<bool> {
        self.ask(py, |core, lease| core.is_lost(lease))
    }

    #[pyo3(signature = (layer, acks = None))]
    fn layer_has_landed(&self, py: Python<'_>, layer: Whole<'_>, acks: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let (layer, acks) = (layer.count(py, "layer")?, read_acks(acks)?);
        let landed = self.ask(py, |core, lease| core.layer_has_landed(lease, layer, &acks))?;
        landed.map_err(|error| errors::from_core(py, &error))
    }
}

#[pymethods]
impl Restored {
    #[getter]
    fn duplicates(&self) -> PageIds {
        page_ids(&self.given.duplicates)
    }

    #[getter]
    fn operations(&self, py: Python<'_>) -> Vec<Transaction> {
        transactions(py, &self.cache, &self.operations)
    }

    fn __repr__(&self) -> String {
        format!("Restored(operations={}, duplicates={})", self.operations.len(), self.given.duplicates.len())
    }
}
