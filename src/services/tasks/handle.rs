//! Turns requests of the protocol into requests to the queue, and their outcomes into replies. This module does not
//! send, wait or read a clock.

use crate::security::Resource;
use crate::services::tasks::wire::{AddMode, Counters, Fault, Field, LendMode, RepayStatus, Reply, Request, Verb, tag};
use crate::store::Value;
use crate::tasks::{self, Outcome, QueueEnd, Settlement};

/// The requests that clients may make.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// All requests.
    Full,
    /// Only the requests that work the queue off. Its tasks come from elsewhere, and each gets its value once, by a
    /// Drop that brings one. A Repay with Done and an Update are answered NotFound. Any other Repay gives the task back
    /// unchanged. Add, Remove and Terminate are unknown tags.
    WorkOff {
        /// Whether these bytes may be the value of a task. A Drop with any other value is answered NotFound.
        accepts: fn(&[u8]) -> bool,
    },
}

impl Access {
    /// The queue of this name, as users are granted it.
    #[must_use]
    pub const fn resource(self, queue: &[u8]) -> Resource<'_> {
        match self {
            Self::Full => Resource::TaskQueue(queue),
            Self::WorkOff { .. } => Resource::Events,
        }
    }

    /// Whether clients may make requests of this tag. [`Access::task_request`] checks the fields.
    #[must_use]
    pub fn allows(self, tag: u8) -> bool {
        let is_refused = match tag {
            tag::LEND_MANY | tag::SETTLE_MANY | tag::EXTEND_MANY => false,
            tag => tag >= tag::IN_QUEUE || matches!(tag, tag::ADD | tag::REMOVE | tag::TERMINATE),
        };
        matches!(self, Self::Full) || !is_refused
    }

    /// The request to the queue. A request that is not allowed becomes [`tasks::Request::Refuse`]: it only takes a
    /// turn, and is answered NotFound.
    #[must_use]
    pub fn task_request(self, request: &Request<'_>) -> tasks::Request {
        let Self::WorkOff { accepts } = self else { return task_request(request) };
        match *request {
            Request::Update { .. } | Request::Repay { status: RepayStatus::Done, .. } => tasks::Request::Refuse,
            Request::Repay { value, status: RepayStatus::Drop, .. } if !accepts(value) => tasks::Request::Refuse,
            Request::Repay { lend_key, key, status, .. } if status != RepayStatus::Drop => {
                tasks::Request::Settle { token: lend_key, key: key.into(), value: None, how: settlement(status) }
            }
            _ => task_request(request),
        }
    }
}

/// The request to the queue. Ping and Stats only take a turn. Terminate and Flush wait until everything before them is
/// on disk.
#[must_use]
pub fn task_request(request: &Request<'_>) -> tasks::Request {
    match *request {
        Request::Ping | Request::Stats => tasks::Request::Nothing,
        Request::Count => tasks::Request::Count,
        Request::Add { key, value, mode } => {
            tasks::Request::Add { key: key.into(), value: Value::from(value), end: end(mode), terms: None }
        }
        Request::Update { key, value } => tasks::Request::Update { key: key.into(), value: Value::from(value) },
        Request::Lend { timeout_ms, mode } => {
            tasks::Request::Lease { timeout: timeout_ms, wait: mode == LendMode::Block }
        }
        Request::Repay { lend_key, key, value, status } => tasks::Request::Settle {
            token: lend_key,
            key: key.into(),
            value: (status != RepayStatus::Done).then(|| Value::from(value)),
            how: settlement(status),
        },
        Request::Heartbeat { lend_key, key, timeout_ms } => {
            tasks::Request::Extend { token: Some(lend_key), key: key.into(), timeout: timeout_ms }
        }
        Request::Lookup { key } => tasks::Request::Look { key: key.into() },
        Request::Terminate | Request::Flush => tasks::Request::Sync,
        Request::Remove { key } => tasks::Request::Remove { key: key.into() },
    }
}

/// The reply to a request of this kind about one queue, from its outcome. `value` is the value of its task, or empty.
#[must_use]
pub fn reply<'o>(verb: Verb, outcome: &'o Outcome, value: &'o [u8], stats: impl FnOnce() -> Counters) -> Reply<'o> {
    let either = |done, refused| if outcome.is_refused() { refused } else { done };
    if let Outcome::NoRoom { bytes } = outcome {
        return Reply::Error(no_room(verb, *bytes));
    }
    match verb {
        Verb::Ping => Reply::Pong,
        Verb::Count => Reply::Counted(u32::try_from(outcome.counted()).unwrap_or(u32::MAX)),
        Verb::Add => either(Reply::Added, Reply::Kept),
        Verb::Update => either(Reply::Updated, Reply::NotFound),
        Verb::Lend => outcome.lease().map_or(Reply::QueueEmpty, |(lend_key, key)| Reply::Lent { lend_key, key, value }),
        Verb::Repay => either(Reply::Repaid, Reply::NotFound),
        Verb::Heartbeat => either(Reply::Heartbeaten, Reply::Skipped),
        Verb::Stats => Reply::StatsGot(stats()),
        Verb::Terminate => Reply::Terminated,
        Verb::Lookup => either(Reply::ValueFound(value), Reply::ValueNotFound),
        Verb::Flush => Reply::Flushed,
        Verb::Remove => either(Reply::Removed, Reply::NotRemoved),
        // The others are about queues by name.
        _ => Reply::Pong,
    }
}

/// The error for a value of so many bytes that cannot be read at present: it gives 0.
pub(super) fn unreadable(bytes: usize) -> Fault {
    Fault::Truncated { field: Field::LookupKey, required: u32::try_from(bytes).unwrap_or(u32::MAX), given: 0 }
}

/// The error for so many bytes that the store has no room for: it gives 0.
fn no_room(verb: Verb, bytes: u64) -> Fault {
    let field = match verb {
        Verb::Update => Field::UpdateValue,
        Verb::Repay => Field::RepayValue,
        _ => Field::AddValue,
    };
    Fault::Truncated { field, required: u32::try_from(bytes).unwrap_or(u32::MAX), given: 0 }
}

pub(super) fn end(mode: AddMode) -> QueueEnd {
    match mode {
        AddMode::Head => QueueEnd::Head,
        AddMode::Tail => QueueEnd::Tail,
    }
}

pub(super) fn settlement(status: RepayStatus) -> Settlement {
    match status {
        RepayStatus::Penalty => Settlement::Penalty,
        RepayStatus::Reward => Settlement::Reward,
        RepayStatus::Front => Settlement::Front,
        RepayStatus::Drop => Settlement::Drop,
        RepayStatus::Done => Settlement::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Payload;

    const NONE: Counters = Counters::Eight([0; 8]);

    #[test]
    fn every_verb_has_a_reply_to_each_of_its_outcomes() {
        let payload = || Payload::Fresh(Value::from(&b"v"[..]));
        let leased = Outcome::Leased { token: 7, key: Box::from(*b"k"), lent: 1, lease: 9, payload: payload() };
        let no_room = || Outcome::NoRoom { bytes: 9 };
        let refused = |field| Reply::Error(Fault::Truncated { field, required: 9, given: 0 });
        let rows = [
            (Verb::Ping, Outcome::Done, Reply::Pong),
            (Verb::Count, Outcome::Counted(3), Reply::Counted(3)),
            (Verb::Count, Outcome::Counted(1 << 32), Reply::Counted(u32::MAX)),
            (Verb::Add, Outcome::Added(1), Reply::Added),
            (Verb::Add, Outcome::Refused, Reply::Kept),
            (Verb::Add, no_room(), refused(Field::AddValue)),
            (Verb::Update, no_room(), refused(Field::UpdateValue)),
            (Verb::Repay, no_room(), refused(Field::RepayValue)),
            (Verb::Update, Outcome::Done, Reply::Updated),
            (Verb::Update, Outcome::Refused, Reply::NotFound),
            (Verb::Lend, leased, Reply::Lent { lend_key: 7, key: b"k", value: b"v" }),
            (Verb::Lend, Outcome::Refused, Reply::QueueEmpty),
            (Verb::Repay, Outcome::Done, Reply::Repaid),
            (Verb::Repay, Outcome::Refused, Reply::NotFound),
            (Verb::Heartbeat, Outcome::Done, Reply::Heartbeaten),
            (Verb::Heartbeat, Outcome::Refused, Reply::Skipped),
            (Verb::Stats, Outcome::Done, Reply::StatsGot(NONE)),
            (Verb::Terminate, Outcome::Done, Reply::Terminated),
            (Verb::Lookup, Outcome::Found(Some(payload())), Reply::ValueFound(b"v")),
            (Verb::Lookup, Outcome::Refused, Reply::ValueNotFound),
            (Verb::Flush, Outcome::Done, Reply::Flushed),
            (Verb::Remove, Outcome::Done, Reply::Removed),
            (Verb::Remove, Outcome::Refused, Reply::NotRemoved),
        ];
        for (verb, outcome, expected) in rows {
            assert_eq!(reply(verb, &outcome, b"v", || NONE), expected, "{verb:?}: {outcome:?}");
        }
    }

    #[test]
    fn a_queue_to_work_off_refuses_values_that_come_otherwise_than_by_an_accepted_drop() {
        let access = Access::WorkOff { accepts: |value| value == b"good" };
        let repay = |value, status| Request::Repay { lend_key: 7, key: b"k", value, status };
        let settle = |value, how| tasks::Request::Settle { token: 7, key: Box::from(*b"k"), value, how };
        let rows = [
            (Request::Update { key: b"k", value: b"good" }, tasks::Request::Refuse),
            (repay(b"bad", RepayStatus::Drop), tasks::Request::Refuse),
            (repay(b"good", RepayStatus::Done), tasks::Request::Refuse),
            (repay(b"good", RepayStatus::Drop), settle(Some(Value::from(&b"good"[..])), Settlement::Drop)),
            (repay(b"good", RepayStatus::Penalty), settle(None, Settlement::Penalty)),
            (repay(b"bad", RepayStatus::Front), settle(None, Settlement::Front)),
            (Request::Count, tasks::Request::Count),
        ];
        for (request, expected) in rows {
            assert_eq!(access.task_request(&request), expected, "{request:?}");
        }
        let many = [tag::LEND_MANY, tag::SETTLE_MANY, tag::EXTEND_MANY];
        for tag in tag::IN_QUEUE..=tag::QUEUES {
            assert_eq!((access.allows(tag), Access::Full.allows(tag)), (many.contains(&tag), true), "{tag:#x}");
        }
    }
}
