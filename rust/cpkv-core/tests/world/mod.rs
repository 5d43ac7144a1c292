//! The ranks of one server, each with its cache and its copy engine, and the requests they serve.
//! Whatever is done is done on all ranks, and checked after each action.

pub(crate) mod inputs;
mod requests;
mod ticks;
mod visible;

use std::collections::{BTreeMap, HashMap, HashSet};

use cpkv_core::{CacheManager, Lane, OperationId, PageId, Placement, PoolOwner, Tally, Verdict, Votes};

use crate::engine::Engine;
use inputs::{Action, NAMESPACES, Setup, Step, namespace};
use requests::{Found, Request};

pub(crate) struct World {
    setup: Setup,
    caches: Vec<CacheManager>,
    engines: Vec<Engine>,
    /// The replicated log: verdicts of the last step, applied in this one.
    tally: Tally,
    entry: Vec<Verdict>,
    /// The votes of all ranks of the last step.
    votes: Vec<Votes>,
    step: u64,
    /// The time on each rank.
    now_ns: Vec<u64>,
    requests: Vec<Request>,
    /// Prompts that were looked up and not started yet.
    found: Vec<Found>,
    /// Free pages of an external pool.
    free: Vec<i64>,
    /// What a router knows that is told of every event: the pages on the device, and on the host.
    router: [HashSet<u64>; 2],
    /// What the last tick has started, after its commits.
    started: HashSet<OperationId>,
    /// The pages that were on the host at the last check.
    before: HashSet<u64>,
    /// The namespaces of the roots at the last check; a flushed root has forgotten its own.
    roots: HashMap<u32, u8>,
    pub(crate) seen: Seen,
}

/// What the test has seen, so that it can be shown to test something.
#[derive(Default, Debug)]
pub(crate) struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn note(&mut self, what: &'static str, count: usize) {
        *self.0.entry(what).or_default() += count as u64;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    pub(crate) fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }
}

fn raw(pages: &[PageId]) -> Vec<i64> {
    pages.iter().map(|page| i64::from(page.raw())).collect()
}

/// The answer of all replicas, which is the same.
fn same<T: PartialEq + std::fmt::Debug>(answers: impl IntoIterator<Item = T>) -> T {
    let agree = |left, right| {
        assert_eq!(left, right);
        left
    };
    answers.into_iter().reduce(agree).unwrap()
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            caches: (0..setup.ranks).map(|rank| CacheManager::new(&setup.config_of(rank)).unwrap()).collect(),
            engines: (0..setup.ranks).map(|_| Engine::default()).collect(),
            tally: Tally::new(setup.ranks),
            entry: Vec::new(),
            votes: Vec::new(),
            step: 0,
            now_ns: vec![0; setup.ranks as usize],
            requests: Vec::new(),
            found: Vec::new(),
            free: (0..setup.config.device_pages).collect(),
            router: Default::default(),
            started: HashSet::new(),
            before: HashSet::new(),
            roots: HashMap::new(),
            seen: Seen::default(),
            setup: setup.clone(),
        }
    }

    /// Does the same to all replicas, which answer the same.
    fn all<T: PartialEq + std::fmt::Debug>(&mut self, call: impl FnMut(&mut CacheManager) -> T) -> T {
        same(self.caches.iter_mut().map(call))
    }

    fn is_alive(&self, id: OperationId) -> bool {
        self.caches[0].operation_state(id).is_some_and(cpkv_core::machine::State::is_alive)
    }

    fn pages_freed(&mut self, pages: &[PageId]) {
        for engine in &mut self.engines {
            engine.scribble(pages.iter().map(|page| page.raw()));
        }
        if self.setup.config.owner == PoolOwner::Engine {
            self.free.extend(raw(pages));
        }
    }

    fn free_pages(&mut self, pages: &[i64]) {
        let freed = self.all(|cache| cache.free(pages).unwrap());
        self.seen.note("fenced pages", pages.len() - freed.len());
        self.pages_freed(&freed);
    }

    fn take_pages(&mut self, lanes: &[i64]) -> Option<Vec<i64>> {
        if self.setup.config.owner == PoolOwner::Cpkv {
            let freed = self.all(|cache| cache.evict_for(Placement::Each(lanes)).unwrap())?;
            self.pages_freed(&freed);
            let pages = self.all(|cache| cache.allocate(Placement::Each(lanes)).unwrap().unwrap());
            self.pages_freed(&pages);
            return Some(raw(&pages));
        }
        let mut pages = Vec::new();
        for &lane in lanes {
            let lanes = self.setup.config.lanes;
            let is_in = |page: &i64| page % lanes == lane;
            if !self.free.iter().any(is_in) {
                let freed = self.all(|cache| cache.evict(Lane(u32::try_from(lane).unwrap()), 1).unwrap());
                self.pages_freed(&freed);
            }
            let Some(place) = self.free.iter().position(is_in) else {
                self.free.extend(pages);
                return None;
            };
            pages.push(self.free.swap_remove(place));
        }
        Some(pages)
    }

    pub(crate) fn act(&mut self, action: &Action) {
        match action {
            Action::Start { prompt, namespace, priority, reserves, loads } => {
                if self.start(prompt, *namespace, *priority, *reserves) {
                    let request = self.requests.len() - 1;
                    (0..*loads).for_each(|_| self.load(request, false));
                }
            }
            Action::Find { prompt, namespace } => {
                let found = self.find(prompt, *namespace);
                self.found.push(found);
            }
            Action::StartFound { found, priority, reserves, loads } => {
                if !self.found.is_empty() {
                    let found = self.found.swap_remove(found.index(self.found.len()));
                    if self.start_found(found, *priority, *reserves) {
                        let request = self.requests.len() - 1;
                        (0..*loads).for_each(|_| self.load(request, false));
                    }
                }
            }
            Action::Go { request, step } => {
                if !self.requests.is_empty() {
                    self.go(request.index(self.requests.len()), step);
                }
            }
            Action::Land { rank, stream, acknowledged } => {
                let rank = rank.index(self.caches.len());
                self.engines[rank].land(&mut self.caches[rank], *stream);
                if *acknowledged {
                    self.engines[rank].acknowledge(*stream);
                }
            }
            Action::Serve { prompt, namespace } => self.serve(prompt, *namespace),
            Action::Settle => self.settle(),
            Action::Tick { skipped } => self.tick(*skipped),
            Action::Wait { rank, time_ns } => {
                let rank = rank.index(self.caches.len());
                self.now_ns[rank] += time_ns;
            }
            Action::Abort { operation } => {
                let operations = self.caches[0].dump().operations;
                if !operations.is_empty() {
                    let id = operations[operation.index(operations.len())].operation;
                    self.all(|cache| cache.abort(id, cpkv_core::machine::Reason::Aborted).unwrap());
                }
            }
            Action::Evict { lane, count } => {
                let lane = Lane(u32::try_from(lane.index(self.setup.lanes() as usize)).unwrap());
                let freed = self.all(|cache| cache.evict(lane, *count).unwrap());
                self.pages_freed(&freed);
            }
            Action::Flush => {
                let freed = self.all(CacheManager::flush);
                self.pages_freed(&freed);
                for number in 0..NAMESPACES {
                    let hit = self.caches[0].match_prefix(&[7; 64], &namespace(number), None);
                    assert_eq!(hit.pages().0, 0);
                }
            }
        }
        self.check();
    }

    fn go(&mut self, index: usize, step: &Step) {
        match *step {
            Step::Load { fails } => self.load(index, fails),
            Step::Compute { fails } => {
                self.compute(index, fails);
            }
            Step::ForwardEnd { draft_ran } => {
                self.forward_end(index, draft_ran);
            }
            Step::Insert { pages } => self.insert(index, pages),
            Step::InsertAlone { pages } => self.insert_alone(index, pages),
            Step::InsertRest => self.insert_rest(index),
            Step::Grow { tokens, reserves } => self.grow(index, tokens, reserves),
            Step::Abort { reason } => {
                if let Some(id) = self.requests[index].transaction {
                    self.all(|cache| cache.abort(id, reason).unwrap());
                }
            }
            Step::Release => self.release(index),
        }
    }

    /// Everything ends, and everything comes back.
    pub(crate) fn finish(&mut self) {
        while !self.requests.is_empty() {
            self.release(0);
        }
        for _ in 0..100 {
            for (engine, cache) in self.engines.iter_mut().zip(&mut self.caches) {
                engine.finish(cache);
            }
            self.tick(0);
            self.check();
            if self.caches.iter().all(|cache| !cache.has_work()) {
                break;
            }
        }
        assert!(self.caches.iter().all(|cache| !cache.has_work()), "{:?}", self.caches[0].dump().operations);
        assert!(self.tally.is_empty());
        let freed = self.all(CacheManager::flush);
        self.pages_freed(&freed);
        self.check();
        let stats = self.caches[0].stats();
        assert_eq!((stats.pages, stats.nodes, stats.namespaces), (0, 1, 1));
        assert_eq!(stats.host_cached_slots + stats.host_reserved_slots + stats.host_draining_slots, 0);
        assert_eq!(stats.host_quarantined_slots, 0);
        match self.setup.config.owner {
            PoolOwner::Cpkv => assert_eq!(stats.device_free_pages, stats.device_capacity_pages),
            PoolOwner::Engine => {
                self.free.sort_unstable();
                assert!(self.free.iter().copied().eq(0..self.setup.config.device_pages));
            }
        }
        self.seen.note("donors lost", usize::try_from(stats.counters.donors_lost).unwrap());
    }
}
