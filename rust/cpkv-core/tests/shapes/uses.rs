//! What counts as a use: a request, once, of what it found; and what policies that count make of it.

use std::collections::BTreeMap;

use cpkv_core::{CacheConfig, Namespace, Policy, Tokens, WritePolicy};

use crate::every_shape;
use crate::lab::{Lab, Shape};

/// The uses of each page of `tokens`.
fn uses(lab: &Lab, tokens: &[i64]) -> Vec<u32> {
    let mut uses = BTreeMap::new();
    lab.each_page(|prefix, page, node, _| {
        if tokens.starts_with(prefix) {
            uses.insert(page, node.hits);
        }
    });
    uses.into_values().collect()
}

fn use_once(lab: &mut Lab, tokens: &[i64]) {
    let lease = lab.bring_back(tokens).expect("room");
    lab.cache.release(lease);
}

#[test]
fn a_request_counts_once_and_only_for_what_it_found() {
    for shape in every_shape() {
        for chunk_pages in [1, 2, 3, 8] {
            let mut lab = Lab::new(shape, 32, 32);
            let tokens = lab.prompt(0, 8);
            let front = lab.prompt(0, 3);
            let request = lab.start(&front);
            lab.complete(request);
            assert_eq!(uses(&lab, &tokens), [0; 3], "computed, and found by nobody");
            // A scheduler that looks again and again uses nothing.
            for _ in 0..10 {
                assert_eq!(lab.found(&tokens), (3, 0));
                // Nor does it while it holds what it may not take after all.
                let lease = lab.cache.pin(&lab.find(&tokens), 0);
                lab.cache.release(lease);
            }
            let mut lease = Some(lab.cache.lock(&lab.find(&tokens), 0));
            for end in (3 + chunk_pages..8).step_by(chunk_pages as usize).chain([8]) {
                let part = lab.prompt(0, end);
                let mut request = lab.go_on(&part, lease.take().unwrap());
                lab.forward(&request);
                lab.insert(&mut request);
                lease = request.lease.take();
            }
            lab.cache.release(lease.take().unwrap());
            lab.drain();
            assert_eq!(uses(&lab, &tokens), [1, 1, 1, 0, 0, 0, 0, 0], "{shape:?} {chunk_pages}");
            // Restored or not.
            use_once(&mut lab, &tokens);
            lab.evict_all();
            use_once(&mut lab, &tokens);
            assert_eq!(uses(&lab, &tokens), [3, 3, 3, 2, 2, 2, 2, 2], "{shape:?} {chunk_pages}");
        }
    }
}

#[test]
fn both_parts_of_a_split_have_the_uses_of_the_whole() {
    for shape in every_shape() {
        for at in 1..6 {
            for by_lease in [false, true] {
                let mut lab = Lab::new(shape, 32, 32);
                let tokens = lab.prompt(0, 6);
                let request = lab.start(&tokens);
                lab.complete(request);
                lab.drain();
                for _ in 0..4 {
                    use_once(&mut lab, &tokens);
                }
                if by_lease {
                    let limit = Tokens(at as usize * lab.cache.shape().page_tokens());
                    let hit = lab.cache.match_prefix(&tokens, &Namespace::default(), Some(limit));
                    let lease = lab.cache.lock(&hit, 0);
                    lab.cache.release(lease);
                } else {
                    let branch = lab.branch(&tokens, at, 1);
                    let request = lab.start(&branch);
                    lab.complete(request);
                    assert_eq!(uses(&lab, &branch).last(), Some(&0));
                }
                // The one that split it has used the front.
                let expected: Vec<u32> = (0..6).map(|page| if page < at { 5 } else { 4 }).collect();
                assert_eq!(uses(&lab, &tokens), expected, "{shape:?} {at} {by_lease}");
                lab.drain();
                lab.recount(0);
            }
        }
    }
}

/// Whether pages that were used often are still there after many that were used once.
fn survives(policy: Policy) -> bool {
    match policy {
        // Under the last two, what came or was used last goes first.
        Policy::Lfu | Policy::Slru | Policy::Mru | Policy::Filo => true,
        Policy::Lru | Policy::Fifo | Policy::Priority => false,
    }
}

/// Serves prompts that nobody comes back to, of a page in each lane. With a host tier, each leaves the device
/// at once.
fn flood(lab: &mut Lab, prompts: i64, has_host: bool) {
    for prompt in 0..prompts {
        let tokens = lab.prompt(1_000_000 + 1_000 * prompt, lab.cache.lanes().count());
        let request = lab.start(&tokens);
        lab.complete(request);
        if has_host {
            lab.land();
            lab.tick();
            lab.evict_all();
        }
    }
}

fn hot_after_a_flood(shape: Shape, policy: Policy, host_slots: Option<i64>, uses: u32, split: Option<u32>) -> u32 {
    let host_slots = host_slots.map(|slots| slots * shape.lanes);
    let lanes = u32::try_from(shape.lanes).unwrap();
    let mut lab = Lab::with(&CacheConfig { policy, host_slots, ..shape.config(8, 1) });
    let often = lab.prompt(0, 4 * lanes);
    let request = lab.start(&often);
    lab.complete(request);
    lab.drain();
    for _ in 0..uses {
        use_once(&mut lab, &often);
    }
    if let Some(at) = split {
        let branch = lab.branch(&often, at, 1);
        let request = lab.start(&branch);
        lab.complete(request);
        lab.drain();
    }
    if host_slots.is_some() {
        lab.evict_all();
    }
    flood(&mut lab, 20, host_slots.is_some());
    let (device, host) = lab.found(&often);
    device + host
}

#[test]
fn what_is_used_often_survives_a_flood_where_uses_count() {
    for shape in every_shape() {
        let all = 4 * u32::try_from(shape.lanes).unwrap();
        for (name, policy) in Policy::ALL {
            let splits: &[Option<u32>] =
                if policy == Policy::Lfu { &[None, Some(1), Some(all / 2), Some(all - 1)] } else { &[None] };
            for &split in splits {
                // On the device, and on the host only.
                for host_slots in [None, Some(10)] {
                    let left = hot_after_a_flood(shape, policy, host_slots, 10, split);
                    let what = format!("{shape:?} {name} {split:?} {host_slots:?}: {left}");
                    assert_eq!(left, if survives(policy) { all } else { 0 }, "{what}");
                }
            }
        }
    }
}

/// The control: what nobody has come back to is nothing special.
#[test]
fn what_is_used_once_does_not_survive_a_flood_where_uses_count() {
    for shape in every_shape() {
        for policy in [Policy::Lfu, Policy::Slru] {
            for host_slots in [None, Some(10)] {
                assert_eq!(hot_after_a_flood(shape, policy, host_slots, 0, None), 0, "{shape:?} {policy:?}");
            }
        }
    }
}

#[test]
fn selective_copies_what_enough_requests_have_used_and_all_that_is_in_front() {
    for shape in every_shape() {
        for wanted in [1, 2, 3] {
            let write = WritePolicy::Selective(wanted);
            let mut lab = Lab::with(&CacheConfig { write, ..shape.config(32, 32) });
            let tokens = lab.prompt(0, 6);
            let front = lab.prompt(0, 2);
            for (number, prompt) in (1..).zip([&front, &tokens, &tokens, &tokens]) {
                let request = lab.start(prompt);
                lab.complete(request);
                lab.drain();
                // The request that computes a page is the first that uses it.
                let of_front = if number >= wanted { 2 } else { 0 };
                let of_rest = if number > wanted { 4 } else { 0 };
                assert_eq!(lab.cache.stats().host_cached_slots, of_front + of_rest, "{shape:?} {wanted} {number}");
            }
            let stats = lab.cache.stats();
            let copied = stats.counters.reserved_pages + stats.counters.late_reserved_pages;
            assert_eq!(copied, 6, "each page once");
        }
    }
}
