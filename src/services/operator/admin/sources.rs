//! Where the metrics come from, and the document of `/stats`. This module counts nothing.

use std::cmp::Ordering;
use std::sync::Arc;

use serde::Serialize;

use super::history::{History, MinuteLine, Point, Reading};
use super::limits::{SHOWN_MAX, SLOW_SHOWN_MAX};
use crate::clock::wall_millis;
use crate::lock::Mutex;
use crate::services::events::mysql::WritersMetrics;
use crate::services::tables::report::{ReportSources, SlowDocument, StatsDocument, TableStats, VerbTimes};
use crate::services::tables::report::{counter, line};
use crate::stats::slow_log::KEPT_MAX;

/// The metrics of the other rooms.
pub(super) struct AdminSources {
    /// The metrics that STATS gives.
    pub(super) report: Arc<ReportSources>,
    /// Those of the writers to a database, if there is one.
    pub(super) database: Option<Arc<WritersMetrics>>,
    /// The last ten minutes.
    pub(super) history: Mutex<History>,
}

/// The points that a message to a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Points {
    /// For a page that is opened.
    All,
    Latest,
}

/// The metrics, as `/metrics` and `/stats` have them.
#[derive(Serialize)]
pub(super) struct AdminDocument {
    /// Its parts are those of STATS.
    #[serde(flatten)]
    pub(super) stats: StatsDocument,
    /// `None` if events are not in a database.
    pub(super) events_database: Option<DatabaseLine>,
}

/// The document of `/stats`.
#[derive(Serialize)]
struct RecentDocument {
    #[serde(flatten)]
    document: AdminDocument,
    last_minute: Vec<MinuteLine>,
}

/// What the page shows.
#[derive(Serialize)]
struct PageDocument {
    #[serde(flatten)]
    document: RecentDocument,
    points: Vec<Point>,
    unix_millis: u64,
    tables_count: usize,
    /// Of all tables.
    elements: u64,
    queues_count: usize,
    slow_log: SlowDocument,
}

line! {
    /// The database of the events.
    #[derive(Clone, Copy)]
    pub(super) struct DatabaseLine {
        pub(super) transactions: u64 =
            counter("spindle_database_transactions", "Transactions that have stored events."),
        pub(super) events: u64 = counter("spindle_database_events", "Events that were stored in the database."),
        pub(super) retries: u64 = counter("spindle_database_retries", "Transactions that were tried again."),
        pub(super) failures: u64 = counter("spindle_database_failures", "Events that were answered with 503."),
    }
}

/// The largest tables, the largest first.
pub(super) fn largest(tables: &[TableStats], most: usize) -> impl Iterator<Item = &TableStats> {
    let mut all: Vec<&TableStats> = tables.iter().collect();
    all.sort_by(|one, other| by_size(one, other));
    all.into_iter().take(most)
}

fn by_size(one: &TableStats, other: &TableStats) -> Ordering {
    other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name))
}

impl AdminSources {
    /// The metrics at this moment.
    pub(super) fn document(&self) -> AdminDocument {
        AdminDocument {
            stats: self.report.document(),
            events_database: self.database.as_ref().map(|metrics| DatabaseLine {
                transactions: metrics.transactions.get(),
                events: metrics.events.get(),
                retries: metrics.retries.get(),
                failures: metrics.failures.get(),
            }),
        }
    }

    /// The metrics at this moment, and the latencies of the last minute.
    fn recent(&self, verbs: Vec<VerbTimes>) -> RecentDocument {
        let last_minute = self.history.lock().last_minute(verbs);
        RecentDocument { document: self.document(), last_minute }
    }

    /// The requests and times of each verb.
    pub(super) fn verb_times(&self) -> Vec<VerbTimes> {
        self.report.verb_times()
    }

    /// Adds a point to the history. Returns the times of the verbs in it.
    pub(super) fn record(&self) -> Vec<VerbTimes> {
        let reading = Reading {
            now: self.report.now(),
            unix_millis: wall_millis(),
            memory_bytes: self.report.memory_bytes(),
            verbs: self.verb_times(),
        };
        self.history.lock().record(&reading);
        reading.verbs
    }

    /// What the page shows: the document with the largest tables and the first queues alone, points, and the slow log.
    pub(super) fn page_json(&self, points: Points, verbs: Vec<VerbTimes>) -> String {
        let mut document = self.recent(verbs);
        let stats = &mut document.document.stats;
        let (tables_count, elements) =
            (stats.data.tables.len(), stats.data.tables.iter().map(|table| table.elements).sum::<u64>());
        stats.data.tables.sort_by(by_size);
        stats.data.tables.truncate(SHOWN_MAX);
        let queues_count = stats.tasks.as_ref().map_or(0, |tasks| tasks.queues.len());
        stats.tasks.iter_mut().for_each(|tasks| tasks.queues.truncate(SHOWN_MAX));
        let slow_log = SlowDocument::of(&self.report.slow, SLOW_SHOWN_MAX);
        let points = self.points(points);
        let page = PageDocument {
            document,
            points,
            unix_millis: wall_millis(),
            tables_count,
            elements,
            queues_count,
            slow_log,
        };
        serde_json::to_string(&page).expect("numbers and text can be written as JSON")
    }

    fn points(&self, points: Points) -> Vec<Point> {
        let history = self.history.lock();
        let all = history.points();
        let skipped = if points == Points::All { 0 } else { all.len().saturating_sub(1) };
        all.skip(skipped).cloned().collect()
    }

    /// The slow log as JSON.
    pub(super) fn slow_json(&self) -> String {
        let document = SlowDocument::of(&self.report.slow, KEPT_MAX);
        serde_json::to_string(&document).expect("numbers and text can be written as JSON")
    }

    /// The document of `/stats` as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(&self.recent(self.verb_times())).expect("numbers and text can be written as JSON")
    }
}
