//! A slot on the queue of a server: one event at a time, under a lease.
//!
//! ```text
//! Lend Block ─► value ─► Repay Drop        Repaid: stored    NotFound: the lease had ended
//!                 │  Heartbeat, three times in each lease, while a command runs
//!                 └─► no value ─► Repay Penalty: to the tail
//! ```
//! A lease outlives its connection and the server. While the server does not answer, or its disk has no room for the
//! value, the slot repeats a Repay until the lease has ended. The server carries it out at most once.
//!
//! This module does not define leases; see `tasks`.

use std::os::fd::AsFd;
use std::time::Duration;

use super::{PAUSE, SourceNotice, WorkerShared};
use crate::clients::rust::tasks::{Error, Lent, TIMEOUT_DEFAULT, TasksClient};
use crate::clock::{Clock, Now};
use crate::services::tasks::wire::RepayStatus;

/// Runs the slot until the worker is stopped.
pub(super) fn work(shared: &WorkerShared, endpoint: &str) {
    let mut client = TasksClient::later(endpoint, TIMEOUT_DEFAULT);
    let (clock, mut notice) = (Clock::start(), SourceNotice::default());
    while !shared.stopper.is_stopping() {
        match client.lend_unless(millis(shared.config.lease), shared.wake_signal.as_fd()) {
            Ok(Some(lent)) => {
                notice.back();
                let held = HeldLease { lent, until: clock.now().after(shared.config.lease) };
                LeaseTurn { shared, client: &mut client, clock }.take(held);
            }
            // The server or this worker is stopping.
            Ok(None) => shared.pause(PAUSE, PAUSE),
            Err(error) => {
                notice.gone(&error.to_string());
                shared.pause(PAUSE, PAUSE);
            }
        }
    }
}

/// A lent event, and a lower bound of the lease's deadline.
struct HeldLease {
    lent: Lent,
    until: Now,
}

struct LeaseTurn<'s> {
    shared: &'s WorkerShared,
    client: &'s mut TasksClient,
    clock: Clock,
}

impl LeaseTurn<'_> {
    fn take(mut self, mut held: HeldLease) {
        let Some(id) = std::str::from_utf8(&held.lent.key).ok().and_then(|key| key.parse().ok()) else {
            tracing::warn!("a task whose key is no number is no event: is this the right endpoint?");
            let _expires = self.repay(&held, b"", RepayStatus::Penalty);
            return self.shared.pause(PAUSE, PAUSE);
        };
        let value = self.shared.value(id, || self.beat(&mut held));
        match value {
            Ok(value) => match self.repay(&held, value.as_bytes(), RepayStatus::Drop) {
                Ok(true) => self.shared.stored(id, &value),
                Ok(false) => self.shared.lost(id, "its lease had ended"),
                Err(Error::Disconnected(_)) => self.shared.lost(id, "the server has not answered"),
                Err(error) => self.shared.lost(id, &error.to_string()),
            },
            Err(why) => {
                self.shared.given_back(id, &why);
                let _expires = self.repay(&held, b"", RepayStatus::Penalty);
                self.shared.pause(PAUSE, PAUSE);
            }
        }
    }

    /// Extends the lease. False: the lease is lost.
    fn beat(&mut self, held: &mut HeldLease) -> bool {
        let asked = self.clock.now();
        match self.client.heartbeat(held.lent.lend_key, &held.lent.key, millis(self.shared.config.lease)) {
            Ok(true) => {
                held.until = asked.after(self.shared.config.lease);
                true
            }
            Ok(false) => false,
            // Without an answer the lease counts as held.
            Err(_) => true,
        }
    }

    /// Ends the lease and returns whether it was held. A server that is away, or has no room for the value, is asked
    /// again until the lease has ended.
    ///
    /// # Errors
    /// The last [`Error`]. Whether the lease was held is not known.
    fn repay(&mut self, held: &HeldLease, value: &[u8], status: RepayStatus) -> Result<bool, Error> {
        let HeldLease { lent: Lent { lend_key, key, .. }, until } = held;
        loop {
            match self.client.repay(*lend_key, key, value, status) {
                Err(Error::Disconnected(_)) if self.clock.now() < *until => self.shared.pause(PAUSE / 5, PAUSE / 5),
                Err(Error::Refused(_)) if self.clock.now() < *until && !self.shared.stopper.is_stopping() => {
                    self.shared.pause(PAUSE, PAUSE);
                }
                repaid => return repaid,
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
