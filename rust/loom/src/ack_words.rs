//! Models of `protocol/ack.rs`: a thread that copies, and a tick.

use loom::sync::Arc;
use loom::thread;

use crate::cell::Plain;
use crate::protocol::{Body, Orderings, advance, fail, has_failed, open, reached};
use crate::sync::{AtomicU64, Ordering};
use crate::weakened::{Product, RelaxedAdvance, RelaxedReached};

struct Shared {
    word: AtomicU64,
    flag: AtomicU64,
    /// What the copy writes.
    copied: Plain,
}

fn shared() -> Arc<Shared> {
    let shared = Shared { word: AtomicU64::new(0), flag: AtomicU64::new(0), copied: Plain::new(0) };
    open(&shared.flag, 7);
    Arc::new(shared)
}

/// A tick that sees the word sees what was copied.
fn landed_bytes<O: Orderings + 'static>() {
    loom::model(|| {
        let shared = shared();
        let stream = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.copied.put(42);
                advance::<O>(&shared.word, 1);
            }
        });
        if reached::<O>(&shared.word) == 1 {
            assert_eq!(shared.copied.get(), 42);
        }
        stream.join().expect("no panic");
    });
}

#[test]
fn a_word_shows_the_bytes_that_landed() {
    landed_bytes::<Product>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_a_release_of_the_word_bytes_race() {
    landed_bytes::<RelaxedAdvance>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_an_acquire_of_the_word_bytes_race() {
    landed_bytes::<RelaxedReached>();
}

/// A thread that may write an ack word.
type Ack = fn(&AtomicU64, u64);

/// A tick that sees the word pass a failed operation sees its flag; also when another thread has
/// advanced the word further by `next`.
fn failed_flag<O: Orderings + 'static>(is_flag_first: bool, next: Ack) {
    loom::model(move || {
        let shared = shared();
        let stream = thread::spawn({
            let shared = shared.clone();
            move || {
                if is_flag_first {
                    assert!(fail(&shared.flag, 7));
                    advance::<O>(&shared.word, 1);
                } else {
                    advance::<O>(&shared.word, 1);
                    assert!(fail(&shared.flag, 7));
                }
            }
        });
        let later = thread::spawn({
            let shared = shared.clone();
            move || {
                // A later submission of the same stream, whose thread knows only that its turn has
                // come.
                if shared.word.load(Ordering::Relaxed) == 1 {
                    next(&shared.word, 2);
                }
            }
        });
        if reached::<O>(&shared.word) >= 1 {
            assert_eq!(has_failed(&shared.flag, 7), Some(true), "the word has passed its flag");
        }
        stream.join().expect("no panic");
        later.join().expect("no panic");
    });
}

#[test]
fn a_word_never_passes_a_failed_flag() {
    failed_flag::<Product>(true, advance::<Product>);
}

#[test]
#[should_panic(expected = "the word has passed its flag")]
fn without_a_release_of_the_word_it_passes_the_flag() {
    failed_flag::<RelaxedAdvance>(true, advance::<RelaxedAdvance>);
}

#[test]
#[should_panic(expected = "the word has passed its flag")]
fn without_an_acquire_of_the_word_it_passes_the_flag() {
    failed_flag::<RelaxedReached>(true, advance::<Product>);
}

#[test]
#[should_panic(expected = "the word has passed its flag")]
fn without_the_flag_first_the_word_passes_it() {
    failed_flag::<Product>(false, advance::<Product>);
}

#[test]
#[should_panic(expected = "the word has passed its flag")]
fn without_a_read_modify_write_a_later_writer_drops_the_flag() {
    failed_flag::<Product>(true, |word, sequence| word.store(sequence, Ordering::Release));
}

/// Two acks at once, out of order.
fn out_of_order(ack: Ack) {
    loom::model(move || {
        let shared = shared();
        let acks = [2, 1].map(|sequence| {
            let shared = shared.clone();
            thread::spawn(move || ack(&shared.word, sequence))
        });
        let (first, second) = (reached::<Product>(&shared.word), reached::<Product>(&shared.word));
        assert!(first <= second, "the word has shrunk");
        for ack in acks {
            ack.join().expect("no panic");
        }
        assert_eq!(reached::<Product>(&shared.word), 2, "the word has shrunk");
    });
}

#[test]
fn late_acks_do_not_lower_a_word() {
    out_of_order(advance::<Product>);
}

#[test]
#[should_panic(expected = "the word has shrunk")]
fn without_a_maximum_late_acks_lower_a_word() {
    out_of_order(|word, sequence| word.store(sequence, Ordering::Release));
}

/// A late failure of a life that is over, while the place begins the next.
fn late_failure(fail: fn(&AtomicU64, u32) -> bool) {
    loom::model(move || {
        let shared = shared();
        let late = thread::spawn({
            let shared = shared.clone();
            move || fail(&shared.flag, 7)
        });
        open(&shared.flag, 8);
        late.join().expect("no panic");
        assert_eq!(has_failed(&shared.flag, 8), Some(false), "the next life has its flag");
    });
}

#[test]
fn a_late_failure_does_not_touch_the_next_life() {
    late_failure(fail);
}

#[test]
#[should_panic(expected = "the next life has its flag")]
fn without_an_exchange_a_late_failure_touches_the_next_life() {
    late_failure(|flag, _| {
        flag.store(flag.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        true
    });
}
