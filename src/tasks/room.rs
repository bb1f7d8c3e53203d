//! Back-pressure: frontends wait until the inbox has room, and the committer tells them to check again.
//!
//! ```text
//! a frontend                                      the committer, twice in each batch
//! register: its bit := 1                          requests leave the inbox, or are answered
//!           fence (SeqCst)                        fence (SeqCst)
//!           is there room? withdraw, go on        is a bit set? all bits := 0, tell those sinks
//!                                                 passes += 1
//! ```
//! If the frontend's fence comes first, the committer sees the bit. If the committer's fence comes first, the frontend
//! sees the room. While there is no room some requests are not yet answered, so another pass follows.
//!
//! This module does not define room and does not put a frontend to sleep; see `inbox.rs`.

use std::sync::Arc;

#[cfg(all(test, feature = "models"))]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(all(test, feature = "models")))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::metrics::TaskMetrics;

/// The sinks whose frontends wait for room.
pub(super) struct RoomWaiters {
    /// One bit per sink. Set and cleared by frontends, cleared by the committer.
    sinks: AtomicU64,
    /// The number of passes in which the committer looked for waiting sinks. Written by the committer, read by
    /// frontends.
    passes: AtomicU64,
    metrics: Arc<TaskMetrics>,
}

/// A frontend's wait for room.
#[derive(Debug, Default)]
pub struct RoomWait {
    /// The committer's passes when the wait began. `None`: the frontend does not wait.
    since: Option<u64>,
}

impl RoomWaiters {
    pub(super) fn new(metrics: Arc<TaskMetrics>) -> Self {
        Self { sinks: AtomicU64::new(0), passes: AtomicU64::new(0), metrics }
    }

    /// Frontend: counts a lost wake-up if the committer told it and no wake-up came.
    pub(super) fn count_if_overslept(&self, sink: usize, wait: &RoomWait) {
        if wait.since.is_some() && !self.is_registered(bit(sink)) {
            self.metrics.lost_wakeups.add(1);
        }
    }

    /// Frontend: whether there is room. If not, the committer tells it once to check again, and until then this returns
    /// false. A sink that two passes have not told checks by itself, and counts a lost wake-up.
    ///
    /// # Panics
    /// If `sink` is 64 or more.
    pub(super) fn has_room(&self, sink: usize, wait: &mut RoomWait, is_full: impl Fn() -> bool) -> bool {
        let (sink, has_waited) = (bit(sink), wait.since.is_some());
        if let Some(since) = wait.since {
            // The pass that was under way may have looked before the bit was set. The next pass cannot have.
            let is_forgotten = self.passes() >= since + 2;
            if self.is_registered(sink) {
                if !is_forgotten {
                    return false;
                }
                self.metrics.lost_wakeups.add(u64::from(self.withdraw(sink)));
            }
            wait.since = None;
        }
        if !is_full() || !self.register(sink, is_full) {
            return true;
        }
        wait.since = Some(self.passes());
        // A frontend that was told and finds no room continues the same wait.
        self.metrics.waits.add(u64::from(!has_waited));
        false
    }

    /// Frontend: registers to wait, unless there is room. Returns whether it waits.
    fn register(&self, sink: u64, is_full: impl Fn() -> bool) -> bool {
        // Relaxed: ordered by the fence.
        self.sinks.fetch_or(sink, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `tell`.
        fence(Ordering::SeqCst);
        let waits = is_full();
        if !waits {
            self.withdraw(sink);
        }
        waits
    }

    /// Frontend: ends its wait. False: the committer has already told it.
    fn withdraw(&self, sink: u64) -> bool {
        // Relaxed: a bit publishes no data.
        self.sinks.fetch_and(!sink, Ordering::Relaxed) & sink != 0
    }

    fn is_registered(&self, sink: u64) -> bool {
        // Relaxed: as in `withdraw`.
        self.sinks.load(Ordering::Relaxed) & sink != 0
    }

    /// Committer: calls `tell` for each sink that waits.
    pub(super) fn tell(&self, mut tell: impl FnMut(usize)) {
        // SeqCst fence: pairs with the one in `register`.
        fence(Ordering::SeqCst);
        // Relaxed: as in `withdraw`.
        if self.sinks.load(Ordering::Relaxed) != 0 {
            let mut sinks = self.sinks.swap(0, Ordering::Relaxed);
            while sinks != 0 {
                tell(sinks.trailing_zeros() as usize);
                sinks &= sinks - 1;
            }
        }
        // Release: pairs with the Acquire in `passes`. A frontend that sees the count also sees the bits that were
        // cleared before.
        self.passes.fetch_add(1, Ordering::Release);
    }

    fn passes(&self) -> u64 {
        // Acquire: pairs with the Release in `tell`.
        self.passes.load(Ordering::Acquire)
    }
}

fn bit(sink: usize) -> u64 {
    u32::try_from(sink).ok().and_then(|sink| 1_u64.checked_shl(sink)).expect("at most 64 sinks")
}

#[cfg(all(test, not(feature = "models")))]
mod tests {
    use super::*;

    fn waiters() -> (RoomWaiters, Arc<TaskMetrics>) {
        let metrics = Arc::default();
        (RoomWaiters::new(Arc::clone(&metrics)), metrics)
    }

    fn told(waiters: &RoomWaiters) -> Vec<usize> {
        let mut told = Vec::new();
        waiters.tell(|sink| told.push(sink));
        told
    }

    #[test]
    fn each_sink_that_waits_is_told_once() {
        let (waiters, metrics) = waiters();
        let (mut first, mut last) = (RoomWait::default(), RoomWait::default());
        assert!(waiters.has_room(0, &mut first, || false));
        assert_eq!(told(&waiters), [0; 0], "nobody waits");
        assert!(!waiters.has_room(0, &mut first, || true));
        assert!(!waiters.has_room(63, &mut last, || true));
        assert!(!waiters.has_room(63, &mut last, || false), "there is none before it is told");
        assert_eq!(told(&waiters), [0, 63]);
        assert_eq!(told(&waiters), [0; 0]);
        assert!(waiters.has_room(63, &mut last, || false));
        assert!(!waiters.has_room(0, &mut first, || true), "it looks again, and waits on");
        assert_eq!(told(&waiters), [0]);
        assert!(waiters.has_room(0, &mut first, || false));
        assert_eq!((metrics.waits(), metrics.lost_wakeups()), (2, 0));
    }

    #[test]
    fn a_sink_that_was_told_and_not_woken_is_counted() {
        let (waiters, metrics) = waiters();
        let mut wait = RoomWait::default();
        assert!(!waiters.has_room(5, &mut wait, || true));
        waiters.count_if_overslept(5, &wait);
        assert_eq!(metrics.lost_wakeups(), 0, "nothing has come");
        assert_eq!(told(&waiters), [5]);
        waiters.count_if_overslept(5, &wait);
        assert_eq!(metrics.lost_wakeups(), 1);
        assert!(waiters.has_room(5, &mut wait, || false));
        waiters.count_if_overslept(5, &wait);
        assert_eq!(metrics.lost_wakeups(), 1, "it does not wait");
    }

    #[test]
    fn a_sink_that_is_not_told_finds_out_and_counts_it() {
        let (waiters, metrics) = waiters();
        let mut wait = RoomWait::default();
        assert!(!waiters.has_room(5, &mut wait, || true));
        // A committer pass that tells no frontend.
        let forget = || waiters.passes.fetch_add(1, Ordering::Release);
        forget();
        assert!(!waiters.has_room(5, &mut wait, || false), "that pass may have looked before");
        forget();
        assert!(waiters.has_room(5, &mut wait, || false));
        assert_eq!((metrics.waits(), metrics.lost_wakeups()), (1, 1));
    }

    #[test]
    fn a_frontend_that_finds_room_while_it_registers_withdraws_alone() {
        let (waiters, metrics) = waiters();
        let (mut first, mut second) = (RoomWait::default(), RoomWait::default());
        assert!(!waiters.has_room(5, &mut first, || true));
        let looks = std::cell::Cell::new(0);
        assert!(waiters.has_room(7, &mut second, || looks.replace(looks.get() + 1) == 0));
        assert_eq!((looks.get(), told(&waiters)), (2, vec![5]));
        assert_eq!(metrics.waits(), 1);
        assert!(!waiters.withdraw(bit(7)), "it does not wait");
        assert!(!waiters.has_room(7, &mut second, || true) && waiters.withdraw(bit(7)));
    }
}

/// Run with `cargo test --lib --features models -- tasks::room::model::`.
#[cfg(all(test, feature = "models"))]
mod model {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use loom::sync::Notify;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// Two batches are in the inbox, one more than there is room for. The committer commits both. A frontend that is
    /// not told would wait for ever.
    #[test]
    fn no_sink_waits_for_ever() {
        let mut builder = loom::model::Builder::new();
        // A higher bound takes minutes. A lost wake-up needs two preemptions.
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let metrics = Arc::new(TaskMetrics::default());
            let waiters = loom::sync::Arc::new(RoomWaiters::new(Arc::clone(&metrics)));
            let bell = loom::sync::Arc::new(Notify::new());
            let outstanding = loom::sync::Arc::new(AtomicUsize::new(2));
            let committer = {
                let (waiters, bell, outstanding) = (waiters.clone(), bell.clone(), outstanding.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        outstanding.fetch_sub(1, Ordering::Relaxed);
                        waiters.tell(|sink| {
                            assert_eq!(sink, 3);
                            bell.notify();
                        });
                    }
                })
            };
            let mut wait = RoomWait::default();
            while !waiters.has_room(3, &mut wait, || outstanding.load(Ordering::Relaxed) > 0) {
                bell.wait();
            }
            committer.join().unwrap();
            assert_eq!(metrics.lost_wakeups(), 0);
        });
    }
}
