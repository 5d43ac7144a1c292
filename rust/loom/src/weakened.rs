//! The orderings that ship, and each of them weakened alone.

use crate::protocol::Orderings;
use crate::sync::Ordering;

pub(crate) use crate::protocol::Product;

macro_rules! weakened {
    ($($name:ident: $access:ident;)*) => {$(
        #[doc = concat!("[`Orderings::", stringify!($access), "`] is relaxed.")]
        pub(crate) struct $name;

        impl Orderings for $name {
            const $access: Ordering = Ordering::Relaxed;
        }
    )*};
}

weakened! {
    RelaxedAdvance: ADVANCE;
    RelaxedReached: REACHED;
    RelaxedTailStore: TAIL_STORE;
    RelaxedTailLoad: TAIL_LOAD;
    RelaxedHeadStore: HEAD_STORE;
    RelaxedHeadLoad: HEAD_LOAD;
    RelaxedNumberStore: NUMBER_STORE;
    RelaxedNumberLoad: NUMBER_LOAD;
    RelaxedAppliedStore: APPLIED_STORE;
    RelaxedAppliedLoad: APPLIED_LOAD;
    RelaxedStateStore: STATE_STORE;
    RelaxedStateLoad: STATE_LOAD;
    RelaxedReadyStore: READY_STORE;
    RelaxedReadyLoad: READY_LOAD;
}
