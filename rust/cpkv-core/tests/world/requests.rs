//! The life of a request: what it finds is restored, the rest is computed and backed up, inserted
//! at once or in parts, and it may go on from there.

use cpkv_core::machine::Reason;
use cpkv_core::{Lease, OperationId, Prefill, Reserved, Tokens};

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
    stage: Stage,
    /// Items computed so far.
    items: usize,
}

impl World {
    pub(super) fn start(&mut self, prompt: &[i64], space: u8, priority: i32, reserves: bool) {
        let limit = Some(Tokens(prompt.len().saturating_sub(1)));
        let lock = |cache: &mut cpkv_core::CacheManager| {
            let hit = cache.match_prefix(prompt, &namespace(space), limit);
            cache.lock(&hit, priority)
        };
        let mut leases: Vec<Lease> = self.caches.iter_mut().map(lock).collect();
        let slots: Vec<u32> = self.caches[0].leased_slots(&leases[0]).iter().map(|slot| slot.raw()).collect();
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
            return;
        };
        // Restored at once.
        let new = pages.split_off(slots.len());
        for (&page, &slot) in pages.iter().zip(&slots) {
            for engine in &mut self.engines {
                let content = engine.host.get(&slot).copied().unwrap_or([SCRIBBLE; ITEMS]);
                engine.device.insert(u32::try_from(page).unwrap(), content);
            }
        }
        let restore = self.caches.iter_mut().zip(&mut leases);
        let duplicates = same(restore.map(|(cache, lease)| cache.restore(lease, &pages).unwrap().duplicates));
        self.free_pages(&raw(&duplicates));
        let transaction = if reserves { self.reserve(prompt, &new, &leases) } else { None };
        self.requests.push(Request {
            space,
            prompt: prompt.to_vec(),
            leases,
            pages: new,
            first: held,
            rest: Vec::new(),
            transaction,
            stage: Stage::Computing,
            items: 0,
        });
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
    pub(super) fn compute(&mut self, index: usize, fails: bool) {
        let request = &self.requests[index];
        let item = request.items;
        if request.stage != Stage::Computing || item == ITEMS {
            return;
        }
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

    pub(super) fn forward_end(&mut self, index: usize, draft_ran: bool) {
        if self.requests[index].stage != Stage::Computing {
            return;
        }
        while self.requests[index].items < if draft_ran { ITEMS } else { TARGET_ITEMS } {
            self.compute(index, false);
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
    }

    /// Inserts the pages of a request, or only the first `most` of them.
    pub(super) fn insert(&mut self, index: usize, most: u32) {
        let shape = self.caches[0].shape();
        let request = &mut self.requests[index];
        if request.stage != Stage::Ended {
            return;
        }
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
            self.forward_end(index, true);
            self.insert(index, u32::MAX);
        }
    }

    pub(super) fn release(&mut self, index: usize) {
        let request = self.requests.swap_remove(index);
        if let Some(id) = request.transaction {
            self.all(|cache| cache.abort(id, Reason::Aborted).unwrap());
        }
        self.free_pages(&request.pages);
        self.free_pages(&request.rest);
        for (cache, lease) in self.caches.iter_mut().zip(request.leases) {
            cache.release(lease);
        }
    }
}
