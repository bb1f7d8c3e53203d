//! The end of the newest segment: batches are encoded and written there, and noted for its summary.
//!
//! This module does not decide when to sync.

use std::io;
use std::sync::Arc;

use crate::store::encoding::encode;
use crate::store::folder::{LogFile, write_all};
use crate::store::format::{BATCH_BYTES_MAX, BatchHead, LogKind};
use crate::store::record::RecordBatch;
use crate::store::segment::Place;
use crate::store::summary::{Summary, SummaryRecord};

/// Write-back is started after this many bytes that no sync has covered.
const WRITE_BACK_BYTES: u64 = 8 << 20;

/// The writer of the newest segment.
#[derive(Debug)]
pub(in crate::store) struct SegmentWriter {
    /// The descriptor that writes the segment. Only it reports all errors of its write-back.
    file: Option<Arc<dyn LogFile>>,
    /// The bytes since the last sync or start of write-back.
    behind: u64,
    /// The records of the segment, for its summary. `None`: segments have none.
    summary: Option<Summary>,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are kept for the next batch.
    buffer_max: u64,
    /// The most bytes of a batch: [`BATCH_BYTES_MAX`], except in tests.
    pub(in crate::store) batch_bytes_max: u64,
}

impl SegmentWriter {
    pub(super) fn new(kind: LogKind, segment_bytes: u64) -> Self {
        Self {
            file: None,
            behind: 0,
            summary: (kind == LogKind::States).then(Summary::default),
            buffer: Vec::new(),
            buffer_max: segment_bytes.min(WRITE_BACK_BYTES),
            batch_bytes_max: BATCH_BYTES_MAX,
        }
    }

    /// Begins the next segment.
    pub(super) fn begin(&mut self, file: Arc<dyn LogFile>) {
        self.file = Some(file);
    }

    /// Takes the summary of the segment that was written until now.
    pub(super) fn take_summary(&mut self) -> Option<Summary> {
        self.summary.as_mut().map(std::mem::take)
    }

    /// Writes a batch. Returns the places of its bodies.
    pub(super) fn write(&mut self, head: &BatchHead, batch: &RecordBatch) -> io::Result<Vec<Option<Place>>> {
        let file = self.file.as_ref().ok_or_else(no_segment)?;
        let places = encode(head, batch, &mut self.buffer);
        let written = write_all(&**file, &self.buffer, head.offset);
        self.behind += head.length();
        if self.behind >= WRITE_BACK_BYTES {
            let end = head.offset + head.length();
            file.start_write_back(end - self.behind.min(end), self.behind);
            self.behind = 0;
        }
        self.buffer.clear();
        if self.buffer.capacity() as u64 > self.buffer_max {
            self.buffer = Vec::new();
        }
        written?;
        if let Some(summary) = &mut self.summary {
            let records = batch.records.iter().zip(&places).map(|(record, place)| SummaryRecord {
                space: record.space,
                key: &record.key,
                place: *place,
                body: Some(record.body.bytes()),
            });
            summary.add(head, records);
        }
        Ok(places)
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.as_ref().ok_or_else(no_segment)?.sync()?;
        self.behind = 0;
        Ok(())
    }
}

/// The log has begun no segment.
pub(super) fn no_segment() -> io::Error {
    io::Error::other("the log has no segment")
}
