//! Between the conversations and the committer: what they ask goes over together, what is answered comes back to who asked.
//!
//! ```text
//! conversation: ask ─► burst ─► ask_bursts ═► committer ═► Mailbox ─► hand_out ─► the conversation that waits
//!                                    └─ a small one, with nothing else to do: commit ─┘
//! ```
//! All that conversations ask before the runtime has been round is one burst. While the committer has too much to do a burst is kept
//! until it has [`ASK_BURST_BYTES`]; then it is handed over all the same, and the thread waits for the committer with it.
//!
//! What is not here: what is asked, and what becomes of an answer.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, wall_millis};
use crate::limits::{ASK_BURST, ASK_BURST_BYTES, JOBS_NOW_MAX};
use crate::protocols::tcp::{Answer, PendingAnswers, RoomSignal};
use crate::store;
use crate::tasks::{Delivery, QueueName, Request, SlowDiskBackoff, Submission, Tasks, Ticket};

/// Who waits for which answer.
pub(super) struct JobResponder {
    tasks: Tasks,
    sink: usize,
    room: RoomSignal,
    waiting: RefCell<PendingAnswers>,
    /// What is to be asked next, and how many bytes that has.
    burst: RefCell<Vec<Submission<QueueName>>>,
    burst_bytes: Cell<usize>,
    clock: Clock,
    brake: Cell<SlowDiskBackoff>,
    /// Rung when there is a burst.
    bell: Notify,
}

impl JobResponder {
    pub(super) fn new(tasks: Tasks, sink: usize, room: RoomSignal) -> Self {
        let (waiting, burst, burst_bytes) = (RefCell::default(), RefCell::default(), Cell::default());
        let (clock, brake) = (Clock::start(), Cell::default());
        Self { tasks, sink, room, waiting, burst, burst_bytes, clock, brake, bell: Notify::new() }
    }

    /// The handle that asks.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Asks what came as so many bytes, and waits for the answer. None: the committer has failed, and the process is about to end.
    pub(super) async fn ask(&self, queue: QueueName, request: Request, bytes: usize) -> Option<Answer> {
        let (number, answer) = self.waiting.borrow_mut().add();
        self.put(number, queue, request);
        self.burst_bytes.set(self.burst_bytes.get() + bytes);
        if self.burst_bytes.get() > ASK_BURST_BYTES {
            self.hand_over_now();
        }
        answer.await.ok()
    }

    /// Takes back a lease of which nobody has heard.
    pub(super) fn take_back(&self, queue: QueueName, token: u64, key: Box<[u8]>) {
        self.put(PendingAnswers::NOBODY, queue, Request::Undo { token, key });
    }

    /// Leases that the committer has not been asked for yet are not asked for any more: who wanted them hears nothing.
    pub(super) fn withdraw_leases(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let wanted = self
            .burst
            .borrow_mut()
            .extract_if(.., |ask| matches!(ask.request, Request::Lease { .. }))
            .collect::<Vec<_>>();
        wanted.into_iter().for_each(|ask| waiting.forget(ask.ticket.number));
    }

    /// How many requests the committer is to be asked next.
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

    /// Asks each burst, until the store fails. A small one is committed at once if nothing else is to do.
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

    /// Hands over what is there.
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

    /// Hands out answers, until nobody is left to give any.
    pub(super) async fn hand_out(&self, mut deliveries: UnboundedReceiver<Delivery>) {
        while let Some(delivery) = deliveries.recv().await {
            self.waiting.borrow_mut().hear(delivery);
        }
    }
}
