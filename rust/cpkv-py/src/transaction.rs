//! Transactions: the backups of requests, late ones, and restores.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cpkv_core::machine::{Phase, Reason};
use cpkv_core::{Ending, OperationId, OperationKind, Reserved};
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;

use crate::argument::{Argument, Whole};
use crate::cache::CacheManager;
use crate::core::SharedCore;
use crate::errors;
use crate::page_ids::PageIds;

/// An open operation, and what will say how it has ended.
pub(crate) struct Opened {
    id: OperationId,
    kind: OperationKind,
    ending: Ending,
}

impl Opened {
    /// To be made with the core still locked: it may be over by the next call.
    pub(crate) fn new(core: &mut cpkv_core::CacheManager, id: OperationId, kind: OperationKind) -> Self {
        Self { id, kind, ending: ending_of(core, Reserved::Slots(id)) }
    }
}

/// A backup, from its reservation on, or a restore.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct Transaction {
    pub(crate) cache: Py<CacheManager>,
    reserved: Reserved,
    /// How it has ended, also when the core has forgotten it.
    ending: Ending,
    kind: OperationKind,
    /// Locked by itself and for a moment.
    told: Mutex<Told>,
}

/// What was said of a transaction.
#[derive(Clone, Copy, Default)]
struct Told {
    /// Nothing was reserved, and a part of its pages was never written.
    is_partial: bool,
    /// It was inserted.
    is_inserted: bool,
    /// It was inserted or given up, so that it may be dropped.
    is_settled: bool,
}

/// Reasons that an engine may give.
const REASONS: [(&str, Reason); 2] = [("aborted", Reason::Aborted), ("retracted", Reason::Retracted)];

/// The number that stands for an operation in Python.
pub(crate) fn number(id: OperationId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.index)
}

/// What an operation is for.
pub(crate) fn kind_name(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Transaction => "transaction",
        OperationKind::LateBackup => "late",
        OperationKind::Restore => "restore",
    }
}

/// What will say how an operation has ended that was opened in this call of the core.
pub(crate) fn ending_of(core: &mut cpkv_core::CacheManager, reserved: Reserved) -> Ending {
    match reserved {
        Reserved::Slots(id) => core.ending(id).expect("it was opened in this call"),
        Reserved::Nothing | Reserved::NoRoom => Ending::default(),
    }
}

impl Transaction {
    pub(crate) fn new(cache: Py<CacheManager>, reserved: Reserved, ending: Ending) -> Self {
        let told = Told { is_settled: !matches!(reserved, Reserved::Slots(_)), ..Told::default() };
        Self { cache, reserved, ending, kind: OperationKind::Transaction, told: Mutex::new(told) }
    }

    /// One that no request has to settle.
    pub(crate) fn of(cache: Py<CacheManager>, opened: &Opened) -> Self {
        let Opened { id, kind, ref ending } = *opened;
        let told = Told { is_settled: true, ..Told::default() };
        Self { cache, reserved: Reserved::Slots(id), ending: ending.clone(), kind, told: Mutex::new(told) }
    }

    /// Its operation, if slots were reserved.
    pub(crate) fn operation(&self) -> Option<OperationId> {
        if let Reserved::Slots(id) = self.reserved { Some(id) } else { None }
    }

    /// Notes that the forward of its target or draft did not run, if the core knows nothing of it.
    pub(crate) fn note_partial(&self) {
        self.told().is_partial = self.operation().is_none();
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.told().is_partial
    }

    pub(crate) fn is_inserted(&self) -> bool {
        self.told().is_inserted
    }

    pub(crate) fn note_inserted(&self) {
        let mut told = self.told();
        (told.is_inserted, told.is_settled) = (true, true);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn core(&self) -> &SharedCore {
        &self.cache.get().core
    }

    /// Where it is in its life; `None` without slots.
    fn phase(&self, py: Python<'_>) -> PyResult<Option<Phase>> {
        let Some(id) = self.operation() else { return Ok(None) };
        let state = self.core().call(py, false, |core| core.operation_state(id))?;
        Ok(state.map(|state| state.phase).or_else(|| self.ending.phase()))
    }

    /// The operation, which there has to be.
    fn open(&self, py: Python<'_>) -> PyResult<OperationId> {
        let message = "the transaction has no slots: there is nothing to be copied";
        self.operation().ok_or_else(|| errors::transaction(py, message))
    }
}

#[pymethods]
impl Transaction {
    #[getter]
    fn id(&self) -> Option<u64> {
        self.operation().map(number)
    }

    #[getter]
    fn kind(&self) -> &'static str {
        kind_name(self.kind)
    }

    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match (self.reserved, self.phase(py)?) {
            (Reserved::Nothing, _) => "nothing",
            (Reserved::NoRoom, _) => "no_room",
            (_, Some(Phase::Reserved)) => "reserved",
            (_, Some(Phase::Pending)) => "pending",
            (_, Some(Phase::Committed)) => "committed",
            (_, Some(Phase::Draining(_))) => "draining",
            (_, Some(Phase::Quarantined(_))) => "quarantined",
            (_, Some(Phase::Gone(_))) => "rolled_back",
            (Reserved::Slots(id), None) => {
                return Err(errors::integrity(py, format!("nobody knows how operation {id} has ended")));
            }
        })
    }

    #[getter]
    fn reason(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(match self.phase(py)? {
            Some(Phase::Draining(reason) | Phase::Quarantined(reason) | Phase::Gone(reason)) => Some(reason.name()),
            _ => None,
        })
    }

    #[getter]
    fn pages(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.plan(py)?.0.as_slice().len())
    }

    #[getter]
    fn first_page(&self, py: Python<'_>) -> PyResult<u32> {
        let id = self.open(py)?;
        let first = self.core().call(py, false, |core| core.first_page(id))?;
        first.map(|pages| pages.0).map_err(|error| errors::from_core(py, &error))
    }

    /// What is to be copied: device pages and host slots, pair by pair.
    fn plan(&self, py: Python<'_>) -> PyResult<(PageIds, PageIds)> {
        let Some(id) = self.operation() else {
            return Ok((PageIds::new(std::iter::empty()), PageIds::new(std::iter::empty())));
        };
        let plan = self.core().call(py, false, |core| {
            core.plan(id).map(|(pages, slots)| {
                let pages = PageIds::new(pages.iter().map(|page| page.raw()));
                (pages, PageIds::new(slots.iter().map(|slot| slot.raw())))
            })
        })?;
        plan.map_err(|error| errors::from_core(py, &error))
    }

    fn submitted(&self, py: Python<'_>, stream: Whole<'_>, sequence: Whole<'_>) -> PyResult<()> {
        let id = self.open(py)?;
        let (stream, sequence) = (stream.stream(py, "stream")?, sequence.sequence(py, "sequence")?);
        let done = self.core().call(py, false, |core| core.submitted(id, stream as usize, sequence))?;
        done.map_err(|error| errors::from_core(py, &error))
    }

    fn layer_submitted(&self, py: Python<'_>, layer: Whole<'_>) -> PyResult<()> {
        let (id, layer) = (self.open(py)?, layer.count(py, "layer")?);
        let done = self.core().call(py, false, |core| core.layer_submitted(id, layer))?;
        done.map_err(|error| errors::from_core(py, &error))
    }

    fn submitted_all(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.open(py)?;
        let done = self.core().call(py, false, |core| core.submitted_all(id))?;
        done.map_err(|error| errors::from_core(py, &error))
    }

    fn copy_failed(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.open(py)?;
        let done = self.core().call(py, false, |core| core.copy_failed(id))?;
        done.map_err(|error| errors::from_core(py, &error))
    }

    #[pyo3(signature = (reason = Argument::Read("aborted")), text_signature = "($self, reason='aborted')")]
    fn abort(&self, py: Python<'_>, reason: Argument<'_, &str>) -> PyResult<()> {
        let reason = reason.read(py, "reason", "'aborted' or 'retracted'")?;
        let Some((_, reason)) = REASONS.iter().find(|(name, _)| *name == reason) else {
            return Err(errors::input(py, format!("reason is '{reason}', want 'aborted' or 'retracted'")));
        };
        self.told().is_settled = true;
        let Some(id) = self.operation() else { return Ok(()) };
        let done = self.core().call(py, false, |core| core.abort(id, *reason))?;
        done.map_err(|error| errors::from_core(py, &error))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// What was not inserted by now is given up.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        let is_settled = self.told().is_settled;
        if is_settled { Ok(()) } else { self.abort(py, Argument::Read("aborted")) }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let status = self.status(py)?;
        let id = self.operation().map_or_else(|| "None".to_owned(), |id| id.to_string());
        Ok(format!("Transaction(id={id}, kind='{}', status='{status}')", self.kind()))
    }
}

impl Drop for Transaction {
    /// One that was forgotten is given up by the next tick, and warned about.
    fn drop(&mut self) {
        let Some(id) = self.operation().filter(|_| !self.told().is_settled) else { return };
        self.cache.get().forgotten.add_transaction(id);
        let message = "a transaction was dropped without insert() or abort(): the next tick gives it up";
        errors::warn_dropped::<PyResourceWarning>(message);
    }
}

/// What a tick of the core has come to.
pub(crate) struct Ticked {
    report: cpkv_core::TickReport,
    started: Vec<Opened>,
}

impl Ticked {
    /// To be made with the core still locked: what was started may be over by the next call.
    pub(crate) fn new(core: &mut cpkv_core::CacheManager, report: cpkv_core::TickReport) -> Self {
        let opened = |&id: &OperationId| Opened::new(core, id, OperationKind::LateBackup);
        Self { started: report.started.iter().map(opened).collect(), report }
    }

    pub(crate) fn quarantined(&self) -> Vec<u64> {
        self.report.quarantined.iter().map(|&id| number(id)).collect()
    }
}

/// What has come of operations since the last tick.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct TickReport {
    ticked: Ticked,
    pub(crate) cache: Py<CacheManager>,
}

impl TickReport {
    pub(crate) fn new(cache: Py<CacheManager>, ticked: Ticked) -> Self {
        Self { ticked, cache }
    }
}

#[pymethods]
impl TickReport {
    #[getter]
    fn committed(&self) -> Vec<u64> {
        self.ticked.report.committed.iter().map(|&id| number(id)).collect()
    }

    #[getter]
    fn rolled_back(&self) -> Vec<(u64, &'static str)> {
        self.ticked.report.rolled_back.iter().map(|one| (number(one.operation), one.reason.name())).collect()
    }

    #[getter]
    fn restored(&self) -> Vec<u64> {
        self.ticked.report.restored.iter().map(|&id| number(id)).collect()
    }

    #[getter]
    fn quarantined(&self) -> Vec<u64> {
        self.ticked.quarantined()
    }

    #[getter]
    fn started(&self, py: Python<'_>) -> Vec<Transaction> {
        self.ticked.started.iter().map(|opened| Transaction::of(self.cache.clone_ref(py), opened)).collect()
    }

    #[getter]
    fn freed_pages(&self) -> PageIds {
        PageIds::new(self.ticked.report.freed_pages.iter().map(|page| page.raw()))
    }

    fn __repr__(&self) -> String {
        let cpkv_core::TickReport { committed, rolled_back, restored, quarantined, started, freed_pages } =
            &self.ticked.report;
        format!(
            "TickReport(committed={}, rolled_back={}, restored={}, quarantined={}, started={}, freed_pages={})",
            committed.len(),
            rolled_back.len(),
            restored.len(),
            quarantined.len(),
            started.len(),
            freed_pages.len()
        )
    }
}
