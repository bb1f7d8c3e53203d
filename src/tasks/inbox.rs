//! Submitting requests: frontends hand them to the committer, or commit them themselves while it is idle.
//!
//! ```text
//! submit      ═► inbox ═► the committer's thread commits, and delivers the answers to the sinks
//! try_commit  ─► the committer is idle: the frontend's thread commits, and gets the answers back
//!            └─► otherwise the frontend gets its requests back, and submits them
//! ```
//! The committer is idle while every submitted request is answered and no commit is under way. A frontend may then
//! commit by itself, under the committer's lock: one thread commits at a time, and there is one order.
//!
//! When too much is waiting a frontend submits nothing more. The committer tells it when to check again
//! ([`super::ReplySink::go_on`]).
//!
//! The requests of one frontend are committed in the order in which it submits them or commits them itself: it commits
//! only when all requests that it submitted are committed and their answers are delivered.
//!
//! This module does not commit a batch; see `state.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::Sender;

use super::Delivery;
use super::metrics::TaskMetrics;
use super::room::{RoomWait, RoomWaiters};
use super::state::CommitterState;
use super::submission::{InboxMessage, Submission};
use crate::clock::{ClockReading, Now};
use crate::limits::{INBOX_BYTES_MAX, INBOX_MAX, SLOW_COMMIT, SLOW_DISK_PAUSE};
use crate::lock::Mutex;
use crate::store::{Error, StoreWatch};

/// State shared by all handles and the committer.
pub(super) struct TasksShared {
    /// Bytes of requests that were submitted and are not yet stored. Increased by frontends, decreased by the
    /// committer.
    submitted_bytes: AtomicU64,
    /// Messages that were submitted and are not yet answered. Increased by frontends, decreased by the committer.
    submitted: AtomicU64,
    room: RoomWaiters,
    metrics: Arc<TaskMetrics>,
    watch: Arc<dyn StoreWatch>,
}

impl TasksShared {
    pub(super) fn new(metrics: Arc<TaskMetrics>, watch: Arc<dyn StoreWatch>) -> Self {
        let room = RoomWaiters::new(Arc::clone(&metrics));
        Self { submitted_bytes: AtomicU64::new(0), submitted: AtomicU64::new(0), room, metrics, watch }
    }

    /// Checks whether the store still works, from a thread other than the committing one.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.watch.check()
    }

    /// Subtracts messages that are answered.
    pub(super) fn done(&self, messages: u64, bytes: u64) {
        // Relaxed: as in `send`.
        self.submitted_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // Release: pairs with the Acquire in `try_commit`. A thread that reads 0 there sees all deliveries.
        self.submitted.fetch_sub(messages, Ordering::Release);
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
    /// Whether the frontend leaves its commits to the committer at `now`.
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

/// The result of [`Tasks::try_commit`].
pub enum CommitAttempt {
    /// The requests are committed. The answers to the sink, if there are any by now.
    Committed(Option<Delivery>),
    /// The committer is not idle. The requests, to be submitted.
    Busy(Vec<Submission>),
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

    /// Submits requests to the committer. The sinks of the tickets receive the answers, unless the store has failed.
    /// Blocks while the inbox is full.
    pub fn submit(&self, requests: Vec<Submission>) {
        self.send(InboxMessage::Submitted(requests));
    }

    /// Commits requests of one sink in this thread, if the committer is idle, and returns the answers for the sink.
    /// Answers that were delivered to the sink before are older.
    ///
    /// # Errors
    /// [`Error`] if a batch cannot be stored. Requests without an answer may or may not be stored then, and no further
    /// request is answered.
    pub fn try_commit(
        &self,
        sink: usize,
        requests: Vec<Submission>,
        now: ClockReading,
    ) -> Result<CommitAttempt, Error> {
        // Acquire: pairs with the Release in `done`. This thread always sees its own additions.
        if self.shared.submitted.load(Ordering::Acquire) != 0 {
            return Ok(CommitAttempt::Busy(requests));
        }
        let Some(mut core) = self.core.try_lock() else { return Ok(CommitAttempt::Busy(requests)) };
        let (own, early) = core.commit_for(sink, requests, now)?;
        if early {
            // A full inbox keeps the committer awake.
            let _awake = self.sender.try_send(InboxMessage::Wake);
        }
        Ok(CommitAttempt::Committed(own))
    }

    fn send(&self, message: InboxMessage) {
        // Relaxed: a bound that the submitting thread itself checks. It publishes no data.
        self.shared.submitted_bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        // Relaxed: it orders only later requests of this same thread.
        self.shared.submitted.fetch_add(1, Ordering::Relaxed);
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
    pub fn count_if_overslept(&self, sink: usize, wait: &RoomWait) {
        self.shared.room.count_if_overslept(sink, wait);
    }

    /// Whether so much is waiting that a frontend should wait for answers before it submits more.
    fn is_full(&self) -> bool {
        // Relaxed: as in `send`.
        self.shared.submitted_bytes.load(Ordering::Relaxed) > INBOX_BYTES_MAX || self.sender.len() > INBOX_MAX / 2
    }

    /// Checks whether answers can still come. Called by a frontend that has been waiting for some.
    ///
    /// # Errors
    /// [`Error`] if the store has failed in a way that the committer cannot see.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Answers all waiting leases, and all later ones that would wait, [`super::Outcome::Refused`]. Called when the
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
