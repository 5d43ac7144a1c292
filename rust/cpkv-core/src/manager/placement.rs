//! Which lanes the pages of a prompt are to be in.

use crate::error::{Error, Result};
use crate::ids::{Lane, Lanes};
use crate::slots::LaneCounts;

/// The lanes of pages to be allocated, in the order of the prompt.
#[derive(Clone, Copy, Debug)]
pub enum Placement<'a> {
    /// So many pages, the first in this lane and the others in the lanes after it, round and
    /// round.
    Stripe(u32, Lane),
    /// One lane for each page: that of the rank which computes it, or of the host slot that is
    /// restored into it.
    Each(&'a [i64]),
}

impl Placement<'_> {
    /// How many pages of each lane it takes.
    ///
    /// # Errors
    /// [`Error::NoSuchLane`].
    pub(super) fn counts(self, lanes: Lanes) -> Result<LaneCounts> {
        let mut counts = LaneCounts::new(lanes);
        match self {
            Self::Stripe(count, first) => {
                check_lane(i64::from(first.0), lanes)?;
                for offset in 0..lanes.count() {
                    let pages = count / lanes.count() + u32::from(offset < count % lanes.count());
                    counts.set(lanes.lane_of_offset(first, offset as usize), pages);
                }
            }
            Self::Each(each) => {
                for &lane in each {
                    counts.increment(check_lane(lane, lanes)?);
                }
            }
        }
        Ok(counts)
    }

    /// The lane of the page at `place`; lanes were checked by [`Self::counts`].
    pub(super) fn lane_at(self, place: usize, lanes: Lanes) -> Lane {
        match self {
            Self::Stripe(_, first) => lanes.lane_of_offset(first, place),
            Self::Each(each) => Lane(u32::try_from(each[place]).expect("counted before")),
        }
    }
}

/// The lane that a caller means.
///
/// # Errors
/// [`Error::NoSuchLane`].
pub(super) fn check_lane(lane: i64, lanes: Lanes) -> Result<Lane> {
    let last = lanes.count() - 1;
    let known = u32::try_from(lane).ok().filter(|&lane| lane <= last);
    known.map(Lane).ok_or(Error::NoSuchLane { lane, last })
}
