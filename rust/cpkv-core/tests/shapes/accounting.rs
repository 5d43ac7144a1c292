//! Every page and every slot is in one place at any time, also where the tiers are so small that everything is
//! in the way of everything.

use cpkv_core::machine::Reason;
use cpkv_core::{CacheConfig, Copies, Counters, Reserved};

use crate::every_shape;
use crate::lab::{Lab, Request, Shape};

/// Requests that start, insert, end and give up in any order, on so many pages and slots a lane.
struct Crowd {
    lab: Lab,
    state: u64,
    computing: Vec<Request>,
    inserted: Vec<Request>,
}

impl Crowd {
    fn new(config: &CacheConfig, seed: u64) -> Self {
        Self { lab: Lab::with(config), state: seed, computing: Vec::new(), inserted: Vec::new() }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state % end as u64).unwrap()
    }

    fn one_of(&mut self, is_inserted: bool) -> Option<Request> {
        let count = if is_inserted { self.inserted.len() } else { self.computing.len() };
        let index = if count == 0 { return None } else { self.below(count) };
        Some(if is_inserted { self.inserted.swap_remove(index) } else { self.computing.swap_remove(index) })
    }

    fn start(&mut self) {
        let (family, pages) = (self.below(3), self.below(4) + 1);
        let mut tokens = self.lab.prompt(1_000 * i64::try_from(family).unwrap(), u32::try_from(pages).unwrap());
        if self.below(2) == 0 {
            let at = u32::try_from(self.below(pages)).unwrap();
            tokens = self.lab.branch(&tokens, at, 1);
        }
        let Some(lease) = self.lab.bring_back(&tokens) else { return };
        match self.lab.go_on_if_room(&tokens, lease) {
            Ok(request) => {
                self.lab.forward(&request);
                self.computing.push(request);
            }
            Err(lease) => self.lab.cache.release(lease),
        }
    }

    fn give_up(&mut self, mut request: Request) {
        if let Reserved::Slots(id) = request.reserved {
            self.lab.cache.abort(id, Reason::Aborted).unwrap();
        }
        self.lab.free(&request.pages);
        self.lab.release(&mut request);
    }

    fn act(&mut self) {
        match self.below(10) {
            0..3 => self.start(),
            3 | 4 => {
                if let Some(mut request) = self.one_of(false) {
                    self.lab.insert(&mut request);
                    self.inserted.push(request);
                }
            }
            5 => {
                if let Some(request) = self.one_of(false) {
                    self.give_up(request);
                }
            }
            6 | 7 => {
                if let Some(mut request) = self.one_of(true) {
                    self.lab.release(&mut request);
                }
            }
            8 => {
                let stream = self.below(2);
                if self.lab.engine.land(&mut self.lab.cache, stream) {
                    self.lab.engine.acknowledge(stream);
                }
                self.lab.tick();
            }
            _ => drop(self.lab.evict_all()),
        }
        let held: usize = self.computing.iter().map(|request| request.pages.len()).sum();
        self.lab.recount(u32::try_from(held).unwrap());
    }

    /// Everything ends; what is left can all be had. Returns what has happened.
    fn finish(mut self, shape: Shape) -> Counters {
        while let Some(request) = self.one_of(false) {
            self.give_up(request);
        }
        while let Some(mut request) = self.one_of(true) {
            self.lab.release(&mut request);
        }
        self.lab.drain();
        self.lab.recount(0);
        let lanes = u32::try_from(shape.lanes).unwrap();
        let all: Vec<i64> = (0..2 * shape.lanes).map(|page| page % shape.lanes).collect();
        let pages = self.lab.take_pages_in(&all).expect("all of them");
        self.lab.recount(2 * lanes);
        assert!(self.lab.take_pages_in(&[0]).is_none());
        self.lab.free(&pages);
        self.lab.recount(0);
        self.lab.cache.stats().counters
    }
}

#[test]
fn nothing_is_lost_or_owned_twice_in_the_smallest_tiers() {
    let mut seen = [0; 5];
    for (seed, shape) in (1..).zip(every_shape()) {
        for copies in [Copies::Assumed, Copies::Tracked] {
            for seed in [seed, seed + 1_000, seed + 2_000] {
                let mut crowd = Crowd::new(&CacheConfig { copies, ..shape.config(2, 2) }, seed);
                for _ in 0..100 {
                    crowd.act();
                    if copies == Copies::Tracked {
                        crowd.lab.check_device();
                    }
                }
                let done = crowd.finish(shape);
                let duplicates = done.duplicate_pages + done.recomputed_pages;
                let left_host = [done.host_evicted_pages, done.mirror_dropped_pages];
                let here = [done.restored_pages, duplicates, left_host[0], left_host[1], done.lost_pages];
                seen.iter_mut().zip(here).for_each(|(seen, here)| *seen += here);
            }
        }
    }
    // Restored, computed twice, gone from the host, mirrors dropped, lost.
    assert!(seen.iter().all(|&count| count >= 20), "{seen:?}");
}
