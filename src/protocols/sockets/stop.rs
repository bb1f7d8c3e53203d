//! Telling a thread that serves to come to its end, and why there may be nothing to serve with.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use thiserror::Error;

use super::{BindError, WakeSignal};

/// Why a frontend could not be made.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Nothing listens at an endpoint.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system gives no more sockets.
    #[error("the system gives no more sockets: {0}")]
    Socket(#[from] io::Error),
}

/// Threads that have something to do with the one that holds this, which ends after them.
#[derive(Debug)]
pub struct ThreadGroup {
    count: Arc<AtomicUsize>,
    bell: WakeSignal,
}

/// One of them, as long as it is there.
#[derive(Debug)]
pub struct ThreadToken {
    count: Arc<AtomicUsize>,
    bell: WakeSignal,
}

impl ThreadGroup {
    /// Nobody is there yet. The bell rings when one goes.
    #[must_use]
    pub fn new(bell: &WakeSignal) -> Self {
        Self { count: Arc::default(), bell: bell.clone() }
    }

    /// One more is there.
    #[must_use]
    pub fn enter(&self) -> ThreadToken {
        // Relaxed: whoever enters has not begun.
        self.count.fetch_add(1, Ordering::Relaxed);
        ThreadToken { count: Arc::clone(&self.count), bell: self.bell.clone() }
    }

    /// Whether somebody is there.
    #[must_use]
    pub fn is_somebody_there(&self) -> bool {
        // Acquire: pairs with the Release of who leaves: all that it did comes before.
        self.count.load(Ordering::Acquire) > 0
    }
}

impl Drop for ThreadToken {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `is_somebody_there`; the bell that follows it ends the sleep.
        self.count.fetch_sub(1, Ordering::Release);
        self.bell.ring();
    }
}

/// Tells the thread that receives to take no more requests, answer those that were taken, and end.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    bell: WakeSignal,
}

impl Stopper {
    /// One that has told nothing yet.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { stop: Arc::new(AtomicBool::new(false)), bell: WakeSignal::new()? })
    }

    /// Tells it. May be called from any thread, and more than once.
    pub fn stop(&self) {
        // Release: pairs with the Acquire in `is_told`; the bell that follows it ends the sleep.
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether it was told.
    #[must_use]
    pub fn is_told(&self) -> bool {
        // Acquire: pairs with the Release in `stop`.
        self.stop.load(Ordering::Acquire)
    }

    /// What the thread sleeps on.
    #[must_use]
    pub fn bell(&self) -> &WakeSignal {
        &self.bell
    }
}
