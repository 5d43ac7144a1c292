//! The rules that a world follows: the product's, or broken ones.

use crate::agreement::{Fact, OperationId, Report, Ruling, Tally, Verdict};
use crate::operations::machine::{Effects, Event, State, step};
use crate::operations::{Deadlines, Local};

type NextFact = fn(&mut Local, bool, bool, &[u64], u64, Deadlines) -> Option<Fact>;

/// What is under test, each a function that a break can replace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) step: fn(State, Event) -> (State, Effects),
    pub(super) add: fn(&mut Tally, u32, Report) -> Option<Verdict>,
    pub(super) next_fact: NextFact,
    /// Whether a verdict on the first is about the second.
    pub(super) names_it: fn(OperationId, OperationId) -> bool,
    /// What a rank makes of a fact of its own before the others have heard of it.
    pub(super) at_once: fn(Fact) -> Option<Ruling>,
    /// Whether a rank applies entries one step after the others.
    pub(super) is_behind: fn(usize) -> bool,
}

impl Rules {
    /// Those of the product.
    pub(super) const PRODUCT: Self = Self {
        step,
        add: Tally::add,
        next_fact: Local::next_fact,
        names_it: |named, it| named == it,
        at_once: |_| None,
        is_behind: |_| false,
    };
}
