//! Prefix-cache events.

use cpkv_core::Medium;
use pyo3::prelude::*;

use crate::LONG_CALL_TOKENS;
use crate::cache::CacheManager;
use crate::integers::Integers;
use crate::namespace;

/// A change of what the cache holds.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct CacheEvent(cpkv_core::CacheEvent);

#[pymethods]
impl CacheEvent {
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.0 {
            cpkv_core::CacheEvent::Stored { .. } => "stored",
            cpkv_core::CacheEvent::Removed { .. } => "removed",
            cpkv_core::CacheEvent::Cleared => "cleared",
        }
    }

    #[getter]
    fn medium(&self) -> Option<&'static str> {
        let (cpkv_core::CacheEvent::Stored { medium, .. } | cpkv_core::CacheEvent::Removed { medium, .. }) = &self.0
        else {
            return None;
        };
        Some(match medium {
            Medium::Device => "device",
            Medium::Host => "host",
        })
    }

    #[getter]
    fn page_hashes(&self) -> Vec<u64> {
        match &self.0 {
            cpkv_core::CacheEvent::Stored { hashes, .. } | cpkv_core::CacheEvent::Removed { hashes, .. } => {
                hashes.clone()
            }
            cpkv_core::CacheEvent::Cleared => Vec::new(),
        }
    }

    #[getter]
    fn parent_hash(&self) -> Option<u64> {
        if let cpkv_core::CacheEvent::Stored { parent, .. } = &self.0 { *parent } else { None }
    }

    #[getter]
    fn token_ids(&self) -> Vec<i64> {
        if let cpkv_core::CacheEvent::Stored { tokens, .. } = &self.0 { tokens.clone() } else { Vec::new() }
    }

    fn __repr__(&self) -> String {
        let pages = self.page_hashes().len();
        format!("CacheEvent(kind='{}', medium={:?}, pages={pages})", self.kind(), self.medium())
    }
}

#[pymethods]
impl CacheManager {
    fn take_events(&self, py: Python<'_>) -> PyResult<Vec<CacheEvent>> {
        let events = self.core.call(py, false, cpkv_core::CacheManager::take_events)?;
        Ok(events.into_iter().map(CacheEvent).collect())
    }

    #[pyo3(signature = (token_ids, *, namespace = None))]
    fn page_hashes(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        namespace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<u64>> {
        let tokens = Integers::read(token_ids, "token_ids")?;
        let namespace = namespace::read(namespace)?;
        let tokens = tokens.as_slice();
        self.core.call(py, tokens.len() >= LONG_CALL_TOKENS, |core| core.page_hashes(tokens, &namespace))
    }
}
