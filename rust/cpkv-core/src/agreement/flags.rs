//! Failed flags: which open operations have a copy on this rank that failed.
//!
//! Owns one word for each place in the table of operations. A thread that copies sets the flag of
//! an operation *before* it advances its ack word past it, and a tick reads the words *before* the
//! flags; then no tick sees the word without the flag (rule landed-before-word). Never cleared but
//! by the next life of the place. Nothing here blocks.

use std::sync::Arc;

use super::OperationId;
use super::protocol;
use super::sync::AtomicU64;

/// Why a flag could not be set or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// The table of flags is smaller than the table of operations: let the operation wait.
    #[error("operation {operation} has no failed flag: its index has to be below {places}")]
    NoPlace {
        /// The operation.
        operation: OperationId,
        /// How many places there are.
        places: u32,
    },
    /// The operation was not opened here, or is over.
    #[error("operation {operation} is not open in the table of failed flags")]
    NotOpen {
        /// The operation.
        operation: OperationId,
    },
}

/// A write-once failed flag for each open operation. A clone is the same flags.
///
/// ```
/// use cpkv_core::{AckWords, FailedFlags, OperationId, Stream};
///
/// let (words, flags) = (AckWords::new(1), FailedFlags::new(1024));
/// let operation = OperationId { index: 3, generation: 0 };
/// flags.open(operation)?; // before a copy of it is submitted
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         flags.fail(operation).expect("open");
///         words.store(Stream(0), 1);
///     });
/// });
/// assert_eq!(words.load(Stream(0)), 1);
/// assert!(flags.has_failed(operation)?);
/// # Ok::<(), cpkv_core::FlagError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FailedFlags {
    flags: Arc<[AtomicU64]>,
}

impl FailedFlags {
    /// Flags for operations with an index below `places`. Takes 8 bytes for each.
    #[must_use]
    pub fn new(places: u32) -> Self {
        Self { flags: (0..places).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Begins the life of an operation, not failed. Goes before its first copy is submitted.
    ///
    /// # Errors
    /// [`FlagError::NoPlace`].
    pub fn open(&self, operation: OperationId) -> Result<(), FlagError> {
        protocol::open(self.flag(operation)?, operation.generation);
        Ok(())
    }

    /// Says for good that a copy of `operation` failed. Goes before the word is advanced.
    ///
    /// # Errors
    /// [`FlagError::NoPlace`]; [`FlagError::NotOpen`] for an operation that is over, which is
    /// harmless, or was never opened.
    pub fn fail(&self, operation: OperationId) -> Result<(), FlagError> {
        let is_set = protocol::fail(self.flag(operation)?, operation.generation);
        if is_set { Ok(()) } else { Err(FlagError::NotOpen { operation }) }
    }

    /// Whether a copy of `operation` has failed. Goes after the words were read.
    ///
    /// # Errors
    /// [`FlagError::NoPlace`], [`FlagError::NotOpen`]: such an operation has not landed.
    pub fn has_failed(&self, operation: OperationId) -> Result<bool, FlagError> {
        protocol::has_failed(self.flag(operation)?, operation.generation).ok_or(FlagError::NotOpen { operation })
    }

    fn flag(&self, operation: OperationId) -> Result<&AtomicU64, FlagError> {
        #[expect(clippy::cast_possible_truncation, reason = "made for a u32 of places")]
        let places = self.flags.len() as u32;
        self.flags.get(operation.index as usize).ok_or(FlagError::NoPlace { operation, places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: OperationId = OperationId { index: 1, generation: u32::MAX };
    const SECOND: OperationId = OperationId { index: 1, generation: 0 };

    #[test]
    fn a_flag_is_set_once_and_for_one_life() {
        let flags = FailedFlags::new(2);
        flags.open(FIRST).expect("a place");
        assert_eq!(flags.has_failed(FIRST), Ok(false));
        flags.fail(FIRST).expect("open");
        flags.fail(FIRST).expect("still open");
        assert_eq!(flags.has_failed(FIRST), Ok(true));

        flags.open(SECOND).expect("a place");
        assert_eq!(flags.fail(FIRST), Err(FlagError::NotOpen { operation: FIRST }));
        assert_eq!(flags.has_failed(FIRST), Err(FlagError::NotOpen { operation: FIRST }));
        assert_eq!(flags.has_failed(SECOND), Ok(false));
    }

    #[test]
    fn what_was_never_opened_is_not_taken_for_intact() {
        let flags = FailedFlags::new(2);
        assert_eq!(flags.has_failed(SECOND), Err(FlagError::NotOpen { operation: SECOND }));
        assert_eq!(flags.fail(SECOND), Err(FlagError::NotOpen { operation: SECOND }));
        let operation = OperationId { index: 2, generation: 0 };
        assert_eq!(flags.open(operation), Err(FlagError::NoPlace { operation, places: 2 }));
    }
}
