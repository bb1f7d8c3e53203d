//! Stops a serving thread, and names the reasons why serving cannot start.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use rustix::io::Errno;
use thiserror::Error;

use super::BindError;

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

impl From<Errno> for ServeError {
    fn from(error: Errno) -> Self {
        Self::Socket(error.into())
    }
}

/// Stops a receiving thread: it takes no more requests, answers those that were taken, and ends.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    /// A stopper that has not stopped the thread yet. The thread sleeps until `waker` wakes it: on a [`WakeSignal`](super::WakeSignal), or
    /// in a runtime.
    #[must_use]
    pub fn new(waker: impl Into<Waker>) -> Self {
        Self { stop: Arc::new(AtomicBool::new(false)), waker: waker.into() }
    }

    /// Stops the thread. May be called from any thread, and more than once.
    pub fn stop(&self) {
        // Release: pairs with the Acquire in `is_stopping`. The waker, called after it, ends the sleep.
        self.stop.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    /// Whether the thread is to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        // Acquire: pairs with the Release in `stop`.
        self.stop.load(Ordering::Acquire)
    }
}
