//! Models of `protocol/presence.rs`: the last words of a rank that leaves, and a log that is being
//! made.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::thread;

use crate::cell::{NewBody, Plain};
use crate::protocol::{
    EntryPlace, Orderings, Presence, ReportRing, announce, applied, presence, publish_header, read_header, slowest,
};
use crate::sync::AtomicU64;
use crate::weakened::{Product, RelaxedReadyLoad, RelaxedReadyStore, RelaxedStateLoad, RelaxedStateStore};

struct Leaving {
    state: AtomicU64,
    /// The state of a third rank.
    other: AtomicU64,
    tail: AtomicU64,
    head: AtomicU64,
    reports: [AtomicU64; 1],
    number: AtomicU64,
    entry: [AtomicU64; 2],
    applied: AtomicU64,
}

/// Who sees that a rank has left sees its last report, entry and applied count, and whom it has
/// found dead.
fn last_words<O: Orderings + 'static>(is_state_last: bool) {
    loom::model(move || {
        let zero = || AtomicU64::new(0);
        let shared = Arc::new(Leaving {
            state: zero(),
            other: zero(),
            tail: zero(),
            head: zero(),
            reports: [zero()],
            number: zero(),
            entry: [zero(), zero()],
            applied: zero(),
        });
        let rank = thread::spawn({
            let shared = shared.clone();
            move || {
                if !is_state_last {
                    announce::<O>(&shared.state, Presence::Left);
                }
                let reports = ReportRing { tail: &shared.tail, head: &shared.head, bodies: &shared.reports };
                reports.send::<Product>(&mut 0, &mut VecDeque::from([5])).expect("possible");
                let entry = EntryPlace { number: &shared.number, bodies: &shared.entry };
                entry.publish::<Product>(0, &mut VecDeque::from([6]));
                applied::<Product>(&shared.applied, 1);
                announce::<O>(&shared.other, Presence::Dead);
                if is_state_last {
                    announce::<O>(&shared.state, Presence::Left);
                }
            }
        });
        if presence::<O>(&shared.state).expect("possible") == Presence::Left {
            let (mut reports, mut verdicts) = (Vec::new(), Vec::new());
            let ring = ReportRing { tail: &shared.tail, head: &shared.head, bodies: &shared.reports };
            ring.take::<Product>(&mut 0, &mut reports).expect("possible");
            assert_eq!(reports, [5], "a last word is missed");
            let entry = EntryPlace { number: &shared.number, bodies: &shared.entry };
            assert!(entry.read::<Product>(0, 1, &mut verdicts).expect("possible"), "a last word is missed");
            let slowest = slowest::<Product>([&shared.applied], 1).expect("possible");
            assert_eq!((verdicts, slowest.applied), (vec![6], 1), "a last word is missed");
            assert_eq!(presence::<O>(&shared.other), Ok(Presence::Dead), "a last word is missed");
        }
        rank.join().expect("no panic");
    });
}

#[test]
fn last_words_are_seen() {
    last_words::<Product>(true);
}

#[test]
#[should_panic(expected = "a last word is missed")]
fn without_a_release_of_the_state_last_words_are_missed() {
    last_words::<RelaxedStateStore>(true);
}

#[test]
#[should_panic(expected = "a last word is missed")]
fn without_an_acquire_of_the_state_last_words_are_missed() {
    last_words::<RelaxedStateLoad>(true);
}

#[test]
#[should_panic(expected = "a last word is missed")]
fn without_the_state_last_last_words_are_missed() {
    last_words::<Product>(false);
}

/// A log that is ready has its whole header.
fn header<O: Orderings + 'static, B: NewBody>() {
    const HEADER: [u64; 3] = [7, 8, 9];
    loom::model(|| {
        let shared = Arc::new((AtomicU64::new(0), [B::new(0), B::new(0), B::new(0)]));
        let creator = thread::spawn({
            let shared = shared.clone();
            move || publish_header::<O, B>(&shared.0, &shared.1, &HEADER)
        });
        if let Some(header) = read_header::<O, B>(&shared.0, &shared.1) {
            assert_eq!(header, HEADER, "the header is torn");
        }
        creator.join().expect("no panic");
    });
}

#[test]
fn a_ready_log_has_its_header() {
    header::<Product, AtomicU64>();
}

#[test]
fn a_header_is_ordered_by_ready() {
    header::<Product, Plain>();
}

#[test]
#[should_panic(expected = "the header is torn")]
fn without_a_release_of_ready_the_header_is_torn() {
    header::<RelaxedReadyStore, AtomicU64>();
}

#[test]
#[should_panic(expected = "the header is torn")]
fn without_an_acquire_of_ready_the_header_is_torn() {
    header::<RelaxedReadyLoad, AtomicU64>();
}
