//! Asking: what faces hand to the committer, or commit themselves while it has nothing to do.
//!
//! ```text
//! ask      ═► inbox ═► the committer's thread
//! ask_now  ─► nothing is handed over, and nobody commits: commit here, the answers are given back
//!         └─► otherwise as ask
//! ```
//! Where too much is waiting a face asks nothing more, and is told when there is room again ([`super::Face::go_on`]).
//!
//! Requests of a face are committed in the order in which it asks them: it commits itself only when all that it has handed over
//! is done, and has been delivered.
//!
//! What is not here: how a batch is committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::Sender;
use parking_lot::Mutex;

use super::committer::CommitterState;
use super::metrics::TaskMetrics;
use super::room::{RoomWait, RoomWaiters};
use super::{Delivery, QueueId, QueueName, Request, Ticket};
use crate::clock::Now;
use crate::limits::{ASKED_BYTES_MAX, ASKED_MAX, SLOW_COMMIT, SLOW_DISK_PAUSE};
use crate::store::{Error, StoreWatch};

/// What comes in.
pub(super) enum InboxMessage {
    /// Requests of one face, in their order.
    Asked(Vec<Submission>),
    /// The same, about queues of families.
    AskedNamed(Vec<Submission<QueueName>>),
    /// Nobody is to wait for a task from now on.
    Dismiss,
    /// There is something to do before the thread would wake.
    Wake,
}

impl InboxMessage {
    /// What it takes in memory while it waits, about.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Asked(asked) => asked.iter().map(|ask| ask.request.bytes()).sum(),
            Self::AskedNamed(asked) => asked.iter().map(|ask| ask.request.bytes()).sum(),
            Self::Dismiss | Self::Wake => 0,
        }
    }
}

/// A request, whose it is and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission<Q = QueueId> {
    /// The queue.
    pub queue: Q,
    /// Whom to answer.
    pub ticket: Ticket,
    /// What to do.
    pub request: Request,
}

/// What all handles share with the committer.
pub(super) struct TasksShared {
    /// Bytes of what was handed over and is not stored yet. Added to by who asks; taken from by the committer's thread.
    asked_bytes: AtomicU64,
    /// Messages that were handed over and are not answered. Written as `asked_bytes` is.
    handed_over: AtomicU64,
    room: RoomWaiters,
    metrics: Arc<TaskMetrics>,
    watch: Arc<dyn StoreWatch>,
}

impl TasksShared {
    pub(super) fn new(metrics: Arc<TaskMetrics>, watch: Arc<dyn StoreWatch>) -> Self {
        let room = RoomWaiters::new(Arc::clone(&metrics));
        Self { asked_bytes: AtomicU64::new(0), handed_over: AtomicU64::new(0), room, metrics, watch }
    }

    /// Whether the store still works, as far as another thread than that which commits can see.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.watch.check()
    }

    /// So much of what was handed over is answered.
    pub(super) fn done(&self, messages: u64, bytes: u64) {
        // Relaxed: as in `send`.
        self.asked_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // Release: pairs with the Acquire in `ask_now`, which then finds everything delivered.
        self.handed_over.fetch_sub(messages, Ordering::Release);
    }

    /// `tell` hears of each face that waits for room: it is worth another look.
    pub(super) fn tell(&self, tell: impl FnMut(usize)) {
        self.room.tell(tell);
    }
}

/// Keeps a face from committing itself for a while after that has taken long: on a slow disk it has to go on answering.
#[derive(Clone, Copy, Debug)]
pub struct SlowDiskBackoff {
    not_before: Now,
}

impl Default for SlowDiskBackoff {
    fn default() -> Self {
        Self { not_before: Now::from_nanos(0) }
    }
}

impl SlowDiskBackoff {
    /// Whether the face is to hand over what it asks.
    #[must_use]
    pub fn is_on(self, now: Now) -> bool {
        now < self.not_before
    }

    /// It has committed from `start` to `end`.
    pub fn note(&mut self, start: Now, end: Now) {
        if start.after(SLOW_COMMIT) < end {
            self.not_before = end.after(SLOW_DISK_PAUSE);
        }
    }
}

/// A handle to ask with. Cheap to clone. The committer ends when there is none left.
#[derive(Clone)]
pub struct Tasks {
    sender: Sender<InboxMessage>,
    shared: Arc<TasksShared>,
    core: Arc<Mutex<CommitterState>>,
}

impl Tasks {
    pub(super) fn new(
        sender: Sender<InboxMessage>,
        shared: Arc<TasksShared>,
        core: Arc<Mutex<CommitterState>>,
    ) -> Self {
        Self { sender, shared, core }
    }

    /// Asks; the faces of the tickets hear the answers, unless the store has failed. Waits while too much is waiting.
    pub fn ask(&self, asked: Vec<Submission>) {
        self.send(InboxMessage::Asked(asked));
    }

    /// As [`Tasks::ask`], about queues of families.
    pub fn ask_named(&self, asked: Vec<Submission<QueueName>>) {
        self.send(InboxMessage::AskedNamed(asked));
    }

    /// Asks, all for one face; if nothing else is to do, this thread commits it, and gives back what is answered to the face. What
    /// was delivered to it before that is older. `now` in milliseconds of the wall clock.
    ///
    /// # Errors
    /// [`Error`] if something cannot be stored: whatever was not answered then may or may not be stored, and nothing is answered
    /// any more.
    pub fn ask_now(&self, sink: usize, asked: Vec<Submission>, now: u64) -> Result<Option<Delivery>, Error> {
        self.commit_or_send(sink, InboxMessage::Asked(asked), now)
    }

    /// As [`Tasks::ask_now`], about queues of families.
    ///
    /// # Errors
    /// As [`Tasks::ask_now`].
    pub fn ask_named_now(
        &self,
        sink: usize,
        asked: Vec<Submission<QueueName>>,
        now: u64,
    ) -> Result<Option<Delivery>, Error> {
        self.commit_or_send(sink, InboxMessage::AskedNamed(asked), now)
    }

    fn commit_or_send(&self, sink: usize, asked: InboxMessage, now: u64) -> Result<Option<Delivery>, Error> {
        // Acquire: pairs with the Release in `done`. What this thread has handed over itself it sees in any case.
        if self.shared.handed_over.load(Ordering::Acquire) == 0
            && let Some(mut core) = self.core.try_lock()
        {
            let (own, early) = core.commit_for(sink, asked, now)?;
            if early {
                // Full: then it is awake.
                let _awake = self.sender.try_send(InboxMessage::Wake);
            }
            return Ok(own);
        }
        self.send(asked);
        Ok(None)
    }

    fn send(&self, message: InboxMessage) {
        // Relaxed: a bound that is checked by who asks most; no data is published with it.
        self.shared.asked_bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        // Relaxed: what it keeps from being overtaken is what this same thread asks next.
        self.shared.handed_over.fetch_add(1, Ordering::Relaxed);
        // A committer that has failed answers nobody.
        let _failed = self.sender.send(message);
    }

    /// Whether there is room for what a face asks. If not, the face is told once when it is worth another look ([`super::ReplySink::go_on`]), and
    /// has none until then.
    ///
    /// # Panics
    /// If there are more than 64 faces.
    pub fn has_room(&self, sink: usize, wait: &mut RoomWait) -> bool {
        self.shared.room.has_room(sink, wait, || self.is_full())
    }

    /// A face has slept for as long as it may, and nothing has woken it: if it has been told meanwhile, that is counted as lost.
    pub fn has_overslept(&self, sink: usize, wait: &RoomWait) {
        self.shared.room.has_overslept(sink, wait);
    }

    /// Whether so much is waiting that who asks should wait for answers before it asks again.
    fn is_full(&self) -> bool {
        // Relaxed: as in `send`.
        self.shared.asked_bytes.load(Ordering::Relaxed) > ASKED_BYTES_MAX || self.sender.len() > ASKED_MAX / 2
    }

    /// Whether answers can still come. To be asked by a face that has been waiting for some.
    ///
    /// # Errors
    /// [`Error`] if the store has failed in a way that the committer cannot see.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Has all who wait for a task answered that there is none, and so all who will ask for one. For the end.
    pub fn dismiss(&self) {
        self.send(InboxMessage::Dismiss);
    }

    /// What there is to tell of the queues.
    #[must_use]
    pub fn metrics(&self) -> &Arc<TaskMetrics> {
        &self.shared.metrics
    }
}
