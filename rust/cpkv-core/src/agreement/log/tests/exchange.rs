//! What goes into a log comes out of it, once, in order, for all alike.

use std::thread;

use super::*;
use crate::agreement::{Ruling, Stamp, Verdict};

fn read(log: &mut CommitLog) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    log.read_entry(&mut verdicts).expect("an entry");
    verdicts
}

#[test]
fn a_verdict_takes_all_ranks_and_reaches_all() {
    let place = Place::new();
    let mut ranks = place.ranks(Sizes::default());
    for reporting in [1, 0, 2] {
        ranks[reporting].report([report(5, Fact::Landed)]).expect("reported");
        ranks[0].write_entry().expect("written");
        let landed = Verdict { operation: operation(5), ruling: Ruling::Landed };
        let wanted = if reporting == 2 { vec![landed] } else { vec![] };
        for log in &mut ranks {
            assert_eq!(read(log), wanted);
        }
    }
}

#[test]
fn an_entry_is_read_a_step_later() {
    let place = Place::new();
    let mut ranks = place.ranks(TINY);
    ranks[0].report([report(1, Fact::Failed)]).expect("reported");
    for step in 0..10 {
        ranks[0].write_entry().expect("written");
        if step > 0 {
            let verdicts = ranks.each_mut().map(read);
            assert_eq!(verdicts.map(|verdicts| verdicts.len()), [usize::from(step == 1); 3]);
        }
    }
}

#[test]
fn what_a_full_ring_cannot_hold_goes_later_and_in_order() {
    const COUNT: u32 = 50;
    let place = Place::new();
    let mut ranks = place.ranks(TINY);
    ranks[1].report((0..COUNT).map(|index| report(index, Fact::Failed))).expect("reported");
    assert_eq!(ranks[1].queued_reports(), 48);

    let mut verdicts: [Vec<Verdict>; 3] = Default::default();
    // One verdict fits an entry, two reports fit the ring.
    for _ in 0..COUNT {
        ranks[0].write_entry().expect("written");
        for (log, verdicts) in ranks.iter_mut().zip(&mut verdicts) {
            log.read_entry(verdicts).expect("read");
        }
    }
    for verdicts in verdicts {
        assert!(verdicts.iter().all(|verdict| verdict.ruling == Ruling::Failed));
        assert!(verdicts.into_iter().map(|verdict| verdict.operation).eq((0..COUNT).map(operation)));
    }
    assert_eq!(ranks[1].queued_reports(), 0);
}

#[test]
fn threads_on_tiny_rings_lose_nothing() {
    const COUNT: u32 = 300;
    /// Reports everything in an order of its own, a few at a time, until all is decided.
    fn run(mut log: CommitLog) -> Vec<Verdict> {
        let rank = log.rank();
        let mut reports = (0..COUNT).map(move |n| report((n * 7 + rank * 31) % COUNT, Fact::Landed));
        let mut verdicts = Vec::new();
        while verdicts.len() < COUNT as usize {
            log.report(reports.by_ref().take(1 + rank as usize * 2)).expect("reported");
            if rank == 0 {
                log.write_entry().expect("written");
            }
            log.read_entry(&mut verdicts).expect("read");
        }
        assert_eq!(log.queued_reports(), 0);
        verdicts
    }
    let place = Place::new();
    let threads = place.ranks(TINY).map(|log| thread::spawn(|| run(log)));
    let [zero, one, two] = threads.map(|thread| thread.join().expect("no panic"));
    assert!(zero == one && one == two);
    let mut indices: Vec<_> = zero.into_iter().map(|verdict| verdict.operation.index).collect();
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..COUNT));
}

#[test]
fn one_rank_alone_agrees_with_itself() {
    let place = Place::new();
    let geometry = LogGeometry { ranks: 1, fingerprint: 0 };
    let mut log = CommitLog::create(&place.0, NAME, NONCE, geometry).expect("created");
    log.wait_for_all(Duration::ZERO).expect("nobody is missing");
    log.report([report(0, Fact::Landed), report(1, Fact::Ended)]).expect("reported");
    log.write_entry().expect("written");
    let rulings: Vec<_> = read(&mut log).into_iter().map(|verdict| verdict.ruling).collect();
    assert_eq!(rulings, [Ruling::Landed, Ruling::Drained]);
}

#[test]
fn a_report_that_does_not_fit_takes_no_other_with_it() {
    let place = Place::new();
    let [mut zero, ..] = place.ranks(TINY);
    let reports = [report(1, Fact::Failed), report(1 << 24, Fact::Failed)];
    assert!(matches!(zero.report(reports), Err(LogError::Index { .. })));
    assert_eq!(zero.queued_reports(), 0);
}

#[test]
fn a_rank_whose_cache_is_another_hears_of_it_with_the_next_entry() {
    let place = Place::new();
    let [mut zero, mut one, mut two] = place.ranks(TINY);
    let stamp = Stamp { step: 7, digest: 0xa };
    for log in [&mut zero, &mut two] {
        log.stamp(stamp);
    }
    one.stamp(Stamp { digest: 0xb, ..stamp });
    zero.report([report(1, Fact::Failed)]).expect("reported");
    zero.write_entry().expect("written");
    let mut verdicts = Vec::new();
    let parted = one.read_entry(&mut verdicts).expect_err("another digest");
    assert!(matches!(parted, LogError::Parted { rank: 1, step: 7, own: 0xb, of_zero: 0xa }), "{parted}");
    assert!(verdicts.is_empty());
    for log in [&mut zero, &mut two] {
        assert_eq!(read(log).len(), 1);
    }
}

#[test]
fn calls_of_the_wrong_rank_or_too_early_are_refused() {
    let place = Place::new();
    let [mut zero, mut one, _two] = place.ranks(TINY);
    assert!(matches!(one.write_entry(), Err(LogError::NotRankZero { rank: 1 })));
    assert!(matches!(zero.read_entry(&mut Vec::new()), Err(LogError::Unwritten { written: 0 })));
    zero.write_entry().expect("fits");
    zero.write_entry().expect("fits");
    assert!(matches!(zero.write_entry(), Err(LogError::Unread { unread: 2 })));
}
