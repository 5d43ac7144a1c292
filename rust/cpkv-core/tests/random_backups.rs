//! Random lives of transactions on one to three ranks, with an engine that moves real bytes: what
//! is visible on the host is what the forward wrote, whatever was split, aborted, evicted, flushed,
//! lost or late meanwhile; nothing leaks; and ranks agree although their copies land at different
//! times.

#![expect(clippy::unwrap_used, reason = "test code")]

mod engine;
mod world;

use cpkv_core::machine::Reason;
use proptest::prelude::*;
use world::inputs::{Action, Setup, actions, setups};
use world::{Seen, World};

fn run(setup: &Setup, actions: &[Action]) -> Seen {
    let mut world = World::new(setup);
    for action in actions {
        world.act(action);
    }
    world.finish();
    world.seen
}

/// `PROPTEST_CASES` can only add to these.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(4_000), ..config }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn what_is_visible_is_what_was_written(setup in setups(), actions in prop::collection::vec(actions(), 1..120)) {
        run(&setup, &actions);
    }
}

/// The random lives above reach what they are meant to test.
#[test]
fn every_ending_is_reached() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = (setups(), prop::collection::vec(actions(), 100..200));
    let mut total = Seen::default();
    for _ in 0..600 {
        let (setup, actions) = strategy.new_tree(&mut runner).unwrap().current();
        total.add(&run(&setup, &actions));
    }
    let floors = [
        ("commits", 200),
        ("host pages", 10_000),
        ("host pages in a namespace", 1_000),
        ("donors lost", 10),
        ("fenced pages", 1_000),
        ("late backups", 100),
        ("draining slots", 1_000),
        ("quarantined slots", 50),
        ("pages inserted later", 100),
        ("chunks", 100),
        ("decoded pages", 100),
        ("insertions after an abort", 10),
        ("flushed roots", 1_000),
        ("restores", 100),
        ("restored", 50),
        ("waits for a restore", 100),
        ("lost leases", 15),
        ("nodes that were cut off", 500),
        ("hits that were shortened", 50),
    ];
    for (what, floor) in floors {
        assert!(total.count(what) >= floor, "{what}: {total:?}");
    }
    for (name, reason) in Reason::ALL {
        if reason != Reason::TargetMissing {
            assert!(total.count(name) > 0, "{name}: {total:?}");
        }
    }
}
