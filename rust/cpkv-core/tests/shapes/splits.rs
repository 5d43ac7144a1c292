//! A node may be split at any page and at any moment of its backup: nothing changes for the backup.

use std::collections::HashSet;

use cpkv_core::{CacheConfig, CacheEvent, Medium, Namespace, Tokens};

use crate::every_shape;
use crate::lab::{Lab, Request};

const PAGES: u32 = 6;

/// How far the backup has come when the node is split.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Moment {
    Reserved,
    Submitting,
    Submitted,
    Inserted,
    Released,
    TargetLanded,
    Landed,
}

const MOMENTS: [Moment; 7] = [
    Moment::Reserved,
    Moment::Submitting,
    Moment::Submitted,
    Moment::Inserted,
    Moment::Released,
    Moment::TargetLanded,
    Moment::Landed,
];

/// Takes a request through its life; `split` is called once, at `moment`.
fn live(lab: &mut Lab, mut request: Request, moment: Moment, mut split: impl FnMut(&mut Lab)) {
    for now in MOMENTS {
        match now {
            Moment::Reserved => {}
            Moment::Submitting => lab.compute(&request, 0),
            Moment::Submitted => {
                lab.compute(&request, 1);
                lab.compute(&request, 2);
                lab.forward_end(&request);
            }
            Moment::Inserted => drop(lab.insert(&mut request)),
            Moment::Released => lab.release(&mut request),
            Moment::TargetLanded => {
                lab.land_next(0);
                lab.land_next(0);
                lab.tick();
            }
            // The word is there, and no tick has looked at it.
            Moment::Landed => lab.land_next(1),
        }
        if now == moment {
            split(lab);
            lab.check_device();
        }
    }
    lab.drain();
}

#[test]
fn one_split_anywhere_and_at_any_time() {
    for shape in every_shape() {
        for moment in MOMENTS {
            for at in 1..PAGES {
                let mut lab = Lab::new(shape, 32, 32);
                let tokens = lab.prompt(0, PAGES);
                let branch = lab.branch(&tokens, at, 2);
                let request = lab.start(&tokens);
                live(&mut lab, request, moment, |lab| {
                    let other = lab.start(&branch);
                    lab.complete(other);
                });
                let stats = lab.cache.stats();
                assert_eq!(stats.host_cached_slots, PAGES + 2, "{shape:?} {moment:?} {at}");
                assert_eq!((stats.counters.committed_operations, stats.counters.committed_pages), (2, 8));
                lab.recount(0);
                lab.evict_all();
                assert_eq!((lab.found(&tokens), lab.found(&branch)), ((0, PAGES), (0, at + 2)));
            }
        }
    }
}

#[test]
fn many_splits_of_one_backup() {
    for shape in every_shape() {
        for moment in MOMENTS {
            let mut lab = Lab::new(shape, 64, 64);
            let tokens = lab.prompt(0, PAGES);
            let branches: Vec<_> = [3, 1, 5, 2, 4].map(|at| lab.branch(&tokens, at, 1)).into();
            let request = lab.start(&tokens);
            live(&mut lab, request, moment, |lab| {
                for branch in &branches {
                    let other = lab.start(branch);
                    lab.complete(other);
                }
            });
            assert_eq!(lab.cache.stats().host_cached_slots, PAGES + 5, "{shape:?} {moment:?}");
            lab.recount(0);
            lab.evict_all();
            assert_eq!(lab.found(&tokens), (0, PAGES));
            for (branch, at) in branches.iter().zip([3, 1, 5, 2, 4]) {
                assert_eq!(lab.found(branch), (0, at + 1), "{shape:?} {moment:?} {at}");
            }
        }
    }
}

/// A lease splits as well, and what it has split is merged again when it is gone.
#[test]
fn leases_that_end_within_a_backup() {
    for shape in every_shape() {
        for moment in MOMENTS {
            let mut lab = Lab::new(shape, 16, 16);
            let tokens = lab.prompt(0, PAGES);
            let request = lab.start(&tokens);
            let page_tokens = lab.cache.shape().page_tokens();
            live(&mut lab, request, moment, |lab| {
                for at in 1..PAGES {
                    let limit = Some(Tokens(at as usize * page_tokens));
                    let hit = lab.cache.match_prefix(&tokens, &Namespace::default(), limit);
                    assert_eq!(hit.pages().0, if moment >= Moment::Inserted { at } else { 0 });
                    let lease = lab.cache.lock(&hit, 0);
                    lab.check();
                    lab.cache.release(lease);
                }
            });
            let stats = lab.cache.stats();
            assert_eq!((stats.host_cached_slots, stats.counters.committed_operations), (PAGES, 1), "{shape:?}");
            lab.recount(0);
            lab.evict_all();
            assert_eq!(lab.found(&tokens), (0, PAGES));
        }
    }
}

#[test]
fn routers_hear_of_each_page_of_a_split_backup_once_and_in_order() {
    for shape in every_shape() {
        for moment in MOMENTS {
            let mut lab = Lab::with(&CacheConfig { events: true, ..shape.config(64, 64) });
            let tokens = lab.prompt(0, PAGES);
            let branches = [4, 2].map(|at| lab.branch(&tokens, at, 1));
            let names = lab.cache.page_hashes(&tokens, &Namespace::default());
            let request = lab.start(&tokens);
            let mut told: Vec<(Option<u64>, u64)> = Vec::new();
            let mut hear = |lab: &mut Lab| {
                for event in lab.cache.take_events() {
                    if let CacheEvent::Stored { medium: Medium::Host, parent, hashes, .. } = event {
                        let parents = [parent].into_iter().chain(hashes.iter().copied().map(Some));
                        told.extend(parents.zip(hashes.iter().copied()));
                    }
                }
            };
            live(&mut lab, request, moment, |lab| {
                for branch in &branches {
                    let other = lab.start(branch);
                    lab.complete(other);
                }
                hear(lab);
            });
            hear(&mut lab);
            let firsts = told.iter().filter(|(parent, _)| parent.is_none()).count();
            assert_eq!(firsts, 1, "{shape:?} {moment:?}");
            let mut known = HashSet::from([None]);
            for (parent, page) in told {
                assert!(known.contains(&parent), "{shape:?} {moment:?}: a page before the one in front of it");
                assert!(known.insert(Some(page)), "{shape:?} {moment:?}: a page twice");
            }
            assert_eq!(known.len(), 1 + PAGES as usize + 2);
            assert!(names.iter().all(|name| known.contains(&Some(*name))));
        }
    }
}
