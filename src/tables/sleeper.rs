//! How a thread that waits for another part of the tables is woken: by a callback that it gave, or by being unparked.
//!
//! It does not know what the thread waits for, and never waits itself.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// Wakes a thread; called from any thread.
pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// How a session's thread is woken.
#[derive(Default)]
pub(super) struct Sleeper {
    /// Set once, by the owner of the session.
    waker: OnceLock<Waker>,
    /// The thread that is unparked: one that has enlisted, or that is in [`Sleeper::park`].
    parked: Mutex<Option<Thread>>,
}

impl Sleeper {
    /// How the thread is woken. The first waker stays.
    pub(super) fn set_waker(&self, wake: Waker) {
        // A second waker is refused by the cell; the first keeps working.
        let _already_set = self.waker.set(wake);
    }

    /// Wakes the thread. It may be awake, or waiting for something else: it looks for itself.
    pub(super) fn wake(&self) {
        if let Some(wake) = self.waker.get() {
            wake();
        }
        if let Some(thread) = self.parked().as_ref() {
            thread.unpark();
        }
    }

    /// From now on this thread is unparked, for it to park itself.
    pub(super) fn enlist(&self) {
        *self.parked() = Some(thread::current());
    }

    /// Parks this thread until `ready` says yes. It is asked first, after each wake-up, and each time that `recheck` has
    /// passed. A wake-up that comes between the question and the parking is kept by the parking.
    pub(super) fn park(&self, recheck: Duration, mut ready: impl FnMut() -> bool) {
        self.enlist();
        while !ready() {
            thread::park_timeout(recheck);
        }
        *self.parked() = None;
    }

    fn parked(&self) -> MutexGuard<'_, Option<Thread>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
