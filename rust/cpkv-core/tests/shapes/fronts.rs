//! A host copy is worth something only if everything in front of it can be had as well.

use cpkv_core::machine::{Phase, Reason};
use cpkv_core::{CacheConfig, Lane, WritePolicy};

use crate::every_shape;
use crate::lab::{Lab, Request, Shape};

const FRONT: u32 = 4;
const ALL: u32 = 8;

/// A request whose front has found no slot, and the rest of which is inserted when there are slots again.
fn insert_behind_an_uncopied_front(lab: &mut Lab) -> Vec<i64> {
    let lanes = lab.cache.lanes().count();
    let (front, all) = (lab.prompt(0, FRONT * lanes), lab.prompt(0, ALL * lanes));
    let other = lab.prompt(500_000, ALL * lanes);
    let mut blocker = lab.start(&other);
    let mut request = lab.start(&front);
    lab.forward(&request);
    lab.insert(&mut request);
    lab.cache.abort(blocker.transaction(), Reason::Aborted).unwrap();
    lab.free(&blocker.pages);
    lab.release(&mut blocker);
    lab.drain();
    let stats = lab.cache.stats();
    assert_eq!((stats.host_cached_slots, stats.counters.host_skipped_pages), (0, u64::from(FRONT * lanes)), "counted");
    let next: Request = lab.go_on(&all, request.lease.take().unwrap());
    lab.complete(next);
    lab.drain();
    all
}

fn lab_of(shape: Shape, write: WritePolicy, clean_pages: i64) -> Lab {
    Lab::with(&CacheConfig { write, clean_pages, ..shape.config(16, i64::from(ALL)) })
}

#[test]
fn what_is_copied_behind_an_uncopied_front_is_counted_and_leaves_no_trace() {
    for shape in every_shape() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = lab_of(shape, WritePolicy::Through, 0);
        let all = insert_behind_an_uncopied_front(&mut lab);
        assert_eq!(lab.evict_all(), (ALL * lanes) as usize);
        // Whatever can be had is a run from the root, and the rest is in nobody's way.
        let (device, host) = lab.found(&all);
        assert_eq!((device, host), (0, lab.cache.stats().host_cached_slots), "{shape:?}");
        lab.recount(0);
    }
}

#[test]
fn what_is_backed_up_takes_an_uncopied_front_along() {
    for shape in every_shape() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = lab_of(shape, WritePolicy::Through, 0);
        let all = insert_behind_an_uncopied_front(&mut lab);
        lab.evict_all();
        assert_eq!(lab.found(&all), (0, ALL * lanes), "{shape:?}");
    }
}

/// Whatever is in front is visible first, also if its backup was opened later.
#[test]
fn what_has_landed_waits_for_a_front_that_is_backed_up_later() {
    for shape in every_shape() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = lab_of(shape, WritePolicy::Through, 0);
        let (front, all) = (lab.prompt(0, FRONT * lanes), lab.prompt(0, (FRONT + 2) * lanes));
        // So many slots are taken that the front finds none, and what is behind it does.
        let mut blocker = lab.start(&lab.prompt(500_000, (ALL - 3) * lanes));
        let mut request = lab.start(&front);
        lab.forward(&request);
        lab.insert(&mut request);
        let mut behind: Request = lab.go_on(&all, request.lease.take().unwrap());
        lab.forward(&behind);
        lab.insert(&mut behind);
        let transaction = behind.transaction();
        assert_eq!(lab.phase(transaction), Some(Phase::Pending), "{shape:?}");
        lab.cache.abort(blocker.transaction(), Reason::Aborted).unwrap();
        lab.cache.submitted_all(blocker.transaction()).unwrap();
        lab.free(&blocker.pages);
        lab.release(&mut blocker);
        lab.tick();
        assert_eq!(lab.phase(transaction), Some(Phase::Pending), "{shape:?}");

        lab.land();
        let hit = lab.find(&front);
        let lease = lab.cache.lock(&hit, 0);
        let report = lab.tick();
        assert!(!report.started.is_empty(), "{shape:?}: the front");
        assert_eq!((report.committed.len(), lab.phase(transaction)), (0, Some(Phase::Pending)), "{shape:?}");
        lab.land();
        let report = lab.tick();
        assert_eq!(report.committed.last(), Some(&transaction), "{shape:?}: front first");
        assert!(report.committed.len() > 1);
        lab.cache.release(lease);
        lab.release(&mut behind);
        lab.drain();
        lab.evict_all();
        assert_eq!(lab.found(&all), (0, (FRONT + 2) * lanes), "{shape:?}");
    }
}

/// The same if it waits for another backup already when the one between them is opened.
#[test]
fn what_has_waited_for_one_front_waits_for_a_later_one_as_well() {
    for shape in every_shape() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = lab_of(shape, WritePolicy::Through, 0);
        let [head, front, all] = [2, 6, 8].map(|pages| lab.prompt(0, pages * lanes));
        let mut first = lab.start(&head);
        lab.insert(&mut first);
        // So many slots are taken that the middle finds none, and what is behind it does.
        let mut blocker = lab.start(&lab.prompt(500_000, 3 * lanes));
        let mut middle = lab.start(&front);
        lab.forward(&middle);
        lab.insert(&mut middle);
        let mut behind = lab.go_on(&all, middle.lease.take().unwrap());
        lab.forward(&behind);
        lab.insert(&mut behind);
        lab.land();
        lab.tick();
        let [head, behind_it] = [&first, &behind].map(Request::transaction);
        assert_eq!([head, behind_it].map(|id| lab.phase(id)), [Some(Phase::Pending); 2], "{shape:?}");

        lab.forward(&first);
        lab.cache.abort(blocker.transaction(), Reason::Aborted).unwrap();
        lab.cache.submitted_all(blocker.transaction()).unwrap();
        lab.free(&blocker.pages);
        lab.release(&mut blocker);
        lab.tick();
        let lease = lab.cache.lock(&lab.find(&front), 0);
        let started = lab.tick().started;
        assert_eq!(started.len(), 1, "{shape:?}: the middle");

        for stream in [0, 0, 1] {
            lab.land_next(stream);
        }
        assert_eq!((lab.tick().committed, lab.phase(behind_it)), (vec![head], Some(Phase::Pending)), "{shape:?}");
        lab.land();
        assert_eq!(lab.tick().committed, [started[0], behind_it], "{shape:?}");
        lab.cache.release(lease);
        lab.release(&mut first);
        lab.release(&mut behind);
        lab.drain();
        lab.evict_all();
        assert_eq!(lab.found(&all), (0, 8 * lanes), "{shape:?}");
    }
}

/// Evicted a little at a time, everything gets its copy before it goes.
#[test]
fn pages_that_go_next_are_copied_also_where_something_hangs_from_them() {
    for shape in every_shape() {
        for write in [WritePolicy::Through, WritePolicy::Back] {
            let lanes = u32::try_from(shape.lanes).unwrap();
            let mut lab = lab_of(shape, write, 2);
            let (front, all) = (lab.prompt(0, FRONT * lanes), lab.prompt(0, ALL * lanes));
            let mut request = lab.start(&front);
            lab.forward(&request);
            lab.insert(&mut request);
            let next = lab.go_on(&all, request.lease.take().unwrap());
            lab.complete(next);
            lab.drain();
            for _ in 0..ALL {
                for lane in (0..lanes).rev() {
                    let freed = lab.cache.evict(Lane(lane), 1).unwrap();
                    lab.scribble(&freed);
                }
                lab.drain();
            }
            assert_eq!(lab.cache.stats().counters.lost_pages, 0, "{shape:?} {write:?}");
            assert_eq!(lab.found(&all), (0, ALL * lanes), "{shape:?} {write:?}");
        }
    }
}

#[test]
fn as_many_pages_as_are_to_be_clean_can_go_at_once() {
    for shape in every_shape() {
        for chunk in [1, 2, 4, 8] {
            let lanes = u32::try_from(shape.lanes).unwrap();
            let mut lab = lab_of(shape, WritePolicy::Back, i64::from(ALL));
            let all = lab.prompt(0, ALL * lanes);
            let mut lease = Some(lab.cache.lock(&lab.find(&all), 0));
            for end in (chunk..=ALL).step_by(chunk as usize) {
                let part = lab.prompt(0, end * lanes);
                let mut request = lab.go_on(&part, lease.take().unwrap());
                lab.forward(&request);
                lab.insert(&mut request);
                lease = request.lease.take();
            }
            lab.cache.release(lease.take().unwrap());
            lab.drain();
            assert_eq!(lab.evict_all(), (ALL * lanes) as usize);
            assert_eq!(lab.cache.stats().counters.lost_pages, 0, "{shape:?} {chunk}");
            assert_eq!(lab.found(&all), (0, ALL * lanes), "{shape:?} {chunk}");
        }
    }
}

/// A branch splits what is copied: both parts stay copied, and the branch gets its copy below the first.
#[test]
fn a_front_that_is_split_off_stays_copied() {
    for shape in every_shape() {
        for write in [WritePolicy::Through, WritePolicy::Selective(2), WritePolicy::Back] {
            for at in 1..ALL {
                let clean_pages = if write == WritePolicy::Back { 16 } else { 0 };
                let mut lab = Lab::with(&CacheConfig { write, clean_pages, ..shape.config(32, 32) });
                let tokens = lab.prompt(0, ALL);
                let branch = lab.branch(&tokens, at, 2);
                for prompt in [&tokens, &tokens, &branch, &branch] {
                    let request = lab.start(prompt);
                    lab.complete(request);
                    lab.drain();
                }
                assert_eq!(lab.evict_all(), (ALL + 2) as usize);
                assert_eq!(
                    (lab.found(&tokens), lab.found(&branch)),
                    ((0, ALL), (0, at + 2)),
                    "{shape:?} {write:?} {at}"
                );
                assert_eq!(lab.cache.stats().counters.lost_pages, 0);
                lab.recount(0);
            }
        }
    }
}
