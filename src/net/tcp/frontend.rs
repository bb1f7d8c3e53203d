//! The skeleton of a frontend over plain TCP. A protocol adds its conversations.
//!
//! ```text
//! listener ─► accept, up to a bound ─► TcpProtocol::converse, in a task of its own
//!               └─ none is free: an idle one makes place, or else the client gets one of the reserve, if there is one
//! stop request ─► accept no more ─► TcpProtocol::finish ─► end
//!                                   after LINGER: TcpProtocol::cut_short ─┘
//! ```
//! All runs in one thread. It sleeps in the runtime on its sockets and its timers, until the [`Stopper`] or the
//! committer's [`WakingSender`] wakes it.
//!
//! This module does not interpret the bytes of a connection; see `jobs` and `events`.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crossbeam::channel::Receiver;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::idle::IdleConnections;
use super::{Accepted, AcceptedStream, Certificate, PausableAcceptor, RoomSignal, unless};
use crate::clock::Clock;
use crate::descriptors::Place;
use crate::limits::{LINGER, PLACE_HANDSHAKE_TIME, PLACE_RECHECK, STORE_SWEEP};
use crate::lock::Mutex;
use crate::net::sockets::{ListenAddress, ServeError, Stopper, WakingSender};
use crate::store;
use crate::tasks::{Committer, Delivery, Tasks};

/// Reports to the frontend that the store has failed, and so that the server ends.
pub(crate) type FailureSender = UnboundedSender<store::Error>;

/// Held by a conversation. Dropping it leaves room for another connection.
pub(crate) type ConnectionPermit = (OwnedSemaphorePermit, Place);

/// How many connections a frontend has at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpBounds {
    /// Those that the system holds until they are accepted.
    pub(crate) backlog: i32,
    /// Those that are accepted.
    pub(crate) connections: usize,
    /// Those more that are accepted when all of the others are at work (see [`Accepted::is_reserved`]).
    pub(crate) reserved: usize,
}

/// The conversations of a protocol.
pub(crate) trait TcpProtocol {
    /// Starts a conversation with a client, in a task that holds `permit` to its end.
    fn converse(&self, accepted: Accepted, permit: ConnectionPermit);

    /// All connections are taken, none is idle, and a client waits. The protocol may end a conversation that is slow.
    fn make_place(&self) {}

    /// Lets the conversations end with the requests that they have taken.
    async fn finish(&mut self, connections: &ConnectionLimit);

    /// Ends the conversations at once, because `finish` was dropped after [`LINGER`].
    async fn cut_short(&mut self, connections: &ConnectionLimit);
}

/// Counts the connections of a frontend, up to their limit.
pub(crate) struct ConnectionLimit {
    free: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    bounds: TcpBounds,
}

impl ConnectionLimit {
    fn new(bounds: TcpBounds) -> Self {
        let [free, reserve] = [bounds.connections, bounds.reserved].map(|most| Arc::new(Semaphore::new(most)));
        Self { free, reserve, bounds }
    }

    /// Waits for room for a client that has been accepted, and has `make_place` called meanwhile. The permit is one of
    /// the reserve if that finds nobody. The second part says so.
    async fn permit(&self, make_place: impl Fn() -> bool) -> (OwnedSemaphorePermit, bool) {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return (permit, false);
            }
            let is_last_resort = !make_place();
            let permit = Arc::clone(&self.free).acquire_owned();
            if let Ok(permit) = timeout(PLACE_RECHECK, permit).await {
                return (permit.expect("the semaphore is never closed"), false);
            }
            if is_last_resort && let Ok(permit) = Arc::clone(&self.reserve).try_acquire_owned() {
                return (permit, true);
            }
        }
    }

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
        for (permits, most) in [(&self.free, self.bounds.connections), (&self.reserve, self.bounds.reserved)] {
            // The semaphore is never closed.
            let _all = permits.acquire_many(u32::try_from(most).unwrap_or(u32::MAX)).await;
        }
    }
}

/// Wakes a task of the runtime from any thread.
#[derive(Default)]
struct TaskWaker(Notify);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// The frontend's side of its [`WakingSender`] at the committer.
pub(crate) struct AnswerReceiver {
    /// The number of the sink, for tickets.
    pub(crate) sink: usize,
    /// Notified when the committer may have room again.
    pub(crate) room: RoomSignal,
    deliveries: Receiver<Delivery>,
    waker: Arc<TaskWaker>,
}

impl AnswerReceiver {
    /// Hands each delivery of the committer to `receive`, for ever.
    pub(crate) async fn hand_out(self, receive: impl Fn(Delivery)) {
        loop {
            self.deliveries.try_iter().for_each(&receive);
            self.room.0.notify_one();
            self.waker.0.notified().await;
        }
    }
}

/// Checks each [`STORE_SWEEP`] whether the committer can still answer, for ever.
pub(crate) async fn watch_store(tasks: Tasks, failed: FailureSender) {
    loop {
        sleep(STORE_SWEEP).await;
        if let Err(error) = tasks.check() {
            // The send fails if the server is ending already.
            let _ending = failed.send(error);
        }
    }
}

/// A frontend that listens, and has no conversation yet.
pub(crate) struct TcpFrontend {
    runtime: Runtime,
    /// One for each address.
    acceptors: Vec<PausableAcceptor>,
    /// With which connections are encrypted.
    certificate: Option<Certificate>,
    bounds: TcpBounds,
    stopper: Stopper,
    waker: Arc<TaskWaker>,
    failed: FailureSender,
    failures: UnboundedReceiver<store::Error>,
}

impl TcpFrontend {
    /// Listens at these addresses. Serves as many connections at once as the bounds say, and encrypts them if there is a
    /// certificate.
    pub(crate) fn bind(
        addresses: &[ListenAddress],
        bounds: TcpBounds,
        certificate: Option<Certificate>,
    ) -> Result<Self, ServeError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let listen = |address| PausableAcceptor::bind(&runtime, address, bounds.backlog, bounds.reserved > 0);
        let acceptors = addresses.iter().map(listen).collect::<Result<_, _>>()?;
        let waker = Arc::<TaskWaker>::default();
        let stopper = Stopper::new(Arc::clone(&waker));
        let (failed, failures) = unbounded_channel();
        Ok(Self { runtime, acceptors, certificate, bounds, stopper, waker, failed, failures })
    }

    /// Where it listens, with the ports that the system chose.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &ListenAddress> {
        self.acceptors.iter().map(|acceptor| &acceptor.address)
    }

    /// All of them, in one line.
    pub(crate) fn endpoint(&self) -> String {
        self.addresses().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The acceptor of the connections to the first address.
    #[cfg(test)]
    pub(crate) fn acceptor(&self) -> Option<&PausableAcceptor> {
        self.acceptors.first()
    }

    /// Has the frontend take no more requests.
    pub(crate) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Reports to the frontend that the store has failed.
    pub(crate) fn failed(&self) -> FailureSender {
        self.failed.clone()
    }

    /// Registers a sender with the committer.
    pub(crate) fn answers(committer: &mut Committer) -> AnswerReceiver {
        let waker = Arc::<TaskWaker>::default();
        let (sender, deliveries) = WakingSender::new(Arc::clone(&waker));
        AnswerReceiver { sink: committer.sink(Box::new(sender)), room: RoomSignal::default(), deliveries, waker }
    }

    /// Runs `work`, before [`TcpFrontend::run`].
    pub(crate) fn prepare<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The loop of the thread. `start` makes the protocol, and starts its other tasks. Returns after
    /// [`Stopper::stop`], when every request taken is answered.
    ///
    /// # Errors
    /// The failure of the store.
    pub(crate) fn run<P: TcpProtocol>(self, start: impl FnOnce() -> P) -> Result<(), store::Error> {
        let Self { runtime, acceptors, certificate, bounds, stopper, waker, failed: _failed, mut failures } = self;
        let served = async move {
            let mut protocol = start();
            let connections = ConnectionLimit::new(bounds);
            let idle = IdleConnections::new(Clock::start());
            let numbered = acceptors.into_iter().enumerate();
            let accepting = numbered
                .map(|(listener, acceptor)| {
                    let certificate = certificate.clone();
                    Box::pin(accept(acceptor, listener, certificate, &connections, &idle, &protocol))
                })
                .collect();
            let accepting = never(accepting);
            unless_failed(until_stopping(&stopper, &waker, accepting), &mut failures).await?;
            if timeout(LINGER, protocol.finish(&connections)).await.is_err() {
                unless_failed(protocol.cut_short(&connections), &mut failures).await?;
            }
            failures.try_recv().map_or(Ok(()), Err)
        };
        LocalSet::new().block_on(&runtime, served)
    }
}

/// Accepts connections. If there is no room for one, it is the last until there is. A client that has asked for nothing
/// loses its connection before one that has.
async fn accept(
    mut acceptor: PausableAcceptor,
    listener: usize,
    certificate: Option<Certificate>,
    connections: &ConnectionLimit,
    idle: &IdleConnections,
    protocol: &impl TcpProtocol,
) -> Infallible {
    let make_place = || {
        let is_made = idle.make_place();
        if !is_made {
            protocol.make_place();
        }
        is_made
    };
    loop {
        let AcceptedStream { stream, place, is_reserved } = acceptor.accept(make_place).await;
        let (permit, is_of_reserve) = connections.permit(make_place).await;
        let (mut idle, certificate) = (idle.begin(), certificate.clone());
        if certificate.is_some() {
            idle.rest(PLACE_HANDSHAKE_TIME);
        }
        let is_reserved = is_reserved || is_of_reserve;
        protocol.converse(Accepted { stream, listener, certificate, idle, is_reserved }, (permit, place));
    }
}

/// Does all of this work, which has no end. The loop of the runtime polls this with each of its events, and so with each
/// request of a client. The work is polled when it was woken: an acceptor asks the system for a descriptor.
async fn never(mut work: Vec<Pin<Box<impl Future<Output = Infallible>>>>) -> Infallible {
    let wake = Arc::new(WokenWork { is_woken: AtomicBool::new(true), outer: Mutex::new(Waker::noop().clone()) });
    let waker = Waker::from(Arc::clone(&wake));
    poll_fn(|context| {
        wake.outer.lock().clone_from(context.waker());
        // AcqRel: whoever wakes has stored the waker's cause before, and this poll sees it.
        if !wake.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        for one in &mut work {
            if let Poll::Ready(end) = one.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    })
    .await
}

/// Work that is polled only when it was woken.
struct WokenWork {
    is_woken: AtomicBool,
    /// Wakes the loop of the runtime.
    outer: Mutex<Waker>,
}

impl Wake for WokenWork {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.outer.lock().wake_by_ref();
    }
}

/// Runs `work` until the stopper stops the thread.
async fn until_stopping(stopper: &Stopper, waker: &TaskWaker, work: impl Future<Output = Infallible>) {
    let stopping = async {
        while !stopper.is_stopping() {
            waker.0.notified().await;
        }
    };
    unless(stopping, async { match work.await {} }).await;
}

/// The output of `work`, unless the store fails before.
async fn unless_failed<T>(
    work: impl Future<Output = T>,
    failures: &mut UnboundedReceiver<store::Error>,
) -> Result<T, store::Error> {
    let mut work = pin!(work);
    poll_fn(|context| match failures.poll_recv(context) {
        Poll::Ready(Some(error)) => Poll::Ready(Err(error)),
        _ => work.as_mut().poll(context).map(Ok),
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_further_connection_waits_until_one_has_ended() {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bounds = TcpBounds { backlog: 0, connections: 2, reserved: 0 };
            let (limit, places) = (ConnectionLimit::new(bounds), Cell::new(0));
            let take = || {
                limit.permit(|| {
                    places.set(places.get() + 1);
                    false
                })
            };
            let (first, second) = (take().await, take().await);
            assert_eq!(places.get(), 0, "there was room");
            let mut context = Context::from_waker(Waker::noop());
            let (mut third, mut closed) = (pin!(take()), pin!(limit.all_closed()));
            assert!(third.as_mut().poll(&mut context).is_pending());
            assert_eq!(places.get(), 1, "a slow one may lose its place");
            drop(first);
            let third = third.await;
            assert!(closed.as_mut().poll(&mut context).is_pending());
            drop(second);
            assert!(closed.as_mut().poll(&mut context).is_pending());
            drop(third);
            closed.await;
        });
    }
    /// A health check waited behind connections that were at work.
    #[test]
    fn when_no_connection_makes_place_those_of_the_reserve_are_given_out() {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let limit = ConnectionLimit::new(TcpBounds { backlog: 0, connections: 1, reserved: 1 });
            let idle = Cell::new(Some(limit.permit(|| false).await));
            let (second, is_reserved) = limit.permit(|| idle.take().is_some()).await;
            assert!(!is_reserved, "an idle one has made place");
            let (third, is_reserved) = limit.permit(|| false).await;
            assert!(is_reserved);
            let mut closed = pin!(limit.all_closed());
            let mut context = Context::from_waker(Waker::noop());
            drop(second);
            assert!(closed.as_mut().poll(&mut context).is_pending());
            drop(third);
            closed.await;
        });
    }
}
