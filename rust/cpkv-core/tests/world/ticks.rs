//! A tick of all ranks: one alone, or several that agree by verdicts or by a reduction.

use cpkv_core::TickReport;

use super::{World, same};
use crate::engine::ITEMS;

impl World {
    /// `skipped` has a bit for each rank that is late with its reports.
    pub(super) fn tick(&mut self, skipped: u8) {
        let report = match self.caches.as_mut_slice() {
            [cache] => cache.tick(self.step, &self.engines[0].acks, self.now_ns[0]).unwrap(),
            _ if self.setup.reduces => self.reduce(),
            _ => self.agree(skipped),
        };
        self.step += 1;
        for now_ns in &mut self.now_ns {
            *now_ns += 1;
        }
        self.seen.note("commits", report.committed.len());
        self.seen.note("restored", report.restored.len());
        for rolled_back in &report.rolled_back {
            self.seen.note(rolled_back.reason.name(), 1);
        }
        self.pages_freed(&report.freed_pages);
        self.seen.note("late backups", report.started.len());
        self.started.extend(&report.started);
        for id in report.started {
            if self.is_alive(id) {
                for item in 0..ITEMS {
                    self.submit(id, item, false);
                }
                self.all(|cache| cache.submitted_all(id).unwrap());
            }
        }
    }

    /// Every copy lands, and the ranks hear of it.
    pub(super) fn settle(&mut self) {
        for _ in 0..3 {
            for (engine, cache) in self.engines.iter_mut().zip(&mut self.caches) {
                engine.finish(cache);
            }
            self.tick(0);
        }
    }

    fn reduce(&mut self) -> TickReport {
        let last = std::mem::take(&mut self.votes);
        let minimum = last.iter().map(|votes| votes.numbers().to_vec()).reduce(|left, right| {
            assert_eq!(left.len(), right.len());
            left.into_iter().zip(right).map(|(left, right)| left.min(right)).collect()
        });
        let mut reports = Vec::new();
        for (rank, cache) in self.caches.iter_mut().enumerate() {
            cache.begin_step(self.step).unwrap();
            if let Some(minimum) = &minimum {
                cache.apply_votes(&last[rank], minimum).unwrap();
            }
            reports.push(cache.end_step());
            if cache.open_operations() > 0 {
                self.votes.push(cache.votes(&self.engines[rank].acks, self.now_ns[rank]));
            }
        }
        assert!(self.votes.is_empty() || self.votes.len() == self.caches.len());
        same(reports)
    }

    fn agree(&mut self, skipped: u8) -> TickReport {
        let (step, entry) = (self.step, std::mem::take(&mut self.entry));
        let report = self.all(|cache| {
            cache.begin_step(step).unwrap();
            cache.apply(&entry);
            cache.end_step()
        });
        for (rank, cache) in self.caches.iter_mut().enumerate() {
            if skipped >> rank & 1 == 0 {
                for report in cache.reports(&self.engines[rank].acks, self.now_ns[rank]) {
                    self.entry.extend(self.tally.add(u32::try_from(rank).unwrap(), report));
                }
            }
        }
        report
    }
}
