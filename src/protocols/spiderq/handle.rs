//! Requests of the protocol as requests to the queue, and its outcomes as replies. Nothing here sends, waits or reads a clock.

use crate::protocols::spiderq::wire::{AddMode, LendMode, RepayStatus, Reply, Request};
use crate::store::Value;
use crate::tasks::{self, End, Outcome, Settlement};

/// What the queue is asked. Ping and Stats only wait for their turn there, Terminate for everything before it to be on disk.
#[must_use]
pub fn asked(request: &Request<'_>) -> tasks::Request {
    match *request {
        Request::Ping | Request::Stats => tasks::Request::Nothing,
        Request::Count => tasks::Request::Count,
        Request::Add { key, value, mode } => {
            tasks::Request::Add { key: key.into(), value: Value::from(value), end: end(mode) }
        }
        Request::Update { key, value } => tasks::Request::Update { key: key.into(), value: Value::from(value) },
        Request::Lend { timeout_ms, mode } => {
            tasks::Request::Lease { timeout: timeout_ms, wait: mode == LendMode::Block }
        }
        Request::Repay { lend_key, key, value, status } => tasks::Request::Settle {
            token: lend_key,
            key: key.into(),
            value: Some(Value::from(value)),
            how: settlement(status),
        },
        Request::Heartbeat { lend_key, key, timeout_ms } => {
            tasks::Request::Extend { token: lend_key, key: key.into(), timeout: timeout_ms }
        }
        Request::Lookup { key } => tasks::Request::Look { key: key.into() },
        Request::Terminate | Request::Flush => tasks::Request::Sync,
        Request::Remove { key } => tasks::Request::Remove { key: key.into() },
    }
}

/// What an outcome is called; `value` is that of its task, if it has one. None: it has no name of its own, the request says
/// what is answered.
#[must_use]
pub fn reply<'o>(outcome: &'o Outcome, value: &'o [u8]) -> Option<Reply<'o>> {
    Some(match outcome {
        Outcome::Nothing | Outcome::Synced | Outcome::Undone => return None,
        Outcome::Pushed(_) | Outcome::Refused | Outcome::Present => return None,
        Outcome::Counted(total) => Reply::Counted(u32::try_from(*total).unwrap_or(u32::MAX)),
        Outcome::Added(_) => Reply::Added,
        Outcome::Kept => Reply::Kept,
        Outcome::Updated => Reply::Updated,
        Outcome::NotFound => Reply::NotFound,
        Outcome::Leased { token, key, .. } => Reply::Lent { lend_key: *token, key, value },
        Outcome::Empty => Reply::QueueEmpty,
        Outcome::Settled => Reply::Repaid,
        Outcome::Extended => Reply::Heartbeaten,
        Outcome::Skipped => Reply::Skipped,
        Outcome::Found(_) => Reply::ValueFound(value),
        Outcome::Absent => Reply::ValueNotFound,
        Outcome::Removed => Reply::Removed,
        Outcome::NotRemoved => Reply::NotRemoved,
    })
}

fn end(mode: AddMode) -> End {
    match mode {
        AddMode::Head => End::Head,
        AddMode::Tail => End::Tail,
    }
}

fn settlement(status: RepayStatus) -> Settlement {
    match status {
        RepayStatus::Penalty => Settlement::Penalty,
        RepayStatus::Reward => Settlement::Reward,
        RepayStatus::Front => Settlement::Front,
        RepayStatus::Drop => Settlement::Drop,
    }
}
