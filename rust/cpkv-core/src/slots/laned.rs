//! One pool per lane under logical ids, and counts per lane.

use smallvec::SmallVec;

use super::{IdSet, Run, RunLengths, SlotPool};
use crate::ids::{Lane, Lanes};

/// A number for each lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LaneCounts {
    lanes: Lanes,
    counts: SmallVec<[u32; 8]>,
}

impl LaneCounts {
    pub(crate) fn new(lanes: Lanes) -> Self {
        Self { lanes, counts: SmallVec::from_elem(0, lanes.count() as usize) }
    }

    /// `count` in one lane and nothing in the others.
    pub(crate) fn single(lanes: Lanes, lane: Lane, count: u32) -> Self {
        let mut counts = Self::new(lanes);
        counts.counts[lane.0 as usize] = count;
        counts
    }

    /// How many of the logical `ids` are in each lane.
    pub(crate) fn of(lanes: Lanes, ids: impl ExactSizeIterator<Item = u32>) -> Self {
        let mut counts = Self::new(lanes);
        counts.add(ids);
        counts
    }

    pub(crate) fn get(&self, lane: Lane) -> u32 {
        self.counts[lane.0 as usize]
    }

    pub(crate) fn set(&mut self, lane: Lane, count: u32) {
        self.counts[lane.0 as usize] = count;
    }

    pub(crate) fn increment(&mut self, lane: Lane) {
        self.counts[lane.0 as usize] += 1;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Lane, u32)> {
        (0..).map(Lane).zip(self.counts.iter().copied())
    }

    pub(crate) fn total(&self) -> u32 {
        self.counts.iter().sum()
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Counts the logical `ids`.
    pub(crate) fn add(&mut self, ids: impl ExactSizeIterator<Item = u32>) {
        if let [count] = self.counts.as_mut_slice() {
            *count += u32::try_from(ids.len()).expect("fewer ids than a pool holds");
        } else {
            ids.for_each(|id| self.counts[self.lanes.lane_of(id).0 as usize] += 1);
        }
    }

    /// Takes the logical `ids` out of the count.
    pub(crate) fn subtract(&mut self, ids: impl ExactSizeIterator<Item = u32>) {
        if let [count] = self.counts.as_mut_slice() {
            *count -= u32::try_from(ids.len()).expect("fewer ids than a pool holds");
        } else {
            ids.for_each(|id| self.counts[self.lanes.lane_of(id).0 as usize] -= 1);
        }
    }

    /// Where the lanes begin if their counts are laid one behind another.
    pub(crate) fn starts(&self) -> SmallVec<[usize; 8]> {
        let start_behind = |start: &mut usize, count: &u32| {
            *start += *count as usize;
            Some(*start - *count as usize)
        };
        self.counts.iter().scan(0, start_behind).collect()
    }

    /// How many of the logical `ids`, taken in order, are each in a lane that still counts
    /// something; the counts become what is left.
    pub(crate) fn consume(&mut self, ids: impl ExactSizeIterator<Item = u32>) -> u32 {
        let available = u32::try_from(ids.len()).expect("fewer ids than a pool holds");
        if let [count] = self.counts.as_mut_slice() {
            let used = available.min(*count);
            *count -= used;
            return used;
        }
        let mut used = 0;
        for id in ids {
            let count = &mut self.counts[self.lanes.lane_of(id).0 as usize];
            if *count == 0 {
                break;
            }
            *count -= 1;
            used += 1;
        }
        used
    }

    /// Lowers each count to no more than `most` of its lane.
    pub(crate) fn limit(&mut self, most: &Self) {
        for (count, most) in self.counts.iter_mut().zip(&most.counts) {
            *count = (*count).min(*most);
        }
    }
}

/// Neighbouring slots of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneRun {
    lanes: Lanes,
    lane: Lane,
    run: Run,
}

impl LaneRun {
    /// The logical ids, which are neighbours only if there is one lane.
    pub(crate) fn ids(self) -> impl ExactSizeIterator<Item = u32> {
        self.run.slots().map(move |slot| self.lanes.logical(self.lane, slot))
    }

    /// Adds the logical ids to a set.
    pub(crate) fn add_to(self, set: &mut IdSet) {
        if self.lanes.count() == 1 {
            set.insert_run(self.run);
        } else {
            self.ids().for_each(|id| {
                set.insert(id);
            });
        }
    }
}

/// The pools of all lanes.
#[derive(Debug)]
pub(crate) struct LanedPool {
    lanes: Lanes,
    pools: Vec<SlotPool>,
}

impl LanedPool {
    pub(crate) fn new(lanes: Lanes, slots_per_lane: u32, segment_slots: u32) -> Self {
        let pool = || SlotPool::new(slots_per_lane, segment_slots);
        Self { lanes, pools: std::iter::repeat_with(pool).take(lanes.count() as usize).collect() }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.pools.iter().map(SlotPool::capacity).sum()
    }

    pub(crate) fn free(&self, lane: Lane) -> u32 {
        self.pools[lane.0 as usize].free()
    }

    pub(crate) fn total_free(&self) -> u32 {
        self.pools.iter().map(SlotPool::free).sum()
    }

    pub(crate) fn is_free(&self, id: u32) -> bool {
        self.pools[self.lanes.lane_of(id).0 as usize].is_free(self.lanes.physical(id))
    }

    /// What is missing of `wanted` in each lane.
    pub(crate) fn shortage(&self, wanted: &LaneCounts) -> LaneCounts {
        let mut shortage = LaneCounts::new(self.lanes);
        for (lane, count) in wanted.iter() {
            shortage.counts[lane.0 as usize] = count.saturating_sub(self.free(lane));
        }
        shortage
    }

    /// How many of the logical `ids`, taken in order, could each get a slot in its lane.
    pub(crate) fn fitting(&self, mut ids: impl Iterator<Item = u32>) -> u32 {
        let mut free: SmallVec<[u32; 8]> = self.pools.iter().map(SlotPool::free).collect();
        let mut fitting = 0;
        while let Some(left) = ids.next().map(|id| &mut free[self.lanes.lane_of(id).0 as usize]) {
            if *left == 0 {
                break;
            }
            *left -= 1;
            fitting += 1;
        }
        fitting
    }

    /// Gives `wanted` slots of each lane to `take`, lane by lane and run by run, or none at all
    /// and returns false.
    pub(crate) fn allocate(&mut self, wanted: &LaneCounts, mut take: impl FnMut(LaneRun)) -> bool {
        if !self.shortage(wanted).is_zero() {
            return false;
        }
        let lanes = self.lanes;
        for (lane, count) in wanted.iter() {
            let took = self.pools[lane.0 as usize].allocate(count, |run| take(LaneRun { lanes, lane, run }));
            debug_assert!(took, "the shortage was looked at");
        }
        true
    }

    /// Takes as many slots as `wanted` counts and gives them to `take` in such an order that each
    /// is in the lane that `lane_at` names for its place. None at all, and false, if a lane has too
    /// few.
    pub(crate) fn deal(
        &mut self,
        wanted: &LaneCounts,
        lane_at: impl Fn(usize) -> Lane,
        mut take_run: impl FnMut(LaneRun),
        mut take: impl FnMut(u32),
    ) -> bool {
        if !self.shortage(wanted).is_zero() {
            return false;
        }
        if self.lanes.count() == 1 {
            return self.allocate(wanted, |run| {
                take_run(run);
                run.ids().for_each(&mut take);
            });
        }
        // They come lane by lane; each place takes the next one of its lane.
        let mut slots = Vec::with_capacity(wanted.total() as usize);
        self.allocate(wanted, |run| {
            take_run(run);
            slots.extend(run.ids());
        });
        let mut next = wanted.starts();
        for place in 0..slots.len() {
            let next = &mut next[lane_at(place).0 as usize];
            take(slots[*next]);
            *next += 1;
        }
        true
    }

    /// Takes logical `ids` back, all of which are in use.
    pub(crate) fn release(&mut self, ids: impl Iterator<Item = u32>) {
        let released = if let [pool] = self.pools.as_mut_slice() {
            pool.release(ids)
        } else {
            let mut ids = ids;
            ids.all(|id| self.pools[self.lanes.lane_of(id).0 as usize].release([self.lanes.physical(id)]))
        };
        assert!(released, "only ids in use are released");
    }

    pub(crate) fn run_lengths(&self) -> RunLengths {
        self.pools.iter().fold(RunLengths::default(), |sum, pool| {
            let lengths = pool.run_lengths();
            RunLengths { slots: sum.slots + lengths.slots, runs: sum.runs + lengths.runs }
        })
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let inner: usize = self.pools.iter().map(SlotPool::heap_bytes).sum();
        inner + self.pools.capacity() * size_of::<SlotPool>()
    }

    pub(crate) fn pools(&self) -> &[SlotPool] {
        &self.pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: u32) -> Lanes {
        Lanes::new(count).expect("positive")
    }

    #[test]
    fn ids_stay_in_their_lane() {
        let mut pool = LanedPool::new(lanes(3), 4, 1);
        let wanted = LaneCounts::of(lanes(3), [0, 1, 2, 0].into_iter());
        let mut ids = Vec::new();
        assert!(pool.allocate(&wanted, |run| ids.extend(run.ids())));
        assert_eq!(ids, [0, 3, 1, 2]);
        assert_eq!([0, 1, 2].map(|lane| pool.free(Lane(lane))), [2, 3, 3]);
        // All or nothing: lane 0 has only two left.
        assert!(!pool.allocate(&LaneCounts::of(lanes(3), [0, 0, 0, 1].into_iter()), |_| panic!("too few")));
        assert_eq!(pool.total_free(), 8);
        pool.release([3, 0].into_iter());
        assert!(pool.is_free(0) && pool.is_free(3) && !pool.is_free(1));
    }

    #[test]
    fn consume_stops_where_a_lane_needs_nothing() {
        let mut needs = LaneCounts::of(lanes(2), [1, 1, 0].into_iter());
        assert_eq!(needs.consume([5, 4, 2].into_iter()), 2, "one of lane 1, one of lane 0");
        assert_eq!((needs.get(Lane(0)), needs.get(Lane(1))), (0, 1));
        assert_eq!(needs.consume([4, 7].into_iter()), 0);
        assert_eq!(needs.consume([7, 9].into_iter()), 1);
        assert!(needs.is_zero());
        let mut single = LaneCounts::single(lanes(1), Lane(0), 5);
        assert_eq!(single.consume([1, 2].into_iter()), 2);
        assert_eq!(single.total(), 3);
    }

    #[test]
    fn a_limit_is_for_each_lane() {
        let mut counts = LaneCounts::of(lanes(2), [0, 0, 0, 1].into_iter());
        counts.limit(&LaneCounts::of(lanes(2), [0, 1, 1].into_iter()));
        assert_eq!((counts.get(Lane(0)), counts.get(Lane(1))), (1, 1));
    }
}
