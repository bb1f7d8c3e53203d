//! The part of STATS on durable queues: the committer, its store, and the queues. This module counts nothing.

use std::sync::Arc;

use serde::Serialize;

use super::name::printable;
use super::store_line::StoreLine;
use crate::clock::ClockReading;
use crate::tasks::{FamilyMetrics, QueueMetrics, TaskMetrics};

#[derive(Serialize)]
pub(crate) struct TasksSection {
    pub(crate) commits: u64,
    pub(crate) syncs: u64,
    pub(crate) waits: u64,
    pub(crate) lost_wakeups: u64,
    pub(crate) store: StoreLine,
    pub(crate) families: Vec<TaskFamilyLine>,
    pub(crate) queues: Vec<TaskQueueLine>,
}

#[derive(Serialize)]
pub(crate) struct TaskFamilyLine {
    pub(crate) name: String,
    pub(crate) queues: u64,
    pub(crate) ready: u64,
    pub(crate) leased: u64,
    pub(crate) unread: u64,
    pub(crate) ran_out: u64,
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
            ran_out: counts.ran_out,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct TaskQueueLine {
    pub(crate) name: String,
    pub(crate) ready: u64,
    pub(crate) leased: u64,
    pub(crate) dropped: u64,
    pub(crate) unread: u64,
    pub(crate) ran_out: u64,
    pub(crate) waiting: u64,
    pub(crate) oldest_ready_seconds: Option<f64>,
}

impl TasksSection {
    pub(super) fn of(metrics: &TaskMetrics, now: ClockReading) -> Self {
        let now = metrics.time(now);
        let line = |queue: &Arc<QueueMetrics>| {
            let counts = queue.counts();
            TaskQueueLine {
                name: printable(queue.name()),
                ready: counts.ready,
                leased: counts.leased,
                dropped: counts.dropped,
                unread: counts.unread,
                ran_out: counts.ran_out,
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
