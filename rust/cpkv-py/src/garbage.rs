//! What the garbage collector has to know: a cache holds the reduction that it was given, which as a rule
//! belongs to what holds the cache, and everything that a cache returns holds the cache.

use std::sync::{PoisonError, TryLockError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::agreement::Way;
use crate::cache::{CacheManager, Hit};
use crate::lease::Lease;
use crate::restore::Restored;
use crate::transaction::{TickReport, Transaction};

#[pymethods]
impl CacheManager {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let agreement = match self.agreement.try_lock() {
            Ok(agreement) => agreement,
            Err(TryLockError::Poisoned(agreement)) => agreement.into_inner(),
            // A call has it, and with it a reference that the collector finds nobody for: the cache stays.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        match &agreement.way {
            Way::Alone => Ok(()),
            Way::Log(log) => visit.call(log),
            Way::Reduction(reduce, last) => {
                visit.call(reduce)?;
                last.as_ref().map_or(Ok(()), |(_, reduced)| visit.call(reduced))
            }
        }
    }

    fn __clear__(&self) {
        let mut agreement = self.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        let way = std::mem::take(&mut agreement.way);
        // What goes with it may run anything, and ask the cache again.
        drop(agreement);
        drop(way);
    }
}

/// Tells of the cache that something holds. It is never let go of: whatever goes round in a circle goes through
/// what the cache was given.
macro_rules! holds_its_cache {
    ($($class:ty),+) => {
        $(#[pymethods]
        impl $class {
            fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
                visit.call(&self.cache)
            }
        })+
    };
}

holds_its_cache!(Hit, Lease, Restored, TickReport, Transaction);
