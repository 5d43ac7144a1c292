//! Late backups: of pages that are in the tree already.
//!
//! Pages that fill up during decode, pages of a donor that failed, pages that have been used often
//! enough, pages that are going to be evicted. They are opened here and copied by the engine after
//! the next tick.

use std::ops::ControlFlow;

use hashbrown::HashMap;

use super::{CacheManager, Copies, device_ids};
use crate::agreement::OperationId;
use crate::config::WritePolicy;
use crate::eviction::EvictionKey;
use crate::ids::{Lane, NodeIndex, PageId, Pages, SlotId};
use crate::operations::{Kind, Operation};
use crate::slots::LaneCounts;

/// What may be given up for a late backup.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// Nothing: there are free slots, or no backup.
    Free,
    /// Whatever is not held, as for new pages.
    Any,
    /// Sole copies that are worth no more than this. No mirrors: they would be wanted back.
    Modest(EvictionKey),
}

impl CacheManager {
    /// Whether new pages are backed up as they come.
    pub(super) fn writes_through(&self) -> bool {
        matches!(self.write, WritePolicy::Through | WritePolicy::Selective(1))
    }

    /// Backs up what a lock has found without a host copy: what has been used often enough under the
    /// selective policy, and otherwise what there was no room for, if there is now.
    pub(super) fn back_up_used(&mut self, node: NodeIndex) {
        if self.writes_through() {
            if self.host.as_ref().is_some_and(|host| host.slots.total_free() > 0) {
                self.back_up_late(node, Pages::ZERO, Room::Free);
            }
            return;
        }
        let WritePolicy::Selective(uses) = self.write else { return };
        // The request that computed a page has used it as well. Those in front were used as often.
        let is_used = |&node: &NodeIndex| self.tree.arena[node].state.usage.hits.saturating_add(1) >= uses;
        let deepest = self.path_up(node).find(is_used);
        if let Some(deepest) = deepest {
            self.back_up_late(deepest, Pages::ZERO, Room::Any);
        }
    }

    /// Opens backups so that the pages which would be evicted next have host copies.
    pub(super) fn keep_clean(&mut self) {
        if self.clean_pages == Pages::ZERO || self.host.is_none() {
            return;
        }
        let counters = &self.counters;
        let now = [self.clock, counters.device_evicted_pages, counters.committed_pages, counters.mirror_dropped_pages];
        if std::mem::replace(&mut self.looked_at, now) == now {
            return;
        }
        for lane in (0..self.lanes.count()).map(Lane) {
            // Parents first, as they are committed.
            for node in self.dirty_in_front(lane).into_iter().rev() {
                // An earlier one may have given it up.
                if self.tree.arena.is_alive(node) && self.lacks_copy(node) {
                    let first = self.tree.arena[node].start();
                    self.open_late(node, first, Room::Modest(self.key_of(node)));
                }
            }
        }
        self.compact();
    }

    /// The nodes without a host copy among those that would be evicted next from a lane, with what would
    /// be a leaf once those in front of it in that order are gone; the first to go first.
    fn dirty_in_front(&self, lane: Lane) -> Vec<NodeIndex> {
        let mut left = self.clean_pages;
        let mut dirty: Vec<NodeIndex> = Vec::new();
        let mut gone: HashMap<NodeIndex, u32> = HashMap::new();
        self.device.leaves.visit_in_order(lane, |node| {
            if self.lacks_copy(node) {
                dirty.push(node);
            }
            let pages = self.tree.arena[node].len();
            if pages >= left {
                return ControlFlow::Break(());
            }
            left -= pages;
            let parent = self.tree.arena[node].parent.expect("a root is no leaf");
            let children = gone.entry(parent).or_default();
            *children += 1;
            let next = &self.tree.arena[parent];
            let is_leaf = *children == next.device_children && next.state.tiers.device && !next.is_locked();
            ControlFlow::Continue(is_leaf.then(|| (parent, self.key_of(parent), next.end)))
        });
        dirty
    }

    /// Whether a node wants a late backup: it is whole and on the device, and has neither copy nor backup.
    fn lacks_copy(&self, node: NodeIndex) -> bool {
        let state = &self.tree.arena[node].state;
        let has_one = state.tiers.host || state.pending.is_some();
        state.tiers.device && !has_one && !state.is_partial
    }

    /// Opens backups, where there are free slots, for what has none right in front of the pages from
    /// `first` on, on the way up from `end`.
    pub(super) fn back_up_front(&mut self, end: NodeIndex, first: Pages) {
        let mut front = self.path_up(end).skip_while(|&node| self.tree.arena[node].end > first);
        let Some(last) = front.next().filter(|&node| self.lacks_copy(node)) else { return };
        let start = front.take_while(|&node| self.lacks_copy(node)).last().unwrap_or(last);
        self.back_up_late(last, self.tree.arena[start].start(), Room::Free);
    }

    /// Opens backups for what has neither a host copy nor a backup among the device pages from
    /// `first` on, on the way up from `end`. Returns that of the last pages; `None` if there is no
    /// room for one of them, or nothing finds them any more.
    pub(super) fn back_up_late(&mut self, end: NodeIndex, first: Pages, room: Room) -> Option<OperationId> {
        if self.host.is_none() || self.copies == Copies::Assumed || self.is_out_of_reach(end) {
            return None;
        }
        let mut runs: Vec<(NodeIndex, Pages)> = Vec::new();
        let mut is_open = false;
        for node in self.own_nodes(end, first) {
            let wants_copy = self.lacks_copy(node);
            let start = self.tree.arena[node].start().max(first);
            match runs.last_mut() {
                Some((_, run_first)) if wants_copy && is_open => *run_first = start,
                _ if wants_copy => runs.push((node, start)),
                _ => {}
            }
            is_open = wants_copy;
        }
        // Parents first.
        let mut last = None;
        while let Some((node, first)) = runs.pop() {
            last = Some(self.open_late(node, first, room)?);
        }
        last
    }

    fn open_late(&mut self, end: NodeIndex, first: Pages, room: Room) -> Option<OperationId> {
        let mut nodes = self.own_nodes(end, first);
        nodes.reverse();
        let rows = nodes.iter().flat_map(|&node| self.tree.rows(node));
        let sources: Vec<PageId> = rows.map(|row| row.page()).collect();
        let wanted = nodes.iter().fold(LaneCounts::new(self.lanes), |mut wanted, &node| {
            wanted.add(device_ids(self.tree.rows(node)));
            wanted
        });
        self.hold(end);
        let slots = match room {
            Room::Free if self.shortage(&wanted).is_some() => {
                self.let_go(end);
                return None;
            }
            Room::Free | Room::Any => self.take_slots(&wanted, &sources),
            Room::Modest(worth) => self.take_slots_modestly(&wanted, &sources, worth),
        };
        let Some(slots) = slots else {
            self.let_go(end);
            self.counters.host_skipped_pages += sources.len() as u64;
            return None;
        };
        self.counters.late_reserved_pages += sources.len() as u64;
        let operation = Operation::new(Kind::LateBackup, first, sources, slots);
        let id = self.open_backup(operation, end);
        self.outcomes.started.push(id);
        Some(id)
    }

    fn take_slots_modestly(
        &mut self,
        wanted: &LaneCounts,
        sources: &[PageId],
        worth: EvictionKey,
    ) -> Option<Vec<SlotId>> {
        while let Some(shortage) = self.shortage(wanted) {
            let host = self.host.as_ref().expect("slots are the host's");
            let sole = host.soles.first_in(&shortage).filter(|&(_, key)| key <= worth);
            let (sole, _) = sole?;
            self.evict_sole_tail(sole, shortage);
        }
        Some(self.deal_slots(wanted, |place| sources[place]))
    }
}
