//! Prompts of different namespaces share nothing, however alike the names are: no page, no slot, no backup and
//! no page name.

use std::collections::BTreeSet;

use cpkv_core::{Copies, Namespace, Reserved};

use crate::every_shape;
use crate::lab::{Lab, Request};

/// Names that run into each other if parts are joined without their tags and lengths.
fn namespaces() -> Vec<Namespace> {
    let eight = 8_u64.to_le_bytes();
    let inner = [&4_u64.to_le_bytes()[..], &[0; 8], b"salt"].concat();
    let parts: [&[(&str, &[u8])]; 17] = [
        &[],
        &[("adapter", b"a1")],
        &[("extra", b"a1")],
        &[("salt", b"a1")],
        &[("user", b"a1")],
        &[("salt", b"")],
        &[("", b"salt")],
        &[("", b"")],
        &[("salt", b"ab"), ("extra", b"c")],
        &[("salt", b"a"), ("extra", b"bc")],
        &[("extra", b"c"), ("salt", b"ab")],
        &[("salt", b"abextrac")],
        &[("saltab", b"extrac")],
        &[("salt", b"a1\0")],
        &[("salt", b"a1\0\0\0\0\0\0")],
        &[("salt", &eight)],
        &[("", &inner), ("", b"")],
    ];
    parts.iter().map(|parts| Namespace::from_parts(parts.iter().copied())).collect()
}

fn found(lab: &Lab, tokens: &[i64], namespace: &Namespace) -> (u32, u32) {
    let hit = lab.cache.match_prefix(tokens, namespace, None);
    (hit.device_pages().0, hit.host_pages().0)
}

fn start(lab: &mut Lab, tokens: &[i64], namespace: &Namespace) -> Request {
    let hit = lab.cache.match_prefix(tokens, namespace, None);
    let lease = lab.cache.lock(&hit, 0);
    lab.go_on(tokens, lease)
}

const PAGES: u32 = 3;

#[test]
fn equal_tokens_of_two_namespaces_share_nothing() {
    let namespaces = namespaces();
    for shape in every_shape() {
        for copies in [Copies::Assumed, Copies::Tracked] {
            let mut lab = Lab::with(&cpkv_core::CacheConfig { copies, ..shape.config(64, 64) });
            let tokens = lab.prompt(0, PAGES);
            for (place, namespace) in namespaces.iter().enumerate() {
                assert_eq!(found(&lab, &tokens, namespace), (0, 0), "{shape:?} {namespace:?}");
                let request = start(&mut lab, &tokens, namespace);
                lab.complete(request);
                lab.drain();
                for (other, namespace) in namespaces.iter().enumerate() {
                    let expected = if other <= place { PAGES } else { 0 };
                    assert_eq!(found(&lab, &tokens, namespace), (expected, 0), "{shape:?} {namespace:?}");
                }
            }
            let count = u32::try_from(namespaces.len()).unwrap();
            let stats = lab.cache.stats();
            assert_eq!((stats.device_cached_pages, stats.host_cached_slots), (count * PAGES, count * PAGES));
            assert_eq!(stats.namespaces, namespaces.len());
            // A part of one prompt goes from the device, which is nobody else's either.
            lab.evict_all();
            for namespace in &namespaces {
                assert_eq!(found(&lab, &tokens, namespace), (0, PAGES), "{shape:?} {namespace:?}");
            }
            lab.recount(0);
        }
    }
}

#[test]
fn a_reservation_serves_its_own_namespace_only() {
    let namespaces = namespaces();
    for shape in every_shape() {
        let mut lab = Lab::new(shape, 128, 128);
        let tokens = lab.prompt(0, PAGES);
        let requests: Vec<Request> = namespaces
            .iter()
            .map(|namespace| {
                let first = start(&mut lab, &tokens, namespace);
                let again = start(&mut lab, &tokens, namespace);
                assert!(matches!(first.reserved, Reserved::Slots(_)), "{shape:?} {namespace:?}");
                assert_eq!(again.reserved, Reserved::Nothing, "{shape:?} {namespace:?}");
                lab.complete(again);
                first
            })
            .collect();
        for request in requests {
            lab.complete(request);
        }
        lab.drain();
        let count = u32::try_from(namespaces.len()).unwrap();
        let stats = lab.cache.stats();
        assert_eq!((stats.host_cached_slots, stats.device_cached_pages), (count * PAGES, count * PAGES));
        assert_eq!(stats.counters.late_reserved_pages, 0, "{shape:?}");
        lab.recount(0);
    }
}

#[test]
fn no_name_of_a_page_is_that_of_another_namespace() {
    for shape in every_shape() {
        let lab = Lab::new(shape, 8, 8);
        let tokens = lab.prompt(0, PAGES);
        let (mut names, mut count) = (BTreeSet::new(), 0);
        for namespace in namespaces() {
            names.extend(lab.cache.page_hashes(&tokens, &namespace));
            count += PAGES as usize;
        }
        assert_eq!(names.len(), count, "{shape:?}");
    }
}
