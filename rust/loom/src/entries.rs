//! Models of `protocol/entry_place.rs`: rank 0 writes more entries than there are places, and ranks
//! read them.

use std::collections::VecDeque;

use loom::sync::Arc;
use loom::thread;

use crate::cell::{NewBody, Plain};
use crate::protocol::{EntryPlace, Orderings, applied, slowest};
use crate::sync::AtomicU64;
use crate::weakened::{Product, RelaxedAppliedLoad, RelaxedAppliedStore, RelaxedNumberLoad, RelaxedNumberStore};

const PLACES: usize = 2;
const ENTRIES: u64 = 3;

struct Shared<B> {
    numbers: [AtomicU64; PLACES],
    bodies: [[B; 2]; PLACES],
    applied: Vec<AtomicU64>,
}

impl<B: NewBody> Shared<B> {
    fn new(readers: usize) -> Self {
        let words = || [AtomicU64::new(0), AtomicU64::new(0)];
        let bodies = || [B::new(0), B::new(0)];
        Self {
            numbers: words(),
            bodies: [bodies(), bodies()],
            applied: (0..readers).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn place(&self, number: u64) -> EntryPlace<'_, B> {
        let place = usize::from(number % 2 == 1);
        EntryPlace { number: &self.numbers[place], bodies: &self.bodies[place] }
    }

    /// Rank 0: an empty entry, then one verdict in each, with the ring's own check or without. Ends
    /// early if there is no room and `pause` says so.
    fn write<O: Orderings>(&self, is_waiting: bool, pause: fn() -> bool) {
        let mut verdicts = VecDeque::new();
        for number in 0..ENTRIES {
            while is_waiting && {
                let slowest = slowest::<O>(&self.applied, number).expect("possible");
                number - slowest.applied >= PLACES as u64
            } {
                if !pause() {
                    return;
                }
            }
            self.place(number).publish::<O>(number, &mut verdicts);
            verdicts.push_back(10 + number);
        }
    }

    fn read<O: Orderings>(&self, reader: usize, pause: fn() -> bool) {
        for number in 0..ENTRIES {
            let mut verdicts = Vec::new();
            while !self.place(number).read::<O>(number, PLACES, &mut verdicts).expect("an entry is lost") {
                if !pause() {
                    return;
                }
            }
            let whole = number.checked_sub(1).map(|before| 10 + before);
            assert!(verdicts.into_iter().eq(whole), "an entry is torn");
            applied::<O>(&self.applied[reader], number + 1);
        }
    }
}

/// Until the other side has come on.
fn wait() -> bool {
    thread::yield_now();
    true
}

/// Three threads that wait for each other have no end that loom could find.
fn give_up() -> bool {
    false
}

/// Every entry is read whole, and none is written over before it was read.
fn exchange<O: Orderings + 'static, B: NewBody>(is_waiting: bool) {
    loom::model(move || {
        let shared = Arc::new(Shared::<B>::new(1));
        let zero = thread::spawn({
            let shared = shared.clone();
            move || shared.write::<O>(is_waiting, wait)
        });
        shared.read::<O>(0, wait);
        zero.join().expect("no panic");
    });
}

/// The same with two readers; none is written over before the slower one has read it.
fn two_readers<O: Orderings + 'static>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(Shared::<Plain>::new(2));
        let readers = [0, 1].map(|reader| {
            let shared = shared.clone();
            thread::spawn(move || shared.read::<O>(reader, give_up))
        });
        shared.write::<O>(true, give_up);
        for reader in readers {
            reader.join().expect("no panic");
        }
    });
}

#[test]
fn entries_wait_for_the_slower_of_two_readers() {
    two_readers::<Product>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_an_acquire_of_applied_the_slower_reader_is_overtaken() {
    two_readers::<RelaxedAppliedLoad>();
}

#[test]
fn entries_are_read_whole() {
    exchange::<Product, AtomicU64>(true);
}

#[test]
fn entries_are_ordered_by_number_and_applied() {
    exchange::<Product, Plain>(true);
}

#[test]
#[should_panic(expected = "an entry is torn")]
fn without_a_release_of_the_number_entries_are_torn() {
    exchange::<RelaxedNumberStore, AtomicU64>(true);
}

#[test]
#[should_panic(expected = "an entry is torn")]
fn without_an_acquire_of_the_number_entries_are_torn() {
    exchange::<RelaxedNumberLoad, AtomicU64>(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_a_release_of_applied_entries_are_written_over() {
    exchange::<RelaxedAppliedStore, Plain>(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_an_acquire_of_applied_entries_are_written_over() {
    exchange::<RelaxedAppliedLoad, Plain>(true);
}

#[test]
#[should_panic(expected = "an entry is")]
fn without_waiting_for_applied_entries_are_lost() {
    exchange::<Product, AtomicU64>(false);
}
