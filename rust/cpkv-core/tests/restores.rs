//! Promises about restores, each as a case that breaks when the promise is, over page sizes, keys and
//! lanes. The random lives (`random_backups.rs`) cover more, but name nothing.

#![expect(clippy::unwrap_used, reason = "test code")]

mod engine;
mod lab;
mod restoring;

use cpkv_core::machine::{Phase, Reason};
use cpkv_core::{CacheConfig, CacheEvent, Copies, Error, Lease, Medium, Namespace, PoolOwner, Prefill, Reserved};
use engine::{ITEMS, TARGET_ITEMS};
use lab::{Lab, Shape, shapes};

const DEADLINE_NS: u64 = 300_000_000_000;

/// A cache with `pages` pages of a prompt on the host only.
fn with_host_pages(shape: Shape, device_pages: i64, host_slots: i64, pages: u32) -> (Lab, Vec<i64>) {
    let mut lab = Lab::new(shape, device_pages, host_slots);
    let tokens = lab.prompt(0, pages);
    lab.put_on_host(&tokens);
    (lab, tokens)
}

fn is_lost(lab: &Lab, lease: &Lease) -> bool {
    lab.cache.is_lost(lease)
}

/// Everything that was allocated is free again once nothing is cached.
fn assert_no_page_is_lost(lab: &mut Lab) {
    lab.drain();
    lab.evict_all();
    let stats = lab.cache.stats();
    assert_eq!(stats.device_free_pages, stats.device_capacity_pages);
    assert_eq!((stats.device_fenced_pages, stats.restoring_pages), (0, 0));
}

// --- Layers ---

#[test]
fn a_restored_page_is_read_as_its_layers_land_by_all_who_hit_it() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 6);
        let mut first = lab.lock(&tokens);
        let restores = lab.restore(&mut first, None);
        // Another request hits the pages while they are being filled, and waits as well.
        assert_eq!(lab.found(&tokens), (6, 0));
        let second = lab.lock(&tokens);
        for lease in [&first, &second] {
            assert_eq!(lab.cache.restores_of(lease), restores);
        }
        for item in 0..ITEMS {
            assert!(!lab.can_read(&first, &tokens, item));
            lab.load(&restores, item, false);
            assert!(!lab.can_read(&first, &tokens, item), "submitted is not landed");
            for _ in &restores {
                lab.land_next(usize::from(item >= TARGET_ITEMS));
            }
            for lease in [&first, &second] {
                assert!(lab.can_read(lease, &tokens, item));
                assert_eq!((item + 1..ITEMS).find(|&later| lab.can_read(lease, &tokens, later)), None);
            }
        }
        assert_eq!(lab.tick().restored, restores);
        assert_eq!(lab.cache.restores_of(&second), []);
        assert!(lab.can_read(&second, &tokens, ITEMS - 1));
        assert_eq!(lab.cache.stats().counters.restored_pages, 6);
        lab.cache.release(first);
        lab.cache.release(second);
        assert_no_page_is_lost(&mut lab);
        assert_eq!(lab.found(&tokens), (0, 6));
    }
}

#[test]
fn a_restore_has_not_landed_before_the_state_of_the_draft_has() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 3);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        lab.load_all(&restores, false);
        for _ in 0..TARGET_ITEMS {
            lab.land_next(0);
        }
        assert_eq!(lab.tick().restored, []);
        assert!(lab.can_read(&lease, &tokens, TARGET_ITEMS - 1) && !lab.can_read(&lease, &tokens, ITEMS - 1));
        lab.land_next(1);
        assert_eq!(lab.tick().restored, restores);
        lab.cache.release(lease);
    }
}

// --- Failure ---

#[test]
fn a_restore_that_fails_gives_each_page_back_once_and_takes_its_leases_along() {
    for shape in shapes() {
        for fails_at in 0..ITEMS {
            let (mut lab, tokens) = with_host_pages(shape, 16, 16, 6);
            let mut first = lab.lock(&tokens);
            let restores = lab.restore(&mut first, None);
            let second = lab.lock(&tokens);
            for item in 0..ITEMS {
                lab.load(&restores, item, item == fails_at);
            }
            // The copies have not ended: neither are the pages free nor the slots that are read.
            lab.fail(&restores);
            let report = lab.tick();
            assert_eq!(report.rolled_back.len(), restores.len());
            assert!(report.rolled_back.iter().all(|one| one.reason == Reason::CopyFailed));
            assert!(is_lost(&lab, &first) && is_lost(&lab, &second));
            assert_eq!(lab.found(&tokens), (0, 6), "what is on the host stays");
            assert_eq!(lab.evict_all(), 0);
            let free = |lab: &Lab| lab.cache.stats().device_free_pages;
            let all = lab.cache.stats().device_capacity_pages;
            assert_eq!(free(&lab), all - 6);
            lab.cache.release(first);
            assert_eq!(free(&lab), all - 6);
            lab.land();
            lab.tick();
            assert_eq!(free(&lab), all - 6, "a running forward may still read them");
            lab.cache.release(second);
            assert_eq!(free(&lab), all);
            assert_no_page_is_lost(&mut lab);
            // And the prompt can be restored again.
            let mut again = lab.lock(&tokens);
            let restores = lab.restore(&mut again, None);
            lab.load_all(&restores, false);
            lab.land();
            lab.tick();
            assert!(lab.can_read(&again, &tokens, ITEMS - 1));
            lab.cache.release(again);
        }
    }
}

#[test]
fn a_lease_that_is_lost_can_only_be_released() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 3);
        let longer = lab.prompt(0, 5);
        let waiting = lab.lock(&tokens);
        assert_eq!(waiting.host_pages().0, 3);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        for &id in &restores {
            lab.cache.abort(id, Reason::Aborted).unwrap();
        }
        let pages = lab.take_pages(3, 5);
        let digest = lab.cache.digest();
        let prefill = Prefill { tokens: &longer, device_pages: &pages, lease: &lease };
        assert!(matches!(lab.cache.reserve(prefill), Err(Error::RestoreFailed)));
        assert!(matches!(lab.cache.insert(&longer, &pages, &mut lease), Err(Error::RestoreFailed)));
        assert!(matches!(lab.cache.restore(&mut lease, &[]), Err(Error::RestoreFailed)));
        assert!(matches!(lab.cache.layer_has_landed(&lease, 0, &[]), Err(Error::RestoreFailed)));
        // One that was taken before the restore still has its host part to restore.
        for lease in [&lease, &waiting] {
            assert!(matches!(lab.cache.leased_slots(lease), Err(Error::RestoreFailed)));
            assert_eq!(lab.cache.restores_of(lease), []);
        }
        assert_eq!(lab.cache.digest(), digest);
        lab.check();
        lab.free(&pages);
        lab.cache.release(lease);
        lab.cache.release(waiting);
        assert_no_page_is_lost(&mut lab);
    }
}

#[test]
fn what_lands_in_front_of_a_failure_stays_for_everybody() {
    for shape in shapes() {
        for part in [1, 2, 3] {
            let (mut lab, tokens) = with_host_pages(shape, 32, 32, 12);
            let mut first = lab.lock(&tokens);
            let restores = lab.restore(&mut first, Some(part));
            assert_eq!(restores.len(), 12usize.div_ceil(part as usize));
            let second = lab.lock(&tokens);
            let short = lab.prompt(0, part);
            let third = lab.lock(&short);
            let (kept, failing) = restores.split_at(2);
            lab.load_all(kept, false);
            lab.load_all(failing, true);
            lab.land();
            lab.tick();
            assert!(is_lost(&lab, &first) && is_lost(&lab, &second) && !is_lost(&lab, &third));
            let landed = 2 * part;
            assert_eq!(lab.found(&tokens), (landed, 12 - landed));
            assert!(lab.can_read(&third, &short, ITEMS - 1));
            let again = lab.lock(&tokens);
            assert_eq!((again.device_pages().0, again.host_pages().0), (landed, 12 - landed));
            for lease in [first, second, third, again] {
                lab.cache.release(lease);
            }
            let free = lab.cache.stats().device_free_pages;
            assert_eq!(free + landed, lab.cache.stats().device_capacity_pages, "each is freed once");
            assert_no_page_is_lost(&mut lab);
        }
    }
}

#[test]
fn a_request_that_hit_less_than_what_fails_keeps_it() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 32, 32, 4);
        let branch = lab.branch(&tokens, 2, 2);
        lab.put_on_host(&branch);
        // The shared front is a node of its own, and so an operation.
        let mut first = lab.lock(&tokens);
        let front_and_back = lab.restore(&mut first, None);
        assert_eq!(front_and_back.len(), 2);
        let mut second = lab.lock(&branch);
        let own = lab.restore(&mut second, None);
        assert_eq!(lab.cache.restores_of(&second), [front_and_back[0], own[0]]);
        lab.load_all(&[front_and_back[0], own[0]], false);
        lab.load_all(&front_and_back[1..], true);
        lab.land();
        lab.tick();
        assert!(is_lost(&lab, &first) && !is_lost(&lab, &second));
        assert!(lab.can_read(&second, &branch, ITEMS - 1));
        lab.cache.release(first);
        lab.cache.release(second);
        assert_no_page_is_lost(&mut lab);
    }
}

#[test]
fn what_was_restored_behind_a_failure_keeps_its_host_copy() {
    for shape in shapes() {
        // The one behind has landed, is under way, or has failed as well.
        for behind in 0..3 {
            let (mut lab, tokens) = with_host_pages(shape, 32, 32, 4);
            let branch = lab.branch(&tokens, 2, 2);
            lab.put_on_host(&branch);
            let mut lease = lab.lock(&tokens);
            let restores = lab.restore(&mut lease, None);
            match behind {
                0 => {
                    lab.load_all(&restores[1..], false);
                    lab.land();
                    assert_eq!(lab.tick().restored, restores[1..]);
                }
                1 => lab.load_all(&restores[1..], false),
                _ => {
                    lab.load_all(&restores[1..], true);
                    lab.land();
                    lab.tick();
                }
            }
            lab.load_all(&restores[..1], true);
            lab.fail(&restores[..1]);
            lab.tick();
            assert!(is_lost(&lab, &lease));
            assert_eq!((lab.found(&tokens), lab.found(&branch)), ((0, 4), (0, 4)));
            lab.cache.release(lease);
            assert_no_page_is_lost(&mut lab);
            assert_eq!((lab.found(&tokens), lab.found(&branch)), ((0, 4), (0, 4)));
        }
    }
}

#[test]
fn slots_are_held_under_their_copies_although_their_pages_were_computed_again() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 32, 4, 4);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, Some(2));
        lab.load_all(&restores, false);
        lab.fail(&restores[1..]);
        lab.tick();
        let second = lab.lock(&tokens);
        let pages = lab.take_pages(2, 4);
        let mut request = lab.go_on_with(&tokens, second, pages);
        lab.forward(&request);
        lab.insert(&mut request);
        lab.fail(&restores[..1]);
        lab.tick();
        lab.cache.release(lease);
        lab.release(&mut request);
        assert_eq!(lab.found(&tokens), (0, 4));
        assert_eq!(lab.cache.stats().host_evictable_slots, 0, "copies read all four slots");
        assert_no_page_is_lost(&mut lab);
        assert_eq!(lab.cache.stats().host_evictable_slots, 4);
    }
}

#[test]
fn what_hangs_from_a_node_for_a_lost_lease_does_not_see_it_merged_away() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 32, 32, 4);
        let mut first = lab.lock(&tokens);
        let restores = lab.restore(&mut first, Some(2));
        lab.load_all(&restores[..1], false);
        lab.load_all(&restores[1..], true);
        lab.land();
        lab.tick();
        assert!(is_lost(&lab, &first));
        let mut second = lab.lock(&tokens);
        assert_eq!((second.device_pages().0, second.host_pages().0), (2, 2));
        let again = lab.restore(&mut second, None);
        lab.load_all(&again, false);
        lab.land();
        lab.tick();
        lab.cache.release(second);
        lab.check();
        lab.cache.release(first);
        lab.check();
        assert_eq!(lab.found(&tokens), (4, 0));
        assert_no_page_is_lost(&mut lab);
    }
}

#[test]
fn slots_are_held_under_their_copies_whatever_fails_in_front_later() {
    for shape in shapes() {
        // The back fails first, and is perhaps restored again before the front fails.
        for again in [false, true] {
            let (mut lab, tokens) = with_host_pages(shape, 32, 4, 4);
            let mut lease = lab.lock(&tokens);
            let restores = lab.restore(&mut lease, Some(2));
            lab.load_all(&restores, false);
            lab.fail(&restores[1..]);
            lab.tick();
            let mut second = again.then(|| lab.lock(&tokens));
            if let Some(second) = &mut second {
                let more = lab.restore(second, None);
                lab.load_all(&more, false);
            }
            lab.fail(&restores[..1]);
            lab.tick();
            assert_eq!(lab.found(&tokens), (0, 4));
            lab.cache.release(lease);
            if let Some(second) = second {
                assert!(is_lost(&lab, &second));
                lab.cache.release(second);
            }
            assert_eq!(lab.cache.stats().host_evictable_slots, 0, "copies read all four slots");
            assert_eq!(lab.evict_all(), 0);
            assert_no_page_is_lost(&mut lab);
            assert_eq!((lab.found(&tokens), lab.cache.stats().host_evictable_slots), ((0, 4), 4));
        }
    }
}

#[test]
fn a_lease_on_what_was_not_restored_is_not_lost() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 32, 32, 4);
        let branch = lab.branch(&tokens, 2, 2);
        lab.put_on_host(&branch);
        let mut waiting = lab.lock(&branch);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        lab.load_all(&restores, true);
        lab.land();
        lab.tick();
        // Its end was on the host only all the while.
        assert!(is_lost(&lab, &lease) && !is_lost(&lab, &waiting));
        lab.cache.release(lease);
        let restores = lab.restore(&mut waiting, None);
        lab.load_all(&restores, false);
        lab.land();
        lab.tick();
        assert!(lab.can_read(&waiting, &branch, ITEMS - 1));
        lab.cache.release(waiting);
        assert_no_page_is_lost(&mut lab);
        assert_eq!((lab.found(&tokens), lab.found(&branch)), ((0, 4), (0, 4)));
    }
}

#[test]
fn a_hit_from_before_the_restore_finds_what_has_landed_of_it() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 4);
        let hit = lab.find(&tokens);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, Some(2));
        lab.load_all(&restores[..1], false);
        lab.load_all(&restores[1..], true);
        lab.land();
        lab.tick();
        let second = lab.cache.lock(&hit, 0);
        assert_eq!((second.pages().0, second.device_pages().0), (2, 2));
        lab.cache.release(second);
        lab.cache.release(lease);
        assert_no_page_is_lost(&mut lab);
    }
}

#[test]
fn a_hit_that_is_locked_after_a_failure_finds_what_is_left() {
    for shape in shapes() {
        for (front, ends) in [0_u32, 2].into_iter().flat_map(|front| (0..3).map(move |ends| (front, ends))) {
            let (mut lab, tokens) = with_host_pages(shape, 16, 16, 4);
            let longer = lab.branch(&tokens, 3, 2);
            let mut hits = vec![lab.find(&tokens), lab.find(&longer)];
            let mut lease = lab.lock(&tokens);
            let restores = lab.restore(&mut lease, if front == 0 { None } else { Some(2) });
            hits.extend([lab.find(&tokens), lab.find(&longer)]);
            let (landing, failing) = restores.split_at(restores.len() - 1);
            lab.load_all(landing, false);
            match ends {
                0 => lab.load_all(failing, true),
                1 => lab.cache.abort(failing[0], Reason::Aborted).unwrap(),
                _ => {
                    lab.fail(failing);
                    lab.load_all(failing, false);
                }
            }
            hits.extend([lab.find(&tokens), lab.find(&longer)]);
            lab.land();
            lab.tick();
            assert!(is_lost(&lab, &lease));
            for hit in &hits {
                let second = lab.cache.lock(hit, 0);
                assert!(second.pages().0 >= front, "{} of {front} pages that have landed", second.pages().0);
                assert_eq!(second.device_pages().0, front);
                assert!(!is_lost(&lab, &second));
                lab.check();
                lab.cache.release(second);
            }
            lab.cache.release(lease);
            assert_no_page_is_lost(&mut lab);
            assert_eq!(lab.found(&tokens), (0, 4));
        }
    }
}

#[test]
fn parts_are_one_node_again() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 12);
        let nodes = lab.cache.stats().nodes;
        for fails in [false, true] {
            let mut lease = lab.lock(&tokens);
            let restores = lab.restore(&mut lease, Some(1));
            assert_eq!(restores.len(), 12);
            lab.load_all(&restores, fails);
            lab.land();
            lab.tick();
            lab.cache.release(lease);
            if !fails {
                assert_eq!(lab.cache.stats().nodes, nodes);
            }
            lab.drain();
            lab.evict_all();
        }
        assert_eq!(lab.found(&tokens), (0, 12));
    }
}

#[test]
fn failures_one_by_one_from_the_back_cost_no_more_than_their_pages() {
    let mut lab = Lab::new(shapes()[0], 4_000, 4_000);
    let tokens = lab.prompt(0, 4_000);
    lab.put_on_host(&tokens);
    let mut lease = lab.lock(&tokens);
    let restores = lab.restore(&mut lease, Some(1));
    // Were everything behind hung in the tree anew each time, this would take minutes and be killed.
    for &id in restores.iter().rev() {
        lab.cache.abort(id, Reason::Aborted).unwrap();
    }
    lab.check();
    assert_eq!(lab.found(&tokens), (0, 4_000));
    lab.cache.release(lease);
    assert_no_page_is_lost(&mut lab);
}

#[test]
fn a_failure_that_this_rank_knows_of_is_no_waiting() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 3);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        lab.load(&restores, 0, true);
        lab.land();
        assert!(matches!(lab.cache.layer_has_landed(&lease, 0, &lab.engine.acks), Err(Error::RestoreFailed)));
        assert!(!is_lost(&lab, &lease), "the others do not know yet");
        lab.tick();
        assert!(is_lost(&lab, &lease));
        lab.cache.release(lease);
        for &id in &restores {
            assert!(matches!(lab.cache.forward_end(&[id], true, false), Err(Error::NoForward { .. })));
            lab.cache.submitted_all(id).unwrap();
        }
        assert_no_page_is_lost(&mut lab);
    }
}

// --- What is computed from it ---

#[test]
fn a_backup_of_what_was_computed_from_a_restore_waits_for_it() {
    for shape in shapes() {
        for succeeds in [true, false] {
            let (mut lab, tokens) = with_host_pages(shape, 32, 32, 3);
            let longer = lab.prompt(0, 5);
            let mut lease = lab.lock(&longer);
            let restores = lab.restore(&mut lease, None);
            let mut request = lab.go_on(&longer, lease);
            // This rank's copies have landed, and one of another rank will turn out to have failed.
            lab.load_all(&restores, false);
            lab.land();
            let lease = request.lease.as_ref().unwrap();
            assert!(lab.can_read(lease, &longer, ITEMS - 1));
            lab.forward(&request);
            lab.land();
            lab.insert(&mut request);
            let transaction = request.transaction();
            lab.cache.apply(&[landed(transaction)]);
            assert_eq!(lab.phase(transaction), Some(Phase::Pending));
            assert_eq!(lab.cache.stats().host_cached_slots, 3);
            if succeeds {
                lab.tick();
                assert_eq!(lab.phase(transaction), None);
                lab.release(&mut request);
                lab.drain();
                lab.evict_all();
                assert_eq!(lab.found(&longer), (0, 5));
                continue;
            }
            lab.fail(&restores);
            let report = lab.tick();
            let last = report.rolled_back.last().unwrap();
            assert_eq!((last.operation, last.reason), (transaction, Reason::RestoreFailed));
            assert_eq!((&report.started[..], lab.cache.stats().counters.late_reserved_pages), (&[][..], 0));
            assert!(is_lost(&lab, request.lease.as_ref().unwrap()));
            assert_eq!((lab.found(&longer), lab.found(&tokens)), ((0, 3), (0, 3)));
            lab.release(&mut request);
            assert_no_page_is_lost(&mut lab);
            assert_eq!(lab.cache.stats().host_cached_slots, 3);
        }
    }
}

fn landed(operation: cpkv_core::OperationId) -> cpkv_core::Verdict {
    cpkv_core::Verdict { operation, ruling: cpkv_core::Ruling::Landed }
}

#[test]
fn a_transaction_that_is_not_bound_yet_goes_with_the_restore_in_front() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 32, 32, 3);
        let longer = lab.prompt(0, 5);
        let mut lease = lab.lock(&longer);
        let restores = lab.restore(&mut lease, None);
        let mut request = lab.go_on(&longer, lease);
        lab.load(&restores, 0, false);
        lab.land();
        lab.compute(&request, 0);
        lab.fail(&restores);
        let report = lab.tick();
        assert!(report.rolled_back.iter().any(|one| one.reason == Reason::RestoreFailed));
        assert!(matches!(lab.phase(request.transaction()), Some(Phase::Draining(Reason::RestoreFailed))));
        let (transaction, lease) = (request.transaction(), request.lease.as_mut().unwrap());
        let inserted = lab.cache.insert_bound(&longer, &request.pages, lease, transaction);
        assert!(matches!(inserted, Err(Error::RestoreFailed)));
        lab.forward_end(&request);
        let pages = request.pages.clone();
        lab.free(&pages);
        lab.release(&mut request);
        for &id in &restores {
            lab.cache.submitted_all(id).unwrap();
        }
        assert_no_page_is_lost(&mut lab);
        assert_eq!(lab.found(&tokens), (0, 3));
    }
}

// --- Room ---

#[test]
fn neither_slots_nor_pages_of_a_restore_are_given_up_before_its_end() {
    for shape in shapes() {
        for fails in [false, true] {
            let (mut lab, tokens) = with_host_pages(shape, 8, 4, 4);
            let mut lease = lab.lock(&tokens);
            let restores = lab.restore(&mut lease, None);
            lab.load_all(&restores, false);
            // Nobody holds the prompt any more but the copies.
            lab.cache.release(lease);
            if fails {
                lab.fail(&restores);
                lab.tick();
            }
            assert_eq!(lab.evict_all(), 0);
            let other = lab.prompt(5_000, 4);
            let request = lab.start(&other);
            assert!(matches!(request.reserved, Reserved::NoRoom | Reserved::Slots(_)));
            if shape.lanes == 1 {
                assert_eq!(request.reserved, Reserved::NoRoom);
            }
            lab.complete(request);
            lab.drain();
            assert_eq!(lab.found(&tokens), if fails { (0, 4) } else { (4, 0) });
            assert_no_page_is_lost(&mut lab);
            // Now they are given up as others are.
            let request = lab.start(&lab.prompt(9_000, 4));
            assert!(matches!(request.reserved, Reserved::Slots(_)));
            lab.complete(request);
            lab.drain();
        }
    }
}

#[test]
fn making_room_for_a_restore_does_not_give_up_what_is_restored() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 4, 4);
        let tokens = lab.prompt(0, 3);
        lab.put_on_host(&tokens);
        // The device is full of pages that have no host copy.
        let dirty = lab.prompt(5_000, 4 * u32::try_from(shape.lanes).unwrap());
        let mut lease = lab.lock(&tokens);
        let request = lab.start(&dirty);
        assert_eq!(request.reserved, Reserved::NoRoom);
        lab.complete(request);
        let restores = lab.restore(&mut lease, None);
        lab.load_all(&restores, false);
        lab.land();
        lab.tick();
        assert!(lab.can_read(&lease, &tokens, ITEMS - 1));
        lab.cache.release(lease);
        lab.drain();
    }
}

#[test]
fn a_mirror_that_was_restored_can_be_dropped_again() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 4, 4);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        lab.load_all(&restores, false);
        lab.land();
        lab.tick();
        lab.cache.release(lease);
        let stats = lab.cache.stats();
        assert_eq!((stats.host_mirror_slots, stats.host_evictable_slots), (4, 4));
        let request = lab.start(&lab.prompt(5_000, 4));
        assert!(matches!(request.reserved, Reserved::Slots(_)));
        lab.complete(request);
        lab.drain();
        assert_eq!(lab.found(&tokens).0, 4);
    }
}

// --- The end of it ---

#[test]
fn a_restore_that_nobody_submits_fails_at_its_deadline() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 3);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        lab.load(&restores, 0, false);
        lab.tick();
        lab.now_ns += DEADLINE_NS;
        assert_eq!(lab.tick().rolled_back.len(), restores.len());
        assert!(is_lost(&lab, &lease));
        lab.cache.release(lease);
        // A copy was submitted that does not end: neither page nor slot is used again.
        lab.now_ns += 2 * DEADLINE_NS;
        lab.tick();
        assert!(matches!(lab.phase(restores[0]), Some(Phase::Quarantined(_))));
        assert_eq!((lab.evict_all(), lab.found(&tokens)), (0, (0, 3)));
        let stats = lab.cache.stats();
        assert_eq!(stats.device_free_pages + 3, stats.device_capacity_pages);
        // It ends after all.
        assert_no_page_is_lost(&mut lab);
    }
}

#[test]
fn a_flush_forgets_what_is_restored_and_its_request_goes_on() {
    for shape in shapes() {
        for fails in [false, true] {
            let (mut lab, tokens) = with_host_pages(shape, 32, 32, 3);
            let longer = lab.prompt(0, 5);
            let mut lease = lab.lock(&longer);
            let restores = lab.restore(&mut lease, None);
            let mut request = lab.go_on(&longer, lease);
            let flushed = lab.cache.flush();
            lab.scribble(&flushed);
            lab.check();
            lab.load_all(&restores, fails);
            lab.land();
            let report = lab.tick();
            assert_eq!(report.restored.len() + report.rolled_back.len(), restores.len() + 1);
            assert_eq!(is_lost(&lab, request.lease.as_ref().unwrap()), fails);
            if fails {
                lab.give_up(&mut request);
            } else {
                lab.forward(&request);
                assert!(lab.can_read(request.lease.as_ref().unwrap(), &longer, ITEMS - 1));
                lab.insert(&mut request);
                lab.release(&mut request);
            }
            assert_eq!(lab.found(&tokens), (0, 0));
            assert_no_page_is_lost(&mut lab);
            assert_eq!(lab.cache.stats().host_cached_slots, 0);
        }
    }
}

#[test]
fn a_split_of_what_is_restored_changes_nothing() {
    for shape in shapes() {
        for fails in [false, true] {
            let (mut lab, tokens) = with_host_pages(shape, 32, 32, 6);
            let mut lease = lab.lock(&tokens);
            let restores = lab.restore(&mut lease, None);
            lab.load(&restores, 0, false);
            // Two more requests end within the node, and one goes on from there.
            let short = lab.prompt(0, 4);
            let middle = lab.lock(&short);
            let branch = lab.branch(&tokens, 2, 2);
            let mut other = lab.start(&branch);
            assert_eq!(lab.cache.restores_of(&middle), restores);
            for item in 1..ITEMS {
                lab.load(&restores, item, fails);
            }
            lab.land();
            lab.tick();
            for lease in [&lease, &middle, other.lease.as_ref().unwrap()] {
                assert_eq!(is_lost(&lab, lease), fails);
            }
            if fails {
                lab.give_up(&mut other);
            } else {
                assert!(lab.can_read(&lease, &tokens, ITEMS - 1) && lab.can_read(&middle, &short, ITEMS - 1));
                lab.complete(other);
            }
            lab.cache.release(middle);
            lab.cache.release(lease);
            assert_no_page_is_lost(&mut lab);
            assert_eq!(lab.found(&tokens), (0, 6));
        }
    }
}

// --- Beside it ---

#[test]
fn pages_of_an_external_pool_are_given_back_once() {
    for fails in [false, true] {
        let mut lab = Lab::with(&CacheConfig {
            page_tokens: 16,
            device_pages: 8,
            owner: PoolOwner::Engine,
            host_slots: Some(8),
            segment_pages: 1,
            copies: Copies::Tracked,
            has_draft: true,
            ..CacheConfig::default()
        });
        let tokens = lab.prompt(0, 3);
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.drain();
        lab.evict_all();
        assert_eq!(lab.free.as_ref().unwrap().len(), 8);
        let mut lease = lab.lock(&tokens);
        let restores = lab.restore(&mut lease, None);
        lab.load_all(&restores, fails);
        lab.land();
        assert_eq!(lab.tick().freed_pages, [], "the lease holds them");
        lab.cache.release(lease);
        let freed = lab.tick().freed_pages.len();
        assert_eq!((freed, lab.evict_all()), if fails { (3, 0) } else { (0, 3) });
        // Scribbling looks that none comes free twice.
        assert_eq!(lab.free.as_ref().unwrap().len(), 8);
        assert_eq!(lab.found(&tokens), (0, 3));
    }
}

#[test]
fn routers_are_told_of_a_restore_and_of_its_failure() {
    let config = CacheConfig {
        page_tokens: 16,
        device_pages: 8,
        host_slots: Some(8),
        segment_pages: 1,
        copies: Copies::Tracked,
        has_draft: true,
        events: true,
        ..CacheConfig::default()
    };
    let mut lab = Lab::with(&config);
    let tokens = lab.prompt(0, 3);
    lab.put_on_host(&tokens);
    let hashes = lab.cache.page_hashes(&tokens, &Namespace::default());
    lab.cache.take_events();
    let mut lease = lab.lock(&tokens);
    let restores = lab.restore(&mut lease, None);
    let told = lab.cache.take_events();
    assert!(
        matches!(&told[..], [CacheEvent::Stored { medium: Medium::Device, hashes: stored, .. }] if *stored == hashes)
    );
    lab.load_all(&restores, true);
    lab.land();
    lab.tick();
    let told = lab.cache.take_events();
    assert!(matches!(&told[..], [CacheEvent::Removed { medium: Medium::Device, hashes: gone }] if *gone == hashes));
    lab.cache.release(lease);
    assert_no_page_is_lost(&mut lab);
    assert_eq!(lab.cache.take_events(), []);
}

#[test]
fn a_refused_restore_changes_nothing() {
    for shape in shapes() {
        let (mut lab, tokens) = with_host_pages(shape, 16, 16, 3);
        let mut lease = lab.lock(&tokens);
        let pages = lab.take_pages(0, 3);
        let digest = lab.cache.digest();
        assert!(matches!(lab.cache.restore(&mut lease, &pages[..2]), Err(Error::PageCount { .. })));
        let twice = [pages[0], pages[1], pages[0]];
        assert!(matches!(lab.cache.restore(&mut lease, &twice), Err(Error::PageRepeated { .. })));
        for id in [-1, 1 << 31, 1 << 32, i64::MIN, i64::MAX] {
            let wrong = [pages[0], pages[1], id];
            assert!(matches!(lab.cache.restore(&mut lease, &wrong), Err(Error::PageOutOfRange { index: 2, .. })));
        }
        if shape.lanes > 1 {
            let crossed = [pages[1], pages[0], pages[2]];
            assert!(matches!(lab.cache.restore(&mut lease, &crossed), Err(Error::LaneMismatch { .. })));
        }
        assert_eq!(lab.cache.digest(), digest);
        let restores = lab.cache.restore(&mut lease, &pages).unwrap().operations;
        lab.load(&restores, 1, false);
        for layer in [0, 1] {
            assert!(matches!(lab.cache.layer_submitted(restores[0], layer), Err(Error::LayerOrder { last: 1, .. })));
        }
        lab.land();
        for &id in &restores {
            lab.cache.submitted_all(id).unwrap();
        }
        lab.tick();
        assert!(matches!(lab.cache.layer_submitted(restores[0], 2), Err(Error::NoSuchOperation { .. })));
        lab.cache.release(lease);
        lab.check();
    }
}

// --- A part that fails, and another request that shares the rest ---

/// When the other request comes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sharer {
    /// Before anything is submitted.
    Early,
    /// After what lands in front of the failure has, and before the failure.
    Between,
    /// After the copy has failed on this rank, and before the ranks agree on it.
    Late,
}

#[test]
fn the_pages_of_a_part_that_fails_are_freed_once_and_a_sharer_goes_on_with_what_has_landed() {
    const PARTS: u32 = 4;
    const PART: u32 = 3;
    let owners = [PoolOwner::Cpkv, PoolOwner::Engine];
    for shape in shapes().into_iter().flat_map(|shape| owners.map(|owner| Shape { owner, ..shape })) {
        for position in 0..PARTS {
            for sharer in [Sharer::Early, Sharer::Between, Sharer::Late] {
                let (mut lab, tokens) = with_host_pages(shape, 16, 16, PARTS * PART);
                let free = |lab: &Lab| {
                    let own = lab.cache.stats().device_free_pages;
                    lab.free.as_ref().map_or(own, |free| u32::try_from(free.len()).unwrap())
                };
                let before = free(&lab);
                let mut first = lab.lock(&tokens);
                let restores = lab.restore(&mut first, Some(PART));
                assert_eq!(restores.len(), PARTS as usize);
                let (kept, failing) = restores.split_at(position as usize);
                let mut second = (sharer == Sharer::Early).then(|| lab.lock(&tokens));
                lab.load_all(kept, false);
                lab.land();
                assert_eq!(lab.tick().restored, kept);
                if sharer == Sharer::Between {
                    second = Some(lab.lock(&tokens));
                }
                // One of the copies of the part fails, those behind it land.
                lab.load_all(&failing[..1], true);
                lab.load_all(&failing[1..], false);
                lab.land();
                if sharer == Sharer::Late {
                    second = Some(lab.lock(&tokens));
                }
                let second = second.unwrap();
                assert_eq!(second.pages().0, PARTS * PART);
                lab.tick();
                let landed = position * PART;
                assert!(is_lost(&lab, &first) && is_lost(&lab, &second), "{shape:?} {position} {sharer:?}");
                assert_eq!(lab.found(&tokens), (landed, PARTS * PART - landed));
                // Each lease keeps what it may still read; the last one that goes frees what has failed.
                lab.cache.release(first);
                assert_eq!(free(&lab), before - PARTS * PART, "a lost lease still reads them");
                lab.cache.release(second);
                lab.drain();
                assert_eq!(free(&lab), before - landed, "each of the pages that failed, and once");
                // The other request begins again with what has landed, and has the rest restored.
                let mut again = lab.lock(&tokens);
                assert_eq!((again.device_pages().0, again.host_pages().0), (landed, PARTS * PART - landed));
                let restores = lab.restore(&mut again, None);
                lab.load_all(&restores, false);
                lab.land();
                lab.tick();
                assert!(lab.can_read(&again, &tokens, ITEMS - 1));
                assert_eq!(free(&lab), before - PARTS * PART);
                lab.cache.release(again);
                lab.evict_all();
                lab.drain();
                assert_eq!(free(&lab), before);
            }
        }
    }
}
