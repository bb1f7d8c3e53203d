//! The metrics of the store in the report.

use serde::Serialize;

use crate::store::{LogMetrics, OpeningShape};

/// Nanoseconds in a second.
const NANOS_PER_SECOND: f64 = 1e9;

/// The metrics of the store, in its JSON form.
#[derive(Serialize)]
pub(super) struct StoreLine {
    refuses_adds: bool,
    segments: u64,
    live_bytes: u64,
    dead_bytes: u64,
    disk_bytes: u64,
    free_bytes: u64,
    reserved_bytes: u64,
    set_aside: u64,
    batches: u64,
    batch_bytes: u64,
    largest_batch_bytes: u64,
    syncs: u64,
    copies: u64,
    copied_bytes: u64,
    removed_segments: u64,
    opening: OpeningLine,
}

#[derive(Serialize)]
struct OpeningLine {
    seconds: f64,
    segments: u64,
    summaries: u64,
    batches: u64,
    batches_behind: u64,
    records: u64,
    bytes: u64,
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
