//! Ids and counts as types, so that pages, slots, lanes, tokens and counts cannot be mixed.
//!
//! [`PageId`] and [`SlotId`] are *logical*: they name a page or a host slot on the whole group of
//! lanes. `lane = id % lanes` and `physical = id / lanes`; the mapping is a bijection, so nothing
//! needs to be stored for it ([`Lanes`]).

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Defines a 32-bit id whose `Option` costs no extra bytes (stored as `raw + 1`).
macro_rules! compact_id {
    ($(#[$doc:meta])* $visibility:vis $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility struct $name(NonZeroU32);

        impl $name {
            /// Makes an id from its raw value; `None` for `u32::MAX`.
            #[must_use]
            $visibility const fn new(raw: u32) -> Option<Self> {
                match NonZeroU32::new(raw.wrapping_add(1)) {
                    Some(stored) => Some(Self(stored)),
                    None => None,
                }
            }

            /// The raw value.
            #[must_use]
            $visibility const fn raw(self) -> u32 {
                self.0.get() - 1
            }

            /// The raw value as an index.
            #[must_use]
            $visibility const fn index(self) -> usize {
                self.raw() as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.raw())
            }
        }
    };
}

compact_id! {
    /// A device page, named on the whole group of lanes.
    pub PageId
}
compact_id! {
    /// A host slot (the host home of one page), named on the whole group of lanes.
    pub SlotId
}
compact_id! {
    /// A place in the node arena; meaningful only together with a generation.
    pub(crate) NodeIndex
}
compact_id! {
    /// A place in the page store's slab of buffers.
    pub(crate) BufferIndex
}

compact_id! {
    /// A place in the table of operations; meaningful only while the operation is open.
    pub(crate) OperationIndex
}

compact_id! {
    /// A place in an eviction heap.
    pub(crate) HeapPosition
}

impl PageId {
    /// The largest raw value.
    pub const MAX_RAW: u32 = u32::MAX - 1;
}

impl SlotId {
    /// The largest raw value.
    pub const MAX_RAW: u32 = u32::MAX - 1;
}

/// One share of the pages; under context parallelism with shared KV, one rank's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane(pub u32);

/// The number of lanes, and the bijection between logical ids and (lane, physical id).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes(NonZeroU32);

impl Lanes {
    /// Makes the mapping for `count` lanes; `None` for zero.
    #[must_use]
    pub const fn new(count: u32) -> Option<Self> {
        match NonZeroU32::new(count) {
            Some(count) => Some(Self(count)),
            None => None,
        }
    }

    /// How many lanes there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.get()
    }

    /// The lane that holds the logical id `raw`.
    #[must_use]
    pub const fn lane_of(self, raw: u32) -> Lane {
        // A single lane is the common case and worth a predictable branch instead of a division.
        if self.0.get() == 1 { Lane(0) } else { Lane(raw % self.0.get()) }
    }

    /// The lane `offset` lanes after `first`, round and round.
    #[must_use]
    pub const fn lane_of_offset(self, first: Lane, offset: usize) -> Lane {
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of lanes")]
        let offset = (offset % self.0.get() as usize) as u32;
        Lane((first.0 + offset) % self.0.get())
    }

    /// The id inside its lane of the logical id `raw`.
    #[must_use]
    pub const fn physical(self, raw: u32) -> u32 {
        if self.0.get() == 1 { raw } else { raw / self.0.get() }
    }

    /// The logical id of `physical` in `lane`.
    #[must_use]
    pub const fn logical(self, lane: Lane, physical: u32) -> u32 {
        physical * self.0.get() + lane.0
    }
}

/// Defines a count that adds and subtracts only with its own kind.
macro_rules! count {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// None at all.
            pub const ZERO: Self = Self(0);

            /// The count as an index or length.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}", self.0)
            }
        }
    };
}

count! {
    /// A number of pages, or a depth measured in pages from the root.
    Pages(u32)
}
count! {
    /// A number of raw tokens.
    Tokens(usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_ids_cost_four_bytes() {
        assert_eq!(size_of::<Option<PageId>>(), 4);
        assert_eq!(PageId::new(0).map(PageId::raw), Some(0));
        assert_eq!(PageId::new(PageId::MAX_RAW).map(PageId::raw), Some(u32::MAX - 1));
        assert_eq!(PageId::new(u32::MAX), None);
    }

    #[test]
    fn lanes_are_a_bijection() {
        for count in [1, 2, 3, 8] {
            let lanes = Lanes::new(count).expect("positive");
            for raw in 0..100 {
                assert_eq!(lanes.logical(lanes.lane_of(raw), lanes.physical(raw)), raw);
            }
        }
        assert_eq!(Lanes::new(0), None);
    }
}
