//! Promises about backups, each as a case that breaks when the promise is, over page sizes, keys
//! and lanes. The random lives (`random_backups.rs`) cover more, but name nothing.

#![expect(clippy::unwrap_used, reason = "test code")]

mod engine;
mod lab;

use cpkv_core::machine::{Phase, Reason};
use cpkv_core::{
    CacheConfig, CacheEvent, Copies, Error, Lane, Medium, Namespace, OperationId, PoolOwner, Prefill, Reserved,
    WritePolicy,
};
use engine::{ITEMS, STREAMS, TARGET_ITEMS};
use lab::{Lab, Shape, shapes};

// --- Room ---

#[test]
fn what_there_was_no_room_for_is_made_up_for_when_it_is_used_again() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 4);
        let all = 4 * u32::try_from(shape.lanes).unwrap();
        let (others, tokens) = (lab.prompt(9_000, all), lab.prompt(0, 4));
        let mut other = lab.start(&others);
        assert!(matches!(other.reserved, Reserved::Slots(_)));
        let request = lab.start(&tokens);
        assert_eq!(request.reserved, Reserved::NoRoom);
        lab.complete(request);
        assert!(lab.cache.stats().counters.host_skipped_pages >= 4, "counted");
        // Still none: nothing is given up for it.
        let used = lab.start(&tokens);
        lab.complete(used);
        assert_eq!(lab.tick().started, []);
        lab.cache.abort(other.transaction(), Reason::Aborted).unwrap();
        lab.free(&other.pages);
        lab.release(&mut other);
        lab.drain();
        let used = lab.start(&tokens);
        lab.complete(used);
        let started = lab.tick().started;
        assert_eq!(started.len(), 1);
        lab.drain();
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, 4));
    }
}

#[test]
fn nothing_is_given_up_for_what_there_was_no_room_for() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 4);
        let all = 4 * u32::try_from(shape.lanes).unwrap();
        let (others, tokens) = (lab.prompt(9_000, all), lab.prompt(0, 4));
        let other = lab.start(&others);
        lab.complete(other);
        lab.drain();
        let held = lab.cache.lock(&lab.find(&others), 0);
        let request = lab.start(&tokens);
        assert_eq!(request.reserved, Reserved::NoRoom);
        lab.complete(request);
        // From here on the others could be given up.
        lab.cache.release(held);
        let used = lab.start(&tokens);
        lab.complete(used);
        assert_eq!(lab.tick().started, []);
        assert_eq!(lab.cache.stats().host_mirror_slots, all, "{shape:?}");
    }
}

// --- Pages that come one by one ---

#[test]
fn decoded_pages_are_joined_once_they_are_committed() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 600, 600);
        let tokens = lab.prompt(0, 300);
        let page = usize::try_from(shape.page_tokens).unwrap();
        let successor = lab.cache.shape().successor_tokens();
        let mut lease = Some(lab.start(&tokens[..page * 200 + successor]));
        for pages in 200..=300 {
            let mut request = lease.take().unwrap();
            if pages > 200 {
                request = lab.go_on(&tokens[..page * pages + successor], request.lease.take().unwrap());
            }
            lab.forward(&request);
            lab.insert(&mut request);
            if pages % 7 == 0 {
                lab.land();
                lab.tick();
            }
            lease = Some(request);
        }
        lab.release(&mut lease.unwrap());
        lab.drain();
        assert_eq!(lab.cache.stats().host_mirror_slots, 300);
        // The prompt, and a node for each power of two at most.
        assert!(lab.cache.stats().nodes <= 2 + 7, "{shape:?}: {}", lab.cache.stats().nodes);
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, 300));
    }
}

// --- Visibility ---

#[test]
fn a_host_copy_is_seen_all_at_once_and_last() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 6);
        let mut request = lab.start(&tokens);
        for item in 0..ITEMS {
            lab.compute(&request, item);
            assert_eq!(lab.found(&tokens), (0, 0));
        }
        lab.forward_end(&request);
        lab.insert(&mut request);
        lab.release(&mut request);
        // All but the last copy of the draft.
        for _ in 0..TARGET_ITEMS {
            lab.land_next(0);
            lab.tick();
            assert_eq!(lab.cache.stats().host_cached_slots, 0);
        }
        lab.land_next(1);
        assert_eq!(lab.cache.stats().host_cached_slots, 0, "not before the tick");
        let report = lab.tick();
        assert_eq!((report.committed.len(), lab.cache.stats().host_cached_slots), (1, 6));
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, 6));
    }
}

#[test]
fn copies_may_land_before_the_insertion_and_are_not_seen_before_it() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 3);
        let mut request = lab.start(&tokens);
        lab.forward(&request);
        lab.land();
        assert_eq!(lab.tick().committed, []);
        assert_eq!((lab.found(&tokens), lab.cache.stats().host_reserved_slots), ((0, 0), 3));
        lab.insert(&mut request);
        assert_eq!(lab.cache.stats().host_cached_slots, 3);
        assert_eq!(lab.tick().committed, [request.transaction()]);
        lab.release(&mut request);
    }
}

#[test]
fn a_split_while_copies_are_under_way_changes_nothing() {
    for shape in shapes() {
        for split_before_insertion in [true, false] {
            let mut lab = Lab::new(shape, 32, 32);
            let tokens = lab.prompt(0, 6);
            let branch = lab.branch(&tokens, 4, 2);
            let mut first = lab.start(&tokens);
            if split_before_insertion {
                let second = lab.start(&branch);
                lab.forward(&first);
                lab.insert(&mut first);
                lab.complete(second);
            } else {
                lab.forward(&first);
                lab.insert(&mut first);
                let second = lab.start(&branch);
                lab.complete(second);
            }
            lab.release(&mut first);
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!((stats.host_cached_slots, stats.host_reserved_slots), (8, 0), "{shape:?}");
            lab.evict_all();
            assert_eq!((lab.found(&tokens), lab.found(&branch)), ((0, 6), (0, 6)));
        }
    }
}

#[test]
fn every_chunk_of_a_long_prompt_is_backed_up_once() {
    for key in [cpkv_core::KeyKind::Token, cpkv_core::KeyKind::Pair] {
        for chunk in [64 * 9 - 1, 64 * 9, 64 * 9 + 1, 8_192] {
            let mut lab = Lab::new(Shape { key, ..Shape::default() }, 512, 512);
            let tokens: Vec<i64> = (0..20_000).collect();
            let mut lease = Some(lab.cache.lock(&lab.find(&tokens), 0));
            for end in (chunk..tokens.len()).step_by(chunk).chain([tokens.len()]) {
                let mut request = lab.go_on(&tokens[..end], lease.take().unwrap());
                lab.forward(&request);
                lab.insert(&mut request);
                lease = request.lease.take();
            }
            lab.cache.release(lease.take().unwrap());
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!((stats.host_cached_slots, stats.counters.reserved_pages), (312, 312));
            lab.evict_all();
            assert_eq!(lab.found(&tokens), (0, 312));
        }
    }
}

#[test]
fn a_child_is_not_committed_before_its_parent() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 32);
        let tokens = lab.prompt(0, 6);
        let parent_tokens = lab.prompt(0, 2);
        let mut parent = lab.start(&parent_tokens);
        // The next chunk is reserved before the first is inserted.
        let mut child = lab.start(&tokens);
        assert_eq!(lab.cache.first_page(child.transaction()).unwrap().0, 2);
        for item in 0..ITEMS {
            lab.compute(&child, item);
        }
        lab.forward_end(&child);
        lab.insert(&mut child);
        lab.land();
        lab.tick();
        assert_eq!(lab.cache.stats().host_cached_slots, 0, "the parent has not landed");
        lab.forward(&parent);
        lab.insert(&mut parent);
        lab.land();
        let report = lab.tick();
        assert_eq!(report.committed, [parent.transaction(), child.transaction()]);
        lab.release(&mut parent);
        lab.release(&mut child);
        lab.drain();
    }
}

#[test]
fn routers_are_told_of_a_host_copy_once_and_not_before_it_is_there() {
    for shape in shapes() {
        let config = CacheConfig {
            key: shape.key,
            page_tokens: shape.page_tokens,
            lanes: shape.lanes,
            device_pages: 32 * shape.lanes,
            host_slots: Some(32 * shape.lanes),
            segment_pages: 1,
            copies: Copies::Tracked,
            has_draft: true,
            events: true,
            ..CacheConfig::default()
        };
        let mut lab = Lab::with(&config);
        let stored = |lab: &mut Lab, wanted: Medium| {
            let events = lab.cache.take_events();
            let pages = events.into_iter().filter_map(|event| match event {
                CacheEvent::Stored { medium, hashes, .. } if medium == wanted => Some(hashes),
                _ => None,
            });
            pages.flatten().collect::<Vec<u64>>()
        };
        let tokens = lab.prompt(0, 6);
        let names = lab.cache.page_hashes(&tokens, &Namespace::default());
        let mut first = lab.start(&tokens);
        lab.forward(&first);
        lab.insert(&mut first);
        assert_eq!(stored(&mut lab, Medium::Device), names);
        // The node is split while its copies are under way.
        let branch = lab.branch(&tokens, 4, 2);
        let second = lab.start(&branch);
        assert_eq!(stored(&mut lab, Medium::Host), []);
        lab.land();
        lab.tick();
        assert_eq!(stored(&mut lab, Medium::Host), names, "{shape:?}");
        lab.complete(second);
        lab.drain();
        assert_eq!(stored(&mut lab, Medium::Host), lab.cache.page_hashes(&branch, &Namespace::default())[4..]);
        lab.release(&mut first);
        lab.evict_all();
        lab.cache.flush();
        assert_eq!(lab.cache.take_events().last(), Some(&CacheEvent::Cleared));
    }
}

#[test]
fn names_of_pages_are_the_same_everywhere_and_depend_on_the_namespace() {
    let tokens: Vec<i64> = (1..=65).collect();
    let names = |key: cpkv_core::KeyKind, tokens: &[i64], namespace: &Namespace| {
        let lab = Lab::new(Shape { key, ..Shape::default() }, 8, 8);
        lab.cache.page_hashes(tokens, namespace)
    };
    let (token, pair) = (cpkv_core::KeyKind::Token, cpkv_core::KeyKind::Pair);
    let none = Namespace::default();
    // Pinned: other servers and routers keep them.
    assert_eq!(names(token, &tokens, &none), [TOKEN_NAME]);
    assert_eq!(names(pair, &tokens, &none), [PAIR_NAME]);
    let mut other = tokens.clone();
    other[64] = 7;
    assert_eq!(names(token, &other, &none), [TOKEN_NAME]);
    assert_ne!(names(pair, &other, &none), [PAIR_NAME]);
    assert_ne!(names(token, &tokens, &Namespace::from_parts([("salt", &b"a"[..])])), [TOKEN_NAME]);
}

const TOKEN_NAME: u64 = 1_176_762_111_811_941_213;
const PAIR_NAME: u64 = 357_073_186_992_557_983;

// --- Reservation ---

#[test]
fn a_repeated_prompt_reserves_nothing() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 32);
        let tokens = lab.prompt(0, 4);
        let first = lab.start(&tokens);
        // Of the same batch, and of a later one, before anything is inserted.
        let second = lab.start(&tokens);
        assert_eq!(second.reserved, Reserved::Nothing);
        assert_eq!(lab.cache.stats().host_reserved_slots, 4);
        lab.complete(second);
        lab.complete(first);
        let third = lab.start(&tokens);
        assert_eq!(third.reserved, Reserved::Nothing);
        lab.complete(third);
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!(
            (stats.host_cached_slots, stats.counters.reserved_pages, stats.counters.late_reserved_pages),
            (4, 4, 0)
        );
    }
}

#[test]
fn the_probe_uses_the_key_of_the_insertion() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 32);
        let tokens = lab.prompt(0, 4);
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.drain();
        // A scheduler matches one token less, which may be one page less.
        let limit = Some(cpkv_core::Tokens(tokens.len() - 1));
        let hit = lab.cache.match_prefix(&tokens, &Namespace::default(), limit);
        assert_eq!(hit.pages().0, if shape.key == cpkv_core::KeyKind::Pair { 4 } else { 3 }, "{shape:?}");
        let lease = lab.cache.lock(&hit, 0);
        let request = lab.go_on(&tokens, lease);
        assert_eq!(request.reserved, Reserved::Nothing, "{shape:?}");
        lab.complete(request);
    }
}

#[test]
fn out_of_slots_is_a_result_and_leaves_no_trace() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 4);
        let lanes = u32::try_from(shape.lanes).unwrap();
        let tokens = lab.prompt(0, 4 * lanes);
        let first = lab.start(&tokens);
        assert_eq!(lab.cache.stats().host_reserved_slots, 4 * lanes);
        let other = lab.prompt(500_000, 2 * lanes);
        let mut second = lab.start(&other);
        assert_eq!(second.reserved, Reserved::NoRoom);
        lab.forward(&second);
        lab.insert(&mut second);
        assert_eq!(lab.cache.stats().counters.host_skipped_pages, u64::from(2 * lanes));
        lab.release(&mut second);
        lab.complete(first);
        lab.drain();
        assert_eq!(lab.found(&other), (2 * lanes, 0));
    }
}

#[test]
fn mirrors_make_room_for_what_is_new() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 64, 16);
        let lanes = u32::try_from(shape.lanes).unwrap();
        for prompt in 0..4 {
            let tokens = lab.prompt(100_000 * prompt, 16 * lanes);
            let request = lab.start(&tokens);
            lab.complete(request);
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!((stats.host_mirror_slots, stats.counters.host_skipped_pages), (16 * lanes, 0));
            for before in 0..prompt {
                assert_eq!(lab.found(&lab.prompt(100_000 * before, 16 * lanes)), (16 * lanes, 0));
            }
        }
    }
}

// --- Rollback ---

/// A request that has come to each point of its life before it is given up.
#[test]
fn an_abort_at_any_point_leaves_no_trace() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        for round in 0..60 {
            let point = round % 6;
            let tokens = lab.prompt(0, 5);
            let mut request = lab.start(&tokens);
            let id = request.transaction();
            if point >= 1 {
                lab.compute(&request, 0);
            }
            if point >= 2 {
                lab.land();
            }
            if point >= 3 {
                lab.compute(&request, 1);
                lab.compute(&request, 2);
                lab.forward_end(&request);
            }
            if point >= 4 {
                lab.land();
            }
            if point >= 5 {
                lab.tick();
            }
            let reason = if round % 2 == 0 { Reason::Aborted } else { Reason::Retracted };
            lab.cache.abort(id, reason).unwrap();
            lab.cache.abort(id, reason).unwrap();
            lab.check();
            lab.free(&request.pages);
            lab.release(&mut request);
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!((stats.pages, stats.host_reserved_slots, stats.host_draining_slots), (0, 0, 0));
            assert_eq!(stats.device_free_pages, stats.device_capacity_pages, "{shape:?} at {point}");
            lab.cache.abort(id, reason).unwrap();
        }
    }
}

#[test]
fn no_page_is_handed_out_while_a_copy_reads_it() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 16);
        let lanes = u32::try_from(shape.lanes).unwrap();
        let tokens = lab.prompt(0, 4 * lanes);
        let mut request = lab.start(&tokens);
        lab.compute(&request, 0);
        lab.cache.abort(request.transaction(), Reason::Retracted).unwrap();
        assert_eq!(lab.cache.free(&request.pages).unwrap(), [], "all are read");
        lab.release(&mut request);
        let stats = lab.cache.stats();
        assert_eq!((stats.device_fenced_pages, stats.device_free_pages), (4 * lanes, 4 * lanes));
        // Everything that is free is taken: none of the fenced pages is among it.
        let all = lab.cache.allocate(cpkv_core::Placement::Stripe(4 * lanes, Lane(0))).unwrap().unwrap();
        assert!(all.iter().all(|page| !request.pages.contains(&i64::from(page.raw()))));
        assert!(lab.cache.allocate(cpkv_core::Placement::Stripe(1, Lane(0))).unwrap().is_none());
        let repeated = lab.cache.free(&request.pages[..1]).unwrap_err();
        assert!(matches!(repeated, Error::PageHeld { index: 0, .. }), "{repeated}");
        lab.tick();
        assert_eq!(lab.cache.stats().device_fenced_pages, 4 * lanes, "the copy has not ended");
        lab.land();
        lab.tick();
        assert_eq!(lab.cache.stats().device_free_pages, 4 * lanes);
    }
}

#[test]
fn an_engine_is_told_when_its_pages_are_free() {
    let config = CacheConfig {
        page_tokens: 1,
        device_pages: 8,
        host_slots: Some(8),
        segment_pages: 1,
        owner: PoolOwner::Engine,
        copies: Copies::Tracked,
        ..CacheConfig::default()
    };
    let mut lab = Lab::with(&config);
    let tokens = [1, 2, 3];
    let lease = lab.cache.lock(&lab.find(&tokens), 0);
    let pages = lab.take_pages(0, 3);
    let reserved = lab.cache.reserve(Prefill { tokens: &tokens, device_pages: &pages, lease: &lease }).unwrap();
    let Reserved::Slots(id) = reserved else { panic!() };
    lab.cache.submitted(id, 0, 1).unwrap();
    lab.cache.abort(id, Reason::Aborted).unwrap();
    assert_eq!(lab.cache.free(&pages).unwrap(), []);
    lab.cache.release(lease);
    assert_eq!(lab.tick().freed_pages, []);
    lab.engine.acks[0] = 1;
    let freed: Vec<i64> = lab.tick().freed_pages.iter().map(|page| i64::from(page.raw())).collect();
    assert_eq!(freed, pages);
    assert_eq!(lab.cache.free(&pages[..1]).unwrap().len(), 1, "its to free again");
}

#[test]
fn an_aborted_chunk_leaves_the_chunks_before_it() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 8);
        let two = lab.prompt(0, 2);
        let mut first = lab.start(&two);
        lab.forward(&first);
        lab.insert(&mut first);
        let four = lab.prompt(0, 4);
        let mut second = lab.go_on(&four, first.lease.take().unwrap());
        lab.forward(&second);
        lab.cache.abort(second.transaction(), Reason::Aborted).unwrap();
        lab.free(&second.pages);
        lab.release(&mut second);
        lab.drain();
        assert_eq!(lab.found(&tokens), (2, 0));
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, 2));
    }
}

#[test]
fn what_the_insertion_does_not_bring_is_given_up() {
    for shape in shapes() {
        for brought in [0, 1, 3] {
            let mut lab = Lab::new(shape, 16, 16);
            let tokens = lab.prompt(0, 4);
            let mut request = lab.start(&tokens);
            let id = request.transaction();
            lab.forward(&request);
            let rest = request.pages.split_off(brought);
            request.tokens = lab.prompt(0, u32::try_from(brought).unwrap());
            lab.insert(&mut request);
            let freed = lab.cache.free(&rest).unwrap();
            lab.scribble(&freed);
            lab.release(&mut request);
            assert_eq!(matches!(lab.phase(id), Some(Phase::Draining(Reason::InsertMiss))), brought == 0);
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!(stats.host_cached_slots as usize, brought);
            assert_eq!(stats.device_free_pages + stats.device_cached_pages, stats.device_capacity_pages);
            lab.evict_all();
            assert_eq!(lab.found(&tokens).1 as usize, brought, "{shape:?}");
        }
    }
}

#[test]
fn pages_that_came_elsewhere_are_not_evicted_while_they_are_read() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 16);
        let tokens = lab.prompt(0, 3);
        let mut request = lab.start(&tokens);
        // Other tokens than were reserved for, with the same pages.
        request.tokens = lab.prompt(700_000, 3);
        lab.forward(&request);
        lab.insert(&mut request);
        lab.release(&mut request);
        lab.evict_all();
        assert_eq!(lab.found(&lab.prompt(700_000, 3)), (3, 0), "copies read them");
        assert_eq!(lab.cache.stats().device_evictable_pages, 0);
        lab.drain();
        assert_eq!(lab.cache.stats().device_evictable_pages, 3);
    }
}

#[test]
fn a_backup_without_its_draft_is_none() {
    for (target_ran, draft_ran, reason) in [
        (true, false, Reason::DraftMissing),
        (false, false, Reason::TargetMissing),
        (false, true, Reason::TargetMissing),
    ] {
        let mut lab = Lab::new(shapes()[0], 8, 8);
        let tokens = lab.prompt(0, 2);
        let mut request = lab.start(&tokens);
        lab.compute(&request, 0);
        lab.compute(&request, 1);
        let id = request.transaction();
        lab.cache.forward_end(&[id], target_ran, draft_ran).unwrap();
        lab.insert(&mut request);
        lab.release(&mut request);
        let rolled_back = lab.tick().rolled_back;
        assert_eq!(rolled_back.iter().map(|one| (one.operation, one.reason)).collect::<Vec<_>>(), [(id, reason)]);
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!((stats.host_cached_slots, stats.counters.late_reserved_pages), (0, 0));
    }
}

#[test]
fn a_failed_copy_is_never_seen_and_is_made_up_for() {
    for shape in shapes() {
        for item in 0..ITEMS {
            for inserted_first in [true, false] {
                let mut lab = Lab::new(shape, 16, 16);
                let tokens = lab.prompt(0, 3);
                let mut request = lab.start(&tokens);
                let id = request.transaction();
                for other in 0..ITEMS {
                    lab.compute_and(&request, other, other == item);
                }
                lab.forward_end(&request);
                if inserted_first {
                    lab.insert(&mut request);
                }
                lab.land();
                let report = lab.tick();
                assert!(report.committed.is_empty());
                assert_eq!(report.rolled_back[0].operation, id);
                if !inserted_first {
                    lab.insert(&mut request);
                }
                lab.release(&mut request);
                assert_eq!(lab.cache.stats().host_cached_slots, 0);
                lab.drain();
                assert_eq!(lab.cache.stats().host_cached_slots, 3, "{shape:?} {item} {inserted_first}");
            }
        }
    }
}

// --- Two requests for the same prompt ---

#[test]
fn one_backup_serves_two_requests_in_either_order() {
    for shape in shapes() {
        for order in [[0, 1], [1, 0]] {
            let mut lab = Lab::new(shape, 16, 16);
            let tokens = lab.prompt(0, 4);
            let mut requests = [lab.start(&tokens), lab.start(&tokens)];
            for request in &requests {
                lab.forward(request);
            }
            for index in order {
                lab.insert(&mut requests[index]);
                lab.release(&mut requests[index]);
            }
            let stats = lab.cache.stats();
            // The donor's pages are read by its copies even if the other's are those of the tree.
            let fenced = if order[0] == 1 { 4 } else { 0 };
            assert_eq!((stats.device_cached_pages, stats.device_fenced_pages), (4, fenced));
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!((stats.host_cached_slots, stats.counters.committed_operations), (4, 1));
            assert_eq!(stats.device_free_pages + 4, stats.device_capacity_pages);
        }
    }
}

#[test]
fn what_an_insertion_leaves_out_and_another_has_brought_is_backed_up_late() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 4);
        let mut donor = lab.start(&tokens);
        let other = lab.start(&tokens);
        assert_eq!(other.reserved, Reserved::Nothing);
        lab.forward(&donor);
        lab.complete(other);
        let left_out = donor.pages.split_off(1);
        donor.tokens = lab.prompt(0, 1);
        lab.insert(&mut donor);
        lab.free(&left_out);
        lab.release(&mut donor);
        lab.drain();
        assert_eq!(lab.cache.stats().counters.late_reserved_pages, 3, "{shape:?}");
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, 4));
    }
}

#[test]
fn a_lost_donor_is_made_up_for() {
    for shape in shapes() {
        for donor_goes_first in [true, false] {
            let mut lab = Lab::new(shape, 16, 16);
            let tokens = lab.prompt(0, 4);
            let donor = lab.start(&tokens);
            let mut other = lab.start(&tokens);
            lab.forward(&donor);
            lab.forward(&other);
            if !donor_goes_first {
                lab.insert(&mut other);
            }
            lab.cache.abort(donor.transaction(), Reason::Aborted).unwrap();
            lab.check();
            if donor_goes_first {
                lab.insert(&mut other);
            }
            lab.free(&donor.pages);
            let mut donor = donor;
            lab.release(&mut donor);
            lab.release(&mut other);
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!((stats.host_cached_slots, stats.counters.late_reserved_pages), (4, 4), "{shape:?}");
            lab.evict_all();
            assert_eq!(lab.found(&tokens), (0, 4));
        }
    }
}

#[test]
fn what_waits_for_a_lost_parent_waits_for_its_replacement() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 32);
        let short = lab.prompt(0, 2);
        let tokens = lab.prompt(0, 5);
        let mut donor = lab.start(&short);
        let mut child = lab.start(&tokens);
        lab.forward(&child);
        lab.insert(&mut child);
        lab.land();
        lab.tick();
        lab.cache.abort(donor.transaction(), Reason::Aborted).unwrap();
        let report = lab.tick();
        assert_eq!((report.committed.len(), report.started.len()), (0, 1), "{shape:?}");
        assert_eq!(lab.cache.stats().counters.donors_lost, 1);
        lab.land();
        assert_eq!(lab.tick().committed, [report.started[0], child.transaction()]);
        lab.free(&donor.pages);
        lab.release(&mut donor);
        lab.release(&mut child);
        lab.drain();
        assert_eq!(lab.cache.stats().host_cached_slots, 5);
    }
}

#[test]
fn what_waits_for_a_parent_that_cannot_be_replaced_is_given_up() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        // No room for a replacement while the lost donor's slots drain.
        let mut lab = Lab::new(shape, 32, 3);
        let short = lab.prompt(0, 2 * lanes);
        let tokens = lab.prompt(0, 3 * lanes);
        let mut donor = lab.start(&short);
        let mut child = lab.start(&tokens);
        lab.forward(&child);
        lab.insert(&mut child);
        lab.land();
        lab.tick();
        lab.cache.abort(donor.transaction(), Reason::Aborted).unwrap();
        let reasons: Vec<Reason> = lab.tick().rolled_back.iter().map(|one| one.reason).collect();
        assert_eq!(reasons, [Reason::Aborted, Reason::ParentLost], "{shape:?}");
        lab.free(&donor.pages);
        lab.release(&mut donor);
        lab.release(&mut child);
        lab.drain();
        assert_eq!((lab.cache.stats().host_cached_slots, lab.found(&tokens)), (0, (3 * lanes, 0)));
    }
}

// --- Late, lost and missing acknowledgements ---

#[test]
fn a_late_acknowledgement_of_a_dead_operation_is_harmless() {
    let mut lab = Lab::new(shapes()[0], 16, 4);
    let tokens = lab.prompt(0, 4);
    let mut first = lab.start(&tokens);
    let dead = first.transaction();
    lab.compute(&first, 0);
    lab.cache.abort(dead, Reason::Aborted).unwrap();
    lab.free(&first.pages);
    lab.release(&mut first);
    lab.land();
    lab.tick();
    // The same place and the same slots serve another operation.
    let other = lab.prompt(900, 4);
    let mut second = lab.start(&other);
    assert_eq!(second.transaction().index, dead.index);
    assert!(matches!(lab.cache.submitted(dead, 0, 1), Err(Error::NoSuchOperation { .. })));
    lab.cache.copy_failed(dead).unwrap();
    lab.cache.submitted_all(dead).unwrap();
    lab.forward(&second);
    lab.insert(&mut second);
    lab.land();
    assert_eq!(lab.tick().committed, [second.transaction()]);
    lab.release(&mut second);
}

#[test]
fn a_lost_acknowledgement_is_healed_by_a_later_one() {
    let mut lab = Lab::new(shapes()[0], 16, 8);
    let tokens = lab.prompt(0, 2);
    let request = lab.start(&tokens);
    let id = request.transaction();
    lab.complete(request);
    for stream in [0, 0, 1] {
        assert!(lab.engine.land(&mut lab.cache, stream));
    }
    assert_eq!(lab.tick().committed, [], "landed, and not acknowledged");
    let other = lab.prompt(900, 2);
    let request = lab.start(&other);
    let later = request.transaction();
    lab.complete(request);
    lab.land();
    assert_eq!(lab.tick().committed, [id, later]);
}

#[test]
fn silence_is_a_failure_and_then_a_quarantine_but_never_a_commit() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 8);
        let deadline_ns = 300_000_000_000;
        let tokens = lab.prompt(0, 2);
        let request = lab.start(&tokens);
        let id = request.transaction();
        lab.complete(request);
        lab.tick();
        lab.now_ns = deadline_ns - 1;
        assert_eq!(lab.tick().rolled_back, []);
        lab.now_ns = deadline_ns;
        assert_eq!(lab.tick().rolled_back[0].reason, Reason::CopyFailed);
        assert_eq!(lab.phase(id), Some(Phase::Draining(Reason::CopyFailed)));
        lab.now_ns = 2 * deadline_ns;
        assert_eq!(lab.tick().quarantined, [id]);
        assert_eq!(lab.tick().quarantined, [], "told once");
        assert_eq!(lab.phase(id), Some(Phase::Quarantined(Reason::CopyFailed)));
        let stats = lab.cache.stats();
        assert_eq!((stats.host_quarantined_slots, stats.counters.quarantined_operations >= 1), (2, true));
        // Neither slots nor pages are given to anybody.
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (2, 0));
        // The stream was brought to an end after all.
        lab.drain();
        assert_eq!(lab.cache.stats().host_quarantined_slots, 0);
    }
}

#[test]
fn unfinished_backups_do_not_keep_idle_pages_for_ever() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 32, 32);
        for prompt in [0, 500_000] {
            let tokens = lab.prompt(prompt, 12);
            let request = lab.start(&tokens);
            lab.complete(request);
        }
        lab.land();
        assert_eq!(lab.cache.stats().device_evictable_pages, 0);
        lab.tick();
        let stats = lab.cache.stats();
        assert_eq!((stats.device_evictable_pages, stats.host_cached_slots), (24, 24));
    }
}

// --- Write policies ---

fn with_policy(shape: Shape, device_pages: i64, host_slots: i64, write: WritePolicy, clean_pages: i64) -> Lab {
    Lab::with(&CacheConfig {
        key: shape.key,
        page_tokens: shape.page_tokens,
        lanes: shape.lanes,
        device_pages: device_pages * shape.lanes,
        host_slots: Some(host_slots * shape.lanes),
        segment_pages: 1,
        copies: Copies::Tracked,
        has_draft: true,
        write,
        clean_pages,
        ..CacheConfig::default()
    })
}

#[test]
fn selective_counts_a_request_once_however_many_chunks_it_has() {
    for shape in shapes() {
        let mut lab = with_policy(shape, 32, 32, WritePolicy::Selective(2), 0);
        let tokens = lab.prompt(0, 16);
        let mut lease = Some(lab.cache.lock(&lab.find(&tokens), 0));
        for pages in [4, 8, 12, 16] {
            let chunk = lab.prompt(0, pages);
            let mut request = lab.go_on(&chunk, lease.take().unwrap());
            assert_eq!(request.reserved, Reserved::Nothing);
            lab.forward(&request);
            lab.insert(&mut request);
            lease = request.lease.take();
        }
        lab.cache.release(lease.take().unwrap());
        lab.drain();
        assert_eq!(lab.cache.stats().host_cached_slots, 0, "one request has used it");
        let second = lab.start(&tokens);
        lab.complete(second);
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!((stats.host_cached_slots, stats.counters.committed_operations), (16, 1), "{shape:?}");
        let third = lab.start(&tokens);
        lab.complete(third);
        lab.drain();
        assert_eq!(lab.cache.stats().counters.late_reserved_pages, 16, "once");
    }
}

#[test]
fn back_keeps_clean_what_is_a_leaf_once_others_are_gone() {
    for shape in shapes().into_iter().filter(|shape| shape.lanes == 1) {
        let mut lab = with_policy(shape, 16, 16, WritePolicy::Back, 6);
        let left = lab.prompt(0, 4);
        let right = lab.branch(&left, 2, 2);
        for tokens in [&left, &right] {
            let request = lab.start(tokens);
            lab.complete(request);
        }
        lab.drain();
        assert_eq!(lab.cache.stats().host_mirror_slots, 6, "{shape:?}");
        lab.evict_all();
        assert_eq!((lab.found(&left), lab.found(&right)), ((0, 4), (0, 4)));
    }
}

#[test]
fn back_keeps_the_pages_clean_that_go_next() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = with_policy(shape, 16, 16, WritePolicy::Back, 4);
        for prompt in 0..4 {
            let tokens = lab.prompt(1_000_000 * prompt, 4 * lanes);
            let request = lab.start(&tokens);
            assert_eq!(request.reserved, Reserved::Nothing);
            lab.complete(request);
        }
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!((stats.host_cached_slots, stats.host_mirror_slots), (4 * lanes, 4 * lanes), "{shape:?}");
        assert!(!lab.cache.has_work(), "nothing goes on for ever");
        // What was promised is there at once, and nothing is lost.
        let room = cpkv_core::Placement::Stripe(4 * lanes, Lane(0));
        let freed = lab.cache.evict_for(room).unwrap().unwrap();
        lab.scribble(&freed);
        assert_eq!(lab.cache.stats().counters.lost_pages, 0);
        assert_eq!(lab.found(&lab.prompt(0, 4 * lanes)), (0, 4 * lanes));
        // Nobody waits for a copy: dirty pages are dropped when the clean ones have run out.
        let room = cpkv_core::Placement::Stripe(8 * lanes, Lane(0));
        let freed = lab.cache.evict_for(room).unwrap().unwrap();
        assert_eq!(u32::try_from(freed.len()).unwrap(), 4 * lanes);
        lab.scribble(&freed);
        assert_eq!(lab.cache.stats().counters.lost_pages, u64::from(4 * lanes));
        lab.drain();
    }
}

#[test]
fn a_host_that_is_smaller_than_the_device_loses_nothing_before_it_is_full() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = with_policy(shape, 16, 8, WritePolicy::Through, 4);
        for prompt in 0..12 {
            let tokens = lab.prompt(1_000_000 * prompt, 2 * lanes);
            let request = lab.start(&tokens);
            lab.complete(request);
            lab.drain();
        }
        // 16 pages of each lane on the device and 8 on the host; of those the 4 that go next and the 2
        // newest are on both.
        let found = |prompt: i64| {
            let (device, host) = lab.found(&lab.prompt(1_000_000 * prompt, 2 * lanes));
            device + host
        };
        let kept: u32 = (0..12).map(found).sum();
        assert!(kept >= 18 * lanes, "{shape:?}: {kept}");
        assert_eq!(lab.cache.stats().counters.lost_pages, 0, "{shape:?}");
    }
}

#[test]
fn write_policies_that_cannot_be_are_refused() {
    let config = CacheConfig { write: WritePolicy::Back, clean_pages: -1, ..CacheConfig::default() };
    let Err(Error::Config { conflicts }) = cpkv_core::CacheManager::new(&config) else { panic!() };
    assert_eq!(conflicts.len(), 2, "{conflicts:?}");
    let config = CacheConfig { write: WritePolicy::Back, copies: Copies::Tracked, ..CacheConfig::default() };
    let error = cpkv_core::CacheManager::new(&config).unwrap_err();
    assert_eq!(error.to_string(), "clean_pages is 0, want 1 or more with write 'back'");
    let config = CacheConfig { write: WritePolicy::Selective(0), copies: Copies::Tracked, ..CacheConfig::default() };
    let error = cpkv_core::CacheManager::new(&config).unwrap_err();
    assert_eq!(error.to_string(), "write_uses is 0, want 1 or more");
}

// --- Flush ---

#[test]
fn nothing_is_found_after_a_flush_whatever_is_under_way() {
    for shape in shapes() {
        for point in 0..5 {
            let mut lab = Lab::new(shape, 16, 16);
            let tokens = lab.prompt(0, 3);
            let mut request = lab.start(&tokens);
            if point >= 1 {
                lab.forward(&request);
            }
            if point >= 2 {
                lab.insert(&mut request);
            }
            if point >= 3 {
                lab.release(&mut request);
            }
            if point >= 4 {
                lab.drain();
            }
            let hit = lab.find(&tokens);
            let freed = lab.cache.flush();
            lab.scribble(&freed);
            lab.check();
            assert_eq!(lab.found(&tokens), (0, 0));
            let lease = lab.cache.lock(&hit, 0);
            assert_eq!(lease.pages().0, 0, "an old hit finds nothing either");
            lab.cache.release(lease);
            if point < 2 {
                if point == 1 {
                    // What was computed before is inserted where nobody finds it.
                    lab.insert(&mut request);
                    assert_eq!(lab.found(&tokens), (0, 0));
                } else {
                    lab.cache.abort(request.transaction(), Reason::Aborted).unwrap();
                    lab.free(&request.pages);
                }
            }
            if point < 3 {
                lab.release(&mut request);
            }
            lab.drain();
            let stats = lab.cache.stats();
            assert_eq!(stats.device_free_pages, stats.device_capacity_pages, "{shape:?} at {point}");
            assert_eq!((stats.host_cached_slots, stats.nodes), (0, 1));
            assert_eq!(stats.counters.late_reserved_pages, 0, "a backup that was flushed is not made again");
        }
    }
}

// --- Bad input ---

#[test]
fn a_refused_call_changes_nothing() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 3);
        let mut request = lab.start(&tokens);
        let id = request.transaction();
        let foreign = OperationId { index: id.index + 7, generation: 0 };
        let future = OperationId { generation: id.generation + 1, ..id };
        let digest = lab.cache.digest();
        let mut lease = request.lease.take().unwrap();
        for unknown in [foreign, future] {
            let text = format!("operation {unknown} is not open");
            assert_eq!(lab.cache.abort(unknown, Reason::Aborted).unwrap_err().to_string(), text);
            assert_eq!(lab.cache.submitted(unknown, 0, 1).unwrap_err().to_string(), text);
            assert_eq!(lab.cache.submitted_all(unknown).unwrap_err().to_string(), text);
            assert_eq!(lab.cache.copy_failed(unknown).unwrap_err().to_string(), text);
            assert_eq!(lab.cache.plan(unknown).unwrap_err().to_string(), text);
            assert_eq!(lab.cache.forward_end(&[id, unknown], true, true).unwrap_err().to_string(), text);
            let error = lab.cache.insert_bound(&tokens, &request.pages, &mut lease, unknown).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
        let error = lab.cache.insert(&tokens, &request.pages, &mut lease).unwrap_err();
        assert!(matches!(error, Error::TransactionLeftOut { index: 0, operation, .. } if operation == id), "{error}");
        let given = [request.pages[0], request.pages[0], request.pages[1]];
        let error = lab.cache.reserve(Prefill { tokens: &tokens, device_pages: &given, lease: &lease }).unwrap_err();
        assert!(matches!(error, Error::PageRepeated { index: 1, .. }), "{error}");
        let good = Prefill { tokens: &tokens, device_pages: &request.pages, lease: &lease };
        let bad = Prefill { device_pages: &given, ..good };
        assert!(lab.cache.reserve_batch(&[good, bad]).is_err());
        assert_eq!(lab.cache.digest(), digest);
        request.lease = Some(lease);
        lab.forward(&request);
        assert!(matches!(lab.cache.submitted(id, 0, 99), Err(Error::Closed { .. })));
        lab.insert(&mut request);
        let mut lease = request.lease.take().unwrap();
        let error = lab.cache.insert_bound(&tokens, &[], &mut lease, id).unwrap_err();
        assert_eq!(error.to_string(), format!("operation {id} was bound by an earlier insertion"));
        lab.tick();
        let digest = lab.cache.digest();
        for step in [0, 2, u64::MAX] {
            let error = lab.cache.tick(step, &lab.engine.acks, 0).unwrap_err();
            assert_eq!(error.to_string(), format!("tick {step} is out of order, want 1"));
        }
        assert_eq!(lab.cache.digest(), digest);
        lab.cache.release(lease);
        lab.check();
    }
}

#[test]
fn a_stream_without_a_word_is_refused_until_its_copies_have_ended() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 3);
        let mut request = lab.start(&tokens);
        let id = request.transaction();
        lab.forward(&request);
        let digest = lab.cache.digest();
        for words in 0..STREAMS {
            let error = lab.cache.tick(0, &[u64::MAX; STREAMS][..words], 0).unwrap_err();
            let seen = format!("acks has {words} words, and a copy of operation {id} was submitted on stream 1");
            assert_eq!(error.to_string(), format!("{seen}: want 2 or more"));
            assert_eq!(lab.cache.digest(), digest);
        }
        lab.land();
        lab.tick();
        // It is open, for want of its insertion, and waits for no stream.
        lab.cache.tick(1, &[], 0).unwrap();
        lab.insert(&mut request);
        assert_eq!(lab.cache.tick(2, &[], 0).unwrap().committed, [id]);
        lab.release(&mut request);
    }
}

#[test]
fn assumed_copies_are_not_reserved_for() {
    let config = CacheConfig {
        page_tokens: 1,
        device_pages: 4,
        host_slots: Some(4),
        segment_pages: 1,
        ..CacheConfig::default()
    };
    let mut lab = Lab::with(&config);
    let lease = lab.cache.lock(&lab.find(&[1]), 0);
    let error = lab.cache.reserve(Prefill { tokens: &[1], device_pages: &[0], lease: &lease }).unwrap_err();
    assert_eq!(error.to_string(), "reserve is for copies that are tracked; those of this cache are assumed");
    lab.cache.release(lease);
}
