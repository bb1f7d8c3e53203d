//! Turns requests of the protocol into requests to the queues, and outcomes into replies. This module does not send,
//! wait or read a clock.

use std::collections::HashSet;

use crate::services::jobs::wire::{JobId, Reply, Request, Verb, read_options};
use crate::store::Value;
use crate::tasks::{self, Family, Outcome, QueueName};

/// The request to a queue. A Get leases its job for `lease` milliseconds.
///
/// # Errors
/// The reply, if no job can have the id of the request. Nothing is submitted then.
pub fn task_request(
    request: &Request<'_>,
    family: &Family,
    lease: u64,
) -> Result<(QueueName, tasks::Request), Reply<'static>> {
    let (queue, request) = match *request {
        Request::Add { queue, data } => (queue, tasks::Request::Push { value: Value::from(data), terms: None }),
        Request::Get { queue } => (queue, tasks::Request::Lease { timeout: lease, wait: false }),
        Request::Ack { queue, id } => (queue, tasks::Request::Finish { key: key(id).ok_or(Reply::Done(false))? }),
        Request::In { queue, id } => (queue, tasks::Request::Has { key: key(id).ok_or(Reply::In(false))? }),
        Request::AddX { queue, options, data } => {
            let terms = Some(Box::new(read_options(options).ok_or(Reply::Error)?));
            (queue, tasks::Request::Push { value: Value::from(data), terms })
        }
        Request::Wait { queues, seconds, .. } => {
            (request.queue(), wait_request(queues_of(queues, family), lease, u64::from(seconds) * 1_000))
        }
        Request::Nack { queue, id, delay, reason } => {
            let (key, delay, reason) = (key(id).ok_or(Reply::Done(false))?, delay.map(u64::from), reason.into());
            (queue, tasks::Request::GiveBack { token: None, key, delay, reason })
        }
        Request::Touch { queue, id, seconds } => {
            let (key, timeout) = (key(id).ok_or(Reply::Done(false))?, u64::from(seconds) * 1_000);
            (queue, tasks::Request::Extend { token: None, key, timeout })
        }
    };
    Ok((family.queue(queue), request))
}

/// The reply to a request of this kind, from its outcome. `value` is the value of its job, or empty. An Add is refused
/// if there would be one queue too many, or the store has no room.
#[must_use]
pub fn reply<'o>(verb: Verb, outcome: &Outcome, value: &'o [u8]) -> Reply<'o> {
    match verb {
        Verb::Add | Verb::AddX => match outcome {
            Outcome::Added(number) => Reply::Added(JobId(*number)),
            Outcome::Kept(key) => Reply::Added(id(key)),
            _ => Reply::Error,
        },
        Verb::Get | Verb::Wait => match outcome {
            Outcome::Leased { key, .. } => Reply::Job { id: id(key), data: value, tries: None },
            Outcome::LeasedMany(granted) => granted.first().map_or(Reply::Nothing, |lease| Reply::Job {
                id: id(&lease.key),
                data: value,
                tries: Some(lease.lent),
            }),
            _ => Reply::Nothing,
        },
        Verb::Ack | Verb::Nack | Verb::Touch => Reply::Done(!outcome.is_refused()),
        Verb::In => Reply::In(!outcome.is_refused()),
    }
}

/// The request of a WAIT to its queues, which waits for so many milliseconds.
pub fn wait_request(queues: Vec<QueueName>, lease: u64, wait: u64) -> tasks::Request {
    tasks::Request::LeaseMany { queues: queues.into(), count: 1, timeout: lease, wait }
}

/// The queues of a WAIT, each once.
pub fn queues_of(names: &[u8], family: &Family) -> Vec<QueueName> {
    let mut seen = HashSet::new();
    names.split(|byte| *byte == b',').filter(|name| seen.insert(*name)).map(|name| family.queue(name)).collect()
}

/// The key of a job in the queues.
fn key(id: &[u8]) -> Option<Box<[u8]>> {
    JobId::read(id).map(|JobId(number)| Box::from(number.to_be_bytes()))
}

/// The id in the key of a job: its number, big-endian.
pub(super) fn id(key: &[u8]) -> JobId {
    JobId(key.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::clock::ClockReading;
    use crate::store::tests::fake_disk::FakeDisk;
    use crate::tasks::{AddTerms, GrantedLease, LeaseOrder, Payload, Policy};

    const ID: &[u8] = b"00000000000000000007";
    const QUEUE: &[u8] = b"q";

    fn family() -> Family {
        let (_tasks, mut committer) = tasks::open(Box::new(FakeDisk::new()), ClockReading::from_millis(0)).unwrap();
        committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Always).unwrap()
    }

    #[test]
    fn every_request_asks_the_queue_of_its_name() {
        let family = family();
        let key = || Box::from(7_u64.to_be_bytes());
        let rows = [
            (
                Request::Add { queue: QUEUE, data: b"d" },
                tasks::Request::Push { value: Value::from(&b"d"[..]), terms: None },
            ),
            (Request::Get { queue: QUEUE }, tasks::Request::Lease { timeout: 9, wait: false }),
            (Request::Ack { queue: QUEUE, id: ID }, tasks::Request::Finish { key: key() }),
            (Request::In { queue: QUEUE, id: ID }, tasks::Request::Has { key: key() }),
            (
                Request::AddX { queue: QUEUE, options: b"key=k", data: b"d" },
                tasks::Request::Push {
                    value: Value::from(&b"d"[..]),
                    terms: Some(Box::new(AddTerms { unique: Box::from(&b"k"[..]), ..AddTerms::default() })),
                },
            ),
            (
                Request::Wait { queues: b"q,r,q", seconds: 7, with_tries: true },
                tasks::Request::LeaseMany {
                    queues: [family.queue(QUEUE), family.queue(b"r")].into(),
                    count: 1,
                    timeout: 9,
                    wait: 7_000,
                },
            ),
            (
                Request::Nack { queue: QUEUE, id: ID, delay: Some(5), reason: b"why" },
                tasks::Request::GiveBack { token: None, key: key(), delay: Some(5), reason: Box::from(&b"why"[..]) },
            ),
            (
                Request::Touch { queue: QUEUE, id: ID, seconds: 3 },
                tasks::Request::Extend { token: None, key: key(), timeout: 3_000 },
            ),
        ];
        for (request, expected) in rows {
            assert_eq!(task_request(&request, &family, 9), Ok((family.queue(QUEUE), expected)));
        }
    }

    #[test]
    fn an_id_that_no_job_has_is_answered_without_asking() {
        let family = family();
        for id in [&b"7"[..], b"NONE", b"0000000000000000000x"] {
            assert_eq!(task_request(&Request::Ack { queue: QUEUE, id }, &family, 9), Err(Reply::Done(false)));
            assert_eq!(task_request(&Request::In { queue: QUEUE, id }, &family, 9), Err(Reply::In(false)));
            let nack = Request::Nack { queue: QUEUE, id, delay: None, reason: b"" };
            assert_eq!(task_request(&nack, &family, 9), Err(Reply::Done(false)));
            assert_eq!(
                task_request(&Request::Touch { queue: QUEUE, id, seconds: 1 }, &family, 9),
                Err(Reply::Done(false))
            );
        }
    }

    #[test]
    fn every_verb_has_a_reply_to_each_of_its_outcomes() {
        let payload = Payload::Fresh(Value::from(&b"d"[..]));
        let key = || Box::from(7_u64.to_be_bytes());
        let granted = GrantedLease { queue: 0, token: 8, key: key(), lent: 1, lease: 9, payload: payload.clone() };
        let leased = Outcome::Leased { token: 8, key: key(), lent: 1, lease: 9, payload };
        assert_eq!(
            reply(Verb::Wait, &Outcome::LeasedMany(vec![granted]), b"d"),
            Reply::Job { id: JobId(7), data: b"d", tries: Some(1) }
        );
        assert_eq!(reply(Verb::Wait, &Outcome::Refused, b""), Reply::Nothing);
        assert_eq!(reply(Verb::AddX, &Outcome::Kept(key()), b""), Reply::Added(JobId(7)));
        for verb in [Verb::Nack, Verb::Touch] {
            assert_eq!(reply(verb, &Outcome::Done, b""), Reply::Done(true));
            assert_eq!(reply(verb, &Outcome::Refused, b""), Reply::Done(false));
        }
        assert_eq!(reply(Verb::Get, &leased, b"d"), Reply::Job { id: JobId(7), data: b"d", tries: None });
        assert_eq!(reply(Verb::Add, &Outcome::Added(7), b""), Reply::Added(JobId(7)));
        assert_eq!(reply(Verb::Get, &Outcome::Refused, b""), Reply::Nothing);
        assert_eq!(reply(Verb::Ack, &Outcome::Done, b""), Reply::Done(true));
        assert_eq!(reply(Verb::Ack, &Outcome::Refused, b""), Reply::Done(false));
        assert_eq!(reply(Verb::In, &Outcome::Found(None), b""), Reply::In(true));
        assert_eq!(reply(Verb::In, &Outcome::Refused, b""), Reply::In(false));
        assert_eq!(reply(Verb::Add, &Outcome::Refused, b""), Reply::Error, "there are too many queues");
        assert_eq!(reply(Verb::Add, &Outcome::NoRoom { bytes: 1 }, b""), Reply::Error, "the disk is full");
    }
}
