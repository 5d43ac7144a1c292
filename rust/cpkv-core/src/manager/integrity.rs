//! Integrity: everything that is kept twice, counted anew and compared.

use super::{CacheManager, DevicePages, device_ids, host_ids};
use crate::error::{Error, Result};
use crate::ids::{Lanes, NodeIndex, OperationIndex, SlotId};
use crate::operations::Kind;
use crate::operations::machine::Phase;
use crate::slots::{IdSet, LaneCounts, SlotPool};
use crate::store::Row;
use crate::tree::Node;

/// What the nodes say.
struct Recount {
    pages: IdSet,
    slots: IdSet,
    held_slots: IdSet,
    cached: u32,
    mirrored: u32,
    device_evictable: LaneCounts,
    host_evictable: LaneCounts,
    droppable: LaneCounts,
}

impl Recount {
    fn new(lanes: Lanes) -> Self {
        Self {
            pages: IdSet::default(),
            slots: IdSet::default(),
            held_slots: IdSet::default(),
            cached: 0,
            mirrored: 0,
            device_evictable: LaneCounts::new(lanes),
            host_evictable: LaneCounts::new(lanes),
            droppable: LaneCounts::new(lanes),
        }
    }

    fn add(&mut self, index: NodeIndex, node: &Node, rows: &[Row], problems: &mut Vec<String>) {
        let tiers = node.state.tiers;
        let is_odd = |row: &&Row| row.device.is_some() != tiers.device || row.host.is_some() != tiers.host;
        if let Some(row) = rows.iter().find(is_odd) {
            problems.push(format!("{index:?}: {row:?} in a node with {tiers:?}"));
            return;
        }
        if tiers.is_none() && !node.is_locked() {
            problems.push(format!("{index:?}: in no tier, and nobody waits for it"));
        }
        for row in rows {
            if row.device.is_some_and(|page| !self.pages.insert(page.raw())) {
                problems.push(format!("{index:?}: {:?} is in the tree twice", row.device));
            }
            if row.host.is_some_and(|slot| !self.slots.insert(slot.raw())) {
                problems.push(format!("{index:?}: {:?} is in the tree twice", row.host));
            }
        }
        self.cached += if tiers.device { node.len().0 } else { 0 };
        self.mirrored += if tiers.is_mirror() { node.len().0 } else { 0 };
        if node.is_locked() {
            for slot in rows.iter().filter_map(|row| row.host) {
                self.held_slots.insert(slot.raw());
            }
            return;
        }
        if tiers.device {
            self.device_evictable.add(device_ids(rows));
        }
        if tiers.host {
            self.host_evictable.add(host_ids(rows));
        }
        if tiers.is_mirror() {
            self.droppable.add(host_ids(rows));
        }
    }
}

impl CacheManager {
    /// Recounts and compares everything that is kept twice.
    ///
    /// # Errors
    /// [`Error::Integrity`] with everything found wrong, which is a bug in cpkv.
    pub fn check_integrity(&self) -> Result<()> {
        let mut problems = Vec::new();
        self.tree.check(&mut problems);
        let recount = self.recount(&mut problems);
        self.check_device(&recount, &mut problems);
        self.check_host(&recount, &mut problems);
        self.check_operations(&recount, &mut problems);
        for (pool, name) in self.named_pools() {
            pool.check(&name, &mut problems);
        }
        // The heaps are looked at by what the rows say.
        if problems.is_empty() {
            self.check_heaps(&mut problems);
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::Integrity { problems }) }
    }

    fn recount(&self, problems: &mut Vec<String>) -> Recount {
        let mut recount = Recount::new(self.lanes);
        for (index, node) in self.tree.arena.iter().filter(|(_, node)| !node.is_root()) {
            recount.add(index, node, self.tree.rows(index), problems);
            let parent = node.parent.map(|parent| &self.tree.arena[parent]);
            let is_cut_off = parent.is_some_and(|parent| !parent.is_root() && !parent.state.tiers.device);
            if node.state.tiers.device && is_cut_off {
                problems.push(format!("{index:?}: on the device below a node that is not"));
            }
        }
        recount
    }

    /// Each device page is free, held by a request, or in the tree.
    fn check_device(&self, recount: &Recount, problems: &mut Vec<String>) {
        if recount.cached != self.device.cached || recount.device_evictable != self.device.evictable {
            problems.push(format!(
                "device: {} pages cached and {:?} evictable, counted {} and {:?}",
                recount.cached, recount.device_evictable, self.device.cached, self.device.evictable
            ));
        }
        let cached = &recount.pages;
        match &self.device.pages {
            DevicePages::Own { pool, requested } => {
                let (free, capacity) = (pool.total_free(), self.device.capacity);
                let fenced = self.holds.fenced();
                if free + requested.len() + cached.len() + fenced.len() != capacity {
                    problems.push(format!(
                        "device: {free} free, {} requested, {} cached and {} fenced of {capacity}",
                        requested.len(),
                        cached.len(),
                        fenced.len(),
                    ));
                }
                let mut used = requested.iter().chain(cached.iter()).chain(fenced.iter());
                if let Some(page) = used.find(|&page| page >= capacity || pool.is_free(page)) {
                    problems.push(format!("page {page}: free and used, or not of the pool"));
                }
                if let Some(page) = requested.iter().find(|&page| cached.contains(page)) {
                    problems.push(format!("page {page}: a request's and in the tree"));
                }
            }
            DevicePages::Engine { cached: counted } => {
                if counted.iter().ne(cached.iter()) {
                    problems.push(format!("device: {} pages in the tree, {} counted", cached.len(), counted.len()));
                }
            }
        }
    }

    /// Each host slot is free, an operation's, or in the tree.
    fn check_host(&self, recount: &Recount, problems: &mut Vec<String>) {
        let Some(host) = &self.host else { return };
        let unseen: u32 = self.operations.iter().map(|(_, operation)| operation.own_slot_count()).sum();
        let used = (host.slots.capacity() - host.slots.total_free()).saturating_sub(unseen);
        let found = (recount.slots.len(), recount.mirrored, &recount.host_evictable, &recount.droppable);
        let counted = (used, host.mirrored, &host.evictable, &host.droppable);
        if found != counted {
            problems.push(format!("host: slots, mirrors, evictable and droppable {found:?}, counted {counted:?}"));
        }
        let capacity = host.slots.capacity();
        if let Some(slot) = recount.slots.iter().find(|&slot| slot >= capacity || host.slots.is_free(slot)) {
            problems.push(format!("host slot {slot}: free and in the tree, or not of the pool"));
        }
    }

    /// Each operation that may still be committed has its nodes, each slot and page of an open one
    /// is kept from being used.
    fn check_operations(&self, recount: &Recount, problems: &mut Vec<String>) {
        let mut holds = vec![0_u32; self.holds.counts().len()];
        let mut slots = IdSet::default();
        let mut with_backup = 0;
        for (id, operation) in self.operations.iter() {
            for page in &operation.pages {
                holds[page.index()] += 1;
            }
            for slot in operation.own_slots().iter().map(|slot| slot.raw()) {
                let is_free = self.host.as_ref().is_some_and(|host| host.slots.is_free(slot));
                if !slots.insert(slot) || recount.slots.contains(slot) || is_free {
                    problems.push(format!("operation {id}: slot {slot} is free, or somebody else's as well"));
                }
            }
            if !operation.state.is_open() {
                problems.push(format!("operation {id}: over, and still listed"));
            }
            if operation.kind == Kind::Restore {
                let is_held = |slot: &SlotId| recount.held_slots.contains(slot.raw());
                if let Some(slot) = operation.slots.iter().find(|slot| !is_held(slot)) {
                    problems.push(format!("operation {id}: slot {} is read, and nobody holds it", slot.raw()));
                }
            }
            let Some(end) = operation.end else {
                if operation.state.is_alive() {
                    problems.push(format!("operation {id}: not in the tree"));
                }
                continue;
            };
            for node in self.path_up(end) {
                let node = &self.tree.arena[node];
                if !node.is_locked() {
                    problems.push(format!("operation {id}: a node on its way is not locked"));
                }
                let is_own = operation.state.is_alive() && node.end > operation.first;
                if is_own != (node.state.pending.map(OperationIndex::raw) == Some(id.index)) {
                    problems.push(format!("operation {id}: another one copies the node that ends at {}", node.end));
                }
                with_backup += usize::from(is_own);
                let is_restore = operation.kind == Kind::Restore;
                if is_own && (node.state.tiers.host != is_restore || node.start() < operation.first) {
                    problems.push(format!("operation {id}: a node of its has {:?}, or is not its alone", node.state));
                }
                let is_bound = operation.state.phase == Phase::Pending;
                if is_own && is_bound && !node.state.tiers.device {
                    problems.push(format!("operation {id}: bound to a node that is not on the device"));
                }
            }
        }
        let marked = self.tree.arena.iter().filter(|(_, node)| node.state.pending.is_some()).count();
        if marked != with_backup {
            problems.push(format!("{marked} nodes are being copied, {with_backup} by open operations"));
        }
        if holds != self.holds.counts() {
            problems.push("pages are held by another number of copies than is counted".to_owned());
        }
        if let Some(page) =
            self.holds.fenced().iter().find(|&page| holds[page as usize] == 0 || recount.pages.contains(page))
        {
            problems.push(format!("page {page}: fenced, and in the tree or read by no copy"));
        }
        // Without a lock nobody would keep it from being evicted.
        for (index, node) in self.tree.arena.iter().filter(|(_, node)| !node.is_locked()) {
            if let Some(row) =
                self.tree.rows(index).iter().find(|row| row.device.is_some_and(|page| self.holds.is_held(page)))
            {
                problems
                    .push(format!("{index:?}: {row:?} is read by a copy, and the node of {} is not locked", node.end));
            }
        }
    }

    fn check_heaps(&self, problems: &mut Vec<String>) {
        let arena = &self.tree.arena;
        let key_of = |node| self.key_of(node);
        self.device.leaves.check("device", |node| arena[node].heaps.device, key_of, problems);
        if let Some(host) = &self.host {
            let mirror_key = |node| self.mirror_key(self.key_of(node));
            host.mirrors.check("mirror", |node| arena[node].heaps.mirror, mirror_key, problems);
            host.soles.check("sole", |node| arena[node].heaps.sole, key_of, problems);
        }
        let mut entries = 0;
        for (index, node) in arena.iter() {
            let belongs = if node.is_root() { [None; 3] } else { self.heaps_of(index) };
            let places = [node.heaps.device, node.heaps.mirror, node.heaps.sole];
            let entered = places.map(|place| place.map(|place| place.lane));
            if belongs != entered {
                problems.push(format!("{index:?}: belongs in the heaps of {belongs:?}, is in those of {entered:?}"));
            }
            entries += entered.into_iter().flatten().count();
        }
        let counted = self.stats().leaves;
        if entries != counted {
            problems.push(format!("{entries} nodes in heaps, {counted} entries"));
        }
    }

    fn named_pools(&self) -> impl Iterator<Item = (&SlotPool, String)> {
        let device = match &self.device.pages {
            DevicePages::Own { pool, .. } => pool.pools(),
            DevicePages::Engine { .. } => &[],
        };
        let host = self.host.as_ref().map_or(&[] as &[_], |host| host.slots.pools());
        let device = device.iter().enumerate().map(|(lane, pool)| (pool, format!("device lane {lane}")));
        device.chain(host.iter().enumerate().map(|(lane, pool)| (pool, format!("host lane {lane}"))))
    }
}
