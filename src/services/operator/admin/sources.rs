//! Where the metrics come from, and the document of `/stats`. This module counts nothing.

use std::cmp::Ordering;
use std::sync::Arc;

use serde::Serialize;

use super::limits::{SHOWN_MAX, SLOW_SHOWN_MAX};
use crate::clock::wall_millis;
use crate::services::events::mysql::WritersMetrics;
use crate::services::tables::report::{ReportSources, SlowDocument, StatsDocument, TableStats};
use crate::services::tables::report::{counter, line};
use crate::stats::slow_log::KEPT_MAX;

/// The metrics of the other rooms.
pub(super) struct AdminSources {
    /// The metrics that STATS gives.
    pub(super) report: Arc<ReportSources>,
    /// Those of the writers to a database, if there is one.
    pub(super) database: Option<Arc<WritersMetrics>>,
}

/// The document of `/stats`.
#[derive(Serialize)]
pub(super) struct AdminDocument {
    /// Its parts are those of STATS.
    #[serde(flatten)]
    pub(super) stats: StatsDocument,
    /// `None` if events are not in a database.
    pub(super) events_database: Option<DatabaseLine>,
}

/// What the page shows.
#[derive(Serialize)]
struct PageDocument {
    #[serde(flatten)]
    document: AdminDocument,
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

    /// What the page shows: the document with the largest tables and the first queues alone, and the slow log.
    pub(super) fn page_json(&self) -> String {
        let mut document = self.document();
        let stats = &mut document.stats;
        let (tables_count, elements) =
            (stats.data.tables.len(), stats.data.tables.iter().map(|table| table.elements).sum::<u64>());
        stats.data.tables.sort_by(by_size);
        stats.data.tables.truncate(SHOWN_MAX);
        let queues_count = stats.tasks.as_ref().map_or(0, |tasks| tasks.queues.len());
        stats.tasks.iter_mut().for_each(|tasks| tasks.queues.truncate(SHOWN_MAX));
        let slow = SlowDocument::of(&self.report.slow, SLOW_SHOWN_MAX);
        let page =
            PageDocument { document, unix_millis: wall_millis(), tables_count, elements, queues_count, slow_log: slow };
        serde_json::to_string(&page).expect("numbers and text can be written as JSON")
    }

    /// The slow log as JSON.
    pub(super) fn slow_json(&self) -> String {
        let document = SlowDocument::of(&self.report.slow, KEPT_MAX);
        serde_json::to_string(&document).expect("numbers and text can be written as JSON")
    }

    /// The document as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(&self.document()).expect("numbers and text can be written as JSON")
    }
}
