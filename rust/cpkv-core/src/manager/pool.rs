//! Device pages: allocation if cpkv owns the pool, and the checks that no page has two owners.

use super::placement::{Placement, check_lane};
use super::{CacheManager, DevicePages};
use crate::error::{Error, Result};
use crate::ids::{Lane, PageId};
use crate::slots::Run;

impl CacheManager {
    /// Takes free pages for consecutive pages of a prompt. `None` if a lane has too few.
    ///
    /// # Errors
    /// [`Error::ExternalPool`] if the engine owns the pool, [`Error::NoSuchLane`].
    pub fn allocate(&mut self, placement: Placement<'_>) -> Result<Option<Vec<PageId>>> {
        let lanes = self.lanes;
        let wanted = placement.counts(lanes)?;
        let DevicePages::Own { pool, requested } = &mut self.device.pages else {
            return Err(Error::ExternalPool { call: "allocate" });
        };
        if !pool.shortage(&wanted).is_zero() {
            return Ok(None);
        }
        let mut pages = Vec::with_capacity(wanted.total() as usize);
        pool.deal(
            &wanted,
            |place| placement.lane_at(place, lanes),
            |run| run.add_to(requested),
            |id| pages.extend(PageId::new(id)),
        );
        Ok(Some(pages))
    }

    /// Gives back pages that were not inserted. Returns those that are free now, which are the
    /// engine's to free if it owns the pool; what unfinished copies read follows with later ticks.
    ///
    /// # Errors
    /// [`Error::PageNotAllocated`], [`Error::PageInTree`], [`Error::PageOutOfRange`],
    /// [`Error::PageRepeated`] or [`Error::PageHeld`]; then no page is given back.
    pub fn free(&mut self, pages: &[i64]) -> Result<Vec<PageId>> {
        let mut freed = self.claim_all(pages, &[])?;
        if let DevicePages::Engine { cached } = &mut self.device.pages {
            for page in &freed {
                cached.remove(page.raw());
            }
        }
        self.fence_held(&mut freed);
        self.give_back(&freed);
        Ok(freed)
    }

    /// Makes pages free that nobody has any more.
    pub(super) fn give_back(&mut self, pages: &[PageId]) {
        if let DevicePages::Own { pool, .. } = &mut self.device.pages {
            pool.release(pages.iter().map(|page| page.raw()));
        }
    }

    /// Tells the engine with the next tick which of its pages are free. Those of an own pool are
    /// free at once.
    pub(super) fn report_freed(&mut self, pages: Vec<PageId>) {
        if matches!(self.device.pages, DevicePages::Engine { .. }) {
            self.outcomes.freed_pages.extend(pages);
        }
    }

    /// Free pages of a lane; 0 if the engine owns the pool.
    ///
    /// # Errors
    /// [`Error::NoSuchLane`].
    pub fn free_pages(&self, lane: Lane) -> Result<u32> {
        self.check_lane(lane)?;
        match &self.device.pages {
            DevicePages::Own { pool, .. } => Ok(pool.free(lane)),
            DevicePages::Engine { .. } => Ok(0),
        }
    }

    pub(super) fn check_lane(&self, lane: Lane) -> Result<Lane> {
        check_lane(i64::from(lane.0), self.lanes)
    }

    /// The page id that an argument holds, if it is one of the pool's.
    pub(super) fn page_id(&self, id: i64) -> Option<PageId> {
        u32::try_from(id).ok().filter(|&raw| raw < self.device.capacity).and_then(PageId::new)
    }

    /// Takes neighbouring pages from their request, for the tree or to be freed; false, and none is
    /// taken, if one of them is not the request's.
    pub(super) fn claim(&mut self, run: Run) -> bool {
        match &mut self.device.pages {
            DevicePages::Own { requested, .. } => requested.remove_run(run),
            DevicePages::Engine { cached } => {
                let is_fenced = run.slots().filter_map(PageId::new).any(|page| self.holds.is_fenced(page));
                !is_fenced && cached.insert_new_run(run)
            }
        }
    }

    /// Why the page id at `index` of an argument cannot be claimed, after those `before` it were.
    pub(super) fn why_not(&self, id: i64, index: usize, before: &[PageId]) -> Error {
        let Some(page) = self.page_id(id) else {
            return Error::PageOutOfRange { page: id, index, last: self.device.capacity - 1 };
        };
        let is_free = match &self.device.pages {
            DevicePages::Own { pool, .. } => pool.is_free(page.raw()),
            DevicePages::Engine { .. } => false,
        };
        let page_id = page.raw();
        if self.holds.is_fenced(page) {
            Error::PageHeld { page: page_id, index }
        } else if before.contains(&page) {
            Error::PageRepeated { page: page_id, index }
        } else if is_free {
            Error::PageNotAllocated { page: page_id, index }
        } else {
            Error::PageInTree { page: page_id, index }
        }
    }

    /// Gives claimed pages back to their request.
    pub(super) fn unclaim(&mut self, pages: &[PageId]) {
        for run in runs_of(pages) {
            match &mut self.device.pages {
                DevicePages::Own { requested, .. } => requested.insert_run(run),
                DevicePages::Engine { cached } => {
                    let was_in = cached.remove_run(run);
                    debug_assert!(was_in, "it was claimed before");
                }
            }
        }
    }
}

pub(super) fn run_of(page: PageId) -> Run {
    Run { first: page.raw(), len: 1 }
}

/// The runs of ascending neighbours that pages stand in.
fn runs_of(pages: &[PageId]) -> impl Iterator<Item = Run> {
    let mut rest = pages;
    std::iter::from_fn(move || {
        let first = rest.first()?.raw();
        let len = rest.iter().zip(first..).take_while(|(page, wanted)| page.raw() == *wanted).count();
        rest = &rest[len..];
        Some(Run { first, len: u32::try_from(len).expect("fewer pages than ids") })
    })
}
