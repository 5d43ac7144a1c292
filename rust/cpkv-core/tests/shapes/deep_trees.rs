//! A prompt that has grown by a page at a time, 16,384 pages deep: every call on a thread with a small stack.

use cpkv_core::{
    CacheConfig, CacheManager, Copies, KeyKind, Lane, Lease, Namespace, PageId, Pages, Placement, Policy, PoolOwner,
    Prefill, Reserved, Tokens,
};

use crate::lab::Shape;

/// Nodes of one page below each other, and one of four at the end.
const DEPTH: u32 = 16_384;
const LAST: u32 = 4;
const STACK_BYTES: usize = 512 * 1024;

struct Deep {
    cache: CacheManager,
    tokens: Vec<i64>,
    /// The next page of an engine that has its own.
    next: u32,
    step: u64,
}

fn raw(pages: &[PageId]) -> Vec<i64> {
    pages.iter().map(|page| i64::from(page.raw())).collect()
}

impl Deep {
    fn new(shape: Shape, copies: Copies) -> Self {
        let pages = i64::from(DEPTH) / shape.lanes + 4;
        // By this policy pages of different age are not joined.
        let config = CacheConfig { copies, events: true, policy: Policy::Fifo, ..shape.config(pages, pages) };
        let cache = CacheManager::new(&config).unwrap();
        let key = cache.shape();
        let tokens = (7..).take(key.tokens_of(Pages(DEPTH)).0 + key.successor_tokens()).collect();
        Self { cache, tokens, next: 0, step: 0 }
    }

    fn prompt(&self, pages: u32) -> &[i64] {
        let key = self.cache.shape();
        &self.tokens[..key.tokens_of(Pages(pages)).0 + key.successor_tokens()]
    }

    /// Pages for those from `first` up to `end` of a prompt.
    fn take(&mut self, first: u32, end: u32) -> Vec<i64> {
        let lanes = self.cache.lanes().count();
        let placed: Vec<i64> = (first..end).map(|page| i64::from(page % lanes)).collect();
        if let Ok(pages) = self.cache.allocate(Placement::Each(&placed)) {
            return raw(&pages.expect("room"));
        }
        // An engine's, which come in the same order.
        let given = self.next..self.next + end - first;
        self.next = given.end;
        given.map(i64::from).collect()
    }

    /// Inserts the pages up to `end`, reserved for or not.
    fn extend(&mut self, lease: &mut Lease, end: u32, reserves: bool) {
        let pages = self.take(lease.pages().0, end);
        let key = self.cache.shape();
        let tokens = &self.tokens[..key.tokens_of(Pages(end)).0 + key.successor_tokens()];
        if reserves {
            let prefill = Prefill { tokens, device_pages: &pages, lease };
            let Reserved::Slots(id) = self.cache.reserve(prefill).unwrap() else { panic!("there is room") };
            self.cache.submitted(id, 0, 1).unwrap();
            self.cache.forward_end(&[id], true, true).unwrap();
            self.cache.insert_bound(tokens, &pages, lease, id).unwrap();
        } else {
            self.cache.insert(tokens, &pages, lease).unwrap();
        }
    }

    /// All copies of all backups land.
    fn tick(&mut self) -> usize {
        let mut committed = 0;
        for _ in 0..3 {
            let report = self.cache.tick(self.step, &[1], 0).unwrap();
            self.step += 1;
            committed += report.committed.len();
            for id in report.started {
                self.cache.submitted(id, 0, 1).unwrap();
                self.cache.submitted_all(id).unwrap();
            }
        }
        assert!(!self.cache.has_work());
        committed
    }

    fn lock(&mut self, pages: u32) -> Lease {
        let limit = Tokens(pages as usize * self.cache.shape().page_tokens());
        let hit = self.cache.match_prefix(&self.tokens, &Namespace::default(), Some(limit));
        self.cache.lock(&hit, 0)
    }

    fn found(&self) -> (u32, u32) {
        let hit = self.cache.match_prefix(&self.tokens, &Namespace::default(), None);
        (hit.device_pages().0, hit.host_pages().0)
    }

    fn evict_all(&mut self) -> usize {
        (0..self.cache.lanes().count()).map(|lane| self.cache.evict(Lane(lane), u32::MAX).unwrap().len()).sum()
    }
}

fn live(shape: Shape, copies: Copies, flushes: bool) {
    let mut deep = Deep::new(shape, copies);
    let is_tracked = copies == Copies::Tracked;
    let mut lease = deep.lock(0);
    for end in 1..=DEPTH - LAST {
        deep.extend(&mut lease, end, is_tracked && end % 2 == 0);
    }
    deep.extend(&mut lease, DEPTH, is_tracked);
    let nodes = 1 + (DEPTH - LAST + 1) as usize;
    assert_eq!(deep.cache.stats().nodes, nodes);
    if is_tracked {
        assert_eq!(deep.tick(), nodes - 1, "each waits for the one in front");
    }
    deep.cache.release(lease);
    assert_eq!((deep.found(), deep.cache.stats().host_mirror_slots), ((DEPTH, 0), DEPTH));

    // What looks at all of it.
    let names = deep.cache.page_hashes(&deep.tokens, &Namespace::default());
    assert_eq!(names.len(), DEPTH as usize);
    assert!(deep.cache.take_events().len() >= 2 * (nodes - 1));
    deep.cache.check_integrity().unwrap();
    let dump = deep.cache.dump();
    assert_eq!((dump.nodes.len(), dump.nodes.last().unwrap().end), (nodes, Pages(DEPTH)));
    assert!(format!("{dump:?}").len() > nodes);
    assert!(format!("{:?}", deep.cache).len() > nodes);
    assert_eq!(deep.cache.digest(), deep.cache.digest());
    assert!(deep.cache.metadata_bytes() > nodes);

    // Split at the end, branch off in the middle, and give up what is behind a lease on the half.
    let lease = deep.lock(DEPTH - 1);
    assert_eq!((lease.pages().0, deep.cache.stats().nodes), (DEPTH - 1, nodes + 1));
    deep.cache.release(lease);
    let mut branch = deep.prompt(DEPTH / 2).to_vec();
    branch.extend(vec![-1; deep.cache.shape().page_tokens()]);
    let mut lease = deep.lock(DEPTH / 2);
    let pages = deep.take(DEPTH / 2, DEPTH / 2 + 1);
    deep.cache.insert(&branch, &pages, &mut lease).unwrap();
    if is_tracked {
        assert_eq!(deep.tick(), 1);
    }
    assert_eq!(deep.evict_all(), DEPTH as usize / 2);
    assert_eq!(deep.found(), (DEPTH / 2, DEPTH / 2));
    deep.cache.release(lease);
    assert_eq!(deep.evict_all(), DEPTH as usize / 2 + 1);
    deep.cache.check_integrity().unwrap();

    // All of it comes back, and is held while it is flushed, or is there when everything is dropped.
    let mut lease = deep.lock(DEPTH);
    let lanes = i64::from(deep.cache.lanes().count());
    let placed: Vec<i64> =
        deep.cache.leased_slots(&lease).unwrap().iter().map(|slot| i64::from(slot.raw()) % lanes).collect();
    let pages = match deep.cache.allocate(Placement::Each(&placed)) {
        Ok(pages) => raw(&pages.expect("room")),
        Err(_) => (0..i64::from(DEPTH)).collect(),
    };
    for id in deep.cache.restore(&mut lease, &pages).unwrap().operations {
        deep.cache.submitted(id, 0, 1).unwrap();
        deep.cache.submitted_all(id).unwrap();
    }
    if is_tracked {
        deep.tick();
    }
    assert_eq!(deep.found(), (DEPTH, 0));
    if flushes {
        deep.cache.flush();
        assert_eq!((deep.found(), deep.cache.leased_pages(&lease, Pages(0)).len()), ((0, 0), DEPTH as usize));
        deep.cache.check_integrity().unwrap();
        deep.cache.release(lease);
        assert_eq!((deep.cache.stats().pages, deep.cache.stats().nodes), (0, 1));
    } else {
        deep.cache.release(lease);
        drop(deep);
    }
}

#[test]
fn a_deep_tree_needs_no_stack() {
    let (token, pair, own, engine) = (KeyKind::Token, KeyKind::Pair, PoolOwner::Cpkv, PoolOwner::Engine);
    let lives = [
        (Shape { key: token, page_tokens: 64, lanes: 1, owner: own }, Copies::Assumed, false),
        (Shape { key: pair, page_tokens: 1, lanes: 2, owner: own }, Copies::Assumed, true),
        (Shape { key: token, page_tokens: 4, lanes: 4, owner: engine }, Copies::Assumed, false),
        (Shape { key: pair, page_tokens: 64, lanes: 4, owner: engine }, Copies::Tracked, true),
    ];
    let start = |(shape, copies, flushes)| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn(move || live(shape, copies, flushes)).unwrap()
    };
    for life in lives.map(start) {
        life.join().unwrap();
    }
}
