//! The calls of a step: report, write an entry, read an entry.

use std::collections::VecDeque;

use super::super::protocol::{self, Impossible, Product};
use super::super::{Report, Stamp, Tally, Verdict};
use super::memory::Memory;
use super::packing::{pack_report, pack_verdict, unpack_report, unpack_verdict};
use super::waiting::Progress;
use super::{CommitLog, LogError};

/// What only rank 0 has.
#[derive(Debug)]
pub(super) struct Zero {
    tally: Tally,
    /// Reports taken of each rank so far.
    taken: Vec<u64>,
    /// Verdicts that are not in an entry yet, packed.
    verdicts: VecDeque<u64>,
    /// Entries written so far.
    written: u64,
    /// Entries with a number below this fit; it has to be looked for more room after them.
    room_end: u64,
}

impl Zero {
    pub(super) fn new(tally: Tally, ranks: u32, places: u32) -> Self {
        let (taken, room_end) = (vec![0; ranks as usize], u64::from(places));
        Self { tally, taken, verdicts: VecDeque::new(), written: 0, room_end }
    }

    /// Makes verdicts from all reports that have come, rank by rank.
    fn collect(&mut self, memory: &Memory, own: &mut VecDeque<u64>, words: &mut Vec<u64>) -> Result<(), LogError> {
        for (rank, taken) in memory.ranks().zip(&mut self.taken) {
            words.clear();
            if rank == 0 {
                words.extend(own.drain(..));
            } else {
                memory.reports(rank).take::<Product>(taken, words)?;
            }
            for word in words.drain(..) {
                if let Some(verdict) = self.tally.add(rank, unpack_report(word)?) {
                    self.verdicts.push_back(pack_verdict(verdict)?);
                }
            }
        }
        Ok(())
    }
}

impl CommitLog {
    /// Reports, in this order, what this rank sees. What does not fit the ring goes with a later
    /// call; nothing is lost, and nothing waits.
    ///
    /// # Errors
    /// [`LogError::Index`]: then none of `reports` is taken. [`LogError::Corrupt`].
    pub fn report(&mut self, reports: impl IntoIterator<Item = Report>) -> Result<(), LogError> {
        let queued = self.queue.len();
        for report in reports {
            match pack_report(report) {
                Ok(word) => self.queue.push_back(word),
                Err(error) => {
                    self.queue.truncate(queued);
                    return Err(error);
                }
            }
        }
        self.flush()
    }

    /// Notes what this rank's cache has come to by the step whose entry is due: of rank 0 it goes with
    /// the entry, with that of the others the entry is compared.
    pub fn stamp(&mut self, stamp: Stamp) {
        self.stamp = stamp;
    }

    /// Puts into the ring what fits. Rank 0 has none: it takes its own reports when it writes.
    pub(super) fn flush(&mut self) -> Result<(), LogError> {
        if self.rank != 0 {
            self.memory.reports(self.rank).send::<Product>(&mut self.sent, &mut self.queue)?;
        }
        Ok(())
    }

    /// Writes the next entry, as rank 0: the verdicts that follow from the reports that have come,
    /// or none. Verdicts that do not fit go with the next entry. Waits for the slowest reader if
    /// the ring is full.
    ///
    /// # Errors
    /// [`LogError::NotRankZero`], [`LogError::Unread`], [`LogError::Corrupt`]; [`LogError::Dead`],
    /// [`LogError::Left`], [`LogError::Silent`] and [`LogError::Paused`] while waiting. No verdict is
    /// lost by any.
    pub fn write_entry(&mut self) -> Result<(), LogError> {
        let Some(zero) = &mut self.zero else { return Err(LogError::NotRankZero { rank: self.rank }) };
        let memory = &self.memory;
        zero.collect(memory, &mut self.queue, &mut self.words)?;

        let (number, places) = (zero.written, u64::from(memory.places()));
        let unread = number - self.read;
        if unread >= places {
            return Err(LogError::Unread { unread });
        }
        if number >= zero.room_end {
            let ask = || {
                let applied = memory.ranks().map(|rank| memory.applied(rank));
                let slowest = protocol::slowest::<Product>(applied, number)?;
                let room_end = slowest.applied + places;
                Ok(if number < room_end { Progress::Done(room_end) } else { Progress::Awaiting(slowest.rank) })
            };
            zero.room_end = self.watch.wait(&self.files, memory, self.watch.patience.deadline, ask)?;
        }
        // The first word of each entry.
        zero.verdicts.push_front(self.stamp.digest);
        memory.entry(number).publish::<Product>(number, &mut zero.verdicts);
        zero.written += 1;
        Ok(())
    }

    /// Appends the verdicts of the next entry to `into`. Waits for rank 0 if it is not written.
    ///
    /// # Errors
    /// [`LogError::Unwritten`], [`LogError::Corrupt`], [`LogError::Parted`]; [`LogError::Dead`],
    /// [`LogError::Left`], [`LogError::Silent`] and [`LogError::Paused`] while waiting. Then nothing was read.
    pub fn read_entry(&mut self, into: &mut Vec<Verdict>) -> Result<(), LogError> {
        if let Some(&Zero { written, .. }) = self.zero.as_ref().filter(|zero| zero.written == self.read) {
            return Err(LogError::Unwritten { written });
        }
        self.flush()?;
        let (memory, words, number) = (&self.memory, &mut self.words, self.read);
        words.clear();
        let places = memory.places() as usize;
        let ask = || {
            let is_written = memory.entry(number).read::<Product>(number, places, words)?;
            Ok(if is_written { Progress::Done(()) } else { Progress::Awaiting(0) })
        };
        match self.watch.wait(&self.files, memory, self.watch.patience.deadline, ask) {
            Err(LogError::Silent { waited, .. }) => {
                return Err(LogError::Silent { rank: self.holds_up(number)?, waited });
            }
            other => other?,
        }

        let mut words = self.words.drain(..);
        let of_zero =
            words.next().ok_or(Impossible { word: "count of an entry", seen: 0, least: 1, most: u64::MAX })?;
        if of_zero != self.stamp.digest {
            let Stamp { step, digest: own } = self.stamp;
            return Err(LogError::Parted { rank: self.rank, step, own, of_zero });
        }
        let before = into.len();
        for word in words {
            match unpack_verdict(word) {
                Ok(verdict) => into.push(verdict),
                Err(impossible) => {
                    into.truncate(before);
                    return Err(impossible.into());
                }
            }
        }
        self.read += 1;
        protocol::applied::<Product>(memory.applied(self.rank), self.read);
        Ok(())
    }

    /// Who is to blame if entry `number`, the next one, is not written: whoever keeps the ring full, or rank 0.
    fn holds_up(&self, number: u64) -> Result<u32, LogError> {
        let applied = self.memory.ranks().map(|rank| self.memory.applied(rank));
        // Others may be ahead of this rank by now.
        let slowest = protocol::slowest::<Product>(applied, u64::MAX)?;
        let is_full = slowest.applied + u64::from(self.memory.places()) <= number;
        Ok(if is_full { slowest.rank } else { 0 })
    }

    /// Reports that wait for room in the ring; on rank 0, for the next entry.
    #[must_use]
    pub fn queued_reports(&self) -> usize {
        self.queue.len()
    }
}
