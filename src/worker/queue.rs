//! A slot on the queue of events of a server: one event at a time, under a lease.
//!
//! ```text
//! Lend Block ─► value ─► Repay Drop        Repaid: stored    NotFound: the lease had ended
//!                 └─► no value ─► Repay Penalty: to the tail
//! ```
//! This module does not define leases; see `lease.rs`.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::WorkerShared;
use super::lease::{self, Failure, HeldLease, Lender, millis, patience};
use crate::clients::rust::tasks::{Error, Lent, TIMEOUT_DEFAULT, TasksClient};
use crate::services::tasks::wire::RepayStatus;

/// Runs the slot until the worker is stopped.
pub(super) fn work(shared: &WorkerShared, endpoint: &str) {
    let length = shared.config.lease;
    let mut lender = EventLender { client: TasksClient::later(endpoint, TIMEOUT_DEFAULT), length };
    lease::work(&shared.control, &mut lender, length, |held| take(shared, held));
}

/// A connection to the queue of events.
struct EventLender {
    client: TasksClient,
    length: Duration,
}

/// How an event ends: its value, and whether it is one.
#[derive(Clone, Copy)]
struct EventEnd<'v> {
    value: &'v [u8],
    status: RepayStatus,
}

impl Lender for EventLender {
    type Lent = Lent;
    type End<'e> = EventEnd<'e>;
    type Error = Error;

    const IS_LENT_FOR_LENGTH: bool = true;

    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<Lent>, Error> {
        self.client.set_timeout(TIMEOUT_DEFAULT);
        self.client.lend_unless(millis(self.length), over)
    }

    fn extend(&mut self, lent: &Lent, left: Duration) -> Result<bool, Error> {
        self.client.set_timeout(TIMEOUT_DEFAULT.min(patience(left)));
        self.client.heartbeat(lent.lend_key, &lent.key, millis(self.length))
    }

    fn end(&mut self, lent: &Lent, EventEnd { value, status }: EventEnd<'_>, _left: Duration) -> Result<bool, Error> {
        self.client.set_timeout(TIMEOUT_DEFAULT);
        self.client.repay(lent.lend_key, &lent.key, value, status)
    }

    fn failure(error: &Error, _end: EventEnd<'_>) -> Failure {
        failure(error)
    }
}

/// What a slot does about an error of the client.
pub(super) fn failure(error: &Error) -> Failure {
    match error {
        Error::Disconnected(_) => Failure::Away,
        Error::Refused(_) => Failure::Refused,
        Error::Malformed { .. } => Failure::Final,
    }
}

const GIVEN_BACK: EventEnd<'static> = EventEnd { value: b"", status: RepayStatus::Penalty };

fn take(shared: &WorkerShared, mut held: HeldLease<'_, EventLender>) {
    let Some(id) = std::str::from_utf8(&held.lent.key).ok().and_then(|key| key.parse().ok()) else {
        tracing::warn!("a task whose key is no number is no event: is this the right endpoint?");
        let _expires = held.end(GIVEN_BACK);
        return held.pause();
    };
    match shared.value(id, || held.beat()) {
        Ok(value) => match held.end(EventEnd { value: value.as_bytes(), status: RepayStatus::Drop }) {
            Ok(true) => shared.stored(id, &value),
            Ok(false) => shared.lost(id, "its lease had ended"),
            Err(Error::Disconnected(_)) => shared.lost(id, "the server has not answered"),
            Err(error) => shared.lost(id, &error.to_string()),
        },
        Err(why) => {
            shared.given_back(id, &why);
            let _expires = held.end(GIVEN_BACK);
            held.pause();
        }
    }
}
