//! Edges of backups: clocks that jump, pages and transactions that are mixed up, insertions that
//! come late, counts at their ends. What is promised in the usual case is in `backups.rs`.

#![expect(clippy::unwrap_used, reason = "test code")]

mod engine;
mod lab;

use cpkv_core::machine::{Phase, Reason};
use cpkv_core::{CacheConfig, Copies, Error, LogError, Prefill, Reserved};
use engine::TARGET_ITEMS;
use lab::{Lab, shapes};

/// Ticks for four days without a copy landing, and without anybody doing what a tick asks for.
fn tick_in_silence(lab: &mut Lab) {
    let hour_ns = 3_600_000_000_000;
    for step in 0..100 {
        lab.cache.tick(step, &lab.engine.acks, step * hour_ns).unwrap();
    }
}

#[test]
fn ranks_that_cannot_agree_any_more_say_so_in_every_later_step() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        lab.tick();
        let tokens = lab.prompt(0, 3);
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.land();
        let before = lab.cache.digest();
        let told = lab.cache.lose_agreement(LogError::Dead { rank: 3 }).to_string();
        for step in 0..3 {
            let refused = [lab.cache.begin_step(step).unwrap_err(), lab.cache.tick(step, &[9, 9], 0).unwrap_err()];
            for error in refused {
                assert!(matches!(&error, Error::AgreementLost { reason } if told.contains(reason)), "{error}");
            }
        }
        assert_eq!(lab.cache.digest(), before, "what has landed was not applied");
        lab.cache.check_integrity().unwrap();
    }
}

// --- Clocks and silence ---

#[test]
fn idle_time_before_a_forward_is_no_silence_of_its_copies() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        lab.tick();
        let tokens = lab.prompt(0, 3);
        let request = lab.start(&tokens);
        let id = request.transaction();
        lab.complete(request);
        lab.now_ns = 600_000_000_000;
        assert_eq!(lab.tick().rolled_back, []);
        lab.land();
        assert_eq!(lab.tick().committed, [id]);
    }
}

#[test]
fn a_clock_may_begin_anywhere() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 3);
        let request = lab.start(&tokens);
        let id = request.transaction();
        lab.complete(request);
        lab.now_ns = 5_000_000_000_000_000;
        lab.tick();
        assert_eq!(lab.phase(id), Some(Phase::Pending));
    }
}

#[test]
fn a_late_backup_that_nobody_submits_ends() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, 2);
        let pages = lab.take_pages(0, 2);
        let mut lease = lab.cache.lock(&lab.find(&tokens), 0);
        lab.cache.insert(&tokens, &pages, &mut lease).unwrap();
        lab.cache.release(lease);
        assert_eq!(lab.cache.stats().counters.late_reserved_pages, 2);
        tick_in_silence(&mut lab);
        assert!(!lab.cache.has_work(), "{shape:?}");
    }
}

#[test]
fn a_backup_whose_forward_never_ends_ends() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, 2);
        let mut request = lab.start(&tokens);
        lab.compute(&request, 0);
        lab.insert(&mut request);
        lab.release(&mut request);
        lab.land();
        tick_in_silence(&mut lab);
        assert!(!lab.cache.has_work(), "{shape:?}");
    }
}

// --- What counts as landed ---

#[test]
fn nothing_submitted_is_nothing_landed() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, 2);
        let mut request = lab.start(&tokens);
        let id = request.transaction();
        // Every word has reached 0 from the beginning.
        assert!(matches!(lab.cache.submitted(id, 0, 0), Err(Error::NoSequence { operation }) if operation == id));
        lab.forward_end(&request);
        lab.insert(&mut request);
        assert_eq!(lab.tick().committed, []);
        assert_eq!(lab.cache.stats().host_cached_slots, 0);
    }
}

#[test]
fn pages_without_their_draft_are_not_backed_up_later_either() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, 2);
        let mut request = lab.start(&tokens);
        let id = request.transaction();
        for item in 0..TARGET_ITEMS {
            lab.compute(&request, item);
        }
        lab.cache.forward_end(&[id], true, false).unwrap();
        for _ in 0..TARGET_ITEMS {
            lab.land_next(0);
        }
        lab.tick();
        assert_eq!(lab.phase(id), None, "over before the insertion");
        lab.insert(&mut request);
        lab.release(&mut request);
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!((stats.counters.late_reserved_pages, stats.host_cached_slots), (0, 0));
    }
}

#[test]
fn a_donor_without_its_draft_is_made_up_for() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 4);
        let mut donor = lab.start(&tokens);
        let mut other = lab.start(&tokens);
        lab.forward(&other);
        lab.insert(&mut other);
        for item in 0..TARGET_ITEMS {
            lab.compute(&donor, item);
        }
        lab.cache.forward_end(&[donor.transaction()], true, false).unwrap();
        lab.free(&donor.pages);
        lab.release(&mut donor);
        lab.release(&mut other);
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!((stats.counters.donors_lost, stats.host_cached_slots), (1, 4), "{shape:?}");
    }
}

// --- Transactions and pages that are mixed up ---

#[test]
fn a_transaction_is_bound_once_also_after_its_rollback() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 2);
        let mut request = lab.start(&tokens);
        let id = request.transaction();
        lab.forward(&request);
        lab.insert(&mut request);
        lab.cache.abort(id, Reason::Aborted).unwrap();
        let longer = lab.prompt(0, 3);
        let pages = lab.take_pages(2, 3);
        let error = lab.cache.insert_bound(&longer, &pages, request.lease.as_mut().unwrap(), id).unwrap_err();
        assert!(matches!(error, Error::AlreadyBound { operation } if operation == id), "{error}");
        lab.free(&pages);
        lab.release(&mut request);
        lab.drain();
        let stats = lab.cache.stats();
        assert_eq!((stats.device_cached_pages, stats.device_evictable_pages), (2, 2), "{shape:?}");
    }
}

#[test]
fn an_insertion_brings_the_pages_that_were_reserved_for() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let tokens = lab.prompt(0, 2);
        let mut request = lab.start(&tokens);
        let id = request.transaction();
        let other = lab.prompt(900, 2);
        let other = lab.start(&other);
        let unreserved = lab.take_pages(0, 2);
        lab.forward(&request);
        let digest = lab.cache.digest();
        for pages in [&other.pages, &unreserved] {
            let error = lab.cache.insert_bound(&tokens, pages, request.lease.as_mut().unwrap(), id).unwrap_err();
            assert!(matches!(error, Error::OtherPage { index: 0, operation, .. } if operation == id), "{error}");
        }
        assert_eq!(lab.cache.digest(), digest);
        lab.insert(&mut request);
        lab.land();
        assert_eq!(lab.tick().committed, [id]);
    }
}

#[test]
fn nothing_is_restored_into_a_page_that_is_being_backed_up() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let old = lab.prompt(500, 2);
        let request = lab.start(&old);
        lab.complete(request);
        lab.drain();
        lab.evict_all();
        let tokens = lab.prompt(0, 2);
        let request = lab.start(&tokens);
        let id = request.transaction();
        lab.compute(&request, 0);
        let mut lease = lab.cache.lock(&lab.find(&old), 0);
        let error = lab.cache.restore(&mut lease, &request.pages).unwrap_err();
        assert!(matches!(error, Error::TransactionLeftOut { index: 0, operation, .. } if operation == id), "{error}");
        lab.cache.release(lease);
        assert_eq!(lab.evict_all(), 0);
    }
}

#[test]
fn a_batch_does_not_reserve_for_one_page_twice() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let (first, second) = (lab.prompt(0, 2), lab.prompt(900, 2));
        let leases = [&first, &second].map(|tokens| lab.cache.lock(&lab.find(tokens), 0));
        let pages = lab.take_pages(0, 2);
        let digest = lab.cache.digest();
        let error = lab.cache.reserve_batch(&[
            Prefill { tokens: &first, device_pages: &pages, lease: &leases[0] },
            Prefill { tokens: &second, device_pages: &pages, lease: &leases[1] },
        ]);
        assert!(matches!(error, Err(Error::PageRepeated { index: 0, .. })), "{error:?}");
        assert_eq!(lab.cache.digest(), digest);
    }
}

#[test]
fn pages_inserted_after_the_others_of_their_transaction_stay_while_they_are_read() {
    for shape in shapes() {
        for aborts in [false, true] {
            let mut lab = Lab::new(shape, 8, 4);
            let (short, tokens) = (lab.prompt(0, 2), lab.prompt(0, 4));
            let request = lab.start(&tokens);
            let id = request.transaction();
            lab.compute(&request, 0);
            if aborts {
                lab.cache.abort(id, Reason::Aborted).unwrap();
            }
            let mut lease = request.lease.unwrap();
            lab.cache.insert_bound(&short, &request.pages[..2], &mut lease, id).unwrap();
            lab.cache.insert(&tokens, &request.pages[2..], &mut lease).unwrap();
            lab.cache.release(lease);
            assert_eq!(lab.evict_all(), 0, "{shape:?}, aborted: {aborts}");
        }
    }
}

// --- Flush ---

#[test]
fn what_a_tick_starts_is_open() {
    for shape in shapes() {
        for flushes in [false, true] {
            let mut lab = Lab::new(shape, 8, 8);
            let tokens = lab.prompt(0, 2);
            let pages = lab.take_pages(0, 2);
            let mut lease = lab.cache.lock(&lab.find(&tokens), 0);
            lab.cache.insert(&tokens, &pages, &mut lease).unwrap();
            lab.cache.release(lease);
            if flushes {
                lab.cache.flush();
            }
            let started = lab.cache.tick(0, &lab.engine.acks, 0).unwrap().started;
            assert_eq!(started.len(), usize::from(!flushes));
            for id in started {
                lab.cache.submitted(id, 0, 1).unwrap();
            }
        }
    }
}

#[test]
fn nothing_is_reserved_or_pushed_out_for_pages_that_nobody_can_find() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = Lab::new(shape, 8, 4);
        let tokens = lab.prompt(0, 4 * lanes);
        let mut request = lab.start(&tokens);
        lab.forward(&request);
        let freed = lab.cache.flush();
        lab.scribble(&freed);
        lab.land();
        lab.tick();
        let useful = lab.prompt(900_000, 4 * lanes);
        let other = lab.start(&useful);
        lab.complete(other);
        lab.drain();
        lab.evict_all();
        assert_eq!(lab.found(&useful), (0, 4 * lanes));
        lab.insert(&mut request);
        assert_eq!(lab.found(&useful), (0, 4 * lanes));
        assert_eq!(lab.cache.stats().host_reserved_slots, 0);
    }
}

#[test]
fn slots_are_not_given_away_while_the_forward_they_were_planned_for_submits() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = Lab::new(shape, 8, 2);
        let (tokens, other) = (lab.prompt(0, 2 * lanes), lab.prompt(900_000, 2 * lanes));
        let request = lab.start(&tokens);
        let freed = lab.cache.flush();
        lab.scribble(&freed);
        lab.tick();
        assert_eq!(lab.start(&other).reserved, Reserved::NoRoom, "{shape:?}");
        lab.forward_end(&request);
        lab.tick();
        assert!(matches!(lab.start(&other).reserved, Reserved::Slots(_)), "{shape:?}");
    }
}

// --- Counts and names ---

#[test]
fn a_reservation_without_room_leaves_no_trace_beside_a_branch() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = Lab::new(shape, 16, 2);
        let tokens = lab.prompt(0, 3 * lanes);
        let mut request = lab.start(&tokens);
        assert_eq!(request.reserved, Reserved::NoRoom);
        lab.insert(&mut request);
        lab.release(&mut request);
        // It leaves the other one in the middle of a node, and its lease holds nothing of that.
        let branch = lab.branch(&tokens, 2 * lanes, 3 * lanes);
        let unknown = lab.prompt(900_000, 1);
        let lease = lab.cache.lock(&lab.find(&unknown), 0);
        let pages = lab.take_pages(0, 5 * lanes);
        let digest = lab.cache.digest();
        let reserved = lab.cache.reserve(Prefill { tokens: &branch, device_pages: &pages, lease: &lease }).unwrap();
        assert_eq!(reserved, Reserved::NoRoom);
        assert_eq!(lab.cache.digest(), digest);
    }
}

#[test]
fn pages_without_room_are_counted_once() {
    for shape in shapes() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = Lab::new(shape, 16, 2);
        let tokens = lab.prompt(0, 3 * lanes);
        let request = lab.start(&tokens);
        lab.complete(request);
        assert_eq!(lab.cache.stats().counters.host_skipped_pages, u64::from(3 * lanes));
    }
}

#[test]
fn reserved_pages_that_the_insertion_files_elsewhere_are_counted() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, 3);
        let mut request = lab.start(&tokens);
        request.tokens = lab.prompt(900_000, 3);
        lab.complete(request);
        assert_eq!(lab.cache.stats().counters.insert_missed_pages, 3);
    }
}

#[test]
fn any_number_of_copies_may_read_a_page() {
    let mut lab = Lab::with(&CacheConfig {
        page_tokens: 1,
        device_pages: 4,
        host_slots: Some(70_000),
        segment_pages: 1,
        copies: Copies::Tracked,
        ..CacheConfig::default()
    });
    let pages = lab.take_pages(0, 1);
    let lease = lab.cache.lock(&lab.find(&[1]), 0);
    for _ in 0..=u16::MAX {
        let reserved = lab.cache.reserve(Prefill { tokens: &[1], device_pages: &pages, lease: &lease }).unwrap();
        let Reserved::Slots(id) = reserved else { panic!("{reserved:?}") };
        lab.cache.abort(id, Reason::Retracted).unwrap();
    }
    lab.check();
}

#[test]
fn replicas_that_would_name_the_next_operation_differently_have_different_digests() {
    for shape in shapes() {
        let ended_in = |order: [usize; 2]| {
            let mut lab = Lab::new(shape, 8, 8);
            let prompts = [lab.prompt(0, 1), lab.prompt(900, 1)];
            let mut requests = prompts.map(|tokens| lab.start(&tokens));
            for index in order {
                lab.cache.abort(requests[index].transaction(), Reason::Aborted).unwrap();
                lab.tick();
            }
            for request in &mut requests {
                lab.free(&request.pages);
                lab.release(request);
            }
            assert!(!lab.cache.has_work());
            lab
        };
        let (mut left, mut right) = (ended_in([0, 1]), ended_in([1, 0]));
        assert_ne!(left.cache.digest(), right.cache.digest());
        let tokens = left.prompt(500_000, 1);
        assert_ne!(left.start(&tokens).transaction(), right.start(&tokens).transaction());
    }
}

#[test]
fn nothing_is_reserved_behind_what_was_flushed() {
    for shape in shapes() {
        let mut lab = Lab::new(shape, 16, 16);
        let (tokens, longer) = (lab.prompt(0, 3), lab.prompt(0, 5));
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.drain();
        let hit = lab.find(&tokens);
        let lease = lab.cache.lock(&hit, 0);
        let freed = lab.cache.flush();
        lab.scribble(&freed);
        // Nobody will find its pages.
        let request = lab.go_on(&longer, lease);
        assert_eq!(request.reserved, Reserved::Nothing);
        lab.complete(request);
        assert_eq!(lab.cache.stats().host_reserved_slots, 0);
        lab.drain();
        assert_eq!(lab.cache.stats().pages, 0);
    }
}
