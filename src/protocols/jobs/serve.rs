//! Accepts connections and runs a conversation for each, all in one thread.
//!
//! ```text
//! listener ─► accept, up to JOB_CONNECTIONS_MAX at once ─► converse ◄─► JobResponder ═► committer
//! told to stop ─► accept no more ─► requests end with the bytes that have come ─► the last replies ─► end
//!                                   after LINGER: leases whose replies were not sent go back ◄─┘
//! ```
//! The thread sleeps in the runtime on its sockets, its timers, the committer's answers and the [`TcpStopper`].
//!
//! This module does not know the exchange with one client (`conversation`), or the exchange with the committer
//! (`responder`).

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::conversation::{JobsContext, converse};
use super::responder::JobResponder;
use super::wire::AckWording;
use crate::clock::Clock;
use crate::limits::{JOB_BACKLOG, JOB_CONNECTIONS_MAX, JOB_ROOM_BYTES, LINGER};
use crate::protocols::sockets::ServeError;
use crate::protocols::tcp::{PausableAcceptor, RoomSignal, ServeEnd, TcpMailbox};
use crate::store;
use crate::tasks::{Committer, Delivery, Family, Tasks};

pub use crate::protocols::tcp::TcpStopper;

/// Period of the check whether answers can still come.
const SWEEP: Duration = Duration::from_secs(5);
/// Bytes that are discarded at once.
const SCRAP_BYTES: usize = 64 << 10;

/// The configuration of the frontend.
#[derive(Clone, Debug)]
pub struct JobsConfig {
    /// The address to listen at.
    pub address: SocketAddr,
    /// Length of a lease, in milliseconds.
    pub lease: u64,
    /// The wording of the replies to ACK.
    pub words: AckWording,
}

/// The frontend, its stopper and its address.
pub struct Jobs {
    /// To be run in the thread `jobs-io`.
    pub front: JobsFrontend,
    /// Tells the frontend to take no more requests.
    pub stopper: TcpStopper,
    /// The address that the frontend listens at, with the port that the system chose.
    pub address: SocketAddr,
}

/// Listens, and registers a sink with the committer for the answers about the queues of `family`.
///
/// # Errors
/// [`ServeError`] if the address is not available, or the system has no descriptor left.
pub fn bind(
    settings: &JobsConfig,
    (committer, tasks, family): (&mut Committer, Tasks, Family),
) -> Result<Jobs, ServeError> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = PausableAcceptor::bind(&runtime, settings.address, JOB_BACKLOG)?;
    let address = listener.address;
    let (ending, endings) = unbounded_channel();
    let stopper = TcpStopper(ending.clone());
    let (sender, deliveries) = unbounded_channel();
    let room = RoomSignal::default();
    let sink = committer.sink(Box::new(TcpMailbox { sender, room: room.clone() }));
    let settings = settings.clone();
    let front = JobsFrontend { runtime, listener, ending, endings, deliveries, tasks, sink, room, family, settings };
    Ok(Jobs { front, stopper, address })
}

/// The frontend, ready to run.
pub struct JobsFrontend {
    runtime: Runtime,
    listener: PausableAcceptor,
    ending: UnboundedSender<ServeEnd>,
    endings: UnboundedReceiver<ServeEnd>,
    deliveries: UnboundedReceiver<Delivery>,
    tasks: Tasks,
    sink: usize,
    room: RoomSignal,
    family: Family,
    settings: JobsConfig,
}

impl JobsFrontend {
    /// The acceptor of the connections.
    #[cfg(test)]
    pub(super) fn listener(&self) -> &PausableAcceptor {
        &self.listener
    }

    /// The loop of the thread. Returns after the stopper was told and every request taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read, or no answer can come.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { runtime, listener, ending, endings, deliveries, tasks, sink, room, family, settings } = self;
        let house = Rc::new(JobsContext {
            responder: JobResponder::new(tasks, sink, room),
            family,
            lease: settings.lease,
            words: settings.words,
            clock: Clock::start(),
            coming: Semaphore::new(JOB_ROOM_BYTES),
            going: Semaphore::new(JOB_ROOM_BYTES),
            closing: Cell::new(false),
            closed: Notify::new(),
            over: Cell::new(false),
            cut: Notify::new(),
            ending,
            scrap: RefCell::new(vec![0; SCRAP_BYTES]),
        });
        let served = serve(house, listener, deliveries, endings);
        LocalSet::new().block_on(&runtime, served)
    }
}

/// Serves until there is an ending, then lets the conversations end.
async fn serve(
    house: Rc<JobsContext>,
    listener: PausableAcceptor,
    deliveries: UnboundedReceiver<Delivery>,
    mut endings: UnboundedReceiver<ServeEnd>,
) -> ServeEnd {
    let most = u32::try_from(JOB_CONNECTIONS_MAX).unwrap_or(u32::MAX);
    let places = Arc::new(Semaphore::new(most as usize));
    let shared = || Rc::clone(&house);
    spawn_local(hand_out(shared(), deliveries));
    spawn_local(submit_bursts(shared()));
    spawn_local(check(shared()));
    let accepting = spawn_local(accept(shared(), listener, Arc::clone(&places)));
    endings.recv().await.unwrap_or(Ok(()))?;
    accepting.abort();
    house.close();
    if timeout(LINGER, places.acquire_many(most)).await.is_err() {
        house.cut_short();
        all_end(&places, most, &mut endings).await?;
    }
    house.responder.submit_burst();
    endings.try_recv().unwrap_or(Ok(()))
}

/// Waits until the last conversation has ended, unless the store fails.
async fn all_end(places: &Semaphore, most: u32, endings: &mut UnboundedReceiver<ServeEnd>) -> ServeEnd {
    let mut ended = pin!(places.acquire_many(most));
    poll_fn(|context| {
        while let Poll::Ready(Some(ending)) = endings.poll_recv(context) {
            if ending.is_err() {
                return Poll::Ready(ending);
            }
        }
        ended.as_mut().poll(context).map(|_| Ok(()))
    })
    .await
}

async fn hand_out(house: Rc<JobsContext>, deliveries: UnboundedReceiver<Delivery>) {
    house.responder.hand_out(deliveries).await;
}

async fn submit_bursts(house: Rc<JobsContext>) {
    let Err(error) = house.responder.submit_bursts().await;
    house.end(Err(error));
}

/// Checks each `SWEEP` whether answers can still come.
async fn check(house: Rc<JobsContext>) {
    loop {
        sleep(SWEEP).await;
        if let Err(error) = house.responder.tasks().check() {
            house.end(Err(error));
        }
    }
}

/// Accepts connections as long as there are places for them.
async fn accept(house: Rc<JobsContext>, mut listener: PausableAcceptor, places: Arc<Semaphore>) {
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (stream, entered) = listener.accept().await;
        let conversation = converse(Rc::clone(&house), stream);
        spawn_local(async move {
            conversation.await;
            drop((place, entered));
        });
    }
}
