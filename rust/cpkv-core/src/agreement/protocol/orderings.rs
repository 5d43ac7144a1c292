//! The ordering of every access that orders others, under the name of its rule.

use super::super::sync::Ordering;

/// The orderings of the protocols; the defaults are the product's.
///
/// They are a trait so that a model can weaken one of them in the code that ships. Each store is
/// paired with the load that follows it here. Bodies and failed flags are relaxed throughout: they
/// are carried by these words.
pub(crate) trait Orderings {
    /// landed-before-word: who sees an ack word pass a submission sees what its copies wrote, and
    /// its failed flag. A read-modify-write, so that a later writer of the word carries it on.
    const ADVANCE: Ordering = Ordering::Release;
    /// Pairs with [`Self::ADVANCE`].
    const REACHED: Ordering = Ordering::Acquire;

    /// report-before-tail: who sees the tail of a report ring sees every report before it.
    const TAIL_STORE: Ordering = Ordering::Release;
    /// Pairs with [`Self::TAIL_STORE`].
    const TAIL_LOAD: Ordering = Ordering::Acquire;

    /// taken-before-head: who sees the head of a report ring writes only over reports that were
    /// read.
    const HEAD_STORE: Ordering = Ordering::Release;
    /// Pairs with [`Self::HEAD_STORE`].
    const HEAD_LOAD: Ordering = Ordering::Acquire;

    /// entry-before-number: who sees the number of an entry sees its count and its verdicts.
    const NUMBER_STORE: Ordering = Ordering::Release;
    /// Pairs with [`Self::NUMBER_STORE`].
    const NUMBER_LOAD: Ordering = Ordering::Acquire;

    /// read-before-applied: who sees that a rank has applied an entry writes over it only after
    /// that rank has read it.
    const APPLIED_STORE: Ordering = Ordering::Release;
    /// Pairs with [`Self::APPLIED_STORE`].
    const APPLIED_LOAD: Ordering = Ordering::Acquire;

    /// last-words-before-state: who sees that a rank has left sees its last report, its last entry,
    /// its last applied count, and whom it has found dead.
    const STATE_STORE: Ordering = Ordering::Release;
    /// Pairs with [`Self::STATE_STORE`].
    const STATE_LOAD: Ordering = Ordering::Acquire;

    /// header-before-ready: who sees that a log is ready sees its whole header.
    const READY_STORE: Ordering = Ordering::Release;
    /// Pairs with [`Self::READY_STORE`].
    const READY_LOAD: Ordering = Ordering::Acquire;
}

/// The orderings that ship.
pub(crate) struct Product;

impl Orderings for Product {}
