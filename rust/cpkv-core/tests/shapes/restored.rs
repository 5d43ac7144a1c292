//! Requests that find a part of their prompt on the host, and have it back at once: the same bytes, on other pages.

use cpkv_core::{CacheConfig, Copies, Lane, Lease, Pages};

use crate::engine::ITEMS;
use crate::every_shape;
use crate::lab::Lab;

impl Lab {
    /// Matches, locks, and restores what is on the host only; `None` if there is no room for it.
    pub(crate) fn bring_back(&mut self, tokens: &[i64]) -> Option<Lease> {
        let mut lease = self.cache.lock(&self.find(tokens), 0);
        let lanes = i64::from(self.cache.lanes().count());
        let slots = self.cache.leased_slots(&lease).unwrap();
        let wanted: Vec<i64> = slots.iter().map(|slot| i64::from(slot.raw()) % lanes).collect();
        let Some(pages) = self.take_pages_in(&wanted) else {
            self.cache.release(lease);
            return None;
        };
        let restored = self.cache.restore(&mut lease, &pages).unwrap();
        let duplicates: Vec<i64> = restored.duplicates.iter().map(|page| i64::from(page.raw())).collect();
        self.free(&duplicates);
        for &id in &restored.operations {
            (0..ITEMS).for_each(|item| self.submit(id, item, false));
            self.cache.submitted_all(id).unwrap();
        }
        if !restored.operations.is_empty() {
            self.land();
            self.tick();
        }
        self.check();
        Some(lease)
    }
}

/// Target and draft come back as they were written, to whatever pages they come.
#[test]
fn what_comes_back_is_what_left() {
    for shape in every_shape() {
        for gone in 1..=6 {
            for splits in [false, true] {
                let lanes = u32::try_from(shape.lanes).unwrap();
                let mut lab = Lab::new(shape, 32, 32);
                let tokens = lab.prompt(0, 6 * lanes);
                let branch = lab.branch(&tokens, 3 * lanes, lanes);
                for prompt in if splits { vec![&tokens, &branch] } else { vec![&tokens] } {
                    let request = lab.start(prompt);
                    lab.complete(request);
                    lab.drain();
                }
                let before = lab.cache.lock(&lab.find(&tokens), 0);
                let pages = lab.cache.leased_pages(&before, Pages(0));
                lab.cache.release(before);
                for lane in (0..lanes).rev() {
                    let freed = lab.cache.evict(Lane(lane), gone).unwrap();
                    lab.scribble(&freed);
                }
                // Others have the pages that it had.
                let lent: Vec<i64> = (0..4 * shape.lanes).map(|page| page % shape.lanes).collect();
                let lent = lab.take_pages_in(&lent).unwrap();
                let lease = lab.bring_back(&tokens).unwrap();
                assert_eq!((lease.device_pages().0, lab.found(&tokens)), (6 * lanes, (6 * lanes, 0)), "{shape:?}");
                assert!(splits || lab.cache.leased_pages(&lease, Pages(0)) != pages, "{shape:?} {gone}");
                lab.check_device();
                lab.recount(u32::try_from(lent.len()).unwrap());
                lab.cache.release(lease);
                lab.free(&lent);
                lab.recount(0);
            }
        }
    }
}

/// The room for it is made of what has no copy, and not of itself.
#[test]
fn making_room_for_what_comes_back_does_not_take_it() {
    for shape in every_shape() {
        for copies in [Copies::Assumed, Copies::Tracked] {
            for in_the_way in 1..=4 {
                let lanes = u32::try_from(shape.lanes).unwrap();
                let mut lab = Lab::with(&CacheConfig { copies, ..shape.config(4, 4) });
                let wanted = lab.prompt(0, 3 * lanes);
                let request = lab.start(&wanted);
                lab.complete(request);
                lab.drain();
                lab.evict_all();
                // The device is full of what the host has no room for.
                let held = lab.cache.lock(&lab.find(&wanted), 0);
                for part in 0..4 / in_the_way {
                    let other = lab.prompt(1_000_000 * i64::from(part + 1), in_the_way * lanes);
                    let request = lab.start(&other);
                    lab.complete(request);
                    lab.drain();
                }
                lab.cache.release(held);
                let lease = lab.bring_back(&wanted).unwrap();
                let what = format!("{shape:?} {copies:?} {in_the_way}");
                assert_eq!((lease.host_pages().0, lab.found(&wanted)), (0, (3 * lanes, 0)), "{what}");
                assert_eq!(lab.cache.stats().counters.restored_pages, u64::from(3 * lanes), "{what}");
                if copies == Copies::Tracked {
                    lab.check_device();
                }
                lab.recount(0);
                lab.cache.release(lease);
            }
        }
    }
}
