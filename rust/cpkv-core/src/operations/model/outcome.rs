//! What follows from an event: the machine's steps and what is done about them, in the order of
//! `manager/outcome.rs`, for backups that have no place in a real tree.

use smallvec::{SmallVec, smallvec};

use super::Setup;
use super::actions::TreeOperation;
use super::rank::{Backup, Broken, Family, Rank};
use crate::operations::Local;
use crate::operations::machine::{Effects, Event, Phase, Reason, State};

impl Rank {
    /// A tree operation, as `CacheManager` does it.
    pub(super) fn do_operation(
        &mut self,
        setup: &Setup,
        family: &Family,
        operation: TreeOperation,
    ) -> Result<(), Broken> {
        match operation {
            TreeOperation::Nothing => Ok(()),
            TreeOperation::Bind(index) => {
                let index = usize::from(index);
                let backup = &mut self.backups[index];
                backup.done.bound = true;
                // What was rolled back is inserted all the same, and its copies read what is in the tree now.
                self.ledger.locks += i8::from(backup.is_open() && !backup.is_alive());
                self.advance(setup, family, index, Event::Bound)
            }
            TreeOperation::GiveUp(index, reason) => {
                self.advance(setup, family, usize::from(index), Event::RolledBack(reason))?;
                // Its owner submits nothing any more.
                let now_ns = self.now_ns;
                let local = &mut self.backups[usize::from(index)].local;
                local.close();
                local.wait_from(now_ns);
                Ok(())
            }
            TreeOperation::Flush => {
                let is_alive = |&index: &usize| self.backups[index].is_alive() && !self.backups[index].is_restore;
                let alive: SmallVec<[usize; 4]> = (0..self.backups.len()).filter(is_alive).collect();
                alive
                    .into_iter()
                    .try_for_each(|index| self.advance(setup, family, index, Event::RolledBack(Reason::Flushed)))
            }
        }
    }
    /// Takes a backup one step on, and those that wait for it, as `CacheManager::advance` does.
    pub(super) fn advance(&mut self, setup: &Setup, family: &Family, index: usize, event: Event) -> Result<(), Broken> {
        let mut events: SmallVec<[(usize, Event); 4]> = smallvec![(index, event)];
        let mut next = 0;
        while let Some(&(index, event)) = events.get(next) {
            next += 1;
            let before = self.backups[index].state;
            if event == Event::ParentSettled && self.nearest_in_front(family, index).is_some() {
                continue;
            }
            let (state, effects) = (setup.rules.step)(before, event);
            let was_bound = before.phase != Phase::Reserved;
            if !before.is_open() {
                // The manager has forgotten it by then; the machine itself is to be right as well.
                if (state, effects) != (before, Effects::default()) {
                    return Err(Broken::Undone);
                }
                continue;
            }
            let is_failed_restore = self.backups[index].is_restore && effects.roll_back.is_some();
            let follows = if is_failed_restore { self.behind(family, index) } else { self.children(family, index) };
            self.backups[index].state = state;
            let follow = self.carry_out(family, index, was_bound, effects)?;
            if effects.roll_back.is_some_and(|reason| self.is_made_up_for(index, was_bound, reason)) {
                // What waits for the donor waits for the late backup.
                self.make_up_for(family, index);
            } else if let Some(follow) = follow {
                events.extend(follows.into_iter().map(|other| (other, follow)));
            }
        }
        Ok(())
    }
    /// Does what a step asks for. Returns what follows for those that wait.
    fn carry_out(
        &mut self,
        family: &Family,
        index: usize,
        was_bound: bool,
        effects: Effects,
    ) -> Result<Option<Event>, Broken> {
        let mut follow = None;
        if (effects.commit || effects.release) && self.backups[index].is_flying() {
            return Err(Broken::InFlight);
        }
        if effects.commit && !self.backups[index].is_restore && !self.family_is_over(family, index) {
            return Err(Broken::ParentLast);
        }
        let is_resident = self.is_resident(family, index);
        let Self { backups, ledger, .. } = self;
        let backup = &mut backups[index];
        let done = &mut backup.done;
        let own_slot = i8::from(!backup.is_restore);
        if effects.commit {
            if !done.bound {
                return Err(Broken::Unbound);
            }
            if done.committed || done.rolled_back || done.released {
                return Err(Broken::Twice);
            }
            done.committed = true;
            ledger.held_slots -= own_slot;
            ledger.shown_slots += own_slot;
            ledger.uses -= 1;
            ledger.locks -= 1;
            follow = Some(Event::ParentSettled);
        }
        if let Some(reason) = effects.roll_back {
            if done.committed || done.rolled_back || done.released {
                return Err(Broken::Twice);
            }
            done.rolled_back = true;
            done.was_resident = is_resident;
            // Nothing in the tree is read by its copies.
            ledger.locks -= i8::from(!was_bound);
            follow = Some(match (is_resident, reason) {
                _ if backup.is_restore => Event::RolledBack(Reason::RestoreFailed),
                (_, Reason::RestoreFailed) | (true, Reason::Flushed) => Event::RolledBack(reason),
                // Whoever inserts its pages will have them backed up.
                (false, _) => Event::ParentSettled,
                (true, _) => Event::RolledBack(Reason::ParentLost),
            });
        }
        if effects.release {
            if done.committed || done.released || !done.rolled_back {
                return Err(Broken::Twice);
            }
            done.released = true;
            ledger.held_slots -= own_slot;
            ledger.free_slots += own_slot;
            ledger.uses -= 1;
            ledger.locks -= i8::from(done.bound);
        }
        if !backup.is_open() {
            backup.local = Local::default();
        }
        Ok(follow)
    }

    /// Whether the pages of a backup are on the device: whoever inserts pages inserts all in front.
    fn is_resident(&self, family: &Family, index: usize) -> bool {
        let parent = |&index: &usize| family[index].map(usize::from);
        let has_it = |&last: &usize| std::iter::successors(Some(last), parent).any(|place| place == index);
        (index..self.backups.len()).filter(has_it).any(|last| self.backups[last].done.bound)
    }

    /// The nearest backup in front of one that may still be committed.
    fn nearest_in_front(&self, family: &Family, index: usize) -> Option<usize> {
        self.places_from(family, index).skip(1).find_map(|place| self.alive_at(place))
    }

    /// The place of a backup in the family: a late one has that of the donor that it makes up for.
    pub(super) fn place(&self, index: usize) -> usize {
        self.backups[index].makes_up_for.map_or(index, usize::from)
    }

    /// The place of a backup and those in front of it, nearest first.
    pub(super) fn places_from<'a>(&self, family: &'a Family, index: usize) -> impl Iterator<Item = usize> + use<'a> {
        std::iter::successors(Some(self.place(index)), |&place| family[place].map(usize::from))
    }

    /// The late backup, if it was opened for the donor of a place.
    fn late_at(&self, place: usize) -> Option<usize> {
        let last = self.backups.len() - 1;
        (self.backups[last].makes_up_for.map(usize::from) == Some(place)).then_some(last)
    }

    fn alive_at(&self, place: usize) -> Option<usize> {
        let is_alive = |&index: &usize| self.backups[index].is_alive();
        Some(place).filter(is_alive).or_else(|| self.late_at(place).filter(is_alive))
    }

    /// Whether a late backup is opened for a donor that was rolled back, as `CacheManager::roll_back` decides it.
    fn is_made_up_for(&self, index: usize, was_bound: bool, reason: Reason) -> bool {
        let backup = &self.backups[index];
        let may_be = match reason {
            Reason::Flushed | Reason::ParentLost => false,
            Reason::TargetMissing | Reason::DraftMissing => !was_bound,
            _ => !backup.is_late,
        };
        may_be && !backup.is_restore && backup.done.was_resident && self.backups.last().is_some_and(Backup::is_dormant)
    }

    fn make_up_for(&mut self, family: &Family, donor: usize) {
        let last = self.backups.len() - 1;
        self.backups[last].makes_up_for = Some(u8::try_from(donor).expect("a handful of backups"));
        let waits = self.nearest_in_front(family, last).is_some();
        let late = &mut self.backups[last];
        late.state = State::late(waits);
        late.done.bound = true;
        self.ledger.open_late();
    }

    /// Those that wait for a backup.
    fn children(&self, family: &Family, index: usize) -> SmallVec<[usize; 4]> {
        let waits = |&child: &usize| {
            let backup = &self.backups[child];
            let is_waiting = backup.is_alive() && backup.state.waits_for_parent;
            is_waiting && self.nearest_in_front(family, child) == Some(index)
        };
        (0..self.backups.len()).filter(waits).collect()
    }

    /// Those whose pages lie behind those of another, and that may still be committed.
    fn behind(&self, family: &Family, index: usize) -> SmallVec<[usize; 4]> {
        let is_behind = |&other: &usize| self.places_from(family, other).skip(1).any(|place| place == index);
        let alive = (index + 1..self.backups.len()).filter(|&other| self.backups[other].is_alive());
        alive.filter(is_behind).collect()
    }

    /// Whether every backup in front is committed, as far as there is one: behind pages that were not
    /// in the tree when their backup was given up everything is backed up anew.
    fn family_is_over(&self, family: &Family, index: usize) -> bool {
        let is_committed = |index: usize| self.backups[index].done.committed;
        let is_open = |&place: &usize| !is_committed(place) && !self.late_at(place).is_some_and(is_committed);
        let nearest = self.places_from(family, index).skip(1).find(is_open).map(|place| self.backups[place].done);
        nearest.is_none_or(|done| done.rolled_back && !done.was_resident)
    }
}
