//! SIGINT and SIGTERM: the first asks the server to stop, the second ends the process. SIGHUP and SIGUSR1 are the
//! caller's.
//!
//! ```text
//! starting ─► serving ─► stopping ─► ended
//!     │                    └ a second signal: status 128 and its number, at once
//!     └ stopping, and still starting after LINGER: status 0; no request was served yet
//! ```
//! One thread reads the signals, from before any other thread is made until the process ends. So it reads the second
//! signal regardless of the other threads. When a client ends the server, the server stops too, but this does not
//! count as a signal.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::low_level::exit;

use crate::limits::LINGER;
use crate::log::finish;
use crate::net::sockets::{Stopper, WakeSignal, timespec, wait};
use crate::threads;
use crate::threads::signals::{Signal, Signals};

/// The exit status of a process that a signal ended, in the convention of shells, is this plus the signal's number.
const SIGNAL_STATUS: i32 = 128;

/// Values of `SignalWatch::stage`. STARTING: no client has been answered. SERVING: clients may have been answered.
/// GIVEN_UP: no client will be answered.
const STARTING: u8 = 0;
const SERVING: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Waits for the first signal.
pub struct SignalWatch {
    stopper: Stopper,
    /// Raised by `stopper`.
    wake_signal: WakeSignal,
    /// The stage of the start. It leaves [`STARTING`] once. Written by the starting thread or by the thread that reads
    /// the signals.
    stage: Arc<AtomicU8>,
}

impl SignalWatch {
    /// From here on the first signal does not end the process by itself, each SIGHUP calls `hang_up`, and each SIGUSR1
    /// `drain`. To be called
    /// before there are other threads.
    ///
    /// # Errors
    /// If signals cannot be received, or the system makes no more threads.
    pub fn new(hang_up: impl Fn() + Send + 'static, drain: impl Fn() + Send + 'static) -> io::Result<Self> {
        let signals = Signals::take_over()?;
        let wake_signal = WakeSignal::new()?;
        let watch = Self { stopper: Stopper::new(&wake_signal), wake_signal, stage: Arc::new(AtomicU8::new(STARTING)) };
        let (stopper, stage) = (watch.stopper.clone(), Arc::clone(&watch.stage));
        // The thread ends with the process.
        threads::spawn("signals", None, move || read(&signals, &stopper, &stage, &[&hang_up, &drain]))?;
        Ok(watch)
    }

    /// Returns a function that ends the wait as a signal does, for a client that ends the server.
    pub(super) fn ender(&self) -> impl Fn() + Send + Sync + 'static {
        let stopper = self.stopper.clone();
        move || {
            tracing::info!("a client ends the server (Terminate of tasks, or SHUTDOWN): stopping");
            stopper.stop();
        }
    }

    /// Returns a function to call before the first client can be answered. After it, only a second signal ends the
    /// process at once.
    pub fn serving(&self) -> impl FnOnce() + 'static {
        let stage = Arc::clone(&self.stage);
        move || {
            // Relaxed: it publishes no data. One exchange succeeds. If the other thread's came first, the process is
            // about to exit, and no client may be answered: this thread parks.
            if stage.compare_exchange(STARTING, SERVING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                loop {
                    std::thread::park();
                }
            }
        }
    }

    /// Returns at the first signal, or when the function of `ender` is called.
    pub fn wait(&self) {
        while !self.stopper.is_stopping() {
            wait(&[], &self.wake_signal, None);
        }
    }
}

/// The loop of the thread that reads the signals.
fn read(signals: &Signals, stopper: &Stopper, stage: &AtomicU8, [hang_up, drain]: &[&dyn Fn(); 2]) -> ! {
    let mut is_stopping = false;
    loop {
        let is_starting = is_stopping && stage.load(Ordering::Relaxed) == STARTING;
        if !wait_for(signals, is_starting.then_some(LINGER)) && is_starting {
            // Relaxed: as in `serving`. If this exchange succeeds, no client has been answered.
            if stage.compare_exchange(STARTING, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                finish();
                exit(0);
            }
        }
        match signals.next() {
            None => {}
            Some(Signal::HangUp) => hang_up(),
            Some(Signal::Drain) => {
                tracing::info!("SIGUSR1: clients of beanstalkd's protocol put no jobs any more");
                drain();
            }
            Some(signal) if is_stopping => {
                finish();
                exit(SIGNAL_STATUS + signal.number())
            }
            Some(signal) => {
                is_stopping = true;
                tracing::info!("{}: stopping", signal.name());
                stopper.stop();
            }
        }
    }
}

/// Whether a signal may have come. False: the time is up.
fn wait_for(signals: &Signals, time: Option<Duration>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    // An interrupted wait counts as a possible signal, and the caller reads the signals.
    poll(&mut polled, time.map(timespec).as_ref()) != Ok(0)
}
