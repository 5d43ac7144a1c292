//! Worlds that are explored whole.
//!
//! The small ones are explored with every run of the tests, the others by `make prove`, which
//! prints how many states each of them has. Fewer than the floor would mean that the model has
//! lost a part; the floors are four fifths of what was counted when they were set.
//!
//! What a larger world leaves out to stay below some ten minutes is said by its test. `at_once`
//! means that target and draft are submitted together, so that no rollback comes between them;
//! with one stream a backup has one copy on a rank.

use std::time::Instant;

use stateright::{Checker, Model};

use super::faults::Faults;
use super::{Parents, Setup};

/// What takes a fault, a backup given up or a rollback to be met.
const SOUND: [&str; 17] = [
    "draining",
    "quarantined",
    "gone",
    "insert miss",
    "aborted",
    "retracted",
    "copy failed",
    "target missing",
    "draft missing",
    "parent lost",
    "flushed",
    "landed after a rollback",
    "quarantine ends",
    "rolled back with a copy not yet submitted",
    "ends gone",
    "ends quarantined",
    "ends with a rank dead",
];

/// What takes a backup that is given up.
const KEPT: [&str; 6] = ["insert miss", "aborted", "retracted", "target missing", "draft missing", "flushed"];

/// What a single backup cannot come to.
const ALONE: [&str; 4] = ["retracted", "draft missing", "parent lost", "waits for nothing but its parent"];

const ALONE_AND_KEPT: [&str; 9] = [
    "landed after a rollback",
    "insert miss",
    "aborted",
    "retracted",
    "target missing",
    "draft missing",
    "flushed",
    "parent lost",
    "waits for nothing but its parent",
];

/// What takes a fault.
const UNHARMED: [&str; 6] =
    ["flushed", "quarantined", "copy failed", "quarantine ends", "ends quarantined", "ends with a rank dead"];

const GIVEN_UP: Faults = Faults { give_ups: 1, ..Faults::NONE };

fn one_fault() -> Faults {
    Faults { give_ups: 0, flushes: 0, ..Faults::any(1) }
}

/// Explores a world whole, and says how many states it has.
#[track_caller]
#[expect(clippy::print_stderr, reason = "the counts are what a long run is asked for")]
fn explore(setup: Setup, floor: usize) {
    let start = Instant::now();
    let size = setup.size();
    let checker = setup.checker().threads(1).spawn_dfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{size}: {states} states, {steps} steps, depth {depth}, {seconds:.1} s");
    let unmet = checker.model().unmet();
    assert!(unmet.is_empty(), "{size}: never met: {unmet:?}");
    checker.assert_properties();
    assert!(states >= floor, "{size}: {states} states, want {floor} or more");
}

/// A world of one stream and submission at once.
fn plain(ranks: usize, backups: usize, faults: Faults) -> Setup {
    Setup { streams: 1, at_once: true, ..Setup::new(ranks, backups, faults) }
}

#[test]
fn two_ranks_two_backups() {
    explore(Setup { lacks: &SOUND, ..Setup::new(2, 2, Faults::NONE) }, 117_000);
}

#[test]
fn two_ranks_two_backups_given_up() {
    explore(Setup { lacks: &UNHARMED, at_once: true, ..Setup::new(2, 2, GIVEN_UP) }, 390_000);
}

#[test]
fn two_ranks_two_backups_with_one_fault() {
    explore(Setup { lacks: &KEPT, parents: Parents::Chain, ..plain(2, 2, one_fault()) }, 475_000);
}

#[test]
fn two_ranks_one_backup_with_two_faults() {
    explore(Setup { lacks: &ALONE, ..plain(2, 1, Faults::any(2)) }, 262_000);
}

#[test]
fn three_ranks_one_backup_with_one_fault() {
    explore(Setup { lacks: &ALONE_AND_KEPT, ..plain(3, 1, one_fault()) }, 148_000);
}

#[test]
fn three_ranks_two_backups() {
    explore(Setup { lacks: &SOUND, ..plain(3, 2, Faults::NONE) }, 426_000);
}

#[test]
fn two_ranks_three_backups() {
    explore(Setup { lacks: &SOUND, ..plain(2, 3, Faults::NONE) }, 408_000);
}

/// What takes a backup that is the first, or two backups.
const BEHIND_A_RESTORE: [&str; 3] = ["insert miss", "target missing", "parent lost"];

const BEHIND_A_RESTORE_AND_KEPT: [&str; 7] =
    ["insert miss", "aborted", "retracted", "target missing", "draft missing", "parent lost", "flushed"];

const BEHIND_A_RESTORE_UNHARMED: [&str; 9] = [
    "insert miss",
    "target missing",
    "parent lost",
    "flushed",
    "quarantined",
    "copy failed",
    "quarantine ends",
    "ends quarantined",
    "ends with a rank dead",
];

/// Each behind the one before, of which the first are restores. One stream in each direction.
fn restored(ranks: usize, backups: usize, restores: usize, faults: Faults) -> Setup {
    Setup { restores, parents: Parents::Chain, ..plain(ranks, backups, faults) }
}

#[test]
fn two_ranks_a_restore_and_a_backup_with_one_fault() {
    explore(Setup { lacks: &BEHIND_A_RESTORE_AND_KEPT, ..restored(2, 2, 1, one_fault()) }, 349_000);
}

#[test]
fn two_ranks_a_restore_and_a_backup_given_up() {
    explore(Setup { lacks: &BEHIND_A_RESTORE_UNHARMED, ..restored(2, 2, 1, GIVEN_UP) }, 22_700);
}

/// What a world with a late backup cannot come to: the donor is rolled back, or there is none.
const LATE_ONCE: [&str; 8] = [
    "parent lost",
    "flushed",
    "quarantined",
    "copy failed",
    "quarantine ends",
    "ends quarantined",
    "ends with a rank dead",
    "ends committed",
];
const LATE: [&str; 7] = [
    "flushed",
    "quarantined",
    "copy failed",
    "quarantine ends",
    "ends quarantined",
    "ends with a rank dead",
    "ends committed",
];

const LATE_KEPT: [&str; 7] =
    ["flushed", "insert miss", "aborted", "retracted", "target missing", "draft missing", "ends committed"];

/// Each behind the one before; the first that is lost as a donor is made up for.
fn late(faults: Faults) -> Setup {
    Setup { has_room: true, parents: Parents::Chain, ..plain(2, 3, faults) }
}

#[test]
fn two_ranks_two_backups_and_a_late_one() {
    explore(Setup { lacks: &LATE_ONCE, ..late(GIVEN_UP) }, 160_000);
}

/// The late one may be given up as well.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_and_a_late_one_given_up() {
    explore(Setup { lacks: &LATE, ..late(Faults { give_ups: 2, ..Faults::NONE }) }, 1_324_000);
}

/// A fault of any kind, to the donor, to what waits for it or to the late one. No backup is given up.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_and_a_late_one_with_one_fault() {
    explore(Setup { lacks: &LATE_KEPT, ..late(one_fault()) }, 2_394_000);
}

/// The same beside a backup given up.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_and_a_late_one_given_up_with_one_fault() {
    explore(Setup { lacks: &["flushed", "ends committed"], ..late(Faults { give_ups: 1, ..one_fault() }) }, 46_300_000);
}

/// All kinds of faults, one in each history beside one backup given up and one flush. One stream.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_a_restore_and_a_backup_with_any_fault() {
    explore(Setup { lacks: &BEHIND_A_RESTORE, ..restored(2, 2, 1, Faults::any(1)) }, 4_157_000);
}

#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_restores_and_a_backup_with_one_fault() {
    explore(Setup { lacks: &BEHIND_A_RESTORE_AND_KEPT, ..restored(2, 3, 2, one_fault()) }, 6_685_000);
}

#[test]
#[ignore = "minutes: make prove"]
fn prove_three_ranks_a_restore_and_a_backup_with_one_fault() {
    explore(Setup { lacks: &BEHIND_A_RESTORE_AND_KEPT, ..restored(3, 2, 1, one_fault()) }, 39_300_000);
}

/// All kinds of faults, one in each history beside one backup given up and one flush. One stream.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_with_any_fault() {
    explore(plain(2, 2, Faults::any(1)), 13_600_000);
}

/// All kinds of faults on two streams, one in each history. The second backup behind the first, none
/// given up.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_with_two_streams() {
    let setup = Setup { at_once: true, parents: Parents::Chain, ..Setup::new(2, 2, one_fault()) };
    explore(Setup { lacks: &KEPT, ..setup }, 2_080_000);
}

/// Two faults in each history, of all kinds. One stream, the second backup behind the first, none
/// given up.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_with_two_faults() {
    let faults = Faults { give_ups: 0, flushes: 0, ..Faults::any(2) };
    explore(Setup { lacks: &KEPT, parents: Parents::Chain, ..plain(2, 2, faults) }, 8_580_000);
}

/// Three faults in each history, of all kinds, beside a backup given up and a flush. One backup, one stream.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_one_backup_with_three_faults() {
    explore(Setup { lacks: &ALONE, ..plain(2, 1, Faults::any(3)) }, 912_000);
}

/// All faults in each history that there are. One backup, one stream.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_one_backup_with_all_faults() {
    explore(Setup { lacks: &ALONE, ..plain(2, 1, Faults::any(5)) }, 1_978_000);
}

/// Two faults in each history, of all kinds but stray reports, beside a backup given up. One stream, the second
/// backup behind the first.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_given_up_with_two_faults() {
    let faults = Faults { flushes: 0, strays: 0, ..Faults::any(2) };
    explore(Setup { lacks: &["flushed"], parents: Parents::Chain, ..plain(2, 2, faults) }, 28_600_000);
}

/// Target and draft submitted one after the other, and a copy that fails.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_two_backups_submitted_apart() {
    let faults = Faults { give_ups: 1, failures: 1, together: 1, ..Faults::NONE };
    explore(
        Setup {
            lacks: &["flushed", "quarantined", "quarantine ends", "ends quarantined", "ends with a rank dead"],
            ..Setup::new(2, 2, faults)
        },
        12_700_000,
    );
}

/// One stream, the second backup behind the first, none given up.
#[test]
#[ignore = "minutes: make prove"]
fn prove_three_ranks_two_backups_with_one_fault() {
    explore(Setup { lacks: &KEPT, parents: Parents::Chain, ..plain(3, 2, one_fault()) }, 38_300_000);
}

/// One stream, each backup behind the one before, none given up.
#[test]
#[ignore = "minutes: make prove"]
fn prove_two_ranks_three_backups_with_one_fault() {
    explore(Setup { lacks: &KEPT, parents: Parents::Chain, ..plain(2, 3, one_fault()) }, 16_300_000);
}

/// One stream, and backups behind each other in every way.
#[test]
#[ignore = "minutes: make prove"]
fn prove_three_ranks_three_backups() {
    explore(Setup { lacks: &SOUND, ..plain(3, 3, Faults::NONE) }, 29_200_000);
}
