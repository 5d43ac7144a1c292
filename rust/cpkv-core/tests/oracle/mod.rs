//! The naive cache: one record per page, linear searches, no node, heap or index.
//!
//! Follows the documented rules and shares no code with the cache it judges. It knows device
//! pages by the ids it is given, and of host slots only how many are taken in each lane.

use std::cmp::Reverse;

use cpkv_core::{Counters, KeyKind, Policy};

/// One page of the cache. Its key in the tree is the chain of keys up to the root.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    namespace: usize,
    parent: Option<usize>,
    /// The tokens of the page, with the successor for pair keys.
    key: Vec<i64>,
    depth: usize,
    pub(crate) device: Option<i64>,
    pub(crate) host_lane: Option<usize>,
    created: u64,
    last_access: u64,
    hits: u64,
    priority: i32,
    locks: usize,
}

/// What a request holds, by page numbers from the root down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lease {
    pub(crate) namespace: usize,
    pub(crate) path: Vec<usize>,
    pub(crate) device_pages: usize,
    pub(crate) priority: i32,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) page_tokens: usize,
    pub(crate) key: KeyKind,
    pub(crate) lanes: usize,
    pub(crate) policy: Policy,
    pub(crate) host_slots_per_lane: usize,
    pub(crate) pages: Vec<Option<Page>>,
    pub(crate) counters: Counters,
    clock: u64,
}

impl Oracle {
    pub(crate) fn new(
        page_tokens: usize,
        key: KeyKind,
        lanes: usize,
        policy: Policy,
        host_slots_per_lane: usize,
    ) -> Self {
        Self {
            page_tokens,
            key,
            lanes,
            policy,
            host_slots_per_lane,
            pages: Vec::new(),
            counters: Counters::default(),
            clock: 0,
        }
    }

    fn page(&self, number: usize) -> &Page {
        self.pages[number].as_ref().expect("alive")
    }

    fn page_mut(&mut self, number: usize) -> &mut Page {
        self.pages[number].as_mut().expect("alive")
    }

    fn alive(&self) -> impl Iterator<Item = (usize, &Page)> {
        self.pages.iter().enumerate().filter_map(|(number, page)| Some((number, page.as_ref()?)))
    }

    /// The keys of the whole pages of a prompt.
    fn page_keys(&self, tokens: &[i64]) -> Vec<Vec<i64>> {
        let extra = usize::from(self.key == KeyKind::Pair);
        let pages = tokens.len().saturating_sub(extra) / self.page_tokens;
        let key = |page| tokens[page * self.page_tokens..(page + 1) * self.page_tokens + extra].to_vec();
        (0..pages).map(key).collect()
    }

    fn child(&self, namespace: usize, parent: Option<usize>, key: &[i64]) -> Option<usize> {
        let is_it = |page: &Page| page.namespace == namespace && page.parent == parent && page.key == key;
        self.alive().find(|(_, page)| is_it(page)).map(|(number, _)| number)
    }

    pub(crate) fn find(&self, namespace: usize, tokens: &[i64], limit_pages: usize) -> Vec<usize> {
        let mut path: Vec<usize> = Vec::new();
        for key in self.page_keys(tokens).iter().take(limit_pages) {
            let Some(page) = self.child(namespace, path.last().copied(), key) else { break };
            path.push(page);
        }
        path
    }

    pub(crate) fn device_pages_of(&self, path: &[usize]) -> usize {
        path.iter().take_while(|&&page| self.page(page).device.is_some()).count()
    }

    pub(crate) fn lock(&mut self, namespace: usize, path: Vec<usize>, priority: i32, is_use: bool) -> Lease {
        self.clock += 1;
        for &number in &path {
            let clock = self.clock;
            let page = self.page_mut(number);
            page.locks += 1;
            page.last_access = clock;
            if is_use {
                page.hits += 1;
                page.priority = page.priority.max(priority);
            }
        }
        let device_pages = self.device_pages_of(&path);
        self.counters.leases += 1;
        if is_use {
            self.counters.device_hit_pages += device_pages as u64;
            self.counters.host_hit_pages += (path.len() - device_pages) as u64;
        }
        Lease { namespace, path, device_pages, priority }
    }

    pub(crate) fn release(&mut self, lease: &Lease) {
        let mut last_access = 0;
        for &number in lease.path.iter().rev() {
            let page = self.page_mut(number);
            page.locks -= 1;
            last_access = last_access.max(page.last_access);
            page.last_access = last_access;
        }
    }

    /// Returns the duplicates.
    pub(crate) fn restore(&mut self, lease: &mut Lease, given: &[i64]) -> Vec<i64> {
        let (duplicates, adopted) = self.adopt(&lease.path[lease.device_pages..], given);
        lease.device_pages = lease.path.len();
        self.counters.restored_pages += adopted;
        duplicates
    }

    /// The duplicates, and how many pages were taken.
    fn adopt(&mut self, path: &[usize], given: &[i64]) -> (Vec<i64>, u64) {
        let mut duplicates = Vec::new();
        let mut adopted = 0;
        for (&number, &id) in path.iter().zip(given) {
            let page = self.page_mut(number);
            match page.device {
                Some(own) if own == id => {}
                Some(_) => duplicates.push(id),
                None => {
                    page.device = Some(id);
                    adopted += 1;
                }
            }
        }
        self.counters.duplicate_pages += duplicates.len() as u64;
        (duplicates, adopted)
    }

    /// Returns the duplicates.
    pub(crate) fn insert(&mut self, tokens: &[i64], given: &[i64], lease: &mut Lease) -> Vec<i64> {
        self.clock += 1;
        let known = self.find(lease.namespace, tokens, usize::MAX);
        let clock = self.clock;
        for &number in &known[lease.path.len()..] {
            let page = self.page_mut(number);
            page.locks += 1;
            page.last_access = clock;
            page.priority = page.priority.max(lease.priority);
        }
        let first = lease.device_pages;
        let (duplicates, adopted) = self.adopt(&known[first..], given);
        self.counters.recomputed_pages += adopted;
        let mut path = known;
        let mut new = Vec::new();
        for (depth, key) in self.page_keys(tokens).into_iter().enumerate().skip(path.len()) {
            new.push(self.pages.len());
            self.pages.push(Some(Page {
                namespace: lease.namespace,
                parent: path.last().copied(),
                key,
                depth: depth + 1,
                device: Some(given[depth - first]),
                host_lane: None,
                created: clock,
                last_access: clock,
                hits: 0,
                priority: lease.priority,
                locks: 1,
            }));
            path.push(self.pages.len() - 1);
        }
        self.counters.inserted_pages += new.len() as u64;
        self.write_through(&new);
        (lease.device_pages, lease.path) = (path.len(), path);
        duplicates
    }

    fn lane(&self, id: i64) -> usize {
        usize::try_from(id).expect("an id") % self.lanes
    }

    fn free_slots(&self, lane: usize) -> usize {
        self.host_slots_per_lane - self.alive().filter(|(_, page)| page.host_lane == Some(lane)).count()
    }

    pub(crate) fn evictable_slots(&self, lane: usize) -> usize {
        self.alive().filter(|(_, page)| page.host_lane == Some(lane) && page.locks == 0).count()
    }

    pub(crate) fn evictable_pages(&self, lane: usize) -> usize {
        let is_in = |page: &Page| page.locks == 0 && page.device.is_some_and(|id| self.lane(id) == lane);
        self.alive().filter(|(_, page)| is_in(page)).count()
    }

    fn write_through(&mut self, new: &[usize]) {
        let lanes: Vec<usize> = new.iter().map(|&page| self.lane(self.page(page).device.expect("new"))).collect();
        let wanted = |lane| lanes.iter().filter(|&&other| other == lane).count();
        if self.host_slots_per_lane == 0 {
            return;
        }
        if (0..self.lanes).any(|lane| wanted(lane) > self.free_slots(lane) + self.evictable_slots(lane)) {
            self.counters.host_skipped_pages += new.len() as u64;
            return;
        }
        loop {
            let short: Vec<bool> = (0..self.lanes).map(|lane| wanted(lane) > self.free_slots(lane)).collect();
            if !short.contains(&true) {
                break;
            }
            self.give_up_slot(&short);
        }
        self.counters.host_written_pages += new.len() as u64;
        for (&page, lane) in new.iter().zip(lanes) {
            self.page_mut(page).host_lane = Some(lane);
        }
    }

    /// What the policy orders by, smallest first; deeper first among equals.
    fn worth(&self, page: &Page) -> (u64, u64) {
        match self.policy {
            Policy::Lru => (page.last_access, 0),
            Policy::Lfu => (page.hits, page.last_access),
            Policy::Slru => (u64::from(page.hits >= 2), page.last_access),
            Policy::Fifo => (page.created, 0),
            Policy::Mru => (u64::MAX - page.last_access, 0),
            Policy::Filo => (u64::MAX - page.created, 0),
            Policy::Priority => {
                ((i64::from(page.priority) + (1 << 40)).try_into().expect("positive"), page.last_access)
            }
        }
    }

    fn least(&self, is_candidate: impl Fn(usize, &Page) -> bool) -> Option<usize> {
        let candidates = self.alive().filter(|(number, page)| page.locks == 0 && is_candidate(*number, page));
        candidates.min_by_key(|(_, page)| (self.worth(page), Reverse(page.depth))).map(|(number, _)| number)
    }

    fn has_child(&self, number: usize, is_meant: impl Fn(&Page) -> bool) -> bool {
        self.alive().any(|(_, page)| page.parent == Some(number) && is_meant(page))
    }

    /// The mirror to go first whose slot is in one of `lanes`.
    fn least_mirror(&self, lanes: &[bool]) -> Option<usize> {
        let is_mirror = |page: &Page| page.device.is_some() && page.host_lane.is_some();
        let is_in = |page: &Page| page.host_lane.is_some_and(|lane| lanes[lane]);
        self.least(|number, page| is_in(page) && is_mirror(page) && !self.has_child(number, is_mirror))
    }

    /// The sole copy to go first whose slot is in one of `lanes`.
    fn least_sole(&self, lanes: &[bool]) -> Option<usize> {
        let is_in = |page: &Page| page.host_lane.is_some_and(|lane| lanes[lane]);
        self.least(|number, page| is_in(page) && page.device.is_none() && !self.has_child(number, |_| true))
    }

    fn drop_mirror(&mut self, number: usize) {
        self.page_mut(number).host_lane = None;
        self.counters.mirror_dropped_pages += 1;
    }

    fn evict_sole(&mut self, number: usize) {
        self.pages[number] = None;
        self.counters.host_evicted_pages += 1;
    }

    /// Gives up one host copy: in one of the `short` lanes if any leaf is in one.
    fn give_up_slot(&mut self, short: &[bool]) {
        let any = vec![true; self.lanes];
        for lanes in [short, &any] {
            if let Some(mirror) = self.least_mirror(lanes) {
                return self.drop_mirror(mirror);
            }
            if let Some(sole) = self.least_sole(lanes) {
                return self.evict_sole(sole);
            }
        }
        panic!("there are enough");
    }

    /// Takes the least page off the device that is in one of the `wanted` lanes, or if no leaf is,
    /// the least of all; returns it.
    fn evict_one(&mut self, wanted: &[bool]) -> Option<i64> {
        let is_on_device = |page: &Page| page.device.is_some();
        let is_leaf = |number: usize, page: &Page| is_on_device(page) && !self.has_child(number, is_on_device);
        let is_wanted = |page: &Page| page.device.is_some_and(|id| wanted[self.lane(id)]);
        let leaf = self.least(|number, page| is_wanted(page) && is_leaf(number, page));
        let leaf = leaf.or_else(|| self.least(is_leaf))?;
        let id = self.page(leaf).device.expect("on the device");
        self.counters.device_evicted_pages += 1;
        if self.page(leaf).host_lane.is_none() && !self.copy_late(leaf, self.lane(id)) {
            assert!(!self.has_child(leaf, |_| true), "what is below went first");
            self.pages[leaf] = None;
            self.counters.lost_pages += 1;
        } else {
            self.page_mut(leaf).device = None;
        }
        Some(id)
    }

    fn copy_late(&mut self, number: usize, lane: usize) -> bool {
        if self.host_slots_per_lane == 0 {
            return false;
        }
        let lanes: Vec<bool> = (0..self.lanes).map(|other| other == lane).collect();
        while self.free_slots(lane) == 0 {
            let worth = self.worth(self.page(number));
            if let Some(mirror) = self.least_mirror(&lanes) {
                self.drop_mirror(mirror);
            } else if let Some(sole) = self.least_sole(&lanes).filter(|&sole| self.worth(self.page(sole)) <= worth) {
                self.evict_sole(sole);
            } else {
                self.remove_below(number);
                return false;
            }
        }
        self.page_mut(number).host_lane = Some(lane);
        self.counters.late_copied_pages += 1;
        true
    }

    fn remove_below(&mut self, number: usize) {
        let children: Vec<usize> =
            self.alive().filter(|(_, page)| page.parent == Some(number)).map(|(child, _)| child).collect();
        for child in children {
            self.remove_below(child);
            self.evict_sole(child);
        }
    }

    /// Evicts until `counts` pages are given up in each lane; returns all that were.
    pub(crate) fn evict(&mut self, mut counts: Vec<usize>) -> Vec<i64> {
        for (lane, count) in counts.iter_mut().enumerate() {
            *count = (*count).min(self.evictable_pages(lane));
        }
        let mut given_up = Vec::new();
        while counts.iter().any(|&count| count > 0) {
            let wanted: Vec<bool> = counts.iter().map(|&count| count > 0).collect();
            let Some(id) = self.evict_one(&wanted) else { break };
            given_up.push(id);
            let lane = self.lane(id);
            counts[lane] = counts[lane].saturating_sub(1);
        }
        given_up
    }

    pub(crate) fn cached(&self) -> usize {
        self.alive().filter(|(_, page)| page.device.is_some()).count()
    }

    pub(crate) fn on_host(&self) -> usize {
        self.alive().filter(|(_, page)| page.host_lane.is_some()).count()
    }

    pub(crate) fn mirrors(&self) -> usize {
        self.alive().filter(|(_, page)| page.device.is_some() && page.host_lane.is_some()).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.alive().count()
    }
}
