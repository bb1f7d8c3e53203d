//! Notifies the service manager of the state of the server, as systemd's `Type=notify` asks for it.
//!
//! ```text
//! READY=1      behind the line `ready`            STOPPING=1   when the end begins
//! WATCHDOG=1   three times in WATCHDOG_USEC, as long as no worker has been at work on one batch for that time
//! ```
//! The protocol is sd_notify(3): datagrams to the socket in `NOTIFY_SOCKET`. Without that variable, nothing is sent. A
//! service manager that does not take a message costs the server nothing.
//!
//! A worker that waits is well. One that has not come back from a batch within the time of the watchdog is not, and
//! the service manager then ends the server and starts another. The committer is not judged by its time: a disk may
//! take long, and every commit ends in an answer or in the end of the server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::net::sockets::{WakeSignal, wait};
use crate::services::tables::serve::ReportSources;
use crate::threads;

/// Messages in the time of the watchdog.
const KICKS: u32 = 3;

/// The server is ready.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The end of the server begins.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager takes no message: {error}");
    }
}

/// Starts the thread `watchdog` if the service manager wants notifications of this process. It ends with the process.
///
/// # Errors
/// If the system makes no more threads.
pub(super) fn watch(report: Arc<ReportSources>) -> io::Result<()> {
    let Some(time) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let every = (time / KICKS).max(Duration::from_millis(1));
    // Nothing raises it: it is the clock of this thread.
    let wake_signal = WakeSignal::new()?;
    let mut watchdog = Watchdog { time, is_silent: false };
    let kick = move || loop {
        if watchdog.may_notify(report.longest_turn()) {
            notify(&[NotifyState::Watchdog]);
        }
        wait(&[], &wake_signal, Some(every));
    };
    threads::spawn("watchdog", None, kick).map(drop)
}

/// Decides whether the watchdog of the service manager is notified that all is well.
struct Watchdog {
    /// A worker that is at work on one batch for so long is stuck.
    time: Duration,
    /// The last answer was no. Logged once.
    is_silent: bool,
}

impl Watchdog {
    fn may_notify(&mut self, longest_turn: Duration) -> bool {
        let is_stuck = longest_turn >= self.time;
        if is_stuck && !self.is_silent {
            tracing::error!(
                "a worker has been at work on one batch for {longest_turn:?}: the watchdog is not notified any more"
            );
        }
        self.is_silent = is_stuck;
        !is_stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_silent_while_a_worker_is_stuck() {
        let mut watchdog = Watchdog { time: Duration::from_secs(30), is_silent: false };
        let notified = [0, 29, 30, 31, 1].map(|seconds| watchdog.may_notify(Duration::from_secs(seconds)));
        assert_eq!(notified, [true, true, false, false, true]);
    }
}
