//! The bounds of the operator's service.

use std::time::Duration;

use crate::net::http::limits::HEALTH_CONNECTIONS_MAX;

/// Connections at once: some browsers, scrapers and probes. For further ones, idle ones make place.
pub(super) const CONNECTIONS_MAX: usize = 128;
/// Connections that may wait to be accepted.
pub(super) const BACKLOG: i32 = 128;
/// Tables that are metrics of their own, the largest ones. The others are a sum: a scraper keeps each series.
pub(super) const LABELLED_TABLES_MAX: usize = 100;
/// Queues that are metrics of their own, in the order in which they were made.
pub(super) const LABELLED_QUEUES_MAX: usize = 100;
/// Pages that are shown live at once. Further ones get 503, and their browsers ask again.
pub(super) const LISTENERS_MAX: usize = 32;
/// Tables that the page shows, the largest ones, and queues.
pub(super) const SHOWN_MAX: usize = 100;
/// Requests about queues that wait for their answers. Kicks and purges may take minutes.
pub(super) const QUEUE_REQUESTS_MAX: usize = CONNECTIONS_MAX;
/// Queues on a page of them at most.
pub(super) const QUEUES_PAGE_MAX: u32 = 1_000;
/// Tasks on a page of them at most.
pub(super) const TASKS_PAGE_MAX: u32 = 1_000;
/// Slow requests that the page shows, the latest ones.
pub(super) const SLOW_SHOWN_MAX: usize = 50;
/// Seconds of the past that are kept, a point each: ten minutes.
pub(super) const POINTS_MAX: usize = 600;
/// The time from one mark of the latencies to the next, and how many are kept: the oldest one is a minute old.
pub(super) const MARK_PERIOD: Duration = Duration::from_secs(5);
pub(super) const MARKS_MAX: usize = 12;
/// How long a probe waits for a store.
pub(super) const PROBE_TIME: Duration = Duration::from_secs(10);
/// The time from the beginning of one probe to that of the next: each of them syncs the store. Whoever asks meanwhile
/// shares the result of the first.
pub(super) const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Requests that may wait for a probe. Half of the connections that are kept for health are left for others.
pub(super) const PROBES_WAITING_MAX: usize = HEALTH_CONNECTIONS_MAX / 2;
