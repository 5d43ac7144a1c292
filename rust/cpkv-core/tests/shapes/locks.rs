//! Whatever happens to a request, its locks are given back as they were taken, and what is locked stays.

use std::collections::BTreeMap;

use cpkv_core::machine::Reason;
use cpkv_core::{CacheConfig, Copies};

use crate::every_shape;
use crate::lab::{Lab, Request};

/// Whether each page is held, by the tokens up to its end.
fn locks(lab: &Lab) -> BTreeMap<Vec<i64>, bool> {
    let mut locks = BTreeMap::new();
    lab.each_page(|tokens, _, node, _| {
        locks.insert(tokens.to_vec(), node.is_held);
    });
    locks
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Committed,
    Aborted,
    Retracted,
    AbortedOnceInserted,
    CopyFailed,
    DraftMissing,
    InsertedElsewhere,
    InsertedInPart,
    Duplicate,
    Stuck,
}

const ENDINGS: [Ending; 10] = [
    Ending::Committed,
    Ending::Aborted,
    Ending::Retracted,
    Ending::AbortedOnceInserted,
    Ending::CopyFailed,
    Ending::DraftMissing,
    Ending::InsertedElsewhere,
    Ending::InsertedInPart,
    Ending::Duplicate,
    Ending::Stuck,
];

/// Takes a request to its end, but for its release.
fn end(lab: &mut Lab, request: &mut Request, ending: Ending, split: &[i64]) {
    let id = request.transaction();
    let tokens = request.tokens.clone();
    if matches!(ending, Ending::InsertedElsewhere) {
        request.tokens = lab.branch(&tokens, 2, 4);
    }
    lab.compute(request, 0);
    lab.compute(request, 1);
    lab.compute_and(request, 2, matches!(ending, Ending::CopyFailed));
    match ending {
        Ending::Aborted | Ending::Retracted => {
            let reason = if matches!(ending, Ending::Aborted) { Reason::Aborted } else { Reason::Retracted };
            lab.cache.abort(id, reason).unwrap();
            lab.free(&request.pages);
            return;
        }
        Ending::DraftMissing => lab.cache.forward_end(&[id], true, false).unwrap(),
        _ => lab.forward_end(request),
    }
    match ending {
        Ending::InsertedInPart => {
            let rest = request.pages.split_off(1);
            request.tokens = lab.prompt(0, 3);
            lab.insert(request);
            lab.free(&rest);
            return;
        }
        Ending::Duplicate => {
            let other = lab.start(&tokens);
            lab.complete(other);
        }
        _ => {}
    }
    lab.insert(request);
    let other = lab.start(split);
    lab.complete(other);
    match ending {
        Ending::AbortedOnceInserted => lab.cache.abort(id, Reason::Aborted).unwrap(),
        Ending::Stuck => {
            for _ in 0..3 {
                lab.tick();
                lab.now_ns += 300_000_000_000;
            }
            assert_eq!(lab.cache.stats().host_quarantined_slots, 4 + 1);
        }
        _ => {}
    }
}

#[test]
fn every_ending_gives_back_what_was_taken() {
    for shape in every_shape() {
        for ending in ENDINGS {
            let mut lab = Lab::new(shape, 32, 32);
            // Another request holds the front, which the first shares, and nothing else does.
            let front = lab.prompt(0, 2);
            let first = lab.start(&front);
            lab.complete(first);
            lab.drain();
            let holder = lab.cache.lock(&lab.find(&front), 0);
            let before = locks(&lab);
            assert!(before.values().all(|&is_held| is_held));

            let tokens = lab.prompt(0, 6);
            let split = lab.branch(&tokens, 4, 1);
            let mut request = lab.start(&tokens);
            end(&mut lab, &mut request, ending, &split);
            assert_eq!(lab.evict_all(), 0, "{shape:?} {ending:?}: all of it is used");
            lab.release(&mut request);
            lab.drain();
            lab.recount(0);
            for (tokens, is_held) in locks(&lab) {
                assert_eq!(is_held, before.contains_key(&tokens), "{shape:?} {ending:?}");
            }
            lab.cache.release(holder);
            let cached = lab.cache.stats().device_cached_pages;
            assert_eq!(lab.cache.stats().device_evictable_pages, cached);
            assert_eq!(lab.evict_all(), cached as usize);
            assert_eq!(lab.free_pages(), lab.cache.stats().device_capacity_pages);
        }
    }
}

/// Two prompts that part at any page; one is held.
#[test]
fn what_is_held_stays_and_the_rest_goes() {
    for shape in every_shape() {
        for copies in [Copies::Assumed, Copies::Tracked] {
            for host_slots in [None, Some(32 * shape.lanes)] {
                for (parting, held) in (0..4).flat_map(|parting| [(parting, 0), (parting, 1)]) {
                    let mut lab = Lab::with(&CacheConfig { copies, host_slots, ..shape.config(32, 32) });
                    let tokens = lab.prompt(0, 4);
                    let prompts = [tokens.clone(), lab.branch(&tokens, parting, 3)];
                    for prompt in &prompts {
                        let request = lab.start(prompt);
                        lab.complete(request);
                        lab.drain();
                    }
                    let (pages, of_held) = (4 + 3, if held == 0 { 4 } else { parting + 3 });
                    lab.recount(0);
                    assert_eq!(lab.cache.stats().device_evictable_pages, pages);
                    let lease = lab.cache.lock(&lab.find(&prompts[held]), 0);
                    assert_eq!(lab.cache.stats().device_evictable_pages, pages - of_held);
                    let again = lab.cache.lock(&lab.find(&prompts[held]), 0);
                    assert_eq!(lab.evict_all(), (pages - of_held) as usize);
                    assert_eq!(lab.found(&prompts[held]), (of_held, 0), "{shape:?} {parting} {held}");
                    lab.cache.release(again);
                    assert_eq!(lab.evict_all(), 0, "still held");
                    lab.recount(0);
                    lab.cache.release(lease);
                    lab.recount(0);
                    assert_eq!(lab.evict_all(), of_held as usize);
                    assert_eq!(lab.cache.stats().device_cached_pages, 0);
                    assert_eq!(lab.found(&tokens[..1]), (0, host_slots.map_or(0, |_| whole(&lab))));
                }
            }
        }
    }
}

/// Pages that one token makes.
fn whole(lab: &Lab) -> u32 {
    lab.cache.shape().pages_in(cpkv_core::Tokens(1)).0
}
