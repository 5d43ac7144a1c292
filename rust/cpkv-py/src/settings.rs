//! The settings of a cache as Python gives them. What is wrong is told all at once.

use std::time::Duration;

use cpkv_core::{CacheConfig, Copies, Error, KeyKind, Policy, PoolOwner, WritePolicy};
use pyo3::prelude::*;

use crate::argument::{Argument, Whole, shown};
use crate::errors;

/// What is wrong so far.
#[derive(Default)]
pub(crate) struct Conflicts {
    told: Vec<String>,
    /// Numbers that cannot be read, as they were given. The core is given the least number in their place,
    /// which it refuses.
    unread: Vec<(&'static str, String)>,
}

const KEYS: [(&str, KeyKind); 2] = [("token", KeyKind::Token), ("pair", KeyKind::Pair)];
const COPIES: [(&str, Copies); 2] = [("assumed", Copies::Assumed), ("tracked", Copies::Tracked)];
const OWNERS: [(&str, PoolOwner); 2] = [("owned", PoolOwner::Cpkv), ("external", PoolOwner::Engine)];
const WRITES: [(&str, WritePolicy); 3] =
    [("through", WritePolicy::Through), ("selective", WritePolicy::Selective(2)), ("back", WritePolicy::Back)];

/// Thirty years: a deadline that never comes, and still a number of nanoseconds. As in `cpkv.config`.
pub(crate) const MOST_SECONDS: f64 = 1e9;

impl Conflicts {
    pub(crate) fn number(&mut self, name: &'static str, given: Whole<'_>) -> PyResult<i64> {
        Ok(match given {
            Argument::Read(number) => number,
            Argument::Beyond(seen) | Argument::Other(seen) => {
                self.unread.push((name, shown(&seen)?));
                i64::MIN
            }
        })
    }

    /// A number that the core takes as 32 bits.
    fn small(&mut self, name: &str, given: Whole<'_>, wanted: &str) -> PyResult<Option<u32>> {
        let seen = match given {
            Argument::Read(number) => match u32::try_from(number) {
                Ok(number) => return Ok(Some(number)),
                Err(_) => number.to_string(),
            },
            Argument::Beyond(seen) | Argument::Other(seen) => shown(&seen)?,
        };
        self.told.push(format!("{name} is {seen}, want {wanted}"));
        Ok(None)
    }

    pub(crate) fn own_lane(&mut self, given: Whole<'_>) -> PyResult<Option<u32>> {
        self.small("own_lane", given, "0 or more")
    }

    pub(crate) fn flag(&mut self, name: &str, given: Argument<'_, bool>) -> PyResult<bool> {
        match given {
            Argument::Read(value) => return Ok(value),
            Argument::Beyond(seen) | Argument::Other(seen) => {
                self.told.push(format!("{name} is {}, want True or False", shown(&seen)?));
            }
        }
        Ok(false)
    }

    /// One of the `known` values of a setting, of which there are some.
    fn choice<T: Copy>(&mut self, name: &str, given: Argument<'_, &str>, known: &[(&str, T)]) -> PyResult<T> {
        let seen = match given {
            Argument::Read(word) => match known.iter().find(|(known, _)| *known == word) {
                Some(&(_, value)) => return Ok(value),
                None => format!("'{word}'"),
            },
            Argument::Beyond(seen) | Argument::Other(seen) => shown(&seen)?,
        };
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        self.told.push(format!("{name} is {seen}, want one of {}", words.join(", ")));
        Ok(known[0].1)
    }

    pub(crate) fn key(&mut self, given: Argument<'_, &str>) -> PyResult<KeyKind> {
        self.choice("key", given, &KEYS)
    }

    pub(crate) fn owner(&mut self, given: Argument<'_, &str>) -> PyResult<PoolOwner> {
        self.choice("device_pool", given, &OWNERS)
    }

    pub(crate) fn policy(&mut self, given: Argument<'_, &str>) -> PyResult<Policy> {
        self.choice("policy", given, &Policy::ALL)
    }

    pub(crate) fn copies(&mut self, given: Argument<'_, &str>) -> PyResult<Copies> {
        self.choice("copies", given, &COPIES)
    }

    pub(crate) fn write(&mut self, given: Argument<'_, &str>, uses: Whole<'_>) -> PyResult<WritePolicy> {
        let policy = self.choice("write", given, &WRITES)?;
        let uses = self.small("write_uses", uses, &format!("1 to {}", u32::MAX))?;
        Ok(match (policy, uses) {
            (WritePolicy::Selective(_), Some(uses)) => WritePolicy::Selective(uses),
            _ => policy,
        })
    }

    /// A deadline in seconds as nanoseconds.
    pub(crate) fn deadline_ns(&mut self, name: &str, given: Argument<'_, f64>) -> PyResult<i64> {
        let seen = match given {
            Argument::Read(seconds) => {
                let deadline = Duration::try_from_secs_f64(seconds).ok();
                let deadline = deadline.filter(|deadline| !deadline.is_zero() && seconds <= MOST_SECONDS);
                match deadline.map(|deadline| i64::try_from(deadline.as_nanos())) {
                    Some(Ok(deadline_ns)) => return Ok(deadline_ns),
                    _ => format!("{seconds:?}"),
                }
            }
            Argument::Beyond(seen) | Argument::Other(seen) => shown(&seen)?,
        };
        self.told.push(format!("{name} is {seen}, want 1e-9 to {MOST_SECONDS} seconds"));
        Ok(1)
    }

    /// The core, or everything that is wrong.
    pub(crate) fn make(self, py: Python<'_>, config: &CacheConfig) -> PyResult<cpkv_core::CacheManager> {
        let Self { told: mut conflicts, unread } = self;
        let error = match cpkv_core::CacheManager::new(config) {
            Ok(core) if conflicts.is_empty() => return Ok(core),
            Ok(_) => Error::Config { conflicts },
            Err(Error::Config { conflicts: more }) => {
                conflicts.extend(more.into_iter().map(|conflict| as_given(conflict, &unread)));
                Error::Config { conflicts }
            }
            Err(error) => error,
        };
        Err(errors::from_core(py, &error))
    }
}

/// A conflict of the core with the value that was given.
fn as_given(conflict: String, unread: &[(&str, String)]) -> String {
    let given = unread.iter().find_map(|(name, seen)| {
        let rest = conflict.strip_prefix(&format!("{name} is {}, ", i64::MIN))?;
        Some(format!("{name} is {seen}, {rest}"))
    });
    given.unwrap_or(conflict)
}
