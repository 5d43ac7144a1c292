//! The one place that atomics come from: those of the standard library, or loom's in its models.
//!
//! Only `Relaxed`, `Acquire` and `Release` are used: loom does not model `SeqCst`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
