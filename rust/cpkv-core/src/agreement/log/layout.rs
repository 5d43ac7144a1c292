//! What lies where in a log, in 64-bit words of the host's byte order.
//!
//! ```text
//! header line | ready line | for each rank: state, applied, tail, head (a line each), reports | entries
//! ```
//!
//! A line is two cache lines, as they are fetched together. Words that different processes write
//! never share one.

use super::super::MOST_RANKS;
use super::{LogError, LogGeometry};

/// Words in a line.
const LINE: usize = 16;
/// Words of the header.
pub(super) const HEADER: usize = 10;
/// Where the ready word lies.
pub(super) const READY: usize = LINE;
/// Bytes that every log has at least.
pub(super) const LEAST_BYTES: u64 = (2 * LINE * size_of::<u64>()) as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"cpkv-log");
const VERSION: u64 = 2;
/// Reads differently in another byte order.
const BYTE_ORDER: u64 = 0x0102_0304_0506_0708;

/// The name of each word of the header.
pub(super) const FIELDS: [&str; HEADER] = [
    "magic",
    "version",
    "byte order",
    "ranks",
    "fingerprint",
    "nonce",
    "reports of a ring",
    "entries",
    "verdicts of an entry",
    "words",
];

/// How much fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    /// Reports of a rank under way to rank 0.
    pub(super) reports: u32,
    /// Entries that not all ranks have read.
    pub(super) entries: u32,
    /// Verdicts in one entry.
    pub(super) verdicts: u32,
}

impl Default for Sizes {
    /// A thousand operations may land at once; then an entry is 8 KiB, a log of 8 ranks 0.8 MiB.
    fn default() -> Self {
        Self { reports: 4096, entries: 64, verdicts: 1021 }
    }
}

/// The places of all words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) geometry: LogGeometry,
    pub(super) sizes: Sizes,
}

impl Layout {
    /// The layout for `rank` to take part in; all sizes are positive.
    pub(super) fn new(rank: u32, geometry: LogGeometry, sizes: Sizes) -> Result<Self, LogError> {
        let ranks = geometry.ranks;
        if !(1..=MOST_RANKS).contains(&ranks) || rank >= ranks {
            return Err(LogError::Ranks { rank, ranks, most: MOST_RANKS });
        }
        Ok(Self { geometry, sizes })
    }

    /// The header of such a log, in the order of [`FIELDS`].
    pub(super) fn header(&self, nonce: u64) -> [u64; HEADER] {
        let Self { geometry: LogGeometry { ranks, fingerprint }, sizes: Sizes { reports, entries, verdicts } } = *self;
        let [ranks, reports, entries, verdicts] = [ranks, reports, entries, verdicts].map(u64::from);
        let words = self.words() as u64;
        [MAGIC, VERSION, BYTE_ORDER, ranks, fingerprint, nonce, reports, entries, verdicts, words]
    }

    pub(super) fn words(&self) -> usize {
        self.entry(0) + self.sizes.entries as usize * self.entry_words()
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.words() * size_of::<u64>()) as u64
    }

    pub(super) fn state(&self, rank: u32) -> usize {
        2 * LINE + rank as usize * (4 * LINE + (self.sizes.reports as usize).next_multiple_of(LINE))
    }

    pub(super) fn applied(&self, rank: u32) -> usize {
        self.state(rank) + LINE
    }

    pub(super) fn tail(&self, rank: u32) -> usize {
        self.state(rank) + 2 * LINE
    }

    pub(super) fn head(&self, rank: u32) -> usize {
        self.state(rank) + 3 * LINE
    }

    pub(super) fn reports(&self, rank: u32) -> std::ops::Range<usize> {
        let first = self.state(rank) + 4 * LINE;
        first..first + self.sizes.reports as usize
    }

    /// The place of entry `number`: its number word. The bodies follow.
    pub(super) fn entry(&self, number: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than the entries, a u32")]
        let place = (number % u64::from(self.sizes.entries)) as usize;
        self.state(self.geometry.ranks) + place * self.entry_words()
    }

    /// The count, the stamp and the verdicts of entry `number`.
    pub(super) fn bodies(&self, number: u64) -> std::ops::Range<usize> {
        let first = self.entry(number) + 1;
        first..first + 2 + self.sizes.verdicts as usize
    }

    fn entry_words(&self) -> usize {
        (3 + self.sizes.verdicts as usize).next_multiple_of(LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_share_a_place_and_writers_share_no_line() {
        for (ranks, reports, entries, verdicts) in [(1, 1, 1, 1), (3, 17, 2, 15), (64, 4096, 64, 1021)] {
            let sizes = Sizes { reports, entries, verdicts };
            let layout = Layout::new(0, LogGeometry { ranks, fingerprint: 0 }, sizes).expect("legal");
            // Which process writes the line: 0 for rank 0.
            let mut lines = vec![None; layout.words() / LINE];
            let mut words = vec![false; layout.words()];
            let mut claim = |word: usize, writer: u32| {
                assert!(!std::mem::replace(&mut words[word], true), "word {word} is used twice");
                assert_eq!(*lines[word / LINE].get_or_insert(writer), writer, "line of word {word} is shared");
            };
            (0..HEADER).chain([READY]).for_each(|word| claim(word, 0));
            for rank in 0..ranks {
                let own = [layout.state(rank), layout.applied(rank), layout.tail(rank)];
                own.into_iter().chain(layout.reports(rank)).for_each(|word| claim(word, rank));
                claim(layout.head(rank), 0);
            }
            for number in 0..u64::from(entries) {
                claim(layout.entry(number), 0);
                layout.bodies(number).for_each(|word| claim(word, 0));
            }
            assert_eq!(layout.words() % LINE, 0);
        }
    }

    #[test]
    fn ranks_that_cannot_be_are_refused() {
        for (rank, ranks) in [(0, 0), (1, 1), (0, 65), (7, 4)] {
            let layout = Layout::new(rank, LogGeometry { ranks, fingerprint: 0 }, Sizes::default());
            assert!(matches!(layout, Err(LogError::Ranks { .. })), "rank {rank} of {ranks}");
        }
    }
}
