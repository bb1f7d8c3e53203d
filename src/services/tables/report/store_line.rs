//! The metrics of the store in the report.

use serde::Serialize;

use crate::store::{LogMetrics, OpeningShape};

/// Nanoseconds in a second.
const NANOS_PER_SECOND: f64 = 1e9;

/// The metrics of the store, in its JSON form.
#[derive(Serialize)]
pub(crate) struct StoreLine {
    pub(crate) refuses_adds: bool,
    pub(crate) segments: u64,
    pub(crate) live_bytes: u64,
    pub(crate) dead_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) set_aside: u64,
    pub(crate) unread: u64,
    pub(crate) batches: u64,
    pub(crate) batch_bytes: u64,
    pub(crate) largest_batch_bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) copies: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) removed_segments: u64,
    pub(crate) opening: OpeningLine,
}

#[derive(Serialize)]
pub(crate) struct OpeningLine {
    pub(crate) seconds: f64,
    pub(crate) segments: u64,
    pub(crate) summaries: u64,
    pub(crate) batches: u64,
    pub(crate) batches_behind: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl StoreLine {
    pub(super) fn of((log, refuses_adds): (LogMetrics, bool)) -> Self {
        Self {
            refuses_adds,
            segments: log.segments,
            live_bytes: log.live,
            dead_bytes: log.dead,
            disk_bytes: log.disk,
            free_bytes: log.free,
            reserved_bytes: log.reserved,
            set_aside: log.set_aside,
            unread: log.unread,
            batches: log.batches,
            batch_bytes: log.bytes,
            largest_batch_bytes: log.largest_batch,
            syncs: log.syncs,
            copies: log.copies,
            copied_bytes: log.copied,
            removed_segments: log.removed,
            opening: OpeningLine::of(log.opening),
        }
    }
}

impl OpeningLine {
    fn of(opening: OpeningShape) -> Self {
        Self {
            seconds: opening.nanos as f64 / NANOS_PER_SECOND,
            segments: opening.segments,
            summaries: opening.summaries,
            batches: opening.batches,
            batches_behind: opening.behind,
            records: opening.records,
            bytes: opening.bytes,
        }
    }
}
