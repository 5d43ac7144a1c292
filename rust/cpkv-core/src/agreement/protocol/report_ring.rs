//! A ring of reports from one rank to rank 0.
//!
//! Positions only grow and are counted from the beginning; each side keeps its own in its process
//! and publishes it. What does not fit stays in the sender's queue, in order.

use std::collections::VecDeque;

use super::super::sync::AtomicU64;
use super::{Body, Impossible, Orderings, place};

/// The shared words of a ring.
pub(crate) struct ReportRing<'a, B> {
    /// How many reports were sent. Written by the sender.
    pub(crate) tail: &'a AtomicU64,
    /// How many reports were taken. Written by the receiver.
    pub(crate) head: &'a AtomicU64,
    /// The reports, each at its position modulo their number.
    pub(crate) bodies: &'a [B],
}

impl<B: Body> ReportRing<'_, B> {
    /// Sends from the front of `queue` what fits. `sent` is the sender's position.
    pub(crate) fn send<O: Orderings>(&self, sent: &mut u64, queue: &mut VecDeque<u64>) -> Result<(), Impossible> {
        if queue.is_empty() {
            return Ok(());
        }
        let capacity = self.bodies.len() as u64;
        let taken = self.head.load(O::HEAD_LOAD);
        let taken = Impossible::check("head of a report ring", taken, sent.saturating_sub(capacity), *sent)?;
        while *sent - taken < capacity {
            let Some(report) = queue.pop_front() else { break };
            self.bodies[place(*sent, self.bodies.len())].put(report);
            *sent += 1;
        }
        self.tail.store(*sent, O::TAIL_STORE);
        Ok(())
    }

    /// Appends everything that was sent to `into`. `taken` is the receiver's position.
    pub(crate) fn take<O: Orderings>(&self, taken: &mut u64, into: &mut Vec<u64>) -> Result<(), Impossible> {
        let sent = self.tail.load(O::TAIL_LOAD);
        let sent = Impossible::check("tail of a report ring", sent, *taken, *taken + self.bodies.len() as u64)?;
        if sent == *taken {
            return Ok(());
        }
        into.extend((*taken..sent).map(|position| self.bodies[place(position, self.bodies.len())].get()));
        *taken = sent;
        self.head.store(sent, O::HEAD_STORE);
        Ok(())
    }
}
