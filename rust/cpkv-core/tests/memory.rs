//! The heap, measured by an allocator that counts: bounded by what lives, as large as the cache says it is,
//! and not asked for more by a call than the call is about.

#![expect(clippy::unwrap_used, reason = "test code")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{admit, extend, prompt};
use cpkv_core::machine::Reason;
use cpkv_core::{
    CacheConfig, CacheManager, Copies, KeyKind, Lane, Namespace, Pages, Placement, Policy, Prefill, Reserved, Stats,
};

struct Counting;

thread_local! {
    /// Of this thread alone: the test runner allocates as well, on others. Below zero if the thread has
    /// freed what another one gave it.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    /// All that was ever asked for.
    static TAKEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // Not there any more while the thread ends.
    let _ = LIVE_BYTES.try_with(|bytes| bytes.set(bytes.get() + change));
    let _ = TAKEN_BYTES.try_with(|bytes| bytes.set(bytes.get() + usize::try_from(change).unwrap_or(0)));
}

#[expect(unsafe_code, reason = "an allocator is unsafe by its interface")]
// SAFETY: everything is passed on to the system's allocator; only counts are kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as required of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as required of the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live_bytes() -> isize {
    LIVE_BYTES.with(Cell::get)
}

/// What this thread has allocated since `before` and not freed.
fn bytes_since(before: isize) -> usize {
    usize::try_from(live_bytes() - before).unwrap()
}

/// What `call` asks the heap for, whether it keeps it or not.
fn bytes_taken<T>(call: impl FnOnce() -> T) -> usize {
    let before = TAKEN_BYTES.with(Cell::get);
    drop(call());
    TAKEN_BYTES.with(Cell::get) - before
}

/// A conversation-like stream that evicts with every request: prompts of up to 40 pages that share
/// fronts of every length with earlier ones, so that buffers die from both ends and in the middle.
fn churn(cache: &mut CacheManager, requests: u64, mut observe: impl FnMut(&CacheManager)) {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        i64::try_from(state % below).unwrap()
    };
    let page_tokens = cache.shape().page_tokens();
    for request in 0..requests {
        let topic = random(50);
        let shared = usize::try_from(random(20)).unwrap() * page_tokens;
        let pages = u32::try_from(random(20) + 1).unwrap();
        let own = i64::try_from(request).unwrap() * 100_000 + 10_000_000;
        let mut tokens: Vec<i64> = (topic * 100_000..).take(shared).collect();
        tokens.extend(prompt(cache, own, pages));
        let lease = admit(cache, &tokens, &Namespace::default());
        cache.release(lease);
        drop(tokens);
        observe(cache);
    }
}

/// What may be on the heap: twice the live tokens, the ids beside them likewise, and a fixed size
/// for each node.
fn bound(cache: &CacheManager, stats: &Stats) -> usize {
    /// Node, child index, heap entries, buffer record, and the slack of vectors that double.
    const NODE_BYTES: usize = 1_000;
    /// So few that their places are not given back.
    const FEW_NODES: usize = 1_500;
    /// Device page and host slot.
    const ROW_BYTES: usize = 8;
    /// Bit maps and pools: a bit and a share of a block record for each page and slot.
    const POOL_BYTES: usize = 2;
    let tokens = usize::try_from(stats.pages).unwrap() * cache.shape().page_tokens();
    let rows = usize::try_from(stats.pages).unwrap();
    let pool = (stats.device_capacity_pages + stats.host_capacity_slots) as usize;
    2 * (tokens * 4 + rows * ROW_BYTES) + stats.nodes.max(FEW_NODES) * NODE_BYTES + pool * POOL_BYTES
}

#[test]
fn the_heap_is_bounded_by_what_lives() {
    for (key, page_tokens, host_slots) in [
        (KeyKind::Token, 16, None),
        (KeyKind::Pair, 16, Some(3_000)),
        (KeyKind::Token, 64, Some(3_000)),
        (KeyKind::Pair, 1, None),
    ] {
        let before = live_bytes();
        let mut cache = common::cache(key, page_tokens, 1_000, host_slots);
        let mut most_nodes = 0;
        let requests = 100_000;
        churn(&mut cache, requests, |cache| {
            let stats = cache.stats();
            most_nodes = most_nodes.max(stats.nodes);
            let heap = bytes_since(before);
            let bound = bound(cache, &stats);
            assert!(heap <= bound, "{heap} bytes on the heap, at most {bound} for {stats:?}");
        });
        assert!(cache.stats().counters.device_evicted_pages > requests);
        assert!(most_nodes < 2_500, "{most_nodes} nodes for 4,000 pages");
        drop(cache);
        assert_eq!(live_bytes(), before, "everything comes back");
    }
}

#[test]
fn metadata_bytes_are_the_heap() {
    for lanes in [1, 8] {
        let before = live_bytes();
        let config = CacheConfig {
            page_tokens: 64,
            lanes,
            device_pages: 8_000,
            host_slots: Some(16_000),
            segment_pages: 1,
            ..CacheConfig::default()
        };
        let mut cache = CacheManager::new(&config).unwrap();
        churn(&mut cache, 2_000, |cache| {
            let (heap, counted) = (bytes_since(before), cache.metadata_bytes());
            assert!(heap.abs_diff(counted) <= heap / 100, "{heap} bytes on the heap, {counted} counted");
        });
        assert!(cache.stats().peak_metadata_bytes >= cache.metadata_bytes());
    }
}

/// The target: token ids once at 4 bytes each, and no more than one byte a token for all the rest.
#[test]
fn metadata_is_token_ids_and_a_byte_a_token() {
    let mut cache = common::cache(KeyKind::Token, 64, 40_000, Some(40_000));
    for request in 0..200 {
        let tokens = prompt(&cache, request * 1_000_000, 200);
        let lease = admit(&mut cache, &tokens, &Namespace::default());
        cache.release(lease);
    }
    let tokens = 200 * 200 * 64;
    assert_eq!(cache.evictable_pages(Lane(0)).unwrap(), 40_000);
    assert_eq!(cache.stats().host_mirror_slots, 40_000);
    let beyond = cache.metadata_bytes() - tokens * 4;
    assert!(beyond <= tokens, "{beyond} bytes for {tokens} tokens");
}

/// One surviving page must not hold the tokens of its neighbours.
#[test]
fn a_surviving_page_does_not_hold_a_long_prompt() {
    for key in [KeyKind::Token, KeyKind::Pair] {
        let before = live_bytes();
        let mut cache = common::cache(key, 64, 20_000, None);
        let tokens = prompt(&cache, 0, 16_384);
        let lease = admit(&mut cache, &tokens, &Namespace::default());
        cache.release(lease);
        let hit = cache.match_prefix(&tokens, &Namespace::default(), Some(cpkv_core::Tokens(64)));
        let lease = cache.lock(&hit, 0);
        drop(tokens);
        cache.evict(Lane(0), 20_000).unwrap();
        let pools = 20_000 * 2;
        assert!(bytes_since(before) < 10_000 + pools, "{}", bytes_since(before));
        cache.release(lease);
        cache.check_integrity().unwrap();
    }
}

/// Nor a peak of nodes the memory of all of them.
#[test]
fn memory_comes_back_after_a_peak() {
    for host_slots in [None, Some(200_000)] {
        let before = live_bytes();
        let mut cache = common::cache(KeyKind::Token, 1, 200_000, host_slots);
        for token in 0..200_000 {
            let lease = admit(&mut cache, &[token], &Namespace::default());
            cache.release(lease);
        }
        let most = bytes_since(before);
        assert!(most > 200_000 * 200);
        cache.evict(Lane(0), 199_900).unwrap();
        // The host lets go of what it holds only for something new, and the arena of its end only
        // when nothing lives there.
        for start in (0..if host_slots.is_some() { 400_000 } else { 0 }).step_by(1_000) {
            let tokens: Vec<i64> = (1_000_000 + start..1_001_000 + start).collect();
            let lease = admit(&mut cache, &tokens, &Namespace::default());
            cache.release(lease);
        }
        cache.evict(Lane(0), 200_000).unwrap();
        let nodes = cache.stats().nodes;
        assert!(nodes < 1_000, "{nodes}");
        let (heap, pools) = (bytes_since(before), 200_000 * 4);
        let live = usize::try_from(cache.stats().pages).unwrap() * 12 * 2 + nodes.max(1_500) * 1_000;
        assert!(heap < live + pools, "{heap} bytes for {nodes} nodes, {most} at the peak");
        cache.check_integrity().unwrap();
    }
}

/// One token that does not fit 32 bits makes a prompt wide only as long as it is there.
#[test]
fn tokens_that_fit_are_compact_again() {
    let before = live_bytes();
    let mut cache = common::cache(KeyKind::Token, 64, 20_000, None);
    let mut tokens = prompt(&cache, 0, 10_000);
    *tokens.last_mut().unwrap() = -1;
    let lease = admit(&mut cache, &tokens, &Namespace::default());
    cache.release(lease);
    drop(tokens);
    assert!(bytes_since(before) > 10_000 * 64 * 8);
    cache.evict(Lane(0), 5_100).unwrap();
    let (heap, live) = (bytes_since(before), 4_900 * (64 * 4 + 8));
    assert!(heap < live + 100_000, "{heap} for {live}");
}

/// Slots come and go in a large pool while few are used: neither those that are used nor the others grow.
#[test]
fn backups_that_come_and_go_leave_nothing_behind() {
    const NODES: i64 = 1_000;
    for key in [KeyKind::Token, KeyKind::Pair] {
        for lanes in [1, 4] {
            let before = live_bytes();
            let config = CacheConfig {
                key,
                page_tokens: 1,
                lanes,
                device_pages: 8_000,
                host_slots: Some(1_000_000),
                segment_pages: 1,
                copies: Copies::Tracked,
                ..CacheConfig::default()
            };
            let mut cache = CacheManager::new(&config).unwrap();
            let empty = bytes_since(before);
            let mut step = 0;
            for node in 0..NODES {
                assert_eq!(back_up(&mut cache, 1_000_000 + 10 * node, &mut step, false), 1);
            }
            assert_eq!(cache.stats().host_cached_slots, 4 * 1_000);
            let used = bytes_since(before);
            assert!(used - empty <= 1_000 * 1_000, "{} bytes for 1,000 nodes", used - empty);
            for round in 0..50_000 {
                assert_eq!(back_up(&mut cache, 10 * (round % 777), &mut step, true), 0);
            }
            let (heap, counted) = (bytes_since(before), cache.metadata_bytes());
            assert!(heap <= used + 10_000, "{heap} bytes after 50,000 rounds, {used} before");
            assert!(heap.abs_diff(counted) <= heap / 100, "{heap} bytes on the heap, {counted} counted");
            cache.check_integrity().unwrap();
            drop(cache);
            assert_eq!(live_bytes(), before);
        }
    }
}

/// A backup of four pages, committed or given up; returns how many commits there were.
fn back_up(cache: &mut CacheManager, first: i64, step: &mut u64, aborts: bool) -> usize {
    let tokens = prompt(cache, first, 4);
    let mut lease = cache.lock(&cache.match_prefix(&tokens, &Namespace::default(), None), 0);
    let pages = common::ids(&cache.allocate(Placement::Stripe(4, Lane(0))).unwrap().unwrap());
    let prefill = Prefill { tokens: &tokens, device_pages: &pages, lease: &lease };
    let Reserved::Slots(id) = cache.reserve(prefill).unwrap() else { panic!("there is room") };
    cache.submitted(id, 0, 1).unwrap();
    cache.forward_end(&[id], true, true).unwrap();
    if aborts {
        cache.abort(id, Reason::Aborted).unwrap();
        cache.free(&pages).unwrap();
    } else {
        cache.insert_bound(&tokens, &pages, &mut lease, id).unwrap();
    }
    cache.release(lease);
    let report = cache.tick(*step, &[1], 0).unwrap();
    *step += 1;
    report.committed.len()
}

// --- What a call takes ---

/// A prompt of a million tokens: no call makes anything of each of them.
#[test]
fn a_long_prompt_is_looked_at_and_not_copied() {
    for key in [KeyKind::Token, KeyKind::Pair] {
        for (page_tokens, pages) in [(64, 16_384), (1, 1_000_000)] {
            let mut cache = common::cache(key, page_tokens, pages + 8, None);
            let tokens = prompt(&cache, 0, u32::try_from(pages).unwrap());
            let longer = prompt(&cache, 0, u32::try_from(pages).unwrap() + 1);
            let whole = bytes_taken(|| admit(&mut cache, &tokens, &Namespace::default()));
            assert!(whole >= tokens.len() * 4, "its tokens are kept once");
            let hit = || cache.match_prefix(&longer, &Namespace::default(), None);
            assert_eq!((hit().pages(), bytes_taken(hit)), (Pages(u32::try_from(pages).unwrap()), 0));
            let hit = hit();
            let mut lease = cache.lock(&hit, 0);
            let given = common::ids(&cache.allocate(Placement::Stripe(1, Lane(0))).unwrap().unwrap());
            // A page more: a table that grows with the number of pages may be among it.
            let more = bytes_taken(|| cache.insert(&longer, &given, &mut lease).unwrap());
            assert!(more <= 4_000 + tokens.len() / 8, "{more} bytes for one page more, {key:?} {page_tokens}");
            assert!(bytes_taken(|| cache.release(lease)) <= 4_000);
        }
    }
}

#[test]
fn a_prompt_in_chunks_takes_little_more_than_at_once() {
    for key in [KeyKind::Token, KeyKind::Pair] {
        let tokens_of = |cache: &CacheManager| prompt(cache, 0, 16_384);
        let mut at_once = common::cache(key, 64, 16_384, None);
        let tokens = tokens_of(&at_once);
        let whole = bytes_taken(|| {
            let lease = admit(&mut at_once, &tokens, &Namespace::default());
            at_once.release(lease);
        });
        let mut in_chunks = common::cache(key, 64, 16_384, None);
        let chunked = bytes_taken(|| {
            let mut lease = admit(&mut in_chunks, &tokens[..1], &Namespace::default());
            for end in (8_192..tokens.len()).step_by(8_192).chain([tokens.len()]) {
                extend(&mut in_chunks, &tokens[..end], &mut lease);
            }
            in_chunks.release(lease);
        });
        assert!(chunked <= 2 * whole, "{chunked} bytes in chunks, {whole} at once");
    }
}

/// What is evicted next is known: it is not sought anew among all leaves.
#[test]
fn an_eviction_takes_nothing_for_each_leaf() {
    for policy in Policy::ALL.map(|(_, policy)| policy) {
        for has_host in [false, true] {
            let taken = [20_000, 50_000].map(|leaves| {
                let config = CacheConfig {
                    page_tokens: 1,
                    device_pages: leaves,
                    host_slots: has_host.then_some(leaves),
                    segment_pages: 1,
                    policy,
                    ..CacheConfig::default()
                };
                let mut cache = CacheManager::new(&config).unwrap();
                for token in 0..leaves {
                    let lease = admit(&mut cache, &[token], &Namespace::default());
                    cache.release(lease);
                }
                // Each makes room for itself.
                bytes_taken(|| {
                    for token in 0..300 {
                        let lease = admit(&mut cache, &[1_000_000 + token], &Namespace::default());
                        cache.release(lease);
                    }
                })
            });
            assert!(taken[1] <= 2 * taken[0] && taken[0] <= 300 * 1_000, "{policy:?} {has_host} {taken:?}");
        }
    }
}
