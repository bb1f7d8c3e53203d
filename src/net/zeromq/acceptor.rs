//! Accepts connections for the serving threads and gives each to the thread that has the fewest.
//!
//! ```text
//! listeners ─► accept ─► the handoff with the fewest connections ═► WakeSignal ─► Connections::insert
//! ```
//! The acceptor counts connections and does not hash them, so a few connections are enough to give every thread work.
//!
//! While there is no room for a client that waits, one thread after the other is asked to close idle connections. The end
//! of any connection wakes the acceptor then.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam::channel::Receiver;
use rustix::event::epoll;
use rustix::io::Errno;

use super::listen::BoundListener;
use super::listeners::{LISTENERS, Listeners, WAKE_SIGNAL, wait};
use super::protocol::Arrival;
use crate::clock::Clock;
use crate::limits::CONNECTIONS_MAX;
use crate::net::sockets::{Stopper, WakeSignal, WakingSender};

/// Events taken in one wait. There are few listeners.
const EVENTS: usize = 16;

/// The sending side of the way to a serving thread.
struct Handoff {
    sender: WakingSender<Arrival>,
    wake_signal: WakeSignal,
    /// Connections of the thread, including those on the way. Added to by the acceptor, subtracted from by the thread.
    count: Arc<AtomicUsize>,
    /// An idle connection is to make place. Set by the acceptor, cleared by the thread.
    wanted: Arc<AtomicBool>,
}

/// The waiting acceptor, as the serving threads see it.
#[derive(Clone)]
struct WaitingAcceptor {
    /// It waits for a connection to close. Set by the acceptor, cleared by the thread that closes one.
    waits: Arc<AtomicBool>,
    wake_signal: WakeSignal,
}

/// The side from which a serving thread takes its connections.
pub struct HandoffReceiver {
    receiver: Receiver<Arrival>,
    count: Arc<AtomicUsize>,
    wanted: Arc<AtomicBool>,
    acceptor: WaitingAcceptor,
}

impl HandoffReceiver {
    /// The next connection, if one has come.
    pub(crate) fn next(&self) -> Option<Arrival> {
        self.receiver.try_recv().ok()
    }

    /// Whether an idle connection is to make place for a client that waits. The answer is given once.
    pub fn is_place_wanted(&self) -> bool {
        // Relaxed: the wake signal, raised after it was set, wakes the thread.
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Reports that `closed` connections which came this way are closed.
    pub fn left(&self, closed: usize) {
        if closed > 0 {
            // Relaxed: the count only decides which thread gets the next connection.
            self.count.fetch_sub(closed, Ordering::Relaxed);
            // Relaxed: a wake-up that comes late or twice costs the acceptor a look, and one that is missed a pause.
            if self.acceptor.waits.swap(false, Ordering::Relaxed) {
                self.acceptor.wake_signal.raise();
            }
        }
    }
}

/// The acceptor, ready to run.
pub struct Acceptor {
    epoll: OwnedFd,
    listeners: Listeners,
    handoffs: Vec<Handoff>,
    own: WaitingAcceptor,
    stopper: Stopper,
    clock: Clock,
    /// Bound on the connections of all threads together.
    most: usize,
    /// Handoff that comes first among those with equal counts, and that is asked for a place.
    next: usize,
}

impl Acceptor {
    /// An acceptor without serving threads. `stopper` raises `wake_signal`.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(stopper: Stopper, wake_signal: &WakeSignal, clock: Clock) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake_signal, epoll::EventData::new_u64(WAKE_SIGNAL), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            listeners: Listeners::default(),
            handoffs: Vec::new(),
            own: WaitingAcceptor { waits: Arc::default(), wake_signal: wake_signal.clone() },
            stopper,
            clock,
            most: CONNECTIONS_MAX,
            next: 0,
        })
    }

    /// Accepts the connections that come to this listener.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.listeners.add(&self.epoll, listener)
    }

    /// Adds a serving thread. The acceptor raises `wake_signal` when it hands this thread a connection.
    pub fn handoff(&mut self, wake_signal: &WakeSignal) -> HandoffReceiver {
        let (sender, receiver) = WakingSender::new(wake_signal);
        let (count, wanted) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (wake_signal, acceptor) = (wake_signal.clone(), self.own.clone());
        self.handoffs.push(Handoff { sender, wake_signal, count: Arc::clone(&count), wanted: Arc::clone(&wanted) });
        HandoffReceiver { receiver, count, wanted, acceptor }
    }

    /// Runs the thread's loop until the stopper says to stop.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn run(mut self) {
        while !self.stopper.is_stopping() {
            let now = self.clock.now();
            self.listeners.reopen(&self.epoll, now);
            let left = self.listeners.again_at().map(|at| now.time_until(at));
            let mut room = [const { MaybeUninit::uninit() }; EVENTS];
            let events = wait(&self.epoll, &mut room, left);
            if events.iter().any(|event| event.data.u64() == WAKE_SIGNAL) {
                self.own.wake_signal.clear();
                self.listeners.resume(&self.epoll);
            }
            if events.iter().any(|event| event.data.u64() == LISTENERS) {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let Self { epoll, listeners, handoffs, next, clock, most, .. } = self;
        listeners.accept(epoll, clock.now(), |arrival| match arrival {
            // Relaxed: as in `HandoffReceiver::left`.
            None => handoffs.iter().map(|handoff| handoff.count.load(Ordering::Relaxed)).sum::<usize>() < *most,
            Some(arrival) => {
                hand_over(handoffs, next, arrival);
                true
            }
        });
        if self.listeners.again_at().is_some() {
            self.want_place();
        }
    }

    /// Asks a thread for the place of an idle connection, each time the next thread that has any.
    fn want_place(&mut self) {
        // Relaxed, here and below: as in `HandoffReceiver`.
        self.own.waits.store(true, Ordering::Relaxed);
        let has_any = |handoff: &&Handoff| handoff.count.load(Ordering::Relaxed) > 0;
        let asked: Vec<&Handoff> = self.handoffs.iter().filter(has_any).collect();
        if let Some(handoff) = asked.get(self.next % asked.len().max(1)) {
            handoff.wanted.store(true, Ordering::Relaxed);
            handoff.wake_signal.raise();
        }
        self.next += 1;
    }
}

/// Gives a connection to the thread that has the fewest. Among equals, the threads take turns.
fn hand_over(handoffs: &[Handoff], next: &mut usize, arrival: Arrival) {
    let (before, after) = handoffs.split_at(*next % handoffs.len().max(1));
    // Relaxed: as in `HandoffReceiver::left`.
    let fewest = after.iter().chain(before).min_by_key(|handoff| handoff.count.load(Ordering::Relaxed));
    let Some(handoff) = fewest else { return };
    *next += 1;
    handoff.count.fetch_add(1, Ordering::Relaxed);
    // If the thread has ended, the sender drops the descriptor, which closes the connection.
    handoff.sender.send(arrival);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// An acceptor with two serving threads, and the address of its listener in this folder.
    fn acceptor(folder: &tempfile::TempDir) -> (Acceptor, [HandoffReceiver; 2], [WakeSignal; 2], Stopper, String) {
        let (wake_signal, path) = (WakeSignal::new().unwrap(), format!("{}/socket", folder.path().display()));
        let stopper = Stopper::new(&wake_signal);
        let mut acceptor = Acceptor::new(stopper.clone(), &wake_signal, Clock::start()).unwrap();
        acceptor.listen(BoundListener::bind(&format!("ipc://{path}")).unwrap()).unwrap();
        let wake_signals = [WakeSignal::new().unwrap(), WakeSignal::new().unwrap()];
        let receivers = wake_signals.each_ref().map(|wake_signal| acceptor.handoff(wake_signal));
        (acceptor, receivers, wake_signals, stopper, path)
    }

    fn counts(receivers: &[HandoffReceiver; 2]) -> [usize; 2] {
        receivers.each_ref().map(|receiver| receiver.count.load(Ordering::Relaxed))
    }

    #[test]
    fn the_thread_with_the_fewest_connections_gets_the_next_and_no_more_come_than_may() {
        let folder = tempfile::tempdir().unwrap();
        let (mut acceptor, receivers, _wake_signals, _stopper, path) = acceptor(&folder);
        acceptor.most = 3;
        let _clients: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(&path).unwrap()).collect();
        acceptor.accept();
        assert_eq!(counts(&receivers), [2, 1]);
        assert!(acceptor.listeners.again_at().is_some(), "the fourth waits");
        let asked = || receivers.each_ref().map(HandoffReceiver::is_place_wanted);
        let first = asked();
        acceptor.want_place();
        let mut both = [first, asked()];
        both.sort_unstable();
        assert_eq!(both, [[false, true], [true, false]], "one after the other is asked for a place");
        assert!(receivers[0].next().is_some() && receivers[0].next().is_some() && receivers[0].next().is_none());
        assert!(receivers[1].next().is_some() && receivers[1].next().is_none());
        receivers[0].left(2);
        assert_eq!(counts(&receivers), [0, 1]);
        acceptor.accept();
        assert_eq!(counts(&receivers), [1, 1]);
    }

    #[test]
    fn threads_with_equally_many_connections_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let (mut acceptor, receivers, _wake_signals, _stopper, path) = acceptor(&folder);
        let mut turns = Vec::new();
        for _ in 0..5 {
            let _client = UnixStream::connect(&path).unwrap();
            acceptor.accept();
            let turn = receivers.iter().position(|receiver| receiver.next().is_some()).unwrap();
            receivers[turn].left(1);
            turns.push(turn);
        }
        assert_eq!((turns, counts(&receivers)), (vec![0, 1, 0, 1, 0], [0, 0]));
    }

    #[test]
    fn a_running_acceptor_wakes_the_thread_that_gets_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let (acceptor, receivers, wake_signals, stopper, path) = acceptor(&folder);
        let running = std::thread::spawn(move || acceptor.run());
        for (receiver, wake_signal) in receivers.iter().zip(&wake_signals) {
            let _client = UnixStream::connect(&path).unwrap();
            crate::net::sockets::wait(&[], wake_signal, Some(Duration::from_secs(20)));
            assert!(receiver.next().is_some());
        }
        stopper.stop();
        running.join().unwrap();
        assert!(UnixStream::connect(&path).is_err(), "its listener is closed");
    }
}
