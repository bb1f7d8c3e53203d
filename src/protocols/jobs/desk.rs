//! Between the conversations and the committer: what they ask goes over together, what is answered comes back to who asked.
//!
//! ```text
//! conversation: ask ─► burst ─► ask_bursts ═► committer ═► Mailbox ─► hand_out ─► the conversation that waits
//!                                    └─ a small one, with nothing else to do: commit ─┘
//! ```
//! All that conversations ask before the runtime has been round is one burst. While the committer has too much to do nothing is handed
//! over, and conversations wait with what they hold, which is bounded.
//!
//! What is not here: what is asked, and what becomes of an answer.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::clock::{Clock, Now, wall_millis};
use crate::limits::{ASK_BURST, ASK_BURST_BYTES, JOBS_NOW_MAX, SLOW_COMMIT, SLOW_DISK_PAUSE};
use crate::store::{self, Moment};
use crate::tasks::{Ask, Delivery, Face, Outcome, QueueName, Request, Tasks, Ticket};

/// The number of a ticket whose answer nobody hears.
const NOBODY: u64 = u64::MAX;
/// How often it is looked whether a committer with too much to do has done some of it.
const RETRY: Duration = Duration::from_millis(5);

/// The committer's end. There are never more answers in it than requests wait.
pub(super) struct Mailbox(pub(super) UnboundedSender<Delivery>);

impl Face for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        // The face outlives the committer; if it has failed, the process is about to end.
        let _failed = self.0.send(delivery);
    }
}

/// What is answered.
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// The store before the batch, if the answer refers to it.
    pub(super) before: Option<Arc<dyn Moment>>,
}

/// Who waits for which answer.
pub(super) struct Desk {
    tasks: Tasks,
    face: usize,
    /// By the number of the ticket.
    waiting: RefCell<Slab<oneshot::Sender<Answer>>>,
    /// What is to be asked next, and how many bytes that has.
    burst: RefCell<Vec<Ask<QueueName>>>,
    burst_bytes: Cell<usize>,
    clock: Clock,
    /// Until then nothing is committed here.
    not_before: Cell<Now>,
    /// Rung when there is a burst.
    bell: Notify,
}

impl Desk {
    pub(super) fn new(tasks: Tasks, face: usize) -> Self {
        let (waiting, burst, burst_bytes) = (RefCell::default(), RefCell::default(), Cell::default());
        let (clock, not_before) = (Clock::start(), Cell::new(Now::from_nanos(0)));
        Self { tasks, face, waiting, burst, burst_bytes, clock, not_before, bell: Notify::new() }
    }

    /// The handle that asks.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Asks what came as so many bytes, and waits for the answer. None: the committer has failed, and the process is about to end.
    pub(super) async fn ask(&self, queue: QueueName, request: Request, bytes: usize) -> Option<Answer> {
        let (sender, answer) = oneshot::channel();
        let number = self.waiting.borrow_mut().insert(sender) as u64;
        self.put(number, queue, request);
        self.burst_bytes.set(self.burst_bytes.get() + bytes);
        if self.burst_bytes.get() > ASK_BURST_BYTES {
            self.hand_over_now();
        }
        answer.await.ok()
    }

    /// Takes back a lease of which nobody has heard.
    pub(super) fn take_back(&self, queue: QueueName, token: u64, key: Box<[u8]>) {
        self.put(NOBODY, queue, Request::Undo { token, key });
    }

    fn put(&self, number: u64, queue: QueueName, request: Request) {
        let mut burst = self.burst.borrow_mut();
        if burst.is_empty() {
            self.bell.notify_one();
        }
        burst.push(Ask { queue, ticket: Ticket { face: self.face, number }, request });
    }

    /// Asks each burst, until the store fails. A small one is committed at once if nothing else is to do.
    pub(super) async fn ask_bursts(&self) -> Result<Infallible, store::Error> {
        loop {
            self.bell.notified().await;
            while self.tasks.is_full() {
                sleep(RETRY).await;
            }
            let start = self.clock.now();
            if self.burst.borrow().len() > JOBS_NOW_MAX || start < self.not_before.get() {
                self.hand_over_now();
                continue;
            }
            let burst = self.burst.take();
            self.burst_bytes.set(0);
            if !burst.is_empty()
                && let Some(delivery) = self.tasks.ask_named_now(self.face, burst, wall_millis())?
            {
                self.hear(delivery);
            }
            let end = self.clock.now();
            if start.after(SLOW_COMMIT) < end {
                self.not_before.set(end.after(SLOW_DISK_PAUSE));
            }
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
            self.hear(delivery);
        }
    }

    fn hear(&self, Delivery { answers, before }: Delivery) {
        let mut waiting = self.waiting.borrow_mut();
        for (number, outcome) in answers.into_iter().filter(|(number, _)| *number != NOBODY) {
            let number = usize::try_from(number).expect("a ticket is a place in the slab");
            let before = outcome.payload().and(before.clone());
            // Who has gone meanwhile hears nothing.
            let _gone = waiting.remove(number).send(Answer { outcome, before });
        }
    }
}
