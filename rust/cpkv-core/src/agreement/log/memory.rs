//! The words of a mapped log, by name, for the protocols.

use std::ops::Range;

use super::super::protocol::{self, EntryPlace, Presence, Product, ReportRing};
use super::super::sync::AtomicU64;
use super::LogError;
use super::layout::{HEADER, Layout, READY};
use super::mapping::Mapping;

/// A mapping that is as long as its layout.
#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    layout: Layout,
}

/// The header, if the log is ready.
pub(super) fn header(mapping: &Mapping) -> Option<Vec<u64>> {
    let words = mapping.words();
    protocol::read_header::<Product, _>(&words[READY], &words[..HEADER])
}

impl Memory {
    /// `mapping` has as many words as `layout`.
    pub(super) fn new(mapping: Mapping, layout: Layout) -> Self {
        debug_assert_eq!(mapping.words().len(), layout.words());
        Self { mapping, layout }
    }

    /// Makes a log of zeros one that can be joined.
    pub(super) fn publish(&self, nonce: u64) {
        let words = self.mapping.words();
        protocol::publish_header::<Product, _>(&words[READY], &words[..HEADER], &self.layout.header(nonce));
    }

    pub(super) fn state(&self, rank: u32) -> &AtomicU64 {
        self.word(self.layout.state(rank))
    }

    pub(super) fn presence(&self, rank: u32) -> Result<Presence, LogError> {
        Ok(protocol::presence::<Product>(self.state(rank))?)
    }

    pub(super) fn announce(&self, rank: u32, presence: Presence) {
        protocol::announce::<Product>(self.state(rank), presence);
    }

    pub(super) fn reports(&self, rank: u32) -> ReportRing<'_, AtomicU64> {
        ReportRing {
            tail: self.word(self.layout.tail(rank)),
            head: self.word(self.layout.head(rank)),
            bodies: self.range(self.layout.reports(rank)),
        }
    }

    pub(super) fn entry(&self, number: u64) -> EntryPlace<'_, AtomicU64> {
        EntryPlace { number: self.word(self.layout.entry(number)), bodies: self.range(self.layout.bodies(number)) }
    }

    pub(super) fn applied(&self, rank: u32) -> &AtomicU64 {
        self.word(self.layout.applied(rank))
    }

    pub(super) fn ranks(&self) -> Range<u32> {
        0..self.layout.geometry.ranks
    }

    /// How many entries fit.
    pub(super) fn places(&self) -> u32 {
        self.layout.sizes.entries
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.mapping.words()[place]
    }

    fn range(&self, places: Range<usize>) -> &[AtomicU64] {
        &self.mapping.words()[places]
    }
}
