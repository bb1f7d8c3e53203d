//! Back-pressure: frontends wait until the inbox has room, and the committer notifies them to check again.
//!
//! ```text
//! a frontend                                      the committer, twice in each batch
//! register: its bit := 1                          requests leave the inbox, or are answered
//!           fence (SeqCst)                        fence (SeqCst)
//!           is there room? continue               is a bit set? all bits := 0, notify those sinks
//! ```
//! If the frontend's fence comes first, the committer sees the bit. If the committer's fence comes first, the frontend
//! sees the room. While there is no room some requests are not yet answered, so another pass follows. A frontend that
//! finds room by itself leaves its bit: several may wait for one sink, and a needless notification costs one look.
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
    /// One bit per sink. Set by frontends, cleared by the committer.
    sinks: AtomicU64,
    metrics: Arc<TaskMetrics>,
}

/// A frontend's wait for room.
#[derive(Debug, Default)]
pub struct RoomWait {
    /// The last look found none.
    is_waiting: bool,
}

impl RoomWaiters {
    pub(super) fn new(metrics: Arc<TaskMetrics>) -> Self {
        Self { sinks: AtomicU64::new(0), metrics }
    }

    /// Frontend: it has slept to the end of its time-out. Counts a lost wake-up if it waits and there is room.
    pub(super) fn count_if_overslept(&self, wait: &RoomWait, is_full: impl Fn() -> bool) {
        self.metrics.lost_wakeups.add(u64::from(wait.is_waiting && !is_full()));
    }

    /// Frontend: whether there is room. If not, the committer notifies it once to check again.
    ///
    /// # Panics
    /// If `sink` is 64 or more.
    pub(super) fn has_room(&self, sink: usize, wait: &mut RoomWait, is_full: impl Fn() -> bool) -> bool {
        let was_waiting = wait.is_waiting;
        wait.is_waiting = is_full() && self.register(sink, is_full);
        self.metrics.waits.add(u64::from(wait.is_waiting && !was_waiting));
        !wait.is_waiting
    }

    /// Frontend: registers to wait. Returns whether it has to.
    fn register(&self, sink: usize, is_full: impl Fn() -> bool) -> bool {
        // Relaxed: ordered by the fence.
        self.sinks.fetch_or(bit(sink), Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `notify`.
        fence(Ordering::SeqCst);
        is_full()
    }

    /// Committer: calls `notify` for each sink that waits.
    pub(super) fn notify(&self, mut notify: impl FnMut(usize)) {
        // SeqCst fence: pairs with the one in `register`.
        fence(Ordering::SeqCst);
        // Relaxed, both: a bit publishes no data.
        if self.sinks.load(Ordering::Relaxed) != 0 {
            let mut sinks = self.sinks.swap(0, Ordering::Relaxed);
            while sinks != 0 {
                notify(sinks.trailing_zeros() as usize);
                sinks &= sinks - 1;
            }
        }
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

    fn notified(waiters: &RoomWaiters) -> Vec<usize> {
        let mut sinks = Vec::new();
        waiters.notify(|sink| sinks.push(sink));
        sinks
    }

    #[test]
    fn each_sink_that_waits_is_notified_once() {
        let (waiters, metrics) = waiters();
        let (mut first, mut last) = (RoomWait::default(), RoomWait::default());
        assert!(waiters.has_room(0, &mut first, || false));
        assert_eq!(notified(&waiters), [0; 0], "nobody waits");
        assert!(!waiters.has_room(0, &mut first, || true));
        assert!(!waiters.has_room(63, &mut last, || true));
        assert!(!waiters.has_room(63, &mut last, || true), "it waits on");
        assert_eq!(notified(&waiters), [0, 63]);
        assert_eq!(notified(&waiters), [0; 0]);
        assert!(waiters.has_room(63, &mut last, || false));
        assert!(!waiters.has_room(0, &mut first, || true), "it looks again, and waits on");
        assert_eq!(notified(&waiters), [0]);
        assert!(waiters.has_room(0, &mut first, || false));
        assert_eq!((metrics.waits(), metrics.lost_wakeups()), (2, 0));
    }

    #[test]
    fn a_time_out_that_finds_room_for_one_that_waits_is_a_lost_wake_up() {
        let (waiters, metrics) = waiters();
        let mut wait = RoomWait::default();
        waiters.count_if_overslept(&wait, || false);
        assert!(!waiters.has_room(5, &mut wait, || true));
        waiters.count_if_overslept(&wait, || true);
        assert_eq!(metrics.lost_wakeups(), 0, "it does not wait, or there is none");
        waiters.count_if_overslept(&wait, || false);
        assert!(waiters.has_room(5, &mut wait, || false));
        waiters.count_if_overslept(&wait, || false);
        assert_eq!((metrics.waits(), metrics.lost_wakeups()), (1, 1));
    }

    #[test]
    fn one_that_finds_room_while_it_registers_leaves_the_others_of_its_sink_registered() {
        let (waiters, metrics) = waiters();
        let (mut first, mut second) = (RoomWait::default(), RoomWait::default());
        assert!(!waiters.has_room(5, &mut first, || true));
        let looks = std::cell::Cell::new(0);
        assert!(waiters.has_room(5, &mut second, || looks.replace(looks.get() + 1) == 0));
        assert_eq!((looks.get(), metrics.waits(), notified(&waiters)), (2, 1, vec![5]));
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

    /// Two batches are in the inbox, one more than there is room for. The committer commits both. Without a
    /// notification the frontend would wait for ever.
    #[test]
    fn no_sink_waits_for_ever() {
        let mut builder = loom::model::Builder::new();
        // A higher bound takes minutes. A lost wake-up needs two preemptions.
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let metrics = Arc::new(TaskMetrics::default());
            let waiters = loom::sync::Arc::new(RoomWaiters::new(Arc::clone(&metrics)));
            let wake_signal = loom::sync::Arc::new(Notify::new());
            let outstanding = loom::sync::Arc::new(AtomicUsize::new(2));
            let committer = {
                let (waiters, wake_signal, outstanding) = (waiters.clone(), wake_signal.clone(), outstanding.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        outstanding.fetch_sub(1, Ordering::Relaxed);
                        waiters.notify(|sink| {
                            assert_eq!(sink, 3);
                            wake_signal.notify();
                        });
                    }
                })
            };
            let mut wait = RoomWait::default();
            while !waiters.has_room(3, &mut wait, || outstanding.load(Ordering::Relaxed) > 0) {
                wake_signal.wait();
            }
            committer.join().unwrap();
            assert_eq!(metrics.lost_wakeups(), 0);
        });
    }
}
