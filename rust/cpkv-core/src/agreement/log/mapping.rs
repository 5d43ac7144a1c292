//! A mapped file, seen as atomic words. The only place of the core with `unsafe`.

use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapOptions, MmapRaw};

use super::super::sync::AtomicU64;

/// The words of a file that other processes write as well.
#[derive(Debug)]
pub(super) struct Mapping {
    memory: MmapRaw,
}

impl Mapping {
    /// Maps the first `bytes` of a file that has as many; at least one.
    pub(super) fn new(file: &OwnedFd, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        Ok(Self { memory: MmapOptions::new().len(bytes).map_raw(file)? })
    }

    /// All words. A last part of one is left out.
    pub(super) fn words(&self) -> &[AtomicU64] {
        #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
        let first = self.memory.as_mut_ptr().cast::<AtomicU64>();
        #[expect(unsafe_code, reason = "shared memory has no other way to become words")]
        // SAFETY: `MmapRaw` keeps `len` readable and writable bytes mapped at a page boundary for as
        // long as `self` lives, any bits are a legal `AtomicU64`, and no part of this process or of
        // another one, if it is this program, accesses them but through atomics. That the file is
        // not made shorter is kept by its mode (0600) and by nobody of this program doing it.
        unsafe {
            std::slice::from_raw_parts(first, self.memory.len() / size_of::<AtomicU64>())
        }
    }
}
