//! A copy engine that moves real bytes and does what a test tells it: copies land when it says so,
//! acknowledgements are held back, copies fail. Beside it the memory of one rank, in which freed
//! pages are scribbled at once.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::collections::{HashMap, VecDeque};

use cpkv_core::{CacheManager, Error, OperationId, OperationKind};

/// What is kept of a page, one item for each layer of each component.
pub(crate) const ITEMS: usize = 3;
/// The items of the target; the others are the draft's.
pub(crate) const TARGET_ITEMS: usize = 2;
/// The copy streams: one for the target, one for the draft.
pub(crate) const STREAMS: usize = 2;

pub(crate) const SCRIBBLE: u64 = 0xEEEE_EEEE_EEEE_EEEE;

/// The bytes of a page or slot.
pub(crate) type Content = [u64; ITEMS];

#[derive(Clone, Debug)]
struct Copy {
    operation: OperationId,
    item: usize,
    /// Device pages and host slots.
    pages: Vec<(u32, u32)>,
    way: Way,
    fails: bool,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    ToHost,
    ToDevice,
}

/// The memory, streams and copies of one rank.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) device: HashMap<u32, Content>,
    pub(crate) host: HashMap<u32, Content>,
    queues: [VecDeque<Copy>; STREAMS],
    submitted: [u64; STREAMS],
    landed: [u64; STREAMS],
    /// What the cache sees: the last landed number, or an older one.
    pub(crate) acks: [u64; STREAMS],
}

impl Engine {
    /// Writes what the forward computes.
    pub(crate) fn compute(&mut self, page: u32, item: usize, value: u64) {
        self.device.entry(page).or_insert([SCRIBBLE; ITEMS])[item] = value;
    }

    /// Nobody may rely on a free page.
    pub(crate) fn scribble(&mut self, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            self.device.insert(page, [SCRIBBLE; ITEMS]);
        }
    }

    /// Submits the copy of one item of the pages of an operation.
    pub(crate) fn submit(
        &mut self,
        cache: &mut CacheManager,
        operation: OperationId,
        item: usize,
        pages: Vec<(u32, u32)>,
        fails: bool,
    ) {
        let kind = cache.operation_kind(operation).unwrap();
        let way = if kind == OperationKind::Restore { Way::ToDevice } else { Way::ToHost };
        let stream = usize::from(item >= TARGET_ITEMS);
        if pages.is_empty() {
            return;
        }
        match cache.submitted(operation, stream, self.submitted[stream] + 1) {
            // The deadline came first; what is refused must not be queued.
            Err(Error::Closed { .. }) if kind == OperationKind::Restore => return,
            done => done.unwrap(),
        }
        self.submitted[stream] += 1;
        self.queues[stream].push_back(Copy { operation, item, pages, way, fails });
    }

    /// The next copy of a stream lands, or fails. The word is not written yet.
    pub(crate) fn land(&mut self, cache: &mut CacheManager, stream: usize) -> bool {
        let Some(copy) = self.queues[stream].pop_front() else { return false };
        if copy.fails {
            // Before any later word can pass it.
            cache.copy_failed(copy.operation).unwrap();
        } else {
            for (page, slot) in copy.pages {
                let device = self.device.entry(page).or_insert([SCRIBBLE; ITEMS]);
                let host = self.host.entry(slot).or_insert([SCRIBBLE; ITEMS]);
                match copy.way {
                    Way::ToHost => host[copy.item] = device[copy.item],
                    Way::ToDevice => device[copy.item] = host[copy.item],
                }
            }
        }
        self.landed[stream] += 1;
        true
    }

    /// The word of a stream reaches what has landed.
    pub(crate) fn acknowledge(&mut self, stream: usize) {
        self.acks[stream] = self.landed[stream];
    }

    pub(crate) fn finish(&mut self, cache: &mut CacheManager) {
        for stream in 0..STREAMS {
            while self.land(cache, stream) {}
            self.acknowledge(stream);
        }
    }
}
