//! Pages of whose state a part was never written: the device has them, and no copy of them is ever made, whatever
//! would have one made of others.

use cpkv_core::machine::Reason;
use cpkv_core::{CacheConfig, Namespace, Tokens, WritePolicy};

use crate::engine::TARGET_ITEMS;
use crate::every_shape;
use crate::lab::Lab;

const PAGES: u32 = 4;

/// What else happens to them.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Then {
    Nothing,
    /// Other requests use them.
    Used,
    /// A lease, or another prompt, splits them.
    SplitByLease,
    SplitByBranch,
    /// Their request goes on behind them.
    Extended,
    /// They are computed again, as a whole, and are the cache's already.
    ComputedAgain,
}

const ALL: [Then; 6] =
    [Then::Nothing, Then::Used, Then::SplitByLease, Then::SplitByBranch, Then::Extended, Then::ComputedAgain];

/// Inserts pages of which the forward of the draft did not run, or that of the target.
fn insert_partial(lab: &mut Lab, target_ran: bool) -> Vec<i64> {
    let tokens = lab.prompt(0, PAGES);
    let mut request = lab.start(&tokens);
    let items = if target_ran { 0..TARGET_ITEMS } else { TARGET_ITEMS..TARGET_ITEMS + 1 };
    items.for_each(|item| lab.compute(&request, item));
    lab.cache.forward_end(&[request.transaction()], target_ran, !target_ran).unwrap();
    lab.insert(&mut request);
    lab.release(&mut request);
    tokens
}

#[test]
fn no_copy_is_made_of_a_part() {
    for shape in every_shape() {
        // All of it would be evicted next, has been used often enough, or neither is looked at.
        for (write, clean_pages) in
            [(WritePolicy::Through, 0), (WritePolicy::Through, 16), (WritePolicy::Selective(1), 0)]
        {
            for target_ran in [true, false] {
                for then in ALL {
                    let mut lab = Lab::with(&CacheConfig { write, clean_pages, ..shape.config(32, 32) });
                    let tokens = insert_partial(&mut lab, target_ran);
                    let (branch, longer) = (lab.branch(&tokens, 2, 1), lab.prompt(0, PAGES + 2));
                    match then {
                        Then::Nothing => {}
                        Then::Used | Then::SplitByLease => {
                            let pages = if then == Then::Used { PAGES } else { 2 };
                            let limit = Tokens(pages as usize * lab.cache.shape().page_tokens());
                            let hit = lab.cache.match_prefix(&tokens, &Namespace::default(), Some(limit));
                            let lease = lab.cache.lock(&hit, 0);
                            assert_eq!(lease.device_pages().0, pages);
                            lab.drain();
                            lab.cache.release(lease);
                        }
                        Then::SplitByBranch | Then::Extended => {
                            let other = lab.start(if then == Then::Extended { &longer } else { &branch });
                            lab.complete(other);
                        }
                        Then::ComputedAgain => {
                            let lease = lab.cache.lock(&lab.find(&[]), 0);
                            let again = lab.go_on(&tokens, lease);
                            lab.complete(again);
                        }
                    }
                    lab.drain();
                    let what = format!("{shape:?} {write:?} {clean_pages} {target_ran} {then:?}");
                    lab.each_page(|prefix, _, node, _| {
                        if tokens.starts_with(prefix) {
                            assert!(node.host_slots.is_empty(), "{what}");
                        }
                    });
                    lab.recount(0);
                    // What is only on the host behind them could not be reached without them.
                    lab.evict_all();
                    assert_eq!((lab.found(&tokens), lab.cache.stats().host_cached_slots), ((0, 0), 0), "{what}");
                }
            }
        }
    }
}

/// The control: pages that are whole get their copies on all of these ways.
#[test]
fn whole_pages_are_copied_on_every_way() {
    for shape in every_shape() {
        for write in [WritePolicy::Through, WritePolicy::Back] {
            let mut lab = Lab::with(&CacheConfig { clean_pages: 16, write, ..shape.config(32, 32) });
            let tokens = lab.prompt(0, PAGES);
            let request = lab.start(&tokens);
            lab.complete(request);
            lab.drain();
            assert_eq!(lab.cache.stats().host_cached_slots, PAGES, "{shape:?} {write:?}");
        }
    }
}

/// A host copy is whole though the device pages were computed again without the draft; once it is given up,
/// they are no source of another.
#[test]
fn a_part_that_is_computed_again_does_not_replace_a_whole_copy() {
    for shape in every_shape() {
        let lanes = u32::try_from(shape.lanes).unwrap();
        let mut lab = Lab::new(shape, 32, 8);
        let (tokens, others) = (lab.prompt(0, PAGES * lanes), lab.prompt(900_000, 8 * lanes));
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.drain();
        lab.evict_all();
        assert_eq!(lab.found(&tokens), (0, PAGES * lanes));
        let mut lease = lab.cache.lock(&lab.find(&[]), 0);
        let pages = lab.take_pages(0, PAGES * lanes);
        lab.cache.insert_partial(&tokens, &pages, &mut lease).unwrap();
        lab.cache.release(lease);
        assert_eq!((lab.found(&tokens).0, lab.cache.stats().host_mirror_slots), (PAGES * lanes, PAGES * lanes));
        // Another prompt takes the slots, and gives them back.
        let mut other = lab.start(&others);
        lab.cache.abort(other.transaction(), Reason::Aborted).unwrap();
        lab.free(&other.pages);
        lab.release(&mut other);
        lab.drain();
        assert_eq!(lab.cache.stats().host_cached_slots, 0, "{shape:?}");
        let used = lab.cache.lock(&lab.find(&tokens), 0);
        lab.cache.release(used);
        lab.drain();
        assert_eq!(lab.cache.stats().host_cached_slots, 0, "{shape:?}");
        // What is computed anew after they have gone is whole.
        lab.evict_all();
        let request = lab.start(&tokens);
        lab.complete(request);
        lab.drain();
        assert_eq!(lab.cache.stats().host_cached_slots, PAGES * lanes, "{shape:?}");
    }
}
