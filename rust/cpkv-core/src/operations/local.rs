//! What this rank knows of its own copies of one operation. Not replicated: it only becomes
//! reports.

use smallvec::SmallVec;

use crate::agreement::{Fact, Vote};

/// How long a rank waits for a copy, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlines {
    /// From the end of submission until the copy has failed.
    pub(crate) landing_ns: u64,
    /// From then on until it is stuck.
    pub(crate) draining_ns: u64,
}

/// This rank's part of one operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that was said or not")]
pub(crate) struct Local {
    /// The sequence number that each copy stream has to reach; 0 where nothing was submitted.
    needs: SmallVec<[u64; 2]>,
    /// Layers of which everything was submitted, in order, and what each stream had to reach then.
    layers: Vec<(u32, SmallVec<[u64; 2]>)>,
    /// Nothing will be submitted any more.
    is_closed: bool,
    /// Since when it is waited for: the first report after the end of submission, or after there was
    /// nothing any more that could keep the engine from ending it.
    waits_since_ns: Option<u64>,
    is_failed: bool,
    has_said_failed: bool,
    has_said_stuck: bool,
    has_said_end: bool,
    has_said_landed: bool,
}

impl Local {
    /// Notes that a copy was submitted which `stream` acknowledges by `sequence`.
    pub(crate) fn submitted(&mut self, stream: usize, sequence: u64) {
        if self.needs.len() <= stream {
            self.needs.resize(stream + 1, 0);
        }
        self.needs[stream] = self.needs[stream].max(sequence);
    }

    /// Notes that everything of the layers up to `layer` was submitted. The last layer before, if that
    /// was not further in front; then nothing has changed.
    pub(crate) fn layer_submitted(&mut self, layer: u32) -> Result<(), u32> {
        match self.layers.last() {
            Some(&(last, _)) if last >= layer => Err(last),
            _ => {
                self.layers.push((layer, self.needs.clone()));
                Ok(())
            }
        }
    }

    /// Whether everything of the layers up to `layer` is known to have been submitted and has landed.
    pub(crate) fn has_landed_up_to(&self, layer: u32, acks: &[u64]) -> bool {
        let mark = self.layers.iter().find(|(submitted, _)| *submitted >= layer).map(|(_, needs)| needs);
        let needs = mark.or(self.is_closed.then_some(&self.needs));
        !self.is_failed && needs.is_some_and(|needs| are_reached(needs, acks))
    }

    /// Notes that nothing will be submitted any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        // From now on it is the copies that are waited for.
        self.waits_since_ns = None;
    }

    /// Starts the clock without a report, which the model has fewer of.
    #[cfg(test)]
    pub(crate) fn wait_from(&mut self, now_ns: u64) {
        self.waits_since_ns.get_or_insert(now_ns);
    }

    /// Whether a copy was submitted.
    pub(crate) fn is_used(&self) -> bool {
        !self.needs.is_empty()
    }

    /// The last stream that has to be heard of and is not among the first `words`.
    pub(crate) fn stream_beyond(&self, words: usize) -> Option<usize> {
        let last = self.needs.len().checked_sub(1)?;
        (last >= words && !self.has_said_end).then_some(last)
    }

    /// Notes that a copy has failed.
    pub(crate) fn fail(&mut self) {
        self.is_failed = true;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.is_failed
    }

    /// Everything that was reported so far.
    pub(crate) fn vote(&self) -> Vote {
        Vote {
            has_landed: self.has_said_landed,
            has_failed: self.has_said_failed,
            has_ended: self.has_said_end,
            is_stuck: self.has_said_stuck && !self.has_said_end,
        }
    }

    /// Whether it was said that every copy has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_said_end
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// What there is to report now, if anything. `acks` are the words of the copy streams;
    /// numbers of different streams are never compared. `is_alive` is whether the operation may
    /// still succeed, `is_running` whether its forward may still be running, which is not waited for.
    pub(crate) fn next_fact(
        &mut self,
        is_alive: bool,
        is_running: bool,
        acks: &[u64],
        now_ns: u64,
        deadlines: Deadlines,
    ) -> Option<Fact> {
        // The last word is the last one, also of an engine that changes its mind.
        if self.has_said_end {
            return None;
        }
        if self.is_failed && !self.has_said_failed {
            self.has_said_failed = true;
            return Some(Fact::Failed);
        }
        if !self.is_closed && is_running {
            return None;
        }
        let waits_since_ns = *self.waits_since_ns.get_or_insert(now_ns);
        if self.is_closed && are_reached(&self.needs, acks) {
            self.has_said_end = true;
            self.has_said_landed = is_alive && !self.is_failed;
            return Some(if self.has_said_landed { Fact::Landed } else { Fact::Ended });
        }
        let waited_ns = now_ns.saturating_sub(waits_since_ns);
        if waited_ns >= deadlines.landing_ns && !self.is_closed {
            // Nobody has ended it in time: it fails, and what was submitted is waited for.
            self.close();
            self.is_failed = true;
            return self.next_fact(is_alive, is_running, acks, now_ns, deadlines);
        }
        if waited_ns >= deadlines.landing_ns && !self.is_failed {
            self.is_failed = true;
            self.has_said_failed = true;
            return Some(Fact::Failed);
        }
        let stuck_ns = deadlines.landing_ns.saturating_add(deadlines.draining_ns);
        if waited_ns >= stuck_ns && !self.has_said_stuck {
            self.has_said_stuck = true;
            return Some(Fact::Stuck);
        }
        None
    }
}

/// Whether each copy stream has reached the number that it has to. Numbers of different streams are
/// never compared.
fn are_reached(needs: &[u64], acks: &[u64]) -> bool {
    let is_reached = |(stream, &need): (usize, &u64)| need == 0 || acks.get(stream).is_some_and(|&ack| ack >= need);
    needs.iter().enumerate().all(is_reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines { landing_ns: 100, draining_ns: 50 };

    fn facts(local: &mut Local, is_alive: bool, acks: &[u64], now_ns: u64) -> Vec<Fact> {
        std::iter::from_fn(|| local.next_fact(is_alive, is_alive, acks, now_ns, DEADLINES)).collect()
    }

    #[test]
    fn landing_takes_every_stream_and_the_end_of_submission() {
        let mut local = Local::default();
        local.submitted(0, 5);
        local.submitted(2, 9);
        assert_eq!(facts(&mut local, true, &[5, 0, 9], 0), []);
        local.close();
        assert_eq!(facts(&mut local, true, &[5, 0, 8], 0), []);
        assert_eq!(facts(&mut local, true, &[4, 0, 100], 0), []);
        // A later word heals a lost ack.
        assert_eq!(facts(&mut local, true, &[77, 0, 9], 0), [Fact::Landed]);
        assert_eq!(facts(&mut local, true, &[77, 0, 9], 0), []);
    }

    #[test]
    fn a_failed_flag_outweighs_any_word() {
        let mut local = Local::default();
        local.submitted(0, 5);
        local.close();
        local.fail();
        assert_eq!(facts(&mut local, true, &[5], 0), [Fact::Failed, Fact::Ended]);
        // Nothing is said after the last word.
        let mut local = Local::default();
        local.close();
        assert_eq!(facts(&mut local, true, &[], 0), [Fact::Landed]);
        local.fail();
        assert_eq!(facts(&mut local, true, &[], 0), []);
    }

    #[test]
    fn silence_is_never_a_landing() {
        let mut local = Local::default();
        local.submitted(0, 5);
        local.close();
        assert_eq!(facts(&mut local, true, &[4], 1_000), []);
        assert_eq!(facts(&mut local, true, &[4], 1_099), []);
        assert_eq!(facts(&mut local, true, &[4], 1_100), [Fact::Failed]);
        assert_eq!(facts(&mut local, false, &[4], 1_149), []);
        assert_eq!(facts(&mut local, false, &[4], 1_150), [Fact::Stuck]);
        assert_eq!(facts(&mut local, false, &[5], 1_200), [Fact::Ended]);
    }

    #[test]
    fn a_layer_has_landed_when_all_of_it_and_of_those_before_has() {
        let mut local = Local::default();
        local.submitted(0, 1);
        local.submitted(1, 1);
        assert!(!local.has_landed_up_to(0, &[1, 1]), "more of it may be submitted");
        assert_eq!(local.layer_submitted(0), Ok(()));
        local.submitted(0, 2);
        assert!(!local.has_landed_up_to(0, &[1, 0]) && local.has_landed_up_to(0, &[1, 1]));
        assert!(!local.has_landed_up_to(1, &[2, 1]));
        // Layers that own nothing are landed with those behind them.
        assert_eq!(local.layer_submitted(3), Ok(()));
        assert!(!local.has_landed_up_to(1, &[1, 1]) && local.has_landed_up_to(1, &[2, 1]));
        assert_eq!((local.layer_submitted(3), local.layer_submitted(0)), (Err(3), Err(3)));
        assert!(!local.has_landed_up_to(4, &[9, 9]));
        local.submitted(1, 2);
        local.close();
        assert!(!local.has_landed_up_to(4, &[2, 1]) && local.has_landed_up_to(4, &[2, 2]));
        local.fail();
        assert!(!local.has_landed_up_to(0, &[2, 2]));
    }

    #[test]
    fn a_forward_that_runs_is_not_waited_for_and_what_nobody_ends_is() {
        let mut local = Local::default();
        local.submitted(0, 5);
        assert_eq!(local.next_fact(true, true, &[4], 1_000_000, DEADLINES), None);
        // Bound, and never closed.
        assert_eq!(local.next_fact(true, false, &[4], 2_000_000, DEADLINES), None);
        assert_eq!(local.next_fact(true, false, &[4], 2_000_099, DEADLINES), None);
        assert_eq!(local.next_fact(true, false, &[4], 2_000_100, DEADLINES), Some(Fact::Failed));
        assert_eq!(local.next_fact(false, false, &[4], 2_000_101, DEADLINES), None);
        assert_eq!(local.next_fact(false, false, &[5], 2_000_102, DEADLINES), Some(Fact::Ended));
    }

    #[test]
    fn what_is_rolled_back_ends_without_landing() {
        let mut local = Local::default();
        local.close();
        assert_eq!(facts(&mut local, false, &[], 0), [Fact::Ended]);
    }
}
