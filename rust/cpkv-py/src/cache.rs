//! The cache and what its calls return.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cpkv_core::{CacheConfig, Error, PageId, Placement};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::agreement::Agreement;
use crate::argument::{Argument, Whole};
use crate::core::SharedCore;
use crate::dump;
use crate::errors;
use crate::forgotten::Forgotten;
use crate::integers::Integers;
use crate::lease::Lease;
use crate::page_ids::PageIds;
use crate::settings::Conflicts;
use crate::stats::Stats;
use crate::transaction::Transaction;
use crate::{LONG_CALL_PAGES, LONG_CALL_TOKENS, namespace};

#[pyclass(frozen, module = "cpkv")]
pub(crate) struct CacheManager {
    pub(crate) core: SharedCore,
    pub(crate) config: CacheConfig,
    /// How several ranks agree.
    pub(crate) agreement: Mutex<Agreement>,
    /// What was dropped and is to be ended by the next tick.
    pub(crate) forgotten: Forgotten,
    /// The time that ticks are counted from, if the engine gives none.
    pub(crate) started: Instant,
}

impl CacheManager {
    /// Locks how the ranks agree, with nothing else locked and for a moment.
    pub(crate) fn agreement(&self) -> MutexGuard<'_, Agreement> {
        self.agreement.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a match found.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct Hit {
    pub(crate) cache: Py<CacheManager>,
    found: cpkv_core::Hit,
    page_tokens: usize,
}

/// What became of the pages given to an insertion.
#[pyclass(frozen, module = "cpkv")]
pub(crate) struct Inserted(cpkv_core::Inserted);

pub(crate) fn page_ids(pages: &[PageId]) -> PageIds {
    PageIds::new(pages.iter().map(|page| page.raw()))
}

/// Reads where pages are to be, either so many in a stripe or a lane for each, and calls the core.
fn placed<T: Send>(
    cache: &CacheManager,
    py: Python<'_>,
    count: Option<Whole<'_>>,
    first_lane: Option<Whole<'_>>,
    lanes: Option<&Bound<'_, PyAny>>,
    call: impl FnOnce(&mut cpkv_core::CacheManager, Placement<'_>) -> cpkv_core::Result<T> + Send,
) -> PyResult<T> {
    let result = match (count, first_lane, lanes) {
        (Some(count), first_lane, None) => {
            let first_lane = first_lane.unwrap_or(Argument::Read(0)).lane(py, "first_lane")?;
            let count = count.count(py, "count")?;
            let is_long = count as usize >= LONG_CALL_PAGES;
            cache.core.call(py, is_long, |core| call(core, Placement::Stripe(count, first_lane)))
        }
        (None, None, Some(lanes)) => {
            let lanes = Integers::read(lanes, "lanes")?;
            let lanes = lanes.as_slice();
            cache.core.call(py, lanes.len() >= LONG_CALL_PAGES, |core| call(core, Placement::Each(lanes)))
        }
        _ => return Err(errors::input(py, "want either count and first_lane, or lanes".to_owned())),
    };
    result?.map_err(|error| errors::from_core(py, &error))
}

/// A hit of this very cache.
fn own_hit<'py>(cache: &Bound<'py, CacheManager>, hit: Argument<'py, Bound<'py, Hit>>) -> PyResult<Bound<'py, Hit>> {
    let py = cache.py();
    let hit = hit.read(py, "hit", "a Hit, which match returns")?;
    if !hit.get().cache.is(cache) {
        return Err(errors::lease(py, &format!("the hit of {} pages comes from another cache", hit.get().pages())));
    }
    Ok(hit)
}

/// Takes a lease of what a hit found.
fn leased<'py>(
    cache: &Bound<'py, CacheManager>,
    hit: Argument<'py, Bound<'py, Hit>>,
    priority: Whole<'py>,
    take: impl FnOnce(&mut cpkv_core::CacheManager, &cpkv_core::Hit, i32) -> cpkv_core::Lease + Send,
) -> PyResult<Lease> {
    let py = cache.py();
    let hit = own_hit(cache, hit)?;
    let hit = hit.get();
    let priority = priority.priority(py, "priority")?;
    let (lease, number) = cache.get().core.call(py, false, |core| {
        // With the core locked: numbered in the order in which they are taken.
        (take(core, &hit.found, priority), core.leases_taken())
    })?;
    Ok(Lease::new(cache.clone().unbind(), hit.page_tokens, lease, number))
}

#[pymethods]
impl CacheManager {
    #[new]
    #[pyo3(
        signature = (
            *, device_pages, page_size = Argument::Read(64), key = Argument::Read("token"), lanes = Argument::Read(1), device_pool = Argument::Read("owned"),
            host_slots = None, segment_pages = Argument::Read(32), policy = Argument::Read("lru"), copies = Argument::Read("assumed"), draft = Argument::Read(false),
            copy_deadline = Argument::Read(300.0), events = Argument::Read(false), write = Argument::Read("through"), write_uses = Argument::Read(2), clean_pages = Argument::Read(0),
            own_lane = None,
        ),
        text_signature = "(*, device_pages, page_size=64, key='token', lanes=1, device_pool='owned', \
            host_slots=None, segment_pages=32, policy='lru', copies='assumed', draft=False, copy_deadline=300.0, \
            events=False, write='through', write_uses=2, clean_pages=0, \
            own_lane=None)",
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, one for each setting")]
    fn new(
        py: Python<'_>,
        device_pages: Whole<'_>,
        page_size: Whole<'_>,
        key: Argument<'_, &str>,
        lanes: Whole<'_>,
        device_pool: Argument<'_, &str>,
        host_slots: Option<Whole<'_>>,
        segment_pages: Whole<'_>,
        policy: Argument<'_, &str>,
        copies: Argument<'_, &str>,
        draft: Argument<'_, bool>,
        copy_deadline: Argument<'_, f64>,
        events: Argument<'_, bool>,
        write: Argument<'_, &str>,
        write_uses: Whole<'_>,
        clean_pages: Whole<'_>,
        own_lane: Option<Whole<'_>>,
    ) -> PyResult<Self> {
        let mut settings = Conflicts::default();
        let config = CacheConfig {
            page_tokens: settings.number("page_size", page_size)?,
            key: settings.key(key)?,
            lanes: settings.number("lanes", lanes)?,
            device_pages: settings.number("device_pages", device_pages)?,
            owner: settings.owner(device_pool)?,
            host_slots: host_slots.map(|slots| settings.number("host_slots", slots)).transpose()?,
            segment_pages: settings.number("segment_pages", segment_pages)?,
            policy: settings.policy(policy)?,
            copies: settings.copies(copies)?,
            write: settings.write(write, write_uses)?,
            clean_pages: settings.number("clean_pages", clean_pages)?,
            events: settings.flag("events", events)?,
            own_lane: own_lane.map(|lane| settings.own_lane(lane)).transpose()?.flatten(),
            has_draft: settings.flag("draft", draft)?,
            copy_deadline_ns: settings.deadline_ns("copy_deadline", copy_deadline)?,
        };
        Ok(Self {
            core: SharedCore::new(settings.make(py, &config)?),
            config,
            agreement: Mutex::default(),
            forgotten: Forgotten::default(),
            started: Instant::now(),
        })
    }

    #[getter]
    fn page_size(&self) -> i64 {
        self.config.page_tokens
    }

    #[getter]
    fn lanes(&self) -> i64 {
        self.config.lanes
    }

    #[getter]
    fn device_pages(&self) -> i64 {
        self.config.device_pages
    }

    #[getter]
    fn segment_pages(&self) -> i64 {
        self.config.segment_pages
    }

    #[getter]
    fn draft(&self) -> bool {
        self.config.has_draft
    }

    #[getter]
    fn own_lane(&self) -> Option<u32> {
        self.config.own_lane
    }

    #[getter]
    fn host_slots(&self, py: Python<'_>) -> PyResult<u32> {
        self.core.call(py, false, |core| core.stats().host_capacity_slots)
    }

    #[pyo3(signature = (token_ids, *, namespace = None, limit = None))]
    fn r#match(
        slf: &Bound<'_, Self>,
        token_ids: &Bound<'_, PyAny>,
        namespace: Option<&Bound<'_, PyAny>>,
        limit: Option<Whole<'_>>,
    ) -> PyResult<Hit> {
        let py = slf.py();
        let tokens = Integers::read(token_ids, "token_ids")?;
        let namespace = namespace::read(namespace)?;
        let limit = limit.map(|limit| limit.token_limit(py, "limit")).transpose()?;
        let tokens = tokens.as_slice();
        let (found, page_tokens) = slf.get().core.call(py, tokens.len() >= LONG_CALL_TOKENS, |core| {
            (core.match_prefix(tokens, &namespace, limit), core.shape().page_tokens())
        })?;
        Ok(Hit { cache: slf.clone().unbind(), found, page_tokens })
    }

    #[pyo3(signature = (hit, *, priority = Argument::Read(0)), text_signature = "($self, hit, *, priority=0)")]
    fn lock(slf: &Bound<'_, Self>, hit: Argument<'_, Bound<'_, Hit>>, priority: Whole<'_>) -> PyResult<Lease> {
        leased(slf, hit, priority, cpkv_core::CacheManager::lock)
    }

    #[pyo3(signature = (hit, *, priority = Argument::Read(0)), text_signature = "($self, hit, *, priority=0)")]
    fn pin(slf: &Bound<'_, Self>, hit: Argument<'_, Bound<'_, Hit>>, priority: Whole<'_>) -> PyResult<Lease> {
        leased(slf, hit, priority, cpkv_core::CacheManager::pin)
    }

    #[pyo3(text_signature = "($self, hit)")]
    fn pages_of(slf: &Bound<'_, Self>, hit: Argument<'_, Bound<'_, Hit>>) -> PyResult<PageIds> {
        let py = slf.py();
        let hit = own_hit(slf, hit)?;
        let hit = hit.get();
        let pages = slf.get().core.call(py, false, |core| core.pages_of(&hit.found))?;
        Ok(page_ids(&pages))
    }

    #[pyo3(signature = (count = None, first_lane = None, *, lanes = None))]
    fn allocate(
        &self,
        py: Python<'_>,
        count: Option<Whole<'_>>,
        first_lane: Option<Whole<'_>>,
        lanes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<PageIds>> {
        let allocated = placed(self, py, count, first_lane, lanes, cpkv_core::CacheManager::allocate)?;
        Ok(allocated.as_deref().map(page_ids))
    }

    fn free(&self, py: Python<'_>, device_pages: &Bound<'_, PyAny>) -> PyResult<PageIds> {
        let device_pages = Integers::read(device_pages, "device_pages")?;
        let device_pages = device_pages.as_slice();
        let freed = self.core.call(py, device_pages.len() >= LONG_CALL_PAGES, |core| core.free(device_pages))?;
        Ok(page_ids(&freed.map_err(|error| errors::from_core(py, &error))?))
    }

    #[pyo3(signature = (lane = Argument::Read(0)), text_signature = "($self, lane=0)")]
    fn free_pages(&self, py: Python<'_>, lane: Whole<'_>) -> PyResult<u32> {
        let lane = lane.lane(py, "lane")?;
        let free = self.core.call(py, false, |core| core.free_pages(lane))?;
        free.map_err(|error| errors::from_core(py, &error))
    }

    #[pyo3(signature = (lane = Argument::Read(0)), text_signature = "($self, lane=0)")]
    fn evictable_pages(&self, py: Python<'_>, lane: Whole<'_>) -> PyResult<u32> {
        let lane = lane.lane(py, "lane")?;
        let evictable = self.core.call(py, false, |core| core.evictable_pages(lane))?;
        evictable.map_err(|error| errors::from_core(py, &error))
    }

    fn evict(&self, py: Python<'_>, lane: Whole<'_>, count: Whole<'_>) -> PyResult<PageIds> {
        let (lane, count) = (lane.lane(py, "lane")?, count.count(py, "count")?);
        let evicted = self.core.call(py, count as usize >= LONG_CALL_PAGES, |core| core.evict(lane, count))?;
        Ok(page_ids(&evicted.map_err(|error| errors::from_core(py, &error))?))
    }

    #[pyo3(signature = (count = None, first_lane = None, *, lanes = None))]
    fn evict_for(
        &self,
        py: Python<'_>,
        count: Option<Whole<'_>>,
        first_lane: Option<Whole<'_>>,
        lanes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<usize>> {
        let evicted = placed(self, py, count, first_lane, lanes, cpkv_core::CacheManager::evict_for)?;
        Ok(evicted.map(|pages| pages.len()))
    }

    #[pyo3(signature = (token_ids, device_pages, lease = None, transaction = None, *, namespace = None))]
    fn insert(
        slf: &Bound<'_, Self>,
        token_ids: &Bound<'_, PyAny>,
        device_pages: &Bound<'_, PyAny>,
        lease: Option<Argument<'_, Bound<'_, Lease>>>,
        transaction: Option<Argument<'_, Bound<'_, Transaction>>>,
        namespace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Inserted> {
        let (py, core) = (slf.py(), &slf.get().core);
        let lease = lease.map(|lease| lease.read(py, "lease", "a Lease or None")).transpose()?;
        let lease = lease.as_ref().map(Bound::get);
        let transaction = transaction.map(|one| one.read(py, "transaction", "a Transaction or None")).transpose()?;
        let transaction = transaction.as_ref().map(Bound::get);
        let tokens = Integers::read(token_ids, "token_ids")?;
        let device_pages = Integers::read(device_pages, "device_pages")?;
        let (tokens, device_pages) = (tokens.as_slice(), device_pages.as_slice());
        let is_long = tokens.len() >= LONG_CALL_TOKENS;
        let inserted = if let Some(lease) = lease {
            check_cache(slf, lease)?;
            if namespace.is_some() {
                let message = "namespace: the lease has one already, give it without a lease only".to_owned();
                return Err(errors::input(py, message));
            }
            if let Some(transaction) = transaction {
                check_transaction(slf, transaction)?;
            }
            let operation = transaction.and_then(Transaction::operation);
            if let Some(operation) = operation.filter(|_| transaction.is_some_and(Transaction::is_inserted)) {
                return Err(errors::from_core(py, &Error::AlreadyBound { operation }));
            }
            let is_partial = transaction.is_some_and(Transaction::is_partial);
            let inserted = core.call_with(py, lease, is_long, |core, held| match operation {
                Some(id) => core.insert_bound(tokens, device_pages, held, id),
                None if is_partial => core.insert_partial(tokens, device_pages, held),
                None => core.insert(tokens, device_pages, held),
            })?;
            if let (Ok(_), Some(transaction)) = (&inserted, transaction) {
                transaction.note_inserted();
            }
            inserted
        } else {
            if transaction.is_some() {
                let message = "transaction: it goes with the lease that it was reserved for".to_owned();
                return Err(errors::input(py, message));
            }
            let namespace = namespace::read(namespace)?;
            core.call(py, is_long, |core| core.insert_unleased(tokens, device_pages, &namespace))?
        };
        inserted.map(Inserted).map_err(|error| errors::from_core(py, &error))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<PageIds> {
        self.core.call(py, true, |core| page_ids(&core.flush()))
    }

    fn dump<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dump = self.core.call(py, true, |core| core.dump())?;
        dump::to_dict(py, &dump)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        self.core.call(py, false, |core| core.stats().into())
    }

    fn digest(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.call(py, true, |core| core.digest())
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        let checked = self.core.call(py, true, |core| core.check_integrity())?;
        checked.map_err(|error| errors::from_core(py, &error))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.core.call(py, false, |core| core.stats())?;
        Ok(format!(
            "CacheManager(page_size={}, device_pages={}/{}, host_slots={}/{})",
            self.config.page_tokens,
            stats.device_cached_pages,
            stats.device_capacity_pages,
            stats.host_cached_slots,
            stats.host_capacity_slots
        ))
    }
}

/// Refuses a transaction of another cache.
pub(crate) fn check_transaction(cache: &Bound<'_, CacheManager>, transaction: &Transaction) -> PyResult<()> {
    if transaction.cache.is(cache) {
        Ok(())
    } else {
        let which = transaction.operation().map_or_else(|| "without slots".to_owned(), |id| id.to_string());
        Err(errors::transaction(cache.py(), &format!("transaction {which} comes from another cache")))
    }
}

pub(crate) fn check_cache(cache: &Bound<'_, CacheManager>, lease: &Lease) -> PyResult<()> {
    if lease.cache.is(cache) {
        return Ok(());
    }
    Err(errors::lease(cache.py(), &format!("lease {} comes from another cache", lease.number())))
}

#[pymethods]
impl Hit {
    #[getter]
    fn tokens(&self) -> usize {
        self.found.pages().index() * self.page_tokens
    }

    #[getter]
    fn pages(&self) -> u32 {
        self.found.pages().0
    }

    #[getter]
    fn device_pages(&self) -> u32 {
        self.found.device_pages().0
    }

    #[getter]
    fn host_pages(&self) -> u32 {
        self.found.host_pages().0
    }

    fn __repr__(&self) -> String {
        format!("Hit(device_pages={}, host_pages={})", self.device_pages(), self.host_pages())
    }
}

#[pymethods]
impl Inserted {
    #[getter]
    fn duplicates(&self) -> PageIds {
        page_ids(&self.0.duplicates)
    }

    #[getter]
    fn new_pages(&self) -> u32 {
        self.0.new_pages.0
    }

    #[getter]
    fn host_pages(&self) -> u32 {
        self.0.host_pages.0
    }

    fn __repr__(&self) -> String {
        format!("Inserted(new_pages={}, duplicates={})", self.new_pages(), self.0.duplicates.len())
    }
}
