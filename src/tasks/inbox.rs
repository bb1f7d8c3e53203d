//! Submitting requests: frontends hand them to the committer, or commit them themselves while it is idle.
//!
//! ```text
//! ask      ═► inbox ═► the committer's thread
//! ask_now  ─► none handed over, and no commit under way: the caller commits and gets the answers back
//!         └─► otherwise as ask
//! ```
//! When too much is waiting a frontend submits nothing more. The committer tells it when to check again
//! ([`super::ReplySink::go_on`]).
//!
//! The requests of one frontend are committed in the order in which it submits them. It commits itself only when all
//! requests that it handed over are committed and their answers are delivered.
//!
//! This module does not commit a batch; see `state.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::Sender;
use parking_lot::Mutex;

use super::metrics::TaskMetrics;
use super::room::{RoomWait, RoomWaiters};
use super::state::CommitterState;
use super::submission::{InboxMessage, Submission};
use super::{Delivery, QueueName};
use crate::clock::Now;
use crate::limits::{ASKED_BYTES_MAX, ASKED_MAX, SLOW_COMMIT, SLOW_DISK_PAUSE};
use crate::store::{Error, StoreWatch};

/// State shared by all handles and the committer.
pub(super) struct TasksShared {
    /// Bytes of requests that were handed over and are not yet stored. Increased by frontends, decreased by the
    /// committer.
    asked_bytes: AtomicU64,
    /// Messages that were handed over and are not yet answered. Increased by frontends, decreased by the committer.
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

    /// Checks whether the store still works, from a thread other than the committing one.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.watch.check()
    }

    /// Subtracts messages that are answered.
    pub(super) fn done(&self, messages: u64, bytes: u64) {
        // Relaxed: as in `send`.
        self.asked_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // Release: pairs with the Acquire in `commit_or_send`. A thread that reads 0 there sees all deliveries.
        self.handed_over.fetch_sub(messages, Ordering::Release);
    }

    /// Calls `tell` for each sink that waits for room.
    pub(super) fn tell(&self, tell: impl FnMut(usize)) {
        self.room.tell(tell);
    }
}

/// Keeps a frontend from committing for [`SLOW_DISK_PAUSE`] after a slow commit, so that it goes on answering on a slow
/// disk.
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
    /// Whether the frontend hands over its requests at `now`.
    #[must_use]
    pub fn is_on(self, now: Now) -> bool {
        now < self.not_before
    }

    /// Records a commit of the frontend from `start` to `end`.
    pub fn note(&mut self, start: Now, end: Now) {
        if start.after(SLOW_COMMIT) < end {
            self.not_before = end.after(SLOW_DISK_PAUSE);
        }
    }
}

/// A handle for submitting requests. Cheap to clone. The committer ends when the last handle is gone.
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

    /// Submits requests. The sinks of the tickets receive the answers, unless the store has failed. Blocks while the
    /// inbox is full.
    pub fn ask(&self, asked: Vec<Submission>) {
        self.send(InboxMessage::Asked(asked));
    }

    /// As [`Tasks::ask`], about queues of families.
    pub fn ask_named(&self, asked: Vec<Submission<QueueName>>) {
        self.send(InboxMessage::AskedNamed(asked));
    }

    /// Submits requests of one sink. If the committer is idle, this thread commits them and gets the answers for the
    /// sink back. Answers that were delivered to the sink before are older. `now` is in milliseconds of the wall clock.
    ///
    /// # Errors
    /// [`Error`] if a batch cannot be stored. Requests without an answer may or may not be stored then, and no further
    /// request is answered.
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
        // Acquire: pairs with the Release in `done`. This thread always sees its own additions.
        if self.shared.handed_over.load(Ordering::Acquire) == 0
            && let Some(mut core) = self.core.try_lock()
        {
            let (own, early) = core.commit_for(sink, asked, now)?;
            if early {
                // A full inbox keeps the committer awake.
                let _awake = self.sender.try_send(InboxMessage::Wake);
            }
            return Ok(own);
        }
        self.send(asked);
        Ok(None)
    }

    fn send(&self, message: InboxMessage) {
        // Relaxed: a bound that the submitting thread itself checks. It publishes no data.
        self.shared.asked_bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        // Relaxed: it orders only later requests of this same thread.
        self.shared.handed_over.fetch_add(1, Ordering::Relaxed);
        // A committer that has failed answers no request.
        let _failed = self.sender.send(message);
    }

    /// Whether the inbox has room for requests of a sink. If not, the committer calls [`super::ReplySink::go_on`] once
    /// when the frontend should check again. Until then this returns false.
    ///
    /// # Panics
    /// If `sink` is 64 or more.
    pub fn has_room(&self, sink: usize, wait: &mut RoomWait) -> bool {
        self.shared.room.has_room(sink, wait, || self.is_full())
    }

    /// A frontend calls this after its longest sleep without a wake-up. If it was told meanwhile, the metrics count a
    /// lost wake-up.
    pub fn has_overslept(&self, sink: usize, wait: &RoomWait) {
        self.shared.room.has_overslept(sink, wait);
    }

    /// Whether so much is waiting that a frontend should wait for answers before it submits more.
    fn is_full(&self) -> bool {
        // Relaxed: as in `send`.
        self.shared.asked_bytes.load(Ordering::Relaxed) > ASKED_BYTES_MAX || self.sender.len() > ASKED_MAX / 2
    }

    /// Checks whether answers can still come. Called by a frontend that has been waiting for some.
    ///
    /// # Errors
    /// [`Error`] if the store has failed in a way that the committer cannot see.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Answers all waiting leases, and all later ones that would wait, [`super::Outcome::Empty`]. Called when the
    /// server stops.
    pub fn dismiss(&self) {
        self.send(InboxMessage::Dismiss);
    }

    /// The metrics of the queues and the committer.
    #[must_use]
    pub fn metrics(&self) -> &Arc<TaskMetrics> {
        &self.shared.metrics
    }
}
