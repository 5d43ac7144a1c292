//! Models of `protocol/report_ring.rs`: a rank that sends more than its ring holds, and rank 0.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::thread;

use crate::cell::{NewBody, Plain};
use crate::protocol::{Orderings, ReportRing};
use crate::sync::AtomicU64;
use crate::weakened::{Product, RelaxedHeadLoad, RelaxedHeadStore, RelaxedTailLoad, RelaxedTailStore};

const REPORTS: u64 = 3;

struct Shared<B> {
    tail: AtomicU64,
    head: AtomicU64,
    bodies: [B; 2],
}

impl<B> Shared<B> {
    fn ring(&self) -> ReportRing<'_, B> {
        ReportRing { tail: &self.tail, head: &self.head, bodies: &self.bodies }
    }
}

/// All reports arrive whole and in order, and none is written over before it was taken.
fn arrive<O: Orderings + 'static, B: NewBody>() {
    loom::model(|| {
        let bodies = [B::new(0), B::new(0)];
        let shared = Arc::new(Shared { tail: AtomicU64::new(0), head: AtomicU64::new(0), bodies });
        let rank = thread::spawn({
            let shared = shared.clone();
            move || {
                let (mut sent, mut queue) = (0, (1..=REPORTS).collect::<VecDeque<_>>());
                while !queue.is_empty() {
                    shared.ring().send::<O>(&mut sent, &mut queue).expect("possible");
                    thread::yield_now();
                }
            }
        });
        let (mut taken, mut reports) = (0, Vec::new());
        while taken < REPORTS {
            shared.ring().take::<O>(&mut taken, &mut reports).expect("possible");
            assert!(reports.iter().copied().eq(1..=taken), "a report is torn");
            thread::yield_now();
        }
        rank.join().expect("no panic");
    });
}

#[test]
fn reports_arrive_whole_and_in_order() {
    arrive::<Product, AtomicU64>();
}

#[test]
fn reports_are_ordered_by_tail_and_head() {
    arrive::<Product, Plain>();
}

#[test]
#[should_panic(expected = "a report is torn")]
fn without_a_release_of_the_tail_reports_are_torn() {
    arrive::<RelaxedTailStore, AtomicU64>();
}

#[test]
#[should_panic(expected = "a report is torn")]
fn without_an_acquire_of_the_tail_reports_are_torn() {
    arrive::<RelaxedTailLoad, AtomicU64>();
}

// That a read is overtaken by a write that comes after it is not among what loom tries with
// atomics; the plain cells find it.

#[test]
#[should_panic(expected = "Causality violation")]
fn without_a_release_of_the_head_reports_are_written_over() {
    arrive::<RelaxedHeadStore, Plain>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_an_acquire_of_the_head_reports_are_written_over() {
    arrive::<RelaxedHeadLoad, Plain>();
}
