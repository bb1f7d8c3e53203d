//! SIGINT and SIGTERM: the first asks the server to end, a second one ends it. SIGHUP ends nothing.
//!
//! ```text
//! starting ─► serving ─► told ─► ended
//!     │                    └ a second signal: status 128 and its number, at once
//!     └ told, and still starting after LINGER: status 0; nothing was served yet
//! ```
//! One thread reads the signals, from before anything else is made until the process ends; so the second signal is heard whatever the
//! others are doing. A client that ends the server counts as the telling, but not as a signal.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::low_level::exit;

use crate::limits::LINGER;
use crate::log::finish;
use crate::protocols::sockets::{Stopper, timespec, wait};
use crate::threads;
use crate::threads::signals::{Signal, Signals};

/// Exit status of a process that a signal ended, as shells count it: this and the signal's number.
const SIGNAL_STATUS: i32 = 128;

/// The server has answered nobody yet. The other values that [`Watch::stage`] has: it may have, and it never will.
const STARTING: u8 = 0;
const SERVING: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Waits for the first signal.
pub struct SignalWatch {
    stopper: Stopper,
    /// How far the start is. From [`STARTING`] on it changes once: by whoever starts, or by the thread that reads the signals.
    stage: Arc<AtomicU8>,
}

impl SignalWatch {
    /// From here on signals do not end the process by themselves. To be made before there are other threads.
    ///
    /// # Errors
    /// If the system does not tell about signals, or makes no more threads.
    pub fn new() -> io::Result<Self> {
        let signals = Signals::take_over()?;
        let watch = Self { stopper: Stopper::new()?, stage: Arc::new(AtomicU8::new(STARTING)) };
        let (stopper, stage) = (watch.stopper.clone(), Arc::clone(&watch.stage));
        // It ends with the process.
        threads::spawn("signals", None, move || read(&signals, &stopper, &stage))?;
        Ok(watch)
    }

    /// Ends the waiting as if a signal had come.
    pub(super) fn ender(&self) -> impl Fn() + Send + 'static {
        let stopper = self.stopper.clone();
        move || stopper.stop()
    }

    /// What is to be called before anything is done that a second signal alone may cut short.
    pub fn serving(&self) -> impl FnOnce() + 'static {
        let stage = Arc::clone(&self.stage);
        move || {
            // Relaxed: nothing is published with it. If the reader of the signals was first, the process is about to end: nobody is answered.
            if stage.compare_exchange(STARTING, SERVING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                loop {
                    std::thread::park();
                }
            }
        }
    }

    /// Returns at the first signal, or when it is ended.
    pub fn wait(&self) {
        while !self.stopper.is_told() {
            wait(&[], self.stopper.bell(), None);
        }
    }
}

/// The loop of the thread that reads the signals.
fn read(signals: &Signals, stopper: &Stopper, stage: &AtomicU8) -> ! {
    let mut told = false;
    loop {
        let is_starting = told && stage.load(Ordering::Relaxed) == STARTING;
        if !wait_for(signals, is_starting.then_some(LINGER)) && is_starting {
            // Relaxed: as in `serving`; of the two that change it one is first.
            if stage.compare_exchange(STARTING, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                finish();
                exit(0);
            }
        }
        match signals.next() {
            None => {}
            Some(Signal::HangUp) => tracing::info!("SIGHUP: there is nothing to be read again"),
            Some(signal) if told => {
                finish();
                exit(SIGNAL_STATUS + signal.number())
            }
            Some(_) => {
                told = true;
                stopper.stop();
            }
        }
    }
}

/// Whether a signal may have come; not if the time is up.
fn wait_for(signals: &Signals, time: Option<Duration>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    // An interrupted wait is as good as one that is over: the signals are asked.
    poll(&mut polled, time.map(timespec).as_ref()) != Ok(0)
}
