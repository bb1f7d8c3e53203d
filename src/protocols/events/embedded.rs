//! Events in the server's own store: each is a task, whose key is its id and whose number is too.
//!
//! ```text
//! create ─► a task that is dropped with its value        GET: dropped ─► its value
//! defer  ─► a ready task, value empty ─► Lend ─► Drop          otherwise ─► null
//!
//! request ─► burst ─► hand_over ═► committer ═► Mailbox ─► hand_out ─► the request that waits
//! ```
//! All that is asked before the runtime has been round is one burst, and so one batch and one sync. A client that goes away takes
//! nothing back: what it has asked is done, and nobody hears of it.
//!
//! What is not here: who works off the pending ones, and how the queue is committed (`tasks`).

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{sleep, timeout};

use super::store::EventStoreError;
use crate::limits::{ASK_BURST, EVENT_SWEEP, EVENTS_WAITING_MAX, STORE_ANSWER_MAX};
use crate::protocols::tcp::{Answer, PendingAnswers, RoomSignal, ServeEnd};
use crate::store::{self, Value};
use crate::tasks::{Delivery, Outcome, QueueId, Request, Submission, Tasks, Ticket};

/// Where the queue is, and which face asks.
pub(super) struct EventQueue {
    pub(super) tasks: Tasks,
    pub(super) queue: QueueId,
    pub(super) sink: usize,
    /// Rung when the committer has room for it again.
    pub(super) room: RoomSignal,
}

/// The store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub(super) struct Embedded(Arc<EventResponder>);

struct EventResponder {
    place: EventQueue,
    waiting: Mutex<PendingAnswers>,
    /// What is to be asked next.
    burst: Mutex<Vec<Submission>>,
    /// Rung when there is a burst.
    bell: Notify,
    /// Hears that the store has failed.
    ending: UnboundedSender<ServeEnd>,
}

impl Embedded {
    pub(super) fn new(place: EventQueue, ending: UnboundedSender<ServeEnd>) -> Self {
        let (waiting, burst, bell) = (Mutex::default(), Mutex::default(), Notify::new());
        Self(Arc::new(EventResponder { place, waiting, burst, bell, ending }))
    }

    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, EventStoreError> {
        let dropped = value.is_some();
        let value = Value::from(value.unwrap_or_default().as_bytes());
        match self.ask(Request::Append { value, dropped }).await?.outcome {
            Outcome::Added(id) => Ok(id),
            _ => Err(EventStoreError(
                "the queue of the events has tasks that are no events: start with another --data".into(),
            )),
        }
    }

    pub(super) async fn count(&self) -> Result<u64, EventStoreError> {
        match self.ask(Request::CountAll).await?.outcome {
            Outcome::Counted(count) => Ok(count),
            _ => Err(gone()),
        }
    }

    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, EventStoreError> {
        let key = id.to_string().into_bytes().into();
        let Answer { outcome, before } = self.ask(Request::LookDropped { key }).await?;
        Ok(match outcome {
            Outcome::Found(payload) => {
                let value = payload.read(before.as_deref()).map_err(|error| self.fail(error))?;
                Some(Some(String::from_utf8_lossy(&value).into_owned()))
            }
            Outcome::Present => Some(None),
            _ => None,
        })
    }

    pub(super) async fn check(&self) -> Result<(), EventStoreError> {
        self.0.place.tasks.check().map_err(|error| EventStoreError(error.to_string()))?;
        let turn = timeout(STORE_ANSWER_MAX, self.ask(Request::Nothing)).await;
        turn.map_err(|_| EventStoreError(format!("the store has not answered for {} s", STORE_ANSWER_MAX.as_secs())))?
            .map(drop)
    }

    /// Asks, and waits for the answer. Err: too much waits already, also of clients that have gone meanwhile; or the committer has failed,
    /// and the process is about to end.
    async fn ask(&self, request: Request) -> Result<Answer, EventStoreError> {
        let EventQueue { queue, sink, .. } = self.0.place;
        let (number, answer) = {
            let mut waiting = lock(&self.0.waiting);
            if waiting.len() >= EVENTS_WAITING_MAX {
                return Err(EventStoreError("too many requests wait for the store: ask again later".to_owned()));
            }
            waiting.add()
        };
        lock(&self.0.burst).push(Submission { queue, ticket: Ticket { sink, number }, request });
        self.0.bell.notify_one();
        answer.await.map_err(|_| gone())
    }

    fn fail(&self, error: store::Error) -> EventStoreError {
        let trouble = EventStoreError(error.to_string());
        // It fails when the server ends already.
        let _ending = self.0.ending.send(Err(error));
        trouble
    }

    /// Hands over each burst, for ever. Nothing is committed here: whoever asks how it stands is answered also while the disk is not.
    pub(super) async fn hand_over(self) {
        let EventQueue { tasks, sink, room, .. } = &self.0.place;
        loop {
            self.0.bell.notified().await;
            room.wait(tasks, *sink).await;
            let mut burst = std::mem::take(&mut *lock(&self.0.burst));
            while !burst.is_empty() {
                let rest = burst.split_off(burst.len().min(ASK_BURST));
                tasks.ask(std::mem::replace(&mut burst, rest));
            }
        }
    }

    /// Hands out answers, until nobody is left to give any.
    pub(super) async fn hand_out(self, mut deliveries: UnboundedReceiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            lock(&self.0.waiting).hear(delivery);
        }
    }

    /// Looks now and then whether answers can still come.
    pub(super) async fn watch(self) {
        loop {
            sleep(EVENT_SWEEP).await;
            if let Err(error) = self.0.place.tasks.check() {
                drop(self.fail(error));
            }
        }
    }
}

fn gone() -> EventStoreError {
    EventStoreError("the store has failed, and the server ends".to_owned())
}

/// A thread that panics ends the process: nobody sees what it has left.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it has this")
}
