//! SIGINT and SIGTERM: the first asks the server to end, a second one ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use signal_hook::iterator::Signals;

/// Exit status of a process that a signal ended, as shells count it: this and the signal's number.
const SIGNAL_STATUS: i32 = 128;

/// Waits for the first signal.
pub struct Watch {
    signals: Signals,
    /// Set at the first signal; read by the handler of the second.
    ending: Arc<AtomicBool>,
}

impl Watch {
    /// From here on signals do not end the process by themselves.
    ///
    /// # Errors
    /// If the system does not tell about signals.
    pub fn new() -> io::Result<Self> {
        let ending = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            register_conditional_shutdown(signal, SIGNAL_STATUS + signal, Arc::clone(&ending))?;
        }
        Ok(Self { signals: Signals::new([SIGINT, SIGTERM])?, ending })
    }

    /// Ends the waiting as if a signal had come.
    pub(super) fn ender(&self) -> impl Fn() + Send + 'static {
        let handle = self.signals.handle();
        move || handle.close()
    }

    /// Returns at the first signal, or when it is ended. The next signal but one, or the next after a signal, ends the
    /// process at once.
    ///
    /// # Errors
    /// If the system lets nobody hear of signals any more.
    pub fn wait(&mut self) -> io::Result<()> {
        if self.signals.forever().next().is_some() {
            // SeqCst: the handler reads it in a thread of the system's choosing; once for each signal, its cost is no matter.
            self.ending.store(true, Ordering::SeqCst);
            return Ok(());
        }
        // Ended by other means: one signal may still come, say from a service manager, and changes nothing.
        for signal in [SIGINT, SIGTERM] {
            register(signal, Arc::clone(&self.ending))?;
        }
        Ok(())
    }
}
