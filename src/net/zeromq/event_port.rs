//! What a thread with connections waits for. Requests' connections and subscribers share it.

use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;

use super::listen::BoundListener;
use super::listeners::{Listeners, WAKE_SIGNAL};
use super::spin::SpinRecord;
use crate::net::sockets::WakeSignal;

/// What the thread waits for.
pub(crate) struct EventPort {
    pub(crate) epoll: OwnedFd,
    pub(crate) wake_signal: WakeSignal,
    pub(crate) listeners: Listeners,
    /// The thread may look for work before it sleeps.
    pub(super) spin: Option<SpinRecord>,
}

impl EventPort {
    /// A wait ends when `wake_signal` is raised.
    pub(crate) fn new(wake_signal: &WakeSignal) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake_signal, epoll::EventData::new_u64(WAKE_SIGNAL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, wake_signal: wake_signal.clone(), listeners: Listeners::default(), spin: None })
    }

    /// Accepts the clients that connect to this listener.
    pub(crate) fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.listeners.add(&self.epoll, listener)
    }
}
