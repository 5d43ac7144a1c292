//! Many requests that end in one step: a backup for each and not for each of their pages, handed out by one tick
//! and committed by one, each once, and held until then.

use cpkv_core::{OperationId, Reserved};

use crate::engine::{ITEMS, TARGET_ITEMS};
use crate::every_shape;
use crate::lab::{Lab, Request, Shape};

const REQUESTS: u32 = 32;
const PAGES: u32 = 4;

/// What reserves no slots before its forward, as decode does.
fn start_unreserved(lab: &mut Lab, tokens: &[i64]) -> Request {
    let lease = lab.cache.lock(&lab.find(tokens), 0);
    let pages = lab.take_pages(0, PAGES);
    Request { tokens: tokens.to_vec(), lease: Some(lease), pages, reserved: Reserved::Nothing, first: 0 }
}

/// Takes requests up to their release in one step; returns their backups, once the copies are submitted.
fn end_together(lab: &mut Lab, reserves: bool) -> Vec<OperationId> {
    let mut requests = Vec::new();
    for number in 0..REQUESTS {
        let tokens = lab.prompt(1_000 * i64::from(number), PAGES);
        let request = if reserves { lab.start(&tokens) } else { start_unreserved(lab, &tokens) };
        lab.forward(&request);
        requests.push(request);
    }
    for request in &mut requests {
        lab.insert(request);
    }
    for request in &mut requests {
        lab.release(request);
    }
    assert_eq!(lab.cache.open_operations(), REQUESTS as usize, "one for each request");
    assert_eq!(lab.cache.stats().device_evictable_pages, 0);
    let report = lab.tick();
    assert_eq!((report.committed, report.rolled_back), (vec![], vec![]));
    let operations = if reserves {
        assert_eq!(report.started, []);
        requests.iter().map(Request::transaction).collect()
    } else {
        report.started
    };
    for (id, request) in operations.iter().zip(&requests) {
        let pages: Vec<i64> = lab.cache.plan(*id).unwrap().0.iter().map(|page| i64::from(page.raw())).collect();
        assert_eq!(pages, request.pages, "in the order of their insertion, with all of their pages");
    }
    assert_eq!(operations.len(), REQUESTS as usize);
    operations
}

fn lab_of(shape: Shape) -> Lab {
    let pages = i64::from(REQUESTS * PAGES);
    Lab::new(shape, pages, pages)
}

#[test]
fn all_that_ended_together_is_one_backup_each_and_committed_once() {
    for shape in every_shape() {
        for reserves in [false, true] {
            for landed_first in [0, 20] {
                let mut lab = lab_of(shape);
                let operations = end_together(&mut lab, reserves);
                for _ in 0..landed_first {
                    for item in 0..ITEMS {
                        lab.land_next(usize::from(item >= TARGET_ITEMS));
                    }
                }
                assert_eq!(lab.cache.stats().host_cached_slots, 0, "not before the tick");
                let (first, rest) = operations.split_at(landed_first);
                assert_eq!(sorted(lab.tick().committed), sorted(first.to_vec()), "{shape:?} {reserves}");
                // What has not landed is held.
                let landed = u32::try_from(landed_first).unwrap() * PAGES;
                let stats = lab.cache.stats();
                assert_eq!((stats.device_evictable_pages, stats.host_cached_slots), (landed, landed));
                lab.land();
                assert_eq!(sorted(lab.tick().committed), sorted(rest.to_vec()), "{shape:?} {reserves}");
                assert!(!lab.cache.has_work());
                let stats = lab.cache.stats();
                assert_eq!(
                    (stats.device_evictable_pages, stats.host_cached_slots),
                    (REQUESTS * PAGES, REQUESTS * PAGES)
                );
                lab.recount(0);
            }
        }
    }
}

fn sorted(mut operations: Vec<OperationId>) -> Vec<OperationId> {
    operations.sort_unstable();
    operations
}
