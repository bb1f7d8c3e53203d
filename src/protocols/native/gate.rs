//! Letting peers in, as long as there is room for them.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use super::listen::Listener;
use crate::clock::Now;
use crate::descriptors::{has_room, outside_the_reserve};
use crate::limits::{ACCEPT_BURST, ACCEPT_PAUSE};
use crate::log::Pace;
use crate::protocols::sockets::timespec;

/// How the system names the bell: no connection has this place.
pub(crate) const BELL: u64 = u64::MAX;
/// How the system names the listeners.
pub(crate) const LISTENERS: u64 = u64::MAX - 1;

/// Waits until there is something to do, or the time is up; what there is to do, as far as there is room to say it.
///
/// # Panics
/// If the system cannot wait.
pub(crate) fn wait<'r>(
    epoll: &OwnedFd,
    room: &'r mut [MaybeUninit<epoll::Event>],
    timeout: Option<Duration>,
) -> &'r [epoll::Event] {
    match epoll::wait(epoll, room, timeout.map(timespec).as_ref()) {
        Ok((events, _)) => events,
        Err(Errno::INTR) => &[],
        Err(error) => panic!("waiting for connections: {error}"),
    }
}

/// Where peers come in.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    listeners: Vec<Listener>,
    /// Nothing is accepted until then.
    again_at: Option<Now>,
    /// When it was last said that there is no room.
    pauses_told: Pace,
}

impl Gate {
    /// Has `epoll` tell of who comes to this listener.
    pub(crate) fn add(&mut self, epoll: &OwnedFd, listener: Listener) -> Result<(), Errno> {
        epoll::add(epoll, &listener, epoll::EventData::new_u64(LISTENERS), epoll::EventFlags::IN)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Listens no more.
    pub(crate) fn close(&mut self) {
        self.listeners.clear();
        self.again_at = None;
    }

    /// When something may be accepted again.
    pub(crate) fn again_at(&self) -> Option<Now> {
        self.again_at
    }

    /// Accepts again, if it is time.
    pub(crate) fn reopen(&mut self, epoll: &OwnedFd, now: Now) {
        if self.again_at.take_if(|at| *at <= now).is_some() {
            self.listen(epoll, epoll::EventFlags::IN);
        }
    }

    fn listen(&self, epoll: &OwnedFd, flags: epoll::EventFlags) {
        for listener in &self.listeners {
            let changed = epoll::modify(epoll, listener, epoll::EventData::new_u64(LISTENERS), flags);
            changed.expect("the listener was added");
        }
    }

    /// Accepts who has come, a burst at most, as long as there is room for so many.
    pub(crate) fn let_in(&mut self, epoll: &OwnedFd, now: Now, room: usize) -> Vec<OwnedFd> {
        let mut came = Vec::new();
        self.accept(epoll, now, |descriptor| {
            came.extend(descriptor);
            came.len() < room
        });
        came
    }

    /// Accepts who has come, a burst at most. `enter` says whether there is room for a further one, and takes it.
    pub(crate) fn accept(&mut self, epoll: &OwnedFd, now: Now, mut enter: impl FnMut(Option<OwnedFd>) -> bool) {
        for number in 0..self.listeners.len() {
            for _ in 0..ACCEPT_BURST {
                let Some(listener) = self.listeners.get(number) else { break };
                let accepted = if enter(None) && has_room(listener) { listener.accept() } else { Err(Errno::MFILE) };
                match accepted {
                    Ok(None) => break,
                    Ok(Some(descriptor)) => match outside_the_reserve(descriptor) {
                        None => return self.pause(epoll, Errno::MFILE, now),
                        kept => drop(enter(kept)),
                    },
                    Err(error) => return self.pause(epoll, error, now),
                }
            }
        }
    }

    /// Those who want to connect wait where the system keeps them.
    fn pause(&mut self, epoll: &OwnedFd, error: Errno, now: Now) {
        if self.pauses_told.is_time(now) {
            tracing::warn!(
                "no further connection is accepted for now ({error}): raise the limit of open files, or connect less"
            );
        }
        self.again_at = Some(now.after(ACCEPT_PAUSE));
        self.listen(epoll, epoll::EventFlags::empty());
    }
}
