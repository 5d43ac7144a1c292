//! How an operation has ended, for whoever holds its name longer than the table does.
//!
//! Owns a cell that is written once, by the table, when it lets the operation go. The memory is shared
//! with the holders and goes with the last of them, so that nothing is kept for ever and nothing is
//! forgotten too early. Holders read it with the cache locked: no order of memory is relied on.

use std::sync::{Arc, OnceLock};

use super::machine::Phase;

/// How one operation has ended. A clone is the same one.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<OnceLock<Phase>>);

impl Ending {
    /// `Committed` or `Gone`; `None` while the operation is open.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.0.get().copied()
    }

    pub(super) fn note(&self, phase: Phase) {
        self.0.set(phase).expect("an operation ends once");
    }
}
