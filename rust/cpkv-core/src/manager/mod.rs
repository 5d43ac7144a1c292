//! The cache: tree, device pages and host slots kept in step.
//!
//! One file per step of a request's life: [`lookup`] (match), [`lease`] (lock, release), [`evict`]
//! (device), [`pool`] and [`placement`] (allocate, free), [`restore`], [`insert`], with [`adopt`]
//! for what the last two share. Below them [`host`] (copies to the host and their eviction) and
//! [`residency`], where all counting is done; beside them [`inspect`] (figures, digest) and [`integrity`].
//!
//! Promises kept across all of them:
//! - A node with a lock is in no heap and in no evictable count; locks are closed towards the root.
//! - Device residency is closed towards the root. So is the union of both tiers.
//! - A call that is refused changes nothing.
//! - Nothing depends on an address, a clock or the order of a hash map.
//!
//! Host copies are assumed, made the moment they are decided, or tracked: [`reserve`], [`outcome`],
//! [`late`] and [`tick`] are about the latter.

mod adopt;
mod bind;
mod dump;
mod events;
mod evict;
mod flush;
mod holds;
mod host;
mod insert;
mod inspect;
mod integrity;
mod join;
mod late;
mod lease;
mod lookup;
mod lost;
mod outcome;
mod placement;
mod pool;
mod reserve;
mod residency;
mod restore;
#[cfg(test)]
mod tests;
mod tick;

pub use dump::{Dump, NodeDump, OperationDump};
pub use events::{CacheEvent, Medium};
pub use insert::Inserted;
pub use lease::Lease;
pub use lookup::Hit;
pub use outcome::RolledBack;
pub use placement::Placement;
pub use reserve::{Prefill, Reserved};
pub use restore::Restored;
pub use tick::TickReport;

use hashbrown::HashSet;

use crate::agreement::{OperationId, Tally};
use crate::config::{CacheConfig, Copies, Geometry, PoolOwner, WritePolicy};
use crate::digest::Digest;
use crate::error::Result;
use crate::eviction::{EvictionHeaps, Policy};
use crate::ids::{Lane, Lanes, NodeIndex, Pages};
use crate::key::KeyShape;
use crate::operations::{Deadlines, Operations};
use crate::slots::{IdSet, LaneCounts, LanedPool};
use crate::stats::Counters;
use crate::store::Row;
use crate::tree::Tree;
use events::Events;
use holds::PageHolds;

/// Who allocates device pages, and what is needed to check their ids.
#[derive(Debug)]
enum DevicePages {
    /// cpkv does; `requested` are the pages that were allocated and are not in the tree.
    Own { pool: LanedPool, requested: IdSet },
    /// The engine does; `cached` are the pages in the tree.
    Engine { cached: IdSet },
}

#[derive(Debug)]
struct DeviceTier {
    capacity: u32,
    pages: DevicePages,
    /// Pages of nodes that nothing holds.
    evictable: LaneCounts,
    /// Pages of all nodes.
    cached: u32,
    leaves: EvictionHeaps,
}

#[derive(Debug)]
struct HostTier {
    slots: LanedPool,
    /// Slots of nodes that nothing holds.
    evictable: LaneCounts,
    /// Those among them whose pages are on the device too.
    droppable: LaneCounts,
    /// Slots of nodes that are on the device too.
    mirrored: u32,
    mirrors: EvictionHeaps,
    soles: EvictionHeaps,
}

/// A prefix cache over device pages and host slots.
///
/// ```
/// use cpkv_core::{CacheConfig, CacheManager, Namespace};
/// let config = CacheConfig { page_tokens: 4, device_pages: 8, ..CacheConfig::default() };
/// let mut cache = CacheManager::new(&config)?;
/// let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9];
///
/// let hit = cache.match_prefix(&tokens, &Namespace::default(), None);
/// assert_eq!(hit.pages().0, 0);
/// let mut lease = cache.lock(&hit, 0);
/// let pages: Vec<i64> = cache.allocate(cpkv_core::Placement::Stripe(2, cpkv_core::Lane(0)))?.expect("8 are free")
///     .iter().map(|page| i64::from(page.raw())).collect();
/// cache.insert(&tokens, &pages, &mut lease)?;
/// cache.release(lease);
///
/// assert_eq!(cache.match_prefix(&tokens, &Namespace::default(), None).pages().0, 2);
/// # Ok::<(), cpkv_core::Error>(())
/// ```
#[derive(Debug)]
pub struct CacheManager {
    shape: KeyShape,
    lanes: Lanes,
    policy: Policy,
    tree: Tree,
    device: DeviceTier,
    host: Option<HostTier>,
    /// Logical time; grows by one with each lease and insertion.
    clock: u64,
    counters: Counters,
    /// Of the device pages that came and went: some of them, for [`Self::stamp`].
    history: Digest,
    peak_metadata_bytes: usize,
    copies: Copies,
    has_draft: bool,
    own_lane: Option<Lane>,
    /// Transactions whose target or draft did not run and whose pages were not inserted yet.
    incomplete: HashSet<OperationId>,
    /// Why the ranks cannot agree any more.
    lost_agreement: Option<String>,
    write: WritePolicy,
    clean_pages: Pages,
    /// What had happened when the pages that go next were last looked at.
    looked_at: [u64; 4],
    deadlines: Deadlines,
    operations: Operations,
    holds: PageHolds,
    /// The verdicts of a single rank.
    tally: Tally,
    last_step: Option<u64>,
    /// An entry was written in the last step that is to be applied in the next.
    is_entry_due: bool,
    /// The engine's clock at the last tick. Only for what this rank reports.
    now_ns: u64,
    /// Copy streams that were submitted on, on this rank.
    most_streams: usize,
    events: Events,
    /// What the next tick reports.
    outcomes: TickReport,
}

impl CacheManager {
    /// An empty cache.
    ///
    /// # Errors
    /// [`crate::Error::Config`] with everything that is wrong with `config`.
    pub fn new(config: &CacheConfig) -> Result<Self> {
        let geometry = config.check()?;
        Ok(Self::with_tree(config, geometry, Tree::new(geometry.shape)))
    }

    fn with_tree(config: &CacheConfig, geometry: Geometry, mut tree: Tree) -> Self {
        if config.events {
            tree.keep_hashes();
        }
        let lanes = geometry.lanes;
        let pages = match config.owner {
            PoolOwner::Cpkv => DevicePages::Own {
                // Runs matter, segments do not: the device side has no segments.
                pool: LanedPool::new(lanes, geometry.device_pages_per_lane, 1),
                requested: IdSet::default(),
            },
            PoolOwner::Engine => DevicePages::Engine { cached: IdSet::default() },
        };
        let host = geometry.host_slots_per_lane.map(|slots| HostTier {
            slots: LanedPool::new(lanes, slots, geometry.segment_pages),
            evictable: LaneCounts::new(lanes),
            droppable: LaneCounts::new(lanes),
            mirrored: 0,
            mirrors: EvictionHeaps::new(lanes, |heaps| &mut heaps.mirror),
            soles: EvictionHeaps::new(lanes, |heaps| &mut heaps.sole),
        });
        Self {
            shape: geometry.shape,
            lanes,
            policy: config.policy,
            tree,
            device: DeviceTier {
                capacity: geometry.device_pages_per_lane * lanes.count(),
                pages,
                evictable: LaneCounts::new(lanes),
                cached: 0,
                leaves: EvictionHeaps::new(lanes, |heaps| &mut heaps.device),
            },
            host,
            clock: 0,
            counters: Counters::default(),
            history: Digest::default(),
            peak_metadata_bytes: 0,
            copies: config.copies,
            has_draft: config.has_draft,
            own_lane: config.own_lane.map(Lane),
            incomplete: HashSet::new(),
            lost_agreement: None,
            write: config.write,
            clean_pages: Pages(u32::try_from(config.clean_pages).expect("checked with the others")),
            looked_at: [0; 4],
            deadlines: geometry.deadlines,
            operations: Operations::default(),
            holds: PageHolds::default(),
            tally: Tally::new(1),
            last_step: None,
            is_entry_due: false,
            now_ns: 0,
            most_streams: 0,
            events: Events::new(config.events),
            outcomes: TickReport::default(),
        }
    }

    /// The kind of key and the page size.
    #[must_use]
    pub fn shape(&self) -> KeyShape {
        self.shape
    }

    /// The lanes.
    #[must_use]
    pub fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// The nodes from `index` to its root, `index` and root included.
    fn path_up(&self, index: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        std::iter::successors(Some(index), |&node| self.tree.arena[node].parent)
    }
}

/// The logical device ids of rows that are on the device.
fn device_ids(rows: &[Row]) -> impl ExactSizeIterator<Item = u32> + DoubleEndedIterator {
    rows.iter().map(|row| row.page().raw())
}

/// The logical slot ids of rows that are on the host.
fn host_ids(rows: &[Row]) -> impl ExactSizeIterator<Item = u32> + DoubleEndedIterator {
    rows.iter().map(|row| row.slot().raw())
}
