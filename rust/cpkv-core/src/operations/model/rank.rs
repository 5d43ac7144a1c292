//! One rank: its replicated backups, its own copies, and what the manager does with both.

use smallvec::SmallVec;

use super::Setup;
use super::rules::Rules;
use crate::agreement::{Fact, OperationId, Report, Verdict};
use crate::operations::machine::{Event, Phase, State};
use crate::operations::{Deadlines, Local};

/// A clock that an action moves by one.
pub(super) const DEADLINES: Deadlines = Deadlines { landing_ns: 1, draining_ns: 1 };
const BOTH_DEADLINES_NS: u64 = DEADLINES.landing_ns + DEADLINES.draining_ns;

/// The generation of the backups of a world; there was one before.
pub(super) const GENERATION: u32 = 1;

/// What was broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Broken {
    /// Committed while a copy on some rank had not landed.
    Unseen,
    /// Committed while an ack on some rank had not come.
    Silence,
    /// Committed before it was bound.
    Unbound,
    /// Released or committed while a copy was under way on that rank, or released while one was on another.
    InFlight,
    /// Released, committed or rolled back twice, or both committed and rolled back.
    Twice,
    /// Committed before a backup in front of it.
    ParentLast,
    /// What was over changed.
    Undone,
    /// A copy was said to have failed that nothing had happened to.
    Causeless,
}

/// The copy streams of a rank in one direction, of which a world may leave one out.
pub(super) const STREAMS: usize = 2;

/// One copy: all that one stream of one rank copies for one backup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Copied {
    #[default]
    NotSubmitted,
    Flying,
    Landed,
    Failed,
}

/// What was done about a backup. Kept by the model, to be compared with its phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that was done or not")]
pub(super) struct Done {
    /// Its pages were inserted.
    pub(super) bound: bool,
    /// When it was rolled back its pages were in the tree.
    pub(super) was_resident: bool,
    pub(super) committed: bool,
    pub(super) rolled_back: bool,
    pub(super) released: bool,
}

/// What a rank counts of what its operations hold, as the manager does: by what it does about them, and never
/// by looking at their phases. A backup has one slot and reads one device page, a restore fills one and has no slot
/// of its own; either holds one lock on the tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ledger {
    pub(super) free_slots: i8,
    /// Slots that a copy may write, of what is alive or not known to have ended.
    pub(super) held_slots: i8,
    /// Slots that the tree shows.
    pub(super) shown_slots: i8,
    /// Copies that use device pages.
    pub(super) uses: i8,
    pub(super) locks: i8,
}

impl Ledger {
    /// All operations are open, but for a late backup that there is room for.
    fn new(operations: usize, restores: usize, late: usize) -> Self {
        let count = |number| i8::try_from(number).expect("a few");
        let open = count(operations - late);
        let held_slots = open - count(restores);
        Self { free_slots: count(late), held_slots, shown_slots: 0, uses: open, locks: open }
    }

    /// The late backup is opened.
    pub(super) fn open_late(&mut self) {
        self.free_slots -= 1;
        self.held_slots += 1;
        self.uses += 1;
        self.locks += 1;
    }
}

/// One backup on one rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Backup {
    pub(super) is_restore: bool,
    /// Not opened before a donor is lost.
    pub(super) is_late: bool,
    /// The donor that it was opened for.
    pub(super) makes_up_for: Option<u8>,
    pub(super) state: State,
    pub(super) local: Local,
    pub(super) copies: [Copied; STREAMS],
    /// The last thing that was reported of it.
    pub(super) said: Option<Fact>,
    pub(super) done: Done,
}

/// The parents of all backups.
pub(super) type Family = SmallVec<[Option<u8>; 4]>;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Rank {
    /// Ticks beyond those that every rank that lives has done.
    pub(super) steps: u8,
    pub(super) is_dead: bool,
    pub(super) now_ns: u64,
    /// Copies submitted or refused, of the target and the draft of each backup in turn.
    pub(super) submitted: usize,
    /// The ack words, two of backups and two of restores: one more than the backup whose copy was seen
    /// to land.
    pub(super) acks: [u64; 2 * STREAMS],
    pub(super) backups: SmallVec<[Backup; 3]>,
    pub(super) ledger: Ledger,
    /// Reports that rank 0 has not read.
    pub(super) published: SmallVec<[Report; 2]>,
    /// An entry that a broken rank applies with the next tick.
    pub(super) put_off: Vec<Verdict>,
}

/// The name of a backup.
pub(super) fn id(index: usize) -> OperationId {
    OperationId { index: u32::try_from(index).expect("a few"), generation: GENERATION }
}

impl Backup {
    /// The first of the streams that its copies take.
    pub(super) fn first_stream(&self) -> usize {
        if self.is_restore { STREAMS } else { 0 }
    }

    /// Whether there is nothing of it yet.
    pub(super) fn is_dormant(&self) -> bool {
        self.is_late && self.makes_up_for.is_none()
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.is_open() && !self.is_dormant()
    }

    pub(super) fn is_alive(&self) -> bool {
        self.state.is_alive() && !self.is_dormant()
    }

    pub(super) fn is_flying(&self) -> bool {
        self.copies.contains(&Copied::Flying)
    }

    fn facts(&mut self, rules: &Rules, acks: &[u64], now_ns: u64) -> SmallVec<[Fact; 3]> {
        if !self.is_open() {
            return SmallVec::new();
        }
        let (is_alive, is_running) = (self.state.is_alive(), self.state.phase == Phase::Reserved);
        let next = || (rules.next_fact)(&mut self.local, is_alive, is_running, acks, now_ns, DEADLINES);
        let facts: SmallVec<[Fact; 3]> = std::iter::from_fn(next).collect();
        self.said = facts.last().copied().or(self.said);
        facts
    }
}

impl Rank {
    /// The first of the family are `restores`; with `has_room` the last is a late backup.
    pub(super) fn new(family: &Family, restores: usize, has_room: bool) -> Self {
        let backup = |(index, parent): (usize, &Option<u8>)| {
            let is_restore = index < restores;
            let is_late = has_room && index + 1 == family.len();
            Backup {
                is_restore,
                is_late,
                makes_up_for: None,
                state: if is_restore || is_late { State::late(false) } else { State::reserved(parent.is_some()) },
                local: Local::default(),
                copies: [Copied::NotSubmitted; STREAMS],
                said: None,
                done: Done { bound: is_restore, ..Done::default() },
            }
        };
        Self {
            steps: 0,
            is_dead: false,
            now_ns: 0,
            submitted: 0,
            acks: [0; 2 * STREAMS],
            backups: family.iter().enumerate().map(backup).collect(),
            ledger: Ledger::new(family.len(), restores, usize::from(has_room)),
            published: SmallVec::new(),
            put_off: Vec::new(),
        }
    }

    /// Whether `submitted` would take a copy of this backup, as the manager decides it.
    pub(super) fn takes_copies(&self, index: usize) -> bool {
        let backup = &self.backups[index];
        let Backup { local, .. } = backup;
        backup.is_open() && !local.has_ended() && !(local.is_closed() && backup.is_alive())
    }

    /// Whether there would be something to report `later_ns` from now.
    pub(super) fn has_facts(&self, setup: &Setup, later_ns: u64) -> bool {
        let now_ns = self.now_ns + later_ns;
        self.backups.iter().any(|backup| !backup.clone().facts(&setup.rules, &self.acks, now_ns).is_empty())
    }

    /// Whether time alone would bring something to report.
    pub(super) fn waits_for_deadline(&self, setup: &Setup) -> bool {
        let is_new = |backup: &Backup| {
            let facts = |now_ns| backup.clone().facts(&setup.rules, &self.acks, now_ns);
            facts(self.now_ns).is_empty() && !facts(self.now_ns + BOTH_DEADLINES_NS).is_empty()
        };
        self.backups.iter().any(is_new)
    }

    /// Publishes what there is to report.
    pub(super) fn report(&mut self, setup: &Setup, family: &Family) -> Result<(), Broken> {
        for index in 0..self.backups.len() {
            let facts = self.backups[index].facts(&setup.rules, &self.acks, self.now_ns);
            self.published.extend(facts.iter().map(|&fact| Report { operation: id(index), fact }));
            for ruling in facts.into_iter().filter_map(setup.rules.at_once) {
                self.advance(setup, family, index, Event::Ruled(ruling))?;
            }
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, setup: &Setup, family: &Family, entry: &[Verdict]) -> Result<(), Broken> {
        for verdict in entry {
            let named = (0..self.backups.len()).find(|&index| (setup.rules.names_it)(verdict.operation, id(index)));
            if let Some(index) = named {
                self.advance(setup, family, index, Event::Ruled(verdict.ruling))?;
            }
        }
        Ok(())
    }
}
