use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn take(pool: &mut SlotPool, count: u32) -> Vec<u32> {
    let mut slots = Vec::new();
    assert!(pool.allocate(count, |run| slots.extend(run.slots())));
    slots
}

fn problems(pool: &SlotPool) -> Vec<String> {
    let mut problems = Vec::new();
    pool.check("pool", &mut problems);
    problems
}

#[test]
fn whole_segments_first_then_runs_inside_a_used_one() {
    let mut pool = SlotPool::new(128, 32);
    assert_eq!(take(&mut pool, 40), (0..40).collect::<Vec<_>>());
    // 24 slots are left in the second segment: 10 fit there, 32 take a whole one.
    assert_eq!(take(&mut pool, 10), (40..50).collect::<Vec<_>>());
    assert_eq!(take(&mut pool, 32), (64..96).collect::<Vec<_>>());
    assert_eq!(take(&mut pool, 14), (50..64).collect::<Vec<_>>());
    assert_eq!(pool.free(), 32);
    // The shortest run that is long enough is taken, not the whole segment that is left.
    assert!(pool.release([3, 4, 5, 6, 20, 21, 22]));
    assert_eq!(take(&mut pool, 4), [3, 4, 5, 6]);
    assert_eq!(take(&mut pool, 3), [20, 21, 22]);
    assert_eq!(take(&mut pool, 32), (96..128).collect::<Vec<_>>());
    // Any slot at last.
    assert!(pool.release([1, 9, 77]));
    let mut last = take(&mut pool, 3);
    last.sort_unstable();
    assert_eq!(last, [1, 9, 77]);
    assert!(!pool.allocate(1, |_| panic!("nothing is free")));
    assert_eq!(problems(&pool), [""; 0]);
}

#[test]
fn the_shortest_run_that_is_long_enough_is_taken() {
    let mut pool = SlotPool::new(96, 32);
    take(&mut pool, 96);
    // Runs of 9 and 4, the long one first in every sense, and the list of a third block.
    assert!(pool.release((0..9).chain(40..44).chain(70..72)));
    assert_eq!(take(&mut pool, 3), [40, 41, 42]);
    assert_eq!(take(&mut pool, 2), [70, 71]);
    assert_eq!(take(&mut pool, 5), [0, 1, 2, 3, 4]);
    assert_eq!(take(&mut pool, 4), [5, 6, 7, 8]);
    assert_eq!(take(&mut pool, 1), [43]);
}

#[test]
fn a_slot_is_not_freed_twice() {
    let mut pool = SlotPool::new(100, 32);
    let slots = take(&mut pool, 8);
    assert!(pool.release([slots[3]]));
    for again in [vec![slots[3]], vec![slots[2], slots[3]], vec![99], vec![100], vec![u32::MAX]] {
        let before = pool.free();
        assert!(!pool.release(again.iter().copied()), "{again:?}");
        assert_eq!(pool.free(), before, "{again:?}");
    }
    assert!(pool.release([slots[7], slots[0]]));
    let twice = [slots[4], slots[4]];
    assert!(!pool.release(twice));
    assert_eq!(problems(&pool), [""; 0]);
}

#[test]
fn an_unlimited_pool_takes_memory_for_what_is_used() {
    let mut pool = SlotPool::new(u32::MAX - 1, 1);
    take(&mut pool, 1000);
    assert!(pool.heap_bytes() < 2000);
    assert_eq!(pool.free(), u32::MAX - 1001);
}

#[test]
fn runs_are_counted_across_blocks_of_a_segment() {
    let mut pool = SlotPool::new(400, 200);
    take(&mut pool, 200);
    assert_eq!(pool.run_lengths(), RunLengths { slots: 200, runs: 1 });
    take(&mut pool, 200);
    assert_eq!(pool.run_lengths(), RunLengths { slots: 400, runs: 2 });
}

proptest! {
    #[test]
    fn agrees_with_a_set(
        capacity in 1u32..300,
        segment in prop::sample::select(vec![1u32, 2, 7, 32, 64, 100, 300]),
        operations in prop::collection::vec((1u32..60, any::<bool>(), any::<prop::sample::Index>()), 1..60),
    ) {
        let mut pool = SlotPool::new(capacity, segment);
        let mut used = Vec::new();
        let mut free: BTreeSet<u32> = (0..capacity).collect();
        for (count, releases, index) in operations {
            if releases && !used.is_empty() {
                let batch: Vec<u32> = {
                    let from: usize = index.index(used.len());
                    let to = (from + count as usize).min(used.len());
                    used.drain(from..to).collect()
                };
                prop_assert!(pool.release(batch.iter().copied()));
                free.extend(batch);
            } else {
                let mut slots = Vec::new();
                let fits = pool.allocate(count, |run| slots.extend(run.slots()));
                prop_assert_eq!(fits, free.len() >= count as usize);
                prop_assert_eq!(slots.len(), if fits { count as usize } else { 0 });
                for slot in slots {
                    prop_assert!(free.remove(&slot), "slot {slot} given out twice");
                    used.push(slot);
                }
            }
            prop_assert_eq!(pool.free() as usize, free.len());
            prop_assert!((0..capacity + 70).all(|slot| pool.is_free(slot) == free.contains(&slot)));
            prop_assert_eq!(problems(&pool), Vec::<String>::new());
        }
    }
}
