//! All ranks, what is between them, and one action taken.

use smallvec::SmallVec;

use super::Setup;
use super::actions::{Action, TreeOperation};
use super::faults::Faults;
use super::rank::{Backup, Broken, Copied, Family, GENERATION, Rank, id};
use crate::agreement::{Fact, OperationId, Report, Tally, Verdict};
use crate::operations::machine::{Phase, Reason};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct World {
    pub(super) family: Family,
    pub(super) ranks: SmallVec<[Rank; 2]>,
    /// Those that the ranks apply in the coming ticks, from the slowest rank on; the log.
    pub(super) entries: SmallVec<[Vec<Verdict>; 3]>,
    /// What the ranks do in the coming ticks, from the slowest rank on.
    pub(super) script: SmallVec<[TreeOperation; 3]>,
    /// Rank 0's.
    pub(super) tally: Tally,
    /// The rank that has begun to act and has its tick next.
    pub(super) turn: Option<u8>,
    pub(super) faults: Faults,
    pub(super) broken: Option<Broken>,
}

impl World {
    pub(super) fn new(setup: &Setup, family: Family) -> Self {
        Self {
            ranks: (0..setup.ranks).map(|_| Rank::new(&family, setup.restores, setup.has_room)).collect(),
            family,
            entries: SmallVec::from_elem(Vec::new(), 1),
            script: SmallVec::new(),
            tally: Tally::new(u32::try_from(setup.ranks).expect("a few")),
            turn: None,
            faults: setup.faults,
            broken: None,
        }
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Rank> + Clone {
        self.ranks.iter().filter(|rank| !rank.is_dead)
    }

    /// The position of the next copy that the manager would take, if one is left.
    pub(super) fn next_submission(&self, setup: &Setup, rank: usize) -> Option<usize> {
        let rank = &self.ranks[rank];
        (rank.submitted..setup.backups * setup.streams).find(|&position| rank.takes_copies(position / setup.streams))
    }

    /// The backup whose copy is the next to land on a stream.
    pub(super) fn next_landing(&self, rank: usize, stream: usize) -> Option<usize> {
        let is_next = |backup: &Backup| {
            let copy = stream.checked_sub(backup.first_stream()).and_then(|stream| backup.copies.get(stream));
            copy == Some(&Copied::Flying)
        };
        self.ranks[rank].backups.iter().position(is_next)
    }

    /// The entry that a rank applies with its next tick, if it is written.
    pub(super) fn entry_for(&self, rank: &Rank) -> Option<&[Verdict]> {
        self.entries.get(usize::from(rank.steps)).map(Vec::as_slice)
    }

    pub(super) fn take(&mut self, setup: &Setup, action: Action) {
        let rank = match action {
            Action::Submit(rank) => {
                self.submit(setup, usize::from(rank));
                rank
            }
            Action::Land { rank, stream } => {
                self.land(usize::from(rank), usize::from(stream), Copied::Landed, true);
                rank
            }
            Action::LoseAck { rank, stream } => {
                self.faults.spend(|faults| &mut faults.losses);
                self.land(usize::from(rank), usize::from(stream), Copied::Landed, false);
                rank
            }
            Action::Fail { rank, stream } => {
                self.faults.spend(|faults| &mut faults.failures);
                self.land(usize::from(rank), usize::from(stream), Copied::Failed, true);
                rank
            }
            Action::Wait { rank, is_early } => {
                if is_early {
                    self.faults.delay(self.ranks[usize::from(rank)].now_ns);
                }
                self.ranks[usize::from(rank)].now_ns += 1;
                rank
            }
            Action::Repeat { rank, backup } => {
                let fact = self.ranks[usize::from(rank)].backups[usize::from(backup)].said.expect("it was said");
                self.stray(rank, Report { operation: id(usize::from(backup)), fact });
                rank
            }
            Action::Stale { rank, backup } => {
                let operation = OperationId { generation: GENERATION - 1, ..id(usize::from(backup)) };
                self.stray(rank, Report { operation, fact: Fact::Failed });
                rank
            }
            Action::Die(rank) => {
                self.faults.spend(|faults| &mut faults.deaths);
                self.die(usize::from(rank));
                return;
            }
            Action::Tick { rank, operation } => {
                self.turn = None;
                self.broken = self.tick(setup, usize::from(rank), operation).err();
                return;
            }
        };
        self.turn = Some(rank);
    }

    fn submit(&mut self, setup: &Setup, rank: usize) {
        let position = self.next_submission(setup, rank).expect("one is left");
        let (index, first) = (position / setup.streams, position % setup.streams);
        let last = if setup.at_once { setup.streams - 1 } else { first };
        let Rank { submitted, backups, now_ns, .. } = &mut self.ranks[rank];
        let backup = &mut backups[index];
        for stream in first..=last {
            backup.local.submitted(backup.first_stream() + stream, index as u64 + 1);
            backup.copies[stream] = Copied::Flying;
        }
        if last == setup.streams - 1 {
            backup.local.close();
            backup.local.wait_from(*now_ns);
        }
        *submitted = index * setup.streams + last + 1;
    }

    fn land(&mut self, rank: usize, stream: usize, end: Copied, is_seen: bool) {
        let index = self.next_landing(rank, stream).expect("one is under way");
        let rank = &mut self.ranks[rank];
        let backup = &mut rank.backups[index];
        backup.copies[stream - backup.first_stream()] = end;
        // Before any word passes it.
        if end == Copied::Failed && backup.is_open() {
            backup.local.fail();
        }
        if is_seen {
            rank.acks[stream] = index as u64 + 1;
        }
    }

    fn stray(&mut self, rank: u8, report: Report) {
        self.faults.spend(|faults| &mut faults.strays);
        self.ranks[usize::from(rank)].published.push(report);
    }

    fn die(&mut self, rank: usize) {
        let rank = &mut self.ranks[rank];
        rank.is_dead = true;
        rank.steps = 0;
        self.forget_steps();
    }

    /// One tick of one rank.
    fn tick(&mut self, setup: &Setup, rank: usize, operation: TreeOperation) -> Result<(), Broken> {
        let Self { family, ranks, entries, tally, script, .. } = self;
        let it = &mut ranks[rank];
        let mut entry = entries[usize::from(it.steps)].clone();
        if (setup.rules.is_behind)(rank) {
            std::mem::swap(&mut entry, &mut it.put_off);
        }
        it.apply(setup, family, &entry)?;
        it.report(setup, family)?;
        if rank == 0 {
            let mut entry = Vec::new();
            for (number, rank) in (0..).zip(ranks.iter_mut()) {
                entry.extend(rank.published.drain(..).filter_map(|report| (setup.rules.add)(tally, number, report)));
            }
            entries.push(entry);
        }
        let it = &mut ranks[rank];
        if usize::from(it.steps) == script.len() {
            script.push(operation);
        }
        it.do_operation(setup, family, operation)?;
        it.steps += 1;
        self.forget_steps();
        let is_dormant = self.ranks[rank].backups.last().is_some_and(Backup::is_dormant);
        let end = (setup.backups - usize::from(is_dormant)) * setup.streams;
        let next = self.next_submission(setup, rank).unwrap_or(end);
        self.ranks[rank].submitted = next;
        self.check_outcome(setup, rank)
    }

    /// Drops what every rank that lives has done.
    fn forget_steps(&mut self) {
        while self.living().count() > 0 && self.living().all(|rank| rank.steps > 0) {
            self.ranks.iter_mut().filter(|rank| !rank.is_dead).for_each(|rank| rank.steps -= 1);
            self.entries.remove(0);
            self.script.remove(0);
        }
    }

    /// Compares what a rank holds for true with what has really happened to the copies.
    fn check_outcome(&self, setup: &Setup, rank: usize) -> Result<(), Broken> {
        let spent = |kind: fn(&Faults) -> u8| kind(&self.faults) < kind(&setup.faults);
        let has_cause =
            spent(|faults| faults.failures) || spent(|faults| faults.losses) || spent(|faults| faults.delays);
        for (index, backup) in self.ranks[rank].backups.iter().enumerate() {
            match backup.state.phase {
                Phase::Committed => {
                    let copies = || self.ranks.iter().flat_map(|rank| &rank.backups[index].copies[..setup.streams]);
                    if !copies().all(|&copy| copy == Copied::Landed) {
                        return Err(Broken::Unseen);
                    }
                    let first = backup.first_stream();
                    let mut acks = self.ranks.iter().flat_map(|rank| &rank.acks[first..first + setup.streams]);
                    if !acks.all(|&ack| ack > index as u64) {
                        return Err(Broken::Silence);
                    }
                }
                // The slot has the same name on all ranks, and their copies write into it.
                Phase::Gone(_) if self.ranks.iter().any(|rank| rank.backups[index].is_flying()) => {
                    return Err(Broken::InFlight);
                }
                Phase::Draining(Reason::CopyFailed)
                | Phase::Quarantined(Reason::CopyFailed)
                | Phase::Gone(Reason::CopyFailed)
                    if !has_cause =>
                {
                    return Err(Broken::Causeless);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
