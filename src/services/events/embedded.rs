//! Events in the server's own store: each event is a task, and the id of the event is the key and the number of the
//! task.
//!
//! ```text
//! create ─► a task that is dropped with its value         GET: dropped ─► its value
//! defer  ─► a ready task, value empty ─► Lend ─► Drop          otherwise ─► null
//!
//! request ─► burst ─► submit_bursts ═► committer ═► WakingSender ─► receive_delivery ─► the request
//! ```
//! All requests of a round of the runtime are one burst, and so one batch and one sync. A client that disconnects takes
//! nothing back: the committer executes its request, and the answer is dropped.
//!
//! This module does not work pending events off, and does not commit the queue (`tasks`).

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::error::EventStoreError;
use crate::limits::{EVENTS_WAITING_MAX, STORE_ANSWER_MAX, SUBMIT_MAX};
use crate::lock::Mutex;
use crate::net::tcp::{Answer, FailureSender, PendingAnswers, RoomSignal, read_value};
use crate::store::{self, Value};
use crate::tasks::{Delivery, Outcome, QueueName, Request, Submission, Tasks, Ticket};

/// The queue of the events, and the sink for its answers.
pub(super) struct EventQueue {
    pub(super) tasks: Tasks,
    pub(super) queue: QueueName,
    pub(super) sink: usize,
    /// Notified when the committer has room again.
    pub(super) room: RoomSignal,
}

/// A handle to the store. It is cheap to clone, and clones share the store.
#[derive(Clone)]
pub(super) struct Embedded(Arc<EventResponder>);

struct EventResponder {
    queue: EventQueue,
    waiting: Mutex<PendingAnswers>,
    /// The requests to submit next.
    burst: Mutex<Vec<Submission>>,
    /// Notified when there is a burst.
    burst_ready: Notify,
    /// Reports to the frontend that the store has failed.
    failed: FailureSender,
}

impl Embedded {
    pub(super) fn new(queue: EventQueue, failed: FailureSender) -> Self {
        let (waiting, burst, burst_ready) = (Mutex::default(), Mutex::default(), Notify::new());
        Self(Arc::new(EventResponder { queue, waiting, burst, burst_ready, failed }))
    }

    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, EventStoreError> {
        let dropped = value.is_some();
        let value = Value::from(value.unwrap_or_default().as_bytes());
        match self.submit(Request::Append { value, dropped }).await?.outcome {
            Outcome::Added(id) => Ok(id),
            Outcome::NoRoom { .. } => Err(no_room()),
            _ => Err(EventStoreError(
                "the queue of the events has tasks that are no events: start with another --data".into(),
            )),
        }
    }

    pub(super) async fn count(&self) -> Result<u64, EventStoreError> {
        Ok(self.submit(Request::CountAll).await?.outcome.counted())
    }

    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, EventStoreError> {
        let key = id.to_string().into_bytes().into();
        let Answer { outcome, before } = self.submit(Request::LookDropped { key }).await?;
        if outcome.is_refused() {
            return Ok(None);
        }
        let Some(payload) = outcome.payload() else { return Ok(Some(None)) };
        let value = read_value(&self.0.queue.tasks, payload, before.as_ref()).await.map_err(|error| match error {
            lost if lost.loses_one_value() => {
                EventStoreError("the value of this event is lost: the device has changed it".to_owned())
            }
            unread if unread.may_pass() => EventStoreError(unread.to_string()),
            error => self.fail(error),
        })?;
        Ok(Some(Some(String::from_utf8_lossy(&value).into_owned())))
    }

    pub(super) async fn check(&self) -> Result<(), EventStoreError> {
        self.0.queue.tasks.check().map_err(|error| EventStoreError(error.to_string()))?;
        let turn = timeout(STORE_ANSWER_MAX, self.submit(Request::Nothing)).await;
        turn.map_err(|_| EventStoreError(format!("the store has not answered for {} s", STORE_ANSWER_MAX.as_secs())))??;
        if self.0.queue.tasks.metrics().store().refuses_adds { Err(no_room()) } else { Ok(()) }
    }

    /// Submits a request, and waits for its answer. Err: too many requests wait already, those of disconnected clients
    /// included, or the committer has failed and the process is about to end.
    async fn submit(&self, request: Request) -> Result<Answer, EventStoreError> {
        let EventQueue { queue, sink, .. } = &self.0.queue;
        let (number, answer) = {
            let mut waiting = self.0.waiting.lock();
            if waiting.len() >= EVENTS_WAITING_MAX {
                return Err(EventStoreError("too many requests wait for the store: ask again later".to_owned()));
            }
            waiting.add()
        };
        let ticket = Ticket { sink: *sink, number };
        self.0.burst.lock().push(Submission { queue: queue.clone(), ticket, request });
        self.0.burst_ready.notify_one();
        answer.await.map_err(|_| gone())
    }

    fn fail(&self, error: store::Error) -> EventStoreError {
        let reported = EventStoreError(error.to_string());
        // The send fails if the server is ending already.
        let _ending = self.0.failed.send(error);
        reported
    }

    /// Submits each burst to the committer, for ever. This thread never commits a burst itself, so it answers health
    /// checks also while the disk is stuck.
    pub(super) async fn submit_bursts(self) {
        let EventQueue { tasks, sink, room, .. } = &self.0.queue;
        loop {
            self.0.burst_ready.notified().await;
            room.wait(tasks, *sink).await;
            let mut burst = std::mem::take(&mut *self.0.burst.lock());
            while !burst.is_empty() {
                let rest = burst.split_off(burst.len().min(SUBMIT_MAX));
                tasks.submit(std::mem::replace(&mut burst, rest));
            }
        }
    }

    /// Hands answers to the requests that wait for them.
    pub(super) fn receive_delivery(&self, delivery: Delivery) {
        self.0.waiting.lock().receive_delivery(delivery);
    }
}

fn no_room() -> EventStoreError {
    EventStoreError("the disk has no room for more events: ask again later".to_owned())
}

fn gone() -> EventStoreError {
    EventStoreError("the store has failed, and the server ends".to_owned())
}
