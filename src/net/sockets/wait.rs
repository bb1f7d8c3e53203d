//! Sleeps until a descriptor is readable or the wake signal is raised.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Wakes a thread that waits for sockets. Cheap to clone. Clones are the same signal.
#[derive(Clone, Debug)]
pub struct WakeSignal(Arc<EventFd>);

/// The descriptor of a signal.
#[derive(Debug)]
struct EventFd(OwnedFd);

impl WakeSignal {
    /// A signal that is not raised.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(Arc::new(EventFd(descriptor))))
    }

    /// Wakes the thread that waits, or that waits next.
    pub fn raise(&self) {
        self.0.raise();
    }

    /// Resets it to not raised.
    pub(crate) fn clear(&self) {
        // It fails if the signal was not raised.
        let _ = rustix::io::read(&self.0.0, &mut [0_u8; 8]);
    }
}

impl EventFd {
    #[expect(clippy::host_endian_bytes, reason = "eventfd(2) adds an integer of this host")]
    fn raise(&self) {
        // It fails only if it was raised 2^64 − 2 times since the last `clear`. It is raised already then.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Wake for EventFd {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

impl AsFd for WakeSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// A waker that raises this signal.
impl From<&WakeSignal> for Waker {
    fn from(wake_signal: &WakeSignal) -> Self {
        Arc::clone(&wake_signal.0).into()
    }
}

/// Waits until one of these descriptors is readable, the signal is raised, or the timeout ends. Afterwards the signal
/// is not raised, and the caller looks for the reason.
///
/// # Panics
/// If the system cannot wait for these.
pub fn wait(descriptors: &[BorrowedFd<'_>], wake_signal: &WakeSignal, timeout: Option<Duration>) {
    let all = [wake_signal.as_fd()].into_iter().chain(descriptors.iter().copied());
    let mut polled: Vec<_> = all.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    match poll(&mut polled, timeout.map(timespec).as_ref()) {
        Ok(_) => wake_signal.clear(),
        Err(rustix::io::Errno::INTR) => {}
        Err(error) => panic!("waiting for sockets: {error}"),
    }
}

/// Whether a descriptor is readable at this moment: a client waits to be accepted, or its bytes to be received.
pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timespec(Duration::ZERO))) == Ok(1)
}

/// A duration in the system's form.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(time.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn a_wake_signal_wakes_the_next_wait() {
        let wake_signal = WakeSignal::new().unwrap();
        wake_signal.raise();
        wake_signal.clone().raise();
        wait(&[], &wake_signal, None);
        wait(&[], &wake_signal, Some(Duration::from_millis(1)));
    }
}
