//! What holds always, and what is met sometimes.

use std::sync::atomic::Ordering::Relaxed;

use stateright::{Model, Property};

use super::Setup;
use super::rank::{Backup, Broken, Copied, Rank, id};
use super::world::World;
use crate::agreement::Ruling;
use crate::operations::machine::{Phase, Reason};

pub(super) const VISIBLE: &str = "what is committed has landed on all ranks";
pub(super) const SILENCE: &str = "silence is no landing";
pub(super) const BOUND: &str = "what is committed is in the tree";
pub(super) const IN_FLIGHT: &str = "no slot is let go under a copy";
pub(super) const ONCE: &str = "a backup is committed or rolled back and released, and once";
pub(super) const PARENT_FIRST: &str = "parents are committed first";
pub(super) const OVER: &str = "what is over stays over";
pub(super) const CAUSE: &str = "what has failed had a cause";
pub(super) const AGREEMENT: &str = "ranks that have done the same know the same";
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
        let is_wanted =
            |it: &Sometimes| !self.lacks.contains(&it.name) && (self.restores > 0 || !it.name.contains("restore"));
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
        Property::always(PARENT_FIRST, |_, world: &World| world.broken != Some(Broken::ParentLast)),
        Property::always(OVER, |_, world: &World| world.broken != Some(Broken::Undone)),
        Property::always(CAUSE, |_, world: &World| world.broken != Some(Broken::Causeless)),
        Property::always(AGREEMENT, |_, world: &World| ranks_agree(world)),
        Property::always(ENDS, |setup: &Setup, world: &World| {
            !is_terminal(setup, world) || has_ended_well(setup, world)
        }),
    ]
}

/// All that is to be met, each in some world; what has a restore in its name, where there are restores.
pub(super) const SOMETIMES: [Sometimes; 28] = [
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
            any(world, |_, it| it.done.rolled_back && it.state.is_open() && it.copies == <[_; 2]>::default())
        },
    },
    Sometimes {
        name: "restore landed on this rank, and a backup behind it as well",
        condition: |_, world| {
            let copied = |it: &Backup| it.copies.contains(&Copied::Landed) && !it.is_flying();
            world.living().any(|rank| {
                let (mut restores, mut backups) = (false, false);
                for it in rank.backups.iter().filter(|it| it.state.is_alive() && copied(it)) {
                    restores |= it.is_restore;
                    backups |= !it.is_restore;
                }
                restores && backups
            })
        },
    },
    Sometimes { name: "behind a failed restore", condition: |_, world| is_met(world, Reason::RestoreFailed) },
    Sometimes {
        name: "restore over before what is behind it",
        condition: |_, world| {
            world.living().any(|rank| {
                let is_over = rank.backups.iter().any(|it| it.is_restore && it.done.committed);
                is_over && rank.backups.iter().any(|it| !it.is_restore && it.state.is_alive())
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
        let same = |b: &Rank| a.backups.iter().zip(&b.backups).all(|(a, b)| a.state == b.state && a.done == b.done);
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

fn has_ended_well(setup: &Setup, world: &World) -> bool {
    if world.broken.is_some() || world.ranks.iter().any(|rank| rank.is_dead) {
        return true;
    }
    let backups = || world.ranks.iter().flat_map(|rank| &rank.backups);
    let is_good = |it: &Backup| match it.state.phase {
        Phase::Committed => it.done.committed && !it.done.rolled_back && !it.done.released,
        Phase::Gone(_) => it.done.rolled_back && it.done.released && !it.done.committed,
        Phase::Quarantined(_) => it.done.rolled_back && !it.done.released && !it.done.committed,
        _ => false,
    };
    // A report that comes twice may be counted for good.
    let open = world.ranks[0].backups.iter().filter(|it| it.state.is_open()).count();
    backups().all(is_good) && (setup.faults.strays > 0 || world.tally.len() == open)
}
