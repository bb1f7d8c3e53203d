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

use super::listen::BoundListener;
use super::listeners::{BELL, LISTENERS, Listeners, wait};
use crate::clock::Clock;
use crate::limits::CONNECTIONS_MAX;
use crate::protocols::sockets::{Stopper, WakeSignal};

/// Events that are taken at once: there are few listeners.
const EVENTS: usize = 16;

/// The way to a thread that serves.
struct Handoff {
    sender: Sender<OwnedFd>,
    bell: WakeSignal,
    /// Connections that it has, those on the way included. Added to here, taken from by the thread.
    count: Arc<AtomicUsize>,
}

/// Where a thread that serves finds its connections.
pub struct HandoffReceiver {
    receiver: Receiver<OwnedFd>,
    count: Arc<AtomicUsize>,
}

impl HandoffReceiver {
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
    listeners: Listeners,
    handoffs: Vec<Handoff>,
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
        Ok(Self {
            epoll,
            listeners: Listeners::default(),
            handoffs: Vec::new(),
            stopper,
            clock,
            most: CONNECTIONS_MAX,
            next: 0,
        })
    }

    /// Accepts who connects there.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.listeners.add(&self.epoll, listener)
    }

    /// A further thread that serves; `bell` wakes it when it gets a connection.
    pub fn entrance(&mut self, bell: WakeSignal) -> HandoffReceiver {
        let (sender, receiver) = unbounded();
        let count = Arc::new(AtomicUsize::new(0));
        self.handoffs.push(Handoff { sender, bell, count: Arc::clone(&count) });
        HandoffReceiver { receiver, count }
    }

    /// The loop of the thread. Returns when it is told to stop.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn run(mut self) {
        while !self.stopper.is_told() {
            let now = self.clock.now();
            self.listeners.reopen(&self.epoll, now);
            let left = self.listeners.again_at().map(|at| Duration::from_nanos(at.nanos().saturating_sub(now.nanos())));
            let mut room = [const { MaybeUninit::uninit() }; EVENTS];
            let events = wait(&self.epoll, &mut room, left);
            if events.iter().any(|event| event.data.u64() == LISTENERS) {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let Self { epoll, listeners, handoffs, next, clock, most, .. } = self;
        listeners.accept(epoll, clock.now(), |descriptor| match descriptor {
            // Relaxed: as in `Entrance::left`.
            None => handoffs.iter().map(|handoff| handoff.count.load(Ordering::Relaxed)).sum::<usize>() < *most,
            Some(descriptor) => {
                hand_over(handoffs, next, descriptor);
                true
            }
        });
    }
}

/// Gives a connection to a thread that has the fewest, in turn.
fn hand_over(handoffs: &[Handoff], next: &mut usize, descriptor: OwnedFd) {
    let (before, after) = handoffs.split_at(*next % handoffs.len().max(1));
    // Relaxed: as in `Entrance::left`.
    let fewest = after.iter().chain(before).min_by_key(|handoff| handoff.count.load(Ordering::Relaxed));
    let Some(handoff) = fewest else { return };
    *next += 1;
    handoff.count.fetch_add(1, Ordering::Relaxed);
    // A thread that has ended serves nobody: the connection is closed with it.
    let _ended = handoff.sender.send(descriptor);
    handoff.bell.ring();
}
