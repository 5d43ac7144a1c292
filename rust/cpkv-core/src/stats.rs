//! What a cache has done and what it holds.

use std::hash::Hash;

use crate::digest::Digest;
use crate::slots::RunLengths;

/// Totals since the cache was made. They change nothing and are not part of the digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counters {
    /// Leases taken.
    pub leases: u64,
    /// Pages that leases found on the device.
    pub device_hit_pages: u64,
    /// Pages that leases found on the host only.
    pub host_hit_pages: u64,
    /// Pages that insertions added to the tree.
    pub inserted_pages: u64,
    /// Pages given to insertions or restores that the tree had on the device already.
    pub duplicate_pages: u64,
    /// Host-only pages that came back to the device by a restore.
    pub restored_pages: u64,
    /// Restores that failed or were given up.
    pub failed_restores: u64,
    /// Device pages that were given up because they or pages in front of them were to be restored, and
    /// were not.
    pub unrestored_pages: u64,
    /// Host-only pages that came back to the device because they were computed again.
    pub recomputed_pages: u64,
    /// Pages copied to the host when they were inserted.
    pub host_written_pages: u64,
    /// Pages not copied to the host at insertion because no slots could be freed.
    pub host_skipped_pages: u64,
    /// Pages copied to the host only when the device evicted them.
    pub late_copied_pages: u64,
    /// Pages that left the device.
    pub device_evicted_pages: u64,
    /// Host copies given up of pages that were on the device.
    pub mirror_dropped_pages: u64,
    /// Pages that left the host and with it the cache.
    pub host_evicted_pages: u64,
    /// Pages that left the cache with their device copy, since the host could not take them.
    pub lost_pages: u64,
    /// Pages for which slots were reserved before their forward.
    pub reserved_pages: u64,
    /// Pages for which slots were reserved when they were in the tree already.
    pub late_reserved_pages: u64,
    /// Backups that became visible.
    pub committed_operations: u64,
    /// Their pages.
    pub committed_pages: u64,
    /// Backups that were rolled back.
    pub rolled_back_operations: u64,
    /// Their pages.
    pub rolled_back_pages: u64,
    /// Pages for which slots were reserved and which the insertion did not bring.
    pub insert_missed_pages: u64,
    /// Backups that were rolled back although other requests rely on them, and are made up for.
    pub donors_lost: u64,
    /// Backups with a copy that is not known to end.
    pub quarantined_operations: u64,
    /// Flushes.
    pub flushes: u64,
    /// Events that were dropped because nobody took them.
    pub dropped_events: u64,
}

impl Counters {
    /// Adds what is alike on all ranks: all but the events that were dropped, since each rank takes its own.
    pub(crate) fn add_to_digest(self, digest: &mut Digest) {
        Self { dropped_events: 0, ..self }.hash(digest);
    }
}

/// A cache at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Totals so far.
    pub counters: Counters,
    /// Device pages of all lanes.
    pub device_capacity_pages: u32,
    /// Device pages that hold pages of the cache.
    pub device_cached_pages: u32,
    /// Device pages that nobody uses; 0 if the engine owns the pool.
    pub device_free_pages: u32,
    /// Device pages that nobody has any more, and that an unfinished copy reads.
    pub device_fenced_pages: u32,
    /// Device pages that open restores fill.
    pub restoring_pages: u32,
    /// Device pages that could be evicted now.
    pub device_evictable_pages: u32,
    /// Host slots of all lanes.
    pub host_capacity_slots: u32,
    /// Host slots that hold pages of the cache.
    pub host_cached_slots: u32,
    /// Host slots of backups that may still be committed.
    pub host_reserved_slots: u32,
    /// Host slots of rolled back backups whose copies have not ended.
    pub host_draining_slots: u32,
    /// Host slots of rolled back backups whose copies are not known to end.
    pub host_quarantined_slots: u32,
    /// Host slots that hold pages that are on the device too.
    pub host_mirror_slots: u32,
    /// Host slots that could be freed now.
    pub host_evictable_slots: u32,
    /// How long the runs of device pages were, if cpkv owns the pool.
    pub device_run_lengths: RunLengths,
    /// How long the runs of host slots were.
    pub host_run_lengths: RunLengths,
    /// Operations that are open.
    pub open_operations: usize,
    /// How long the oldest of them was open at the last tick, by the clock of ticks, since the first tick
    /// that has seen it. On this rank.
    pub oldest_operation_ns: u64,
    /// Distinct pages in the cache, with those that are only reserved for.
    pub pages: u64,
    /// Runs of pages in the tree, roots included.
    pub nodes: usize,
    /// Namespaces, the default one included.
    pub namespaces: usize,
    /// Entries in the eviction heaps.
    pub leaves: usize,
    /// Bytes on the heap for tokens, ids, nodes, index, pools and heaps.
    pub metadata_bytes: usize,
    /// The most that `metadata_bytes` has been after an insertion.
    pub peak_metadata_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_differ_in_dropped_events_only() {
        let digest_of = |counters: Counters| {
            let mut digest = Digest::default();
            counters.add_to_digest(&mut digest);
            digest.finish()
        };
        let none = digest_of(Counters::default());
        assert_eq!(digest_of(Counters { dropped_events: 1, ..Counters::default() }), none);
        assert_ne!(digest_of(Counters { leases: 1, ..Counters::default() }), none);
        assert_ne!(digest_of(Counters { flushes: 1, ..Counters::default() }), none);
    }
}
