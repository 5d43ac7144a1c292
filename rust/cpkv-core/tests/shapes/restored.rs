//! Requests that find a part of their prompt on the host, and have it back at once.

use cpkv_core::{Copies, Lease};

use crate::lab::Lab;

impl Lab {
    /// Matches, locks, and restores what is on the host only; `None` if there is no room for it.
    pub(crate) fn bring_back(&mut self, tokens: &[i64]) -> Option<Lease> {
        let mut lease = self.cache.lock(&self.find(tokens), 0);
        let lanes = i64::from(self.cache.lanes().count());
        let slots: Vec<u32> = self.cache.leased_slots(&lease).iter().map(|slot| slot.raw()).collect();
        let wanted: Vec<i64> = slots.iter().map(|&slot| i64::from(slot) % lanes).collect();
        let Some(pages) = self.take_pages_in(&wanted) else {
            self.cache.release(lease);
            return None;
        };
        if self.copies == Copies::Tracked {
            for (slot, &page) in slots.iter().zip(&pages) {
                self.engine.device.insert(u32::try_from(page).unwrap(), self.engine.host[slot]);
            }
        }
        let duplicates = self.cache.restore(&mut lease, &pages).unwrap().duplicates;
        let duplicates: Vec<i64> = duplicates.iter().map(|page| i64::from(page.raw())).collect();
        self.free(&duplicates);
        self.check();
        Some(lease)
    }
}
