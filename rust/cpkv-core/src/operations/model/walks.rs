//! Larger worlds, walked through at random from fixed seeds.

use stateright::{Expectation, Model};

use super::Setup;
use super::actions::{Action, TreeOperation};
use super::faults::Faults;

/// More than any history can have.
const LONGEST: usize = 10_000;

/// The generator `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }
}

/// What would end or cripple most walks early if it were as likely as the rest.
fn is_rare(action: Action) -> bool {
    matches!(
        action,
        Action::Die(_)
            | Action::LoseAck { .. }
            | Action::Fail { .. }
            | Action::Wait { is_early: true, .. }
            | Action::Repeat { .. }
            | Action::Stale { .. }
            | Action::Tick { operation: TreeOperation::GiveUp(..) | TreeOperation::Flush, .. }
    )
}

/// Walks, says how far, and wants `floor` steps of each history: four fifths of what was counted when it was set.
#[track_caller]
#[expect(clippy::print_stderr, reason = "the counts are what a long run is asked for")]
fn explore(setup: &Setup, seed: u64, walks: usize, floor: usize) {
    let size = setup.size();
    let steps = walk(setup, seed, walks);
    eprintln!("{size}: {walks} walks, {steps} steps, {} of each", steps / walks);
    assert!(steps >= floor * walks, "{size}: {steps} steps, want {floor} a walk");
}

/// Walks to the end of `walks` histories. Returns the steps that were taken.
fn walk(setup: &Setup, seed: u64, walks: usize) -> usize {
    let properties = setup.properties();
    let always: Vec<_> = properties.iter().filter(|check| check.expectation == Expectation::Always).collect();
    let starts = setup.init_states();
    let mut random = Random(seed);
    let mut steps = 0;
    for number in 0..walks {
        let mut world = starts[random.below(starts.len())].clone();
        let mut history = Vec::new();
        loop {
            for check in &always {
                let name = check.name;
                assert!(
                    (check.condition)(setup, &world),
                    "seed {seed}, walk {number}: not so: {name}\n{:?}\n{history:?}",
                    world.family
                );
            }
            setup.meet(&world);
            let mut actions = Vec::new();
            setup.actions(&world, &mut actions);
            if actions.is_empty() {
                break;
            }
            let mut action = actions[random.below(actions.len())];
            while is_rare(action) && random.below(16) > 0 {
                action = actions[random.below(actions.len())];
            }
            world = setup.next_state(&world, action).expect("it was offered");
            history.push(action);
            assert!(history.len() < LONGEST, "seed {seed}, walk {number} does not end");
        }
        steps += history.len();
    }
    let unmet = setup.unmet();
    assert!(unmet.is_empty(), "seed {seed}: never met: {unmet:?}");
    steps
}

fn setup(ranks: usize, backups: usize, ring: u8) -> Setup {
    let faults =
        Faults { give_ups: 2, flushes: 1, failures: 2, losses: 2, delays: 2, deaths: 1, strays: 3, together: 4 };
    Setup { ring, ..Setup::new(ranks, backups, faults) }
}

/// What takes longer to come upon in a world of many ranks than a test may take.
const RARE: [&str; 4] =
    ["landed before it is bound", "waits for nothing but its parent", "quarantine ends", "ends committed"];

#[test]
fn walks_of_larger_worlds() {
    for (ranks, backups, ring, floor) in [(3, 3, 2, 45), (4, 4, 3, 80), (8, 3, 4, 134)] {
        let lacks: &[_] = if ranks > 3 { &RARE } else { &[] };
        explore(&Setup { lacks, ..setup(ranks, backups, ring) }, 1, 3_000, floor);
    }
}

/// Rare, and what only a backup that is one of the first two is given up for.
const RARE_WITH_RESTORES: [&str; 7] = [
    "landed before it is bound",
    "waits for nothing but its parent",
    "quarantine ends",
    "ends committed",
    "insert miss",
    "target missing",
    "draft missing",
];

#[test]
fn walks_of_larger_worlds_with_restores() {
    for (ranks, backups, restores, floor) in [(2, 4, 2, 36), (3, 4, 1, 58), (4, 5, 2, 94)] {
        explore(&Setup { lacks: &RARE_WITH_RESTORES, restores, ..setup(ranks, backups, 3) }, 3, 3_000, floor);
    }
}

#[test]
#[ignore = "minutes: make prove"]
fn prove_walks() {
    let sizes = [(2, 6, 4, 50_000, 53), (4, 4, 3, 50_000, 80), (8, 4, 4, 20_000, 168), (16, 8, 8, 2_000, 628)];
    for (ranks, backups, ring, walks, floor) in sizes {
        let lacks: &[_] = if ranks > 3 { &RARE } else { &[] };
        explore(&Setup { lacks, ..setup(ranks, backups, ring) }, 2, walks, floor);
    }
}

#[test]
#[ignore = "minutes: make prove"]
fn prove_walks_with_restores() {
    for (ranks, backups, restores, walks, floor) in
        [(2, 6, 2, 50_000, 51), (4, 6, 3, 20_000, 108), (8, 5, 2, 10_000, 198)]
    {
        let lacks = &RARE_WITH_RESTORES;
        explore(&Setup { restores, lacks, ..setup(ranks, backups, 4) }, 4, walks, floor);
    }
}
