//! Turns requests about queues by name into requests to the queues, and their outcomes into replies.
//!
//! ```text
//! name of the request     default              mail
//! stored queue            spiderq              tasks/mail, of the family
//! ```
//! This module does not send, wait or read a clock.

use std::sync::Arc;

use super::handle::{self, Access, end, task_request};
use super::wire::{AnyReply, Counters, Fault, tag};
use super::wire::{
    AnyRequest, Field, ItemResult, Kicked, LeaseEnd, LentTask, NamedLease, QueueFigures, QueueReply, QueueRequest,
    Reply, Request, SeenQueue, SeenSettings, SeenTask, Verb,
};
use crate::security::DEFAULT_QUEUE;
use crate::store::Value;
use crate::tasks::{
    self, Browse, BrowsedTask, DEFAULT_TASKS, Family, GrantedLease, JOBS, ListedQueue, NAMED_TASKS, Outcome, Payload,
    QueueName, ShownReason, Sweep, list_cost, looks_cost, page_cost,
};

/// The most bytes of each value on a page.
const FIRST_BYTES_MAX: u32 = 1 << 10;

/// The queues of a frontend.
#[derive(Clone, Debug)]
pub struct NamedQueues {
    default: Arc<[QueueName]>,
    /// `None`: there is one queue alone.
    family: Option<Family>,
    /// The beginnings of the stored names of the queues.
    prefixes: &'static [&'static [u8]],
}

/// The bytes for which a message counts until it is answered: its own, and the cost of its looks and of its page.
pub(super) fn counted_bytes(frame: &[u8]) -> usize {
    let looks = match frame.first() {
        Some(&(tag::LEND_MANY | tag::BROWSE | tag::QUEUES)) => {
            AnyRequest::decode(frame).map_or(0, |request| cost(&request))
        }
        _ => 0,
    };
    frame.len() + looks
}

fn cost(request: &AnyRequest<'_>) -> usize {
    match request {
        AnyRequest::OfQueues(QueueRequest::LendMany { queues, .. }) => looks_cost(queues.len()),
        AnyRequest::OfQueues(QueueRequest::Browse { group, most, first_bytes, .. }) => {
            page_cost(group.is_some(), *most, FIRST_BYTES_MAX.min(*first_bytes))
        }
        AnyRequest::OfQueues(QueueRequest::Queues { most, .. }) => list_cost(*most),
        _ => 0,
    }
}

/// A request to the queues, and the queues to which its leases belong.
pub(crate) struct TaskCall {
    pub(crate) queue: QueueName,
    pub(crate) request: tasks::Request,
    pub(super) names: Arc<[QueueName]>,
}

impl NamedQueues {
    /// The queue of requests without a name, and the family of the others, if there are others.
    #[must_use]
    pub fn new(default: QueueName, family: Option<Family>) -> Self {
        Self { default: [default].into(), family, prefixes: &[DEFAULT_TASKS, NAMED_TASKS] }
    }

    /// The queues of jobs, for who looks at them as at those of tasks.
    #[must_use]
    pub fn of_jobs(family: Family) -> Self {
        Self { default: [family.queue(DEFAULT_QUEUE)].into(), family: Some(family), prefixes: &[JOBS] }
    }

    /// The queue of requests without a name.
    pub(super) fn default_queue(&self) -> QueueName {
        self.default.first().cloned().expect("it is there")
    }

    /// The queue of this name. Where there is one queue alone, each name is its name: the caller has refused others.
    fn named(&self, name: &[u8]) -> QueueName {
        let family = self.family.as_ref().filter(|_| name != DEFAULT_QUEUE);
        family.map_or_else(|| self.default_queue(), |family| family.queue(name))
    }

    /// The request to the queues. A request that is not allowed becomes [`tasks::Request::Refuse`]: it only takes a turn.
    /// The sweeps of a `client` follow one another.
    pub(crate) fn call(&self, access: Access, client: u64, request: &AnyRequest<'_>) -> TaskCall {
        match request {
            AnyRequest::Plain(request) => self.of_one(self.default_queue(), access.task_request(request)),
            // These are of no queue.
            AnyRequest::InQueue(_, request @ (Request::Ping | Request::Stats | Request::Flush)) => {
                self.of_one(self.default_queue(), access.task_request(request))
            }
            AnyRequest::InQueue(name, request) => {
                let queue = self.named(name);
                let request = access.task_request(request);
                TaskCall { names: [queue.clone()].into(), queue, request }
            }
            AnyRequest::OfQueues(request) => self.of_queues(access, client, request),
        }
    }

    /// The request for the figures of this queue. It is answered as [`QueueRequest::Queues`].
    pub(crate) fn show(&self, name: &[u8]) -> TaskCall {
        self.of_one(self.named(name), tasks::Request::ShowQueue)
    }

    /// What only takes a turn.
    pub(super) fn refusal(&self) -> TaskCall {
        self.of_one(self.default_queue(), tasks::Request::Refuse)
    }

    fn of_one(&self, queue: QueueName, request: tasks::Request) -> TaskCall {
        TaskCall { queue, request, names: Arc::clone(&self.default) }
    }

    fn of_queues(&self, access: Access, client: u64, request: &QueueRequest<'_>) -> TaskCall {
        let sweep = |sweep| tasks::Request::Sweep { sweep, client };
        let many = |requests| self.of_one(self.default_queue(), tasks::Request::Many { requests });
        match request {
            QueueRequest::AddMany { queues, key, value, mode, terms } => {
                let value = Value::from(*value);
                let add = |name: &&[u8]| {
                    let terms = Some(Box::new(terms.clone()));
                    let request =
                        tasks::Request::Add { key: (*key).into(), value: value.clone(), end: end(*mode), terms };
                    (self.named(name), request)
                };
                many(queues.iter().map(add).collect())
            }
            QueueRequest::LendMany { queues, count, timeout_ms, wait_ms } => {
                let names: Arc<[QueueName]> = queues.iter().map(|name| self.named(name)).collect();
                let (count, timeout, wait) = (*count, *timeout_ms, *wait_ms);
                let request = tasks::Request::LeaseMany { queues: Arc::clone(&names), count, timeout, wait };
                TaskCall { names, ..self.of_one(self.default_queue(), request) }
            }
            QueueRequest::SettleMany(items) => {
                many(items.iter().map(|(lease, how)| (self.named(lease.queue), settled(access, lease, how))).collect())
            }
            QueueRequest::ExtendMany(items) => {
                let extended = |(lease, timeout): &(NamedLease<'_>, u64)| {
                    let request = Request::Heartbeat { lend_key: lease.lend_key, key: lease.key, timeout_ms: *timeout };
                    (self.named(lease.queue), task_request(&request))
                };
                many(items.iter().map(extended).collect())
            }
            QueueRequest::Browse { queue, state, group, from, most, first_bytes } => {
                let (state, from, most) = (*state, Some(*from), *most);
                let (group, first_bytes) = (group.map(Box::from), (*first_bytes).min(FIRST_BYTES_MAX));
                self.of_one(self.named(queue), tasks::Request::Browse(Browse { state, group, from, most, first_bytes }))
            }
            QueueRequest::Kick { queue, what } => {
                let request = match *what {
                    Kicked::One(key) => tasks::Request::Kick { key: key.into() },
                    Kicked::Dead(most) => sweep(Sweep::KickDead { most }),
                    Kicked::Delayed(most) => sweep(Sweep::KickDelayed { most }),
                };
                self.of_one(self.named(queue), request)
            }
            QueueRequest::Purge { queue, states, age_ms } => {
                let purge = Sweep::Purge { states: *states, age: *age_ms };
                self.of_one(self.named(queue), sweep(purge))
            }
            QueueRequest::Configure { queue, change } => {
                self.of_one(self.named(queue), tasks::Request::Configure { change: Box::new(*change) })
            }
            QueueRequest::Queues { from, most } => {
                let prefixes = self.prefixes.iter().map(|prefix| Box::from(*prefix)).collect();
                let request = tasks::Request::ListQueues { prefixes, from: *from, most: *most };
                self.of_one(self.default_queue(), request)
            }
        }
    }
}

/// The end of one of many leases.
fn settled(access: Access, lease: &NamedLease<'_>, how: &LeaseEnd<'_>) -> tasks::Request {
    let (token, key) = (lease.lend_key, Box::from(lease.key));
    match *how {
        LeaseEnd::Repay(status, value) => {
            access.task_request(&Request::Repay { lend_key: token, key: lease.key, value, status })
        }
        LeaseEnd::GiveBack { delay_ms, reason } => {
            tasks::Request::GiveBack { token: Some(token), key, delay: delay_ms, reason: reason.into() }
        }
        LeaseEnd::Bury { .. } if matches!(access, Access::WorkOff { .. }) => tasks::Request::Refuse,
        LeaseEnd::Bury { reason } => tasks::Request::Bury { token, key, reason: reason.into() },
        LeaseEnd::NotBegun => tasks::Request::Undo { token, key },
    }
}

/// The reply to a request of this kind, from its outcome. Its values have been read.
pub(crate) fn reply(verb: Verb, outcome: &Outcome, stats: impl FnOnce() -> Counters) -> AnyReply<'_> {
    if verb.tag() > tag::IN_QUEUE {
        return queue_reply(verb, outcome);
    }
    let value = outcome.payload().map_or(&[][..], value_of);
    AnyReply::Plain(handle::reply(verb, outcome, value, stats))
}

fn queue_reply(verb: Verb, outcome: &Outcome) -> AnyReply<'_> {
    AnyReply::OfQueues(match (verb, outcome) {
        (_, Outcome::Many(outcomes)) => QueueReply::Items(verb, outcomes.iter().map(item).collect()),
        (_, Outcome::LeasedMany(leases)) => QueueReply::Lent(leases.iter().map(lent).collect()),
        (Verb::LendMany, _) => return AnyReply::Plain(Reply::QueueEmpty),
        (_, Outcome::Browsed(page)) => QueueReply::Browsed(page.tasks.iter().map(seen).collect(), page.next),
        (_, Outcome::Queues { queues, next }) => QueueReply::Queues(queues.iter().map(listed).collect(), *next),
        (Verb::Configure, Outcome::Done) => QueueReply::Configured,
        (Verb::Configure, _) => {
            return AnyReply::error(Fault::Truncated { field: Field::Queues, required: 1, given: 0 });
        }
        (_, Outcome::Counted(count)) => QueueReply::Counted(verb, *count),
        (_, outcome) => QueueReply::Counted(verb, u64::from(*outcome == Outcome::Done)),
    })
}

fn item(outcome: &Outcome) -> ItemResult {
    match outcome {
        Outcome::Done | Outcome::Died | Outcome::Added(_) => ItemResult::Done,
        Outcome::NoRoom { .. } => ItemResult::NoRoom,
        _ => ItemResult::Refused,
    }
}

fn value_of(payload: &Payload) -> &[u8] {
    if let Payload::Fresh(value) = payload { value } else { &[] }
}

fn lent(GrantedLease { queue, token, key, lent, payload, .. }: &GrantedLease) -> LentTask<'_> {
    let queue = u16::try_from(*queue).unwrap_or(u16::MAX);
    LentTask { queue, lend_key: *token, tries: *lent, key, value: value_of(payload) }
}

fn seen(task: &BrowsedTask) -> SeenTask<'_> {
    let BrowsedTask { key, class, lent, group, age, left, reason, bytes, payload, .. } = task;
    let reason = if let ShownReason::Fresh(reason) = reason { reason } else { &[][..] };
    SeenTask {
        key,
        class: *class,
        tries: *lent,
        group,
        age_ms: *age,
        left_ms: *left,
        reason,
        bytes: *bytes,
        first: value_of(payload),
    }
}

/// The name of a stored queue for clients.
pub(super) fn shown_name(stored: &[u8]) -> &[u8] {
    if stored == DEFAULT_TASKS {
        return DEFAULT_QUEUE;
    }
    let named = [NAMED_TASKS, JOBS].into_iter().find_map(|prefix| stored.strip_prefix(prefix));
    named.unwrap_or(stored)
}

fn listed(queue: &ListedQueue) -> SeenQueue<'_> {
    let (counts, ever) = (queue.counts, queue.counts.ever);
    let figures = [
        counts.ready,
        counts.delayed,
        counts.leased,
        counts.dead,
        counts.dropped,
        counts.unread,
        queue.groups,
        queue.waiting,
        ever.added,
        ever.lent,
        ever.done,
        ever.ran_out,
        ever.failed,
        ever.expired,
        ever.throttled,
    ];
    SeenQueue {
        name: shown_name(&queue.name),
        figures: QueueFigures(figures),
        oldest_ms: queue.oldest,
        paused_ms: queue.paused,
        settings: SeenSettings { terms: queue.terms, rate: queue.rate, sync: queue.sync },
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::RepayStatus;
    use super::*;
    use crate::tasks::Settlement;

    #[test]
    fn of_a_queue_to_work_off_leases_are_given_back_and_dropped_with_an_accepted_value() {
        let access = Access::WorkOff { accepts: |value| value == b"good" };
        let lease = NamedLease { queue: b"default", lend_key: 7, key: b"k" };
        let key = || Box::from(*b"k");
        let settle = |value, how| tasks::Request::Settle { token: 7, key: key(), value, how };
        let (delay, reason) = (Some(5), Box::from(*b"why"));
        let rows = [
            (LeaseEnd::Repay(RepayStatus::Drop, b"good"), settle(Some(Value::from(&b"good"[..])), Settlement::Drop)),
            (LeaseEnd::Repay(RepayStatus::Drop, b"bad"), tasks::Request::Refuse),
            (LeaseEnd::Repay(RepayStatus::Done, b""), tasks::Request::Refuse),
            (LeaseEnd::Repay(RepayStatus::Front, b"bad"), settle(None, Settlement::Front)),
            (LeaseEnd::Bury { reason: b"why" }, tasks::Request::Refuse),
            (
                LeaseEnd::GiveBack { delay_ms: delay, reason: b"why" },
                tasks::Request::GiveBack { token: Some(7), key: key(), delay, reason },
            ),
            (LeaseEnd::NotBegun, tasks::Request::Undo { token: 7, key: key() }),
        ];
        for (how, expected) in rows {
            assert_eq!(settled(access, &lease, &how), expected, "{how:?}");
        }
        let bury = settled(Access::Full, &lease, &LeaseEnd::Bury { reason: b"why" });
        assert_eq!(bury, tasks::Request::Bury { token: 7, key: key(), reason: Box::from(*b"why") });
    }
}
