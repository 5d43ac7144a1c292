//! A request's life in a few calls, for tests that are about something else.

#![expect(clippy::unwrap_used, reason = "test code")]

use cpkv_core::{CacheConfig, CacheManager, KeyKind, Lease, Namespace, PageId, Pages, Placement};

/// Pages and slots of one lane.
pub(crate) fn cache(key: KeyKind, page_tokens: i64, device_pages: i64, host_slots: Option<i64>) -> CacheManager {
    let config = CacheConfig { key, page_tokens, device_pages, host_slots, segment_pages: 1, ..CacheConfig::default() };
    CacheManager::new(&config).unwrap()
}

pub(crate) fn ids(pages: &[PageId]) -> Vec<i64> {
    pages.iter().map(|page| i64::from(page.raw())).collect()
}

/// Matches, locks, makes room, restores and inserts; the lease is the caller's.
pub(crate) fn admit(cache: &mut CacheManager, tokens: &[i64], namespace: &Namespace) -> Lease {
    let hit = cache.match_prefix(tokens, namespace, None);
    let mut lease = cache.lock(&hit, 0);
    extend(cache, tokens, &mut lease);
    lease
}

/// Restores and inserts what the lease lacks.
pub(crate) fn extend(cache: &mut CacheManager, tokens: &[i64], lease: &mut Lease) {
    let all = cache.shape().pages_in(cpkv_core::Tokens(tokens.len()));
    let lanes = i64::from(cache.lanes().count());
    let slots = cache.leased_slots(lease).unwrap();
    let mut placed: Vec<i64> = slots.iter().map(|slot| i64::from(slot.raw()) % lanes).collect();
    placed.extend((i64::from(lease.pages().0)..i64::from(all.0)).map(|page| page % lanes));
    cache.evict_for(Placement::Each(&placed)).unwrap().expect("room");
    let pages = ids(&cache.allocate(Placement::Each(&placed)).unwrap().unwrap());
    let (restored, new) = pages.split_at(lease.host_pages().index());
    let duplicates = ids(&cache.restore(lease, restored).unwrap().duplicates);
    cache.free(&duplicates).unwrap();
    let duplicates = ids(&cache.insert(tokens, new, lease).unwrap().duplicates);
    cache.free(&duplicates).unwrap();
}

/// Raw tokens that make exactly `pages` pages: `first`, `first + 1` and so on.
pub(crate) fn prompt(cache: &CacheManager, first: i64, pages: u32) -> Vec<i64> {
    let shape = cache.shape();
    let tokens = shape.tokens_of(Pages(pages)).0 + shape.successor_tokens();
    (first..).take(tokens).collect()
}
