//! What a cache is made from.

use crate::error::{Error, Result};
use crate::eviction::Policy;
use crate::ids::{Lanes, PageId, SlotId};
use crate::key::{KeyKind, KeyShape};
use crate::operations::Deadlines;

/// Who allocates and frees device pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolOwner {
    /// cpkv: pages come from `allocate` and go back by `free` and eviction.
    Cpkv,
    /// The engine: cpkv is told page ids and says which to free.
    Engine,
}

/// How host copies come to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// They count as made the moment they are decided, and no bytes move: for planning capacity.
    #[default]
    Assumed,
    /// An engine makes them. Nobody sees one before every byte of it has landed on every rank.
    Tracked,
}

/// When pages get a host copy, if copies are tracked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WritePolicy {
    /// During the forward that computes them.
    #[default]
    Through,
    /// Late, when the given number of requests has used them, the one that computed them included.
    Selective(u32),
    /// Late, before the device evicts them.
    Back,
}

impl WritePolicy {
    fn name(self) -> &'static str {
        match self {
            Self::Through => "through",
            Self::Selective(_) => "selective",
            Self::Back => "back",
        }
    }
}

/// More lanes than any host has ranks.
pub const MOST_LANES: i64 = 1_024;

/// The settings of a cache. Numbers are as the caller gave them; making a cache checks them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Tokens in a page.
    pub page_tokens: i64,
    /// The kind of key.
    pub key: KeyKind,
    /// Lanes that the pages are shared out to.
    pub lanes: i64,
    /// Device pages of all lanes together.
    pub device_pages: i64,
    /// Who allocates them.
    pub owner: PoolOwner,
    /// Host slots of all lanes together; `None` for no host tier.
    pub host_slots: Option<i64>,
    /// Host slots whose rows lie side by side.
    pub segment_pages: i64,
    /// Which pages are given up first, in both tiers.
    pub policy: Policy,
    /// How host copies come to be.
    pub copies: Copies,
    /// When pages get a host copy, if copies are tracked.
    pub write: WritePolicy,
    /// In each lane, so many of the device pages that would be evicted next are kept with a host copy
    /// by late ones, if copies are tracked.
    pub clean_pages: i64,
    /// Note what becomes usable and what goes, for [`crate::CacheManager::take_events`].
    pub events: bool,
    /// The lane whose pages this rank copies; `None` for all. The only setting in which ranks differ.
    pub own_lane: Option<u32>,
    /// There is a draft model, whose state is part of every page.
    pub has_draft: bool,
    /// Nanoseconds after which a copy that has not landed has failed. As long again, and it is
    /// stuck.
    pub copy_deadline_ns: i64,
}

/// Settings that do not contradict each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) shape: KeyShape,
    pub(crate) lanes: Lanes,
    pub(crate) device_pages_per_lane: u32,
    pub(crate) host_slots_per_lane: Option<u32>,
    pub(crate) segment_pages: u32,
    pub(crate) deadlines: Deadlines,
}

impl CacheConfig {
    /// Looks for contradictions.
    ///
    /// # Errors
    /// [`Error::Config`] with every conflict found.
    pub(crate) fn check(&self) -> Result<Geometry> {
        let mut conflicts = Conflicts::default();
        let page_tokens = conflicts.number("page_size", self.page_tokens, i64::from(u32::MAX));
        let lanes = conflicts.number("lanes", self.lanes, MOST_LANES);
        // Ids go from 0 to MAX_RAW.
        let device_pages = conflicts.number("device_pages", self.device_pages, i64::from(PageId::MAX_RAW));
        let device_pages_per_lane = conflicts.per_lane("device_pages", device_pages, lanes);
        let segment_pages = conflicts.number("segment_pages", self.segment_pages, i64::from(SlotId::MAX_RAW));
        let host_slots_per_lane = self.host_slots.map(|slots| {
            let slots = conflicts.number("host_slots", slots, i64::from(SlotId::MAX_RAW));
            let slots = conflicts.per_lane("host_slots", slots, lanes)?;
            conflicts.whole_segments(slots, segment_pages?)
        });
        self.check_writes(&mut conflicts);
        if let (Some(own_lane), Some(lanes)) = (self.own_lane, lanes)
            && own_lane >= lanes
        {
            conflicts.0.push(format!("own_lane is {own_lane}, want 0 to {}", lanes - 1));
        }
        if self.copy_deadline_ns <= 0 {
            conflicts.0.push(format!("copy_deadline_ns is {}, want more than 0", self.copy_deadline_ns));
        }
        if let (Some(page_tokens), Some(lanes), Some(device_pages_per_lane), Some(segment_pages), true) =
            (page_tokens, lanes, device_pages_per_lane, segment_pages, conflicts.0.is_empty())
        {
            let shape = KeyShape::new(self.key, page_tokens);
            if let (Some(shape), Some(lanes)) = (shape, Lanes::new(lanes)) {
                let host_slots_per_lane = host_slots_per_lane.flatten();
                let deadline_ns = self.copy_deadline_ns.unsigned_abs();
                let deadlines = Deadlines { landing_ns: deadline_ns, draining_ns: deadline_ns };
                return Ok(Geometry {
                    shape,
                    lanes,
                    device_pages_per_lane,
                    host_slots_per_lane,
                    segment_pages,
                    deadlines,
                });
            }
        }
        Err(Error::Config { conflicts: conflicts.0 })
    }
}

impl CacheConfig {
    fn check_writes(&self, conflicts: &mut Conflicts) {
        if self.clean_pages < 0 || self.clean_pages > i64::from(u32::MAX) {
            conflicts.0.push(format!("clean_pages is {}, want 0 to {}", self.clean_pages, u32::MAX));
        }
        if self.copies == Copies::Assumed {
            let write = self.write.name();
            if self.write != WritePolicy::Through {
                conflicts.0.push(format!("copies is 'assumed', want 'tracked' with write '{write}'"));
            }
            if self.clean_pages > 0 {
                let clean_pages = self.clean_pages;
                conflicts.0.push(format!("copies is 'assumed', want 'tracked' with clean_pages {clean_pages}"));
            }
        }
        if self.write == WritePolicy::Back && self.clean_pages == 0 {
            conflicts.0.push("clean_pages is 0, want 1 or more with write 'back'".to_owned());
        }
        if self.write == WritePolicy::Selective(0) {
            conflicts.0.push("write_uses is 0, want 1 or more".to_owned());
        }
    }
}

/// What is wrong so far. A number that is wrong is `None` to the checks that build on it, so that
/// every conflict is told once.
#[derive(Default)]
struct Conflicts(Vec<String>);

impl Conflicts {
    fn number(&mut self, name: &str, value: i64, most: i64) -> Option<u32> {
        let number = u32::try_from(value).ok().filter(|&number| number > 0 && i64::from(number) <= most);
        if number.is_none() {
            self.0.push(format!("{name} is {value}, want 1 to {most}"));
        }
        number
    }

    fn per_lane(&mut self, name: &str, count: Option<u32>, lanes: Option<u32>) -> Option<u32> {
        let (count, lanes) = (count?, lanes?);
        if count.is_multiple_of(lanes) {
            return Some(count / lanes);
        }
        self.0.push(format!("{name} is {count}, want a multiple of lanes, which is {lanes}"));
        None
    }

    fn whole_segments(&mut self, slots: u32, segment_pages: u32) -> Option<u32> {
        let whole = slots - slots % segment_pages;
        if whole == 0 {
            self.0.push(format!("segment_pages is {segment_pages}, want at most {slots}, the host_slots of a lane"));
        }
        Some(whole).filter(|&whole| whole > 0)
    }
}

impl Default for CacheConfig {
    /// Pages of 64 tokens, one lane, one device page, no host tier, LRU.
    fn default() -> Self {
        Self {
            page_tokens: 64,
            key: KeyKind::Token,
            lanes: 1,
            device_pages: 1,
            owner: PoolOwner::Cpkv,
            host_slots: None,
            segment_pages: 32,
            policy: Policy::Lru,
            copies: Copies::Assumed,
            write: WritePolicy::Through,
            clean_pages: 0,
            events: false,
            own_lane: None,
            has_draft: false,
            copy_deadline_ns: 300_000_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conflict_is_listed() {
        let config = CacheConfig {
            page_tokens: 0,
            lanes: 4,
            device_pages: 10,
            host_slots: Some(-7),
            segment_pages: 0,
            ..CacheConfig::default()
        };
        let Err(Error::Config { conflicts }) = config.check() else { panic!("refused") };
        assert_eq!(
            conflicts,
            [
                "page_size is 0, want 1 to 4294967295",
                "device_pages is 10, want a multiple of lanes, which is 4",
                "segment_pages is 0, want 1 to 4294967294",
                "host_slots is -7, want 1 to 4294967294",
            ]
        );
    }

    #[test]
    fn what_assumed_copies_exclude_is_listed_by_setting() {
        let config = CacheConfig { write: WritePolicy::Selective(0), clean_pages: 3, ..CacheConfig::default() };
        let Err(Error::Config { conflicts }) = config.check() else { panic!("refused") };
        assert_eq!(
            conflicts,
            [
                "copies is 'assumed', want 'tracked' with write 'selective'",
                "copies is 'assumed', want 'tracked' with clean_pages 3",
                "write_uses is 0, want 1 or more",
            ]
        );
    }

    #[test]
    fn host_slots_are_rounded_down_to_whole_segments() {
        let config = CacheConfig { lanes: 2, device_pages: 2, host_slots: Some(200), ..CacheConfig::default() };
        assert_eq!(config.check().expect("fits").host_slots_per_lane, Some(96));
        let config = CacheConfig { host_slots: Some(31), ..CacheConfig::default() };
        assert!(config.check().is_err());
    }
}
