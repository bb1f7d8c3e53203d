//! The slow log: the last requests that took longer than a bound, with where their time went.
//!
//! A frontend compares the time of its requests with [`SlowLog::is_slow`], a comparison with a number that never
//! changes, and describes a request only if it was slow. So fast requests pay nothing else, and the log takes at most
//! [`KEPT_MAX`] entries of bounded size.
//!
//! This module reads no clock. Times come in as arguments.

use std::collections::VecDeque;
use std::time::Duration;

use super::SharedCounter;
use crate::lock::Mutex;

/// Entries that are kept: enough to see what a bad minute had in common, and less than a megabyte.
pub const KEPT_MAX: usize = 1_024;
/// The bound unless a flag says otherwise, in microseconds: far above what a request takes while nothing waits.
pub const SLOW_MICROS_DEFAULT: u64 = 10_000;

/// Where the time of a request went, in nanoseconds. `None`: the frontend does not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// From its arrival until its turn.
    pub queue: Option<u64>,
    /// From its turn until its reply was made.
    pub execution: Option<u64>,
    /// From then on until the system had taken the reply.
    pub write: Option<u64>,
}

/// A request that was slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// Milliseconds since 1970 when its reply was sent.
    pub unix_millis: u64,
    /// Nanoseconds from its arrival until its reply was sent.
    pub nanos: u64,
    /// The parts of that time.
    pub stages: Stages,
    /// The client: the address of the peer, or its routing id.
    pub client: String,
    /// The protocol.
    pub protocol: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// The table or queue. Empty if there is none.
    pub table: Box<[u8]>,
    /// Bytes of the request.
    pub request_bytes: u64,
    /// Bytes of the reply.
    pub reply_bytes: u64,
}

/// The slow requests of all threads.
#[derive(Debug)]
pub struct SlowLog {
    /// The bound, in nanoseconds. Read by all threads, and never written.
    bound: u64,
    /// Slow requests since the start, those that are not kept included.
    seen: SharedCounter,
    /// Oldest first.
    kept: Mutex<VecDeque<SlowRequest>>,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self::new(Duration::from_micros(SLOW_MICROS_DEFAULT))
    }
}

impl SlowLog {
    /// A log of the requests that take longer than `bound`.
    #[must_use]
    pub fn new(bound: Duration) -> Self {
        let bound = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Self { bound, seen: SharedCounter::new(), kept: Mutex::new(VecDeque::new()) }
    }

    /// Whether a request that took so many nanoseconds belongs into the log.
    #[inline]
    #[must_use]
    pub const fn is_slow(&self, nanos: u64) -> bool {
        nanos > self.bound
    }

    /// The bound, in nanoseconds.
    #[must_use]
    pub const fn bound_nanos(&self) -> u64 {
        self.bound
    }

    /// Adds a request, in place of the oldest one if there is no room.
    pub fn add(&self, request: SlowRequest) {
        self.seen.add(1);
        let mut kept = self.kept.lock();
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(request);
    }

    /// Forgets the requests that are kept.
    pub fn clear(&self) {
        self.kept.lock().clear();
    }

    /// Slow requests since the start.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// At most `most` of the requests that are kept, the latest first.
    #[must_use]
    pub fn latest(&self, most: usize) -> Vec<SlowRequest> {
        self.kept.lock().iter().rev().take(most).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(nanos: u64) -> SlowRequest {
        SlowRequest {
            unix_millis: 0,
            nanos,
            stages: Stages::default(),
            client: String::new(),
            protocol: "kv",
            verb: "GET",
            table: Box::default(),
            request_bytes: 0,
            reply_bytes: 0,
        }
    }

    #[test]
    fn the_bound_itself_is_not_slow() {
        let log = SlowLog::new(Duration::from_micros(5));
        assert!(!log.is_slow(5_000) && log.is_slow(5_001));
        assert!(!SlowLog::new(Duration::MAX).is_slow(u64::MAX), "nothing is slower than the longest time");
    }

    #[test]
    fn the_latest_requests_are_kept_and_all_are_counted() {
        let log = SlowLog::new(Duration::ZERO);
        let all = KEPT_MAX as u64 + 10;
        (1..=all).for_each(|nanos| log.add(request(nanos)));
        assert_eq!(log.seen(), all);
        let kept: Vec<u64> = log.latest(usize::MAX).iter().map(|request| request.nanos).collect();
        assert_eq!(kept, (11..=all).rev().collect::<Vec<_>>());
        assert_eq!(log.latest(2), [request(all), request(all - 1)]);
    }
}
