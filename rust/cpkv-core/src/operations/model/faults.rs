//! How much may go wrong in a world.

/// How often each thing may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Faults {
    /// Backups given up by a tree operation: insert miss, abort, retract, a forward that did not run.
    pub(super) give_ups: u8,
    pub(super) flushes: u8,
    /// Copies that fail.
    pub(super) failures: u8,
    /// Acks that get lost.
    pub(super) losses: u8,
    /// Deadlines that pass although copies are still to land. A rank that is late already may be
    /// later still: only its first is a fault of its own.
    pub(super) delays: u8,
    pub(super) deaths: u8,
    /// Reports that are repeated or name a backup of an earlier generation.
    pub(super) strays: u8,
    /// Of the last five kinds together.
    pub(super) together: u8,
}

impl Faults {
    pub(super) const NONE: Self =
        Self { give_ups: 0, flushes: 0, failures: 0, losses: 0, delays: 0, deaths: 0, strays: 0, together: 0 };

    /// One of each kind, the delay of two deadlines; of the faults but `together` in one history.
    pub(super) const fn any(together: u8) -> Self {
        Self { give_ups: 1, flushes: 1, failures: 1, losses: 1, delays: 2, deaths: 1, strays: 1, together }
    }

    /// Uses up one of a kind.
    pub(super) fn spend(&mut self, kind: fn(&mut Self) -> &mut u8) {
        *kind(self) -= 1;
        self.together -= 1;
    }

    /// Whether one of a kind is left.
    pub(super) fn has(mut self, kind: fn(&mut Self) -> &mut u8) -> bool {
        self.together > 0 && *kind(&mut self) > 0
    }

    /// Whether a deadline may pass early on a rank whose clock shows `now_ns`.
    pub(super) fn may_delay(self, now_ns: u64) -> bool {
        self.delays > 0 && (self.together > 0 || now_ns > 0)
    }

    /// Uses up an early deadline.
    pub(super) fn delay(&mut self, now_ns: u64) {
        self.delays -= 1;
        self.together -= u8::from(now_ns == 0);
    }
}
