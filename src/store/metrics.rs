//! The metrics of a log, for STATS.
//!
//! The writer counts them and reads them. This module measures nothing.

/// The state of a log, and what it has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMetrics {
    /// Whether the log takes no adds at present.
    pub refuses_adds: bool,
    /// What the log takes.
    pub space: LogSpace,
    /// What the log has done since it was opened.
    pub counters: LogCounters,
    /// How the log was opened.
    pub opening: OpeningShape,
}

/// What a log takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSpace {
    /// Segments in use.
    pub segments: u64,
    /// The number of the oldest of them.
    pub oldest: u64,
    /// The number of the newest of them.
    pub newest: u64,
    /// Bytes of batches in them.
    pub used: u64,
    /// Bytes of the records in them that are the last of their keys.
    pub live: u64,
    /// The other bytes of batches: cleaning gives them back.
    pub dead: u64,
    /// Bytes of all files, those laid out and those that wait for their removal included.
    pub disk: u64,
    /// Bytes that the file system had free when it was last asked.
    pub free: u64,
    /// Bytes that are reserved for the states of all tasks, or their removals.
    pub reserved: u64,
    /// Records whose bytes are lost.
    pub set_aside: u64,
}

/// What a log has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Reads of the cleaner that failed for a reason that may pass.
    pub unread: u64,
    /// Batches written.
    pub batches: u64,
    /// Bytes of batches written, with what fills them up. Copies are among them.
    pub bytes: u64,
    /// Bytes of the largest batch.
    pub largest_batch: u64,
    /// Syncs of a segment.
    pub syncs: u64,
    /// Records that were read to be copied out of the oldest segment, those of batches that the owner dropped included.
    pub copies: u64,
    /// Bytes of these records.
    pub copied: u64,
    /// Segments removed.
    pub removed: u64,
}

/// How a log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningShape {
    /// The time that it took, in nanoseconds.
    pub nanos: u64,
    /// Segments that were opened.
    pub segments: u64,
    /// Summaries that were read in place of their segments.
    pub summaries: u64,
    /// Batches that were read.
    pub batches: u64,
    /// Batches behind the last one that was known to be on disk.
    pub behind: u64,
    /// Records that were found, the last of each key.
    pub records: u64,
    /// Bytes that were read.
    pub bytes: u64,
}
