//! The figures of a cache.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Declares `Stats` with its fields once, for the class, the conversion and `as_dict`.
macro_rules! stats {
    (
        counters: $($counter:ident),+;
        now: $($now:ident: $kind:ty),+;
        derived: $($derived:ident: $derived_kind:ty = $derive:expr),+;
    ) => {
        #[pyclass(frozen, get_all, module = "cpkv")]
        pub(crate) struct Stats {
            $($counter: u64,)+
            $($now: $kind,)+
            $($derived: $derived_kind,)+
        }

        impl From<cpkv_core::Stats> for Stats {
            fn from(stats: cpkv_core::Stats) -> Self {
                Self {
                    $($counter: stats.counters.$counter,)+
                    $($now: stats.$now,)+
                    $($derived: $derive(&stats),)+
                }
            }
        }

        #[pymethods]
        impl Stats {
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($counter), self.$counter)?;)+
                $(dict.set_item(stringify!($now), self.$now)?;)+
                $(dict.set_item(stringify!($derived), self.$derived)?;)+
                Ok(dict)
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                Ok(format!("Stats({})", self.as_dict(py)?))
            }
        }
    };
}

stats! {
    counters: leases, device_hit_pages, host_hit_pages, inserted_pages, duplicate_pages, restored_pages, failed_restores, unrestored_pages,
        recomputed_pages, host_written_pages, host_skipped_pages, late_copied_pages, device_evicted_pages,
        mirror_dropped_pages, host_evicted_pages, lost_pages, reserved_pages, late_reserved_pages,
        committed_operations, committed_pages, rolled_back_operations, rolled_back_pages, insert_missed_pages,
        donors_lost, quarantined_operations, flushes, dropped_events;
    now: device_capacity_pages: u32, device_cached_pages: u32, device_free_pages: u32, device_evictable_pages: u32,
        device_fenced_pages: u32, restoring_pages: u32, host_capacity_slots: u32, host_cached_slots: u32, host_reserved_slots: u32,
        host_draining_slots: u32, host_quarantined_slots: u32, host_mirror_slots: u32, host_evictable_slots: u32,
        open_operations: usize, oldest_operation_ns: u64,
        pages: u64, nodes: usize, namespaces: usize, leaves: usize, metadata_bytes: usize,
        peak_metadata_bytes: usize;
    derived: device_run_pages: f64 = |stats: &cpkv_core::Stats| stats.device_run_lengths.mean(),
        host_run_pages: f64 = |stats: &cpkv_core::Stats| stats.host_run_lengths.mean();
}
