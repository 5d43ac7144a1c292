//! The tree's own memory of keys: buffers of tokens with one row of ids per page.
//!
//! An insertion copies its new tokens once, into one buffer. Nodes are [`Slice`]s of buffers, so a
//! split copies nothing and moves no ids. A buffer counts its live pages; one that is less than
//! half alive is written anew ([`PageStore::rewrite`]), so that one surviving page cannot hold a
//! million tokens, and each freed page pays for at most one copied page.
//!
//! The store must not know about nodes beyond the head of each buffer's list of them.

mod tokens;

pub(crate) use tokens::TokenRun;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::{BufferIndex, NodeIndex, PageId, Pages, SlotId};

/// The ids of one page. Which of them are set follows from the tiers of the node that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Row {
    pub(crate) device: Option<PageId>,
    pub(crate) host: Option<SlotId>,
}

impl Row {
    /// The device page of a row whose node is on the device.
    pub(crate) fn page(self) -> PageId {
        self.device.expect("the node is on the device")
    }

    /// The host slot of a row whose node is on the host.
    pub(crate) fn slot(self) -> SlotId {
        self.host.expect("the node is on the host")
    }
}

/// Pages `start .. start + len` of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slice {
    pub(crate) buffer: BufferIndex,
    pub(crate) start: u32,
    pub(crate) len: Pages,
}

impl Slice {
    /// The part from page `first` on.
    pub(crate) fn from(self, first: Pages) -> Self {
        Self { start: self.start + first.0, len: self.len - first, ..self }
    }

    /// The first `len` pages.
    pub(crate) fn up_to(self, len: Pages) -> Self {
        Self { len, ..self }
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len.index()
    }
}

/// One insertion's tokens and rows.
#[derive(Debug)]
pub(crate) struct Buffer {
    tokens: TokenRun,
    rows: Vec<Row>,
    live: u32,
    /// Head of the list of nodes that are slices of this buffer, in no particular order.
    pub(crate) first_node: Option<NodeIndex>,
}

impl Buffer {
    fn heap_bytes(&self) -> usize {
        self.tokens.heap_bytes() + self.rows.capacity() * size_of::<Row>()
    }
}

/// The slab of buffers.
#[derive(Debug)]
pub(crate) struct PageStore {
    page_tokens: usize,
    buffers: Vec<Option<Buffer>>,
    /// The lowest free place is taken first, so that the end can be given back.
    free: BinaryHeap<Reverse<BufferIndex>>,
    /// Buffers that have fallen under half alive since [`Self::take_sparse`].
    sparse: Vec<BufferIndex>,
    buffer_bytes: usize,
    live_pages: u64,
    /// Places from here on are free; as in the arena of nodes.
    end: usize,
}

impl PageStore {
    pub(crate) fn new(page_tokens: usize) -> Self {
        Self {
            page_tokens,
            buffers: Vec::new(),
            free: BinaryHeap::new(),
            sparse: Vec::new(),
            buffer_bytes: 0,
            live_pages: 0,
            end: 0,
        }
    }

    /// Copies the tokens of one or more whole pages into a new buffer with empty rows.
    pub(crate) fn add(&mut self, tokens: &[i64]) -> Slice {
        let pages = u32::try_from(tokens.len() / self.page_tokens).expect("fewer pages than page ids");
        let buffer = Buffer {
            tokens: TokenRun::from_tokens(tokens),
            rows: vec![Row::default(); pages as usize],
            live: pages,
            first_node: None,
        };
        Slice { buffer: self.enter(buffer), start: 0, len: Pages(pages) }
    }

    /// Copies a slice with its rows into a new buffer.
    pub(crate) fn copy(&mut self, slice: Slice) -> Slice {
        let copied = self.join(slice.up_to(Pages::ZERO), slice);
        debug_assert_eq!(copied.len, slice.len);
        copied
    }

    /// Copies two slices with their rows into a new buffer, one behind the other. The old ones stay.
    pub(crate) fn join(&mut self, front: Slice, back: Slice) -> Slice {
        let part = |slice: Slice| {
            let pages = slice.range();
            (&self.buffer(slice.buffer).tokens, pages.start * self.page_tokens..pages.end * self.page_tokens)
        };
        let buffer = Buffer {
            tokens: TokenRun::joined(part(front), part(back)),
            rows: [self.rows(front), self.rows(back)].concat(),
            live: (front.len + back.len).0,
            first_node: None,
        };
        Slice { buffer: self.enter(buffer), start: 0, len: front.len + back.len }
    }

    fn enter(&mut self, buffer: Buffer) -> BufferIndex {
        self.buffer_bytes += buffer.heap_bytes();
        self.live_pages += u64::from(buffer.live);
        let index = if let Some(Reverse(index)) = self.free.pop() {
            self.buffers[index.index()] = Some(buffer);
            index
        } else {
            let raw = u32::try_from(self.buffers.len()).expect("fewer buffers than page ids");
            self.buffers.push(Some(buffer));
            BufferIndex::new(raw).expect("fewer buffers than page ids")
        };
        self.end = self.end.max(index.index() + 1);
        index
    }

    pub(crate) fn buffer(&self, index: BufferIndex) -> &Buffer {
        self.buffers[index.index()].as_ref().expect("a node's buffer exists")
    }

    pub(crate) fn buffer_mut(&mut self, index: BufferIndex) -> &mut Buffer {
        self.buffers[index.index()].as_mut().expect("a node's buffer exists")
    }

    pub(crate) fn rows(&self, slice: Slice) -> &[Row] {
        &self.buffer(slice.buffer).rows[slice.range()]
    }

    pub(crate) fn rows_mut(&mut self, slice: Slice) -> &mut [Row] {
        &mut self.buffer_mut(slice.buffer).rows[slice.range()]
    }

    /// The token at `offset` from the start of `slice`.
    pub(crate) fn token(&self, slice: Slice, offset: usize) -> i64 {
        self.buffer(slice.buffer).tokens.get(slice.start as usize * self.page_tokens + offset)
    }

    /// How many tokens of `query` equal those of `slice` from its page `first` on.
    pub(crate) fn equal_prefix(&self, slice: Slice, first: Pages, query: &[i64]) -> usize {
        let start = (slice.start as usize + first.index()) * self.page_tokens;
        let most = (slice.len - first).index() * self.page_tokens;
        self.buffer(slice.buffer).tokens.equal_prefix(start, most, query)
    }

    /// Notes that `pages` of a buffer are dead. Slices stay valid until [`Self::rewrite`].
    pub(crate) fn release(&mut self, index: BufferIndex, pages: Pages) {
        let buffer = self.buffers[index.index()].as_mut().expect("a node's buffer exists");
        let was_sparse = is_sparse(buffer);
        buffer.live -= pages.0;
        self.live_pages -= u64::from(pages.0);
        if buffer.live == 0 {
            self.buffer_bytes -= buffer.heap_bytes();
            self.buffers[index.index()] = None;
            self.free.push(Reverse(index));
        } else if is_sparse(buffer) && !was_sparse {
            self.sparse.push(index);
        }
    }

    /// Takes one of the buffers that should be rewritten.
    pub(crate) fn take_sparse(&mut self) -> Option<BufferIndex> {
        while let Some(index) = self.sparse.pop() {
            // The buffer may be gone since, and its place may hold another one.
            if self.buffers[index.index()].as_ref().is_some_and(is_sparse) {
                return Some(index);
            }
        }
        None
    }

    /// Writes a buffer anew with only `slices`, which are all that is alive in it, sorted by
    /// start. Afterwards the slices lie one behind another from page 0.
    pub(crate) fn rewrite(&mut self, index: BufferIndex, slices: &[Slice]) {
        let page_tokens = self.page_tokens;
        let buffer = self.buffers[index.index()].as_mut().expect("a node's buffer exists");
        self.buffer_bytes -= buffer.heap_bytes();
        let mut end = 0;
        let is_head = slices.iter().all(|slice| {
            let follows = slice.start == end;
            end += slice.len.0;
            follows
        });
        if is_head {
            buffer.tokens.truncate(buffer.live as usize * page_tokens);
            buffer.rows.truncate(buffer.live as usize);
            buffer.rows.shrink_to_fit();
        } else {
            let ranges = slices.iter().map(|slice| {
                let pages = slice.range();
                pages.start * page_tokens..pages.end * page_tokens
            });
            buffer.tokens = TokenRun::gather(&buffer.tokens, ranges);
            let mut rows = Vec::with_capacity(buffer.live as usize);
            for slice in slices {
                rows.extend_from_slice(&buffer.rows[slice.range()]);
            }
            buffer.rows = rows;
        }
        self.buffer_bytes += buffer.heap_bytes();
    }

    /// Gives the memory of free places at the end of the slab back, if they are most of all.
    pub(crate) fn shrink(&mut self) {
        /// Fewer places than this are not worth giving back.
        const FEW: usize = 1_024;
        while self.end > 0 && self.buffers[self.end - 1].is_none() {
            self.end -= 1;
        }
        if self.buffers.len() >= FEW && self.end <= self.buffers.len() / 4 {
            self.buffers.truncate(self.end);
            self.buffers.shrink_to(self.end * 2);
            self.free.retain(|Reverse(index)| index.index() < self.end);
            self.free.shrink_to(self.end);
        }
    }

    /// Pages that nodes hold.
    pub(crate) fn live_pages(&self) -> u64 {
        self.live_pages
    }

    /// Bytes allocated on the heap, buffers and slab.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.buffer_bytes
            + self.buffers.capacity() * size_of::<Option<Buffer>>()
            + (self.free.capacity() + self.sparse.capacity()) * size_of::<BufferIndex>()
    }

    /// Lists what is wrong: `live` counts that are not those given, buffers left sparse.
    pub(crate) fn check(&self, live_of: impl Fn(BufferIndex) -> u32, problems: &mut Vec<String>) {
        let mut bytes = 0;
        let mut live_pages = 0;
        for (raw, buffer) in (0..).zip(&self.buffers) {
            let index = BufferIndex::new(raw).expect("made by add");
            let Some(buffer) = buffer else { continue };
            bytes += buffer.heap_bytes();
            live_pages += u64::from(buffer.live);
            let live = live_of(index);
            if live != buffer.live {
                problems.push(format!("{index:?}: {live} pages in nodes, {} counted", buffer.live));
            }
            if is_sparse(buffer) {
                problems.push(format!("{index:?}: {live} of {} pages alive", buffer.rows.len()));
            }
        }
        if bytes != self.buffer_bytes || live_pages != self.live_pages {
            problems.push(format!(
                "store: {bytes} bytes and {live_pages} pages, counted {} and {}",
                self.buffer_bytes, self.live_pages
            ));
        }
    }
}

fn is_sparse(buffer: &Buffer) -> bool {
    (buffer.live as usize) * 2 < buffer.rows.len()
}
