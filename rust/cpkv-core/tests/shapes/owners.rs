//! A device page has one owner: it is given back once, and free once, after the last copy that reads it.

use cpkv_core::machine::{Phase, Reason};
use cpkv_core::{Error, PoolOwner, Reserved};

use crate::every_shape;
use crate::lab::{Lab, Request};

fn abort(lab: &mut Lab, request: &mut Request) {
    lab.cache.abort(request.transaction(), Reason::Aborted).unwrap();
    lab.release(request);
}

/// The target's copies and the draft's read the same pages, and end in any order.
#[test]
fn a_page_that_several_copies_read_comes_free_once_and_after_the_last() {
    for shape in every_shape() {
        for order in [[0, 0, 1], [0, 1, 0], [1, 0, 0]] {
            for freed_after in 0..=3 {
                let mut lab = Lab::new(shape, 8, 8);
                let tokens = lab.prompt(0, 3);
                let mut request = lab.start(&tokens);
                lab.forward(&request);
                let before = lab.free_pages();
                abort(&mut lab, &mut request);
                let pages = request.pages;
                for (ended, stream) in order.into_iter().chain([0]).enumerate() {
                    if ended == freed_after {
                        let freed = lab.cache.free(&pages).unwrap();
                        assert_eq!(freed.len(), if ended == 3 { 3 } else { 0 }, "{shape:?} {order:?}");
                        lab.scribble(&freed);
                    }
                    if ended >= freed_after && ended < 3 {
                        let again = lab.cache.free(&pages[1..2]).unwrap_err();
                        assert!(matches!(again, Error::PageHeld { index: 0, .. }), "{again}");
                        assert_eq!((lab.free_pages(), lab.cache.stats().device_fenced_pages), (before, 3));
                        lab.recount(0);
                    }
                    if ended < 3 {
                        lab.land_next(stream);
                        lab.tick();
                    }
                }
                lab.recount(0);
                assert_eq!(lab.free_pages(), before + 3, "{shape:?} {order:?} {freed_after}");
                if shape.owner == PoolOwner::Cpkv {
                    let again = lab.cache.free(&pages[1..2]).unwrap_err();
                    assert!(matches!(again, Error::PageNotAllocated { index: 0, .. }), "{again}");
                }
            }
        }
    }
}

/// A request is retracted and runs again with the pages that it had, while its first copies still read them.
#[test]
fn two_backups_that_read_one_page_both_have_to_end() {
    for shape in every_shape() {
        for second_ends_first in [false, true] {
            let mut lab = Lab::new(shape, 8, 8);
            let tokens = lab.prompt(0, 3);
            let mut first = lab.start(&tokens);
            lab.compute(&first, 0);
            abort(&mut lab, &mut first);
            let lease = lab.cache.lock(&lab.find(&tokens), 0);
            let prefill = cpkv_core::Prefill { tokens: &tokens, device_pages: &first.pages, lease: &lease };
            let Reserved::Slots(second) = lab.cache.reserve(prefill).unwrap() else { panic!("there is room") };
            lab.cache.submitted(second, 1, 1).unwrap();
            lab.cache.abort(second, Reason::Aborted).unwrap();
            lab.cache.release(lease);
            let before = lab.free_pages();
            assert_eq!(lab.cache.free(&first.pages).unwrap(), []);
            lab.recount(0);
            // Each of them is acknowledged by a stream of its own.
            let order = if second_ends_first { [1, 0] } else { [0, 1] };
            for (place, stream) in order.into_iter().enumerate() {
                assert_eq!((lab.free_pages(), lab.cache.stats().device_fenced_pages), (before, 3), "{shape:?} {place}");
                lab.engine.acks[stream] = 1;
                lab.tick();
                lab.recount(0);
            }
            assert_eq!((lab.free_pages(), lab.phase(second)), (before + 3, None::<Phase>), "{shape:?}");
            assert!(!lab.cache.has_work());
        }
    }
}

/// Whatever makes a second call of the first: it is told apart, and changes nothing.
#[test]
fn a_page_is_not_given_back_by_two() {
    for shape in every_shape() {
        let mut lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, 2);
        let request = lab.start(&tokens);
        let cached = request.pages.clone();
        lab.complete(request);
        lab.drain();
        let lanes: Vec<i64> = (0..4).map(|page| page % shape.lanes).collect();
        let held = lab.take_pages_in(&lanes).unwrap();
        let digest = lab.cache.digest();
        let refuse = |lab: &mut Lab, pages: &[i64]| {
            let error = lab.cache.free(pages).unwrap_err();
            assert_eq!(lab.cache.digest(), digest, "{shape:?} {error}");
            error
        };
        assert!(matches!(refuse(&mut lab, &cached), Error::PageInTree { index: 0, .. }));
        assert!(matches!(refuse(&mut lab, &[held[0], cached[1]]), Error::PageInTree { index: 1, .. }));
        assert!(matches!(refuse(&mut lab, &[held[0], held[1], held[0]]), Error::PageRepeated { index: 2, .. }));
        let beyond = 8 * shape.lanes;
        for outside in [beyond, -1, i64::MIN, i64::MAX, held[0] + (1 << 32)] {
            assert!(matches!(refuse(&mut lab, &[held[0], outside]), Error::PageOutOfRange { index: 1, .. }));
        }
        lab.free(&held[..1]);
        if shape.owner == PoolOwner::Cpkv {
            let error = lab.cache.free(&held).unwrap_err();
            assert!(matches!(error, Error::PageNotAllocated { index: 0, .. }), "{error}");
        }
        lab.free(&held[1..]);
        lab.recount(0);
        // Given out again, all are different.
        let lanes: Vec<i64> = (0..beyond).map(|page| page % shape.lanes).collect();
        let mut all = lab.take_pages_in(&lanes).unwrap();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..beyond), "{shape:?}");
    }
}
