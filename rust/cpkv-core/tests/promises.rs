//! Promises of the design, each as a case that breaks when the promise is. The random comparison
//! with the naive cache (`against_oracle.rs`) covers more, but names nothing.

#![expect(clippy::unwrap_used, reason = "test code")]

mod common;

use common::{admit, cache, extend, ids, prompt};
use cpkv_core::{
    CacheConfig, CacheManager, Error, KeyKind, Lane, Namespace, Pages, Placement, Policy, PoolOwner, Tokens,
};

const KEYS: [KeyKind; 2] = [KeyKind::Token, KeyKind::Pair];

/// A whole request.
fn serve(cache: &mut CacheManager, tokens: &[i64]) {
    let lease = admit(cache, tokens, &Namespace::default());
    cache.release(lease);
    cache.check_integrity().unwrap();
}

/// A whole request with the tokens of [`prompt`].
fn serve_prompt(cache: &mut CacheManager, first: i64, pages: u32) {
    let tokens = prompt(cache, first, pages);
    serve(cache, &tokens);
}

/// Pages found on the device and on the host only.
fn found(cache: &CacheManager, tokens: &[i64]) -> (u32, u32) {
    let hit = cache.match_prefix(tokens, &Namespace::default(), None);
    (hit.device_pages().0, hit.host_pages().0)
}

// --- Keys ---

#[test]
fn a_pair_page_needs_its_successor() {
    let mut cache = cache(KeyKind::Pair, 1, 100, None);
    serve(&mut cache, &[1, 2, 3, 4]);
    assert_eq!(found(&cache, &[1, 2, 3, 9]), (2, 0));
    assert_eq!(found(&cache, &[1, 2, 3, 4, 5]), (3, 0));
    assert_eq!(found(&cache, &[1]), (0, 0));
}

#[test]
fn short_keys_are_cut_to_whole_pages() {
    for (key, expected) in KEYS.into_iter().zip([[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2]]) {
        for (length, pages) in [1, 63, 64, 65, 128, 129].into_iter().zip(expected) {
            let tokens: Vec<i64> = (0..length).collect();
            let mut cache = cache(key, 64, 8, Some(8));
            serve(&mut cache, &tokens);
            assert_eq!(found(&cache, &tokens), (pages, 0), "{key:?} {length}");
            cache.evict(Lane(0), 8).unwrap();
            assert_eq!(found(&cache, &tokens), (0, pages), "{key:?} {length}");
        }
    }
}

#[test]
fn a_limit_counts_raw_tokens() {
    for key in KEYS {
        let mut cache = cache(key, 4, 8, None);
        let tokens = prompt(&cache, 0, 5);
        serve(&mut cache, &tokens);
        for limit in 0..tokens.len() + 3 {
            let hit = cache.match_prefix(&tokens, &Namespace::default(), Some(Tokens(limit)));
            assert_eq!(hit.pages().index(), (limit / 4).min(5), "{key:?} {limit}");
        }
    }
}

#[test]
fn tokens_are_compared_in_all_their_bits() {
    // Placeholders of two images whose digests agree in the low 16, or low 32, bits.
    for high in [1 << 16, 1 << 32, 1 << 62, i64::MIN] {
        for key in KEYS {
            let mut cache = cache(key, 64, 100, None);
            let text: Vec<i64> = (0..64).collect();
            let with_image = |digest: i64| [text.clone(), vec![digest; 257]].concat();
            serve(&mut cache, &with_image(0x4d));
            let shared = u32::from(key == KeyKind::Token);
            assert_eq!(found(&cache, &with_image(0x4d ^ high)), (shared, 0), "{high} {key:?}");
            serve(&mut cache, &with_image(0x4d ^ high));
            let pages = cache.shape().pages_in(Tokens(64 + 257)).0;
            for digest in [0x4d, 0x4d ^ high] {
                assert_eq!(found(&cache, &with_image(digest)), (pages, 0), "{high} {key:?}");
            }
        }
    }
}

#[test]
fn namespaces_share_nothing() {
    let mut cache = cache(KeyKind::Token, 4, 100, Some(100));
    let tokens = prompt(&cache, 0, 3);
    let part = |name, value: &'static str| Namespace::from_parts([(name, value.as_bytes())]);
    let namespaces = [
        Namespace::default(),
        part("lora", "L1"),
        part("extra", "L1"),
        part("salt", "L1"),
        Namespace::from_parts([("salt", b"ab".as_slice()), ("extra", b"c")]),
        Namespace::from_parts([("salt", b"a".as_slice()), ("extra", b"bc")]),
    ];
    for namespace in &namespaces {
        assert_eq!(cache.match_prefix(&tokens, namespace, None).pages().0, 0, "{namespace:?}");
        let lease = admit(&mut cache, &tokens, namespace);
        cache.release(lease);
        assert_eq!(cache.match_prefix(&tokens, namespace, None).pages().0, 3, "{namespace:?}");
    }
    assert_eq!(cache.stats().namespaces, 6);
    // A namespace goes with its last page, so that salts of single requests do not pile up.
    cache.evict(Lane(0), 100).unwrap();
    assert_eq!(cache.stats().namespaces, 6, "still on the host");
    serve_prompt(&mut cache, 1000, 100);
    assert_eq!(cache.stats().namespaces, 1);
}

// --- Hits and leases ---

#[test]
fn a_hit_holds_nothing_and_a_lease_does() {
    for key in KEYS {
        let mut cache = cache(key, 4, 8, None);
        let tokens = prompt(&cache, 0, 6);
        serve(&mut cache, &tokens);
        let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
        // Half of it goes before the lock, which holds what is left.
        assert_eq!(cache.evict(Lane(0), 3).unwrap().len(), 3);
        let lease = cache.lock(&hit, 0);
        assert_eq!(lease.pages(), Pages(3));
        assert_eq!(cache.evict(Lane(0), 8).unwrap().len(), 0);
        cache.release(lease);
        assert_eq!(cache.evict(Lane(0), 8).unwrap().len(), 3);
        let lease = cache.lock(&hit, 0);
        assert_eq!(lease.pages(), Pages(0));
        cache.release(lease);
    }
}

#[test]
fn a_lock_holds_what_is_left_of_the_hit() {
    for key in KEYS {
        for host_slots in [None, Some(4)] {
            let mut cache = cache(key, 4, 10, host_slots);
            let tokens = prompt(&cache, 0, 6);
            serve(&mut cache, &tokens);
            let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
            // The end goes, and another prompt takes its place in the tree.
            cache.evict(Lane(0), 3).unwrap();
            let mut other = tokens[..4 * 4].to_vec();
            other.extend(prompt(&cache, 500, 4));
            serve(&mut cache, &other);
            let lease = cache.lock(&hit, 0);
            let left = if host_slots.is_some() { 3..=6 } else { 3..=3 };
            assert!(left.contains(&lease.pages().0), "{key:?} {host_slots:?} {lease:?}");
            let again = cache.match_prefix(&tokens, &Namespace::default(), None);
            assert!(lease.pages() <= again.pages());
            cache.release(lease);
        }
    }
}

#[test]
fn a_hit_survives_splits_and_restructuring() {
    let mut cache = cache(KeyKind::Token, 1, 20, None);
    let tokens: Vec<i64> = (0..10).collect();
    serve(&mut cache, &tokens);
    let hits: Vec<_> =
        (0..=10).map(|limit| cache.match_prefix(&tokens, &Namespace::default(), Some(Tokens(limit)))).collect();
    // Three branches off the node that all hits end in.
    for branch in [7, 2, 4] {
        let other: Vec<i64> = (0..branch).chain(100 + branch..101 + branch).collect();
        serve(&mut cache, &other);
    }
    for (limit, hit) in (0..).zip(&hits) {
        let lease = cache.lock(hit, 0);
        assert_eq!(lease.pages(), Pages(limit));
        cache.check_integrity().unwrap();
        cache.release(lease);
    }
}

#[test]
fn counts_follow_splits_locks_and_evictions() {
    for key in KEYS {
        let mut cache = cache(key, 16, 100, None);
        let first = prompt(&cache, 0, 4);
        serve(&mut cache, &first);
        let mut second = first[..32].to_vec();
        second.extend(prompt(&cache, 100, 2));
        let shared = if key == KeyKind::Token { 2 } else { 1 };
        serve(&mut cache, &second);
        let total = cache.stats().device_cached_pages;
        assert_eq!(total, 4 + 4 - shared);
        assert_eq!(cache.evictable_pages(Lane(0)).unwrap(), total);

        let hit = cache.match_prefix(&first, &Namespace::default(), None);
        let lease = cache.lock(&hit, 0);
        assert_eq!(cache.evictable_pages(Lane(0)).unwrap(), total - 4);
        assert_eq!(cache.evict(Lane(0), 100).unwrap().len(), 4 - shared as usize);
        assert_eq!(found(&cache, &first), (4, 0));
        cache.release(lease);
        assert_eq!(cache.evictable_pages(Lane(0)).unwrap(), 4);
        assert_eq!(cache.evict(Lane(0), 100).unwrap().len(), 4);
        assert_eq!(cache.stats().device_cached_pages, 0);
        cache.check_integrity().unwrap();
    }
}

// --- Pages have one owner ---

#[test]
fn a_page_is_freed_once() {
    let mut cache = cache(KeyKind::Token, 4, 10, None);
    let pages = ids(&cache.allocate(Placement::Stripe(10, Lane(0))).unwrap().unwrap());
    cache.free(&pages[..1]).unwrap();
    let digest = cache.digest();
    for (again, expected) in [
        (vec![pages[0]], "page id 0 at index 0 is free: allocate it first"),
        (vec![pages[1], pages[0]], "page id 0 at index 1 is free: allocate it first"),
        (vec![pages[2], pages[2]], "page id 2 at index 1 is given twice in one call"),
        (vec![10], "page id 10 at index 0 is out of range, want 0 to 9"),
        (vec![-1], "page id -1 at index 0 is out of range, want 0 to 9"),
    ] {
        assert_eq!(cache.free(&again).unwrap_err().to_string(), expected);
        assert_eq!(cache.digest(), digest);
    }
    cache.free(&pages[1..]).unwrap();
    let mut again = ids(&cache.allocate(Placement::Stripe(10, Lane(0))).unwrap().unwrap());
    again.sort_unstable();
    assert_eq!(again, (0..10).collect::<Vec<_>>(), "all distinct");
}

#[test]
fn two_requests_that_compute_the_same_leave_one_copy() {
    for key in KEYS {
        for first_ends_first in [true, false] {
            let mut cache = cache(key, 16, 8, Some(8));
            let tokens = prompt(&cache, 1, 4);
            let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
            let mut leases = [cache.lock(&hit, 0), cache.lock(&hit, 0)];
            let pages = [0, 1].map(|_| ids(&cache.allocate(Placement::Stripe(4, Lane(0))).unwrap().unwrap()));
            let inserted = cache.insert(&tokens, &pages[0], &mut leases[0]).unwrap();
            assert_eq!((inserted.new_pages, inserted.host_pages), (Pages(4), Pages(4)));
            let again = cache.insert(&tokens, &pages[1], &mut leases[1]).unwrap();
            assert_eq!(ids(&again.duplicates), pages[1]);
            assert_eq!(again.new_pages, Pages(0));
            // The second request can go over to the tree's copy; its own pages are still its own.
            assert_eq!(ids(&cache.leased_pages(&leases[1], Pages(0))), pages[0]);
            cache.check_integrity().unwrap();
            let [first, second] = leases;
            let in_order = if first_ends_first { [first, second] } else { [second, first] };
            cache.free(&pages[1]).unwrap();
            for lease in in_order {
                cache.release(lease);
            }
            let stats = cache.stats();
            assert_eq!((stats.device_cached_pages, stats.device_free_pages, stats.host_cached_slots), (4, 4, 4));
        }
    }
}

#[test]
fn an_aborted_request_leaves_what_it_inserted() {
    for key in KEYS {
        let mut cache = cache(key, 64, 16, None);
        let tokens = prompt(&cache, 0, 8);
        let part = &tokens[..256 + cache.shape().successor_tokens()];
        let lease = admit(&mut cache, part, &Namespace::default());
        let unused = ids(&cache.allocate(Placement::Stripe(4, Lane(0))).unwrap().unwrap());
        cache.release(lease);
        cache.free(&unused).unwrap();
        assert_eq!(found(&cache, &tokens), (4, 0));
        let stats = cache.stats();
        assert_eq!(stats.device_free_pages + stats.device_evictable_pages, 16);
    }
}

#[test]
fn an_external_pool_is_told_what_to_free_and_nothing_is_made_up() {
    let config = CacheConfig {
        page_tokens: 4,
        device_pages: 1000,
        owner: PoolOwner::Engine,
        host_slots: Some(32),
        ..CacheConfig::default()
    };
    let mut cache = CacheManager::new(&config).unwrap();
    let tokens = prompt(&cache, 0, 5);
    cache.insert_unleased(&tokens, &[900, 3, 77, 500, 10], &Namespace::default()).unwrap();
    // The same ids again, as an engine does that inserts whole rows: neither new nor duplicate.
    let inserted = cache.insert_unleased(&tokens, &[900, 3, 77, 500, 11], &Namespace::default()).unwrap();
    assert_eq!(ids(&inserted.duplicates), [11]);
    assert_eq!(ids(&cache.evict(Lane(0), 2).unwrap()), [500, 10]);
    let digest = cache.digest();
    let other = prompt(&cache, 50, 1);
    assert!(matches!(
        cache.insert_unleased(&other, &[77], &Namespace::default()),
        Err(Error::PageInTree { page: 77, index: 0 })
    ));
    assert!(matches!(cache.allocate(Placement::Stripe(1, Lane(0))), Err(Error::ExternalPool { .. })));
    assert_eq!(ids(&cache.free(&[500]).unwrap()), [500], "the engine is to free it");
    assert!(matches!(cache.evict_for(Placement::Stripe(1, Lane(0))), Err(Error::ExternalPool { .. })));
    assert_eq!(cache.digest(), digest);
    cache.insert_unleased(&other, &[500], &Namespace::default()).unwrap();
    cache.check_integrity().unwrap();
}

#[test]
fn a_refused_page_of_an_external_pool_can_be_given_again() {
    let config = CacheConfig { page_tokens: 1, device_pages: 100, owner: PoolOwner::Engine, ..CacheConfig::default() };
    let mut cache = CacheManager::new(&config).unwrap();
    let namespace = Namespace::default();
    cache.insert_unleased(&[1, 2], &[10, 11], &namespace).unwrap();
    let digest = cache.digest();
    // 10 is in its place, 20 and 21 are new, 11 is not the caller's.
    let refused = cache.insert_unleased(&[1, 7, 8, 9], &[10, 20, 21, 11], &namespace);
    assert!(matches!(refused, Err(Error::PageInTree { page: 11, index: 3 })));
    assert_eq!(cache.digest(), digest);
    cache.check_integrity().unwrap();
    cache.insert_unleased(&[1, 7, 8], &[10, 20, 21], &namespace).unwrap();
    assert_eq!(cache.free_pages(Lane(0)).unwrap(), 0);
    cache.check_integrity().unwrap();
}

// --- Refusals ---

#[test]
fn a_refused_call_changes_nothing() {
    let mut cache = cache(KeyKind::Pair, 4, 12, Some(12));
    let tokens = prompt(&cache, 0, 4);
    let mut lease = admit(&mut cache, &tokens[..9], &Namespace::default());
    let pages = ids(&cache.allocate(Placement::Stripe(4, Lane(0))).unwrap().unwrap());
    let cached = ids(&cache.leased_pages(&lease, Pages(0)));
    let other = prompt(&cache, 70, 4);
    let mut changed = tokens.clone();
    changed[8] = -1;
    let digest = cache.digest();
    for (tokens, pages, expected) in [
        (&tokens, vec![pages[0]], "got 1 page ids, want 2: one for each page from 2 up to 4"),
        (&tokens, vec![pages[0], 12], "page id 12 at index 1 is out of range, want 0 to 11"),
        (&tokens, vec![pages[0], i64::MIN], "page id -9223372036854775808 at index 1 is out of range, want 0 to 11"),
        (&tokens, vec![pages[0], pages[0]], "page id 2 at index 1 is given twice in one call"),
        (&tokens, vec![pages[0], cached[1]], "page id 1 at index 1 already holds a page of the cache"),
        (&tokens, vec![pages[0], 11], "page id 11 at index 1 is free: allocate it first"),
        (&other, vec![pages[0], pages[1]], "the tokens differ from those of the lease: page 1 is another one"),
        (&changed, vec![pages[0], pages[1]], "the tokens differ from those of the lease: page 1 is another one"),
        (
            &tokens[..8].to_vec(),
            vec![],
            "the tokens differ from those of the lease: 8 tokens make 1 pages, the lease has 2",
        ),
    ] {
        let error = cache.insert(tokens, &pages, &mut lease).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(cache.digest(), digest, "{expected}");
    }
    let unleased = cache.insert_unleased(&other, &pages[..3], &Namespace::from_parts([("new", b"".as_slice())]));
    assert!(matches!(unleased, Err(Error::PageCount { given: 3, wanted: 4, .. })));
    for lane in [1, u32::MAX] {
        assert!(matches!(cache.evict(Lane(lane), 1), Err(Error::NoSuchLane { last: 0, .. })));
        assert!(matches!(cache.evict_for(Placement::Stripe(1, Lane(lane))), Err(Error::NoSuchLane { last: 0, .. })));
        assert!(matches!(cache.allocate(Placement::Stripe(1, Lane(lane))), Err(Error::NoSuchLane { last: 0, .. })));
    }
    assert_eq!(cache.digest(), digest);
    cache.check_integrity().unwrap();
    cache.insert(&tokens, &pages[..2], &mut lease).unwrap();
    cache.release(lease);
}

#[test]
fn a_host_page_is_restored_in_its_lane() {
    let config =
        CacheConfig { page_tokens: 1, lanes: 2, device_pages: 12, host_slots: Some(64), ..CacheConfig::default() };
    let mut cache = CacheManager::new(&config).unwrap();
    let tokens: Vec<i64> = (0..4).collect();
    serve(&mut cache, &tokens);
    cache.evict(Lane(0), 6).unwrap();
    cache.evict(Lane(1), 6).unwrap();
    let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
    let mut lease = cache.lock(&hit, 0);
    let lanes: Vec<u32> = cache.leased_slots(&lease).unwrap().iter().map(|slot| slot.raw() % 2).collect();
    assert_eq!(lanes, [0, 1, 0, 1]);
    let pages = ids(&cache.allocate(Placement::Stripe(4, Lane(1))).unwrap().unwrap());
    let digest = cache.digest();
    let error = cache.restore(&mut lease, &pages).unwrap_err();
    assert!(matches!(error, Error::LaneMismatch { index: 0, lane: 1, slot_lane: 0, .. }), "{error}");
    let later = [pages[1], pages[0], pages[2], pages[3]];
    let error = cache.restore(&mut lease, &later).unwrap_err();
    assert!(matches!(error, Error::LaneMismatch { index: 2, lane: 1, slot_lane: 0, .. }), "{error}");
    assert!(matches!(cache.restore(&mut lease, &pages[..3]), Err(Error::PageCount { wanted: 4, .. })));
    assert_eq!(cache.digest(), digest);
    let swapped = [pages[1], pages[0], pages[3], pages[2]];
    assert_eq!(cache.restore(&mut lease, &swapped).unwrap().duplicates, []);
    assert_eq!(ids(&cache.leased_pages(&lease, Pages(0))), swapped);
    cache.release(lease);
    cache.check_integrity().unwrap();
}

#[test]
fn what_others_bring_to_the_device_meanwhile_is_a_duplicate_of_what_a_holder_computes() {
    // Six pages, of which two stay on the device; another request computes the first four of them again.
    let config = CacheConfig { page_tokens: 1, device_pages: 12, host_slots: Some(64), ..CacheConfig::default() };
    for is_use in [false, true] {
        let mut cache = CacheManager::new(&config).unwrap();
        let tokens: Vec<i64> = (0..6).collect();
        let all = ids(&cache.allocate(Placement::Stripe(6, Lane(0))).unwrap().unwrap());
        cache.insert_unleased(&tokens, &all, &Namespace::default()).unwrap();
        cache.evict(Lane(0), 4).unwrap();
        let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
        let mut lease = if is_use { cache.lock(&hit, 0) } else { cache.pin(&hit, 0) };
        assert_eq!((lease.device_pages(), lease.host_pages()), (Pages(2), Pages(4)));
        let given = ids(&cache.allocate(Placement::Stripe(4, Lane(0))).unwrap().unwrap());
        let others = cache.insert_unleased(&tokens[..4], &given, &Namespace::default()).unwrap();
        assert_eq!(ids(&others.duplicates), given[..2]);
        let own = ids(&cache.allocate(Placement::Stripe(4, Lane(0))).unwrap().unwrap());
        let inserted = cache.insert(&tokens, &own, &mut lease).unwrap();
        assert_eq!(ids(&inserted.duplicates), own[..2]);
        let expected = [&all[..2], &given[2..], &own[2..]].concat();
        assert_eq!(ids(&cache.leased_pages(&lease, Pages(0))), expected);
        cache.release(lease);
        cache.check_integrity().unwrap();
    }
}

// --- Eviction ---

#[test]
fn eviction_takes_what_was_asked_for_and_no_more() {
    for key in KEYS {
        for host in [None, Some(100)] {
            let mut cache = cache(key, 4, 100, host);
            for request in 0..50 {
                let tokens = prompt(&cache, 1000 * request, 2);
                serve(&mut cache, &tokens);
            }
            // The oldest request whole, then the end of the next.
            assert_eq!(cache.evict(Lane(0), 3).unwrap().len(), 3);
            let on_host = |pages| if host.is_some() { pages } else { 0 };
            let found = |request: i64| found(&cache, &prompt(&cache, 1000 * request, 2));
            assert_eq!((found(0), found(1), found(2)), ((0, on_host(2)), (1, on_host(1)), (2, 0)));
            cache.check_integrity().unwrap();
        }
    }
}

/// One prompt of one page in a lane of its own, many times.
fn fill_lane(cache: &mut CacheManager, lane: i64, first: i64, prompts: i64) {
    for token in first..first + prompts {
        let pages = ids(&cache.allocate(Placement::Each(&[lane])).unwrap().unwrap());
        cache.insert_unleased(&[token], &pages, &Namespace::default()).unwrap();
    }
}

#[test]
fn eviction_for_one_lane_leaves_the_others_alone() {
    let config = CacheConfig { page_tokens: 1, lanes: 2, device_pages: 4_000, ..CacheConfig::default() };
    let mut cache = CacheManager::new(&config).unwrap();
    fill_lane(&mut cache, 1, 0, 2_000);
    fill_lane(&mut cache, 0, 10_000, 2_000);
    // Everything in lane 1 is older.
    let given_up = cache.evict_for(Placement::Each(&[0])).unwrap().unwrap();
    assert_eq!(given_up.len(), 1);
    assert_eq!(cache.evict(Lane(0), 3).unwrap().len(), 3);
    assert_eq!(cache.evictable_pages(Lane(1)).unwrap(), 2_000);
    // More than there is is no reason to look elsewhere.
    assert_eq!(cache.evict(Lane(0), 4_000).unwrap().len(), 1_996);
    assert_eq!(cache.evict(Lane(0), 1).unwrap().len(), 0);
    cache.check_integrity().unwrap();
}

#[test]
fn eviction_takes_pages_of_other_lanes_if_they_are_in_the_way() {
    let config = CacheConfig { page_tokens: 1, lanes: 2, device_pages: 20, ..CacheConfig::default() };
    let mut cache = CacheManager::new(&config).unwrap();
    // Lane 0 has only pages that others hang from.
    let lanes = [0, 0, 1, 1, 1];
    for first in [100, 200] {
        let pages = ids(&cache.allocate(Placement::Each(&lanes)).unwrap().unwrap());
        let tokens: Vec<i64> = (first..first + 5).collect();
        cache.insert_unleased(&tokens, &pages, &Namespace::default()).unwrap();
    }
    assert_eq!(cache.evict(Lane(0), 1).unwrap().len(), 4, "the older prompt, up to its last page in the lane");
    let found = |first: i64| found(&cache, &(first..first + 5).collect::<Vec<i64>>());
    assert_eq!((found(100), found(200)), ((1, 0), (5, 0)));
    cache.check_integrity().unwrap();
}

#[test]
fn host_eviction_for_one_lane_leaves_the_others_alone() {
    let config = CacheConfig {
        page_tokens: 1,
        lanes: 2,
        device_pages: 4_000,
        host_slots: Some(4_000),
        segment_pages: 1,
        ..CacheConfig::default()
    };
    let mut cache = CacheManager::new(&config).unwrap();
    fill_lane(&mut cache, 1, 0, 2_000);
    fill_lane(&mut cache, 0, 10_000, 2_000);
    cache.evict(Lane(0), 2_000).unwrap();
    cache.evict(Lane(1), 2_000).unwrap();
    assert_eq!(cache.stats().host_cached_slots, 4_000);
    fill_lane(&mut cache, 0, 20_000, 1);
    let stats = cache.stats();
    assert_eq!((stats.counters.host_evicted_pages, stats.host_mirror_slots), (1, 1));
    assert_eq!(found(&cache, &[10_000]), (0, 0), "the oldest of the lane");
    assert_eq!(found(&cache, &[0]), (0, 1), "older, in the other lane");
    cache.check_integrity().unwrap();
}

/// Under fifo and mru what hangs below a page can be worth more than the page. It cannot be reached
/// without it, so it goes first, however much there is of it.
#[test]
fn what_hangs_below_goes_before_what_it_hangs_from() {
    for policy in [Policy::Fifo, Policy::Mru] {
        let config = CacheConfig {
            page_tokens: 1,
            device_pages: 20_000,
            host_slots: Some(10_000),
            segment_pages: 1,
            policy,
            ..CacheConfig::default()
        };
        let mut cache = CacheManager::new(&config).unwrap();
        // A front of 4,000 pages, and as many leaves on it.
        let front: Vec<i64> = (0..4_000).collect();
        serve(&mut cache, &front);
        for leaf in 0..4_000 {
            let lease = admit(&mut cache, &[&front[..], &[100_000 + leaf]].concat(), &Namespace::default());
            cache.release(lease);
        }
        let held: Vec<i64> = (500_000..506_000).collect();
        let lease = admit(&mut cache, &held, &Namespace::default());
        let started = std::time::Instant::now();
        cache.evict(Lane(0), 8_000).unwrap();
        assert!(started.elapsed().as_secs() < 5, "a search for each page would take longer");
        cache.check_integrity().unwrap();
        let stats = cache.stats();
        assert_eq!(stats.device_cached_pages, 6_000);
        assert!(found(&cache, &front).1 >= 4_000, "{policy:?}: the front is worth its leaves");
        cache.release(lease);
    }
}

#[test]
fn a_mirror_makes_room_for_newer_pages() {
    for key in KEYS {
        let mut cache = cache(key, 4, 64, Some(16));
        for request in 0..4 {
            let tokens = prompt(&cache, 1000 * request, 16);
            serve(&mut cache, &tokens);
            let stats = cache.stats();
            assert_eq!(stats.host_mirror_slots, 16, "the newest request");
            assert_eq!(stats.counters.host_skipped_pages, 0);
        }
        assert_eq!(cache.stats().counters.mirror_dropped_pages, 48);
        for request in 0..4 {
            assert_eq!(found(&cache, &prompt(&cache, 1000 * request, 16)), (16, 0));
        }
        // What has lost its mirror is copied late when the device needs the room.
        cache.evict(Lane(0), 16).unwrap();
        assert_eq!(found(&cache, &prompt(&cache, 0, 16)), (0, 16));
        assert_eq!(cache.stats().counters.late_copied_pages, 16);
        cache.check_integrity().unwrap();
    }
}

#[test]
fn no_sole_copy_goes_while_a_mirror_is_there() {
    for key in KEYS {
        let mut cache = cache(key, 4, 8, Some(12));
        let old = prompt(&cache, 0, 6);
        serve(&mut cache, &old);
        cache.evict(Lane(0), 6).unwrap();
        serve_prompt(&mut cache, 1000, 6);
        assert_eq!((cache.stats().host_cached_slots, cache.stats().host_mirror_slots), (12, 6));
        serve_prompt(&mut cache, 2000, 2);
        assert_eq!(found(&cache, &old), (0, 6), "the only copy");
        assert_eq!(cache.stats().counters.mirror_dropped_pages, 2);
    }
}

#[test]
fn what_a_lease_holds_on_the_host_stays() {
    for key in KEYS {
        let mut cache = cache(key, 4, 8, Some(4));
        let held = prompt(&cache, 0, 4);
        serve(&mut cache, &held);
        cache.evict(Lane(0), 8).unwrap();
        let hit = cache.match_prefix(&held, &Namespace::default(), None);
        let mut lease = cache.lock(&hit, 0);
        assert_eq!(lease.host_pages(), Pages(4));
        // No slot can be had: the new pages stay without a host copy, and nothing waits or fails.
        let new = prompt(&cache, 1000, 3);
        serve(&mut cache, &new);
        assert_eq!(cache.stats().counters.host_skipped_pages, 3);
        assert_eq!(found(&cache, &held), (0, 4));
        // And if they have to leave the device they are lost, not what is held.
        cache.evict(Lane(0), 3).unwrap();
        assert_eq!(cache.stats().counters.lost_pages, 3);
        assert_eq!(found(&cache, &new), (0, 0));
        extend(&mut cache, &held, &mut lease);
        assert_eq!(found(&cache, &held), (4, 0));
        cache.release(lease);
        cache.check_integrity().unwrap();
    }
}

#[test]
fn a_second_restore_of_the_same_pages_gives_them_back() {
    let mut cache = cache(KeyKind::Token, 4, 16, Some(16));
    let tokens = prompt(&cache, 0, 5);
    serve(&mut cache, &tokens);
    cache.evict(Lane(0), 16).unwrap();
    let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
    let mut leases = [cache.lock(&hit, 0), cache.lock(&hit, 0)];
    let pages = [0, 1].map(|_| ids(&cache.allocate(Placement::Stripe(5, Lane(0))).unwrap().unwrap()));
    assert_eq!(cache.restore(&mut leases[0], &pages[0]).unwrap().duplicates, []);
    assert_eq!(cache.leased_slots(&leases[1]).unwrap().len(), 5, "still held");
    let restored = cache.restore(&mut leases[1], &pages[1]).unwrap();
    assert_eq!(ids(&restored.duplicates), pages[1]);
    assert_eq!(ids(&cache.leased_pages(&leases[1], Pages(2))), pages[0][2..]);
    cache.free(&pages[1]).unwrap();
    for lease in leases {
        cache.release(lease);
    }
    let counters = cache.stats().counters;
    assert_eq!((counters.restored_pages, counters.duplicate_pages), (5, 5));
    cache.check_integrity().unwrap();
}

#[test]
fn a_hot_prompt_survives_a_flood_under_counting_policies() {
    for (policy, survives) in [
        (Policy::Lfu, true),
        (Policy::Slru, true),
        (Policy::Lru, false),
        (Policy::Fifo, false),
        (Policy::Priority, false),
    ] {
        let config = CacheConfig { page_tokens: 4, device_pages: 20, policy, ..CacheConfig::default() };
        let mut cache = CacheManager::new(&config).unwrap();
        let hot = prompt(&cache, 0, 8);
        for _ in 0..10 {
            serve(&mut cache, &hot);
        }
        // A split in the middle: both parts are as hot as the whole was.
        let branch = [&hot[..16], &[-1; 4]].concat();
        serve(&mut cache, &branch);
        for request in 1..=100 {
            serve_prompt(&mut cache, 1000 * request, 1);
        }
        assert_eq!(found(&cache, &hot) == (8, 0), survives, "{policy:?}");
    }
}

#[test]
fn priority_keeps_what_the_engine_says_is_worth_more() {
    let config = CacheConfig { page_tokens: 4, device_pages: 8, policy: Policy::Priority, ..CacheConfig::default() };
    let mut cache = CacheManager::new(&config).unwrap();
    for (first, priority) in [(0, 5), (1000, -3), (2000, 0)] {
        let tokens = prompt(&cache, first, 2);
        let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
        let mut lease = cache.lock(&hit, priority);
        extend(&mut cache, &tokens, &mut lease);
        cache.release(lease);
    }
    cache.evict(Lane(0), 2).unwrap();
    let still = |cache: &CacheManager| [0, 1000, 2000].map(|first| found(cache, &prompt(cache, first, 2)).0);
    assert_eq!(still(&cache), [2, 0, 2]);

    // Computed at the same time by a request of more worth: worth more from then on.
    let tokens = prompt(&cache, 1000, 2);
    let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
    for (mut lease, duplicates) in [(cache.lock(&hit, -3), 0), (cache.lock(&hit, 3), 2)] {
        let pages = ids(&cache.allocate(Placement::Stripe(2, Lane(0))).unwrap().unwrap());
        let inserted = cache.insert(&tokens, &pages, &mut lease).unwrap();
        assert_eq!(inserted.duplicates.len(), duplicates);
        cache.free(&ids(&inserted.duplicates)).unwrap();
        cache.release(lease);
    }
    cache.evict(Lane(0), 2).unwrap();
    assert_eq!(still(&cache), [2, 2, 0]);
}

/// A chunk inserted late makes its whole prompt recent: the front of a prompt must not count as
/// older than a stranger that came between its chunks.
#[test]
fn the_front_of_a_prompt_is_as_recent_as_its_end() {
    let mut cache = cache(KeyKind::Token, 1, 10, Some(4));
    let long: Vec<i64> = (0..4).collect();
    let mut lease = admit(&mut cache, &long[..3], &Namespace::default());
    serve(&mut cache, &[100, 101]);
    extend(&mut cache, &long, &mut lease);
    cache.release(lease);
    // Everything leaves the device; the host has room for four of the six pages.
    assert_eq!(cache.evict(Lane(0), 10).unwrap().len(), 6);
    assert_eq!(found(&cache, &long), (0, 4));
    assert_eq!(found(&cache, &[100, 101]), (0, 0));
}

// --- Size ---

#[test]
fn a_million_one_page_nodes_need_no_stack() {
    const TOKENS: usize = 1_000_000;
    let work = || {
        for host_slots in [None, Some(1_048_576)] {
            // By this policy pages of different age are not joined.
            let config = CacheConfig {
                page_tokens: 1,
                device_pages: 1_048_576,
                host_slots,
                segment_pages: 1,
                policy: Policy::Fifo,
                ..CacheConfig::default()
            };
            let mut cache = CacheManager::new(&config).unwrap();
            let tokens: Vec<i64> = (0..).take(TOKENS).collect();
            let mut lease = admit(&mut cache, &tokens[..1], &Namespace::default());
            for length in 2..=TOKENS {
                extend(&mut cache, &tokens[..length], &mut lease);
            }
            cache.release(lease);
            assert_eq!(cache.stats().nodes, TOKENS + 1);
            assert_eq!(found(&cache, &tokens), (1_000_000, 0));
            cache.check_integrity().unwrap();
            assert_eq!(cache.digest(), cache.digest());
            // Split, lock and release go along the whole path as well.
            let half = cache.match_prefix(&tokens, &Namespace::default(), Some(Tokens(TOKENS / 2)));
            let lease = cache.lock(&half, 0);
            assert_eq!(cache.evict(Lane(0), 1_048_576).unwrap().len(), TOKENS / 2);
            cache.release(lease);
            assert_eq!(cache.evict(Lane(0), 400_000).unwrap().len(), 400_000);
            cache.check_integrity().unwrap();
            drop(cache);
        }
    };
    std::thread::Builder::new().stack_size(256 * 1024).spawn(work).unwrap().join().unwrap();
}

#[test]
fn pages_that_come_one_by_one_have_few_nodes() {
    for (_, policy) in Policy::ALL {
        for key in KEYS {
            let config = CacheConfig { key, page_tokens: 16, device_pages: 1_000, policy, ..CacheConfig::default() };
            let mut cache = CacheManager::new(&config).unwrap();
            let tokens = prompt(&cache, 0, 1_000);
            let shape = cache.shape();
            let mut lease = admit(&mut cache, &[], &Namespace::default());
            for pages in 1..=1_000 {
                let end = shape.tokens_of(Pages(pages)).0 + shape.successor_tokens();
                extend(&mut cache, &tokens[..end], &mut lease);
                assert_eq!(cache.leased_pages(&lease, Pages::ZERO).len(), pages as usize);
            }
            cache.release(lease);
            cache.check_integrity().unwrap();
            assert_eq!(found(&cache, &tokens), (1_000, 0));
            // Runs of 256 pages of 16 tokens, and what is left over by powers of two.
            let is_by_age = matches!(policy, Policy::Fifo | Policy::Filo);
            assert_eq!(cache.stats().nodes, 1 + if is_by_age { 1_000 } else { 3 + 4 }, "{policy:?}");
            // What was joined is evicted and split by pages all the same.
            assert_eq!(cache.evict(Lane(0), 333).unwrap().len(), 333);
            let mut other = tokens[..shape.tokens_of(Pages(300)).0 + shape.successor_tokens()].to_vec();
            other.push(-1);
            serve(&mut cache, &other);
            assert_eq!(found(&cache, &tokens), (667, 0));
        }
    }
}

#[test]
fn joining_leaves_what_others_have_found() {
    for key in KEYS {
        let mut cache = cache(key, 4, 100, None);
        let tokens = prompt(&cache, 0, 8);
        let half = prompt(&cache, 0, 4);
        serve(&mut cache, &half);
        let first = cache.lock(&cache.match_prefix(&half, &Namespace::default(), None), 0);
        let waiting = cache.match_prefix(&tokens, &Namespace::default(), None);
        serve(&mut cache, &tokens);
        cache.release(first);
        let lease = cache.lock(&waiting, 0);
        assert_eq!(lease.pages(), Pages(4));
        cache.release(lease);
    }
}

/// Equal tokens all the way: every page has the same hash, and only its parent tells it apart.
/// Were the parent not hashed, this would take minutes and be killed.
#[test]
fn a_long_run_of_one_token_is_no_trap() {
    const PAGES: usize = 400_000;
    for key in KEYS {
        let mut cache = cache(key, 1, 400_000, None);
        let tokens = vec![5; PAGES + 1];
        let mut lease = admit(&mut cache, &tokens[..2], &Namespace::default());
        for length in 3..=PAGES {
            extend(&mut cache, &tokens[..length], &mut lease);
        }
        cache.release(lease);
        assert!(found(&cache, &tokens).0 >= 399_999);
    }
}

#[test]
fn chunks_of_a_long_prompt_cost_no_more_than_the_prompt() {
    for key in KEYS {
        let mut cache = cache(key, 64, 20_000, None);
        let tokens = prompt(&cache, 0, 16_384);
        let mut lease = admit(&mut cache, &tokens[..65], &Namespace::default());
        for end in (64 * 128..=tokens.len()).step_by(64 * 128) {
            extend(&mut cache, &tokens[..end], &mut lease);
        }
        cache.release(lease);
        serve(&mut cache, &tokens);
        assert_eq!(found(&cache, &tokens), (16_384, 0));
        assert!(cache.stats().nodes <= 132, "one node a chunk: {}", cache.stats().nodes);
    }
}
