//! What holds always, and what is met sometimes.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;
use stateright::{Model, Property};

use super::Setup;
use super::rank::{Backup, Broken, Copied, Rank, id};
use super::world::World;
use crate::agreement::Ruling;
use crate::operations::machine::{Phase, Reason};

/// I3, visibility: a host page can be found only if every copy of it has landed, target and draft, on all ranks.
pub(super) const VISIBLE: &str = "what is committed has landed on all ranks";
/// I3, visibility: that has to have been seen, and no clock stands for it.
pub(super) const SILENCE: &str = "silence is no landing";
/// I3, visibility: nothing is shown that the tree does not have.
pub(super) const BOUND: &str = "what is committed is in the tree";
/// I3, visibility, for what hangs together: no page is shown before those in front of it.
pub(super) const PARENT_FIRST: &str = "parents are committed first";
/// I4, lifetime: neither slot nor page is used again while a copy of some rank writes or reads it.
pub(super) const IN_FLIGHT: &str = "no slot is let go under a copy";
/// I1 and I2, conservation of device pages and host slots: each effect is asked for once.
pub(super) const ONCE: &str = "a backup is committed or rolled back and released, and once";
/// I1 and I2, conservation: slots that are free, held and shown are all there are, and as many are held, and pages
/// used by copies, as operations are open.
pub(super) const CONSERVED: &str = "what is free and what is held is all there is";
/// I7, balance of locks: an operation has its lock on the tree until it has ended, and not longer.
pub(super) const LOCKS: &str = "there is a lock for each operation that is in the tree and open";
/// I1, I2 and I7: nothing that comes late changes what was given back.
pub(super) const OVER: &str = "what is over stays over";
/// I10, agreement, and I4: a verdict is about the life of a name that it was made for.
pub(super) const CAUSE: &str = "what has failed had a cause";
/// I10, agreement: the same states and the same effects after the same steps.
pub(super) const AGREEMENT: &str = "ranks that have done the same know the same";
/// Nothing is left half done, nor waited for without end, also when a rank has died.
pub(super) const ENDS: &str = "everything ends";

/// The name of the one property under which the checker looks for all that happens sometimes: it
/// looks the name of each property up with every state, which for 25 takes longer than the rest.
const MET: &str = "everything is met that can be";

/// Something that is to be met in some state.
pub(super) struct Sometimes {
    pub(super) name: &'static str,
    condition: fn(&Setup, &World) -> bool,
}

impl Setup {
    /// The bit of each of [`SOMETIMES`] that is not among `lacks`.
    pub(super) fn wanted(&self) -> u32 {
        let is_wanted = |it: &Sometimes| {
            let is_possible = |what: &str, is: bool| is || !it.name.contains(what);
            let is_here = is_possible("restore", self.restores > 0) && is_possible("donor", self.has_room);
            is_here && !self.lacks.contains(&it.name)
        };
        let bits = SOMETIMES.iter().enumerate().filter(|(_, it)| is_wanted(it));
        bits.map(|(bit, _)| 1 << bit).sum()
    }

    /// The names of what was to be met and was not.
    pub(super) fn unmet(&self) -> Vec<&'static str> {
        let left = self.wanted() & !self.met.load(Relaxed);
        SOMETIMES.iter().enumerate().filter(|(bit, _)| left & 1 << bit != 0).map(|(_, it)| it.name).collect()
    }

    /// Notes what is met for the first time; whether that was the last of it.
    pub(super) fn meet(&self, world: &World) -> bool {
        let met = self.met.load(Relaxed);
        if met.count_ones() as usize == SOMETIMES.len() {
            return false;
        }
        let unmet = SOMETIMES.iter().enumerate().filter(|(bit, _)| met & 1 << bit == 0);
        let new: u32 = unmet.filter(|(_, it)| (it.condition)(self, world)).map(|(bit, _)| 1 << bit).sum();
        new != 0 && self.met.fetch_or(new, Relaxed) & new != new && self.unmet().is_empty()
    }
}

pub(super) fn all() -> Vec<Property<Setup>> {
    let mut all = always();
    all.push(Property::sometimes(MET, Setup::meet));
    all
}

fn always() -> Vec<Property<Setup>> {
    vec![
        Property::always(VISIBLE, |_, world: &World| world.broken != Some(Broken::Unseen)),
        Property::always(SILENCE, |_, world: &World| world.broken != Some(Broken::Silence)),
        Property::always(BOUND, |_, world: &World| world.broken != Some(Broken::Unbound)),
        Property::always(IN_FLIGHT, |_, world: &World| world.broken != Some(Broken::InFlight)),
        Property::always(ONCE, |_, world: &World| world.broken != Some(Broken::Twice)),
        Property::always(CONSERVED, |setup: &Setup, world: &World| {
            world.living().all(|rank| is_conserved(setup, rank))
        }),
        Property::always(LOCKS, |_, world: &World| world.living().all(are_locks_balanced)),
        Property::always(PARENT_FIRST, |_, world: &World| world.broken != Some(Broken::ParentLast)),
        Property::always(OVER, |_, world: &World| world.broken != Some(Broken::Undone)),
        Property::always(CAUSE, |_, world: &World| world.broken != Some(Broken::Causeless)),
        Property::always(AGREEMENT, |_, world: &World| ranks_agree(world)),
        Property::always(ENDS, |setup: &Setup, world: &World| !is_terminal(setup, world) || has_ended_well(world)),
    ]
}

/// All that is to be met, each in some world; what has a restore in its name, where there are restores.
pub(super) const SOMETIMES: [Sometimes; 30] = [
    Sometimes { name: "reserved", condition: |_, world| any(world, |_, it| it.state.phase == Phase::Reserved) },
    Sometimes { name: "pending", condition: |_, world| any(world, |_, it| it.state.phase == Phase::Pending) },
    Sometimes { name: "committed", condition: |_, world| any(world, |_, it| it.state.phase == Phase::Committed) },
    Sometimes {
        name: "draining",
        condition: |_, world| any(world, |_, it| matches!(it.state.phase, Phase::Draining(_))),
    },
    Sometimes { name: "quarantined", condition: |_, world| any(world, |_, it| is_quarantined(it)) },
    Sometimes { name: "gone", condition: |_, world| any(world, |_, it| matches!(it.state.phase, Phase::Gone(_))) },
    Sometimes { name: "insert miss", condition: |_, world| is_met(world, Reason::InsertMiss) },
    Sometimes { name: "aborted", condition: |_, world| is_met(world, Reason::Aborted) },
    Sometimes { name: "retracted", condition: |_, world| is_met(world, Reason::Retracted) },
    Sometimes { name: "copy failed", condition: |_, world| is_met(world, Reason::CopyFailed) },
    Sometimes { name: "target missing", condition: |_, world| is_met(world, Reason::TargetMissing) },
    Sometimes { name: "draft missing", condition: |_, world| is_met(world, Reason::DraftMissing) },
    Sometimes { name: "parent lost", condition: |_, world| is_met(world, Reason::ParentLost) },
    Sometimes { name: "flushed", condition: |_, world| is_met(world, Reason::Flushed) },
    Sometimes {
        name: "landed before it is bound",
        condition: |_, world| any(world, |_, it| it.state.phase == Phase::Reserved && it.state.has_landed),
    },
    Sometimes {
        name: "bound before it has landed",
        condition: |_, world| any(world, |_, it| it.state.phase == Phase::Pending && !it.state.has_landed),
    },
    Sometimes {
        name: "landed after a rollback",
        condition: |_, world| {
            is_coming(
                world,
                Ruling::Landed,
                |it| matches!(it.state.phase, Phase::Draining(reason) if reason != Reason::CopyFailed),
            )
        },
    },
    Sometimes {
        name: "waits for nothing but its parent",
        condition: |_, world| {
            any(world, |_, it| it.state.phase == Phase::Pending && it.state.has_landed && it.state.waits_for_parent)
        },
    },
    Sometimes { name: "quarantine ends", condition: |_, world| is_coming(world, Ruling::Drained, is_quarantined) },
    Sometimes {
        name: "ranks one step apart",
        condition: |_, world| world.living().any(|a| world.living().any(|b| a.steps == b.steps + 1)),
    },
    Sometimes {
        name: "rolled back with a copy not yet submitted",
        condition: |_, world| {
            any(world, |_, it| it.done.rolled_back && it.is_open() && it.copies == <[_; 2]>::default())
        },
    },
    Sometimes {
        name: "restore landed on this rank, and a backup behind it as well",
        condition: |_, world| {
            let copied = |it: &Backup| it.copies.contains(&Copied::Landed) && !it.is_flying();
            world.living().any(|rank| {
                let (mut restores, mut backups) = (false, false);
                for it in rank.backups.iter().filter(|it| it.is_alive() && copied(it)) {
                    restores |= it.is_restore;
                    backups |= !it.is_restore;
                }
                restores && backups
            })
        },
    },
    Sometimes {
        name: "late for a lost donor, and committed",
        condition: |_, world| any(world, |_, it| it.is_late && it.done.committed),
    },
    Sometimes {
        name: "late for a lost donor, which something waits for",
        condition: |_, world| {
            let is_waiting = |it: &Backup| it.is_alive() && it.state.waits_for_parent && it.state.has_landed;
            let is_late = |it: &Backup| it.is_late && it.is_alive();
            world.living().any(|rank| rank.backups.iter().any(is_late) && rank.backups.iter().any(is_waiting))
        },
    },
    Sometimes { name: "behind a failed restore", condition: |_, world| is_met(world, Reason::RestoreFailed) },
    Sometimes {
        name: "restore over before what is behind it",
        condition: |_, world| {
            world.living().any(|rank| {
                let is_over = rank.backups.iter().any(|it| it.is_restore && it.done.committed);
                is_over && rank.backups.iter().any(|it| !it.is_restore && it.is_alive())
            })
        },
    },
    Sometimes {
        name: "ends committed",
        condition: |setup, world| {
            is_terminal(setup, world) && world.living().all(|rank| rank.backups.iter().all(|it| it.done.committed))
        },
    },
    Sometimes {
        name: "ends gone",
        condition: |setup, world| {
            is_terminal(setup, world) && any(world, |_, it| matches!(it.state.phase, Phase::Gone(_)))
        },
    },
    Sometimes {
        name: "ends quarantined",
        condition: |setup, world| is_terminal(setup, world) && any(world, |_, it| is_quarantined(it)),
    },
    Sometimes {
        name: "ends with a rank dead",
        condition: |setup, world| is_terminal(setup, world) && world.ranks.iter().any(|rank| rank.is_dead),
    },
];

fn any(world: &World, condition: impl Fn(&Rank, &Backup) -> bool) -> bool {
    world.living().any(|rank| rank.backups.iter().any(|backup| condition(rank, backup)))
}

fn is_met(world: &World, wanted: Reason) -> bool {
    any(world, |_, it| match it.state.phase {
        Phase::Draining(reason) | Phase::Quarantined(reason) | Phase::Gone(reason) => reason == wanted,
        _ => false,
    })
}

fn is_quarantined(backup: &Backup) -> bool {
    matches!(backup.state.phase, Phase::Quarantined(_))
}

/// Whether a rank is about to apply a ruling to such a backup.
fn is_coming(world: &World, ruling: Ruling, condition: fn(&Backup) -> bool) -> bool {
    world.living().any(|rank| {
        world.entry_for(rank).into_iter().flatten().any(|verdict| {
            let mut named = rank.backups.iter().enumerate().filter(|&(index, _)| id(index) == verdict.operation);
            verdict.ruling == ruling && named.any(|(_, backup)| condition(backup))
        })
    })
}

fn ranks_agree(world: &World) -> bool {
    let mut living = world.living();
    while let Some(a) = living.next() {
        let same = |b: &Rank| {
            a.backups
                .iter()
                .zip(&b.backups)
                .all(|(a, b)| (a.state, a.done, a.makes_up_for) == (b.state, b.done, b.makes_up_for))
        };
        if living.clone().any(|b| a.steps == b.steps && !same(b)) {
            return false;
        }
    }
    true
}

/// Whether nothing can happen any more.
fn is_terminal(setup: &Setup, world: &World) -> bool {
    let is_plain = world.broken.is_none() && world.turn.is_none() && world.script.is_empty();
    if !is_plain {
        return world.broken.is_some();
    }
    let mut actions = Vec::new();
    setup.actions(world, &mut actions);
    actions.is_empty()
}

/// Whether the slots, and the pages that copies use, are as many as they should be on a rank.
fn is_conserved(setup: &Setup, rank: &Rank) -> bool {
    let ledger = &rank.ledger;
    let (mut open, mut open_backups) = (0, 0);
    for it in rank.backups.iter().filter(|it| it.is_open()) {
        open += 1;
        open_backups += i8::from(!it.is_restore);
    }
    let slots = ledger.free_slots + ledger.held_slots + ledger.shown_slots;
    let has_all = usize::try_from(slots) == Ok(setup.backups - setup.restores);
    has_all && ledger.free_slots >= 0 && (ledger.held_slots, ledger.uses) == (open_backups, open)
}

fn are_locks_balanced(rank: &Rank) -> bool {
    let in_tree = |it: &&Backup| it.is_open() && (it.is_alive() || it.done.bound);
    usize::try_from(rank.ledger.locks) == Ok(rank.backups.iter().filter(in_tree).count())
}

/// Whether a terminal state is one to end in. Where a rank has died the others may be left with what they cannot
/// agree on without it, whole and held, and with nothing else.
fn has_ended_well(world: &World) -> bool {
    // What is broken is found by the property that it breaks.
    world.broken.is_some() || (is_tallied(world) && world.living().all(|rank| have_ended(world, rank)))
}

fn have_ended(world: &World, rank: &Rank) -> bool {
    rank.backups.iter().enumerate().filter(|(_, it)| !it.is_dormant()).all(|(index, it)| {
        let done = (it.done.committed, it.done.rolled_back, it.done.released);
        match it.state.phase {
            Phase::Committed => done == (true, false, false),
            Phase::Gone(_) => done == (false, true, true),
            Phase::Quarantined(_) => done == (false, true, false),
            Phase::Draining(_) => done == (false, true, false) && lacks_a_rank(world, rank, index),
            Phase::Reserved | Phase::Pending => done == <_>::default() && lacks_a_rank(world, rank, index),
        }
    })
}

/// Whether a rank has died that would have had to say more of a backup, or of one in front that it waits for.
fn lacks_a_rank(world: &World, rank: &Rank, index: usize) -> bool {
    let places: SmallVec<[usize; 4]> = rank.places_from(&world.family, index).collect();
    let is_meant = |&other: &usize| rank.backups[other].is_open() && places.contains(&rank.place(other));
    let mut open = (0..rank.backups.len()).filter(is_meant);
    let is_missing = |place: usize| world.ranks.iter().any(|it| it.is_dead && !it.backups[place].local.has_ended());
    world.ranks[0].is_dead || open.any(is_missing)
}

/// Whether rank 0 keeps count of exactly what is open, whatever was reported twice or of an earlier life.
fn is_tallied(world: &World) -> bool {
    let zero = &world.ranks[0];
    // What has landed may still wait for what is in front of it.
    let is_counted = |it: &&Backup| it.is_open() && !it.state.has_landed;
    zero.is_dead || world.tally.len() == zero.backups.iter().filter(is_counted).count()
}
