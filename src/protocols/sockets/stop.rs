//! Telling a thread that serves to come to its end, and why there may be nothing to serve with.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use super::{Bell, BindError};

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

/// Tells the thread that receives to take no more requests, answer those that were taken, and end.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    bell: Bell,
}

impl Stopper {
    /// One that has told nothing yet.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { stop: Arc::new(AtomicBool::new(false)), bell: Bell::new()? })
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
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}
