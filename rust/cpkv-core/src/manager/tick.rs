//! Tick: the one call at which asynchronous facts become visible.
//!
//! What this rank sees of its own copies becomes reports; what the ranks agree on comes back as
//! verdicts. A single rank agrees with itself at once. Several exchange reports and verdicts
//! between [`CacheManager::step_reports`] and [`CacheManager::apply`]: whoever holds the commit log
//! does so without holding the cache, since that is where another rank is waited for.

use super::{CacheManager, Lease, RolledBack};
use crate::agreement::{LogError, OperationId, Report, Stamp, Votes};
use crate::error::{Error, Result};
use crate::ids::PageId;
use crate::operations::Kind;
use crate::operations::Operation;
use crate::operations::machine::{Event, Phase, Reason, State};

/// What has come of operations since the last tick.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TickReport {
    /// Backups whose host copy is visible now.
    pub committed: Vec<OperationId>,
    /// Backups that were rolled back, and restores that failed.
    pub rolled_back: Vec<RolledBack>,
    /// Restores that have landed.
    pub restored: Vec<OperationId>,
    /// Rolled back backups that have a copy which is not known to end.
    pub quarantined: Vec<OperationId>,
    /// Late backups that are to be copied now.
    pub started: Vec<OperationId>,
    /// Device pages that are the engine's to free now, because the last copy that read them has
    /// ended or the last lease on them was released after a flush. Empty if cpkv owns the pool.
    pub freed_pages: Vec<PageId>,
}

/// The last step that may be the first one: whatever it was, there is always a next one.
const MOST_FIRST_STEP: u64 = u64::MAX / 2;

impl CacheManager {
    /// Notes that a copy of the operation is submitted on this rank, which copy stream `stream`
    /// acknowledges by reaching `sequence`. To be called before the copy is queued: if it is refused,
    /// the copy must not be.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`]; [`Error::Closed`] if it was said that everything was submitted;
    /// [`Error::NoSequence`] for 0, which every stream has reached before it starts.
    pub fn submitted(&mut self, id: OperationId, stream: usize, sequence: u64) -> Result<()> {
        let operation = self.operations.get_mut(id).ok_or(Error::NoSuchOperation { operation: id })?;
        if sequence == 0 {
            return Err(Error::NoSequence { operation: id });
        }
        // What was rolled back meanwhile is waited for as well, as long as nothing else was said.
        if operation.local.has_ended() || (operation.local.is_closed() && operation.state.is_alive()) {
            return Err(Error::Closed { operation: id });
        }
        operation.local.submitted(stream, sequence);
        self.most_streams = self.most_streams.max(stream + 1);
        Ok(())
    }

    /// Notes that every copy of the layers up to `layer` of an operation is submitted on this rank, so
    /// that [`Self::layer_has_landed`] can tell.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`]; [`Error::LayerOrder`] unless it is further than the last one; then
    /// nothing has changed.
    pub fn layer_submitted(&mut self, id: OperationId, layer: u32) -> Result<()> {
        let operation = self.operations.get_mut(id).ok_or(Error::NoSuchOperation { operation: id })?;
        operation.local.layer_submitted(layer).map_err(|last| Error::LayerOrder { layer, last, operation: id })
    }

    /// Whether, on this rank, all pages of the lease can be read in the layers up to `layer`: every
    /// restore of some of them, whoever has started it, has got so far. `acks` as in [`Self::reports`].
    ///
    /// # Errors
    /// [`Error::RestoreFailed`] if a copy has failed on this rank, or the ranks agree that one has. The
    /// others hear of it with a tick, which has to come.
    pub fn layer_has_landed(&self, lease: &Lease, layer: u32, acks: &[u64]) -> Result<bool> {
        self.check_whole(lease)?;
        let restores: Vec<_> = self.restores_of(lease).into_iter().filter_map(|id| self.operations.get(id)).collect();
        if restores.iter().any(|restore| restore.local.has_failed()) {
            return Err(Error::RestoreFailed);
        }
        Ok(restores.iter().all(|restore| restore.local.has_landed_up_to(layer, acks)))
    }

    /// Notes that a copy of the operation has failed on this rank. The others are still waited
    /// for.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`] for a name that was never given.
    pub fn copy_failed(&mut self, id: OperationId) -> Result<()> {
        self.check_operation(id)?;
        if let Some(operation) = self.operations.get_mut(id) {
            operation.local.fail();
        }
        Ok(())
    }

    /// Notes that every copy of the operation was submitted on this rank. An operation that was
    /// rolled back meanwhile is left alone.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`] for a name that was never given.
    pub fn submitted_all(&mut self, id: OperationId) -> Result<()> {
        self.check_operation(id)?;
        self.close(id);
        Ok(())
    }

    /// Rolls a transaction back that a part of its pages was never written of, and remembers that
    /// until they are inserted or given up.
    fn leave_incomplete(&mut self, id: OperationId, reason: Reason) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.local.close();
            if !operation.was_inserted {
                self.incomplete.insert(id);
            }
            self.advance(id, Event::RolledBack(reason));
            self.compact();
        }
    }

    /// Ends the submission of an operation on this rank. If this rank has a share of its pages and has
    /// submitted nothing, its copies will not come.
    pub(super) fn close(&mut self, id: OperationId) {
        let own_lane = self.own_lane;
        let lanes = self.lanes;
        let Some(operation) = self.operations.get_mut(id) else { return };
        let is_ours = |page: &PageId| own_lane.is_none_or(|lane| lanes.lane_of(page.raw()) == lane);
        if !operation.local.is_used() && operation.pages.iter().any(is_ours) {
            operation.local.fail();
        }
        operation.local.close();
    }

    /// What this rank has to report. `acks` holds the last sequence number that each of its copy
    /// streams has reached; `now_ns` is any clock that does not go back.
    pub fn reports(&mut self, acks: &[u64], now_ns: u64) -> Vec<Report> {
        self.now_ns = self.now_ns.max(now_ns);
        let mut reports = Vec::new();
        for position in 0..self.operations.len() {
            let (id, operation) = self.operations.nth(position);
            operation.seen_ns.get_or_insert(self.now_ns);
            let (is_alive, is_running) = (operation.state.is_alive(), operation.state.phase == Phase::Reserved);
            while let Some(fact) = operation.local.next_fact(is_alive, is_running, acks, self.now_ns, self.deadlines) {
                reports.push(Report { operation: id, fact });
            }
        }
        reports
    }

    /// Starts the next tick of a single rank: reports, verdicts and their consequences.
    ///
    /// # Errors
    /// Those of [`Self::check_step`]; then nothing has changed.
    pub fn tick(&mut self, step: u64, acks: &[u64], now_ns: u64) -> Result<TickReport> {
        self.check_step(step, acks)?;
        self.begin_step(step)?;
        // What is rolled back by a verdict may have ended already.
        loop {
            let reports = self.reports(acks, now_ns);
            let verdicts: Vec<_> = reports.into_iter().filter_map(|report| self.tally.add(0, report)).collect();
            if verdicts.is_empty() {
                break;
            }
            let rolled_back = self.outcomes.rolled_back.len();
            self.apply(&verdicts);
            if self.outcomes.rolled_back.len() == rolled_back {
                break;
            }
        }
        Ok(self.end_step())
    }

    /// What this rank reports in a step, and what it has come to, if an entry is to be written in it,
    /// which is due in the next.
    pub fn step_reports(&mut self, acks: &[u64], now_ns: u64) -> Option<(Vec<Report>, Stamp)> {
        self.is_entry_due = !self.operations.is_empty();
        self.is_entry_due.then(|| {
            let stamp = Stamp { step: self.last_step.unwrap_or_default(), digest: self.stamp() };
            (self.reports(acks, now_ns), stamp)
        })
    }

    /// Notes that the ranks cannot agree any more. Every later step says so again: what the others
    /// have applied meanwhile is not known.
    pub fn lose_agreement(&mut self, error: LogError) -> Error {
        self.lost_agreement = Some(error.to_string());
        error.into()
    }

    /// How the open operations are on this rank, to be reduced by minimum over all ranks. To be asked
    /// for after [`Self::end_step`], if operations are open, which all ranks know alike.
    pub fn votes(&mut self, acks: &[u64], now_ns: u64) -> Votes {
        // What is reported is remembered in the votes.
        let _ = self.reports(acks, now_ns);
        Votes::new(self.operations.iter().map(|(id, operation)| (id, operation.local.vote())))
    }

    /// Applies votes of an earlier step, reduced by minimum over all ranks.
    ///
    /// # Errors
    /// [`Error::NotReduced`]; then nothing has changed.
    pub fn apply_votes(&mut self, votes: &Votes, reduced: &[i64]) -> Result<()> {
        let verdicts = votes.verdicts(reduced).ok_or(Error::NotReduced { numbers: votes.numbers().len() })?;
        self.apply(&verdicts);
        Ok(())
    }

    /// Looks whether a step can be made with these words, and changes nothing. True if an entry was
    /// written in the last step, which is to be applied in this one.
    ///
    /// # Errors
    /// [`Error::WrongStep`] unless `step` follows on the last one, [`Error::FirstStep`],
    /// [`Error::AgreementLost`] after [`Self::lose_agreement`], [`Error::TooFewAcks`].
    pub fn check_step(&self, step: u64, acks: &[u64]) -> Result<bool> {
        let is_entry_due = self.check_order(step)?;
        // There is a word for every stream that was ever submitted on, as a rule.
        if acks.len() >= self.most_streams {
            return Ok(is_entry_due);
        }
        let beyond = |(operation, of): (_, &Operation)| Some((of.local.stream_beyond(acks.len())?, operation));
        match self.operations.iter().filter_map(beyond).max_by_key(|&(stream, _)| stream) {
            Some((stream, operation)) => Err(Error::TooFewAcks { operation, stream, words: acks.len() }),
            None => Ok(is_entry_due),
        }
    }

    /// Starts a step whose reports and verdicts are exchanged by the caller: [`Self::apply`],
    /// [`Self::end_step`], [`Self::step_reports`]. True if an entry was written in the last step,
    /// which is to be applied now.
    ///
    /// # Errors
    /// [`Error::WrongStep`], [`Error::FirstStep`] and [`Error::AgreementLost`]; then nothing has changed.
    pub fn begin_step(&mut self, step: u64) -> Result<bool> {
        let is_entry_due = self.check_order(step)?;
        self.last_step = Some(step);
        Ok(is_entry_due)
    }

    fn check_order(&self, step: u64) -> Result<bool> {
        if let Some(reason) = &self.lost_agreement {
            return Err(Error::AgreementLost { reason: reason.clone() });
        }
        if self.last_step.is_none() && step > MOST_FIRST_STEP {
            return Err(Error::FirstStep { step, most: MOST_FIRST_STEP });
        }
        if self.last_step.is_some_and(|last| last.checked_add(1) != Some(step)) {
            let wanted = self.last_step.map_or(0, |last| last.saturating_add(1));
            return Err(Error::WrongStep { step, wanted });
        }
        Ok(self.is_entry_due)
    }

    /// Opens the late backups that are due, and says what has come of operations since the last
    /// step.
    pub fn end_step(&mut self) -> TickReport {
        self.keep_clean();
        let mut report = std::mem::take(&mut self.outcomes);
        // Some may have been rolled back since they were opened.
        report.started.retain(|&id| {
            let is_alive = self.operation_state(id).is_some_and(State::is_alive);
            if let (false, Some(operation)) = (is_alive, self.operations.get_mut(id)) {
                // Nobody knows of it, and nobody will submit anything.
                operation.local.close();
            }
            is_alive
        });
        report
    }

    /// Whether ticks are needed: an operation is open, or there is something to report.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.operations.is_empty() || self.is_entry_due || self.outcomes != TickReport::default()
    }

    /// Operations that are open.
    #[must_use]
    pub fn open_operations(&self) -> usize {
        self.operations.len()
    }

    /// Ends the submission of transactions after their forward. What did not run cannot be
    /// backed up: the transaction is rolled back. Otherwise its commit waits for what was
    /// submitted, and for the insertion.
    ///
    /// # Errors
    /// [`Error::NoSuchOperation`] for a name that was never given, [`Error::NoForward`] for what was not
    /// reserved before a forward; then nothing has changed.
    pub fn forward_end(&mut self, ids: &[OperationId], target_ran: bool, draft_ran: bool) -> Result<()> {
        for &id in ids {
            self.check_operation(id)?;
            if self.operation_kind(id).is_some_and(|kind| kind != Kind::Transaction) {
                return Err(Error::NoForward { operation: id });
            }
        }
        for &id in ids {
            if !target_ran {
                self.leave_incomplete(id, Reason::TargetMissing);
            } else if self.has_draft && !draft_ran {
                self.leave_incomplete(id, Reason::DraftMissing);
            } else {
                self.submitted_all(id)?;
            }
        }
        Ok(())
    }
}
