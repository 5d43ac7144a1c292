//! What makes two pages the same: all their tokens, with pair keys the one after them, in all 64 bits; and the
//! same for every call that looks.

use cpkv_core::{CacheConfig, CacheEvent, Copies, KeyKind, Namespace, Reserved, Tokens};

use crate::every_shape;
use crate::lab::{Lab, Shape};

/// The pages that `tokens` tokens make, or that two keys share whose first `tokens` tokens are equal.
fn pages_of(shape: Shape, tokens: usize) -> u32 {
    let elements = if shape.key == KeyKind::Pair { tokens.saturating_sub(1) } else { tokens };
    u32::try_from(elements).unwrap() / u32::try_from(shape.page_tokens).unwrap()
}

/// Just below, at and just above the ends of the first three pages.
fn lengths(shape: Shape) -> Vec<usize> {
    let page_tokens = usize::try_from(shape.page_tokens).unwrap();
    let mut lengths: Vec<usize> = (1..=3).flat_map(|page| page * page_tokens - 1..=page * page_tokens + 1).collect();
    lengths.extend([0, 1, 2]);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn key(length: usize) -> Vec<i64> {
    (5..).take(length).collect()
}

fn serve(lab: &mut Lab, tokens: &[i64]) {
    let request = lab.start(tokens);
    lab.complete(request);
    lab.drain();
}

#[test]
fn every_call_makes_the_same_pages_of_a_length() {
    for shape in every_shape() {
        for length in lengths(shape) {
            let (tokens, pages) = (key(length), pages_of(shape, length));
            let mut lab = Lab::new(shape, 8, 8);
            assert_eq!(lab.cache.page_hashes(&tokens, &Namespace::default()).len(), pages as usize);
            let mut request = lab.start(&tokens);
            assert_eq!(request.pages.len(), pages as usize);
            match request.reserved {
                Reserved::Slots(id) => assert_eq!(lab.cache.plan(id).unwrap().1.len(), pages as usize),
                other => assert_eq!((other, pages), (Reserved::Nothing, 0)),
            }
            lab.forward(&request);
            assert_eq!(lab.insert(&mut request).new_pages.0, pages, "{shape:?} {length}");
            lab.release(&mut request);
            lab.drain();
            assert_eq!(lab.cache.stats().host_cached_slots, pages);
            assert_eq!(lab.found(&tokens), (pages, 0));
            lab.evict_all();
            assert_eq!(lab.found(&tokens), (0, pages));
            let lease = lab.bring_back(&tokens).unwrap();
            assert_eq!((lease.pages().0, lab.found(&tokens)), (pages, (pages, 0)));
            lab.cache.release(lease);
            // Asked for with other lengths.
            for other in lengths(shape) {
                let expected = pages_of(shape, other).min(pages);
                assert_eq!(lab.found(&key(other)), (expected, 0), "{shape:?} {length} {other}");
            }
        }
    }
}

/// A limit in raw tokens ends a hit, and a lease, at a whole page, wherever it falls.
#[test]
fn a_lease_ends_where_its_limit_says() {
    for shape in every_shape() {
        let page_tokens = usize::try_from(shape.page_tokens).unwrap();
        for limit in lengths(shape).into_iter().chain([4 * page_tokens]) {
            for tiers in ["device", "both", "host"] {
                let host_slots = (tiers != "device").then_some(8 * shape.lanes);
                let mut lab = Lab::with(&CacheConfig { host_slots, ..shape.config(8, 8) });
                let tokens = lab.prompt(5, 4);
                serve(&mut lab, &tokens);
                if tiers == "host" {
                    lab.evict_all();
                }
                let hit = lab.cache.match_prefix(&tokens, &Namespace::default(), Some(Tokens(limit)));
                let pages = u32::try_from(limit / page_tokens).unwrap();
                assert_eq!(hit.pages().0, pages, "{shape:?} {limit} {tiers}");
                let lease = lab.cache.lock(&hit, 0);
                assert_eq!(lease.pages().0, pages);
                lab.evict_all();
                // Only what the lease holds has stayed on the device, and the rest did not go from the host.
                let on_device = if tiers == "host" { 0 } else { pages };
                let on_host = if tiers == "device" { 0 } else { 4 - on_device };
                assert_eq!(lab.found(&tokens), (on_device, on_host), "{shape:?} {limit} {tiers}");
                lab.cache.release(lease);
                lab.recount(0);
                assert_eq!(lab.evict_all(), on_device as usize);
            }
        }
    }
}

/// Bits that a narrower comparison would lose.
const BITS: [i64; 6] = [1, 1 << 15, 1 << 31, 1 << 32, 1 << 62, i64::MIN];

/// Every place at and beside the ends of pages, and one in the middle.
fn places(shape: Shape, length: usize) -> Vec<usize> {
    let page_tokens = usize::try_from(shape.page_tokens).unwrap();
    (0..length).filter(|place| (place + 1) % page_tokens <= 2 || place % page_tokens == page_tokens / 2).collect()
}

#[test]
fn a_token_counts_in_its_own_page_and_as_the_successor_of_the_one_in_front() {
    for shape in every_shape() {
        let length = 3 * usize::try_from(shape.page_tokens).unwrap() + 1;
        // Tokens that fit 32 bits are kept in 32, and others are not.
        for high in [0, 1 << 40] {
            let tokens: Vec<i64> = key(length).iter().map(|token| token | high).collect();
            let mut lab = Lab::new(shape, 64, 64);
            serve(&mut lab, &tokens);
            let all = pages_of(shape, length);
            let names = lab.cache.page_hashes(&tokens, &Namespace::default());
            for place in places(shape, length) {
                for bit in BITS {
                    let mut other = tokens.clone();
                    other[place] ^= bit;
                    let shared = pages_of(shape, place);
                    assert_eq!(lab.found(&other), (shared, 0), "{shape:?} {high:x} {place} {bit:x}");
                    let others = lab.cache.page_hashes(&other, &Namespace::default());
                    let equal = names.iter().zip(&others).take_while(|(left, right)| left == right).count();
                    assert_eq!(equal, shared as usize, "{shape:?} {high:x} {place} {bit:x}");
                    assert!(names.iter().zip(&others).skip(equal).all(|(left, right)| left != right));
                    // From there on all of them are different, as those of an image are.
                    for token in &mut other[place..] {
                        *token ^= bit;
                    }
                    other[place] ^= bit;
                    assert_eq!(lab.found(&other), (shared, 0), "{shape:?} {high:x} {place} {bit:x}");
                }
            }
            assert_eq!(lab.found(&tokens), (all, 0));
        }
    }
}

#[test]
fn what_differs_in_one_token_lives_side_by_side() {
    for shape in every_shape() {
        let length = 3 * usize::try_from(shape.page_tokens).unwrap() + 1;
        for place in places(shape, length) {
            let mut lab = Lab::new(shape, 64, 64);
            let prompts: Vec<Vec<i64>> = [0]
                .into_iter()
                .chain(BITS)
                .map(|bit| {
                    let mut tokens = key(length);
                    tokens[place] ^= bit;
                    tokens
                })
                .collect();
            let (all, shared) = (pages_of(shape, length), pages_of(shape, place));
            for (number, tokens) in (0..).zip(&prompts) {
                let request = lab.start(tokens);
                let reserved = if number == 0 { all } else { all - shared };
                match request.reserved {
                    Reserved::Slots(id) => assert_eq!(lab.cache.first_page(id).unwrap().0, all - reserved),
                    other => assert_eq!((other, reserved), (Reserved::Nothing, 0)),
                }
                lab.complete(request);
                lab.drain();
                lab.check_device();
            }
            let count = u32::try_from(BITS.len()).unwrap();
            assert_eq!(lab.cache.stats().device_cached_pages, all + count * (all - shared), "{shape:?} {place}");
            for tokens in &prompts {
                assert_eq!(lab.found(tokens), (all, 0));
            }
            lab.evict_all();
            for tokens in &prompts {
                assert_eq!(lab.found(tokens), (0, all));
            }
            lab.recount(0);
        }
    }
}

/// Every way on which a page comes or goes calls it by the name that a query has for it.
#[test]
fn a_page_has_one_name_on_every_way() {
    for shape in every_shape() {
        for copies in [Copies::Assumed, Copies::Tracked] {
            let mut lab = Lab::with(&CacheConfig { copies, events: true, ..shape.config(32, 32) });
            let tokens = lab.prompt(5, 5);
            let branch = lab.branch(&tokens, 3, 1);
            let names = lab.cache.page_hashes(&tokens, &Namespace::default());
            let own = lab.cache.page_hashes(&branch, &Namespace::default())[3..].to_vec();
            let none = Vec::new;
            serve(&mut lab, &tokens);
            assert_eq!(told(&mut lab), [names.clone(), names.clone(), none(), none()]);
            serve(&mut lab, &branch);
            assert_eq!(told(&mut lab), [own.clone(), own.clone(), none(), none()], "after a split");
            lab.evict_all();
            let mut all = [names.clone(), own.clone()].concat();
            let [_, _, removed, _] = told(&mut lab);
            assert_eq!(sorted(removed), sorted(all.clone()));
            let leases = [&tokens, &branch].map(|tokens| lab.bring_back(tokens).unwrap());
            assert_eq!(told(&mut lab), [all.clone(), none(), none(), none()], "restored");
            for lease in leases {
                lab.cache.release(lease);
            }
            // Gone from the host: a new prompt takes all slots.
            lab.evict_all();
            drop(told(&mut lab));
            let other = lab.prompt(900_000, 32 * u32::try_from(shape.lanes).unwrap());
            serve(&mut lab, &other);
            let [.., removed] = told(&mut lab);
            all.sort_unstable();
            assert_eq!(sorted(removed), all, "{shape:?} {copies:?}");
            // Other servers have other pages, and call them otherwise.
            for page_tokens in [1, 2] {
                for key in [KeyKind::Token, KeyKind::Pair] {
                    let other = Shape { key, page_tokens: shape.page_tokens * page_tokens, ..shape };
                    if (other.key, page_tokens) != (shape.key, 1) {
                        let other = Lab::new(other, 1, 1).cache.page_hashes(&tokens, &Namespace::default());
                        assert!(other.iter().all(|name| !names.contains(name)));
                    }
                }
            }
        }
    }
}

/// The pages that were stored on the device and on the host, and removed from them, since this was asked last.
fn told(lab: &mut Lab) -> [Vec<u64>; 4] {
    let mut told = [const { Vec::new() }; 4];
    for event in lab.cache.take_events() {
        match event {
            CacheEvent::Stored { medium, hashes, .. } => told[medium as usize].extend(hashes),
            CacheEvent::Removed { medium, hashes } => told[2 + medium as usize].extend(hashes),
            CacheEvent::Cleared => panic!("nobody has flushed"),
        }
    }
    told
}

fn sorted(mut names: Vec<u64>) -> Vec<u64> {
    names.sort_unstable();
    names
}
