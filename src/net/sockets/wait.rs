//! Sleeps until a descriptor is readable or the bell rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Wakes a thread that waits for sockets. Cheap to clone. Clones are the same bell.
#[derive(Clone, Debug)]
pub struct WakeSignal(Arc<EventFd>);

/// The descriptor of a bell.
#[derive(Debug)]
struct EventFd(OwnedFd);

impl WakeSignal {
    /// A bell that has not been rung.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(Arc::new(EventFd(descriptor))))
    }

    /// Wakes the thread that waits, or that waits next.
    pub fn ring(&self) {
        self.0.ring();
    }

    /// Takes the rings back.
    pub(crate) fn silence(&self) {
        // It fails if the bell had not been rung.
        let _ = rustix::io::read(&self.0.0, &mut [0_u8; 8]);
    }
}

impl EventFd {
    #[expect(clippy::host_endian_bytes, reason = "eventfd(2) adds an integer of this host")]
    fn ring(&self) {
        // It fails only after 2^64 − 2 rings that no thread has taken. The bell rings already then.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Wake for EventFd {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl AsFd for WakeSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// A waker that rings this bell.
impl From<&WakeSignal> for Waker {
    fn from(bell: &WakeSignal) -> Self {
        Arc::clone(&bell.0).into()
    }
}

/// Waits until one of these descriptors is readable, the bell rings, or the timeout ends. Afterwards the bell is silent,
/// and the caller looks for the reason.
///
/// # Panics
/// If the system cannot wait for these.
pub fn wait(descriptors: &[BorrowedFd<'_>], bell: &WakeSignal, timeout: Option<Duration>) {
    let all = [bell.as_fd()].into_iter().chain(descriptors.iter().copied());
    let mut polled: Vec<_> = all.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    match poll(&mut polled, timeout.map(timespec).as_ref()) {
        Ok(_) => bell.silence(),
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
    fn a_bell_wakes_who_waits_next() {
        let bell = WakeSignal::new().unwrap();
        bell.ring();
        bell.clone().ring();
        wait(&[], &bell, None);
        wait(&[], &bell, Some(Duration::from_millis(1)));
    }
}
