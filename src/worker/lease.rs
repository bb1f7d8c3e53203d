//! A slot on a server that leases: one thing at a time, whose lease it extends and ends.
//!
//! ```text
//! lend ─► held ─► done, or given back        true: it was held     false: the lease had ended
//!           │  extend, three times in each lease, while a command runs
//!           └─► not held, or the server silent until the lease has ended ─► lost
//! ```
//! A lease outlives its connection and the server. While the server does not answer, or its disk has no room for a
//! value, the slot repeats the end of a lease until the lease is over. It does not repeat an end that the server could
//! carry out twice.
//!
//! ```text
//! slot:     asked ───────────── received ─────── until          until = asked + length - margin
//! server:          lease begins ─────────────────────── lease ends
//! ```
//! The server begins or extends a lease after the slot has asked for it, so another can have it one length after the
//! question at the earliest. If the question has waited at the server, this moment may be over when the answer comes.
//! The slot then extends the lease at once. A request about a held lease takes no longer than the lease surely lasts, so
//! a silent server does not keep the slot from ending a command in time.
//!
//! This module does not define leases, and does not know what is leased: see `tasks`, and [`Lender`].

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{PAUSE, SlotControl, SourceNotice};
use crate::clock::{Clock, Now};

/// Extensions in the length of a lease.
const EXTENSIONS: u32 = 3;
/// Attempts in the length of a lease, while the server does not answer.
const ATTEMPTS: u32 = 12;
/// The waits of a request: it connects, shakes hands and receives. What it sends fits into the buffers of the system.
const WAITS: u32 = 3;
/// The longest margin. The system takes its time to wake the slot, and to kill a command.
const MARGIN_MAX: Duration = Duration::from_millis(100);

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

    /// Whether a lease begins with the length that the worker asks for. Otherwise its first extension gives it this length.
    const IS_LENT_FOR_LENGTH: bool;

    /// Waits for something to be leased. `None`: there is nothing for now, `over` is readable, or the server ends.
    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<Self::Lent>, Self::Error>;

    /// Has a lease begin anew, within the time that is `left` of it. False: it is not held.
    fn extend(&mut self, lent: &Self::Lent, left: Duration) -> Result<bool, Self::Error>;

    /// Ends a lease, of which this time is `left`, or leaves it to end by itself. False: it is not held.
    fn end(&mut self, lent: &Self::Lent, end: Self::End<'_>, left: Duration) -> Result<bool, Self::Error>;

    /// What the slot does about an error of [`Lender::end`].
    fn failure(error: &Self::Error, end: Self::End<'_>) -> Failure;
}

/// Something that is leased.
pub(super) struct HeldLease<'s, L: Lender> {
    pub(super) lent: L::Lent,
    control: &'s SlotControl,
    lender: &'s mut L,
    clock: Clock,
    length: Duration,
    /// Nobody else can have the lease before. Written by each extension. Only until the first one it may be a guess, if the
    /// server has made the slot wait.
    until: Now,
    /// When the lease is to be extended.
    due: Now,
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
        let asked = clock.now();
        match lender.lend(control.wake_signal.as_fd()) {
            Ok(Some(lent)) => {
                notice.back();
                take(HeldLease::begin(lent, control, lender, clock, asked, length));
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

/// The moment until which a lease is surely held that begins at `begun` or later.
fn surely_until(begun: Now, length: Duration) -> Now {
    begun.after(length - MARGIN_MAX.min(length / 20))
}

/// How long each wait of a request may take, for the request to be over in this time.
pub(super) fn patience(left: Duration) -> Duration {
    (left / WAITS).max(Duration::from_millis(1))
}

impl<'s, L: Lender> HeldLease<'s, L> {
    /// What was asked for at this moment, and has just been received.
    pub(super) fn begin(
        lent: L::Lent,
        control: &'s SlotControl,
        lender: &'s mut L,
        clock: Clock,
        asked: Now,
        length: Duration,
    ) -> Self {
        let (received, due) = (clock.now(), asked.after(length / EXTENSIONS));
        let is_known = L::IS_LENT_FOR_LENGTH && received < due;
        let (begun, due) = if is_known { (asked, due) } else { (received, received) };
        Self { lent, control, lender, clock, length, until: surely_until(begun, length), due }
    }

    /// Extends the lease, if it is time to. Returns the time until the next beat. `None`: the lease is lost.
    pub(super) fn beat(&mut self) -> Option<Duration> {
        let asked = self.clock.now();
        let left = asked.time_until(self.until);
        if left.is_zero() {
            return None;
        }
        if asked >= self.due {
            match self.lender.extend(&self.lent, left) {
                Ok(true) => {
                    self.until = surely_until(asked, self.length);
                    self.due = asked.after(self.length / EXTENSIONS);
                }
                Ok(false) => return None,
                // Without an answer it counts as held while nobody else can have it.
                Err(_) => self.due = self.clock.now().after(PAUSE.min(self.length / ATTEMPTS)),
            }
        }
        Some(self.clock.now().time_until(self.due.min(self.until)))
    }

    /// Ends the lease and returns whether it was held. A server that is away, or has no room, is asked again until the
    /// lease is over, unless it may carry this end out twice.
    ///
    /// # Errors
    /// The last error. Whether the lease was held is not known.
    pub(super) fn end(&mut self, end: L::End<'_>) -> Result<bool, L::Error> {
        loop {
            let left = self.clock.now().time_until(self.until);
            let ended = self.lender.end(&self.lent, end, left);
            let failure = ended.as_ref().err().map(|error| L::failure(error, end));
            let failure = failure.filter(|_| self.clock.now() < self.until);
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

    #[cfg(test)]
    pub(super) fn lender_mut(&mut self) -> &mut L {
        self.lender
    }

    /// Gives others a moment: what has just failed is not to come back at once.
    pub(super) fn pause(&self) {
        self.pause_for(PAUSE);
    }

    /// As [`HeldLease::pause`], for `time` and a random part of as much.
    pub(super) fn pause_for(&self, time: Duration) {
        self.control.pause(time, time);
    }
}

/// The milliseconds of a time.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
