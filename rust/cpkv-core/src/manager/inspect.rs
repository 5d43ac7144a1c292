//! Figures and digest.

use super::{CacheManager, DevicePages};
use crate::digest::Digest;
use crate::operations::Kind;
use crate::operations::machine::Phase;
use crate::stats::Stats;

impl CacheManager {
    /// What the cache has done and holds now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (device_free_pages, device_run_lengths) = match &self.device.pages {
            DevicePages::Own { pool, .. } => (pool.total_free(), pool.run_lengths()),
            DevicePages::Engine { .. } => Default::default(),
        };
        let mut stats = Stats {
            counters: self.counters,
            device_capacity_pages: self.device.capacity,
            device_cached_pages: self.device.cached,
            device_free_pages,
            device_evictable_pages: self.device.evictable.total(),
            device_run_lengths,
            pages: self.tree.pages(),
            nodes: self.tree.arena.len(),
            namespaces: self.tree.namespaces(),
            leaves: self.device.leaves.len(),
            metadata_bytes: self.metadata_bytes(),
            peak_metadata_bytes: self.peak_metadata_bytes,
            device_fenced_pages: self.holds.fenced_pages(),
            open_operations: self.operations.len(),
            ..Stats::default()
        };
        let first_seen_ns = self.operations.iter().filter_map(|(_, operation)| operation.seen_ns).min();
        stats.oldest_operation_ns = first_seen_ns.map_or(0, |seen_ns| self.now_ns - seen_ns);
        let restores = self.operations.iter().filter(|(_, operation)| operation.kind == Kind::Restore);
        stats.restoring_pages = restores.map(|(_, operation)| operation.page_count()).sum();
        if let Some(host) = &self.host {
            stats.host_capacity_slots = host.slots.capacity();
            for (_, operation) in self.operations.iter() {
                let slots = operation.own_slot_count();
                match operation.state.phase {
                    Phase::Draining(_) => stats.host_draining_slots += slots,
                    Phase::Quarantined(_) => stats.host_quarantined_slots += slots,
                    _ => stats.host_reserved_slots += slots,
                }
            }
            let unseen = stats.host_reserved_slots + stats.host_draining_slots + stats.host_quarantined_slots;
            stats.host_cached_slots = host.slots.capacity() - host.slots.total_free() - unseen;
            stats.host_mirror_slots = host.mirrored;
            stats.host_evictable_slots = host.evictable.total();
            stats.host_run_lengths = host.slots.run_lengths();
            stats.leaves += host.mirrors.len() + host.soles.len();
        }
        stats
    }

    /// Leases taken so far.
    #[must_use]
    pub fn leases_taken(&self) -> u64 {
        self.counters.leases
    }

    /// Bytes on the heap for tokens, ids, nodes, index, pools and heaps.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        let device = match &self.device.pages {
            DevicePages::Own { pool, requested } => pool.heap_bytes() + requested.heap_bytes(),
            DevicePages::Engine { cached } => cached.heap_bytes(),
        };
        let host = self
            .host
            .as_ref()
            .map_or(0, |host| host.slots.heap_bytes() + host.mirrors.heap_bytes() + host.soles.heap_bytes());
        let operations = self.operations.heap_bytes() + self.holds.heap_bytes();
        self.tree.heap_bytes() + self.device.leaves.heap_bytes() + device + host + operations
    }

    pub(super) fn note_peak(&mut self) {
        self.peak_metadata_bytes = self.peak_metadata_bytes.max(self.metadata_bytes());
    }

    /// A number that differs, sooner or later, between caches of the same configuration to which not the
    /// same has been done: over what they have counted, the operations that they have opened and ended,
    /// and the ends of what was inserted and evicted.
    ///
    /// Takes no time to speak of, whatever the size of the cache; for ranks to see that they have parted.
    /// What was locked and released without any use may make no difference.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        let mut digest = Digest::default();
        digest.add(self.clock);
        self.counters.add_to_digest(&mut digest);
        digest.add(self.history.finish());
        digest.add(self.operations.history());
        digest.finish()
    }

    /// A number that is equal for caches of the same configuration to which the same has been
    /// done: over the tree with its tokens, ids, locks and recency, and over what is free.
    ///
    /// Linear in the size of the cache; for tests and for comparing ranks.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.add(self.clock);
        self.tree.add_to_digest(&mut digest);
        let pools = match &self.device.pages {
            DevicePages::Own { pool, requested } => {
                requested.iter().for_each(|page| digest.add(u64::from(page)));
                Some(pool)
            }
            DevicePages::Engine { .. } => None,
        };
        for pool in pools.into_iter().chain(self.host.as_ref().map(|host| &host.slots)) {
            pool.pools().iter().for_each(|pool| pool.add_to_digest(&mut digest));
        }
        self.operations.add_to_digest(&mut digest);
        let mut incomplete: Vec<_> = self.incomplete.iter().collect();
        incomplete.sort_unstable();
        for id in incomplete {
            digest.add(u64::from(id.generation) << 32 | u64::from(id.index));
        }
        self.holds.fenced().iter().for_each(|page| digest.add(u64::from(page)));
        digest.finish()
    }
}
