//! The thread that accepts connections for threads that serve them: each goes to one that has the fewest.
//!
//! ```text
//! listeners ─► accept ─► the door with the fewest behind it ═► bell ─► Peers::adopt
//! ```
//! By number and not by hash: a few connections are enough for all threads to have something to do.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use rustix::event::epoll;
use rustix::io::Errno;

use super::gate::{BELL, Gate, LISTENERS, wait};
use super::listen::Listener;
use crate::clock::Clock;
use crate::limits::CONNECTIONS_MAX;
use crate::protocols::sockets::{Bell, Stopper};

/// Events that are taken at once: there are few listeners.
const EVENTS: usize = 16;

/// The way to a thread that serves.
struct Door {
    sender: Sender<OwnedFd>,
    bell: Bell,
    /// Connections that it has, those on the way included. Added to here, taken from by the thread.
    count: Arc<AtomicUsize>,
}

/// Where a thread that serves finds its connections.
pub struct Entrance {
    receiver: Receiver<OwnedFd>,
    count: Arc<AtomicUsize>,
}

impl Entrance {
    /// A connection that has come.
    pub fn next(&self) -> Option<OwnedFd> {
        self.receiver.try_recv().ok()
    }

    /// So many connections that came this way are closed.
    pub fn left(&self, closed: usize) {
        if closed > 0 {
            // Relaxed: it only weighs who gets the next one.
            self.count.fetch_sub(closed, Ordering::Relaxed);
        }
    }

    /// Connections that came this way and are not gone.
    #[must_use]
    pub fn count(&self) -> usize {
        // Relaxed: as in `left`.
        self.count.load(Ordering::Relaxed)
    }
}

/// Accepts, ready to run.
pub struct Acceptor {
    epoll: OwnedFd,
    gate: Gate,
    doors: Vec<Door>,
    stopper: Stopper,
    clock: Clock,
    /// Connections that all of them together may have.
    most: usize,
    /// The door that is next among those with the same number.
    next: usize,
}

impl Acceptor {
    /// Nobody to serve yet.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(stopper: Stopper, clock: Clock) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stopper.bell(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, gate: Gate::default(), doors: Vec::new(), stopper, clock, most: CONNECTIONS_MAX, next: 0 })
    }

    /// Accepts who connects there.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: Listener) -> Result<(), Errno> {
        self.gate.add(&self.epoll, listener)
    }

    /// A further thread that serves; `bell` wakes it when it gets a connection.
    pub fn entrance(&mut self, bell: Bell) -> Entrance {
        let (sender, receiver) = unbounded();
        let count = Arc::new(AtomicUsize::new(0));
        self.doors.push(Door { sender, bell, count: Arc::clone(&count) });
        Entrance { receiver, count }
    }

    /// The loop of the thread. Returns when it is told to stop.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn run(mut self) {
        while !self.stopper.is_told() {
            let now = self.clock.now();
            self.gate.reopen(&self.epoll, now);
            let left = self.gate.again_at().map(|at| Duration::from_nanos(at.nanos().saturating_sub(now.nanos())));
            let mut room = [const { MaybeUninit::uninit() }; EVENTS];
            let events = wait(&self.epoll, &mut room, left);
            if events.iter().any(|event| event.data.u64() == LISTENERS) {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let Self { epoll, gate, doors, next, clock, most, .. } = self;
        gate.accept(epoll, clock.now(), |descriptor| match descriptor {
            // Relaxed: as in `Entrance::left`.
            None => doors.iter().map(|door| door.count.load(Ordering::Relaxed)).sum::<usize>() < *most,
            Some(descriptor) => {
                hand_over(doors, next, descriptor);
                true
            }
        });
    }
}

/// Gives a connection to a thread that has the fewest, in turn.
fn hand_over(doors: &[Door], next: &mut usize, descriptor: OwnedFd) {
    let (before, after) = doors.split_at(*next % doors.len().max(1));
    // Relaxed: as in `Entrance::left`.
    let fewest = after.iter().chain(before).min_by_key(|door| door.count.load(Ordering::Relaxed));
    let Some(door) = fewest else { return };
    *next += 1;
    door.count.fetch_add(1, Ordering::Relaxed);
    // A thread that has ended serves nobody: the connection is closed with it.
    let _ended = door.sender.send(descriptor);
    door.bell.ring();
}
