//! The metrics of the tables: their memory, expiry, changes and clients.

use std::fmt::Result;

use super::families::{FamilyWriter, Labels, PROTOCOL, family};
use crate::services::operator::admin::limits::LABELLED_TABLES_MAX;
use crate::services::tables::report::{StatsDocument, TableStats};

pub(super) fn write(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    workers(to, stats)?;
    tables(to, stats)?;
    memory(to, stats)?;
    expiry(to, stats)?;
    changes(to, stats)?;
    feed(to, stats)?;
    clients(to, stats)?;
    lockstep(to, stats)
}

fn workers(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let numbers: Vec<String> = (0..stats.workers.len()).map(|number| number.to_string()).collect();
    let labels: Vec<_> = numbers.iter().map(|number| [("worker", &**number)]).collect();
    let lines = || labels.iter().map(|labels| &labels[..]).zip(&stats.workers);
    let busy: Vec<(Labels<'_>, f64)> = lines().map(|(labels, worker)| (labels, worker.busy_share)).collect();
    to.gauges(
        family("spindle_worker_busy", "Share of the time since the start that a worker was busy.").ratio(),
        &busy,
    )?;
    let waiting: Vec<(Labels<'_>, f64)> = lines().map(|(labels, worker)| (labels, worker.waiting as f64)).collect();
    to.gauges(family("spindle_worker_waiting_clients", "Clients that wait for room in the tables."), &waiting)
}

/// The largest tables, with the number of the others and what they have together.
fn tables(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let (elements, bytes) =
        stats.tables.iter().fold((0, 0), |(elements, bytes), table| (elements + table.elements, bytes + table.bytes));
    to.gauge(family("spindle_tables", "Tables."), stats.tables.len() as u64)?;
    to.gauge(family("spindle_elements", "Elements of all tables."), elements)?;
    to.gauge(family("spindle_elements_memory", "Bytes of the elements of all tables.").bytes(), bytes)?;
    let mut largest: Vec<&TableStats> = stats.tables.iter().collect();
    largest.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
    largest.truncate(LABELLED_TABLES_MAX);
    let labels: Vec<_> = largest.iter().map(|table| [("table", &*table.name)]).collect();
    let lines = || labels.iter().map(|labels| &labels[..]).zip(&largest);
    let elements: Vec<(Labels<'_>, f64)> = lines().map(|(labels, table)| (labels, table.elements as f64)).collect();
    to.gauges(family("spindle_table_elements", "Elements of a table, of the largest tables."), &elements)?;
    let bytes: Vec<(Labels<'_>, f64)> = lines().map(|(labels, table)| (labels, table.bytes as f64)).collect();
    to.gauges(
        family("spindle_table_memory", "Bytes of the elements of a table, of the largest tables.").bytes(),
        &bytes,
    )
}

fn memory(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let memory = &stats.memory;
    to.gauge(family("spindle_memory_tables", "Bytes that the tables take.").bytes(), memory.tables_bytes)?;
    to.gauge(family("spindle_memory_limit", "Bytes that the tables may take.").bytes(), memory.tables_bytes_max)?;
    to.gauge(
        family("spindle_memory_excess", "Bytes of the process that count against the limit beside the tables.").bytes(),
        memory.excess_bytes,
    )?;
    to.gauge(
        family("spindle_memory_garbage", "Bytes of replaced and deleted elements that are not freed yet.").bytes(),
        memory.garbage_bytes,
    )?;
    to.gauge(
        family("spindle_memory_garbage_objects", "Values and keys of such elements that are not freed yet."),
        memory.garbage_objects,
    )?;
    if let Some(resident) = memory.resident_bytes {
        to.gauge(family("spindle_memory_resident", "Resident memory of the process.").bytes(), resident)?;
    }
    to.counter(family("spindle_moved_elements", "Elements that were moved to make room."), memory.moved_elements)
}

fn expiry(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let expiry = &stats.expiry;
    to.gauge(family("spindle_timers", "Elements with a deadline."), expiry.pending)?;
    to.counter(family("spindle_expired_elements", "Elements whose deadline has passed."), expiry.expired)?;
    to.latencies(
        family("spindle_expiry_lag", "Time from an element's deadline to its removal."),
        &[(&[], &expiry.lag_micros.snapshot)],
    )
}

fn changes(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let changes = &stats.changes;
    to.gauge(family("spindle_changes_waiting", "Changes that are committed and not announced."), changes.waiting)?;
    to.counter(family("spindle_writer_waits", "How often a writer waited for the publisher."), changes.writer_waits)?;
    to.counter(family("spindle_lost_wakeups", "Time-outs that found work without a wake-up."), changes.lost_wakeups)?;
    let feed = stats.feed.as_ref();
    let lockstep = stats.lockstep.as_ref();
    let by_endpoint = |own: u64, of_feed: Option<u64>, of_lockstep: Option<u64>| {
        let all = [("publish", Some(own)), ("feed", of_feed), ("lockstep-publish", of_lockstep)];
        all.into_iter().filter_map(|(endpoint, figure)| Some(([("endpoint", endpoint)], figure?))).collect::<Vec<_>>()
    };
    let sent = by_endpoint(changes.published, feed.map(|f| f.messages), lockstep.map(|l| l.published));
    to.counters(family("spindle_published_messages", "Messages that were published."), &counted(&sent))?;
    let now = by_endpoint(changes.subscribers, feed.map(|f| f.subscribers), lockstep.map(|l| l.subscribers));
    to.gauges(family("spindle_subscribers", "Connected subscribers."), &gauged(&now))?;
    let subscriptions =
        by_endpoint(changes.subscriptions, feed.map(|f| f.subscriptions), lockstep.map(|l| l.subscriptions));
    to.gauges(family("spindle_subscriptions", "Subscriptions of all subscribers."), &gauged(&subscriptions))?;
    let lost =
        by_endpoint(changes.lost_notifications, feed.map(|f| f.lost_messages), lockstep.map(|l| l.lost_notifications));
    to.counters(family("spindle_lost_messages", "Messages that slow subscribers have lost."), &counted(&lost))?;
    let closed = by_endpoint(
        changes.closed_subscribers,
        feed.map(|f| f.closed_subscribers),
        lockstep.map(|l| l.closed_subscribers),
    );
    to.counters(
        family("spindle_closed_subscribers", "Subscribers that exceeded a bound or broke the protocol."),
        &counted(&closed),
    )
}

/// Counts with one label each.
type OneLabel = ([(&'static str, &'static str); 1], u64);

fn counted(all: &[OneLabel]) -> Vec<(Labels<'_>, u64)> {
    all.iter().map(|(labels, count)| (&labels[..], *count)).collect()
}

fn gauged(all: &[OneLabel]) -> Vec<(Labels<'_>, f64)> {
    all.iter().map(|(labels, figure)| (&labels[..], *figure as f64)).collect()
}

fn feed(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let Some(feed) = &stats.feed else { return Ok(()) };
    to.counter(family("spindle_feed_changes", "States that the feed has told."), feed.changes)?;
    to.counter(
        family("spindle_feed_conflated", "Changes that a later one of the element has replaced."),
        feed.conflated,
    )?;
    to.counter(family("spindle_feed_bookmarks", "Bookmarks that were sent."), feed.bookmarks)?;
    to.gauge(
        family("spindle_feed_history", "Bytes of the messages that are kept for replay.").bytes(),
        feed.history_bytes,
    )
}

fn clients(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let clients = &stats.clients;
    let lockstep = stats.lockstep.as_ref();
    let mut known: Vec<(Labels<'_>, f64)> = vec![(&[("protocol", PROTOCOL)], clients.known as f64)];
    if let Some(lockstep) = lockstep {
        known.push((&[("protocol", "lockstep")], lockstep.connections as f64));
    }
    to.gauges(family("spindle_clients", "Connections of clients."), &known)?;
    to.gauge(
        family("spindle_clients_outstanding", "Bytes of requests and replies that clients have outstanding.").bytes(),
        clients.outstanding_bytes,
    )?;
    to.gauge(
        family("spindle_clients_unread", "Bytes of replies that clients may not have read.").bytes(),
        clients.unread_bytes,
    )?;
    to.counter(family("spindle_clients_cut_off", "How often a client was cut off."), clients.cut_off)?;
    to.counter(family("spindle_clients_held_back", "How often a client was held back."), clients.held_back)?;
    to.counter(family("spindle_dropped_requests", "Requests of clients that are cut off."), clients.dropped_requests)?;
    to.counter(
        family("spindle_oversized_requests", "Requests that were too long to keep."),
        clients.oversized_requests,
    )?;
    to.counter(
        family("spindle_undeliverable_replies", "Replies to connections that are gone."),
        clients.undeliverable_replies,
    )
}

fn lockstep(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let Some(lockstep) = &stats.lockstep else { return Ok(()) };
    to.counter(family("spindle_lockstep_requests", "Requests in the lock-step dialect."), lockstep.requests)?;
    to.counter(
        family("spindle_lockstep_commands", "Commands in the lock-step dialect, of several requests each."),
        lockstep.commands,
    )?;
    to.gauge(
        family("spindle_lockstep_held", "Bytes that are held for clients of the lock-step dialect.").bytes(),
        lockstep.held_bytes,
    )
}
