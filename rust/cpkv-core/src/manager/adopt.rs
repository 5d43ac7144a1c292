//! Pages given to an insertion or a restore, and the nodes that they are for.
//!
//! Where a node is on the device already, the pages given are duplicates; where it is on the host
//! only, they become its device pages.

use super::CacheManager;
use super::pool::run_of;
use crate::error::Result;
use crate::ids::{NodeIndex, PageId};
use crate::slots::Run;
use crate::tree::Step;

impl CacheManager {
    /// The device pages that the nodes of `steps` have, in order; empty if none has one.
    pub(super) fn known_pages(&self, steps: &[Step]) -> Vec<Option<PageId>> {
        if !steps.iter().any(|step| self.tiers_of(step.node).device) {
            return Vec::new();
        }
        let rows = steps.iter().flat_map(|step| &self.tree.rows(step.node)[..step.pages.index()]);
        rows.map(|row| row.device).collect()
    }

    /// Reads page ids and takes them from their request. An id that is in its place already
    /// (`known` has it at the same index) is nobody's to give and is left alone.
    ///
    /// # Errors
    /// If one of the ids may not be given; then none has been taken.
    pub(super) fn claim_all(&mut self, given: &[i64], known: &[Option<PageId>]) -> Result<Vec<PageId>> {
        if known.is_empty()
            && let Some(pages) = self.claim_runs(given)
        {
            return Ok(pages);
        }
        let mut pages = Vec::with_capacity(given.len());
        for (index, &id) in given.iter().enumerate() {
            match self.page_id(id) {
                Some(page) if known.get(index) == Some(&Some(page)) || self.claim(run_of(page)) => pages.push(page),
                _ => {
                    let error = self.why_not(id, index, &pages);
                    self.unclaim_all(&pages, known);
                    return Err(error);
                }
            }
        }
        Ok(pages)
    }

    /// The same by runs of neighbouring ids, as they mostly are; `None`, and none has been taken, if one
    /// may not be given.
    fn claim_runs(&mut self, given: &[i64]) -> Option<Vec<PageId>> {
        let mut pages: Vec<PageId> = Vec::with_capacity(given.len());
        let mut rest = given;
        while !rest.is_empty() {
            let Some(run) = self.run_in_front(rest).filter(|&run| self.claim(run)) else {
                self.unclaim(&pages);
                return None;
            };
            rest = &rest[run.len as usize..];
            pages.extend(run.slots().filter_map(PageId::new));
        }
        Some(pages)
    }

    /// The run of neighbouring ids of the pool that `ids` begin with.
    fn run_in_front(&self, ids: &[i64]) -> Option<Run> {
        let first = self.page_id(*ids.first()?)?;
        let len = ids.iter().zip(i64::from(first.raw())..).take_while(|&(&id, wanted)| id == wanted).count();
        let last = self.page_id(ids[len - 1])?;
        Some(Run::between(first.raw(), last.raw()))
    }

    /// Undoes [`Self::claim_all`].
    pub(super) fn unclaim_all(&mut self, pages: &[PageId], known: &[Option<PageId>]) {
        for (index, &page) in pages.iter().enumerate() {
            if known.get(index) != Some(&Some(page)) {
                self.unclaim(&[page]);
            }
        }
    }

    /// Makes `given` the device pages of a locked node that is on the host only and returns true;
    /// if the node is on the device already, adds those that are not its own to `duplicates`.
    pub(super) fn adopt(&mut self, node: NodeIndex, given: &[PageId], duplicates: &mut Vec<PageId>) -> bool {
        if !self.tiers_of(node).device {
            self.gain_device(node, given);
            return true;
        }
        let others = self.tree.rows(node).iter().zip(given).filter(|(row, given)| row.device != Some(**given));
        duplicates.extend(others.map(|(_, given)| given));
        false
    }
}
