//! Submits the requests of the conversations to the committer in bursts, and hands each answer to the conversation that
//! waits for it.
//!
//! ```text
//! conversation: ask ─► burst ─► ask_bursts ═► committer ═► TcpMailbox ─► hand_out ─► the conversation that waits
//!                                    └─ a small burst, and the committer is idle: commit ───┘
//! ```
//! All requests that conversations submit in one round of the runtime are one burst. While the committer has no room,
//! the burst grows up to [`ASK_BURST_BYTES`]. A larger burst is handed over all the same, and the thread waits with it
//! for the committer.
//!
//! This module does not know the meaning of requests and answers.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, wall_millis};
use crate::limits::{ASK_BURST, ASK_BURST_BYTES, JOBS_NOW_MAX};
use crate::protocols::tcp::{Answer, PendingAnswers, RoomSignal};
use crate::store;
use crate::tasks::{Delivery, QueueName, Request, SlowDiskBackoff, Submission, Tasks, Ticket};

/// The requests that wait for an answer, and the burst to submit next.
pub(super) struct JobResponder {
    tasks: Tasks,
    sink: usize,
    room: RoomSignal,
    waiting: RefCell<PendingAnswers>,
    /// The requests to submit next. `burst_bytes` is the sum of their bytes.
    burst: RefCell<Vec<Submission<QueueName>>>,
    burst_bytes: Cell<usize>,
    clock: Clock,
    brake: Cell<SlowDiskBackoff>,
    /// Notified when a burst begins.
    bell: Notify,
}

impl JobResponder {
    pub(super) fn new(tasks: Tasks, sink: usize, room: RoomSignal) -> Self {
        let (waiting, burst, burst_bytes) = (RefCell::default(), RefCell::default(), Cell::default());
        let (clock, brake) = (Clock::start(), Cell::default());
        Self { tasks, sink, room, waiting, burst, burst_bytes, clock, brake, bell: Notify::new() }
    }

    /// The handle to the tasks.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Submits a request that came as `bytes` bytes, and waits for its answer. None: the lease was withdrawn, or the
    /// committer has failed and the process is about to end.
    pub(super) async fn ask(&self, queue: QueueName, request: Request, bytes: usize) -> Option<Answer> {
        let (number, answer) = self.waiting.borrow_mut().add();
        self.put(number, queue, request);
        self.burst_bytes.set(self.burst_bytes.get() + bytes);
        if self.burst_bytes.get() > ASK_BURST_BYTES {
            self.hand_over_now();
        }
        answer.await.ok()
    }

    /// Takes back a lease whose reply was not sent.
    pub(super) fn take_back(&self, queue: QueueName, token: u64, key: Box<[u8]>) {
        self.put(PendingAnswers::NOBODY, queue, Request::Undo { token, key });
    }

    /// Withdraws the leases of the current burst: the committer is not asked for them, and the conversations that wait
    /// for them get no answer.
    pub(super) fn withdraw_leases(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let wanted = self
            .burst
            .borrow_mut()
            .extract_if(.., |ask| matches!(ask.request, Request::Lease { .. }))
            .collect::<Vec<_>>();
        wanted.into_iter().for_each(|ask| waiting.forget(ask.ticket.number));
    }

    /// The number of requests in the burst.
    #[cfg(test)]
    pub(super) fn waiting_to_be_asked(&self) -> usize {
        self.burst.borrow().len()
    }

    fn put(&self, number: u64, queue: QueueName, request: Request) {
        let mut burst = self.burst.borrow_mut();
        if burst.is_empty() {
            self.bell.notify_one();
        }
        burst.push(Submission { queue, ticket: Ticket { sink: self.sink, number }, request });
    }

    /// Submits each burst, until the store fails. If the burst has at most `JOBS_NOW_MAX` requests, the committer is
    /// idle and the disk is not slow, this thread commits the burst at once.
    pub(super) async fn ask_bursts(&self) -> Result<Infallible, store::Error> {
        loop {
            self.bell.notified().await;
            self.room.wait(&self.tasks, self.sink).await;
            let start = self.clock.now();
            if self.burst.borrow().len() > JOBS_NOW_MAX || self.brake.get().is_on(start) {
                self.hand_over_now();
                continue;
            }
            let burst = self.burst.take();
            self.burst_bytes.set(0);
            if !burst.is_empty()
                && let Some(delivery) = self.tasks.ask_named_now(self.sink, burst, wall_millis())?
            {
                self.waiting.borrow_mut().hear(delivery);
            }
            let mut brake = self.brake.get();
            brake.note(start, self.clock.now());
            self.brake.set(brake);
        }
    }

    /// Hands the burst over to the committer.
    pub(super) fn hand_over_now(&self) {
        let mut burst = self.burst.take();
        self.burst_bytes.set(0);
        while burst.len() > ASK_BURST {
            let rest = burst.split_off(ASK_BURST);
            self.tasks.ask_named(std::mem::replace(&mut burst, rest));
        }
        if !burst.is_empty() {
            self.tasks.ask_named(burst);
        }
    }

    /// Hands answers to the conversations, until the committer has dropped its sink.
    pub(super) async fn hand_out(&self, mut deliveries: UnboundedReceiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.waiting.borrow_mut().hear(delivery);
        }
    }
}
