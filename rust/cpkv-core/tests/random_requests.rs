//! Random requests in every setting, without a naive cache beside them: whatever is decided, a
//! lease holds the right pages, nothing is lost or owned twice, and replicas agree.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::collections::HashMap;

use cpkv_core::{CacheConfig, CacheManager, KeyKind, Lane, Lease, Namespace, PageId, Pages, Placement, Policy, Tokens};
use proptest::prelude::*;
use proptest::sample::Index;

fn ids(pages: &[PageId]) -> Vec<i64> {
    pages.iter().map(|page| i64::from(page.raw())).collect()
}

#[derive(Clone, Debug)]
enum Operation {
    Admit { prompt: Vec<i64>, restore: bool, priority: i32 },
    Extend { request: Index, restore: bool },
    Release { request: Index },
    Evict { lane: Index, count: u32 },
}

fn operations() -> impl Strategy<Value = Operation> {
    let run = (prop::sample::select(vec![7i64, 7 + (1 << 32), -1]), 1usize..7);
    let prompt = prop::collection::vec(run, 0..5)
        .prop_map(|runs| runs.into_iter().flat_map(|(token, count)| vec![token; count]).collect::<Vec<i64>>());
    prop_oneof![
        5 => (prompt, any::<bool>(), -1i32..2)
            .prop_map(|(prompt, restore, priority)| Operation::Admit { prompt, restore, priority }),
        3 => (any::<Index>(), any::<bool>()).prop_map(|(request, restore)| Operation::Extend { request, restore }),
        4 => any::<Index>().prop_map(|request| Operation::Release { request }),
        1 => (any::<Index>(), 0u32..5).prop_map(|(lane, count)| Operation::Evict { lane, count }),
    ]
}

fn configs() -> impl Strategy<Value = CacheConfig> {
    (
        1i64..3,
        prop::sample::select(vec![KeyKind::Token, KeyKind::Pair]),
        1i64..5,
        prop::sample::select(Policy::ALL.map(|(_, policy)| policy).to_vec()),
        3i64..10,
        prop::option::of(1i64..16),
    )
        .prop_map(|(page_tokens, key, lanes, policy, device, host)| CacheConfig {
            page_tokens,
            key,
            lanes,
            device_pages: device * lanes,
            host_slots: host.map(|slots| slots * lanes),
            segment_pages: 1,
            policy,
            ..CacheConfig::default()
        })
}

struct Request {
    prompt: Vec<i64>,
    leases: [Lease; 2],
    duplicates: Vec<i64>,
}

/// Two replicas to which the same is done, and what was written into each device page.
struct World {
    config: CacheConfig,
    caches: [CacheManager; 2],
    written: HashMap<i64, Vec<i64>>,
    requests: Vec<Request>,
    step: i64,
}

impl World {
    fn new(config: &CacheConfig) -> Self {
        Self {
            config: config.clone(),
            caches: [0, 1].map(|_| CacheManager::new(config).unwrap()),
            written: HashMap::new(),
            requests: Vec::new(),
            step: 0,
        }
    }

    /// Does the same to both; they must answer the same.
    fn both<T: PartialEq + std::fmt::Debug>(&mut self, mut call: impl FnMut(&mut CacheManager, usize) -> T) -> T {
        let [first, second] = &mut self.caches;
        let (first, second) = (call(first, 0), call(second, 1));
        assert_eq!(first, second);
        first
    }

    /// All tokens up to the end of a page, with the successor of a pair key: what its KV depends on.
    fn content(&self, prompt: &[i64], page: usize) -> Vec<i64> {
        let shape = self.caches[0].shape();
        prompt[..(page + 1) * shape.page_tokens() + shape.successor_tokens()].to_vec()
    }

    fn apply(&mut self, operation: &Operation) {
        self.step += 1;
        match operation {
            Operation::Admit { prompt, restore, priority } => self.admit(prompt, *restore, *priority),
            Operation::Extend { request, restore } if !self.requests.is_empty() => {
                self.extend(request.index(self.requests.len()), *restore);
            }
            Operation::Release { request } if !self.requests.is_empty() => {
                let request = self.requests.swap_remove(request.index(self.requests.len()));
                self.release(request);
            }
            Operation::Evict { lane, count } => {
                let lane = Lane(u32::try_from(lane.index(usize::try_from(self.config.lanes).unwrap())).unwrap());
                let evictable = self.caches[0].evictable_pages(lane).unwrap();
                let pages = self.both(|cache, _| ids(&cache.evict(lane, *count).unwrap()));
                let in_lane = pages.iter().filter(|&&page| page % self.config.lanes == i64::from(lane.0)).count();
                assert_eq!(in_lane, evictable.min(*count) as usize, "no more than asked for, and no less");
            }
            _ => {}
        }
        self.check();
    }

    fn admit(&mut self, prompt: &[i64], restore: bool, priority: i32) {
        let limit = (self.step % 3 == 0).then_some(Tokens(prompt.len() / 2));
        let [first, second] = &mut self.caches;
        let namespace = Namespace::default();
        let hit = first.match_prefix(prompt, &namespace, limit);
        let leases =
            [first.lock(&hit, priority), second.lock(&second.match_prefix(prompt, &namespace, limit), priority)];
        assert_eq!(leases[0].pages(), hit.pages());
        self.requests.push(Request { prompt: prompt.to_vec(), leases, duplicates: Vec::new() });
        self.extend(self.requests.len() - 1, restore);
    }

    /// Restores or recomputes, and inserts half of what is left, or all.
    fn extend(&mut self, index: usize, restore: bool) {
        let mut request = self.requests.swap_remove(index);
        if restore {
            self.restore(&mut request);
        }
        let shape = self.caches[0].shape();
        let all = shape.pages_in(Tokens(request.prompt.len())).0;
        let held = request.leases[0].pages().0;
        let end = if self.step % 2 == 0 { all } else { held + (all - held).div_ceil(2) };
        let tokens = shape.tokens_of(Pages(end)).0 + shape.successor_tokens();
        let prompt = request.prompt[..tokens.min(request.prompt.len())].to_vec();
        let first = request.leases[0].device_pages().0;
        // Skewed on purpose: most pages in few lanes.
        let lanes: Vec<i64> = (i64::from(first)..i64::from(end))
            .map(|page| (page * page + self.step / 7) % self.config.lanes % (1 + self.step % 4))
            .collect();
        if let Some(pages) = self.take(&lanes) {
            for (page, &id) in (first as usize..).zip(&pages) {
                self.written.insert(id, self.content(&prompt, page));
            }
            let leases = &mut request.leases;
            let duplicates = {
                let [first, second] = &mut self.caches;
                let inserted = first.insert(&prompt, &pages, &mut leases[0]).unwrap();
                assert_eq!(inserted, second.insert(&prompt, &pages, &mut leases[1]).unwrap());
                ids(&inserted.duplicates)
            };
            request.duplicates.extend(duplicates);
        }
        self.requests.push(request);
    }

    fn restore(&mut self, request: &mut Request) {
        let slots = self.caches[0].leased_slots(&request.leases[0]).unwrap();
        let lanes: Vec<i64> = slots.iter().map(|slot| i64::from(slot.raw()) % self.config.lanes).collect();
        let first = request.leases[0].device_pages().index();
        let Some(pages) = self.take(&lanes) else { return };
        for (page, &id) in (first..).zip(&pages) {
            self.written.insert(id, self.content(&request.prompt, page));
        }
        let [one, two] = &mut self.caches;
        let restored = one.restore(&mut request.leases[0], &pages).unwrap();
        assert_eq!(restored, two.restore(&mut request.leases[1], &pages).unwrap());
        request.duplicates.extend(ids(&restored.duplicates));
    }

    fn take(&mut self, lanes: &[i64]) -> Option<Vec<i64>> {
        self.both(|cache, _| {
            cache.evict_for(Placement::Each(lanes)).unwrap()?;
            Some(ids(&cache.allocate(Placement::Each(lanes)).unwrap().expect("just made room")))
        })
    }

    fn release(&mut self, request: Request) {
        for (cache, lease) in self.caches.iter_mut().zip(request.leases) {
            cache.release(lease);
            cache.free(&request.duplicates).unwrap();
        }
    }

    fn check(&self) {
        let [one, other] = [0, 1].map(|place| (self.caches[place].digest(), self.caches[place].stamp()));
        assert_eq!(one, other);
        let cache = &self.caches[0];
        cache.check_integrity().unwrap();
        for request in &self.requests {
            let lease = &request.leases[0];
            let pages = ids(&cache.leased_pages(lease, Pages(0)));
            assert!(pages.len() >= lease.device_pages().index());
            for (page, id) in pages.iter().enumerate() {
                assert_eq!(self.written[id], self.content(&request.prompt, page), "page {page} of the prompt");
            }
            let again = cache.match_prefix(&request.prompt, &Namespace::default(), None);
            assert!(again.pages() >= lease.pages(), "what is held is found");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(4_000),
        failure_persistence: Some(Box::new(
            proptest::test_runner::FileFailurePersistence::Direct("proptest-regressions/random_requests.txt"))),
        ..ProptestConfig::default()
    })]
    #[test]
    fn leases_hold_the_right_pages(config in configs(), operations in prop::collection::vec(operations(), 1..60)) {
        let mut world = World::new(&config);
        for operation in &operations {
            world.apply(operation);
        }
        for request in std::mem::take(&mut world.requests) {
            world.release(request);
        }
        world.check();
        let stats = world.caches[0].stats();
        prop_assert_eq!(i64::from(stats.device_free_pages + stats.device_evictable_pages), config.device_pages);
        prop_assert_eq!(stats.host_evictable_slots, stats.host_cached_slots);
    }
}
