//! The state that all conversations share, and the signals that end them.
//!
//! This module does not know the exchange with one client (`conversation`).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::pace::{Paces, RoomKind};
use super::responder::JobResponder;
use super::timing::JobTimer;
use super::wire::AckWording;
use crate::clock::Clock;
use crate::limits::WAITERS_MAX;
use crate::net::tcp::{FailureSender, unless};
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
    pub(super) responder: Rc<JobResponder>,
    pub(super) family: Family,
    pub(super) settings: JobsConfig,
    /// The users that may ask. None: any client may.
    pub(super) users: Option<Users>,
    pub(super) clock: Clock,
    pub(super) rooms: JobRooms,
    /// Says which conversations lose their places while others wait.
    pub(super) paces: Rc<Paces>,
    /// When the server stops, a request ends with the bytes that have come. Leases whose replies were not sent go back.
    pub(super) ends: ServiceEnds,
    /// Counts and times the requests.
    pub(super) timer: JobTimer,
    /// Buffer for discarded bytes.
    pub(super) scrap: RefCell<Vec<u8>>,
}

/// A connection may wait in so many queues whatever the others do.
const WAITS_OF_FEW: usize = 4;
/// A place of a connection that waits, until this is dropped.
pub(super) struct WaitingPlace<'r> {
    _of_many: Option<SemaphorePermit<'r>>,
}

/// The room that conversations share.
pub(super) struct JobRooms {
    /// Bytes that requests may take beyond their first buffers.
    coming: Semaphore,
    /// Bytes that large replies may take.
    going: Semaphore,
    /// The places of the conversations that wait for a job of many queues, one in each queue.
    waiting: Semaphore,
}

impl JobRooms {
    /// So many bytes for requests, and as many for replies.
    pub(super) fn new(bytes: usize) -> Self {
        let waiting = Semaphore::new(WAITERS_MAX);
        Self { coming: Semaphore::new(bytes), going: Semaphore::new(bytes), waiting }
    }

    /// A place to wait in so many queues, if there is one. There always is in a few: every connection has room for those.
    pub(super) fn place_to_wait(&self, queues: usize) -> Option<WaitingPlace<'_>> {
        if queues <= WAITS_OF_FEW {
            return Some(WaitingPlace { _of_many: None });
        }
        let places = u32::try_from(queues).unwrap_or(u32::MAX);
        self.waiting.try_acquire_many(places).ok().map(|place| WaitingPlace { _of_many: Some(place) })
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

    pub(super) fn give(&self) {
        self.is_given.set(true);
        self.given.notify_waiters();
    }

    /// Ready when the signal is given.
    async fn given(&self) {
        // It waits for the signal from here on. If `give` has run before, the read sees it.
        let given = self.given.notified();
        if !self.is_given() {
            given.await;
        }
    }
}

/// How the conversations of a service end.
pub(super) struct ServiceEnds {
    /// The server has stopped reading requests.
    pub(super) closing: EndSignal,
    /// Conversations end without waiting for their clients.
    pub(super) over: EndSignal,
    /// Reports to the frontend that the store has failed.
    pub(super) failed: FailureSender,
}

impl ServiceEnds {
    pub(super) fn new(failed: FailureSender) -> Self {
        Self { closing: EndSignal::default(), over: EndSignal::default(), failed }
    }

    /// Ends the server, because the store has failed.
    pub(super) fn fail(&self, error: store::Error) {
        // The first failure counts, so a later one may find no receiver.
        let _later = self.failed.send(error);
    }

    /// Ready when the server has stopped reading requests.
    pub(super) async fn until_closed(&self) {
        self.closing.given().await;
    }

    /// The output of `work`, or `None` if conversations are cut short before it is ready.
    pub(super) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        unless(work, self.over.given()).await
    }
}

impl JobsContext {
    /// Ends the conversations now. A conversation that waits for the committer gets its answer and gives the lease in
    /// it back. Leases that are not submitted yet are withdrawn.
    pub(super) fn cut_short(&self) {
        self.ends.over.give();
        self.responder.withdraw_leases();
        self.responder.submit_burst();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some hundred connections that waited in many queues had all places of the server.
    #[test]
    fn a_connection_that_waits_in_few_queues_has_a_place_whatever_the_others_do() {
        let rooms = JobRooms::new(0);
        let many: Vec<_> = std::iter::from_fn(|| rooms.place_to_wait(1 << 10)).collect();
        assert_eq!(many.len(), WAITERS_MAX >> 10);
        let few: Vec<_> = (0..100_000).map_while(|_| rooms.place_to_wait(WAITS_OF_FEW)).collect();
        assert_eq!(few.len(), 100_000);
        drop(many);
        assert!(rooms.place_to_wait(1 << 10).is_some());
    }
}
