//! What only the inside can arrange: collisions, and states that should not be. Everything else is
//! tested through the public interface in `tests/`.

use super::*;
use crate::ids::{Lane, PageId, SlotId};
use crate::key::KeyKind;
use crate::namespace::Namespace;

fn ids(pages: &[PageId]) -> Vec<i64> {
    pages.iter().map(|page| i64::from(page.raw())).collect()
}

fn serve(cache: &mut CacheManager, tokens: &[i64]) {
    let pages = cache.shape().pages_in(crate::Tokens(tokens.len())).0;
    cache.evict_for(Placement::Stripe(pages, Lane(0))).expect("owned").expect("room");
    let pages = cache.allocate(Placement::Stripe(pages, Lane(0))).expect("owned").expect("free");
    let inserted = cache.insert_unleased(tokens, &ids(&pages), &Namespace::default()).expect("legal");
    cache.free(&ids(&inserted.duplicates)).expect("own");
}

fn found(cache: &CacheManager, tokens: &[i64]) -> u32 {
    cache.match_prefix(tokens, &Namespace::default(), None).pages().0
}

#[test]
fn entries_with_equal_hashes_never_share() {
    let keys = [KeyKind::Token, KeyKind::Pair];
    for (key, page_tokens) in keys.into_iter().flat_map(|key| [1, 4, 64].map(|page_tokens| (key, page_tokens))) {
        let config = CacheConfig { key, page_tokens, device_pages: 100, ..CacheConfig::default() };
        let geometry = config.check().expect("legal");
        let mut cache = CacheManager::with_tree(&config, geometry, Tree::with_colliding_pages(geometry.shape));
        // The same runs of tokens below different parents, and branches at every depth.
        let prompts: [&[i64]; 6] = [
            &[1, 1, 1, 1, 1],
            &[2, 1, 1, 1, 1],
            &[1, 2, 1, 1, 1],
            &[1, 1, 2, 1, 1],
            &[2, 2, 2, 2, 2],
            &[1, 1, 1, 1, 2],
        ];
        // Pages differ in their last token only.
        let page_tokens = cache.shape().page_tokens();
        let page = |&token: &i64| [vec![7; page_tokens - 1], vec![token]].concat();
        let prompts: [Vec<i64>; 6] = prompts.map(|pages| pages.iter().flat_map(page).collect());
        let mut seen: Vec<&Vec<i64>> = Vec::new();
        for prompt in &prompts {
            let shared = seen.iter().map(|other| other.iter().zip(prompt).take_while(|(a, b)| a == b).count()).max();
            let extra = cache.shape().successor_tokens();
            let expected = shared.unwrap_or(0).saturating_sub(extra) / page_tokens;
            assert_eq!(found(&cache, prompt) as usize, expected, "{key:?} {prompt:?}");
            serve(&mut cache, prompt);
            cache.check_integrity().expect("whole");
            seen.push(prompt);
            for known in &seen {
                assert_eq!(found(&cache, known) as usize, 5 - extra, "{key:?} {known:?}");
            }
        }
    }
}

fn two_tiers(host_slots: i64) -> CacheManager {
    let config = CacheConfig {
        page_tokens: 2,
        key: KeyKind::Pair,
        lanes: 2,
        device_pages: 20,
        host_slots: Some(host_slots),
        segment_pages: 1,
        ..CacheConfig::default()
    };
    CacheManager::new(&config).expect("legal")
}

/// Two tiers with mirrors, sole copies, pages without a copy, branches and two lanes.
fn populated() -> CacheManager {
    let mut cache = two_tiers(8);
    serve(&mut cache, &[1, 2, 3, 4, 5, 6, 7]);
    serve(&mut cache, &[1, 2, 3, 14, 15, 16, 17]);
    serve(&mut cache, &[21, 22, 23, 24, 25, 26, 27, 28, 29]);
    serve(&mut cache, &[31, 32, 33, 34, 35, 36, 37, 38, 39]);
    cache.evict(Lane(0), 2).expect("a lane");
    let stats = cache.stats();
    assert!(stats.host_mirror_slots > 0 && stats.host_cached_slots > stats.host_mirror_slots, "{stats:?}");
    assert!(stats.device_cached_pages > stats.host_mirror_slots);
    cache.check_integrity().expect("whole");
    cache
}

/// A node of a populated cache, the first for which `is_it` holds.
fn node(cache: &CacheManager, is_it: impl Fn(&crate::tree::Node) -> bool) -> NodeIndex {
    cache.tree.arena.iter().find(|(_, node)| !node.is_root() && is_it(node)).expect("there is one").0
}

type Change = fn(&mut CacheManager);

#[test]
fn integrity_sees_what_is_wrong() {
    let changes: &[(&str, Change)] = &[
        ("cached", |cache| cache.device.cached += 1),
        ("device evictable", |cache| cache.device.evictable.increment(Lane(1))),
        ("host evictable", |cache| cache.host.as_mut().expect("two tiers").evictable.increment(Lane(0))),
        ("droppable", |cache| cache.host.as_mut().expect("two tiers").droppable.increment(Lane(0))),
        ("mirrored", |cache| cache.host.as_mut().expect("two tiers").mirrored -= 1),
        ("a lock", |cache| {
            let index = node(cache, |node| node.children == 0);
            cache.tree.arena[index].state.locks += 1;
        }),
        ("tiers", |cache| {
            let index = node(cache, |node| node.state.tiers.is_mirror());
            cache.tree.arena[index].state.tiers.host = false;
        }),
        ("a row without a page", |cache| {
            let index = node(cache, |node| node.state.tiers.device);
            cache.tree.rows_mut(index)[0].device = None;
        }),
        ("a page twice", |cache| {
            let index = node(cache, |node| node.state.tiers.device && node.len().0 > 1);
            let rows = cache.tree.rows_mut(index);
            rows[0].device = rows[1].device;
        }),
        ("another slot", |cache| {
            let index = node(cache, |node| node.state.tiers.host);
            cache.tree.rows_mut(index)[0].host = SlotId::new(1_000);
        }),
        ("children", |cache| {
            let index = node(cache, |node| node.children > 0);
            cache.tree.arena[index].children += 1;
        }),
        ("device children", |cache| {
            let index = node(cache, |node| node.device_children == 0);
            cache.tree.arena[index].device_children += 1;
        }),
        ("mirror children", |cache| {
            let index = node(cache, |node| node.mirror_children == 0);
            cache.tree.arena[index].mirror_children += 1;
        }),
        ("depth", |cache| {
            let index = node(cache, |node| node.children == 0);
            cache.tree.arena[index].end += crate::Pages(1);
        }),
        ("hash", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].first_page_hash ^= 1;
        }),
        ("successor of a parent", |cache| {
            let index = node(cache, |node| node.len().0 == 1);
            cache.tree.arena[index].successor ^= 1;
        }),
        ("a stale heap key", |cache| {
            let index = node(cache, |node| node.heaps.device.is_some());
            cache.tree.arena[index].state.usage.last_access += 1;
        }),
        ("missing in a heap", |cache| {
            let index = node(cache, |node| node.heaps.sole.is_some());
            let arena = &mut cache.tree.arena;
            cache.host.as_mut().expect("two tiers").soles.remove(arena, index);
        }),
        ("in the wrong lane's heap", |cache| {
            let index = node(cache, |node| node.heaps.device.is_some());
            let place = cache.tree.arena[index].heaps.device.expect("in it");
            let (key, depth) = (cache.key_of(index), cache.tree.arena[index].end);
            let arena = &mut cache.tree.arena;
            cache.device.leaves.remove(arena, index);
            cache.device.leaves.insert(arena, index, Lane(1 - place.lane.0), key, depth);
        }),
        ("a slot that is free and used", |cache| {
            let slots = &mut cache.host.as_mut().expect("two tiers").slots;
            slots.release(std::iter::once(0));
        }),
        ("a page that nobody has", |cache| {
            let DevicePages::Own { pool, .. } = &mut cache.device.pages else { panic!("owned") };
            let lane = (0..2).map(Lane).find(|&lane| pool.free(lane) > 0).expect("room");
            assert!(pool.allocate(&LaneCounts::single(cache.lanes, lane, 1), |_| ()));
        }),
    ];
    for (name, change) in changes {
        let mut cache = populated();
        change(&mut cache);
        assert!(cache.check_integrity().is_err(), "{name}");
    }
}

#[test]
fn the_digest_sees_every_difference() {
    let changes: &[(&str, Change)] = &[
        ("clock", |cache| cache.clock += 1),
        ("a lock", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].state.locks += 1;
        }),
        ("created", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].state.usage.created += 1;
        }),
        ("last access", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].state.usage.last_access += 1;
        }),
        ("hits", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].state.usage.hits += 1;
        }),
        ("priority", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].state.usage.priority -= 1;
        }),
        ("a part that is missing", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].state.is_partial = true;
        }),
        ("a page", |cache| {
            let index = node(cache, |node| node.state.tiers.device);
            cache.tree.rows_mut(index)[0].device = PageId::new(99);
        }),
        ("a slot", |cache| {
            let index = node(cache, |node| node.state.tiers.host);
            cache.tree.rows_mut(index)[0].host = None;
        }),
        ("a successor", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].successor += 1;
        }),
        ("depth", |cache| {
            let index = node(cache, |_| true);
            cache.tree.arena[index].end += crate::Pages(1);
        }),
        ("a parent", |cache| {
            let index = node(cache, |node| node.parent.is_some_and(|parent| parent.raw() > 0));
            cache.tree.arena[index].parent = NodeIndex::new(0);
        }),
        ("a free slot less", |cache| {
            let slots = &mut cache.host.as_mut().expect("two tiers").slots;
            let lane = (0..2).map(Lane).find(|&lane| slots.free(lane) > 0).expect("room");
            assert!(slots.allocate(&LaneCounts::single(cache.lanes, lane, 1), |_| ()));
        }),
        ("a request's page", |cache| {
            let DevicePages::Own { requested, .. } = &mut cache.device.pages else { panic!("owned") };
            requested.insert(19);
        }),
        ("tokens", |cache| {
            // The same shape and ids, one token less or more far from any page's edge.
            *cache = populated_with(100);
        }),
        ("a namespace", |cache| {
            cache.tree.ensure_root(&Namespace::from_parts([("salt", b"x".as_slice())]));
        }),
    ];
    let digest = populated_with(0).digest();
    assert_eq!(digest, populated_with(0).digest(), "the seed of the hashes does not matter");
    let mut digests = vec![digest];
    for (name, change) in changes {
        let mut cache = populated_with(0);
        change(&mut cache);
        let digest = cache.digest();
        assert!(!digests.contains(&digest), "{name}");
        digests.push(digest);
    }
}

/// One prompt in two tiers, with a slot and a page to spare; `last` is its last token but one.
fn populated_with(last: i64) -> CacheManager {
    let mut cache = two_tiers(12);
    serve(&mut cache, &[1, 2, 3, 4, 5, last, 7]);
    serve(&mut cache, &[1, 2, 3, 14, 15, 16, 17]);
    cache.evict(Lane(0), 1).expect("a lane");
    cache
}
