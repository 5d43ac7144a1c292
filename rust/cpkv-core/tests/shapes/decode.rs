//! Decode with drafts: pages are taken for tokens that may not be accepted, fill up at any time, and all come
//! back however the request ends.

use cpkv_core::{KeyKind, Lease, Tokens};

use crate::engine::ITEMS;
use crate::every_shape;
use crate::lab::{Lab, Shape};

/// Tokens that the draft proposes in a round, beside the one that is always accepted.
const DRAFTS: usize = 5;

/// A request that decodes.
struct Decode {
    tokens: Vec<i64>,
    lease: Lease,
    /// Pages that are not in the tree, the first of them that of the next page to be full.
    pages: Vec<i64>,
    /// The most tokens there has ever been room for.
    most: usize,
}

impl Decode {
    fn start(lab: &mut Lab, first: i64) -> Self {
        let lease = lab.cache.lock(&lab.find(&[]), 0);
        let mut request = Self { tokens: vec![first], lease, pages: Vec::new(), most: 0 };
        request.make_room(lab);
        request.accept(lab, 0);
        request
    }

    /// Pages for one round more, in their lanes.
    fn make_room(&mut self, lab: &mut Lab) {
        let page_tokens = lab.cache.shape().page_tokens();
        self.most = self.most.max(self.tokens.len() + 1 + DRAFTS);
        let have = self.lease.pages().index() + self.pages.len();
        let wanted = self.most.div_ceil(page_tokens);
        let lanes = lab.cache.lanes().count() as usize;
        let lanes: Vec<i64> = (have..wanted.max(have)).map(|page| i64::try_from(page % lanes).unwrap()).collect();
        self.pages.extend(lab.take_pages_in(&lanes).expect("room"));
        assert_eq!(self.lease.pages().index() + self.pages.len(), wanted, "whole pages, and no more");
    }

    /// So many of the proposed tokens are right. Returns the pages that were new to the cache.
    fn accept(&mut self, lab: &mut Lab, count: usize) -> u32 {
        let next = self.tokens[0] + i64::try_from(self.tokens.len()).unwrap();
        self.tokens.extend((next..).take(count));
        let (first, end) = (self.lease.pages().0, lab.cache.shape().pages_in(Tokens(self.tokens.len())).0);
        let full: Vec<i64> = self.pages.drain(..(end - first) as usize).collect();
        for (page, &id) in (first..).zip(&full) {
            let content = lab.content(&self.tokens, page);
            for (item, value) in content.into_iter().enumerate().take(ITEMS) {
                lab.engine.compute(u32::try_from(id).unwrap(), item, value);
            }
        }
        let inserted = lab.cache.insert(&self.tokens, &full, &mut self.lease).unwrap();
        assert_eq!(inserted.new_pages.index() + inserted.duplicates.len(), full.len());
        let duplicates: Vec<i64> = inserted.duplicates.iter().map(|page| i64::from(page.raw())).collect();
        lab.free(&duplicates);
        inserted.new_pages.0
    }

    fn end(self, lab: &mut Lab) {
        lab.free(&self.pages);
        lab.cache.release(self.lease);
    }
}

#[test]
fn every_page_comes_back_from_any_round_and_none_is_taken_early() {
    for shape in every_shape() {
        for end in [1, 7, 16, 23] {
            for ends_in_verification in [false, true] {
                let mut lab = Lab::new(shape, 160, 160);
                let mut request = Decode::start(&mut lab, 1_000);
                for round in 0..end {
                    request.make_room(&mut lab);
                    lab.recount(u32::try_from(request.pages.len()).unwrap());
                    if round + 1 == end && ends_in_verification {
                        break;
                    }
                    request.accept(&mut lab, 1 + (round * 7 + round / 3) % (1 + DRAFTS));
                    lab.recount(u32::try_from(request.pages.len()).unwrap());
                    if round % 3 == 0 {
                        lab.land();
                    }
                    lab.tick();
                }
                let (tokens, pages) = (request.tokens.clone(), request.lease.pages().0);
                assert_eq!(pages, full_pages(shape, tokens.len()), "{shape:?} {end}");
                request.end(&mut lab);
                lab.recount(0);
                lab.drain();
                lab.recount(0);
                lab.check_device();
                let stats = lab.cache.stats();
                assert_eq!((stats.device_cached_pages, stats.host_cached_slots), (pages, pages), "{shape:?} {end}");
                lab.evict_all();
                assert_eq!(lab.found(&tokens), (0, pages));
                assert_eq!(lab.free_pages(), lab.cache.stats().device_capacity_pages);
            }
        }
    }
}

/// A page is full when all its tokens are there, and with pair keys when the one after them is known.
fn full_pages(shape: Shape, tokens: usize) -> u32 {
    let known = if shape.key == KeyKind::Pair { tokens - 1 } else { tokens };
    u32::try_from(known).unwrap() / u32::try_from(shape.page_tokens).unwrap()
}

/// Requests that decode the same, in turns.
#[test]
fn two_that_decode_the_same_leave_one_copy() {
    for shape in every_shape() {
        let mut lab = Lab::new(shape, 160, 160);
        // Both have found nothing.
        let mut requests = [1_000; 2].map(|first| Decode::start(&mut lab, first));
        for round in 0..10 {
            for request in &mut requests {
                request.make_room(&mut lab);
            }
            let before = requests[0].lease.pages().0;
            let new = requests.each_mut().map(|request| request.accept(&mut lab, 1 + round % 4));
            assert_eq!(new, [requests[0].lease.pages().0 - before, 0], "{shape:?}: the first was faster");
            lab.land();
            lab.tick();
            let held = requests.iter().map(|request| request.pages.len()).sum::<usize>();
            lab.recount(u32::try_from(held).unwrap());
        }
        let (tokens, pages) = (requests[0].tokens.clone(), requests[0].lease.pages().0);
        for request in requests {
            request.end(&mut lab);
        }
        lab.drain();
        lab.recount(0);
        let stats = lab.cache.stats();
        assert_eq!((stats.device_cached_pages, stats.host_cached_slots), (pages, pages), "{shape:?}");
        assert_eq!(stats.counters.late_reserved_pages, u64::from(pages), "one backup");
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, pages));
    }
}
