//! Stops a serving thread, and names the reasons why serving cannot start.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use thiserror::Error;

use super::{BindError, WakeSignal};

/// Why a frontend could not be made.
#[derive(Debug, Error)]
pub enum ServeError {
    /// An endpoint cannot be listened at.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system gives no more sockets.
    #[error("the system gives no more sockets: {0}")]
    Socket(#[from] io::Error),
}

/// Threads that depend on the thread that holds this. That thread ends after them.
#[derive(Debug)]
pub struct ThreadGroup {
    count: Arc<AtomicUsize>,
    bell: WakeSignal,
}

/// Membership of one thread in the group.
#[derive(Debug)]
pub struct ThreadToken {
    count: Arc<AtomicUsize>,
    bell: WakeSignal,
}

impl ThreadGroup {
    /// A group without threads. The bell rings when one leaves.
    #[must_use]
    pub fn new(bell: &WakeSignal) -> Self {
        Self { count: Arc::default(), bell: bell.clone() }
    }

    /// Adds a thread to the group.
    #[must_use]
    pub fn enter(&self) -> ThreadToken {
        // Relaxed: the entering thread has not begun its work.
        self.count.fetch_add(1, Ordering::Relaxed);
        ThreadToken { count: Arc::clone(&self.count), bell: self.bell.clone() }
    }

    /// Whether the group has a thread.
    #[must_use]
    pub fn is_somebody_there(&self) -> bool {
        // Acquire: pairs with the Release in the drop of a token. All work of the leaving thread comes before.
        self.count.load(Ordering::Acquire) > 0
    }
}

impl Drop for ThreadToken {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `is_somebody_there`. The bell, rung after it, ends the sleep.
        self.count.fetch_sub(1, Ordering::Release);
        self.bell.ring();
    }
}

/// Tells the receiving thread to take no more requests, answer those that were taken, and end.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    /// A stopper that has not stopped the thread yet. The thread sleeps until `waker` wakes it: on a [`WakeSignal`], or
    /// in a runtime.
    #[must_use]
    pub fn new(waker: impl Into<Waker>) -> Self {
        Self { stop: Arc::new(AtomicBool::new(false)), waker: waker.into() }
    }

    /// Stops the thread. May be called from any thread, and more than once.
    pub fn stop(&self) {
        // Release: pairs with the Acquire in `is_told`. The waker, called after it, ends the sleep.
        self.stop.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    /// Whether the thread was told to stop.
    #[must_use]
    pub fn is_told(&self) -> bool {
        // Acquire: pairs with the Release in `stop`.
        self.stop.load(Ordering::Acquire)
    }
}
