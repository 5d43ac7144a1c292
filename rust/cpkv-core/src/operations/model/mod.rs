//! The model check: every state that a few backups on a few ranks can reach.
//!
//! What is explored is the product's own code ([`machine::step`], [`Tally::add`] and
//! [`Local::next_fact`]) in a small world made for it:
//!
//! - `rank` is what one rank knows, `outcome` what it does about an event;
//! - `world` puts the ranks, the commit log and the script of tree operations together;
//! - `actions` says what may happen next, `faults` how much of it is to go wrong;
//! - `checks` are the properties, `sizes` the worlds that are explored whole, `walks` larger ones
//!   that are walked through at random, `breaks` the broken rules that have to be found.
//!
//! A tick of a rank is one action, as nothing can be seen of a rank between its ticks. For the same
//! reason what a rank does before its tick (submits copies, sees them land) follows in one go. Both
//! leave out only orders that nobody could tell apart; a copy lands as late as it can. The model
//! has no cycle: each action uses something up, and a tick that would change nothing is not taken.
//!
//! A restore is a backup whose pages are in the tree from the start, that waits for nothing, and that
//! takes along all that lies behind it if it fails.
//!
//! `checks` says which invariant each property stands for; docs/architecture.md has them in one table.
//!
//! Left out, and tested over the real tree instead:
//!
//! - Splits. [`State`] has nothing that a split could change, and [`Event`] has no split: a backup knows the node
//!   that its pages end with, and the parts in front of it are found by the manager (`commit`, `roll_back`). A
//!   world with split nodes would test code that only the model has. `tests/shapes/splits.rs` splits at every page
//!   and moment of a backup, `tests/random_backups.rs` at random.
//! - More than one late backup that makes up for a lost donor. Whether there is room for one is a question about
//!   the tree: here there is for the first donor that is lost (`Setup::has_room`), or for none, and what waits is
//!   rolled back (`ParentLost`). `tests/random_backups.rs` meets them in any number.
//! - Places of the table that are used again, but for reports of an earlier life of a name; and the ring's limit
//!   beyond `Setup::ring`.
//!
//! [`machine::step`]: super::machine::step
//! [`State`]: super::machine::State
//! [`Event`]: super::machine::Event
//! [`Tally::add`]: crate::agreement::Tally::add
//! [`Local::next_fact`]: super::Local::next_fact

mod actions;
mod breaks;
mod checks;
mod faults;
mod outcome;
mod rank;
mod rules;
mod sizes;
mod walks;
mod world;

use std::sync::atomic::AtomicU32;

use faults::Faults;
use rules::Rules;

/// Which backups lie behind which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parents {
    /// In every possible way, each in a world of its own.
    Any,
    /// Each behind the one before it.
    Chain,
}

/// One world to be explored.
#[derive(Debug)]
struct Setup {
    ranks: usize,
    /// With the restores.
    backups: usize,
    /// So many of them, the first, are restores.
    restores: usize,
    /// The last of them is a late backup, which there is room for once a donor is lost. Otherwise there is none.
    has_room: bool,
    parents: Parents,
    /// Copy streams of a rank, one or two.
    streams: usize,
    /// Whether target and draft of a backup are submitted in one go.
    at_once: bool,
    /// Steps that a rank may be in front of the slowest that lives.
    ring: u8,
    /// What may go wrong, and how often.
    faults: Faults,
    rules: Rules,
    /// What cannot be met in this world of what is met sometimes, by the names in `checks`.
    lacks: &'static [&'static str],
    /// A bit for each thing that was met already.
    met: AtomicU32,
}

impl Setup {
    fn new(ranks: usize, backups: usize, faults: Faults) -> Self {
        Self {
            ranks,
            backups,
            restores: 0,
            has_room: false,
            parents: Parents::Any,
            streams: 2,
            at_once: false,
            ring: 2,
            faults,
            rules: Rules::PRODUCT,
            lacks: &[],
            met: AtomicU32::new(0),
        }
    }

    /// For the counts.
    fn size(&self) -> String {
        let Self { ranks, backups, restores, streams, faults, .. } = self;
        let restores = if *restores > 0 { format!(", {restores} of them restores") } else { String::new() };
        let restores = if self.has_room { format!("{restores}, the last late") } else { restores };
        let Faults { give_ups, flushes, together, .. } = faults;
        let faults = format!("{together} faults, {give_ups} given up, {flushes} flushes");
        format!("{ranks} ranks x {backups} backups{restores} ({streams} streams, {faults})")
    }
}
