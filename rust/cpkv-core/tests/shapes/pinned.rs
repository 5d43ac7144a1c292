//! Slots and pages that somebody holds: nobody gets them, nobody waits for them, and nothing is said to be where
//! it is not.

use cpkv_core::machine::Reason;
use cpkv_core::{CacheConfig, Copies, Lease, Reserved, WritePolicy};

use crate::engine::ITEMS;
use crate::every_shape;
use crate::lab::{Lab, Request, Shape};

/// What holds every slot of the host.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Holder {
    /// A lease on pages that are on the host only.
    Lease,
    /// A lease on pages that are on both.
    LeaseOfMirrors,
    Reserved,
    Pending,
    Draining,
    Quarantined,
}

const HOLDERS: [Holder; 6] =
    [Holder::Lease, Holder::LeaseOfMirrors, Holder::Reserved, Holder::Pending, Holder::Draining, Holder::Quarantined];

enum Held {
    Lease(Lease),
    Request(Request),
    Nothing,
}

/// Pages for each lane: 12 on the device and 4 on the host.
fn lab_of(shape: Shape, write: WritePolicy) -> Lab {
    let clean_pages = if write == WritePolicy::Back { 4 } else { 0 };
    Lab::with(&CacheConfig { write, clean_pages, ..shape.config(12, 4) })
}

/// Takes all slots.
fn hold(lab: &mut Lab, holder: Holder) -> Held {
    let tokens = lab.prompt(0, 4 * lab.cache.lanes().count());
    let mut request = lab.start(&tokens);
    match holder {
        Holder::Lease | Holder::LeaseOfMirrors => {
            lab.complete(request);
            lab.drain();
            if holder == Holder::Lease {
                lab.evict_all();
            }
            return Held::Lease(lab.cache.lock(&lab.find(&tokens), 0));
        }
        Holder::Reserved => return Held::Request(request),
        Holder::Pending => {
            lab.complete(request);
            return Held::Nothing;
        }
        Holder::Draining | Holder::Quarantined => {
            lab.compute(&request, 0);
            lab.cache.abort(request.transaction(), Reason::Aborted).unwrap();
            lab.free(&request.pages);
            lab.release(&mut request);
        }
    }
    if holder == Holder::Quarantined {
        for _ in 0..3 {
            lab.tick();
            lab.now_ns += 600_000_000_000;
        }
    }
    Held::Nothing
}

fn let_go(lab: &mut Lab, held: Held) {
    match held {
        Held::Lease(lease) => lab.cache.release(lease),
        Held::Request(request) => lab.complete(request),
        Held::Nothing => {}
    }
    lab.drain();
}

/// The slots in use, by what they are used for.
fn used(lab: &Lab) -> [u32; 4] {
    let stats = lab.cache.stats();
    [stats.host_cached_slots, stats.host_reserved_slots, stats.host_draining_slots, stats.host_quarantined_slots]
}

#[test]
fn without_a_slot_to_be_had_a_page_stays_without_a_copy_and_goes_without_one() {
    for shape in every_shape() {
        for holder in HOLDERS {
            let lanes = u32::try_from(shape.lanes).unwrap();
            let mut lab = lab_of(shape, WritePolicy::Through);
            let held = hold(&mut lab, holder);
            let before = used(&lab);
            assert_eq!(before.iter().sum::<u32>(), 4 * lanes, "{shape:?} {holder:?}");

            let tokens = lab.prompt(700_000, 2 * lanes);
            let mut request = lab.start(&tokens);
            assert_eq!(request.reserved, Reserved::NoRoom);
            lab.forward(&request);
            let inserted = lab.insert(&mut request);
            assert_eq!((inserted.host_pages.0, used(&lab)), (0, before), "{shape:?} {holder:?}");
            lab.release(&mut request);
            assert_eq!(lab.tick().started, [], "nothing was put off either");
            assert_eq!(lab.cache.stats().counters.host_skipped_pages, u64::from(2 * lanes));
            // It has to leave the device.
            let lost = lab.cache.stats().counters.lost_pages;
            assert_eq!(lab.evict_all(), 2 * lanes as usize, "{shape:?} {holder:?}");
            assert_eq!(lab.cache.stats().counters.lost_pages, lost + u64::from(2 * lanes));
            assert_eq!((lab.found(&tokens), used(&lab)), ((0, 0), before));
            let_go(&mut lab, held);
            lab.recount(0);
            // With slots again, everything is as before.
            let request = lab.start(&tokens);
            lab.complete(request);
            lab.drain();
            lab.evict_all();
            assert_eq!(lab.found(&tokens), (0, 2 * lanes), "{shape:?} {holder:?}");
        }
    }
}

#[test]
fn a_write_back_that_finds_no_slot_says_nothing_else() {
    for shape in every_shape() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = lab_of(shape, WritePolicy::Back);
        let tokens = lab.prompt(0, 4 * lanes);
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.drain();
        lab.evict_all();
        let lease = lab.cache.lock(&lab.find(&tokens), 0);
        assert_eq!((lease.host_pages().0, used(&lab)[0]), (4 * lanes, 4 * lanes), "{shape:?}");
        let other = lab.prompt(700_000, 2 * lanes);
        let request = lab.start(&other);
        lab.complete(request);
        lab.drain();
        assert_eq!(lab.evict_all(), 2 * lanes as usize);
        assert_eq!((lab.found(&other), used(&lab)), ((0, 0), [4 * lanes, 0, 0, 0]));
        assert_eq!(lab.found(&tokens), (0, 4 * lanes));
        lab.cache.release(lease);
        lab.recount(0);
    }
}

#[test]
fn assumed_copies_find_no_slot_that_a_lease_holds() {
    for shape in every_shape() {
        for on_device in [false, true] {
            let lanes = u32::try_from(shape.lanes).unwrap();
            let mut lab = Lab::with(&CacheConfig { copies: Copies::Assumed, ..shape.config(12, 4) });
            let tokens = lab.prompt(0, 4 * lanes);
            let request = lab.start(&tokens);
            lab.complete(request);
            if !on_device {
                lab.evict_all();
            }
            let lease = lab.cache.lock(&lab.find(&tokens), 0);
            let other = lab.prompt(700_000, 2 * lanes);
            let mut request = lab.start(&other);
            assert_eq!(lab.insert(&mut request).host_pages.0, 0);
            lab.release(&mut request);
            assert_eq!(lab.evict_all(), 2 * lanes as usize, "{shape:?}");
            let stats = lab.cache.stats();
            assert_eq!((stats.counters.lost_pages, stats.host_cached_slots), (u64::from(2 * lanes), 4 * lanes));
            assert_eq!((stats.counters.late_copied_pages, lab.found(&other)), (0, (0, 0)));
            assert_eq!(lab.found(&tokens), if on_device { (4 * lanes, 0) } else { (0, 4 * lanes) });
            lab.cache.release(lease);
            lab.recount(0);
        }
    }
}

#[test]
fn a_reservation_that_finds_no_slot_leaves_no_trace() {
    for shape in every_shape() {
        for holder in HOLDERS {
            let mut lab = lab_of(shape, WritePolicy::Through);
            let held = hold(&mut lab, holder);
            let tokens = lab.prompt(700_000, 1);
            let pages = lab.take_pages(0, 1);
            let lease = lab.cache.lock(&lab.find(&tokens), 0);
            let digest = lab.cache.digest();
            for _ in 0..3 {
                let prefill = cpkv_core::Prefill { tokens: &tokens, device_pages: &pages, lease: &lease };
                assert_eq!(lab.cache.reserve(prefill).unwrap(), Reserved::NoRoom, "{shape:?} {holder:?}");
                assert_eq!(lab.cache.digest(), digest);
            }
            lab.cache.release(lease);
            lab.free(&pages);
            let_go(&mut lab, held);
            assert_eq!(used(&lab)[1..], [0, 0, 0], "{shape:?} {holder:?}");
        }
    }
}

/// A page and its slot are all of its layers, of the target and of the draft, and have one fate.
#[test]
fn one_copy_of_many_that_has_not_ended_holds_the_whole_page() {
    for shape in every_shape() {
        for missing in 0..ITEMS {
            for aborts in [false, true] {
                let lanes = u32::try_from(shape.lanes).unwrap();
                let mut lab = lab_of(shape, WritePolicy::Through);
                let tokens = lab.prompt(0, 4 * lanes);
                let mut request = lab.start(&tokens);
                // The missing one is the last of its stream.
                let order = (0..ITEMS).filter(|&item| item != missing).chain([missing]);
                order.for_each(|item| lab.compute(&request, item));
                lab.forward_end(&request);
                if aborts {
                    lab.cache.abort(request.transaction(), Reason::Aborted).unwrap();
                    lab.free(&request.pages);
                } else {
                    lab.insert(&mut request);
                }
                lab.release(&mut request);
                for stream in if missing == 2 { [0, 0] } else { [0, 1] } {
                    lab.land_next(stream);
                    lab.tick();
                }
                let other = lab.prompt(700_000, 1);
                let waiting = lab.start(&other);
                assert_eq!(waiting.reserved, Reserved::NoRoom, "{shape:?} {missing} {aborts}");
                lab.complete(waiting);
                assert_eq!(lab.evict_all(), 1, "only that of the other");
                assert_eq!(lab.found(&tokens), if aborts { (0, 0) } else { (4 * lanes, 0) });
                assert_eq!(lab.free_pages(), 8 * lanes);
                lab.drain();
                lab.recount(0);
                assert_eq!(lab.evict_all(), if aborts { 0 } else { 4 * lanes as usize });
                assert_eq!(lab.found(&tokens), if aborts { (0, 0) } else { (0, 4 * lanes) });
            }
        }
    }
}
