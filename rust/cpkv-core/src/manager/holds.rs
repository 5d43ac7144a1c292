//! Device pages that unfinished copies use: none of them is handed out before the copy has ended.

use crate::ids::PageId;
use crate::slots::IdSet;

/// Counts the copies that read or write each page, and remembers what is to be freed after them.
#[derive(Debug, Default)]
pub(super) struct PageHolds {
    /// Open operations that read a page, by page id.
    counts: Vec<u32>,
    /// Pages that nobody has any more but a copy.
    fenced: IdSet,
    fenced_pages: u32,
}

impl PageHolds {
    /// Adds one copy that reads `pages`.
    pub(super) fn hold(&mut self, pages: &[PageId]) {
        let places = pages.iter().map(|page| page.index() + 1).max().unwrap_or(0);
        if places > self.counts.len() {
            self.counts.resize(places, 0);
        }
        for page in pages {
            self.counts[page.index()] += 1;
        }
    }

    /// Takes one copy away; those of `pages` that were fenced and are read by no other are given
    /// to `free`.
    pub(super) fn release(&mut self, pages: &[PageId], mut free: impl FnMut(PageId)) {
        for &page in pages {
            let count = &mut self.counts[page.index()];
            *count -= 1;
            if *count == 0 && self.fenced.remove(page.raw()) {
                self.fenced_pages -= 1;
                free(page);
            }
        }
    }

    /// Whether a copy reads `page`.
    pub(super) fn is_held(&self, page: PageId) -> bool {
        self.readers(page) > 0
    }

    /// How many copies read `page`.
    pub(super) fn readers(&self, page: PageId) -> u32 {
        self.counts.get(page.index()).copied().unwrap_or(0)
    }

    /// Takes a held page from its owner, to be freed after the copy.
    pub(super) fn fence(&mut self, page: PageId) {
        debug_assert!(self.is_held(page));
        self.fenced_pages += u32::from(self.fenced.insert(page.raw()));
    }

    pub(super) fn is_fenced(&self, page: PageId) -> bool {
        self.fenced_pages > 0 && self.fenced.contains(page.raw())
    }

    pub(super) fn fenced(&self) -> &IdSet {
        &self.fenced
    }

    pub(super) fn fenced_pages(&self) -> u32 {
        self.fenced_pages
    }

    /// Copies that read each page of `0 .. pages`.
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u32>() + self.fenced.heap_bytes()
    }
}
