//! `cpkv._core`: converts between Python and `cpkv-core`, and nothing else.
//!
//! One file per topic. Classes are frozen; a method reads its arguments, calls one function of the
//! core and converts what comes back.
//!
//! Lock order: a lease (several in the order of their addresses), a commit log, the cache, then what was forgotten;
//! how ranks agree, and what was said of a transaction, each by itself. Never the other way round, and never Python
//! while a lock is held, not even to make an exception: long calls run detached from the interpreter, take their
//! locks then and drop them before they attach again, so that a thread waiting for a lock with the interpreter held
//! cannot stop its holder. There are no atomics.

mod agreement;
mod argument;
mod cache;
mod core;
mod dump;
mod errors;
mod events;
mod forgotten;
mod garbage;
mod integers;
mod lease;
mod log;
mod namespace;
mod page_ids;
mod page_table;
mod restore;
mod settings;
mod stats;
mod step;
mod tick;
mod transaction;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use crate::agreement::{AckWords, CommitLog};
    #[pymodule_export]
    use crate::cache::{CacheManager, Hit, Inserted};
    #[pymodule_export]
    use crate::events::CacheEvent;
    #[pymodule_export]
    use crate::lease::Lease;
    #[pymodule_export]
    use crate::page_ids::PageIds;
    #[pymodule_export]
    use crate::page_table::PageTable;
    #[pymodule_export]
    use crate::restore::Restored;
    #[pymodule_export]
    use crate::stats::Stats;
    #[pymodule_export]
    use crate::transaction::{TickReport, Transaction};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::errors::register(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("POLICIES", PyTuple::new(module.py(), cpkv_core::Policy::ALL.map(|(name, _)| name))?)?;
        module.add("MOST_LANES", cpkv_core::MOST_LANES)?;
        module.add("MOST_RANKS", cpkv_core::MOST_RANKS)?;
        module.add("IS_DEBUG_BUILD", cfg!(debug_assertions))
    }
}

/// Tokens or pages from which on a call is long enough to let other Python threads run meanwhile:
/// it takes some ten times as long as detaching and attaching again.
const LONG_CALL_TOKENS: usize = 32_768;
const LONG_CALL_PAGES: usize = 4_096;
