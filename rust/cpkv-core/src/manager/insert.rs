//! Insert: pages that a forward has filled become part of the tree.
//!
//! First everything is looked up and checked, then everything is changed, so that a refused
//! insertion changes nothing.

use super::{CacheManager, Copies, Lease};
use crate::agreement::OperationId;
use crate::error::{Error, Result};
use crate::eviction::Usage;
use crate::ids::{NodeIndex, PageId, Pages, Tokens};
use crate::namespace::Namespace;
use crate::tree::Step;

/// What became of the pages given to an insertion.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inserted {
    /// Pages given that the tree had already. They still belong to the request, which should go
    /// over to the tree's own ([`CacheManager::leased_pages`]) and free them. Those that an
    /// unfinished copy reads are not among them: they come free with a later tick.
    pub duplicates: Vec<PageId>,
    /// Pages that are new in the tree.
    pub new_pages: Pages,
    /// New pages that have a host copy, or a backup that is not finished.
    pub host_pages: Pages,
}

/// Where the pages of an insertion come from.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// A forward that nothing was reserved for.
    Computed,
    /// The same, and a part of them was never written.
    Partial,
    /// A forward that a transaction was reserved for.
    Transaction(OperationId),
}

impl Origin {
    pub(super) fn transaction(self) -> Option<OperationId> {
        if let Self::Transaction(id) = self { Some(id) } else { None }
    }
}

impl CacheManager {
    /// Adds the whole pages of `tokens` to the tree. `device_pages` holds one id for each of them
    /// from page `lease.device_pages()` on. Afterwards the lease holds all of them.
    ///
    /// The tokens in front of that page are taken to be those of the lease; only its last page is
    /// compared, so that the chunks of a long prompt cost no more than the prompt. So are those that a
    /// transaction was reserved with.
    ///
    /// # Errors
    /// [`Error::PageCount`], [`Error::LeaseTokens`], [`Error::PageOutOfRange`],
    /// [`Error::PageRepeated`], [`Error::PageInTree`], [`Error::PageNotAllocated`],
    /// [`Error::PageHeld`], [`Error::TransactionLeftOut`], [`Error::RestoreFailed`]; then nothing has
    /// changed.
    pub fn insert(&mut self, tokens: &[i64], device_pages: &[i64], lease: &mut Lease) -> Result<Inserted> {
        self.insert_with(tokens, device_pages, lease, Origin::Computed)
    }

    /// Like [`Self::insert`] for pages of which a part was never written, since the forward of the target
    /// or of the draft did not run, and that no transaction was reserved for: no copy is made of them.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn insert_partial(&mut self, tokens: &[i64], device_pages: &[i64], lease: &mut Lease) -> Result<Inserted> {
        self.insert_with(tokens, device_pages, lease, Origin::Partial)
    }

    /// Like [`Self::insert`] for pages that a transaction was reserved for, which is bound to
    /// them: its host copy becomes visible once it has landed. What was reserved and is not
    /// brought is given up. A transaction that was rolled back meanwhile is left alone.
    ///
    /// # Errors
    /// As [`Self::insert`], and [`Error::NoSuchOperation`], [`Error::AlreadyBound`] or
    /// [`Error::OtherPage`].
    pub fn insert_bound(
        &mut self,
        tokens: &[i64],
        device_pages: &[i64],
        lease: &mut Lease,
        transaction: OperationId,
    ) -> Result<Inserted> {
        self.check_operation(transaction)?;
        // Before anything else: after a binding nothing else fits either.
        self.check_unbound(transaction)?;
        self.insert_with(tokens, device_pages, lease, Origin::Transaction(transaction))
    }

    fn insert_with(
        &mut self,
        tokens: &[i64],
        device_pages: &[i64],
        lease: &mut Lease,
        origin: Origin,
    ) -> Result<Inserted> {
        let transaction = origin.transaction();
        self.check_whole(lease)?;
        let end = self.shape.pages_in(Tokens(tokens.len()));
        self.check_lease(tokens, end, lease)?;
        check_count(device_pages.len(), lease.device_pages, end)?;
        let mut known = self.nodes_from(lease.node.index, lease.device_pages);
        known.extend(self.reserved_nodes(transaction, lease, tokens, end));
        let mut steps: Vec<Step> =
            known.iter().map(|&node| Step { node, pages: self.tree.arena[node].len() }).collect();
        let deepest_known = known.last().copied().unwrap_or(lease.node.index);
        self.walk_down(deepest_known, tokens, end, |step| {
            steps.push(step);
            true
        });
        let known = self.known_pages(&steps);
        let given = self.claim_all(device_pages, &known)?;
        let has_readers = match self.check_transaction(&given, lease.device_pages, transaction) {
            Ok(has_readers) => has_readers,
            Err(error) => {
                self.unclaim_all(&given, &known);
                return Err(error);
            }
        };

        self.clock += 1;
        self.history.add_id(given.first().map(|page| page.raw()));
        self.history.add_id(given.last().map(|page| page.raw()));
        let (mut inserted, mut gained) = (Inserted::default(), Pages::ZERO);
        // What the lease holds, from here on down.
        let mut deepest = lease.node.index;
        let known_pages = steps.iter().map(|step| step.pages).fold(Pages::ZERO, |sum, pages| sum + pages);
        let (for_steps, for_new) = given.split_at(known_pages.index());
        let mut for_steps = for_steps;
        for step in steps {
            let (given, rest) = for_steps.split_at(step.pages.index());
            for_steps = rest;
            let node = self.walk_into(step, &mut deepest, lease);
            let state = self.tree.arena[node].state;
            if self.adopt(node, given, &mut inserted.duplicates) {
                gained += step.pages;
                if state.tiers.host {
                    self.counters.recomputed_pages += u64::from(step.pages.0);
                } else {
                    inserted.new_pages += step.pages;
                }
            }
        }
        if !for_new.is_empty() {
            deepest = self.add_below(deepest, tokens, end, for_new, lease.priority);
            inserted.new_pages += self.tree.arena[deepest].len();
            gained += self.tree.arena[deepest].len();
        }
        if !self.is_whole(origin) {
            // Device pages are in front of others, so that what came now is the end.
            for node in self.own_nodes(deepest, end - gained) {
                self.tree.arena[node].state.is_partial = true;
            }
        }
        inserted.host_pages = match self.copies {
            Copies::Assumed if for_new.is_empty() => Pages::ZERO,
            Copies::Assumed => self.write_through(deepest),
            Copies::Tracked => self.back_up_inserted(deepest, end - inserted.new_pages, &given, origin, has_readers),
        };
        // Duplicates were claimed to be checked; they go back to their request, except what is
        // still read.
        self.unclaim(&inserted.duplicates);
        self.fence_held(&mut inserted.duplicates);
        self.join_front(deepest);
        lease.node = self.tree.arena.reference(deepest);
        (lease.pages, lease.device_pages) = (end, end);
        self.compact();
        self.counters.inserted_pages += u64::from(inserted.new_pages.0);
        self.counters.duplicate_pages += inserted.duplicates.len() as u64;
        self.note_peak();
        Ok(inserted)
    }

    /// Like [`Self::insert`] for pages that no lease holds; `device_pages` holds one id for each
    /// whole page of `tokens`. An id that the tree has in the very same place is left as it is.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn insert_unleased(&mut self, tokens: &[i64], device_pages: &[i64], namespace: &Namespace) -> Result<Inserted> {
        let root = self.tree.ensure_root(namespace);
        self.hold(root);
        let mut lease =
            Lease { node: self.tree.arena.reference(root), pages: Pages::ZERO, device_pages: Pages::ZERO, priority: 0 };
        let inserted = self.insert(tokens, device_pages, &mut lease);
        self.release(lease);
        inserted
    }

    pub(super) fn check_lease(&self, tokens: &[i64], end: Pages, lease: &Lease) -> Result<()> {
        if end < lease.pages {
            let reason = format!("{} tokens make {end} pages, the lease has {}", tokens.len(), lease.pages);
            return Err(Error::LeaseTokens { reason });
        }
        if lease.pages > Pages::ZERO && !self.tree.last_page_equals(lease.node.index, tokens) {
            let reason = format!("page {} is another one", lease.pages.0 - 1);
            return Err(Error::LeaseTokens { reason });
        }
        Ok(())
    }

    /// Makes the lease, which holds everything down to `held`, hold the pages of `step`; returns the
    /// node that ends where they do.
    fn walk_into(&mut self, step: Step, held: &mut NodeIndex, lease: &Lease) -> NodeIndex {
        let is_whole = step.pages == self.tree.arena[step.node].len();
        let node = if is_whole { step.node } else { self.tree.split(step.node, step.pages) };
        if self.tree.arena[node].end > lease.pages {
            self.hold_instead(node, *held);
            *held = node;
            let usage = &mut self.tree.arena[node].state.usage;
            usage.last_access = self.clock;
            usage.priority = usage.priority.max(lease.priority);
        }
        node
    }

    /// Hangs a new node with `pages` below the one that a lease holds, which holds the new one then.
    fn add_below(
        &mut self,
        parent: NodeIndex,
        tokens: &[i64],
        end: Pages,
        pages: &[PageId],
        priority: i32,
    ) -> NodeIndex {
        let usage = Usage { created: self.clock, last_access: self.clock, hits: 0, priority };
        let node = self.tree.attach(parent, tokens, end, usage);
        self.hold_instead(node, parent);
        self.gain_device(node, pages);
        node
    }
}

/// Refuses a wrong number of page ids for the pages `first .. end`.
pub(super) fn check_count(given: usize, first: Pages, end: Pages) -> Result<()> {
    let wanted = (end - first).0;
    if given == wanted as usize {
        return Ok(());
    }
    Err(Error::PageCount { given, wanted, first: first.0, end: end.0 })
}
