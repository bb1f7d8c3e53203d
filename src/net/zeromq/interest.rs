//! The events of a connection that the system is asked to report. Requests' connections and subscribers share it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::ConnectionId;

/// Events that the system has been asked to report. `None`: the descriptor is not in the epoll.
#[derive(Debug, Default)]
pub(crate) struct Interest(Option<EventFlags>);

impl Interest {
    /// Asks for these events of a descriptor.
    pub(crate) fn change(
        &mut self,
        epoll: &OwnedFd,
        descriptor: impl AsFd,
        id: ConnectionId,
        wanted: EventFlags,
    ) -> Result<(), Errno> {
        if wanted == self.0.unwrap_or(EventFlags::empty()) {
            return Ok(());
        }
        match self.0.replace(wanted) {
            Some(_) => epoll::modify(epoll, descriptor, id.data(), wanted),
            None => epoll::add(epoll, descriptor, id.data(), wanted),
        }
    }

    /// Asks for no more events, not even for the end of the connection.
    pub(crate) fn end(&mut self, epoll: &OwnedFd, descriptor: impl AsFd) {
        if self.0.is_some() && epoll::delete(epoll, descriptor).is_ok() {
            self.0 = None;
        }
    }
}
