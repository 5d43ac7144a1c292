//! Broken rules, each of which the checker has to find.
//!
//! They are the controls of the model: a property that no break violates would be worth nothing.
//! One break is missing on purpose. A tally that takes `Ended` for `Landed` and is otherwise sound
//! does no harm: `Ended` is said only of what was rolled back on all ranks before, or after
//! `Failed`, and what is rolled back is released by either ruling. It is broken here together with
//! the failure's report.

use stateright::{Checker, HasDiscoveries, Model};

use super::faults::Faults;
use super::rules::Rules;
use super::{Setup, checks};
use crate::agreement::{Fact, Report, Ruling, Tally, Verdict};
use crate::operations::machine::{Effects, Event, Phase, Reason, State, step};
use crate::operations::{Deadlines, Local};

const ONE_ABORT: Faults = Faults { give_ups: 1, ..Faults::NONE };
const ONE_FAILURE: Faults = Faults { failures: 1, together: 1, ..Faults::NONE };
const ONE_LOSS: Faults = Faults { losses: 1, together: 1, ..Faults::NONE };
const ONE_DELAY: Faults = Faults { delays: 2, together: 1, ..Faults::NONE };
const ONE_STRAY: Faults = Faults { strays: 1, together: 1, ..Faults::NONE };

/// The checker finds a history of 2 ranks, as short as can be, that violates the property.
#[track_caller]
fn is_found(property: &'static str, backups: usize, faults: Faults, rules: Rules) {
    is_found_in(property, Setup { rules, ..Setup::new(2, backups, faults) });
}

#[track_caller]
fn is_found_in(property: &'static str, setup: Setup) {
    let wanted = HasDiscoveries::AllOf([property].into());
    let checker = setup.checker().threads(1).finish_when(wanted).spawn_bfs().join();
    let found = checker.discovery(property);
    assert!(found.is_some(), "not found: {property}, in {} states", checker.unique_state_count());
}

/// Reports a fact of one rank as one of both.
fn add_for_both(tally: &mut Tally, report: Report) -> Option<Verdict> {
    (0..2).find_map(|rank| tally.add(rank, report))
}

#[test]
fn commit_before_it_is_bound() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let is_early = state.phase == Phase::Reserved && event == Event::Ruled(Ruling::Landed);
        step(if is_early { State { phase: Phase::Pending, ..state } } else { state }, event)
    }
    is_found(checks::BOUND, 1, Faults::NONE, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn commit_when_one_rank_has_landed() {
    fn broken(tally: &mut Tally, rank: u32, report: Report) -> Option<Verdict> {
        if report.fact == Fact::Landed { add_for_both(tally, report) } else { tally.add(rank, report) }
    }
    is_found(checks::VISIBLE, 1, Faults::NONE, Rules { add: broken, ..Rules::PRODUCT });
}

#[test]
fn commit_before_the_parent() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        step(State { waits_for_parent: state.waits_for_parent && event != Event::Bound, ..state }, event)
    }
    is_found(checks::PARENT_FIRST, 2, Faults::NONE, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn commit_before_the_restore_in_front() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        step(State { waits_for_parent: state.waits_for_parent && event != Event::Bound, ..state }, event)
    }
    let rules = Rules { step: broken, ..Rules::PRODUCT };
    is_found_in(checks::PARENT_FIRST, Setup { restores: 1, rules, ..Setup::new(2, 2, Faults::NONE) });
}

#[test]
fn release_with_the_rollback() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        match step(state, event) {
            (state, Effects { roll_back: Some(reason), .. }) => {
                let effects = Effects { roll_back: Some(reason), release: true, ..Effects::default() };
                (State { phase: Phase::Gone(reason), ..state }, effects)
            }
            sound => sound,
        }
    }
    is_found(checks::IN_FLIGHT, 1, ONE_ABORT, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn release_with_the_quarantine() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let (state, effects) = step(state, event);
        (state, Effects { release: effects.release || effects.quarantine, ..effects })
    }
    is_found(checks::IN_FLIGHT, 1, ONE_DELAY, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn release_when_one_rank_has_ended() {
    fn broken(tally: &mut Tally, rank: u32, report: Report) -> Option<Verdict> {
        if report.fact == Fact::Ended { add_for_both(tally, report) } else { tally.add(rank, report) }
    }
    is_found(checks::IN_FLIGHT, 1, ONE_ABORT, Rules { add: broken, ..Rules::PRODUCT });
}

#[test]
fn failures_are_not_said() {
    fn broken(
        local: &mut Local,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        match local.next_fact(is_alive, is_running, acks, now, deadlines) {
            Some(Fact::Failed) => broken(local, is_alive, is_running, acks, now, deadlines),
            Some(Fact::Ended) if is_alive => Some(Fact::Landed),
            fact => fact,
        }
    }
    is_found(checks::VISIBLE, 1, ONE_FAILURE, Rules { next_fact: broken, ..Rules::PRODUCT });
}

#[test]
fn failures_are_not_counted_and_ended_is_taken_for_landed() {
    fn broken(tally: &mut Tally, rank: u32, report: Report) -> Option<Verdict> {
        match report.fact {
            Fact::Failed => None,
            Fact::Ended => tally.add(rank, Report { fact: Fact::Landed, ..report }),
            _ => tally.add(rank, report),
        }
    }
    is_found(checks::VISIBLE, 1, ONE_FAILURE, Rules { add: broken, ..Rules::PRODUCT });
}

#[test]
fn the_acks_of_the_draft_are_left_out() {
    fn broken(
        local: &mut Local,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        local.next_fact(is_alive, is_running, &[acks[0], u64::MAX], now, deadlines)
    }
    is_found(checks::VISIBLE, 1, Faults::NONE, Rules { next_fact: broken, ..Rules::PRODUCT });
}

#[test]
fn the_end_of_submission_is_not_waited_for() {
    fn broken(
        local: &mut Local,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        let mut closed = local.clone();
        closed.close();
        let is_begun = acks.iter().any(|&ack| ack > 0);
        if is_begun {
            *local = closed;
        }
        local.next_fact(is_alive, is_running, acks, now, deadlines)
    }
    is_found(checks::VISIBLE, 1, Faults::NONE, Rules { next_fact: broken, ..Rules::PRODUCT });
}

#[test]
fn a_deadline_is_taken_for_a_landing() {
    fn broken(
        local: &mut Local,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        let fact = local.next_fact(is_alive, is_running, acks, now, deadlines);
        if fact == Some(Fact::Failed) { Some(Fact::Landed) } else { fact }
    }
    let rules = Rules { next_fact: broken, ..Rules::PRODUCT };
    is_found(checks::SILENCE, 1, ONE_LOSS, rules);
    is_found(checks::VISIBLE, 1, ONE_DELAY, rules);
}

#[test]
fn one_rank_is_a_step_behind_with_its_entries() {
    is_found(checks::AGREEMENT, 1, Faults::NONE, Rules { is_behind: |rank| rank == 1, ..Rules::PRODUCT });
}

#[test]
fn a_drain_is_applied_before_the_others_have_heard_of_it() {
    let rules = Rules { at_once: |fact| (fact == Fact::Ended).then_some(Ruling::Drained), ..Rules::PRODUCT };
    is_found(checks::AGREEMENT, 1, ONE_ABORT, rules);
    is_found(checks::IN_FLIGHT, 1, ONE_ABORT, rules);
}

#[test]
fn words_of_different_streams_are_compared() {
    fn least(
        local: &mut Local,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        let acks = [*acks[..2].iter().min()?; 2];
        local.next_fact(is_alive, is_running, &acks, now, deadlines)
    }
    fn most(
        local: &mut Local,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        let acks = [*acks[..2].iter().max()?; 2];
        local.next_fact(is_alive, is_running, &acks, now, deadlines)
    }
    // A stream that a world has no copies on stays where it is.
    let rules = Rules { next_fact: least, ..Rules::PRODUCT };
    is_found_in(checks::CAUSE, Setup { rules, streams: 1, ..Setup::new(2, 1, Faults::NONE) });
    is_found(checks::VISIBLE, 1, Faults::NONE, Rules { next_fact: most, ..Rules::PRODUCT });
}

#[test]
fn generations_are_not_compared() {
    let rules = Rules { names_it: |named, it| named.index == it.index, ..Rules::PRODUCT };
    is_found(checks::CAUSE, 1, ONE_STRAY, rules);
}

#[test]
fn what_is_committed_is_rolled_back() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let is_late = state.phase == Phase::Committed && matches!(event, Event::RolledBack(_));
        step(if is_late { State { phase: Phase::Pending, ..state } } else { state }, event)
    }
    is_found(checks::OVER, 1, ONE_ABORT, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn a_commit_is_rolled_back_as_well() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let (state, effects) = step(state, event);
        let roll_back = effects.roll_back.or(effects.commit.then_some(Reason::Aborted));
        (state, Effects { roll_back, ..effects })
    }
    is_found(checks::ONCE, 1, Faults::NONE, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn what_has_drained_is_not_released() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let (state, effects) = step(state, event);
        (state, Effects { release: effects.release && effects.roll_back.is_some(), ..effects })
    }
    let rules = Rules { step: broken, ..Rules::PRODUCT };
    is_found(checks::CONSERVED, 1, ONE_ABORT, rules);
    is_found(checks::LOCKS, 1, ONE_ABORT, rules);
    is_found(checks::ENDS, 1, ONE_ABORT, rules);
}

#[test]
fn what_is_released_is_released_again() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let (state, effects) = step(state, event);
        match state.phase {
            Phase::Gone(reason) if effects.roll_back.is_some() => {
                (State { phase: Phase::Draining(reason), ..state }, effects)
            }
            _ => (state, effects),
        }
    }
    let rules = Rules { step: broken, ..Rules::PRODUCT };
    is_found(checks::CONSERVED, 1, ONE_ABORT, rules);
    // It waits for its parent, and would be over otherwise.
    is_found(checks::LOCKS, 2, ONE_ABORT, rules);
}

#[test]
fn what_the_survivors_have_is_half_done() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let (state, effects) = step(state, event);
        (state, Effects { roll_back: effects.roll_back.filter(|&reason| reason != Reason::CopyFailed), ..effects })
    }
    let faults = Faults { deaths: 1, failures: 1, together: 2, ..Faults::NONE };
    is_found(checks::ENDS, 1, faults, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn what_a_dead_rank_has_said_is_not_counted() {
    fn broken(tally: &mut Tally, rank: u32, report: Report) -> Option<Verdict> {
        if rank == 0 { tally.add(rank, report) } else { None }
    }
    let faults = Faults { deaths: 1, together: 1, ..Faults::NONE };
    is_found(checks::ENDS, 1, faults, Rules { add: broken, ..Rules::PRODUCT });
}

#[test]
fn quarantine_does_not_end() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        match state.phase {
            Phase::Quarantined(_) => (state, Effects::default()),
            _ => step(state, event),
        }
    }
    is_found(checks::ENDS, 1, ONE_DELAY, Rules { step: broken, ..Rules::PRODUCT });
}

#[test]
fn what_is_rolled_back_never_drains() {
    fn broken(tally: &mut Tally, rank: u32, report: Report) -> Option<Verdict> {
        tally.add(rank, report).filter(|verdict| verdict.ruling != Ruling::Drained)
    }
    is_found(checks::ENDS, 1, ONE_ABORT, Rules { add: broken, ..Rules::PRODUCT });
}

#[test]
fn a_parent_is_settled_before_its_time() {
    fn broken(state: State, event: Event) -> (State, Effects) {
        let (state, effects) = step(state, event);
        (State { waits_for_parent: state.waits_for_parent && !state.has_landed, ..state }, effects)
    }
    is_found(checks::PARENT_FIRST, 2, Faults::NONE, Rules { step: broken, ..Rules::PRODUCT });
}
