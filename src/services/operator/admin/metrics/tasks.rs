//! The metrics of durable queues, their store, and the database of events.

use std::fmt::Result;

use super::families::{FamilyWriter, Labels, family};
use crate::services::operator::admin::limits::LABELLED_QUEUES_MAX;
use crate::services::operator::admin::sources::DatabaseLine;
use crate::services::tables::report::{StoreLine, TaskFamilyLine, TaskQueueLine, TasksSection};

pub(super) fn write(to: &mut FamilyWriter<'_>, tasks: &TasksSection) -> Result {
    to.counter(family("spindle_commits", "Batches that were stored."), tasks.commits)?;
    to.counter(family("spindle_syncs", "Syncs of the store."), tasks.syncs)?;
    to.counter(family("spindle_commit_waits", "How often a frontend waited for room at the committer."), tasks.waits)?;
    store(to, &tasks.store)?;
    families(to, &tasks.families)?;
    queues(to, tasks.queues.get(..LABELLED_QUEUES_MAX).unwrap_or(&tasks.queues))
}

fn store(to: &mut FamilyWriter<'_>, store: &StoreLine) -> Result {
    let refuses = u64::from(store.refuses_adds);
    to.gauge(family("spindle_store_refuses_adds", "1 while the store takes nothing new, else 0."), refuses)?;
    to.gauge(family("spindle_store_segments", "Segments of the log."), store.segments)?;
    to.gauge(family("spindle_store_live", "Bytes of the records in use.").bytes(), store.live_bytes)?;
    to.gauge(family("spindle_store_dead", "Bytes that cleaning gives back.").bytes(), store.dead_bytes)?;
    to.gauge(family("spindle_store_disk", "Bytes of all files.").bytes(), store.disk_bytes)?;
    to.gauge(family("spindle_store_free", "Bytes that the file system has free.").bytes(), store.free_bytes)?;
    to.gauge(
        family("spindle_store_reserved", "Bytes that are kept for the removal of all records.").bytes(),
        store.reserved_bytes,
    )?;
    to.gauge(family("spindle_store_set_aside", "Records whose bytes are lost."), store.set_aside)?;
    to.counter(family("spindle_store_unread", "Reads of the cleaner that failed and are repeated."), store.unread)?;
    to.counter(family("spindle_store_batches", "Batches written to the log."), store.batches)?;
    to.counter(family("spindle_store_written", "Bytes of batches written to the log.").bytes(), store.batch_bytes)?;
    to.counter(family("spindle_store_copied", "Bytes that cleaning has copied.").bytes(), store.copied_bytes)?;
    to.counter(family("spindle_store_removed_segments", "Segments that were removed."), store.removed_segments)
}

fn families(to: &mut FamilyWriter<'_>, families: &[TaskFamilyLine]) -> Result {
    let labels: Vec<_> = families.iter().map(|family| [("family", &*family.name)]).collect();
    let gauges = |of: fn(&TaskFamilyLine) -> u64| -> Vec<(Labels<'_>, f64)> {
        labels.iter().zip(families).map(|(labels, family)| (&labels[..], of(family) as f64)).collect()
    };
    to.gauges(family("spindle_queue_family_queues", "Queues of a family."), &gauges(|f| f.queues))?;
    to.gauges(family("spindle_queue_family_ready", "Ready tasks of a family."), &gauges(|f| f.ready))?;
    to.gauges(family("spindle_queue_family_leased", "Leased tasks of a family."), &gauges(|f| f.leased))?;
    let unread = gauges(|f| f.unread);
    to.gauges(family("spindle_queue_family_unread", "Tasks of a family whose values cannot be read."), &unread)?;
    let ended: Vec<(Labels<'_>, u64)> =
        labels.iter().zip(families).map(|(labels, family)| (&labels[..], family.ran_out)).collect();
    to.counters(family("spindle_queue_family_expired_leases", "Leases of a family that have run out."), &ended)
}

fn queues(to: &mut FamilyWriter<'_>, queues: &[TaskQueueLine]) -> Result {
    let labels: Vec<_> = queues.iter().map(|queue| [("queue", &*queue.name)]).collect();
    let lines = || labels.iter().map(|labels| &labels[..]).zip(queues);
    let gauges = |of: fn(&TaskQueueLine) -> u64| -> Vec<(Labels<'_>, f64)> {
        lines().map(|(labels, queue)| (labels, of(queue) as f64)).collect()
    };
    to.gauges(family("spindle_queue_ready", "Ready tasks of a queue."), &gauges(|queue| queue.ready))?;
    to.gauges(family("spindle_queue_leased", "Leased tasks of a queue."), &gauges(|queue| queue.leased))?;
    to.gauges(family("spindle_queue_dropped", "Dropped tasks of a queue."), &gauges(|queue| queue.dropped))?;
    let unread = gauges(|queue| queue.unread);
    to.gauges(family("spindle_queue_unread", "Tasks that wait until their values can be read."), &unread)?;
    to.gauges(
        family("spindle_queue_waiting_requests", "Requests that wait for a task."),
        &gauges(|queue| queue.waiting),
    )?;
    let oldest: Vec<(Labels<'_>, f64)> =
        lines().filter_map(|(labels, queue)| Some((labels, queue.oldest_ready_seconds?))).collect();
    to.gauges(family("spindle_queue_oldest_ready", "Age of the oldest ready task of a queue.").seconds(), &oldest)?;
    let ended: Vec<(Labels<'_>, u64)> = lines().map(|(labels, queue)| (labels, queue.ran_out)).collect();
    to.counters(family("spindle_queue_expired_leases", "Leases of a queue that have run out."), &ended)
}

pub(super) fn write_database(to: &mut FamilyWriter<'_>, database: DatabaseLine) -> Result {
    let DatabaseLine { transactions, events, retries, failures } = database;
    to.counter(family("spindle_database_transactions", "Transactions that have stored events."), transactions)?;
    to.counter(family("spindle_database_events", "Events that were stored in the database."), events)?;
    to.counter(family("spindle_database_retries", "Transactions that were tried again."), retries)?;
    to.counter(family("spindle_database_failures", "Events that were answered with 503."), failures)
}
