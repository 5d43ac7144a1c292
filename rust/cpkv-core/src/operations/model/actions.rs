//! What may happen next.

use stateright::{Model, Property};

use super::rank::{Family, Rank, STREAMS};
use super::world::World;
use super::{Parents, Setup, checks};
use crate::operations::machine::{Phase, Reason};

/// What all ranks do to the tree in one step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum TreeOperation {
    Nothing,
    Bind(u8),
    GiveUp(u8, Reason),
    Flush,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// The next copy is submitted; with the last of a backup its submission ends.
    Submit(u8),
    /// The next copy lands, and the ack word says so.
    Land {
        rank: u8,
        stream: u8,
    },
    /// The next copy lands, but the word stays behind.
    LoseAck {
        rank: u8,
        stream: u8,
    },
    /// The next copy ends without having landed.
    Fail {
        rank: u8,
        stream: u8,
    },
    /// A deadline passes, `is_early` if the copy is still going to land.
    Wait {
        rank: u8,
        is_early: bool,
    },
    /// The last report is published again.
    Repeat {
        rank: u8,
        backup: u8,
    },
    /// A failure of an earlier backup of that place is published.
    Stale {
        rank: u8,
        backup: u8,
    },
    Die(u8),
    Tick {
        rank: u8,
        operation: TreeOperation,
    },
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("a few")
}

/// Why a backup may be given up. The reason changes nothing, so that one here and there is enough.
fn reasons(phase: Phase, index: usize) -> &'static [Reason] {
    match (phase, index) {
        (Phase::Reserved, 0) => &[Reason::InsertMiss, Reason::TargetMissing],
        (Phase::Reserved, 1) => &[Reason::Retracted, Reason::DraftMissing],
        (_, 0) => &[Reason::Aborted],
        _ => &[Reason::Retracted],
    }
}

impl Setup {
    /// What a rank may do before its tick.
    fn preparations(&self, world: &World, number: usize, actions: &mut Vec<Action>) {
        let rank = small(number);
        let it = &world.ranks[number];
        let is_submitted = world.next_submission(self, number).is_none();
        if !is_submitted {
            actions.push(Action::Submit(rank));
        }
        let mut is_flying = false;
        for stream in (0..2 * STREAMS).filter(|&stream| world.next_landing(number, stream).is_some()).map(small) {
            is_flying = true;
            actions.push(Action::Land { rank, stream });
            if world.faults.has(|faults| &mut faults.losses) {
                actions.push(Action::LoseAck { rank, stream });
            }
            if world.faults.has(|faults| &mut faults.failures) {
                actions.push(Action::Fail { rank, stream });
            }
        }
        // Time has passed at no cost if nothing can come any more.
        let is_silent = is_submitted && !is_flying;
        if (is_silent || world.faults.may_delay(it.now_ns)) && it.waits_for_deadline(self) {
            actions.push(Action::Wait { rank, is_early: !is_silent });
        }
        if world.faults.has(|faults| &mut faults.strays) {
            let said = it.backups.iter().enumerate().filter(|(_, backup)| backup.said.is_some());
            actions.extend(said.map(|(index, _)| Action::Repeat { rank, backup: small(index) }));
            // An earlier life is known to have been, and to be over, once there is a later one.
            let named = (0..self.backups).filter(|&index| !it.backups[index].is_dormant());
            actions.extend(named.map(|index| Action::Stale { rank, backup: small(index) }));
        }
    }

    /// The ticks that a rank may do.
    fn ticks(&self, world: &World, number: usize, actions: &mut Vec<Action>) {
        let rank = small(number);
        let it = &world.ranks[number];
        if let Some(&operation) = world.script.get(usize::from(it.steps)) {
            actions.push(Action::Tick { rank, operation });
            return;
        }
        if world.turn.is_some() || self.would_change(world, number) {
            actions.push(Action::Tick { rank, operation: TreeOperation::Nothing });
        }
        for (index, backup) in it.backups.iter().enumerate() {
            let phase = backup.state.phase;
            let mut push = |operation| actions.push(Action::Tick { rank, operation });
            let index = small(index);
            if phase == Phase::Reserved {
                push(TreeOperation::Bind(index));
            }
            if world.faults.give_ups > 0 && backup.is_alive() {
                let reasons = reasons(phase, usize::from(index));
                for &reason in reasons {
                    push(TreeOperation::GiveUp(index, reason));
                }
            }
        }
        if world.faults.flushes > 0 && it.backups.iter().any(|backup| backup.is_alive() && !backup.is_restore) {
            actions.push(Action::Tick { rank, operation: TreeOperation::Flush });
        }
    }

    /// Whether a tick with no tree operation would change anything.
    fn would_change(&self, world: &World, number: usize) -> bool {
        let it = &world.ranks[number];
        world.entry_for(it).is_some_and(|entry| !entry.is_empty())
            || !it.put_off.is_empty()
            || it.has_facts(self, 0)
            || (number == 0 && world.ranks.iter().any(|rank| !rank.published.is_empty()))
    }

    fn may_tick(&self, world: &World, rank: &Rank) -> bool {
        !rank.is_dead && rank.steps < self.ring && world.entry_for(rank).is_some()
    }
}

impl Model for Setup {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut families = vec![Family::new()];
        for index in 0..self.backups {
            let longer = |family: &Family| {
                let parents: Vec<Option<u8>> = match self.parents {
                    // It takes the place of another.
                    _ if self.has_room && index + 1 == self.backups => vec![None],
                    Parents::Any => std::iter::once(None).chain((0..small(index)).map(Some)).collect(),
                    Parents::Chain => vec![small(index).checked_sub(1)],
                };
                let with = |parent| family.iter().copied().chain([parent]).collect();
                parents.into_iter().map(with).collect::<Vec<Family>>()
            };
            families = families.iter().flat_map(longer).collect();
        }
        families.into_iter().map(|family| World::new(self, family)).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for (number, rank) in world.ranks.iter().enumerate() {
            let is_its_turn = world.turn.is_none_or(|turn| usize::from(turn) == number);
            if is_its_turn && self.may_tick(world, rank) {
                self.preparations(world, number, actions);
                self.ticks(world, number, actions);
            }
            if world.turn.is_none() && !rank.is_dead && world.faults.has(|faults| &mut faults.deaths) {
                actions.push(Action::Die(small(number)));
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        let (gives_up, flushes) = match action {
            // Used up by the first rank that does it.
            Action::Tick { rank, operation }
                if usize::from(world.ranks[usize::from(rank)].steps) == world.script.len() =>
            {
                (matches!(operation, TreeOperation::GiveUp(..)), operation == TreeOperation::Flush)
            }
            _ => (false, false),
        };
        next.faults.give_ups -= u8::from(gives_up);
        next.faults.flushes -= u8::from(flushes);
        next.take(self, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        checks::all()
    }
}
