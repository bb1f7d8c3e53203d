//! The part of STATS on durable queues: the committer, its store, and the queues. This module counts nothing.

use std::sync::Arc;

use super::metric::{counter, gauge, line};
use super::name::printable;
use super::store_line::StoreLine;
use crate::clock::ClockReading;
use crate::tasks::{DEFAULT_TASKS, FamilyMetrics, QueueMetrics, TaskMetrics, TaskTotals};

line! {
    pub(crate) struct TasksSection {
        commits: u64 = counter("spindle_commits", "Batches that were stored."),
        syncs: u64 = counter("spindle_syncs", "Syncs of the store."),
        waits: u64 =
            counter("spindle_commit_waits", "How often a frontend waited for room at the committer."),
        lost_wakeups: u64,
        pub(crate) store: StoreLine,
        pub(crate) families: Vec<TaskFamilyLine>,
        pub(crate) queues: Vec<TaskQueueLine>,
    }
}

line! {
    struct FamilyEndsLine {
        added: u64 = counter("spindle_queue_family_added_tasks", "Tasks that were added to a family.").by(&["family"]),
        lent: u64 = counter("spindle_queue_family_leases", "Leases of a family that were granted.").by(&["family"]),
        done: u64 = counter("spindle_queue_family_done_tasks", "Tasks of a family that were done.").by(&["family"]),
        ran_out: u64 =
            counter("spindle_queue_family_expired_leases", "Leases of a family that have run out.").by(&["family"]),
        failed: u64 = counter("spindle_queue_family_failed_leases", "Leases of a family that have failed.").by(&["family"]),
        expired: u64 =
            counter("spindle_queue_family_expired_tasks", "Tasks of a family whose lifetime was over.").by(&["family"]),
        removed: u64 =
            counter("spindle_queue_family_removed_tasks", "Tasks of a family that a request has removed, purges included.").by(&["family"]),
        throttled: u64 =
            counter("spindle_queue_family_throttled_requests", "Requests that a pause or the rate of a family has held up.")
                .by(&["family"]),
    }
}

impl FamilyEndsLine {
    fn of(TaskTotals { added, lent, done, ran_out, failed, expired, removed, throttled }: TaskTotals) -> Self {
        Self { added, lent, done, ran_out, failed, expired, removed, throttled }
    }
}

line! {
    struct QueueEndsLine {
        added: u64 = counter("spindle_queue_added_tasks", "Tasks that were added to a queue.").by(&["queue"]),
        lent: u64 = counter("spindle_queue_leases", "Leases of a queue that were granted.").by(&["queue"]),
        done: u64 = counter("spindle_queue_done_tasks", "Tasks of a queue that were done.").by(&["queue"]),
        ran_out: u64 =
            counter("spindle_queue_expired_leases", "Leases of a queue that have run out.").by(&["queue"]),
        failed: u64 = counter("spindle_queue_failed_leases", "Leases of a queue that have failed.").by(&["queue"]),
        expired: u64 =
            counter("spindle_queue_expired_tasks", "Tasks of a queue whose lifetime was over.").by(&["queue"]),
        removed: u64 =
            counter("spindle_queue_removed_tasks", "Tasks of a queue that a request has removed, purges included.").by(&["queue"]),
        throttled: u64 =
            counter("spindle_queue_throttled_requests", "Requests that a pause or the rate of a queue has held up.")
                .by(&["queue"]),
    }
}

impl QueueEndsLine {
    fn of(TaskTotals { added, lent, done, ran_out, failed, expired, removed, throttled }: TaskTotals) -> Self {
        Self { added, lent, done, ran_out, failed, expired, removed, throttled }
    }
}

line! {
    pub(crate) struct TaskFamilyLine {
        pub(crate) name: String,
        pub(crate) queues: u64 = gauge("spindle_queue_family_queues", "Queues of a family.").by(&["family"]),
        ready: u64 = gauge("spindle_queue_family_ready", "Ready tasks of a family.").by(&["family"]),
        leased: u64 = gauge("spindle_queue_family_leased", "Leased tasks of a family.").by(&["family"]),
        unread: u64 =
            gauge("spindle_queue_family_unread", "Tasks of a family whose values cannot be read.").by(&["family"]),
        delayed: u64 = gauge("spindle_queue_family_delayed", "Tasks of a family that are ready later.").by(&["family"]),
        dead: u64 =
            gauge("spindle_queue_family_dead", "Tasks of a family that have failed too often, or were buried.").by(&["family"]),
        #[serde(flatten)]
        ends: FamilyEndsLine => read,
    }
}

impl TaskFamilyLine {
    fn of(family: &Arc<FamilyMetrics>) -> Self {
        let counts = family.counts();
        Self {
            name: printable(family.name()),
            queues: family.queues(),
            ready: counts.ready,
            leased: counts.leased,
            unread: counts.unread,
            delayed: counts.delayed,
            dead: counts.dead,
            ends: FamilyEndsLine::of(counts.ever),
        }
    }
}

line! {
    pub(crate) struct TaskQueueLine {
        pub(crate) name: String,
        ready: u64 = gauge("spindle_queue_ready", "Ready tasks of a queue.").by(&["queue"]),
        leased: u64 = gauge("spindle_queue_leased", "Leased tasks of a queue.").by(&["queue"]),
        dropped: u64 = gauge("spindle_queue_dropped", "Dropped tasks of a queue.").by(&["queue"]),
        unread: u64 =
            gauge("spindle_queue_unread", "Tasks that wait until their values can be read.").by(&["queue"]),
        delayed: u64 = gauge("spindle_queue_delayed", "Tasks of a queue that are ready later.").by(&["queue"]),
        dead: u64 =
            gauge("spindle_queue_dead", "Tasks of a queue that have failed too often, or were buried.").by(&["queue"]),
        groups: u64 = gauge("spindle_queue_groups", "Groups of a queue that have tasks.").by(&["queue"]),
        #[serde(flatten)]
        ends: QueueEndsLine => read,
        waiting: u64 =
            gauge("spindle_queue_waiting_requests", "Requests that wait for a task.").by(&["queue"]),
        oldest_ready_seconds: Option<f64> =
            gauge("spindle_queue_oldest_ready", "Age of the oldest ready task of a queue.").seconds().by(&["queue"]),
    }
}

/// The name for people of the queue without a name.
const SHOWN_NAME: &str = "tasks";

/// The name of a queue. That of jobs begins with `jobs/`, so none has the name of the tasks.
fn queue_name(stored: &[u8]) -> String {
    if stored == DEFAULT_TASKS { SHOWN_NAME.to_owned() } else { printable(stored) }
}

impl TasksSection {
    pub(super) fn of(metrics: &TaskMetrics, now: ClockReading) -> Self {
        let now = metrics.time(now);
        let line = |queue: &Arc<QueueMetrics>| {
            let counts = queue.counts();
            TaskQueueLine {
                name: queue_name(queue.name()),
                ready: counts.ready,
                leased: counts.leased,
                dropped: counts.dropped,
                unread: counts.unread,
                delayed: counts.delayed,
                dead: counts.dead,
                groups: queue.groups(),
                ends: QueueEndsLine::of(counts.ever),
                waiting: queue.waiting(),
                oldest_ready_seconds: queue.oldest().map(|since| now.saturating_sub(since) as f64 / 1e3),
            }
        };
        Self {
            commits: metrics.commits(),
            syncs: metrics.syncs(),
            waits: metrics.waits(),
            lost_wakeups: metrics.lost_wakeups(),
            store: StoreLine::of(metrics.store()),
            families: metrics.families().iter().map(TaskFamilyLine::of).collect(),
            queues: metrics.queues().iter().map(line).collect(),
        }
    }
}
