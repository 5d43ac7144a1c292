//! What the lab does about restores.

use cpkv_core::machine::Reason;
use cpkv_core::{Lease, OperationId, Pages, Tokens};

use crate::engine::ITEMS;
use crate::lab::{Lab, Request};

impl Lab {
    /// Makes a prompt one that is on the host only.
    pub(crate) fn put_on_host(&mut self, tokens: &[i64]) {
        let mut lease = self.lock(tokens);
        let restores = self.restore(&mut lease, None);
        self.load_all(&restores, false);
        self.land();
        self.tick();
        let request = self.go_on(tokens, lease);
        self.complete(request);
        self.drain();
        self.evict_all();
        let pages = self.cache.shape().pages_in(Tokens(tokens.len())).0;
        assert_eq!(self.found(tokens), (0, pages));
    }

    /// Locks what there is of a prompt.
    pub(crate) fn lock(&mut self, tokens: &[i64]) -> Lease {
        let hit = self.find(tokens);
        self.cache.lock(&hit, 0)
    }

    /// Restores the host part of a lease into new pages, in operations of `part` pages at most; nothing
    /// is submitted yet.
    pub(crate) fn restore(&mut self, lease: &mut Lease, part: Option<u32>) -> Vec<OperationId> {
        let lanes = i64::from(self.cache.lanes().count());
        let placed: Vec<i64> =
            self.cache.leased_slots(lease).unwrap().iter().map(|slot| i64::from(slot.raw()) % lanes).collect();
        let pages = self.take_pages_in(&placed).expect("room");
        self.engine.scribble(pages.iter().map(|&page| u32::try_from(page).unwrap()));
        let restored = self.cache.restore_in_parts(lease, &pages, part.map(Pages)).unwrap();
        let duplicates: Vec<i64> = restored.duplicates.iter().map(|page| i64::from(page.raw())).collect();
        self.free(&duplicates);
        self.check();
        restored.operations
    }

    /// Submits an item of restores.
    pub(crate) fn load(&mut self, restores: &[OperationId], item: usize, fails: bool) {
        for &id in restores {
            self.submit(id, item, fails);
            self.cache.layer_submitted(id, u32::try_from(item).unwrap()).unwrap();
            if item + 1 == ITEMS {
                self.cache.submitted_all(id).unwrap();
            }
        }
    }

    /// Submits all items of restores.
    pub(crate) fn load_all(&mut self, restores: &[OperationId], fails: bool) {
        (0..ITEMS).for_each(|item| self.load(restores, item, fails));
    }

    /// Gives a request up that has done nothing yet.
    pub(crate) fn give_up(&mut self, request: &mut Request) {
        self.cache.abort(request.transaction(), Reason::Aborted).unwrap();
        let pages = std::mem::take(&mut request.pages);
        self.free(&pages);
        self.release(request);
    }

    /// Copies turn out to have failed.
    pub(crate) fn fail(&mut self, restores: &[OperationId]) {
        for &id in restores {
            self.cache.copy_failed(id).unwrap();
        }
    }

    /// Whether a lease can be read in the layers up to `item`; what it reads is then right.
    pub(crate) fn can_read(&self, lease: &Lease, tokens: &[i64], item: usize) -> bool {
        if !self.cache.layer_has_landed(lease, u32::try_from(item).unwrap(), &self.engine.acks).unwrap() {
            return false;
        }
        for (place, page) in (0..).zip(self.cache.leased_pages(lease, Pages(0))) {
            let (device, expected) = (self.engine.device[&page.raw()], self.content(tokens, place));
            assert_eq!(device[..=item], expected[..=item], "page {place}");
        }
        true
    }
}
