//! The life of a request: what it finds is restored, the rest is computed and backed up, inserted
//! at once or in parts, and it may go on from there.

use cpkv_core::machine::Reason;
use cpkv_core::{Error, Hit, Lease, OperationId, Pages, Prefill, Reserved, Tokens};

use super::inputs::namespace;
use super::{World, raw, same};
use crate::engine::{ITEMS, SCRIBBLE, TARGET_ITEMS};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Computing,
    Ended,
    Inserted,
}

pub(super) struct Request {
    space: u8,
    prompt: Vec<i64>,
    /// One on each rank.
    leases: Vec<Lease>,
    pages: Vec<i64>,
    /// The page from the root that `pages` begins with.
    first: usize,
    /// Pages that its insertion did not bring.
    rest: Vec<i64>,
    pub(super) transaction: Option<OperationId>,
    /// What it restores, and how many items of that were submitted.
    restores: Vec<OperationId>,
    loaded: usize,
    stage: Stage,
    /// Items computed so far.
    items: usize,
}

/// What the ranks had of a prompt.
pub(super) struct Found {
    space: u8,
    prompt: Vec<i64>,
    /// One on each rank.
    hits: Vec<Hit>,
}

impl World {
    /// What the ranks have of a prompt now.
    pub(super) fn find(&self, prompt: &[i64], space: u8) -> Found {
        let limit = Some(Tokens(prompt.len().saturating_sub(1)));
        let find = |cache: &cpkv_core::CacheManager| cache.match_prefix(prompt, &namespace(space), limit);
        Found { space, prompt: prompt.to_vec(), hits: self.caches.iter().map(find).collect() }
    }

    /// False if there was no room for it.
    pub(super) fn start(&mut self, prompt: &[i64], space: u8, priority: i32, reserves: bool) -> bool {
        let found = self.find(prompt, space);
        let pages = found.hits[0].pages();
        let requests = self.requests.len();
        let is_started = self.start_found(found, priority, reserves);
        // Nothing has happened in between.
        assert!(!is_started || self.requests[requests].first == pages.index());
        is_started
    }

    /// The same with what was found some time ago, as far as it is still there.
    pub(super) fn start_found(&mut self, found: Found, priority: i32, reserves: bool) -> bool {
        let Found { space, prompt, hits } = found;
        let prompt = prompt.as_slice();
        let mut leases: Vec<Lease> =
            self.caches.iter_mut().zip(&hits).map(|(cache, hit)| cache.lock(hit, priority)).collect();
        assert!(leases[0].pages() <= hits[0].pages());
        if leases[0].pages() < hits[0].pages() {
            self.seen.note("hits that were shortened", 1);
        }
        let slots: Vec<u32> = self.caches[0].leased_slots(&leases[0]).unwrap().iter().map(|slot| slot.raw()).collect();
        let (held, on_device) = (leases[0].pages().index(), leases[0].device_pages().index());
        // What the host holds for this prompt is what the forward once wrote.
        for (page, &slot) in (on_device..held).zip(&slots) {
            self.check_host(space, prompt, page, slot);
        }
        let lanes = self.setup.config.lanes;
        let restored = slots.iter().map(|&slot| i64::from(slot) % lanes);
        let placed: Vec<i64> = restored.chain(self.lanes_of(held, prompt)).collect();
        let Some(mut pages) = self.take_pages(&placed) else {
            for (cache, lease) in self.caches.iter_mut().zip(leases) {
                cache.release(lease);
            }
            return false;
        };
        let new = pages.split_off(slots.len());
        let part = (priority > 0).then_some(Pages(1));
        let restore = self.caches.iter_mut().zip(&mut leases);
        let restored = same(restore.map(|(cache, lease)| cache.restore_in_parts(lease, &pages, part).unwrap()));
        self.seen.note("restores", restored.operations.len());
        self.seen.note("pages that another request restores", restored.duplicates.len());
        self.free_pages(&raw(&restored.duplicates));
        let transaction = if reserves { self.reserve(prompt, &new, &leases) } else { None };
        self.requests.push(Request {
            space,
            prompt: prompt.to_vec(),
            leases,
            pages: new,
            first: held,
            rest: Vec::new(),
            transaction,
            restores: restored.operations,
            loaded: 0,
            stage: Stage::Computing,
            items: 0,
        });
        true
    }

    /// A request from its start to its release; one that has to wait for others is given up.
    pub(super) fn serve(&mut self, prompt: &[i64], space: u8) {
        if !self.start(prompt, space, 0, true) {
            return;
        }
        let index = self.requests.len() - 1;
        (0..ITEMS).for_each(|_| self.load(index, false));
        if !self.requests[index].restores.is_empty() {
            self.settle();
        }
        let requests = self.requests.len();
        if self.forward_end(index, true) {
            self.insert(index, u32::MAX);
        }
        if self.requests.len() == requests {
            self.release(index);
        }
    }

    /// Submits the next item of what a request restores.
    pub(super) fn load(&mut self, index: usize, fails: bool) {
        let request = &mut self.requests[index];
        let item = request.loaded;
        if item == ITEMS {
            return;
        }
        request.loaded += 1;
        for id in request.restores.clone() {
            if !self.is_alive(id) {
                continue;
            }
            self.submit(id, item, fails);
            self.all(|cache| cache.layer_submitted(id, u32::try_from(item).unwrap()).unwrap());
            if item + 1 == ITEMS {
                self.all(|cache| cache.submitted_all(id).unwrap());
            }
        }
    }

    /// Whether a request can read an item of everything that it holds, which is then what was written.
    fn can_read(&mut self, index: usize, item: usize) -> bool {
        let request = &self.requests[index];
        let layer = u32::try_from(item).unwrap();
        let ranks = self.caches.iter().zip(&self.engines).zip(&request.leases);
        let has_landed =
            ranks.map(|((cache, engine), lease)| cache.layer_has_landed(lease, layer, &engine.acks).unwrap_or(false));
        if !has_landed.collect::<Vec<_>>().iter().all(|&landed| landed) {
            self.seen.note("waits for a restore", 1);
            return false;
        }
        let pages = self.caches[0].leased_pages(&request.leases[0], Pages::ZERO);
        assert_eq!(pages.len(), request.leases[0].device_pages().index());
        for (place, page) in pages.iter().enumerate() {
            let expected = self.content(request.space, &request.prompt, place)[item];
            for (rank, engine) in self.engines.iter().enumerate() {
                let is_right = engine.device.get(&page.raw()).is_some_and(|content| content[item] == expected);
                assert!(is_right || !self.setup.is_on(rank, page.raw()), "item {item} of page {place} is not there");
            }
        }
        true
    }

    /// A request whose restore has failed can do nothing any more, and is given up; true if it was one.
    fn give_up_if_lost(&mut self, index: usize) -> bool {
        let request = &mut self.requests[index];
        if !same(self.caches.iter().zip(&request.leases).map(|(cache, lease)| cache.is_lost(lease))) {
            return false;
        }
        self.seen.note("lost leases", 1);
        for (cache, lease) in self.caches.iter_mut().zip(&mut request.leases) {
            let digest = cache.digest();
            let pages = &request.pages;
            assert!(matches!(cache.insert(&request.prompt, pages, lease), Err(Error::RestoreFailed)));
            assert!(matches!(cache.restore(lease, &[]), Err(Error::RestoreFailed)));
            let prefill = Prefill { tokens: &request.prompt, device_pages: pages, lease };
            assert!(matches!(cache.reserve(prefill), Err(Error::RestoreFailed)));
            assert!(matches!(cache.layer_has_landed(lease, 0, &[]), Err(Error::RestoreFailed)));
            assert_eq!(cache.digest(), digest);
        }
        self.release(index);
        true
    }

    /// The lanes of the pages of `prompt` from `first` on.
    fn lanes_of(&self, first: usize, prompt: &[i64]) -> Vec<i64> {
        let end = self.caches[0].shape().pages_in(Tokens(prompt.len())).index();
        (first..end).map(|page| i64::try_from(page).unwrap() % self.setup.config.lanes).collect()
    }

    fn reserve(&mut self, tokens: &[i64], device_pages: &[i64], leases: &[Lease]) -> Option<OperationId> {
        let prefills = leases.iter().map(|lease| Prefill { tokens, device_pages, lease });
        let reserved =
            same(self.caches.iter_mut().zip(prefills).map(|(cache, prefill)| cache.reserve(prefill).unwrap()));
        let Reserved::Slots(id) = reserved else { return None };
        let (_, slots) = self.caches[0].plan(id).unwrap();
        for engine in &mut self.engines {
            engine.host.extend(slots.iter().map(|slot| (slot.raw(), [SCRIBBLE; ITEMS])));
        }
        Some(id)
    }

    /// Computes the next item of a request's pages and submits its copy.
    /// False if it has to wait, or could do nothing.
    pub(super) fn compute(&mut self, index: usize, fails: bool) -> bool {
        let item = self.requests[index].items;
        if self.requests[index].stage != Stage::Computing || item == ITEMS {
            return false;
        }
        if self.give_up_if_lost(index) || !self.can_read(index, item) {
            return false;
        }
        let request = &self.requests[index];
        for (place, &page) in (request.first..).zip(&request.pages) {
            let content = self.content(request.space, &request.prompt, place);
            for engine in &mut self.engines {
                engine.compute(u32::try_from(page).unwrap(), item, content[item]);
            }
        }
        if let Some(id) = request.transaction
            && self.is_alive(id)
        {
            self.submit(id, item, fails);
        }
        self.requests[index].items += 1;
        true
    }

    /// Submits an item of an operation on all ranks; a failing copy fails on the last.
    pub(super) fn submit(&mut self, id: OperationId, item: usize, fails: bool) {
        let (pages, slots) = self.caches[0].plan(id).unwrap();
        let plan: Vec<(u32, u32)> = pages.iter().zip(slots).map(|(page, slot)| (page.raw(), slot.raw())).collect();
        let last = self.caches.len() - 1;
        for (rank, (engine, cache)) in self.engines.iter_mut().zip(&mut self.caches).enumerate() {
            let share = plan.iter().copied().filter(|&(page, _)| self.setup.is_on(rank, page)).collect();
            engine.submit(cache, id, item, share, fails && rank == last);
        }
    }

    /// False if it has to wait, or could do nothing.
    pub(super) fn forward_end(&mut self, index: usize, draft_ran: bool) -> bool {
        if self.requests[index].stage != Stage::Computing {
            return false;
        }
        while self.requests[index].items < if draft_ran { ITEMS } else { TARGET_ITEMS } {
            if !self.compute(index, false) {
                return false;
            }
        }
        let request = &mut self.requests[index];
        request.stage = Stage::Ended;
        let draft_ran = request.items == ITEMS;
        if let Some(id) = request.transaction {
            self.all(|cache| cache.forward_end(&[id], true, draft_ran).unwrap());
        }
        if !draft_ran {
            // Nothing may be inserted whose draft state was never written.
            self.release(index);
        }
        draft_ran
    }

    /// Inserts the pages of a request, or only the first `most` of them.
    pub(super) fn insert(&mut self, index: usize, most: u32) {
        let shape = self.caches[0].shape();
        if self.requests[index].stage != Stage::Ended || self.give_up_if_lost(index) {
            return;
        }
        let request = &mut self.requests[index];
        let mut pages = std::mem::take(&mut request.pages);
        let mut end = request.prompt.len();
        if pages.len() > most as usize {
            request.rest = pages.split_off(most as usize);
            end = end.min((request.first + pages.len()) * self.setup.page_tokens() + shape.successor_tokens());
        }
        request.stage = Stage::Inserted;
        let transaction = request.transaction.take();
        self.bring(index, end, &pages, transaction);
    }

    /// The same without its transaction, once that is aborted.
    pub(super) fn insert_alone(&mut self, index: usize, most: u32) {
        let request = &self.requests[index];
        if request.stage == Stage::Ended && request.transaction.is_some_and(|id| !self.is_alive(id)) {
            self.seen.note("insertions after an abort", 1);
            self.requests[index].transaction = None;
            self.insert(index, most);
        }
    }

    /// Inserts what an insertion left, with the same lease.
    pub(super) fn insert_rest(&mut self, index: usize) {
        if self.give_up_if_lost(index) {
            return;
        }
        let request = &mut self.requests[index];
        let (end, rest) = (request.prompt.len(), std::mem::take(&mut request.rest));
        if !rest.is_empty() {
            self.seen.note("pages inserted later", rest.len());
            self.bring(index, end, &rest, None);
        }
    }

    fn bring(&mut self, index: usize, end: usize, pages: &[i64], transaction: Option<OperationId>) {
        let request = &mut self.requests[index];
        let tokens = &request.prompt[..end];
        let insert = self.caches.iter_mut().zip(&mut request.leases).map(|(cache, lease)| match transaction {
            Some(id) => cache.insert_bound(tokens, pages, lease, id).unwrap().duplicates,
            None => cache.insert(tokens, pages, lease).unwrap().duplicates,
        });
        let duplicates = same(insert);
        self.free_pages(&raw(&duplicates));
    }

    /// The next tokens of a request: a chunk that is backed up as a prompt is, or decode.
    pub(super) fn grow(&mut self, index: usize, tokens: u8, reserves: bool) {
        let request = &self.requests[index];
        if request.stage != Stage::Inserted || !request.rest.is_empty() || request.prompt.len() > 40 {
            return;
        }
        if self.give_up_if_lost(index) {
            return;
        }
        let request = &self.requests[index];
        let first = request.leases[0].pages().index();
        assert_eq!(request.leases[0].device_pages().index(), first);
        let mut prompt = request.prompt.clone();
        prompt.extend((0..tokens).map(|place| if place % 2 == 0 { 7 } else { 8 }));
        let Some(pages) = self.take_pages(&self.lanes_of(first, &prompt)) else { return };
        let request = &mut self.requests[index];
        (request.first, request.pages, request.prompt) = (first, pages, prompt);
        (request.stage, request.items) = (Stage::Computing, 0);
        if reserves {
            self.seen.note("chunks", 1);
            let mut request = self.requests.swap_remove(index);
            request.transaction = self.reserve(&request.prompt, &request.pages, &request.leases);
            self.requests.push(request);
        } else {
            self.seen.note("decoded pages", request.pages.len());
            if self.forward_end(index, true) {
                self.insert(index, u32::MAX);
            }
        }
    }

    pub(super) fn release(&mut self, index: usize) {
        let request = self.requests.swap_remove(index);
        if let Some(id) = request.transaction {
            self.all(|cache| cache.abort(id, Reason::Aborted).unwrap());
        }
        // What was begun is left to the deadline.
        for id in request.restores.into_iter().filter(|_| request.loaded == 0) {
            self.all(|cache| cache.abort(id, Reason::Aborted).unwrap());
        }
        self.free_pages(&request.pages);
        self.free_pages(&request.rest);
        for (cache, lease) in self.caches.iter_mut().zip(request.leases) {
            cache.release(lease);
        }
    }
}
