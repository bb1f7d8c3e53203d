//! The way to wake a thread that waits for another part of the tables: a callback that the thread gave, or unparking.
//!
//! A sleeper does not know the event that its thread waits for. Only [`Sleeper::park`] waits.

use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::Duration;

use crate::lock::{Mutex, MutexGuard};

/// Wakes a thread. Called from any thread.
pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// Wakes one thread: the thread of a session, or a thread that has enlisted.
#[derive(Default)]
pub(super) struct Sleeper {
    /// Set once, by the owner of the session.
    waker: OnceLock<Waker>,
    /// The thread to unpark: one that has enlisted, or that is in [`Sleeper::park`].
    parked: Mutex<Option<Thread>>,
}

impl Sleeper {
    /// Sets the callback that wakes the thread. The first callback stays.
    pub(super) fn set_waker(&self, wake: Waker) {
        // The cell refuses a second waker, and the first keeps working.
        let _already_set = self.waker.set(wake);
    }

    /// Wakes the thread. It may be awake, or waiting for another event, so it checks by itself.
    pub(super) fn wake(&self) {
        if let Some(wake) = self.waker.get() {
            wake();
        }
        if let Some(thread) = self.parked().as_ref() {
            thread.unpark();
        }
    }

    /// From now on `wake` unparks this thread. The thread parks by itself.
    pub(super) fn enlist(&self) {
        *self.parked() = Some(thread::current());
    }

    /// Parks this thread until `ready` returns true. `ready` is called at first, after each wake-up, and each time that
    /// `recheck` has passed. If a wake-up comes between the call and the parking, the parking returns at once.
    pub(super) fn park(&self, recheck: Duration, mut ready: impl FnMut() -> bool) {
        self.enlist();
        while !ready() {
            thread::park_timeout(recheck);
        }
        *self.parked() = None;
    }

    fn parked(&self) -> MutexGuard<'_, Option<Thread>> {
        self.parked.lock()
    }
}
