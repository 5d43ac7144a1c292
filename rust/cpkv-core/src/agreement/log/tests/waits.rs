//! Whom a rank waits for, and what ends it. Gates are the hook of the wait itself.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::*;

/// Tells when `log` begins to wait in earnest.
fn waits(log: &mut CommitLog) -> Receiver<Waited> {
    let (sender, receiver) = channel();
    log.set_patience(Patience { warning: Duration::ZERO, deadline: LONG });
    log.on_wait(move |waited| sender.send(waited).expect("the test listens"));
    receiver
}

const BRIEF: Patience = Patience { warning: Duration::from_millis(10), deadline: Duration::from_millis(30) };

#[test]
fn rank_zero_waits_for_the_slowest_reader() {
    let place = Place::new();
    let [mut zero, mut one, mut two] = place.ranks(TINY);
    let waiting = waits(&mut zero);
    zero.report((0..3).map(|index| report(index, Fact::Failed))).expect("reported");
    let writer = thread::spawn(move || {
        for _ in 0..3 {
            zero.write_entry().expect("written");
            zero.read_entry(&mut Vec::new()).expect("written");
        }
        zero
    });
    assert_eq!(waiting.recv().expect("a wait").rank, 1);
    assert!(!writer.is_finished());

    let mut verdicts: [Vec<_>; 2] = Default::default();
    for _ in 0..3 {
        two.read_entry(&mut verdicts[1]).expect("read");
        one.read_entry(&mut verdicts[0]).expect("read");
    }
    assert_eq!(verdicts.each_ref().map(Vec::len), [3, 3]);
    assert!(waiting.try_recv().is_err(), "one warning in one call");
    drop(writer.join().expect("no panic"));
}

#[test]
fn a_rank_ahead_waits_for_rank_zero() {
    let place = Place::new();
    let [mut zero, mut one, _two] = place.ranks(TINY);
    let waiting = waits(&mut one);
    let reader = thread::spawn(move || {
        let mut verdicts = Vec::new();
        one.read_entry(&mut verdicts).map(|()| verdicts)
    });
    assert_eq!(waiting.recv().expect("a wait").rank, 0);
    zero.report([report(4, Fact::Failed)]).expect("reported");
    zero.write_entry().expect("written");
    let verdicts = reader.join().expect("no panic").expect("read");
    assert_eq!(verdicts.len(), 1);
}

#[test]
fn silence_warns_and_then_ends() {
    let place = Place::new();
    let [mut zero, mut one, mut two] = place.ranks(TINY);
    let (sender, warnings) = channel();
    one.on_wait(move |waited| sender.send(waited).expect("the test listens"));
    for log in [&mut zero, &mut one] {
        log.set_patience(BRIEF);
    }
    let silent = one.read_entry(&mut Vec::new());
    let Err(LogError::Silent { rank: 0, waited }) = silent else { panic!("{silent:?}") };
    assert!(waited >= BRIEF.deadline);
    let warning = warnings.recv().expect("a warning");
    assert_eq!(warning.rank, 0);
    assert!(warning.waited >= BRIEF.warning);
    assert!(warnings.try_recv().is_err());

    // Rank 1 goes on, rank 2 does not.
    for _ in 0..2 {
        zero.write_entry().expect("written");
        zero.read_entry(&mut Vec::new()).expect("read");
        one.read_entry(&mut Vec::new()).expect("read");
    }
    assert!(matches!(zero.write_entry(), Err(LogError::Silent { rank: 2, .. })));
    // Rank 1 waits for an entry that rank 0 cannot write: it is told who is in the way.
    assert!(matches!(one.read_entry(&mut Vec::new()), Err(LogError::Silent { rank: 2, .. })));
    // It was only slow.
    two.read_entry(&mut Vec::new()).expect("read");
    zero.write_entry().expect("written");
}

#[test]
fn last_words_count_and_then_a_rank_has_left() {
    let place = Place::new();
    let [mut zero, mut one, mut two] = place.ranks(Sizes { verdicts: 8, ..TINY });
    one.report((0..4).map(|index| report(index, Fact::Failed))).expect("reported");
    let mut verdicts = Vec::new();
    zero.write_entry().expect("written");
    zero.read_entry(&mut verdicts).expect("read");
    assert_eq!((verdicts.len(), one.queued_reports()), (2, 2));
    // Two did not fit, and now do.
    drop(one);
    zero.write_entry().expect("written");
    zero.read_entry(&mut verdicts).expect("read");
    assert_eq!(verdicts.len(), 4);
    assert!(matches!(zero.write_entry(), Err(LogError::Left { rank: 1 })));

    // Of rank 0 everything that was written is read first.
    drop(zero);
    verdicts.clear();
    two.read_entry(&mut verdicts).expect("read");
    two.read_entry(&mut verdicts).expect("read");
    assert_eq!(verdicts.len(), 4);
    assert!(matches!(two.read_entry(&mut verdicts), Err(LogError::Left { rank: 0 })));
}

#[test]
fn who_has_not_joined_is_named() {
    let place = Place::new();
    let mut zero = place.create(TINY).expect("created");
    let missing = zero.wait_for_all(Duration::ZERO);
    assert!(matches!(&missing, Err(LogError::NotJoined { ranks, .. }) if *ranks == [1, 2]), "{missing:?}");
    let one = place.join(1, TINY).expect("joined");
    let missing = zero.wait_for_all(Duration::ZERO);
    assert!(matches!(&missing, Err(LogError::NotJoined { ranks, .. }) if *ranks == [2]), "{missing:?}");
    drop(one);
}

#[test]
fn who_joins_first_waits_for_the_log() {
    let place = Place::new();
    let path = place.0.clone();
    let joiner = thread::spawn(move || CommitLog::join(&path, NAME, NONCE, 1, GEOMETRY, LONG));
    let mut zero = place.create(Sizes::default()).expect("created");
    let _two = CommitLog::join(&place.0, NAME, NONCE, 2, GEOMETRY, LONG).expect("joined");
    zero.wait_for_all(LONG).expect("all join");
    joiner.join().expect("no panic").expect("joined");
}

/// Makes a call again as often as it pauses. Returns what came of it.
fn again(log: &mut CommitLog, mut call: impl FnMut(&mut CommitLog) -> Result<(), LogError>) -> LogError {
    for pauses in 1.. {
        match call(log).expect_err("nobody comes") {
            LogError::Paused { waited, .. } => {
                assert!(waited >= PIECE * pauses, "{waited:?} after {pauses} pauses");
            }
            error => return error,
        }
    }
    unreachable!("it pauses for ever")
}

const PIECE: Duration = Duration::from_millis(4);

#[test]
fn a_wait_in_pieces_warns_once_and_ends_like_any_other() {
    let place = Place::new();
    let [zero, mut one, _two] = place.ranks(TINY);
    let (sender, warnings) = channel();
    one.on_wait(move |waited| sender.send(waited).expect("the test listens"));
    one.set_patience(BRIEF);
    one.wait_in_pieces(PIECE);
    let silent = again(&mut one, |one| one.read_entry(&mut Vec::new()));
    let LogError::Silent { rank: 0, waited } = silent else { panic!("{silent:?}") };
    assert!(waited >= BRIEF.deadline, "{waited:?}");
    assert!(warnings.recv().expect("a warning").waited >= BRIEF.warning);
    assert!(warnings.try_recv().is_err(), "one warning in one wait");

    // One wait, however often it pauses, and another one after it was given up.
    one.set_patience(Patience { warning: Duration::ZERO, deadline: LONG });
    for expected in [1, 0, 0, 1] {
        if expected == 1 {
            one.forget_pause();
        }
        let paused = one.read_entry(&mut Vec::new());
        assert!(matches!(paused, Err(LogError::Paused { rank: 0, .. })), "{paused:?}");
        assert_eq!(warnings.try_iter().count(), expected);
    }

    // A piece is shorter than the time between two looks, and who has left is noticed all the same.
    drop(zero);
    let left = again(&mut one, |one| one.read_entry(&mut Vec::new()));
    assert!(matches!(left, LogError::Left { rank: 0 }), "{left:?}");
}

#[test]
fn what_is_paused_is_done_once() {
    let place = Place::new();
    let [mut zero, mut one, mut two] = place.ranks(TINY);
    for log in [&mut zero, &mut one] {
        log.wait_in_pieces(PIECE);
    }
    zero.report((0..3).map(|index| report(index, Fact::Failed))).expect("reported");
    let mut verdicts = Vec::new();
    assert!(matches!(one.read_entry(&mut verdicts), Err(LogError::Paused { rank: 0, .. })));
    for _ in 0..2 {
        zero.write_entry().expect("written");
        zero.read_entry(&mut Vec::new()).expect("read");
    }
    one.read_entry(&mut verdicts).expect("read");
    for _ in 0..3 {
        assert!(matches!(zero.write_entry(), Err(LogError::Paused { rank: 2, .. })));
    }
    two.read_entry(&mut Vec::new()).expect("read");
    zero.write_entry().expect("written");
    for _ in 0..2 {
        one.read_entry(&mut verdicts).expect("read");
    }
    assert_eq!(verdicts.iter().map(|verdict| verdict.operation.index).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn rank_zero_waits_for_the_others_in_pieces() {
    let place = Place::new();
    let mut zero = place.create(TINY).expect("created");
    zero.wait_in_pieces(PIECE);
    assert!(matches!(zero.wait_for_all(LONG), Err(LogError::Paused { rank: 1, .. })));
    let missing = again(&mut zero, |zero| zero.wait_for_all(BRIEF.deadline));
    assert!(matches!(&missing, LogError::NotJoined { ranks, .. } if *ranks == [1, 2]), "{missing:?}");
}
