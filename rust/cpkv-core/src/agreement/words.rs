//! Ack words: how far each copy stream of this rank has come.
//!
//! Owns the memory that a stream of the device, or a thread that copies, writes a growing sequence
//! number into. Promises that who reads a number sees all that was written before it was stored
//! (rule landed-before-word). Never compares the numbers of two streams. Nothing here blocks.

use std::fmt;
use std::sync::Arc;

use super::protocol::{self, Product};
use super::sync::AtomicU64;

/// A copy stream of this rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stream(pub u32);

/// Two cache lines, which are fetched together: writers of different streams do not disturb each
/// other.
const LINE_BYTES: usize = 128;
/// What the device's driver pins.
const PAGE_BYTES: usize = 4096;

#[repr(C, align(128))]
struct Line(AtomicU64);

/// Whole pages, so that pinning them pins nothing else.
#[repr(C, align(4096))]
struct Page([Line; PAGE_BYTES / LINE_BYTES]);

const _: () = assert!(size_of::<Page>() == PAGE_BYTES && size_of::<Line>() == LINE_BYTES);

/// Where memory lies, for a driver that pins it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The first byte; a multiple of 4096.
    pub address: usize,
    /// The length; a multiple of 4096.
    pub bytes: usize,
}

/// One growing sequence number for each copy stream of this rank. A clone is the same words.
///
/// ```
/// use cpkv_core::{AckWords, Stream};
///
/// let words = AckWords::new(2);
/// words.store(Stream(1), 7);
/// words.store(Stream(1), 5); // late: harmless
/// assert_eq!((words.load(Stream(0)), words.load(Stream(1))), (0, 7));
/// ```
#[derive(Clone)]
pub struct AckWords {
    pages: Arc<[Page]>,
    streams: u32,
}

impl AckWords {
    /// Words for the streams `0 .. streams`, all zero.
    #[must_use]
    pub fn new(streams: u32) -> Self {
        let pages = (streams as usize).div_ceil(PAGE_BYTES / LINE_BYTES);
        let page = || Page(std::array::from_fn(|_| Line(AtomicU64::new(0))));
        Self { pages: (0..pages).map(|_| page()).collect(), streams }
    }

    /// How many streams there are.
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.streams
    }

    /// All words, to be pinned. Valid while a clone of these words lives.
    #[must_use]
    pub fn range(&self) -> MemoryRange {
        MemoryRange { address: self.pages.as_ptr().expose_provenance(), bytes: size_of_val(&*self.pages) }
    }

    /// Where the word of `stream` lies, for a device that writes it. Valid while a clone of these
    /// words lives. The writer has to order its copies before the write.
    ///
    /// # Panics
    /// If there is no such stream.
    #[must_use]
    pub fn address(&self, stream: Stream) -> usize {
        self.word(stream).as_ptr().expose_provenance()
    }

    /// Says that everything up to `sequence` has ended on `stream`; nothing if it was said before.
    ///
    /// If something of it failed, say so first ([`FailedFlags::fail`](super::FailedFlags::fail)).
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn store(&self, stream: Stream, sequence: u64) {
        protocol::advance::<Product>(self.word(stream), sequence);
    }

    /// Up to where `stream` has come. All that was written before it came there is seen.
    ///
    /// # Panics
    /// If there is no such stream.
    #[must_use]
    pub fn load(&self, stream: Stream) -> u64 {
        protocol::reached::<Product>(self.word(stream))
    }

    fn word(&self, Stream(stream): Stream) -> &AtomicU64 {
        // The last page may have room for more.
        assert!(stream < self.streams, "stream {stream} does not exist, there are {}", self.streams);
        let lines = PAGE_BYTES / LINE_BYTES;
        &self.pages[stream as usize / lines].0[stream as usize % lines].0
    }
}

impl fmt::Debug for AckWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries((0..self.streams).map(|stream| self.load(Stream(stream)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lie_on_lines_and_pages_of_their_own() {
        let words = AckWords::new(33);
        let range = words.range();
        assert_eq!((range.address % 4096, range.bytes), (0, 8192));
        for stream in 0..33 {
            assert_eq!(words.address(Stream(stream)), range.address + stream as usize * 128);
        }
        assert_eq!(AckWords::new(0).range().bytes, 0);
    }

    #[test]
    fn late_reordered_and_repeated_acks_are_harmless() {
        let words = AckWords::new(1);
        for (stored, seen) in [(3, 3), (1, 3), (3, 3), (5, 5), (4, 5), (u64::MAX, u64::MAX)] {
            words.store(Stream(0), stored);
            assert_eq!(words.load(Stream(0)), seen);
        }
    }

    #[test]
    #[should_panic(expected = "stream 2 does not exist, there are 2")]
    fn there_are_no_words_beyond_the_last() {
        let _ = AckWords::new(2).load(Stream(2));
    }

    #[test]
    fn threads_that_ack_at_once_leave_the_highest() {
        let words = AckWords::new(2);
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (words, stream) = (words.clone(), Stream(first % 2));
                scope.spawn(move || (first..4_000).step_by(4).for_each(|n| words.store(stream, n.into())));
            }
            let mut last = 0;
            while last < 3_999 {
                let now = words.load(Stream(1));
                assert!(now >= last);
                last = now;
            }
        });
        assert_eq!(format!("{words:?}"), "[3998, 3999]");
    }
}
