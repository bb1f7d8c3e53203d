//! What the faces over plain TCP share: how they listen, how answers come back to who waits for them, and how they are told to end.
//!
//! What is not here: what is said over the connections.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use slab::Slab;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::sockets::BindError;
use crate::clock::Clock;
use crate::descriptors::{has_room, outside_the_reserve};
use crate::limits::{ACCEPT_PAUSE, ROOM_RECHECK};
use crate::log::WarningPace;
use crate::store::{self, StoreSnapshot};
use crate::tasks::{Delivery, Outcome, ReplySink, RoomWait, Tasks};

/// How serving ends: well, or because the store has failed.
pub(super) type ServeEnd = Result<(), store::Error>;

/// Tells the thread to take no more requests, answer those that were taken, and end.
#[derive(Clone, Debug)]
pub struct TcpStopper(pub(super) UnboundedSender<ServeEnd>);

impl TcpStopper {
    /// Tells it. May be called from any thread, and more than once.
    pub fn stop(&self) {
        // It fails when the thread has ended already.
        let _ended = self.0.send(Ok(()));
    }
}

/// The committer's end. There are never more answers in it than requests wait.
pub(super) struct TcpMailbox {
    pub(super) sender: UnboundedSender<Delivery>,
    pub(super) room: RoomSignal,
}

impl ReplySink for TcpMailbox {
    fn deliver(&self, delivery: Delivery) {
        // The face outlives the committer; if it has failed, the process is about to end.
        let _failed = self.sender.send(delivery);
    }

    fn go_on(&self) {
        self.room.0.notify_one();
    }
}

/// Rung when the committer has room again. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct RoomSignal(Arc<Notify>);

impl RoomSignal {
    /// Waits until the committer has room for what this face asks.
    pub(super) async fn wait(&self, tasks: &Tasks, sink: usize) {
        let mut wait = RoomWait::default();
        while !tasks.has_room(sink, &mut wait) {
            if timeout(ROOM_RECHECK, self.0.notified()).await.is_err() {
                tasks.has_overslept(sink, &wait);
            }
        }
    }
}

/// What is answered.
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// The store before the batch, if the answer refers to it.
    pub(super) before: Option<Arc<dyn StoreSnapshot>>,
}

/// Who waits for which answer, by the number of the ticket.
#[derive(Default)]
pub(super) struct PendingAnswers(Slab<oneshot::Sender<Answer>>);

impl PendingAnswers {
    /// The number of a ticket whose answer nobody hears.
    pub(super) const NOBODY: u64 = u64::MAX;

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One who waits: the number, and where the answer comes. Nothing comes if the committer has failed.
    pub(super) fn add(&mut self) -> (u64, oneshot::Receiver<Answer>) {
        let (sender, answer) = oneshot::channel();
        (self.0.insert(sender) as u64, answer)
    }

    /// This one waits no more, and hears nothing.
    pub(super) fn forget(&mut self, number: u64) {
        let place = usize::try_from(number).ok().filter(|_| number != Self::NOBODY);
        place.and_then(|place| self.0.try_remove(place));
    }

    /// Hands out answers.
    pub(super) fn hear(&mut self, Delivery { answers, before }: Delivery) {
        for (number, outcome) in answers.into_iter().filter(|(number, _)| *number != Self::NOBODY) {
            let number = usize::try_from(number).expect("a ticket is a place in the slab");
            let before = outcome.payload().and(before.clone());
            // Who has gone meanwhile hears nothing.
            let _gone = self.0.remove(number).send(Answer { outcome, before });
        }
    }
}

/// Where connections come in.
pub(super) struct PausableAcceptor {
    socket: TcpListener,
    /// With the port that the system chose.
    pub(super) address: SocketAddr,
    clock: Clock,
    pauses_told: WarningPace,
    /// Whether there is a descriptor for a connection; how long it waits to ask again where none of its own has ended.
    room: (fn(&TcpListener) -> bool, Duration),
    left: Arc<Notify>,
}

/// A connection that came through a listener, as long as it is there. Its end leaves room for another.
pub(super) struct Entered(Arc<Notify>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
impl std::os::fd::AsFd for PausableAcceptor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PausableAcceptor {
    /// Listens also where connections of a server that has just ended are still remembered; `backlog` connections may wait to be accepted.
    pub(super) fn bind(runtime: &Runtime, address: SocketAddr, backlog: u32) -> Result<Self, BindError> {
        let _entered = runtime.enter();
        let bound = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let socket = socket.listen(backlog)?;
            Ok(Self {
                address: socket.local_addr()?,
                socket,
                clock: Clock::start(),
                pauses_told: WarningPace::default(),
                room: (|socket| has_room(socket), ACCEPT_PAUSE),
                left: Arc::default(),
            })
        };
        let endpoint = address.to_string();
        bound().map_err(|source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => BindError::InUse { endpoint },
            ErrorKind::AddrNotAvailable => BindError::NoSuchAddress { endpoint },
            _ => BindError::System { endpoint, source },
        })
    }

    /// The next connection. As long as there is no descriptor for one, those who want to connect wait where the system keeps them: until
    /// one that came before has ended, or another face may have closed one.
    pub(super) async fn accept(&mut self) -> (TcpStream, Entered) {
        loop {
            match self.try_accept().await {
                Ok(Some(stream)) => return (stream, Entered(Arc::clone(&self.left))),
                // Somebody has gone before it was accepted.
                Ok(None) => {}
                Err(error) => {
                    if self.pauses_told.is_time(self.clock.now()) {
                        tracing::warn!("no connection to {} is accepted for now: {error}", self.address);
                    }
                    let _other = timeout(self.room.1, self.left.notified()).await;
                }
            }
        }
    }

    /// A connection, once somebody wants one and there is room for it: that is looked at each time that somebody comes.
    async fn try_accept(&self) -> io::Result<Option<TcpStream>> {
        let accepted = poll_fn(|context| {
            if self.room.0(&self.socket) {
                self.socket.poll_accept(context)
            } else {
                Poll::Ready(Err(Errno::MFILE.into()))
            }
        });
        match accepted.await {
            Ok((stream, _)) => Ok(Some(outside_the_reserve(stream).ok_or(Errno::MFILE)?)),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::runtime::Builder;

    use super::*;

    static HAS_ROOM: AtomicBool = AtomicBool::new(true);

    /// Where there was no room it was asked ten times a second whether there was some.
    #[test]
    fn the_end_of_a_connection_lets_in_who_waits_for_room() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut listener = PausableAcceptor::bind(&runtime, "127.0.0.1:0".parse().unwrap(), 8).unwrap();
        // It does not ask again by itself while this test runs.
        listener.room = (|_| HAS_ROOM.load(Ordering::SeqCst), Duration::from_secs(3_600));
        runtime.block_on(async {
            let _first = TcpStream::connect(listener.address).await.unwrap();
            let (stream, entered) = listener.accept().await;
            HAS_ROOM.store(false, Ordering::SeqCst);
            let second = TcpStream::connect(listener.address).await.unwrap();
            let mut accepting = pin!(listener.accept());
            let waits = poll_fn(|context| Poll::Ready(accepting.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            HAS_ROOM.store(true, Ordering::SeqCst);
            drop((stream, entered));
            let (accepted, _entered) = timeout(Duration::from_secs(60), accepting).await.unwrap();
            assert_eq!(accepted.peer_addr().unwrap(), second.local_addr().unwrap());
        });
    }
}
