//! How faces wait for the committer to have room, and how they are told.
//!
//! ```text
//! a face                                          the committer's thread, after each batch
//! register: its bit := 1                          some of what was handed over is done
//!           fence (SeqCst)                        fence (SeqCst)
//!           is there room? withdraw, go on        is there a bit? all bits := 0, tell those faces
//!                                                 passes += 1
//! ```
//! If the face's fence comes first, the committer sees the bit; if the committer's comes first, the face sees the room. As long as there is
//! none, something is in the inbox, so another batch comes.
//!
//! What is not here: what room is, and how a face sleeps.

use std::sync::Arc;

#[cfg(all(test, feature = "models"))]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(all(test, feature = "models")))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::metrics::TaskMetrics;

/// The faces that wait for room.
pub(super) struct RoomWaiters {
    /// A bit for each.
    sinks: AtomicU64,
    /// How often the committer has told the faces that waited.
    passes: AtomicU64,
    metrics: Arc<TaskMetrics>,
}

/// A face's wait for room.
#[derive(Debug, Default)]
pub struct RoomWait {
    /// The committer's passes when it began; `None`: the face does not wait.
    since: Option<u64>,
}

impl RoomWaiters {
    pub(super) fn new(metrics: Arc<TaskMetrics>) -> Self {
        Self { sinks: AtomicU64::new(0), passes: AtomicU64::new(0), metrics }
    }

    /// Face: nothing has woken it for a long time. If it was told, that got lost.
    pub(super) fn has_overslept(&self, sink: usize, wait: &RoomWait) {
        if wait.since.is_some() && !self.is_registered(bit(sink)) {
            self.metrics.lost_wakeups.add(1);
        }
    }

    /// Face: whether there is room. If not, it is told when it is worth another look, and has none until then.
    ///
    /// # Panics
    /// If there are more than 64 faces.
    pub(super) fn has_room(&self, sink: usize, wait: &mut RoomWait, is_full: impl Fn() -> bool) -> bool {
        let (sink, has_waited) = (bit(sink), wait.since.is_some());
        if let Some(since) = wait.since {
            // The pass that was under way may have looked before; the next one has not.
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
        // One that was told, and finds no room, goes on with the same wait.
        self.metrics.waits.add(u64::from(!has_waited));
        false
    }

    /// Face: it waits, unless there is room. Whether it does.
    fn register(&self, sink: u64, is_full: impl Fn() -> bool) -> bool {
        // Relaxed: the fence orders it.
        self.sinks.fetch_or(sink, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `tell`.
        fence(Ordering::SeqCst);
        let waits = is_full();
        if !waits {
            self.withdraw(sink);
        }
        waits
    }

    /// Face: it waits no more. False: it has been told.
    fn withdraw(&self, sink: u64) -> bool {
        // Relaxed: nothing is published with a bit.
        self.sinks.fetch_and(!sink, Ordering::Relaxed) & sink != 0
    }

    fn is_registered(&self, sink: u64) -> bool {
        // Relaxed: as in `withdraw`.
        self.sinks.load(Ordering::Relaxed) & sink != 0
    }

    /// Committer: has the faces told that wait.
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
        // Release: pairs with the Acquire in `passes`: a face that sees the count sees which bits were taken before.
        self.passes.fetch_add(1, Ordering::Release);
    }

    fn passes(&self) -> u64 {
        // Acquire: pairs with the Release in `tell`.
        self.passes.load(Ordering::Acquire)
    }
}

fn bit(sink: usize) -> u64 {
    u32::try_from(sink).ok().and_then(|sink| 1_u64.checked_shl(sink)).expect("at most 64 faces")
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
    fn each_face_that_waits_is_told_once() {
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
    fn a_face_that_was_told_and_not_woken_is_counted() {
        let (waiters, metrics) = waiters();
        let mut wait = RoomWait::default();
        assert!(!waiters.has_room(5, &mut wait, || true));
        waiters.has_overslept(5, &wait);
        assert_eq!(metrics.lost_wakeups(), 0, "nothing has come");
        assert_eq!(told(&waiters), [5]);
        waiters.has_overslept(5, &wait);
        assert_eq!(metrics.lost_wakeups(), 1);
        assert!(waiters.has_room(5, &mut wait, || false));
        waiters.has_overslept(5, &wait);
        assert_eq!(metrics.lost_wakeups(), 1, "it does not wait");
    }

    #[test]
    fn a_face_that_is_not_told_finds_out_and_counts_it() {
        let (waiters, metrics) = waiters();
        let mut wait = RoomWait::default();
        assert!(!waiters.has_room(5, &mut wait, || true));
        // A committer that tells no face.
        let forget = || waiters.passes.fetch_add(1, Ordering::Release);
        forget();
        assert!(!waiters.has_room(5, &mut wait, || false), "that pass may have looked before");
        forget();
        assert!(waiters.has_room(5, &mut wait, || false));
        assert_eq!((metrics.waits(), metrics.lost_wakeups()), (1, 1));
    }
}

/// Run with `cargo test --lib --features models -- tasks::room::model::`.
#[cfg(all(test, feature = "models"))]
mod model {
    use loom::sync::Notify;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// Two batches are in the inbox, where one is too much; the committer does both. A face that is not told would wait for ever.
    #[test]
    fn no_face_waits_for_ever() {
        let mut builder = loom::model::Builder::new();
        // More take minutes, and lost wake-ups need two.
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
