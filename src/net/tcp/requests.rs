//! Requests of an HTTP service to the queues: gathered into bursts, and answered one by one.
//!
//! ```text
//! request ─► burst ─► submit_bursts ═► committer ═► AnswerReceiver ─► receive_delivery ─► the request
//! ```
//! All requests of a round of the runtime are one burst, and so one batch and one sync. A client that disconnects takes
//! nothing back: the committer carries out its request, and the answer is dropped.
//!
//! This module does not know the meaning of requests and answers.

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::{Answer, Burst, PendingAnswers, RoomSignal};
use crate::lock::Mutex;
use crate::store;
use crate::tasks::{Delivery, Outcome, QueueName, Request, Submission, Tasks, Ticket};

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Too many requests wait already, those of disconnected clients included.
    Full,
    /// The committer has failed, and the process is about to end.
    Gone,
}

/// The requests of a service. Cheap to clone, and clones are the same.
#[derive(Clone)]
pub(crate) struct QueueRequests(Arc<RequestState>);

struct RequestState {
    tasks: Tasks,
    sink: usize,
    room: RoomSignal,
    /// Requests that may wait for an answer.
    waiting_max: usize,
    waiting: Mutex<PendingAnswers>,
    /// The requests to submit next.
    burst: Mutex<Burst>,
    /// Notified when there is a burst.
    burst_ready: Notify,
}

impl QueueRequests {
    /// No request waits. Their answers come to this sink, and so many may wait at a time.
    pub(crate) fn new(tasks: Tasks, sink: usize, room: RoomSignal, waiting_max: usize) -> Self {
        let (waiting, burst, burst_ready) = (Mutex::default(), Mutex::default(), Notify::new());
        Self(Arc::new(RequestState { tasks, sink, room, waiting_max, waiting, burst, burst_ready }))
    }

    /// The handle to the tasks.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// Submits a request, and waits for its answer.
    pub(crate) async fn submit(&self, queue: QueueName, request: Request) -> Result<Answer, Unanswered> {
        let (number, answer) = {
            let mut waiting = self.0.waiting.lock();
            if waiting.len() >= self.0.waiting_max {
                return Err(Unanswered::Full);
            }
            waiting.add()
        };
        let ticket = Ticket { sink: self.0.sink, number };
        let bytes = usize::try_from(request.bytes()).unwrap_or(usize::MAX);
        self.0.burst.lock().push(Submission { queue, ticket, request }, bytes);
        self.0.burst_ready.notify_one();
        answer.await.map_err(|_| Unanswered::Gone)
    }

    /// Reads what an answer still has in the store.
    ///
    /// # Errors
    /// [`store::Error`] if the store has failed.
    pub(crate) async fn read(&self, Answer { outcome, before }: Answer) -> Result<Outcome, store::Error> {
        if !outcome.is_stored() {
            return Ok(outcome);
        }
        let (sender, read) = oneshot::channel();
        self.0.tasks.read_all(outcome, before.as_ref(), move |read| {
            // The send fails if the client has gone.
            let _gone = sender.send(read);
        });
        Ok(read.await.expect("a reader answers each request")?.outcome)
    }

    /// Submits each burst to the committer, for ever. This thread never commits a burst itself, so it answers health
    /// checks also while the disk is stuck.
    pub(crate) async fn submit_bursts(self) {
        let RequestState { tasks, sink, room, burst, burst_ready, .. } = &*self.0;
        loop {
            burst_ready.notified().await;
            loop {
                room.wait(tasks, *sink).await;
                let portion = burst.lock().take_portion();
                if portion.is_empty() {
                    break;
                }
                tasks.submit(portion);
            }
        }
    }

    /// Hands answers to the requests that wait for them.
    pub(crate) fn receive_delivery(&self, delivery: Delivery) {
        self.0.waiting.lock().receive_delivery(delivery);
    }
}
