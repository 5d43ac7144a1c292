//! Which slots of one lane are free.
//!
//! Slots are given out in runs: what decides the bandwidth of a copy is how long the contiguous
//! rows are. The pool takes whole free blocks first, then the shortest run inside a block that is
//! long enough, then the longest there are. A block is a segment, or a part of a long one; it never
//! crosses the end of a segment. Pools of any capacity start small: blocks that were never used
//! take no memory.
//!
//! The pool knows free and used, and refuses what would free a slot twice. What a used slot is
//! used for is not its business.

mod block;
mod id_set;
mod laned;

pub(crate) use block::Run;
pub(crate) use id_set::IdSet;
pub(crate) use laned::{LaneCounts, LanedPool};

use crate::digest::Digest;
use block::{MOST_SLOTS, longest_run, ones};

/// Ends of lists and absent neighbours.
const NONE: u32 = u32::MAX;

/// Some slots are free and some are not; linked to the blocks with a longest run as long as its.
#[derive(Clone, Copy, Debug)]
struct Block {
    free: u64,
    /// The longest run of free slots, which is also the list that the block is in.
    longest: Run,
    next: u32,
    previous: u32,
}

/// Allocations and the runs that they were made of; the quotient is the mean run length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunLengths {
    /// Slots given out so far.
    pub slots: u64,
    /// Runs of neighbouring slots among them.
    pub runs: u64,
}

impl RunLengths {
    /// Slots in a run on average; 0 before the first.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean for people to read")]
    pub fn mean(self) -> f64 {
        if self.runs == 0 { 0.0 } else { self.slots as f64 / self.runs as f64 }
    }
}

/// The slots `0 .. capacity` of one lane.
#[derive(Debug)]
pub(crate) struct SlotPool {
    capacity: u32,
    segment_slots: u32,
    blocks_per_segment: u32,
    /// Blocks that have been used at least once; the others are all free.
    blocks: Vec<Block>,
    /// Heads of the lists of blocks by the length of their longest free run, 1 to 64.
    heads: [u32; MOST_SLOTS as usize + 1],
    /// Bit `n - 1` is set if the list for length `n` is not empty.
    lengths: u64,
    free: u32,
    run_lengths: RunLengths,
}

impl SlotPool {
    /// A pool of `capacity` slots in segments of `segment_slots`; the last one may be shorter.
    ///
    /// With segments of a single slot neighbours are worth nothing, and slots are grouped only to
    /// be quick.
    ///
    /// # Panics
    /// If `segment_slots` is 0.
    pub(crate) fn new(capacity: u32, segment_slots: u32) -> Self {
        assert!(segment_slots > 0, "a segment has slots");
        let segment_slots = if segment_slots == 1 { MOST_SLOTS } else { segment_slots };
        Self {
            capacity,
            segment_slots,
            blocks_per_segment: segment_slots.div_ceil(MOST_SLOTS),
            blocks: Vec::new(),
            heads: [NONE; MOST_SLOTS as usize + 1],
            lengths: 0,
            free: capacity,
            run_lengths: RunLengths::default(),
        }
    }

    /// All slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Slots that are free.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// How long the runs were so far.
    pub(crate) fn run_lengths(&self) -> RunLengths {
        self.run_lengths
    }

    /// Whether `slot` is free; also false beyond the capacity.
    pub(crate) fn is_free(&self, slot: u32) -> bool {
        let (block, bit) = self.place(slot);
        slot < self.capacity && self.blocks.get(block as usize).is_none_or(|block| block.free >> bit & 1 == 1)
    }

    /// Gives `count` slots to `take`, run by run, or none at all and returns false.
    pub(crate) fn allocate(&mut self, count: u32, mut take: impl FnMut(Run)) -> bool {
        if count > self.free {
            return false;
        }
        let mut left = count;
        let mut end = NONE;
        while left > 0 {
            let (block, within) = self.choose(left);
            self.take_run(block, within);
            let run = Run { first: self.first_slot(block) + within.first, ..within };
            // Runs of neighbouring blocks of one segment are one run.
            let continues = run.first == end && !end.is_multiple_of(self.segment_slots);
            self.run_lengths.runs += u64::from(!continues);
            self.run_lengths.slots += u64::from(run.len);
            take(run);
            end = run.first + run.len;
            left -= run.len;
        }
        true
    }

    /// Takes `slots` back, neighbours together; false, and nothing more is taken back, at one
    /// that is free already.
    pub(crate) fn release(&mut self, slots: impl IntoIterator<Item = u32>) -> bool {
        let mut slots = slots.into_iter();
        let Some(first) = slots.next() else { return true };
        let mut run = Run { first, len: 1 };
        for slot in slots {
            if slot == run.first.wrapping_add(run.len) {
                run.len += 1;
            } else {
                if !self.release_run(run) {
                    return false;
                }
                run = Run { first: slot, len: 1 };
            }
        }
        self.release_run(run)
    }

    fn release_run(&mut self, run: Run) -> bool {
        let Some(end) = run.first.checked_add(run.len).filter(|&end| end <= self.capacity) else { return false };
        let mut first = run.first;
        while first < end {
            let (block, bit) = self.place(first);
            let Some(free) = self.blocks.get(block as usize).map(|block| block.free) else { return false };
            let len = (self.block_slots(block) - bit).min(end - first);
            let mask = Run { first: bit, len }.mask();
            if free & mask != 0 {
                return false;
            }
            self.set_free(block, free | mask);
            self.free += len;
            first += len;
        }
        true
    }

    /// Bytes allocated on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    pub(crate) fn add_to_digest(&self, digest: &mut Digest) {
        digest.add(u64::from(self.free));
        self.blocks.iter().for_each(|block| digest.add(block.free));
    }

    /// Lists what is wrong with the counts and lists.
    pub(crate) fn check(&self, name: &str, problems: &mut Vec<String>) {
        let blocks = u32::try_from(self.blocks.len()).expect("fewer blocks than slots");
        let untouched = self.capacity.saturating_sub(if blocks == 0 { 0 } else { self.block_end(blocks - 1) });
        let free: u32 = self.blocks.iter().map(|block| block.free.count_ones()).sum();
        if free + untouched != self.free {
            problems.push(format!("{name}: {} slots free, counted {}", free + untouched, self.free));
        }
        let mut listed = 0;
        for length in 1..=MOST_SLOTS {
            let head = self.heads[length as usize];
            if (self.lengths >> (length - 1) & 1 == 1) != (head != NONE) {
                problems.push(format!("{name}: wrong mark for runs of {length}"));
            }
            let (mut next, mut previous) = (head, NONE);
            while next != NONE {
                let block = &self.blocks[next as usize];
                if block.longest != longest_run(block.free) || block.longest.len != length || block.previous != previous
                {
                    problems.push(format!("{name}: block {next} is in the list for {length}"));
                }
                listed += 1;
                previous = next;
                next = block.next;
            }
        }
        let with_room = self.blocks.iter().filter(|block| block.free != 0).count();
        if listed != with_room {
            problems.push(format!("{name}: {with_room} blocks have room, {listed} are listed"));
        }
    }

    /// The block to take `left` slots or a part of them from, and the run to take there.
    fn choose(&mut self, left: u32) -> (u32, Run) {
        let whole = self.segment_slots.min(MOST_SLOTS);
        // The shortest run that is long enough: a whole block is broken only if no used one serves.
        let long_enough = self.lengths & !ones(left.min(whole) - 1);
        let length = if long_enough != 0 {
            long_enough.trailing_zeros() + 1
        } else if let Some(block) = self.add_block() {
            return (block, Run { first: 0, len: left.min(self.block_slots(block)) });
        } else {
            // Nothing is long enough: the longest there is.
            MOST_SLOTS - self.lengths.leading_zeros()
        };
        let block = self.heads[length as usize];
        let run = self.blocks[block as usize].longest;
        (block, Run { len: run.len.min(left), ..run })
    }

    fn take_run(&mut self, block: u32, run: Run) {
        let free = self.blocks[block as usize].free & !run.mask();
        self.set_free(block, free);
        self.free -= run.len;
    }

    /// The next block that was never used, all free and in no list yet; `None` at the end.
    fn add_block(&mut self) -> Option<u32> {
        let block = u32::try_from(self.blocks.len()).expect("fewer blocks than slots");
        let first = self.first_slot(block);
        if first >= self.capacity {
            return None;
        }
        let free = ones(self.block_slots(block));
        self.blocks.push(Block { free: 0, longest: Run { first: 0, len: 0 }, next: NONE, previous: NONE });
        self.set_free(block, free);
        Some(block)
    }

    /// Changes the free slots of a block and moves it to the list that it belongs to now.
    fn set_free(&mut self, block: u32, free: u64) {
        let Block { longest: before, next, previous, .. } = self.blocks[block as usize];
        let longest = longest_run(free);
        self.blocks[block as usize].free = free;
        self.blocks[block as usize].longest = longest;
        if longest.len == before.len {
            return;
        }
        if before.len > 0 {
            match previous {
                NONE => self.heads[before.len as usize] = next,
                previous => self.blocks[previous as usize].next = next,
            }
            if next != NONE {
                self.blocks[next as usize].previous = previous;
            }
            if self.heads[before.len as usize] == NONE {
                self.lengths &= !(1 << (before.len - 1));
            }
        }
        if longest.len > 0 {
            let head = std::mem::replace(&mut self.heads[longest.len as usize], block);
            self.lengths |= 1 << (longest.len - 1);
            self.blocks[block as usize].next = head;
            self.blocks[block as usize].previous = NONE;
            if head != NONE {
                self.blocks[head as usize].previous = block;
            }
        }
    }

    /// The block of a slot and the slot's bit in it.
    fn place(&self, slot: u32) -> (u32, u32) {
        let (segment, within) = (slot / self.segment_slots, slot % self.segment_slots);
        (segment * self.blocks_per_segment + within / MOST_SLOTS, within % MOST_SLOTS)
    }

    fn first_slot(&self, block: u32) -> u32 {
        let (segment, part) = (block / self.blocks_per_segment, block % self.blocks_per_segment);
        // Saturating: the block behind the last one of a very large pool is only compared.
        segment.saturating_mul(self.segment_slots).saturating_add(part * MOST_SLOTS)
    }

    fn block_end(&self, block: u32) -> u32 {
        self.first_slot(block) + self.block_slots(block)
    }

    fn block_slots(&self, block: u32) -> u32 {
        let first = self.first_slot(block);
        let in_segment = self.segment_slots - first % self.segment_slots;
        in_segment.min(MOST_SLOTS).min(self.capacity - first)
    }
}

#[cfg(test)]
mod tests;
