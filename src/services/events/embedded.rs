//! Events in the server's own store: each event is a task, and the id of the event is the key and the number of the
//! task.
//!
//! ```text
//! create ─► a task that is dropped with its value         GET: dropped ─► its value
//! defer  ─► a ready task, value empty ─► Lend ─► Drop          otherwise ─► null
//! ```
//! This module does not work pending events off, and does not commit the queue (`tasks`).

use tokio::time::timeout;

use super::error::EventStoreError;
use crate::limits::{EVENTS_WAITING_MAX, STORE_ANSWER_MAX};
use crate::net::tcp::{Answer, FailureSender, QueueRequests, RoomSignal, Unanswered, read_value};
use crate::store::{self, Value};
use crate::tasks::{Outcome, QueueName, Request, Tasks};

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
pub(super) struct Embedded {
    requests: QueueRequests,
    queue: QueueName,
    /// Reports to the frontend that the store has failed.
    failed: FailureSender,
}

impl Embedded {
    pub(super) fn new(EventQueue { tasks, queue, sink, room }: EventQueue, failed: FailureSender) -> Self {
        Self { requests: QueueRequests::new(tasks, sink, room, EVENTS_WAITING_MAX), queue, failed }
    }

    /// The requests that wait.
    pub(super) fn requests(&self) -> &QueueRequests {
        &self.requests
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
        let value = read_value(self.requests.tasks(), payload, before.as_ref()).await.map_err(|error| match error {
            lost if lost.loses_one_value() => {
                EventStoreError("the value of this event is lost: the device has changed it".to_owned())
            }
            unread if unread.may_pass() => EventStoreError(unread.to_string()),
            error => self.fail(error),
        })?;
        Ok(Some(Some(String::from_utf8_lossy(&value).into_owned())))
    }

    pub(super) async fn check(&self) -> Result<(), EventStoreError> {
        self.requests.tasks().check().map_err(|error| EventStoreError(error.to_string()))?;
        let turn = timeout(STORE_ANSWER_MAX, self.submit(Request::Nothing)).await;
        turn.map_err(|_| EventStoreError(format!("the store has not answered for {} s", STORE_ANSWER_MAX.as_secs())))??;
        if self.requests.tasks().metrics().store().refuses_adds { Err(no_room()) } else { Ok(()) }
    }

    async fn submit(&self, request: Request) -> Result<Answer, EventStoreError> {
        self.requests.submit(self.queue.clone(), request).await.map_err(|unanswered| match unanswered {
            Unanswered::Full => EventStoreError("too many requests wait for the store: ask again later".to_owned()),
            Unanswered::Gone => EventStoreError("the store has failed, and the server ends".to_owned()),
        })
    }

    fn fail(&self, error: store::Error) -> EventStoreError {
        let reported = EventStoreError(error.to_string());
        // The send fails if the server is ending already.
        let _ending = self.failed.send(error);
        reported
    }
}

fn no_room() -> EventStoreError {
    EventStoreError("the disk has no room for more events: ask again later".to_owned())
}
