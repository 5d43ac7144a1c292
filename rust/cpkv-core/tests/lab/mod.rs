//! One rank with one copy engine, and requests that are taken through their life a step at a time.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::collections::{BTreeSet, HashMap};

use cpkv_core::machine::Phase;
use cpkv_core::{
    CacheConfig, CacheManager, Copies, Hit, Inserted, KeyKind, Lane, Lease, Namespace, NodeDump, OperationId, PageId,
    Pages, Placement, PoolOwner, Prefill, Reserved, TickReport, Tokens,
};

use crate::engine::{Content, Engine, ITEMS};

/// The settings that every promise has to hold in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) key: KeyKind,
    pub(crate) page_tokens: i64,
    pub(crate) lanes: i64,
    pub(crate) owner: PoolOwner,
}

impl Default for Shape {
    fn default() -> Self {
        Self { key: KeyKind::Token, page_tokens: 64, lanes: 1, owner: PoolOwner::Cpkv }
    }
}

impl Shape {
    /// Tracked copies of a target and a draft; with so many pages and slots in each lane.
    pub(crate) fn config(self, device_pages: i64, host_slots: i64) -> CacheConfig {
        CacheConfig {
            key: self.key,
            page_tokens: self.page_tokens,
            lanes: self.lanes,
            owner: self.owner,
            device_pages: device_pages * self.lanes,
            host_slots: Some(host_slots * self.lanes),
            segment_pages: 1,
            copies: Copies::Tracked,
            has_draft: true,
            ..CacheConfig::default()
        }
    }
}

pub(crate) fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for key in [KeyKind::Token, KeyKind::Pair] {
        for page_tokens in [1, 4, 64] {
            for lanes in [1, 2, 4] {
                shapes.push(Shape { key, page_tokens, lanes, ..Shape::default() });
            }
        }
    }
    shapes
}

/// A request between its start and its release.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) tokens: Vec<i64>,
    pub(crate) lease: Option<Lease>,
    pub(crate) pages: Vec<i64>,
    pub(crate) reserved: Reserved,
    pub(crate) first: u32,
}

impl Request {
    pub(crate) fn transaction(&self) -> OperationId {
        let Reserved::Slots(id) = self.reserved else { panic!("nothing was reserved: {:?}", self.reserved) };
        id
    }
}

pub(crate) struct Lab {
    pub(crate) cache: CacheManager,
    pub(crate) engine: Engine,
    pub(crate) now_ns: u64,
    pub(crate) copies: Copies,
    /// The free pages of an engine that owns the pool, lowest first.
    pub(crate) free: Option<BTreeSet<i64>>,
    step: u64,
}

impl Lab {
    pub(crate) fn new(shape: Shape, device_pages: i64, host_slots: i64) -> Self {
        Self::with(&shape.config(device_pages, host_slots))
    }

    pub(crate) fn with(config: &CacheConfig) -> Self {
        Self {
            cache: CacheManager::new(config).unwrap(),
            engine: Engine::default(),
            now_ns: 0,
            copies: config.copies,
            free: (config.owner == PoolOwner::Engine).then(|| (0..config.device_pages).collect()),
            step: 0,
        }
    }

    /// Tokens that make exactly `pages` pages, numbered from `first` on.
    pub(crate) fn prompt(&self, first: i64, pages: u32) -> Vec<i64> {
        let shape = self.cache.shape();
        (first..).take(shape.tokens_of(Pages(pages)).0 + shape.successor_tokens()).collect()
    }

    /// The first `pages` pages of `tokens`, and others behind them.
    pub(crate) fn branch(&self, tokens: &[i64], pages: u32, more: u32) -> Vec<i64> {
        let shape = self.cache.shape();
        let shared = shape.tokens_of(Pages(pages)).0 + shape.successor_tokens();
        let mut branch = tokens[..shared].to_vec();
        let rest = shape.tokens_of(Pages(more)).0;
        branch.extend((1_000_000..).take(rest));
        branch
    }

    pub(crate) fn find(&self, tokens: &[i64]) -> Hit {
        self.cache.match_prefix(tokens, &Namespace::default(), None)
    }

    /// Pages found on the device, and on the host only.
    pub(crate) fn found(&self, tokens: &[i64]) -> (u32, u32) {
        let hit = self.find(tokens);
        (hit.device_pages().0, hit.host_pages().0)
    }

    /// Matches, locks, allocates and reserves.
    pub(crate) fn start(&mut self, tokens: &[i64]) -> Request {
        let hit = self.find(tokens);
        let lease = self.cache.lock(&hit, 0);
        self.go_on(tokens, lease)
    }

    /// The next chunk of a request that holds a lease.
    pub(crate) fn go_on(&mut self, tokens: &[i64], lease: Lease) -> Request {
        self.go_on_if_room(tokens, lease).expect("room")
    }

    /// The same, or the lease again if there is no room for its pages.
    pub(crate) fn go_on_if_room(&mut self, tokens: &[i64], lease: Lease) -> Result<Request, Lease> {
        assert_eq!(lease.host_pages().0, 0, "these requests restore nothing");
        let first = lease.device_pages().0;
        let all = self.cache.shape().pages_in(Tokens(tokens.len())).0;
        let Some(pages) = self.take_pages_in(&self.lanes_of(first, all)) else { return Err(lease) };
        Ok(self.go_on_with(tokens, lease, pages))
    }

    /// The same with pages of its own.
    pub(crate) fn go_on_with(&mut self, tokens: &[i64], lease: Lease, pages: Vec<i64>) -> Request {
        let first = lease.device_pages().0;
        let reserved = match self.copies {
            Copies::Assumed => Reserved::Nothing,
            Copies::Tracked => self.cache.reserve(Prefill { tokens, device_pages: &pages, lease: &lease }).unwrap(),
        };
        self.check();
        Request { tokens: tokens.to_vec(), lease: Some(lease), pages, reserved, first }
    }

    /// Pages for those from `first` up to `end` of a prompt.
    pub(crate) fn take_pages(&mut self, first: u32, end: u32) -> Vec<i64> {
        self.take_pages_in(&self.lanes_of(first, end)).expect("room")
    }

    fn lanes_of(&self, first: u32, end: u32) -> Vec<i64> {
        (first..end).map(|page| i64::from(page % self.cache.lanes().count())).collect()
    }

    /// A page in each of these lanes, evicting for them; `None` if there is no room.
    pub(crate) fn take_pages_in(&mut self, lanes: &[i64]) -> Option<Vec<i64>> {
        if self.free.is_some() {
            return self.take_engine_pages(lanes);
        }
        let freed = self.cache.evict_for(Placement::Each(lanes)).unwrap()?;
        self.scribble(&freed);
        let pages = self.cache.allocate(Placement::Each(lanes)).unwrap().unwrap();
        Some(pages.iter().map(|page| i64::from(page.raw())).collect())
    }

    /// What an engine with an allocator of its own does: it evicts what it lacks in each lane, if
    /// there is enough.
    fn take_engine_pages(&mut self, lanes: &[i64]) -> Option<Vec<i64>> {
        let count = i64::from(self.cache.lanes().count());
        let missing = |lab: &Self, lane: i64| {
            let wanted = lanes.iter().filter(|&&wanted| wanted == lane).count();
            let free = lab.free.iter().flatten().filter(|&page| page % count == lane).count();
            u32::try_from(wanted.saturating_sub(free)).unwrap()
        };
        let lane = |lane: i64| Lane(u32::try_from(lane).unwrap());
        if !(0..count).all(|each| missing(self, each) <= self.cache.evictable_pages(lane(each)).unwrap()) {
            return None;
        }
        for each in 0..count {
            // Pages of other lanes may have been in the way.
            let freed = self.cache.evict(lane(each), missing(self, each)).unwrap();
            self.scribble(&freed);
        }
        let free = self.free.as_mut().expect("the engine's");
        let mut take = |lane: &i64| {
            let page = *free.iter().find(|&page| page % count == *lane).expect("evicted for");
            free.remove(&page);
            page
        };
        Some(lanes.iter().map(&mut take).collect())
    }

    pub(crate) fn free(&mut self, pages: &[i64]) {
        let freed = self.cache.free(pages).unwrap();
        self.scribble(&freed);
    }

    /// Evicts what can be from the device, and says how many pages that were.
    pub(crate) fn evict_all(&mut self) -> usize {
        let mut count = 0;
        for lane in 0..self.cache.lanes().count() {
            let freed = self.cache.evict(Lane(lane), u32::MAX).unwrap();
            self.scribble(&freed);
            count += freed.len();
        }
        self.check();
        count
    }

    /// Nobody relies on what has come free, and an engine may use its own pages again.
    pub(crate) fn scribble(&mut self, pages: &[PageId]) {
        self.engine.scribble(pages.iter().map(|page| page.raw()));
        if let Some(free) = &mut self.free {
            for page in pages {
                assert!(free.insert(i64::from(page.raw())), "{page:?} comes free twice");
            }
        }
    }

    /// The forward computes one item of the request's pages, and its hook submits the copy.
    pub(crate) fn compute(&mut self, request: &Request, item: usize) {
        self.compute_and(request, item, false);
    }

    pub(crate) fn compute_and(&mut self, request: &Request, item: usize, fails: bool) {
        for (place, &page) in (0..).zip(&request.pages) {
            let value = self.content(&request.tokens, request.first + place)[item];
            self.engine.compute(u32::try_from(page).unwrap(), item, value);
        }
        if let Reserved::Slots(id) = request.reserved
            && self.cache.operation_state(id).is_some_and(cpkv_core::machine::State::is_alive)
        {
            self.submit(id, item, fails);
        }
    }

    pub(crate) fn phase(&self, id: OperationId) -> Option<Phase> {
        self.cache.operation_state(id).map(|state| state.phase)
    }

    pub(crate) fn submit(&mut self, id: OperationId, item: usize, fails: bool) {
        let (pages, slots) = self.cache.plan(id).unwrap();
        let plan = pages.iter().zip(slots).map(|(page, slot)| (page.raw(), slot.raw())).collect();
        self.engine.submit(&mut self.cache, id, item, plan, fails);
    }

    /// The whole forward: all items, and the end of submission.
    pub(crate) fn forward(&mut self, request: &Request) {
        for item in 0..ITEMS {
            self.compute(request, item);
        }
        self.forward_end(request);
    }

    pub(crate) fn forward_end(&mut self, request: &Request) {
        if let Reserved::Slots(id) = request.reserved {
            self.cache.forward_end(&[id], true, true).unwrap();
        }
    }

    pub(crate) fn insert(&mut self, request: &mut Request) -> Inserted {
        let lease = request.lease.as_mut().unwrap();
        let inserted = match request.reserved {
            Reserved::Slots(id) => self.cache.insert_bound(&request.tokens, &request.pages, lease, id),
            _ => self.cache.insert(&request.tokens, &request.pages, lease),
        };
        let inserted = inserted.unwrap();
        let duplicates: Vec<i64> = inserted.duplicates.iter().map(|page| i64::from(page.raw())).collect();
        self.free(&duplicates);
        self.check();
        inserted
    }

    pub(crate) fn release(&mut self, request: &mut Request) {
        self.cache.release(request.lease.take().unwrap());
        self.check();
    }

    /// Forward, insertion and release of a request that was started.
    pub(crate) fn complete(&mut self, mut request: Request) {
        self.forward(&request);
        self.insert(&mut request);
        self.release(&mut request);
    }

    /// Every copy lands and is acknowledged.
    pub(crate) fn land(&mut self) {
        self.engine.finish(&mut self.cache);
    }

    pub(crate) fn land_next(&mut self, stream: usize) {
        assert!(self.engine.land(&mut self.cache, stream), "nothing to land");
        self.engine.acknowledge(stream);
    }

    pub(crate) fn tick(&mut self) -> TickReport {
        let report = self.cache.tick(self.step, &self.engine.acks, self.now_ns).unwrap();
        self.step += 1;
        let freed = report.freed_pages.clone();
        self.scribble(&freed);
        for &id in &report.started {
            if self.cache.operation_state(id).is_some_and(cpkv_core::machine::State::is_alive) {
                for item in 0..ITEMS {
                    self.submit(id, item, false);
                }
                self.cache.submitted_all(id).unwrap();
            }
        }
        self.check();
        report
    }

    /// Ticks until nothing is open, all copies landing.
    pub(crate) fn drain(&mut self) {
        for _ in 0..8 {
            self.land();
            self.tick();
        }
        assert!(!self.cache.has_work(), "{:?}", self.cache.dump().operations);
    }

    /// What the forward writes for a page.
    pub(crate) fn content(&self, tokens: &[i64], page: u32) -> Content {
        let shape = self.cache.shape();
        let end = shape.tokens_of(Pages(page + 1)).0 + shape.successor_tokens();
        let last = tokens[end - 1];
        let mut content = [0; ITEMS];
        for (item, value) in (0..).zip(&mut content) {
            *value = (u64::from(page) << 40) ^ (last.cast_unsigned() << 8) ^ item;
        }
        content
    }

    /// The invariants, and that every visible host slot holds what the forward wrote.
    pub(crate) fn check(&self) {
        self.cache.check_integrity().unwrap();
        let stats = self.cache.stats();
        let used = stats.host_cached_slots + stats.host_reserved_slots + stats.host_draining_slots;
        assert!(used + stats.host_quarantined_slots <= stats.host_capacity_slots);
        if self.copies == Copies::Tracked {
            self.each_page(|tokens, page, node, place| {
                let Some(slot) = node.host_slots.get(place) else { return };
                let expected = self.content(tokens, page);
                assert_eq!(self.engine.host.get(&slot.raw()), Some(&expected), "page {page} of {tokens:?}");
            });
        }
    }

    /// Shows each page of the tree to `see`: the tokens up to its end and the one after it, its number, its
    /// node and its place in that.
    pub(crate) fn each_page(&self, mut see: impl FnMut(&[i64], u32, &NodeDump, usize)) {
        let shape = self.cache.shape();
        let mut prefixes: HashMap<u32, Vec<i64>> = HashMap::new();
        for node in &self.cache.dump().nodes {
            let mut tokens = node.parent.map(|parent| prefixes[&parent].clone()).unwrap_or_default();
            let first = tokens.len() / shape.page_tokens();
            tokens.extend(&node.tokens);
            prefixes.insert(node.index, tokens.clone());
            tokens.extend(node.successor);
            for page in first..node.end.index() {
                let end = (page + 1) * shape.page_tokens() + shape.successor_tokens();
                see(&tokens[..end], u32::try_from(page).unwrap(), node, page - first);
            }
        }
    }
}
