//! The state that all conversations share, and the signals that end them.
//!
//! This module does not know the exchange with one client (`conversation`).

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::sync::{Notify, Semaphore};

use super::pace::{Paces, RoomKind};
use super::responder::JobResponder;
use super::timing::JobTimer;
use super::wire::AckWording;
use crate::clock::Clock;
use crate::net::tcp::FailureSender;
use crate::security::Users;
use crate::store;
use crate::tasks::Family;

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

/// The state that all conversations share.
pub(super) struct JobsContext {
    pub(super) responder: JobResponder,
    pub(super) family: Family,
    pub(super) settings: JobsConfig,
    /// The users that may ask. None: any client may.
    pub(super) users: Option<Users>,
    pub(super) clock: Clock,
    pub(super) rooms: JobRooms,
    /// Says which conversations lose their places while others wait.
    pub(super) paces: Rc<Paces>,
    /// The server has stopped reading requests.
    pub(super) closing: EndSignal,
    /// Conversations end without waiting for their clients. Leases whose replies were not sent go back.
    pub(super) over: EndSignal,
    /// Tells the frontend that the store has failed.
    pub(super) failed: FailureSender,
    /// Counts and times the requests.
    pub(super) timer: JobTimer,
    /// Buffer for discarded bytes.
    pub(super) scrap: RefCell<Vec<u8>>,
}

/// The room that conversations share.
pub(super) struct JobRooms {
    /// Bytes that requests may take beyond their first buffers.
    coming: Semaphore,
    /// Bytes that large replies may take.
    going: Semaphore,
}

impl JobRooms {
    /// So many bytes for requests, and as many for replies.
    pub(super) fn new(bytes: usize) -> Self {
        Self { coming: Semaphore::new(bytes), going: Semaphore::new(bytes) }
    }

    pub(super) fn of(&self, kind: RoomKind) -> &Semaphore {
        match kind {
            RoomKind::Coming => &self.coming,
            RoomKind::Going => &self.going,
        }
    }
}

/// A signal that is given once, and stays.
#[derive(Default)]
pub(super) struct EndSignal {
    is_given: Cell<bool>,
    given: Notify,
}

impl EndSignal {
    pub(super) fn is_given(&self) -> bool {
        self.is_given.get()
    }

    fn give(&self) {
        self.is_given.set(true);
        self.given.notify_waiters();
    }

    /// The output of `work`, or `None` if the signal is given before it is ready.
    async fn unless_given<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut given) = (pin!(work), pin!(self.given.notified()));
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            // `given` is polled before `is_given` is read. If `give` has run before, the read sees it. If it runs
            // later, `given` wakes this future.
            let is_over = given.as_mut().poll(context).is_ready() || self.is_given();
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

impl JobsContext {
    /// Ends the server, because the store has failed.
    pub(super) fn fail(&self, error: store::Error) {
        // The first failure counts, so a later one may find no receiver.
        let _later = self.failed.send(error);
    }

    /// Stops reading requests: each request ends with the bytes that have come.
    pub(super) fn close(&self) {
        self.closing.give();
    }

    /// Ends the conversations now. A conversation that waits for the committer gets its answer and gives the lease in
    /// it back. Leases that are not submitted yet are withdrawn.
    pub(super) fn cut_short(&self) {
        self.over.is_given.set(true);
        self.responder.withdraw_leases();
        self.responder.submit_burst();
        self.over.given.notify_waiters();
    }

    /// Ready when the server has stopped reading requests.
    pub(super) async fn until_closed(&self) {
        self.closing.unless_given(pending::<Infallible>()).await;
    }

    /// The output of `work`, or `None` if conversations are cut short before it is ready.
    pub(super) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.over.unless_given(work).await
    }
}
