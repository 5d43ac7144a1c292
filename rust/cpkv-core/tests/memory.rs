//! The heap, measured by an allocator that counts: bounded by what lives, and as large as the
//! cache says it is.

#![expect(clippy::unwrap_used, reason = "test code")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{admit, prompt};
use cpkv_core::{CacheConfig, CacheManager, KeyKind, Lane, Namespace, Stats};

struct Counting;

thread_local! {
    /// Of this thread alone: the test runner allocates as well, on others. Below zero if the thread has
    /// freed what another one gave it.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // Not there any more while the thread ends.
    let _ = LIVE_BYTES.try_with(|bytes| bytes.set(bytes.get() + change));
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
