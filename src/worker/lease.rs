//! A slot on a server that leases: one thing at a time, whose lease it extends and ends.
//!
//! ```text
//! lend ─► held ─► done, or given back        true: it was held     false: the lease had ended
//!           │  extend, three times in each lease, while a command runs
//!           └─► not held, or the server silent until the lease has ended ─► lost
//! ```
//! A lease outlives its connection and the server. While the server does not answer, or its disk has no room for a
//! value, the slot repeats the end of a lease until the lease is over. The server carries it out at most once.
//!
//! This module does not define leases, and does not know what is leased: see `tasks`, and [`Lender`].

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{PAUSE, SlotControl, SourceNotice};
use crate::clock::{Clock, Now};

/// Why a request has failed, by what the slot does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server is away: it is asked again soon.
    Away,
    /// The server refuses it for now: it is asked again later, unless the worker stops.
    Refused,
    /// It would fail again.
    Final,
}

/// A connection to a server that leases.
pub(super) trait Lender {
    /// What is leased.
    type Lent;
    /// How a lease ends.
    type End<'e>: Copy;
    type Error: fmt::Display;

    /// Waits for something to be leased. `None`: there is nothing for now, `over` is readable, or the server ends.
    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<Self::Lent>, Self::Error>;

    /// Has a lease begin anew. False: it is not held.
    fn extend(&mut self, lent: &Self::Lent) -> Result<bool, Self::Error>;

    /// Ends a lease. False: it is not held.
    fn end(&mut self, lent: &Self::Lent, end: Self::End<'_>) -> Result<bool, Self::Error>;

    fn failure(error: &Self::Error) -> Failure;
}

/// Something that is leased, and a lower bound of its lease's deadline.
pub(super) struct HeldLease<'s, L: Lender> {
    pub(super) lent: L::Lent,
    control: &'s SlotControl,
    lender: &'s mut L,
    clock: Clock,
    length: Duration,
    until: Now,
}

/// Leases one thing after the other for `length`, and hands each to `take`, until the worker is stopped.
pub(super) fn work<L: Lender>(
    control: &SlotControl,
    lender: &mut L,
    length: Duration,
    mut take: impl FnMut(HeldLease<'_, L>),
) {
    let (clock, mut notice) = (Clock::start(), SourceNotice::default());
    while !control.stopper.is_stopping() {
        match lender.lend(control.wake_signal.as_fd()) {
            Ok(Some(lent)) => {
                notice.back();
                let until = clock.now().after(length);
                take(HeldLease { lent, control, lender, clock, length, until });
            }
            // The server or this worker is stopping.
            Ok(None) => control.pause(PAUSE, PAUSE),
            Err(error) => {
                notice.gone(&error.to_string());
                control.pause(PAUSE, PAUSE);
            }
        }
    }
}

impl<L: Lender> HeldLease<'_, L> {
    /// Extends the lease. False: it is lost.
    pub(super) fn beat(&mut self) -> bool {
        let asked = self.clock.now();
        match self.lender.extend(&self.lent) {
            Ok(true) => {
                self.until = asked.after(self.length);
                true
            }
            Ok(false) => false,
            // Without an answer it counts as held while it may be.
            Err(_) => self.clock.now() < self.until,
        }
    }

    /// Ends the lease and returns whether it was held. A server that is away, or has no room, is asked again until the
    /// lease is over.
    ///
    /// # Errors
    /// The last error. Whether the lease was held is not known.
    pub(super) fn end(&mut self, end: L::End<'_>) -> Result<bool, L::Error> {
        loop {
            let ended = self.lender.end(&self.lent, end);
            let failure = ended.as_ref().err().map(L::failure).filter(|_| self.clock.now() < self.until);
            match failure {
                Some(Failure::Away) => self.control.pause(PAUSE / 5, PAUSE / 5),
                Some(Failure::Refused) if !self.control.stopper.is_stopping() => self.control.pause(PAUSE, PAUSE),
                _ => return ended,
            }
        }
    }

    /// The connection.
    pub(super) fn lender(&self) -> &L {
        self.lender
    }

    /// Gives others a moment: what has just failed is not to come back at once.
    pub(super) fn pause(&self) {
        self.control.pause(PAUSE, PAUSE);
    }
}

/// The milliseconds of a time.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
