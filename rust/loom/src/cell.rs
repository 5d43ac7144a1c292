//! Plain memory as a body: loom refuses every access that another thread's does not happen before.

use loom::cell::UnsafeCell;

use crate::protocol::Body;

/// A word that is not atomic.
pub(crate) struct Plain(UnsafeCell<u64>);

impl Plain {
    pub(crate) fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }
}

#[expect(unsafe_code, reason = "the accesses that loom is to judge")]
// SAFETY: loom stops a model before an access that races.
unsafe impl Sync for Plain {}

impl Body for Plain {
    fn get(&self) -> u64 {
        #[expect(unsafe_code, reason = "the access that loom is to judge")]
        // SAFETY: loom stops a model before an access that races.
        self.0.with(|pointer| unsafe { *pointer })
    }

    fn put(&self, value: u64) {
        #[expect(unsafe_code, reason = "the access that loom is to judge")]
        // SAFETY: loom stops a model before an access that races.
        self.0.with_mut(|pointer| unsafe { *pointer = value });
    }
}

/// A body of either kind.
pub(crate) trait NewBody: Body + Send + Sync + 'static {
    fn new(value: u64) -> Self;
}

impl NewBody for Plain {
    fn new(value: u64) -> Self {
        Self::new(value)
    }
}

impl NewBody for crate::sync::AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }
}
