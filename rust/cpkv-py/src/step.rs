//! One step: what a tick does, by each of the ways to agree.
//!
//! A step may be left while it waits for another rank, by whatever a signal handler raises. Nothing is
//! lost then: before the ranks' entry was applied nothing has changed, and what comes after it is kept
//! as [`Unfinished`], from which the next tick of the same step goes on. Nothing is locked while Python
//! runs.

use cpkv_core::{Error, LogError, Report, Verdict, Votes};
use pyo3::prelude::*;

use crate::agreement::Way;
use crate::cache::CacheManager;
use crate::errors;
use crate::integers::Integers;
use crate::log;
use crate::page_ids::PageIds;
use crate::transaction::Ticked;
use crate::waiting::{self, Stop};

/// The number of a step, and what this rank sees in it.
pub(crate) struct Step {
    pub(crate) number: u64,
    /// What its copy streams have reached.
    pub(crate) acks: Vec<u64>,
    pub(crate) now_ns: u64,
}

/// A step that was applied and not reported to the engine.
pub(crate) struct Unfinished {
    number: u64,
    ticked: Ticked,
    /// What the log is still to be told; on rank 0 an entry as well.
    owed: Option<Vec<Report>>,
}

/// The one tick of a cache that is under way.
struct Turn<'a>(&'a CacheManager);

impl<'a> Turn<'a> {
    fn take(py: Python<'_>, cache: &'a CacheManager) -> PyResult<Self> {
        let is_taken = std::mem::replace(&mut cache.agreement().is_ticking, true);
        if is_taken { Err(errors::usage(py, "a tick of this cache is under way")) } else { Ok(Self(cache)) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.agreement().is_ticking = false;
    }
}

/// Makes a step, or finishes it if it was left.
pub(crate) fn make(py: Python<'_>, cache: &CacheManager, step: &Step) -> PyResult<Ticked> {
    let _turn = Turn::take(py, cache)?;
    let mut made = cache.agreement().unfinished.take();
    match advance(py, cache, step, &mut made).and_then(|()| tell_quarantined(py, made.as_ref())) {
        Ok(()) => Ok(made.expect("the step was made").ticked),
        Err(error) => {
            cache.agreement().unfinished = made;
            Err(error)
        }
    }
}

fn advance(py: Python<'_>, cache: &CacheManager, step: &Step, made: &mut Option<Unfinished>) -> PyResult<()> {
    if let Some(Unfinished { number: wanted, .. }) = *made
        && wanted != step.number
    {
        return Err(errors::from_core(py, &Error::WrongStep { step: step.number, wanted }));
    }
    let mut agreement = cache.agreement();
    match &mut agreement.way {
        Way::Log(log) => {
            let log = log.clone_ref(py);
            drop(agreement);
            waiting::wait(py, log.get(), |log| advance_logged(cache, log, step, made))
        }
        _ if made.is_some() => Ok(()),
        Way::Alone => {
            drop(agreement);
            *made = Some(step_alone(py, cache, step)?);
            Ok(())
        }
        Way::Reduction(reduce, last) => {
            let (reduce, mut last) = (reduce.clone_ref(py), last.take());
            drop(agreement);
            let reduced = step_reduced(py, cache, step, reduce.bind(py), &mut last);
            if let Way::Reduction(_, kept) = &mut cache.agreement().way {
                *kept = last;
            }
            *made = Some(reduced?);
            Ok(())
        }
    }
}

fn step_alone(py: Python<'_>, cache: &CacheManager, step: &Step) -> PyResult<Unfinished> {
    let ticked = cache.core.call(py, false, |core| {
        if !cache.forgotten.is_empty() {
            core.check_step(step.number, &step.acks)?;
            cache.forgotten.end(core);
        }
        core.tick(step.number, &step.acks, step.now_ns).map(|report| Ticked::new(core, report))
    })?;
    let ticked = ticked.map_err(|error| errors::from_core(py, &error))?;
    Ok(Unfinished { number: step.number, ticked, owed: None })
}

/// Begins a step that was checked, ends what was forgotten and applies what the ranks have agreed on.
fn apply(
    cache: &CacheManager,
    core: &mut cpkv_core::CacheManager,
    step: &Step,
    verdicts: &[Verdict],
) -> cpkv_core::Result<Ticked> {
    core.begin_step(step.number)?;
    cache.forgotten.end(core);
    core.apply(verdicts);
    let report = core.end_step();
    Ok(Ticked::new(core, report))
}

/// Goes on with a step of one of several ranks on a host, without the interpreter.
fn advance_logged(
    cache: &CacheManager,
    log: &mut cpkv_core::CommitLog,
    step: &Step,
    made: &mut Option<Unfinished>,
) -> Result<(), Stop> {
    if made.is_none() {
        let is_entry_due = run(cache, |core| core.check_step(step.number, &step.acks))?;
        let mut verdicts = Vec::new();
        if is_entry_due {
            log.read_entry(&mut verdicts).map_err(|error| lose(cache, error))?;
        }
        *made = Some(run(cache, |core| {
            let ticked = apply(cache, core, step, &verdicts)?;
            let owed = core.step_reports(&step.acks, step.now_ns).map(|(reports, stamp)| {
                log.stamp(stamp);
                reports
            });
            Ok(Unfinished { number: step.number, ticked, owed })
        })?);
    }
    let Some(unfinished) = made else { return Ok(()) };
    let Some(reports) = &mut unfinished.owed else { return Ok(()) };
    let reports = std::mem::take(reports);
    let written = log.report(reports).and_then(|()| if log.rank() == 0 { log.write_entry() } else { Ok(()) });
    match written.map_err(|error| lose(cache, error)) {
        Ok(()) => {
            unfinished.owed = None;
            Ok(())
        }
        Err(Stop::Paused) => Err(Stop::Paused),
        Err(lost) => {
            *made = None;
            Err(lost)
        }
    }
}

/// Calls the core where there may be no interpreter.
fn run<T>(
    cache: &CacheManager,
    call: impl FnOnce(&mut cpkv_core::CacheManager) -> cpkv_core::Result<T>,
) -> Result<T, Stop> {
    cache.core.run(call).map_err(Stop::Broken)?.map_err(Stop::Refused)
}

/// What an error of the log comes to: the ranks cannot agree any more, unless it is only a pause.
fn lose(cache: &CacheManager, error: LogError) -> Stop {
    if matches!(error, LogError::Paused { .. }) {
        return Stop::Paused;
    }
    cache.core.run(|core| core.lose_agreement(error)).map_or_else(Stop::Broken, Stop::Refused)
}

/// Applies the votes of the last step and starts the reduction of this one's.
fn step_reduced(
    py: Python<'_>,
    cache: &CacheManager,
    step: &Step,
    reduce: &Bound<'_, PyAny>,
    last: &mut Option<(Votes, Py<PyAny>)>,
) -> PyResult<Unfinished> {
    let refuse = |error: Error| errors::from_core(py, &error);
    cache.core.call(py, false, |core| core.check_step(step.number, &step.acks))?.map_err(refuse)?;
    // Until here, and if this fails, nothing has changed.
    let verdicts = match last {
        Some((votes, reduced)) => reduced_verdicts(votes, reduced.bind(py))?,
        None => Vec::new(),
    };
    let applied = cache.core.call(py, false, |core| {
        let ticked = apply(cache, core, step, &verdicts)?;
        Ok((ticked, (core.open_operations() > 0).then(|| core.votes(&step.acks, step.now_ns))))
    })?;
    let (ticked, votes) = applied.map_err(refuse)?;
    *last = None;
    if let Some(votes) = votes {
        match reduce.call1((PageIds::of(votes.numbers().iter().copied()),)) {
            Ok(reduced) => *last = Some((votes, reduced.unbind())),
            Err(error) => {
                // Nobody knows whether the others wait for this rank's votes, or have them.
                let reason = LogError::Reduction { reason: error.to_string() };
                cache.core.call(py, false, |core| core.lose_agreement(reason))?;
                return Err(error);
            }
        }
    }
    Ok(Unfinished { number: step.number, ticked, owed: None })
}

/// What follows from reduced votes. Waits for a reduction that goes on beside the forward.
fn reduced_verdicts(votes: &Votes, reduced: &Bound<'_, PyAny>) -> PyResult<Vec<Verdict>> {
    let reduced = if reduced.is_callable() { reduced.call0()? } else { reduced.clone() };
    let numbers = Integers::read(&reduced, "reduced votes")?;
    votes
        .verdicts(numbers.as_slice())
        .ok_or_else(|| errors::from_core(reduced.py(), &Error::NotReduced { numbers: votes.numbers().len() }))
}

/// Warns of slots and pages that are lost until somebody ends the stream that may still touch them.
fn tell_quarantined(py: Python<'_>, made: Option<&Unfinished>) -> PyResult<()> {
    let ids = made.map_or_else(Vec::new, |made| made.ticked.quarantined());
    if ids.is_empty() {
        return Ok(());
    }
    log::warn(py, &format!("quarantined {ids:?}: copies are not known to end, and keep their slots and pages"))
}
