//! Submits the requests of the conversations to the committer in bursts, and hands each answer to the conversation that
//! waits for it.
//!
//! ```text
//! conversation: submit ─► burst ─► submit_bursts ═► committer ═► WakingSender ─► receive_delivery ─► the conversation
//!                                       └─ a small burst, the committer idle: try_commit ──────────┘
//! ```
//! All requests that conversations submit in one round of the runtime are one burst. While the committer has no room,
//! the burst grows up to [`SUBMIT_BYTES_MAX`]. A larger burst is submitted all the same. Conversations have their turn
//! between two portions of it.
//!
//! Connections that end give back their jobs in portions. Together they have at most [`UNDO_MAX`] such requests at the
//! committer. Further portions wait, first come, first served.
//!
//! Large requests have at most [`TASKS_WINDOW_BYTES`] at the committer together. Further ones wait, first come, first served,
//! and small ones come in between.
//!
//! This module does not know the meaning of requests and answers.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio::task::{spawn_local, yield_now};

use crate::clock::Clock;
use crate::limits::{
    JOB_DATA_BYTES_MAX, JOBS_TRY_COMMIT_MAX, SUBMIT_BYTES_MAX, SUBMIT_MAX, TASKS_OWN_BYTES, TASKS_WINDOW_BYTES,
    UNDO_MAX,
};
use crate::net::tcp::{Answer, AnswerReceiver, Burst, FailureSender, PendingAnswers, RoomSignal, unless, watch_store};
use crate::store;
use crate::tasks::{CommitAttempt, Delivery, QueueName, Request, Submission, Tasks, Ticket};

const _: () = assert!(2 * JOB_DATA_BYTES_MAX <= TASKS_WINDOW_BYTES);

/// Small requests that wait to be submitted, while the committer has no room.
const CROWD: usize = 64 * SUBMIT_MAX;

/// Requests that a connection that ends submits at once: others take turns with it.
pub(super) const LAST_MAX: usize = UNDO_MAX / 4;

/// The requests that wait for an answer, and the burst to submit next.
pub(super) struct JobResponder {
    tasks: Tasks,
    sink: usize,
    room: RoomSignal,
    waiting: RefCell<PendingAnswers>,
    /// The requests to submit next.
    burst: RefCell<Burst>,
    /// Bytes of large requests that may still be submitted.
    window: Semaphore,
    /// Requests of connections that end which may still be submitted.
    last: Semaphore,
    clock: Clock,
    /// Notified when a burst begins.
    burst_ready: Notify,
    /// Notified when a burst is submitted.
    relieved: Notify,
}

/// A request that was submitted.
pub(super) struct StartedRequest {
    /// For [`JobResponder::withdraw`].
    pub(super) number: u64,
    /// An error: as `None` of [`JobResponder::submit`].
    pub(super) answer: oneshot::Receiver<Answer>,
}

impl JobResponder {
    pub(super) fn new(tasks: Tasks, sink: usize, room: RoomSignal, clock: Clock) -> Self {
        let (waiting, burst) = (RefCell::default(), RefCell::default());
        let (window, last) = (Semaphore::new(TASKS_WINDOW_BYTES), Semaphore::new(UNDO_MAX));
        Self {
            tasks,
            sink,
            room,
            waiting,
            burst,
            window,
            last,
            clock,
            burst_ready: Notify::new(),
            relieved: Notify::new(),
        }
    }

    /// The handle to the tasks.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Submits a request that came as `bytes` bytes, and waits for its answer. A large one first waits for its place in
    /// the window. None: the lease was withdrawn, or the committer has failed and the process is about to end.
    pub(super) async fn submit(&self, queue: QueueName, request: Request, bytes: usize) -> Option<Answer> {
        let _place = self.place(bytes).await;
        let (number, answer) = self.waiting.borrow_mut().add();
        self.put(number, queue, request, bytes);
        if self.burst.borrow().bytes() > SUBMIT_BYTES_MAX {
            self.submit_burst();
        }
        answer.await.ok()
    }

    /// Submits a request that may wait, and waits for its answer, at most until `ended` is ready: then the request is
    /// withdrawn, and answered. None: as in [`JobResponder::submit`].
    pub(super) async fn submit_until(
        &self,
        queue: QueueName,
        request: Request,
        ended: impl Future<Output = ()>,
    ) -> Option<Answer> {
        let StartedRequest { number, answer } = self.start(queue.clone(), request);
        let mut answer = pin!(answer);
        if let Some(answer) = unless(answer.as_mut(), ended).await {
            return answer.ok();
        }
        self.withdraw(queue, number);
        answer.await.ok()
    }

    /// Submits a small request in the next burst.
    pub(super) fn start(&self, queue: QueueName, request: Request) -> StartedRequest {
        let (number, answer) = self.waiting.borrow_mut().add();
        self.put(number, queue, request, 0);
        StartedRequest { number, answer }
    }

    /// Withdraws a request that may wait. It is answered all the same.
    pub(super) fn withdraw(&self, queue: QueueName, number: u64) {
        self.put(PendingAnswers::NOBODY, queue, Request::Withdraw { tickets: vec![number] }, 0);
    }

    /// Submits a request whose answer nobody waits for.
    pub(super) fn submit_unasked(&self, queue: QueueName, request: Request) {
        self.put(PendingAnswers::NOBODY, queue, request, 0);
    }

    /// Submits the next requests of a connection that ends, at most [`LAST_MAX`], and waits until they are answered. False:
    /// as `None` of [`JobResponder::submit`].
    pub(super) async fn submit_last(&self, mut requests: Vec<(QueueName, Request)>) -> bool {
        let count = u32::try_from(requests.len().min(UNDO_MAX)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _turn = self.last.acquire_many(count).await.ok();
        let Some((queue, request)) = requests.pop() else { return true };
        requests.into_iter().for_each(|(queue, request)| self.submit_unasked(queue, request));
        // The last one is answered after all others.
        self.start(queue, request).answer.await.is_ok()
    }

    /// Starts the exchange with the committer, for ever. A failure of the store is reported.
    pub(super) fn start_exchange(self: &Rc<Self>, answers: AnswerReceiver, failed: &FailureSender) {
        let responder = Rc::clone(self);
        spawn_local(answers.hand_out(move |delivery| responder.receive_delivery(delivery)));
        spawn_local(watch_store(self.tasks.clone(), failed.clone()));
        let (responder, failed) = (Rc::clone(self), failed.clone());
        spawn_local(async move {
            let Err(error) = responder.submit_bursts().await;
            // The first failure counts, so a later one may find no receiver.
            let _later = failed.send(error);
        });
    }

    /// Waits for a place in the window, if the request needs one.
    async fn place(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        if bytes <= TASKS_OWN_BYTES {
            return None;
        }
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.window.acquire_many(permits).await.ok()
    }

    /// Takes back a lease whose reply was not sent.
    pub(super) fn take_back(&self, queue: QueueName, token: u64, key: Box<[u8]>) {
        self.submit_unasked(queue, Request::Undo { token, key });
    }

    /// Sets a job aside for a pause whose data could not be read.
    pub(super) fn set_unread(&self, queue: QueueName, token: u64, key: Box<[u8]>) {
        self.submit_unasked(queue, Request::SetUnread { token, key });
    }

    /// Withdraws the leases of the current burst: they are not submitted, and the conversations that wait for them get
    /// no answer.
    pub(super) fn withdraw_leases(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let withdrawn = self.burst.borrow_mut().extract(|submission| {
            matches!(submission.request, Request::Lease { .. } | Request::LeaseMany { .. })
                || matches!(submission.request, Request::ReserveNext { .. } | Request::Reserve { .. })
        });
        withdrawn.into_iter().for_each(|submission| waiting.forget(submission.ticket.number));
    }

    /// Whether so many requests wait to be submitted that nobody may add to them who can wait.
    pub(super) fn is_crowded(&self) -> bool {
        let burst = self.burst.borrow();
        burst.len() >= CROWD || burst.bytes() >= TASKS_WINDOW_BYTES
    }

    /// Waits until the burst has room.
    pub(super) async fn relief(&self) {
        while self.is_crowded() {
            self.relieved.notified().await;
        }
    }

    fn take_portion(&self) -> Vec<Submission> {
        let portion = self.burst.borrow_mut().take_portion();
        if !self.is_crowded() {
            self.relieved.notify_waiters();
        }
        portion
    }

    /// The number of requests in the burst.
    #[cfg(test)]
    pub(super) fn burst_len(&self) -> usize {
        self.burst.borrow().len()
    }

    /// Puts a request into the burst. It came as so many bytes, and may count for more.
    fn put(&self, number: u64, queue: QueueName, request: Request, bytes: usize) {
        let mut burst = self.burst.borrow_mut();
        if burst.is_empty() {
            self.burst_ready.notify_one();
        }
        let bytes = bytes.max(usize::try_from(request.bytes()).unwrap_or(usize::MAX));
        burst.push(Submission { queue, ticket: Ticket { sink: self.sink, number }, request }, bytes);
    }

    /// Commits or submits each burst, until the store fails. This thread commits a burst by itself if it has at most
    /// `JOBS_TRY_COMMIT_MAX` requests, the committer is idle and the disk is not slow.
    pub(super) async fn submit_bursts(&self) -> Result<Infallible, store::Error> {
        loop {
            if self.burst.borrow().is_empty() {
                self.burst_ready.notified().await;
            }
            self.room.wait(&self.tasks, self.sink).await;
            let is_small = self.burst.borrow().len() <= JOBS_TRY_COMMIT_MAX;
            let portion = self.take_portion();
            if portion.is_empty() {
                continue;
            }
            if !is_small {
                self.tasks.submit(portion);
                yield_now().await;
                continue;
            }
            match self.tasks.try_commit(self.sink, portion, || self.clock.reading())? {
                CommitAttempt::Committed(answers) => {
                    answers.into_iter().for_each(|delivery| self.waiting.borrow_mut().receive_delivery(delivery));
                }
                CommitAttempt::Busy(portion) => self.tasks.submit(portion),
            }
        }
    }

    /// Submits the burst to the committer.
    pub(super) fn submit_burst(&self) {
        while !self.burst.borrow().is_empty() {
            self.tasks.submit(self.take_portion());
        }
    }

    /// Hands answers to the conversations that wait for them.
    pub(super) fn receive_delivery(&self, delivery: Delivery) {
        self.waiting.borrow_mut().receive_delivery(delivery);
    }
}
