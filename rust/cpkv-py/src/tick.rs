//! The calls around a forward: reserve before it, its end, and the tick.

use std::hash::{Hash, Hasher};

use cpkv_core::{CacheConfig, OperationId, Prefill};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::LONG_CALL_TOKENS;
use crate::agreement::{AckWords, CommitLog, Way};
use crate::argument::{Argument, Whole, elements, flag, shown};
use crate::cache::{CacheManager, check_cache, check_transaction};
use crate::errors;
use crate::integers::Integers;
use crate::lease::Lease;
use crate::step::{self, Step};
use crate::transaction::{TickReport, Transaction, ending_of};

/// One request of a batch, read.
struct Read<'py> {
    tokens: Integers,
    device_pages: Integers,
    lease: Bound<'py, Lease>,
}

/// What the copy streams have reached: words, or numbers that stand for them.
pub(crate) fn read_acks(acks: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u64>> {
    let Some(acks) = acks else { return Ok(Vec::new()) };
    if let Ok(words) = acks.cast::<AckWords>() {
        return Ok(words.get().load_all());
    }
    let numbers = Integers::read(acks, "acks")?;
    let number = |&number: &i64| Whole::Read(number).sequence(acks.py(), "acks");
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

    fn attach_log(&self, py: Python<'_>, log: Argument<'_, Bound<'_, CommitLog>>) -> PyResult<()> {
        let log = log.read(py, "log", "a CommitLog")?;
        let (seen, wanted) = (log.get().fingerprint(), self.fingerprint());
        if seen != wanted {
            let message = format!("the log is for caches with the fingerprint {seen:#x}, this one has {wanted:#x}");
            return Err(errors::log(py, message));
        }
        self.check_attachable(py)?;
        log.get().claim(py)?;
        // The cache may have got another way meanwhile, from another thread.
        self.attach(py, Way::Log(log.clone().unbind())).inspect_err(|_| log.get().give_back(py))
    }

    fn attach_reduction(&self, py: Python<'_>, reduce: Py<PyAny>) -> PyResult<()> {
        if !reduce.bind(py).is_callable() {
            let message = format!("reduce is {}, want something to call", shown(reduce.bind(py))?);
            return Err(errors::input_type(py, message));
        }
        self.attach(py, Way::Reduction(reduce, None))
    }

    fn reserve(slf: &Bound<'_, Self>, batch: &Bound<'_, PyAny>) -> PyResult<Vec<Transaction>> {
        let py = slf.py();
        let requests = elements(batch, "batch", "tuples of token_ids, device_pages, lease")?;
        let mut reads = Vec::with_capacity(requests.len());
        for (place, request) in requests.into_iter().enumerate() {
            let parts = request.cast::<PyTuple>().ok().filter(|parts| parts.len() == 3);
            let Some(parts) = parts else {
                let seen = request.get_type().name()?;
                let message =
                    format!("batch: got {seen} at index {place}, want tuples of token_ids, device_pages, lease");
                return Err(errors::input_type(py, message));
            };
            let lease: Argument<'_, Bound<'_, Lease>> = parts.get_item(2)?.extract()?;
            let lease = lease.read(py, &format!("batch: the lease at index {place}"), "a Lease")?;
            check_cache(slf, lease.get())?;
            let tokens = Integers::read(&parts.get_item(0)?, "token_ids")?;
            reads.push(Read { tokens, device_pages: Integers::read(&parts.get_item(1)?, "device_pages")?, lease });
        }
        let leases: Vec<&Lease> = reads.iter().map(|read| read.lease.get()).collect();
        let mut numbers: Vec<u64> = leases.iter().map(|lease| lease.number()).collect();
        numbers.sort_unstable();
        if let Some([number, _]) = numbers.windows(2).find(|two| two[0] == two[1]) {
            return Err(errors::lease(py, &format!("lease {number} is in the batch twice")));
        }
        let arrays: Vec<_> = reads.iter().map(|read| (read.tokens.as_slice(), read.device_pages.as_slice())).collect();
        let tokens: usize = arrays.iter().map(|(tokens, _)| tokens.len()).sum();
        let core = &slf.get().core;
        let reserved = core.call_with_all(py, &leases, tokens >= LONG_CALL_TOKENS, |core, held| {
            let prefill = |(&(tokens, device_pages), &lease)| Prefill { tokens, device_pages, lease };
            let prefills: Vec<_> = arrays.iter().zip(held).map(prefill).collect();
            let reserved = core.reserve_batch(&prefills)?;
            Ok(reserved.into_iter().map(|reserved| (reserved, ending_of(core, reserved))).collect::<Vec<_>>())
        })?;
        let reserved = reserved.map_err(|error| errors::from_core(py, &error))?;
        let transaction = |(reserved, ending)| Transaction::new(slf.clone().unbind(), reserved, ending);
        Ok(reserved.into_iter().map(transaction).collect())
    }

    #[pyo3(
        signature = (transactions, *, target_ran = Argument::Read(true), draft_ran = Argument::Read(true)),
        text_signature = "($self, transactions, *, target_ran=True, draft_ran=True)",
    )]
    fn forward_end(
        slf: &Bound<'_, Self>,
        transactions: &Bound<'_, PyAny>,
        target_ran: Argument<'_, bool>,
        draft_ran: Argument<'_, bool>,
    ) -> PyResult<()> {
        let py = slf.py();
        let (target_ran, draft_ran) = (flag(py, "target_ran", target_ran)?, flag(py, "draft_ran", draft_ran)?);
        let transactions = elements(transactions, "transactions", "Transaction")?
            .into_iter()
            .enumerate()
            .map(|(place, one)| {
                let one: Argument<'_, Bound<'_, Transaction>> = one.extract()?;
                one.read(py, &format!("transactions: the one at index {place}"), "a Transaction")
            })
            .collect::<PyResult<Vec<_>>>()?;
        let mut ids: Vec<OperationId> = Vec::with_capacity(transactions.len());
        for transaction in &transactions {
            check_transaction(slf, transaction.get())?;
            ids.extend(transaction.get().operation());
        }
        let ended = slf.get().core.call(py, false, |core| core.forward_end(&ids, target_ran, draft_ran))?;
        if ended.is_ok() && !(target_ran && (draft_ran || !slf.get().config.has_draft)) {
            for transaction in transactions {
                transaction.get().note_partial();
            }
        }
        ended.map_err(|error| errors::from_core(py, &error))
    }

    #[pyo3(signature = (step, acks = None, *, now_ns = None))]
    fn tick(
        slf: &Bound<'_, Self>,
        step: Argument<'_, u64>,
        acks: Option<&Bound<'_, PyAny>>,
        now_ns: Option<Whole<'_>>,
    ) -> PyResult<TickReport> {
        let (py, cache) = (slf.py(), slf.get());
        let number = step.number(py, "step")?;
        // Words before anything else: a failure that a worker noted before its word is seen then.
        let acks = read_acks(acks)?;
        let now_ns = match now_ns {
            Some(now_ns) => now_ns.sequence(py, "now_ns")?,
            None => u64::try_from(cache.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        let ticked = step::make(py, cache, &Step { number, acks, now_ns })?;
        Ok(TickReport::new(slf.clone().unbind(), ticked))
    }

    fn has_work(&self, py: Python<'_>) -> PyResult<bool> {
        let agreement = self.agreement();
        let (is_alone, is_unfinished) = (matches!(agreement.way, Way::Alone), agreement.unfinished.is_some());
        drop(agreement);
        // Only what all ranks know alike may make one of several tick, and a tick that it was left in.
        let is_needed = is_unfinished || (is_alone && !self.forgotten.is_empty());
        Ok(is_needed || self.core.call(py, false, |core| core.has_work())?)
    }
}

impl CacheManager {
    /// Refuses a way to agree if the cache has one, or it would be too late.
    fn check_attachable(&self, py: Python<'_>) -> PyResult<()> {
        let is_alone = matches!(self.agreement().way, Way::Alone);
        if !is_alone {
            return Err(errors::log(py, "the cache has a way to agree already".to_owned()));
        }
        if self.core.call(py, false, |core| core.open_operations())? > 0 {
            return Err(errors::log(py, "operations are open that were not agreed on".to_owned()));
        }
        Ok(())
    }

    fn attach(&self, py: Python<'_>, mut way: Way) -> PyResult<()> {
        self.check_attachable(py)?;
        let mut agreement = self.agreement();
        let is_alone = matches!(agreement.way, Way::Alone);
        if is_alone {
            std::mem::swap(&mut agreement.way, &mut way);
        }
        drop(agreement);
        if is_alone { Ok(()) } else { Err(errors::log(py, "the cache has a way to agree already".to_owned())) }
    }
}
