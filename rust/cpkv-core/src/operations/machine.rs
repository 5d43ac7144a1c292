//! The life of one backup, as a pure function.
//!
//! ```text
//!  reserve ─► Reserved ── bind ──► Pending ── landed on all ranks, parents first ──► Committed
//!                │                    │
//!                └──── rolled back ───┴──► Draining ── ended on all ranks ──► Gone
//!                                             └─ stuck ─► Quarantined ── ended ──┘
//! ```
//!
//! | phase | who holds the slots | how it ends |
//! |---|---|---|
//! | `Reserved` | the transaction of a request, before its pages are in the tree | bound, rolled back |
//! | `Pending` | the nodes of the tree that the pages became | committed, rolled back |
//! | `Draining` | nobody; copies may still write the slots and read the pages | gone, quarantined |
//! | `Quarantined` | nobody; a copy is not known to end | gone |
//! | `Committed` | the nodes of the tree, visibly | - |
//! | `Gone` | free | - |
//!
//! Where what the next arrow waits for has come already, a step goes along several at once:
//!
//! | at once | when |
//! |---|---|
//! | `Reserved` to `Committed` | it is bound after its copies have landed |
//! | `Reserved` to `Gone` | it is rolled back after they have landed, or the failure and the end come together |
//! | `Pending` to `Gone` | the same, while it waits for its parent |
//! | `Reserved` to `Quarantined` | the failure and the silence of a copy come together |
//! | `Pending` to `Quarantined` | the same |
//!
//! The manager does what the [`Effects`] say. The same function is what the model checker explores.

use crate::agreement::Ruling;
use crate::digest::Digest;

/// Where a backup is in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Slots are set aside; the pages are not in the tree yet.
    Reserved,
    /// The pages are in the tree, their host copy is not visible yet.
    Pending,
    /// The host copy is visible. Over.
    Committed,
    /// Rolled back; slots and pages are not free before every copy has ended.
    Draining(Reason),
    /// Rolled back, and a copy is not known to end.
    Quarantined(Reason),
    /// Rolled back, and everything is free. Over.
    Gone(Reason),
}

/// Why a backup was rolled back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// The insertion did not bring the pages that slots were reserved for.
    InsertMiss,
    /// The request was aborted.
    Aborted,
    /// The request was retracted, to run again later.
    Retracted,
    /// A copy failed, or did not land before its deadline.
    CopyFailed,
    /// The forward of the target did not run.
    TargetMissing,
    /// The forward of the draft did not run.
    DraftMissing,
    /// The host copy of the pages in front was rolled back and could not be made up for.
    ParentLost,
    /// The cache was flushed.
    Flushed,
    /// A restore of pages in front has failed.
    RestoreFailed,
}

impl Reason {
    /// Every reason with its name.
    pub const ALL: [(&'static str, Self); 9] = [
        ("insert_miss", Self::InsertMiss),
        ("aborted", Self::Aborted),
        ("retracted", Self::Retracted),
        ("copy_failed", Self::CopyFailed),
        ("target_missing", Self::TargetMissing),
        ("draft_missing", Self::DraftMissing),
        ("parent_lost", Self::ParentLost),
        ("flushed", Self::Flushed),
        ("restore_failed", Self::RestoreFailed),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The replicated state of one backup.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct State {
    /// Where it is.
    pub phase: Phase,
    /// Every copy has landed on every rank.
    pub has_landed: bool,
    /// A backup of pages in front of these has to be committed first.
    pub waits_for_parent: bool,
}

impl State {
    /// A backup whose slots were reserved before the forward.
    #[must_use]
    pub fn reserved(waits_for_parent: bool) -> Self {
        Self { phase: Phase::Reserved, has_landed: false, waits_for_parent }
    }

    /// A backup of pages that are in the tree already.
    #[must_use]
    pub fn late(waits_for_parent: bool) -> Self {
        Self { phase: Phase::Pending, ..Self::reserved(waits_for_parent) }
    }

    pub(crate) fn add_to_digest(self, digest: &mut Digest) {
        let (phase, reason) = match self.phase {
            Phase::Reserved => (0, None),
            Phase::Pending => (1, None),
            Phase::Committed => (2, None),
            Phase::Draining(reason) => (3, Some(reason)),
            Phase::Quarantined(reason) => (4, Some(reason)),
            Phase::Gone(reason) => (5, Some(reason)),
        };
        digest.add(phase);
        digest.add_id(reason.map(|reason| reason as u32));
        digest.add(u64::from(self.has_landed) << 1 | u64::from(self.waits_for_parent));
    }

    /// Whether it still owns anything.
    #[must_use]
    pub fn is_open(self) -> bool {
        !matches!(self.phase, Phase::Committed | Phase::Gone(_))
    }

    /// Whether it may still be committed.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self.phase, Phase::Reserved | Phase::Pending)
    }
}

/// What happens to a backup, in the same order on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Event {
    /// Its pages were inserted into the tree.
    Bound,
    /// A backup of pages in front of these was found that has to be committed first.
    ParentFound,
    /// What it waited for has been committed, or there is nothing any more to wait for.
    ParentSettled,
    /// It is given up.
    RolledBack(Reason),
    /// The ranks agree on what has become of its copies.
    Ruled(Ruling),
}

/// What has to be done about a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects {
    /// Make the host copy visible and let everything go.
    pub commit: bool,
    /// Take it back from the tree; its slots and pages are not free yet.
    pub roll_back: Option<Reason>,
    /// Its slots and pages cannot be counted on any more.
    pub quarantine: bool,
    /// Its slots and pages are free.
    pub release: bool,
}

/// The state after `event`, and what has to be done about it.
#[must_use]
pub fn step(mut state: State, event: Event) -> (State, Effects) {
    let mut effects = Effects::default();
    match (state.phase, event) {
        (Phase::Reserved, Event::Bound) => state.phase = Phase::Pending,
        (Phase::Reserved | Phase::Pending, Event::ParentFound) => state.waits_for_parent = true,
        (Phase::Reserved | Phase::Pending, Event::ParentSettled) => state.waits_for_parent = false,
        (Phase::Reserved | Phase::Pending, Event::RolledBack(reason)) => {
            effects.roll_back = Some(reason);
            // What has landed does not have to be waited for.
            effects.release = state.has_landed;
            state.phase = if state.has_landed { Phase::Gone(reason) } else { Phase::Draining(reason) };
        }
        (Phase::Reserved | Phase::Pending, Event::Ruled(Ruling::Landed)) => state.has_landed = true,
        (Phase::Reserved | Phase::Pending, Event::Ruled(ruling)) => {
            let reason = Reason::CopyFailed;
            effects.roll_back = Some(reason);
            (state.phase, effects.quarantine, effects.release) = match ruling {
                Ruling::Drained => (Phase::Gone(reason), false, true),
                Ruling::Quarantined => (Phase::Quarantined(reason), true, false),
                Ruling::Failed | Ruling::Landed => (Phase::Draining(reason), false, false),
            };
        }
        (Phase::Draining(reason), Event::Ruled(Ruling::Quarantined)) => {
            effects.quarantine = true;
            state.phase = Phase::Quarantined(reason);
        }
        // A verdict that was on its way when the backup was rolled back says that the copies ended.
        (Phase::Draining(reason) | Phase::Quarantined(reason), Event::Ruled(Ruling::Landed | Ruling::Drained)) => {
            effects.release = true;
            state.phase = Phase::Gone(reason);
        }
        // What is over, or given up already, is not changed by what comes late.
        _ => {}
    }
    if state.phase == Phase::Pending && state.has_landed && !state.waits_for_parent {
        effects.commit = true;
        state.phase = Phase::Committed;
    }
    (state, effects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(state: State, events: &[Event]) -> (State, Vec<Effects>) {
        let mut effects = Vec::new();
        let end = events.iter().fold(state, |state, &event| {
            let (next, effect) = step(state, event);
            effects.push(effect);
            next
        });
        (end, effects)
    }

    const LANDED: Event = Event::Ruled(Ruling::Landed);

    #[test]
    fn a_commit_takes_bind_landing_and_parent_in_any_order() {
        let all = [Event::Bound, LANDED, Event::ParentSettled];
        for (a, b, c) in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)] {
            let (state, effects) = run(State::reserved(true), &[all[a], all[b], all[c]]);
            assert_eq!(state.phase, Phase::Committed);
            assert_eq!(effects.iter().map(|effect| effect.commit).collect::<Vec<_>>(), [false, false, true]);
        }
    }

    #[test]
    fn slots_are_free_once_after_every_rollback() {
        let reason = Reason::Aborted;
        for before in [&[][..], &[Event::Bound], &[LANDED], &[Event::Bound, Event::ParentSettled]] {
            for after in [Ruling::Landed, Ruling::Drained] {
                let (state, _) = run(State::reserved(true), before);
                let events = [Event::RolledBack(reason), Event::Ruled(after), Event::Ruled(after), Event::Bound];
                let (state, effects) = run(state, &events);
                assert_eq!(state.phase, Phase::Gone(reason));
                assert_eq!(effects.iter().filter(|effect| effect.release).count(), 1);
                assert_eq!(effects.iter().filter(|effect| effect.roll_back.is_some()).count(), 1);
                assert!(effects.iter().all(|effect| !effect.commit));
            }
        }
    }

    #[test]
    fn what_is_committed_stays_so() {
        let (committed, _) = run(State::late(false), &[LANDED]);
        for event in [Event::Bound, Event::RolledBack(Reason::Flushed), Event::Ruled(Ruling::Failed), LANDED] {
            assert_eq!(step(committed, event), (committed, Effects::default()));
        }
    }

    #[test]
    fn quarantine_ends_when_the_copies_do() {
        let quarantined = Event::Ruled(Ruling::Quarantined);
        let (state, effects) = run(State::late(false), &[Event::Ruled(Ruling::Failed), quarantined]);
        assert_eq!(state.phase, Phase::Quarantined(Reason::CopyFailed));
        assert!(effects[1].quarantine && !effects[1].release);
        let (state, effects) = step(state, Event::Ruled(Ruling::Drained));
        assert!(effects.release && !state.is_open());
    }

    #[test]
    fn reasons_are_in_the_order_of_their_names() {
        for (index, (name, reason)) in Reason::ALL.into_iter().enumerate() {
            assert_eq!((reason as usize, reason.name()), (index, name));
        }
    }
}
