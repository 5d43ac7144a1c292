//! The calls around a forward: reserve before it, its end, and the tick.

use std::hash::{Hash, Hasher};
use std::sync::{MutexGuard, PoisonError};

use cpkv_core::{CacheConfig, OperationId, Prefill, Votes};
use pyo3::prelude::*;

use crate::LONG_CALL_TOKENS;
use crate::agreement::{self, AckWords, Agreement, CommitLog};
use crate::cache::{CacheManager, check_cache, check_transaction};
use crate::errors;
use crate::integers::Integers;
use crate::lease::{Lease, released};
use crate::page_ids::PageIds;
use crate::transaction::{TickReport, Ticked, Transaction, ending_of};
use crate::whole::Whole;

/// One request of a batch, read.
struct Read<'py> {
    tokens: Integers,
    device_pages: Integers,
    lease: PyRef<'py, Lease>,
}

/// What the copy streams have reached: words, or numbers that stand for them.
pub(crate) fn read_acks(acks: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u64>> {
    let Some(acks) = acks else { return Ok(Vec::new()) };
    if let Ok(words) = acks.cast::<AckWords>() {
        return Ok(words.get().load_all());
    }
    let numbers = Integers::read(acks, "acks")?;
    let number = |&number: &i64| Whole(number).sequence(acks.py(), "acks");
    numbers.as_slice().iter().map(number).collect()
}

#[pymethods]
impl CacheManager {
    #[getter]
    fn fingerprint(&self) -> u64 {
        // Fixed keys: ranks are processes of the same build. They differ in their lane only.
        let mut hasher = std::hash::DefaultHasher::new();
        let common = CacheConfig { own_lane: None, ..self.config.clone() };
        format!("{} {common:?}", env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        hasher.finish()
    }

    fn attach_log(&self, py: Python<'_>, log: Py<CommitLog>) -> PyResult<()> {
        let (seen, wanted) = (log.get().fingerprint(), self.fingerprint());
        if seen != wanted {
            let message = format!("the log is for caches with the fingerprint {seen:#x}, this one has {wanted:#x}");
            return Err(errors::log(py, message));
        }
        if !log.get().claim() {
            return Err(errors::log(py, "the log is another cache's already".to_owned()));
        }
        self.attach(py, Agreement::Log(log))
    }

    fn attach_reduction(&self, py: Python<'_>, reduce: Py<PyAny>) -> PyResult<()> {
        if !reduce.bind(py).is_callable() {
            let message = format!("reduce: got {}, want something to call", reduce.bind(py).get_type().name()?);
            return Err(errors::input_type(py, message));
        }
        self.attach(py, Agreement::Reduction(reduce, None))
    }

    fn reserve(slf: &Bound<'_, Self>, batch: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Transaction>> {
        let py = slf.py();
        let mut reads = Vec::with_capacity(batch.len());
        for request in batch {
            let (tokens, device_pages, lease): (Bound<'_, PyAny>, Bound<'_, PyAny>, PyRef<'_, Lease>) =
                request.extract().map_err(|_| {
                    let seen = request.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
                    errors::input_type(py, format!("batch: got {seen}, want tuples of token_ids, device_pages, lease"))
                })?;
            check_cache(slf, &lease)?;
            let tokens = Integers::read(&tokens, "token_ids")?;
            reads.push(Read { tokens, device_pages: Integers::read(&device_pages, "device_pages")?, lease });
        }
        let mut leases: Vec<MutexGuard<'_, Option<cpkv_core::Lease>>> = Vec::with_capacity(reads.len());
        for read in &reads {
            // A lease that is in the batch twice, or in use by another thread.
            let Some(lease) = read.lease.try_lock() else {
                return Err(errors::lease(py, "a lease is in the batch twice, or used by another thread"));
            };
            leases.push(lease);
        }
        let mut prefills = Vec::with_capacity(reads.len());
        for (read, lease) in reads.iter().zip(&leases) {
            let lease = lease.as_ref().ok_or_else(|| released(py))?;
            prefills.push(Prefill {
                tokens: read.tokens.as_slice(),
                device_pages: read.device_pages.as_slice(),
                lease,
            });
        }
        let tokens: usize = prefills.iter().map(|prefill| prefill.tokens.len()).sum();
        let core = &slf.get().core;
        let reserved = core.call(py, tokens >= LONG_CALL_TOKENS, |core| {
            let reserved = core.reserve_batch(&prefills)?;
            Ok(reserved.into_iter().map(|reserved| (reserved, ending_of(core, reserved))).collect::<Vec<_>>())
        })?;
        let reserved = reserved.map_err(|error| errors::from_core(py, &error))?;
        let transaction = |(reserved, ending)| Transaction::new(slf.clone().unbind(), reserved, ending);
        Ok(reserved.into_iter().map(transaction).collect())
    }

    #[pyo3(signature = (transactions, *, target_ran = true, draft_ran = true))]
    fn forward_end(
        slf: &Bound<'_, Self>,
        transactions: Vec<PyRef<'_, Transaction>>,
        target_ran: bool,
        draft_ran: bool,
    ) -> PyResult<()> {
        let mut ids: Vec<OperationId> = Vec::with_capacity(transactions.len());
        for transaction in transactions {
            check_transaction(slf, &transaction)?;
            ids.extend(transaction.operation());
        }
        let ended = slf.get().core.call(slf.py(), false, |core| core.forward_end(&ids, target_ran, draft_ran))?;
        ended.map_err(|error| errors::from_core(slf.py(), &error))
    }

    #[pyo3(signature = (step, acks = None, *, now_ns = None))]
    fn tick(
        slf: &Bound<'_, Self>,
        step: Whole,
        acks: Option<&Bound<'_, PyAny>>,
        now_ns: Option<Whole>,
    ) -> PyResult<TickReport> {
        let (py, cache) = (slf.py(), slf.get());
        let step = step.sequence(py, "step")?;
        // Words before anything else: a failure that a worker noted before its word is seen then.
        let acks = read_acks(acks)?;
        let now_ns = match now_ns {
            Some(now_ns) => now_ns.sequence(py, "now_ns")?,
            None => u64::try_from(cache.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        let mut agreement = cache.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        let report = match &mut *agreement {
            Agreement::Alone => cache.core.call(py, false, |core| {
                core.check_step(step, &acks)?;
                cache.forgotten.end(core);
                core.tick(step, &acks, now_ns).map(|report| Ticked::new(core, report))
            })?,
            Agreement::Log(log) => {
                let log = log.clone_ref(py);
                drop(agreement);
                let ticked = py.detach(|| tick_logged(cache, log.get(), step, &acks, now_ns));
                log.get().tell(py);
                match ticked.ok_or_else(|| agreement::closed(py))? {
                    Ok(report) => report,
                    Err(reason) => return Err(errors::integrity(py, reason)),
                }
            }
            Agreement::Reduction(reduce, last) => {
                let (reduce, last) = (reduce.clone_ref(py), last.take());
                drop(agreement);
                return Self::tick_reduced(slf, step, &acks, now_ns, reduce.bind(py), last);
            }
        };
        report
            .map(|report| TickReport::new(py, slf.clone().unbind(), report))
            .map_err(|error| errors::from_core(py, &error))
    }

    fn has_work(&self, py: Python<'_>) -> PyResult<bool> {
        let agreement = self.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        // Only what all ranks know alike may make one of several tick.
        let is_needed = matches!(*agreement, Agreement::Alone) && !self.forgotten.is_empty();
        drop(agreement);
        Ok(is_needed || self.core.call(py, false, |core| core.has_work())?)
    }
}

impl CacheManager {
    /// Begins a step of one of several ranks, with the end of what was forgotten. True if an entry is due.
    fn begin(&self, core: &mut cpkv_core::CacheManager, step: u64, acks: &[u64]) -> cpkv_core::Result<bool> {
        core.check_step(step, acks)?;
        let is_entry_due = core.begin_step(step)?;
        self.forgotten.end(core);
        Ok(is_entry_due)
    }

    fn attach(&self, py: Python<'_>, agreement: Agreement) -> PyResult<()> {
        if self.core.call(py, false, |core| core.open_operations())? > 0 {
            return Err(errors::log(py, "operations are open that were not agreed on".to_owned()));
        }
        let mut attached = self.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*attached, Agreement::Alone) {
            return Err(errors::log(py, "the cache has a way to agree already".to_owned()));
        }
        *attached = agreement;
        Ok(())
    }

    /// Applies the votes of the last tick and starts the reduction of this one's. Nothing is locked
    /// while the reduction is called.
    fn tick_reduced(
        slf: &Bound<'_, Self>,
        step: u64,
        acks: &[u64],
        now_ns: u64,
        reduce: &Bound<'_, PyAny>,
        last: Option<(Votes, Py<PyAny>)>,
    ) -> PyResult<TickReport> {
        let (py, cache) = (slf.py(), slf.get());
        let refuse = |error: cpkv_core::Error| errors::from_core(py, &error);
        cache.core.call(py, false, |core| cache.begin(core, step, acks))?.map_err(refuse)?;
        if let Some((votes, reduced)) = last {
            let mut reduced = reduced.into_bound(py);
            if reduced.is_callable() {
                // The reduction goes on beside the forward; this waits for it.
                reduced = reduced.call0()?;
            }
            let reduced = Integers::read(&reduced, "reduced votes")?;
            cache.core.call(py, false, |core| core.apply_votes(&votes, reduced.as_slice()))?.map_err(refuse)?;
        }
        let (report, votes) = cache.core.call(py, false, |core| {
            let report = core.end_step();
            (Ticked::new(core, report), (core.open_operations() > 0).then(|| core.votes(acks, now_ns)))
        })?;
        if let Some(votes) = votes {
            let reduced = reduce.call1((PageIds::of_numbers(votes.numbers()),))?.unbind();
            let mut agreement = cache.agreement.lock().unwrap_or_else(PoisonError::into_inner);
            if let Agreement::Reduction(_, last) = &mut *agreement {
                *last = Some((votes, reduced));
            }
        }
        Ok(TickReport::new(py, slf.clone().unbind(), report))
    }
}

/// A tick of one of several ranks, without the interpreter. Only the log is locked while another rank
/// is waited for. `None` if the log was closed.
fn tick_logged(
    cache: &CacheManager,
    log: &CommitLog,
    step: u64,
    acks: &[u64],
    now_ns: u64,
) -> Option<Result<cpkv_core::Result<Ticked>, String>> {
    let mut held = log.lock();
    let log = held.as_mut()?;
    let lose = |error| cache.core.run(|core| Err(core.lose_agreement(error)));
    let mut verdicts = Vec::new();
    match cache.core.run(|core| cache.begin(core, step, acks)) {
        Ok(Ok(true)) => {
            if let Err(error) = log.read_entry(&mut verdicts) {
                return Some(lose(error));
            }
        }
        Ok(Ok(false)) => {}
        Ok(Err(error)) => return Some(Ok(Err(error))),
        Err(reason) => return Some(Err(reason)),
    }
    let applied = cache.core.run(|core| {
        core.apply(&verdicts);
        let report = core.end_step();
        (Ticked::new(core, report), core.step_reports(acks, now_ns))
    });
    let (report, reports) = match applied {
        Ok(applied) => applied,
        Err(reason) => return Some(Err(reason)),
    };
    if let Some(reports) = reports {
        let written = log.report(reports).and_then(|()| if log.rank() == 0 { log.write_entry() } else { Ok(()) });
        if let Err(error) = written {
            return Some(lose(error));
        }
    }
    Some(Ok(Ok(report)))
}
