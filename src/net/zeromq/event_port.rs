//! What a thread with connections waits for. Requests' connections and subscribers share it.

use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;

use super::listen::BoundListener;
use super::listeners::{BELL, Listeners};
use super::spin::SpinRecord;
use crate::net::sockets::WakeSignal;

/// What the thread waits for.
pub(crate) struct EventPort {
    pub(crate) epoll: OwnedFd,
    pub(crate) bell: WakeSignal,
    pub(crate) listeners: Listeners,
    /// The thread may look for work before it sleeps.
    pub(super) spin: Option<SpinRecord>,
}

impl EventPort {
    /// A wait ends when `bell` rings.
    pub(crate) fn new(bell: &WakeSignal) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, bell: bell.clone(), listeners: Listeners::default(), spin: None })
    }

    /// Accepts the clients that connect to this listener.
    pub(crate) fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.listeners.add(&self.epoll, listener)
    }
}
