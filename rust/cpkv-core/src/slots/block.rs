//! Up to 64 neighbouring slots as one bit mask; a set bit is a free slot.

use std::ops::Range;

/// The most slots that one block holds.
pub(super) const MOST_SLOTS: u32 = u64::BITS;

/// Neighbouring slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first slot.
    pub(crate) first: u32,
    /// How many there are.
    pub(crate) len: u32,
}

impl Run {
    /// From `first` to `last`.
    pub(crate) fn between(first: u32, last: u32) -> Self {
        Self { first, len: last - first + 1 }
    }

    /// The slots of the run.
    pub(crate) fn slots(self) -> Range<u32> {
        self.first..self.first + self.len
    }

    /// The bits of a run inside one block.
    pub(super) fn mask(self) -> u64 {
        ones(self.len) << self.first
    }
}

/// A mask with the lowest `count` bits set.
pub(super) fn ones(count: u32) -> u64 {
    if count == MOST_SLOTS { u64::MAX } else { (1 << count) - 1 }
}

/// The longest run of set bits, the first of several; of no length for an empty mask.
pub(super) fn longest_run(mask: u64) -> Run {
    let mut longest = Run { first: 0, len: 0 };
    let (mut rest, mut first) = (mask, 0);
    while rest != 0 {
        let gap = rest.trailing_zeros();
        rest >>= gap;
        first += gap;
        let len = rest.trailing_ones();
        if len > longest.len {
            longest = Run { first, len };
        }
        first += len;
        rest = if len == MOST_SLOTS { 0 } else { rest >> len };
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_runs() {
        assert_eq!(longest_run(0), Run { first: 0, len: 0 });
        assert_eq!(longest_run(u64::MAX), Run { first: 0, len: 64 });
        assert_eq!(longest_run(1 << 63), Run { first: 63, len: 1 });
        assert_eq!(longest_run(0b1_0110_1110), Run { first: 1, len: 3 });
        assert_eq!(longest_run(!(1 << 40)), Run { first: 0, len: 40 });
        for first in 0..64 {
            for len in 1..=64 - first {
                let run = Run { first, len };
                assert_eq!(longest_run(run.mask()), run);
            }
        }
    }
}
