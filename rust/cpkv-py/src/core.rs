//! The one way from the binding into the core.
//!
//! A panic of the core is a bug. It becomes an `IntegrityError`, and so does every later call on
//! the same cache, since nobody knows what state it has left. Other caches are not touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use cpkv_core::CacheManager;
use pyo3::prelude::*;

use crate::errors;
use crate::lease::{self, Lease};

/// A core behind its lock, which a panic poisons.
pub(crate) struct SharedCore(Mutex<CacheManager>);

impl SharedCore {
    pub(crate) fn new(core: CacheManager) -> Self {
        Self(Mutex::new(core))
    }

    /// Calls the core; detached from the interpreter if the call `is_long`.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        is_long: bool,
        call: impl FnOnce(&mut CacheManager) -> T + Send,
    ) -> PyResult<T> {
        let run = || self.run(call);
        let result = if is_long { py.detach(run) } else { run() };
        result.map_err(|reason| errors::integrity(py, reason))
    }

    /// Calls the core with what a lease holds. The lease is locked without the interpreter if the call
    /// `is_long`, and is not locked any more when an error is made.
    pub(crate) fn call_with<T: Send>(
        &self,
        py: Python<'_>,
        lease: &Lease,
        is_long: bool,
        call: impl FnOnce(&mut CacheManager, &mut cpkv_core::Lease) -> T + Send,
    ) -> PyResult<T> {
        let run = || {
            let mut held = lease.lock();
            held.as_mut().map(|held| self.run(|core| call(core, held)))
        };
        let result = if is_long { py.detach(run) } else { run() };
        result.ok_or_else(|| lease.was_released(py))?.map_err(|reason| errors::integrity(py, reason))
    }

    /// Calls the core with what several leases hold, no two of them the same.
    pub(crate) fn call_with_all<T: Send>(
        &self,
        py: Python<'_>,
        leases: &[&Lease],
        is_long: bool,
        call: impl FnOnce(&mut CacheManager, &[&cpkv_core::Lease]) -> T + Send,
    ) -> PyResult<T> {
        let run = || {
            let locked = lease::lock_all(leases);
            let held: Vec<_> = locked.iter().map_while(|held| held.as_ref()).collect();
            if held.len() < leases.len() {
                return Err(leases[held.len()]);
            }
            Ok(self.run(|core| call(core, &held)))
        };
        let result = if is_long { py.detach(run) } else { run() };
        result.map_err(|lease| lease.was_released(py))?.map_err(|reason| errors::integrity(py, reason))
    }

    /// Calls the core where there may be no interpreter to raise an error in.
    pub(crate) fn run<T>(&self, call: impl FnOnce(&mut CacheManager) -> T) -> Result<T, String> {
        // The core is behind the lock, which remembers the panic: nothing else can be half changed.
        let result = catch_unwind(AssertUnwindSafe(|| self.0.lock().map(|mut core| call(&mut core)).ok()));
        match result {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err("an earlier panic has left the cache in an unknown state".to_owned()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of unknown kind");
                Err(format!("a panic has left the cache in an unknown state: {text}"))
            }
        }
    }
}
