//! Leases and transactions that Python has dropped without ending them.
//!
//! An object dies where its last reference goes: in any thread, in the middle of another call, on each
//! rank at its own time. So a drop notes what was held and does nothing else; the next tick ends it,
//! in an order that does not depend on when it was dropped.
//!
//! Lock order: the last of all. Nothing is called and nothing is dropped while it is locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cpkv_core::machine::Reason;
use cpkv_core::{Lease, OperationId};

#[derive(Default)]
struct Held {
    transactions: Vec<OperationId>,
    /// With their numbers, in whose order they were taken.
    leases: Vec<(u64, Lease)>,
}

/// What waits for the next tick of a cache to be ended.
#[derive(Default)]
pub(crate) struct Forgotten(Mutex<Held>);

impl Forgotten {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_transaction(&self, id: OperationId) {
        self.lock().transactions.push(id);
    }

    pub(crate) fn add_lease(&self, number: u64, lease: Lease) {
        self.lock().leases.push((number, lease));
    }

    pub(crate) fn is_empty(&self) -> bool {
        let held = self.lock();
        held.transactions.is_empty() && held.leases.is_empty()
    }

    /// Gives up the transactions and releases the leases.
    pub(crate) fn end(&self, core: &mut cpkv_core::CacheManager) {
        let Held { mut transactions, mut leases } = std::mem::take(&mut *self.lock());
        transactions.sort_unstable();
        for id in transactions {
            core.abort(id, Reason::Aborted).expect("the cache has given this name");
        }
        leases.sort_unstable_by_key(|&(number, _)| number);
        for (_, lease) in leases {
            core.release(lease);
        }
    }
}
