//! The interval log: one histogram for each verb and interval, in the format of HdrHistogram's `HistogramLogWriter`,
//! version 1.3 (<https://github.com/HdrHistogram/HdrHistogram>). Times are in seconds, latencies in nanoseconds, and
//! the column of the longest latency in milliseconds. The tag is the verb.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::Error;
use super::record::{IntervalCounts, LatencyHistogram};
use crate::clock::wall_nanos;

/// The divisor of the column of the longest latency.
const NANOS_PER_MILLI: f64 = 1_000_000.0;

/// A log that is being written.
pub(super) struct IntervalLog {
    path: String,
    file: BufWriter<File>,
    start: Duration,
    begun: bool,
}

impl IntervalLog {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| failed(&name, &error))?;
        Ok(Self { path: name, file: BufWriter::new(file), start: now(), begun: false })
    }

    /// Writes an interval that ends now and has this length in seconds.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(super) fn write(&mut self, counts: &IntervalCounts, seconds: f64) -> Result<(), Error> {
        let length = Duration::from_secs_f64(seconds.max(0.0));
        let at = now().saturating_sub(length).saturating_sub(self.start);
        let mut lines = Vec::new();
        for (verb, latencies) in counts.verbs() {
            line(&mut lines, verb.name(), at, length, self.start, latencies).map_err(|why| failed(&self.path, &why))?;
        }
        self.append(&lines).map_err(|error| failed(&self.path, &error))
    }

    /// Appends lines. Each call's lines begin with a header, and the file gets only the first one.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let is_header = line.starts_with(b"#") || line.starts_with(b"\"");
            if !is_header || !self.begun {
                self.file.write_all(line)?;
            }
            self.begun |= !is_header;
        }
        self.file.flush()
    }
}

fn line(
    out: &mut Vec<u8>,
    tag: &str,
    at: Duration,
    length: Duration,
    start: Duration,
    latencies: &LatencyHistogram,
) -> Result<(), String> {
    let mut serializer = V2DeflateSerializer::new();
    let start = SystemTime::UNIX_EPOCH + start;
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("[latencies of spindle load, in nanoseconds]");
    builder.with_start_time(start).with_base_time(start).with_max_value_divisor(NANOS_PER_MILLI);
    let mut writer = builder.begin_log_with(out, &mut serializer).map_err(|error| error.to_string())?;
    let tag = Tag::new(tag);
    writer.write_histogram(latencies, at, length, tag).map_err(|error| format!("{error:?}"))
}

fn now() -> Duration {
    Duration::from_nanos(wall_nanos())
}

fn failed(path: &str, why: &impl ToString) -> Error {
    Error::File { path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::load::RequestKind;

    #[test]
    fn what_is_written_is_what_other_tools_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = IntervalLog::create(file.path()).unwrap();
        for round in 1..=3_u64 {
            let mut counts = IntervalCounts::new();
            for nanos in 1..=100 {
                counts.answered(RequestKind::Get, nanos * round * 1_000);
                counts.answered(RequestKind::Set, 5);
            }
            log.write(&counts, 1.0).unwrap();
        }
        let bytes = std::fs::read(file.path()).unwrap();
        let entries: Vec<_> = IntervalLogIterator::new(&bytes).map(Result::unwrap).collect();
        let intervals: Vec<_> = entries
            .iter()
            .filter_map(|entry| if let LogEntry::Interval(interval) = entry { Some(interval) } else { None })
            .collect();
        assert_eq!(intervals.len(), 6);
        assert_eq!(entries.len(), 8, "one start time and one base time");
        let mut last = 0.0;
        for (number, interval) in intervals.iter().filter(|interval| interval.tag() == Tag::new("get")).enumerate() {
            let coded = base64_of(interval.encoded_histogram());
            let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut coded.as_slice()).unwrap();
            assert_eq!(histogram.len(), 100);
            let longest = 100_000 * (number as u64 + 1);
            assert!(histogram.max().abs_diff(longest) <= longest / 500);
            assert!(interval.max() > last, "milliseconds: {}", interval.max());
            last = interval.max();
        }
        assert!((0.29..0.31).contains(&last), "{last}");
    }

    /// A slow decoder of Base64.
    fn base64_of(text: &str) -> Vec<u8> {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut bits = 0_u32;
        let mut count = 0;
        let mut bytes = Vec::new();
        for digit in text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte)) {
            bits = bits << 6 | u32::try_from(digit).unwrap();
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
            }
        }
        bytes
    }
}
