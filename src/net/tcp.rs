//! Shared by the frontends over plain TCP: the skeleton that serves connections ([`TcpFrontend`]), accepting them, and
//! handing replies back to waiting requests.
//!
//! This module does not interpret the bytes of a connection; see `jobs` and `events`.

mod burst;
mod certificate;
mod client_certificate;
mod client_stream;
mod frontend;
mod idle;
mod requests;

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use slab::Slab;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

pub(crate) use burst::Burst;
pub use certificate::{Certificate, fingerprint_of_file};
pub(crate) use client_stream::{Accepted, ClientStream, client_name};
pub(crate) use frontend::{
    AnswerReceiver, ConnectionLimit, ConnectionPermit, FailureSender, TcpBounds, TcpFrontend, TcpProtocol, watch_store,
};
#[cfg(test)]
pub(crate) use idle::IdleConnections;
pub(crate) use idle::IdleEntry;
pub(crate) use requests::{QueueRequests, Unanswered};

use crate::clock::Clock;
use crate::descriptors::{Place, ServiceShare, wait_for_room};
use crate::limits::{ACCEPT_PAUSE, PLACE_RECHECK, ROOM_RECHECK};
use crate::log::WarningPace;
use crate::net::sockets::{BindError, ListenAddress, ListeningSocket, SocketFile, is_readable};
use crate::store::{self, StoreSnapshot, Value};
use crate::tasks::{Delivery, Outcome, Payload, RoomWait, Tasks};

/// The output of `work`, or `None` if `other` is ready before it.
pub(crate) async fn unless<T>(work: impl Future<Output = T>, other: impl Future<Output = ()>) -> Option<T> {
    let (mut work, mut other) = (pin!(work), pin!(other));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => other.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Notified when the committer has room again. Clones are the same signal.
#[derive(Clone, Default)]
pub(crate) struct RoomSignal(Arc<Notify>);

impl RoomSignal {
    /// Waits until the committer has room for requests of this frontend.
    pub(crate) async fn wait(&self, tasks: &Tasks, sink: usize) {
        let mut wait = RoomWait::default();
        while !tasks.has_room(sink, &mut wait) {
            if timeout(ROOM_RECHECK, self.0.notified()).await.is_err() {
                tasks.count_if_overslept(&wait);
            }
        }
    }
}

/// A reply of the committer.
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    /// The store before the batch, if the outcome refers to it.
    pub(crate) before: Option<Arc<dyn StoreSnapshot>>,
}

/// Requests that wait for their replies, by the number of the ticket.
#[derive(Default)]
pub(crate) struct PendingAnswers(Slab<oneshot::Sender<Answer>>);

impl PendingAnswers {
    /// The ticket number of a request whose reply is dropped.
    pub(crate) const NOBODY: u64 = u64::MAX;

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a waiting request. Returns its number and the receiver of its reply. If the committer has failed, the
    /// receiver gets no reply.
    pub(crate) fn add(&mut self) -> (u64, oneshot::Receiver<Answer>) {
        let (sender, answer) = oneshot::channel();
        (self.0.insert(sender) as u64, answer)
    }

    /// Stops waiting for this reply, and drops it when it comes.
    pub(crate) fn forget(&mut self, number: u64) {
        let index = usize::try_from(number).ok().filter(|_| number != Self::NOBODY);
        index.and_then(|index| self.0.try_remove(index));
    }

    /// Hands replies to the requests that wait for them.
    pub(crate) fn receive_delivery(&mut self, Delivery { answers, before }: Delivery) {
        for (number, outcome) in answers.into_iter().filter(|(number, _)| *number != Self::NOBODY) {
            let number = usize::try_from(number).expect("a ticket is an index in the slab");
            let before = before.clone().filter(|_| outcome.is_stored());
            // If the receiver has gone meanwhile, its reply is dropped.
            let _gone = self.0.remove(number).send(Answer { outcome, before });
        }
    }
}

/// The value of an answer: from memory, or read by a thread of the store.
///
/// # Errors
/// As [`Payload::read`].
pub(crate) async fn read_value(
    tasks: &Tasks,
    payload: &Payload,
    before: Option<&Arc<dyn StoreSnapshot>>,
) -> Result<Value, store::Error> {
    if let Some(read) = payload.read_now(before.map(|before| &**before)) {
        return read;
    }
    let (sender, value) = oneshot::channel();
    tasks.read(payload, before, move |read| {
        // The request may have ended meanwhile.
        let _gone = sender.send(read);
    });
    value.await.expect("a reader answers each request")
}

/// A listening socket that pauses while there is no descriptor for a connection.
///
/// Threads that wait in an epoll of their own accept with `net::zeromq::Listeners`. Such a listener could join the runtime
/// only by an `unsafe` registration. So the two share how they listen, the budget of descriptors and the pause, and each
/// has the wait of its thread.
pub(crate) struct PausableAcceptor {
    /// The file of the socket. It is dropped first: a server that finds the file of a closed socket replaces it.
    _file: Option<SocketFile>,
    socket: AsyncListener,
    /// With the port that the system chose.
    pub(crate) address: ListenAddress,
    clock: Clock,
    pause_warnings: WarningPace,
    /// The descriptors of the service.
    share: ServiceShare,
    /// More of them, if some of its requests are answered at any time.
    reserve: Option<ServiceShare>,
    /// Says whether there is a descriptor for another connection, and the pause before the next try if no frontend says
    /// that it has closed one.
    room: (RoomCheck, Duration),
}

type RoomCheck = fn(&ServiceShare, &AsyncListener) -> bool;

/// A listening socket, as the runtime waits for it.
pub(crate) enum AsyncListener {
    Tcp(TcpListener),
    Local(UnixListener),
}

impl AsyncListener {
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<ClientStream>> {
        match self {
            Self::Tcp(socket) => socket.poll_accept(context).map_ok(|(stream, _)| ClientStream::Plain(stream)),
            Self::Local(socket) => socket.poll_accept(context).map_ok(|(stream, _)| ClientStream::Local(stream)),
        }
    }
}

impl AsFd for AsyncListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Local(socket) => socket.as_fd(),
        }
    }
}

/// A connection that was accepted.
pub(crate) struct AcceptedStream {
    stream: ClientStream,
    place: Place,
    /// Whether its place is one of the reserve.
    is_reserved: bool,
}

#[cfg(test)]
impl AsFd for PausableAcceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PausableAcceptor {
    /// Listens, even while the system still remembers connections of a server that has just ended. The system holds up
    /// to `backlog` connections until they are accepted.
    pub(crate) fn bind(
        runtime: &Runtime,
        address: &ListenAddress,
        backlog: i32,
        has_reserve: bool,
    ) -> Result<Self, BindError> {
        let _entered = runtime.enter();
        let endpoint = address.to_string();
        let bound = ListeningSocket::bind(address, backlog).map_err(|error| error.about(&endpoint))?;
        let ListeningSocket { file, descriptor, address } = bound;
        let socket = match address {
            ListenAddress::Tcp(_) => TcpListener::from_std(descriptor.into()).map(AsyncListener::Tcp),
            ListenAddress::Local(_) => UnixListener::from_std(descriptor.into()).map(AsyncListener::Local),
        };
        let socket = socket.map_err(|source| BindError::System { endpoint, source })?;
        Ok(Self {
            _file: file,
            socket,
            address,
            clock: Clock::start(),
            pause_warnings: WarningPace::default(),
            share: ServiceShare::register(),
            reserve: has_reserve.then(ServiceShare::register),
            room: (|share, socket| share.has_room(socket), ACCEPT_PAUSE),
        })
    }

    /// Accepts the next connection. While there is no descriptor for one, clients wait in the system's backlog. It
    /// tries again when a frontend has closed a connection, or after a pause, in which libzmq may have closed one.
    /// `make_place` is called while a client waits for a descriptor. If it finds nobody to make place, the client gets one
    /// of the reserve.
    pub(crate) async fn accept(&mut self, make_place: impl Fn() -> bool) -> AcceptedStream {
        loop {
            match self.try_accept(&self.share).await {
                Ok(Some((stream, place))) => return AcceptedStream { stream, place, is_reserved: false },
                // The client has gone before it was accepted.
                Ok(None) => {}
                Err(error) => {
                    if self.pause_warnings.is_time(self.clock.now()) {
                        let address = &self.address;
                        tracing::warn!(
                            "further connections to {address} wait, or take the places of idle ones: {error}"
                        );
                    }
                    if let Some(reserved) = self.wait_for_room(&make_place).await {
                        return reserved;
                    }
                }
            }
        }
    }

    /// Waits until there may be room, and accepts a client within the reserve if there is none soon.
    async fn wait_for_room(&self, make_place: impl Fn() -> bool) -> Option<AcceptedStream> {
        let is_last_resort = is_readable(&self.socket) && !make_place();
        let reserve = self.reserve.as_ref().filter(|_| is_last_resort);
        let pause = if reserve.is_some() { PLACE_RECHECK } else { self.room.1 };
        let came = timeout(pause, self.room_comes()).await;
        let reserve = reserve.filter(|reserve| came.is_err() && self.room.0(reserve, &self.socket))?;
        // The client that waits is there, unless it has gone.
        let (stream, place) = timeout(PLACE_RECHECK, self.try_accept(reserve)).await.ok()?.ok()??;
        Some(AcceptedStream { stream, place, is_reserved: true })
    }

    /// Waits until there is room, as far as frontends say when they close a connection.
    async fn room_comes(&self) {
        poll_fn(|context| {
            wait_for_room(context.waker());
            if self.room.0(&self.share, &self.socket) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Waits for a client and accepts it if there is room. It checks for room each time that a client comes.
    async fn try_accept(&self, share: &ServiceShare) -> io::Result<Option<(ClientStream, Place)>> {
        let accepted = poll_fn(|context| {
            if !self.room.0(share, &self.socket) {
                return Poll::Ready(Err(Errno::MFILE.into()));
            }
            let came = share.admit(&self.socket, || match self.socket.poll_accept(context) {
                Poll::Ready(came) => came.map(Some),
                Poll::Pending => Ok(None),
            });
            came.transpose().map_or(Poll::Pending, Poll::Ready)
        });
        match accepted.await {
            Ok(came) => Ok(Some(came)),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::net::TcpStream;
    use tokio::runtime::Builder;

    use super::*;

    /// How a listener of a test waits for room that comes when `leave` is called, and admits the second client.
    fn admits(has_room: &AtomicBool, room: RoomCheck, leave: impl FnOnce(AcceptedStream) -> Option<AcceptedStream>) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut listener =
            PausableAcceptor::bind(&runtime, &"127.0.0.1:0".parse::<SocketAddr>().unwrap().into(), 8, false).unwrap();
        // It does not try again by itself while this test runs.
        listener.room = (room, Duration::from_secs(3_600));
        runtime.block_on(async {
            let _first = TcpStream::connect(listener.address.to_string()).await.unwrap();
            let first = listener.accept(|| false).await;
            has_room.store(false, Ordering::SeqCst);
            let second = TcpStream::connect(listener.address.to_string()).await.unwrap();
            let mut accepting = pin!(listener.accept(|| false));
            let waits = poll_fn(|context| Poll::Ready(accepting.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            has_room.store(true, Ordering::SeqCst);
            let _stays = leave(first);
            let accepted = timeout(Duration::from_secs(60), accepting).await.unwrap();
            assert_eq!(accepted.stream.name(), second.local_addr().unwrap().to_string());
        });
    }

    /// While there was no room, the listener checked for it ten times a second.
    #[test]
    fn the_end_of_a_connection_makes_room_for_the_next_one_that_waits() {
        static HAS_ROOM: AtomicBool = AtomicBool::new(true);
        admits(
            &HAS_ROOM,
            |_, _| HAS_ROOM.load(Ordering::SeqCst),
            |first| {
                drop(first);
                None
            },
        );
    }

    /// It waited for its pause if another frontend had closed the connection.
    #[test]
    fn a_connection_that_another_frontend_closes_makes_room_for_the_next_one_that_waits() {
        static HAS_ROOM: AtomicBool = AtomicBool::new(true);
        admits(
            &HAS_ROOM,
            |_, _| HAS_ROOM.load(Ordering::SeqCst),
            |first| {
                let other = tempfile::tempfile().unwrap();
                let left = ServiceShare::register().admit(&other, || Ok::<_, io::Error>(other.try_clone().ok()));
                assert!(left.unwrap().is_some());
                Some(first)
            },
        );
    }
}
