//! The metrics of the store in the report.

use serde::Serialize;

use super::metric::{counter, gauge, line};
use crate::store::{LogMetrics, OpeningShape};

/// Nanoseconds in a second.
const NANOS_PER_SECOND: f64 = 1e9;

/// The labels of the metrics: which log.
const LOG: &[&str] = &["log"];

line! {
    /// The metrics of the store, in its JSON form.
    pub(crate) struct StoreLine {
        refuses_adds: bool =
            gauge("spindle_store_refuses_adds", "1 while the store takes nothing new, else 0.").by(LOG),
        #[serde(flatten)]
        space: StoreSpaceLine => read,
        set_aside: u64 = gauge("spindle_store_set_aside", "Records whose bytes are lost.").by(LOG),
        unread: u64 = counter("spindle_store_unread", "Reads of the cleaner that failed and are repeated.").by(LOG),
        #[serde(flatten)]
        written: StoreBatchesLine => read,
        #[serde(flatten)]
        cleaning: StoreCleaningLine => read,
        opening: OpeningLine,
    }
}

line! {
    /// The files of the log, and their records.
    pub(crate) struct StoreSpaceLine {
        segments: u64 = gauge("spindle_store_segments", "Segments of the log.").by(LOG),
        live_bytes: u64 = gauge("spindle_store_live", "Bytes of the records in use.").bytes().by(LOG),
        dead_bytes: u64 = gauge("spindle_store_dead", "Bytes that cleaning gives back.").bytes().by(LOG),
        disk_bytes: u64 = gauge("spindle_store_disk", "Bytes of all files.").bytes().by(LOG),
        free_bytes: u64 = gauge("spindle_store_free", "Bytes that the file system has free.").bytes().by(LOG),
        reserved_bytes: u64 =
            gauge("spindle_store_reserved", "Bytes that are kept for the removal of all records.").bytes().by(LOG),
    }
}

line! {
    /// The batches of the log.
    pub(crate) struct StoreBatchesLine {
        batches: u64 = counter("spindle_store_batches", "Batches written to the log.").by(LOG),
        batch_bytes: u64 = counter("spindle_store_written", "Bytes of batches written to the log.").bytes().by(LOG),
        largest_batch_bytes: u64,
        syncs: u64,
    }
}

line! {
    /// What cleaning has done.
    pub(crate) struct StoreCleaningLine {
        copies: u64,
        copied_bytes: u64 = counter("spindle_store_copied", "Bytes that cleaning has copied.").bytes().by(LOG),
        removed_segments: u64 = counter("spindle_store_removed_segments", "Segments that were removed.").by(LOG),
    }
}

#[derive(Serialize)]
pub(crate) struct OpeningLine {
    seconds: f64,
    segments: u64,
    summaries: u64,
    batches: u64,
    batches_behind: u64,
    records: u64,
    bytes: u64,
}

impl StoreLine {
    pub(super) fn of(LogMetrics { refuses_adds, space, counters, opening }: LogMetrics) -> Self {
        Self {
            refuses_adds,
            space: StoreSpaceLine {
                segments: space.segments,
                live_bytes: space.live,
                dead_bytes: space.dead,
                disk_bytes: space.disk,
                free_bytes: space.free,
                reserved_bytes: space.reserved,
            },
            set_aside: space.set_aside,
            unread: counters.unread,
            written: StoreBatchesLine {
                batches: counters.batches,
                batch_bytes: counters.bytes,
                largest_batch_bytes: counters.largest_batch,
                syncs: counters.syncs,
            },
            cleaning: StoreCleaningLine {
                copies: counters.copies,
                copied_bytes: counters.copied,
                removed_segments: counters.removed,
            },
            opening: OpeningLine::of(opening),
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
