//! One thread's retired memory, and the times at which the thread has it freed.
//!
//! crossbeam-epoch gathers 64 retired objects in a bag. Each `flush` frees at most 8 bags, of any thread, that are two
//! epochs old. A thread flushes after every [`RETIRED_OBJECTS_MAX`] objects, which are two bags. So each thread can
//! free four times as many objects as it retires, and the threads together catch up after one of them has held an epoch
//! back.
//!
//! [`GarbageCounts`] has the objects of all threads, counted at each flush. Behind the objects of a flush the thread
//! defers an object that subtracts them. So at most 127 objects or 32 KiB of each thread are not in the counts yet.
//!
//! ```text
//! retire ─► local bag ── 64, or flush ──► global queue, in order ── two epochs later, 8 bags a flush ──► freed
//!                                              ▲ a thread that rests sends a mark after its last bag: when the mark
//!                                              └ has come out, all objects that the thread retired are freed
//! ```
//! This module does not know the objects, and never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crossbeam::epoch::{self, Guard};
use crossbeam::utils::CachePadded;

use crate::clock::Now;
use crate::limits::{REST_AFTER, REST_MAX, RETIRED_BYTES_MAX, RETIRED_OBJECTS_MAX};

/// Flushes of one attempt to free all: more than it takes unless another thread holds an epoch back.
const SWEEP_FLUSHES: usize = 64;

/// The memory that all threads have retired, and the part of it that was freed. Relaxed: the counts carry no other
/// data.
#[derive(Debug, Default)]
pub(super) struct GarbageCounts {
    /// Retired since the start. Added to by each thread at its flushes; read by writes that need room.
    retired: CachePadded<ObjectCounts>,
    /// Those of them that were freed. Added to by the thread that frees them.
    freed: CachePadded<ObjectCounts>,
}

#[derive(Debug, Default)]
struct ObjectCounts {
    bytes: AtomicI64,
    objects: AtomicI64,
}

impl ObjectCounts {
    fn add(&self, bytes: i64, objects: i64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.objects.fetch_add(objects, Ordering::Relaxed);
    }
}

impl GarbageCounts {
    /// Bytes retired since the start.
    pub(super) fn retired(&self) -> i64 {
        self.retired.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were retired and are not freed yet.
    pub(super) fn waiting(&self) -> i64 {
        let freed = self.freed.bytes.load(Ordering::Relaxed);
        (self.retired() - freed).max(0)
    }

    /// Objects that were retired and are not freed yet.
    pub(super) fn waiting_objects(&self) -> i64 {
        let freed = self.freed.objects.load(Ordering::Relaxed);
        (self.retired.objects.load(Ordering::Relaxed) - freed).max(0)
    }
}

/// The memory that one thread has retired.
#[derive(Debug)]
pub(super) struct Garbage {
    /// Shared by all threads.
    counts: Arc<GarbageCounts>,
    /// Objects retired since the last flush.
    objects: usize,
    /// Their bytes.
    bytes: usize,
    /// The time of the last retirement, until all retired objects are known to be freed.
    since: Option<Now>,
    /// Whether there was a flush since [`Garbage::take_flushed`] was called.
    flushed: bool,
}

impl Garbage {
    pub(super) fn new(counts: &Arc<GarbageCounts>) -> Self {
        Self { counts: Arc::clone(counts), objects: 0, bytes: 0, since: None, flushed: false }
    }

    /// Counts an object of so many bytes that was retired under `guard`. Flushes when enough objects or bytes have come
    /// together. Returns whether it has.
    #[inline]
    pub(super) fn add(&mut self, bytes: usize, guard: &Guard, now: Now) -> bool {
        self.objects += 1;
        self.bytes += bytes;
        self.since = Some(now);
        let is_full = self.objects >= RETIRED_OBJECTS_MAX || self.bytes >= RETIRED_BYTES_MAX;
        if is_full {
            self.flush(guard);
        }
        is_full
    }

    #[cold]
    fn flush(&mut self, guard: &Guard) {
        self.count(guard);
        self.flushed = true;
        guard.flush();
    }

    /// Adds the objects retired since the last flush to the shared counts, until they are freed.
    fn count(&mut self, guard: &Guard) {
        let [bytes, objects] = [self.bytes, self.objects].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        (self.bytes, self.objects) = (0, 0);
        if objects == 0 {
            return;
        }
        self.counts.retired.add(bytes, objects);
        let counts = Arc::clone(&self.counts);
        guard.defer(move || counts.freed.add(bytes, objects));
    }

    /// Whether there was a flush since the last call. A long batch then repins its guard.
    pub(super) fn take_flushed(&mut self) -> bool {
        std::mem::take(&mut self.flushed)
    }

    /// The longest time that the thread may wait for work before it calls [`Garbage::rest`] again.
    pub(super) fn patience(&self) -> Duration {
        if self.since.is_some() { REST_AFTER } else { REST_MAX }
    }

    /// Frees the thread's retired objects if it has retired none for a while. The caller holds no guard.
    pub(super) fn rest(&mut self, now: Now) {
        if self.since.is_some_and(|since| now >= since.after(REST_AFTER)) {
            self.sweep();
        }
    }

    /// Frees the thread's retired objects, unless another thread holds an epoch back. True: all of them are freed.
    pub(super) fn sweep(&mut self) -> bool {
        if self.since.is_none() {
            return true;
        }
        let mark = Arc::new(AtomicBool::new(false));
        let freed = Arc::clone(&mark);
        let guard = epoch::pin();
        self.count(&guard);
        // Release: pairs with the Acquire below. The objects that came out of the queue before the mark have been
        // freed.
        guard.defer(move || freed.store(true, Ordering::Release));
        drop(guard);
        for _ in 0..SWEEP_FLUSHES {
            epoch::pin().flush();
            if mark.load(Ordering::Acquire) {
                (self.since, self.flushed) = (None, false);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_flushes_at_so_many_objects_or_so_many_bytes_and_says_so_once() {
        let (guard, now) = (epoch::pin(), Now::from_millis(1));
        for (bytes, count) in [(RETIRED_BYTES_MAX / 2, 2), (0, RETIRED_OBJECTS_MAX)] {
            let mut garbage = Garbage::new(&Arc::default());
            for object in 1..=count {
                assert!(!garbage.take_flushed(), "{object} of {count} objects");
                garbage.add(bytes, &guard, now);
            }
            assert!(garbage.take_flushed() && !garbage.take_flushed());
        }
    }
}
