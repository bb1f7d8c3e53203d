//! Submitting requests: frontends hand them to the committer, or commit them themselves while it is idle.
//!
//! ```text
//! submit      ═► inbox ═► the committer's thread commits, and delivers the answers to the sinks
//! try_commit  ─► the committer is idle and the disk fast: the frontend's thread commits, and gets the answers back
//!            └─► otherwise the frontend gets its requests back, and submits them
//! ```
//! The committer is idle while every submitted request is answered and no commit is under way. A frontend may then
//! commit by itself, under the committer's lock: one thread commits at a time, and there is one order.
//!
//! When too much is waiting a frontend submits nothing more. The committer notifies it when to check again
//! ([`super::ReplySink::notify_room`]).
//!
//! The requests of one frontend are committed in its order, whether it submits or commits them itself. It commits only
//! when all its submitted requests are committed and their answers are delivered.
//!
//! A backup and a probe take the same lock, for one sync.
//!
//! This module does not commit a batch; see `state.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::channel::Sender;

use super::metrics::TaskMetrics;
use super::payload::{BROUGHT, found};
use super::room::{RoomWait, RoomWaiters};
use super::state::CommitterState;
use super::submission::{InboxMessage, Submission};
use super::{Delivery, Outcome, Payload, ReadOutcome};
use crate::clock::ClockReading;
use crate::limits::{INBOX_BYTES_MAX, INBOX_MAX};
use crate::lock::Mutex;
use crate::store::Value;
use crate::store::{AddsRefused, Error, ReadRequest, Readers, StoreBackup, StoreSnapshot, StoreWatch};

/// The longest wait of a backup or a probe for the lock before it checks the store.
const LOCK_CHECK: Duration = Duration::from_secs(5);

/// State shared by all handles and the committer.
pub(super) struct TasksShared {
    /// Bytes of requests that were submitted and are not yet stored. Increased by frontends, decreased by the
    /// committer.
    submitted_bytes: AtomicU64,
    /// Messages that were submitted and are not yet answered. Increased by frontends, decreased by the committer.
    submitted: AtomicU64,
    /// Whether frontends leave their commits to the committer, because the disk is slow. Written by the committing
    /// thread, read by frontends.
    is_disk_slow: AtomicBool,
    room: RoomWaiters,
    metrics: Arc<TaskMetrics>,
    watch: Arc<dyn StoreWatch>,
    readers: Readers,
}

impl TasksShared {
    pub(super) fn new(metrics: Arc<TaskMetrics>, watch: Arc<dyn StoreWatch>) -> Self {
        let room = RoomWaiters::new(Arc::clone(&metrics));
        let (submitted_bytes, submitted, is_disk_slow) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let readers = Readers::default();
        Self { submitted_bytes, submitted, is_disk_slow, room, metrics, watch, readers }
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

    /// Publishes whether the frontends leave their commits to the committer. Called by the committing thread,
    /// under its lock.
    pub(super) fn set_disk_slow(&self, is_slow: bool) {
        // Relaxed: advice that publishes no data.
        self.is_disk_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Calls `notify` for each sink that waits for room.
    pub(super) fn notify_room(&self, notify: impl FnMut(usize)) {
        self.room.notify(notify);
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
    /// Never blocks: the frontend asks [`Tasks::has_room`] before it takes more requests.
    pub fn submit(&self, requests: Vec<Submission>) {
        self.send(InboxMessage::Submitted(requests));
    }

    /// Commits requests of one sink in this thread, if the committer is idle and the disk is not slow, and returns the
    /// answers for the sink. Answers that were delivered to the sink before are older. `now` reads the clocks.
    ///
    /// # Errors
    /// [`Error`] if a batch cannot be stored. Requests without an answer may or may not be stored then, and no further
    /// request is answered.
    pub fn try_commit(
        &self,
        sink: usize,
        requests: Vec<Submission>,
        mut now: impl FnMut() -> ClockReading,
    ) -> Result<CommitAttempt, Error> {
        // Acquire: pairs with the Release in `done`. This thread always sees its own additions.
        // Relaxed: as in `set_disk_slow`.
        if self.shared.submitted.load(Ordering::Acquire) != 0 || self.shared.is_disk_slow.load(Ordering::Relaxed) {
            return Ok(CommitAttempt::Busy(requests));
        }
        let Some(mut core) = self.core.try_lock() else { return Ok(CommitAttempt::Busy(requests)) };
        let (start, written) = (now(), core.written());
        let (own, early) = core.commit_for(sink, requests, start)?;
        self.shared.set_disk_slow(core.note_commit(written, start, now()));
        if early {
            // A committer that has failed needs no waking.
            let _failed = self.sender.send(InboxMessage::Wake);
        }
        Ok(CommitAttempt::Committed(own))
    }

    /// Returns a backup of all that was answered before the call. The committer waits for its sync, and then continues.
    /// `None`: the store has failed, and the thread that got the error ends the process.
    ///
    /// # Errors
    /// [`Error`] if the sync fails, or the store does not answer. No further request is answered.
    pub fn backup(&self) -> Result<Option<Box<dyn StoreBackup>>, Error> {
        loop {
            match self.core.try_lock_for(LOCK_CHECK) {
                Some(mut core) => return core.backup(),
                None => self.check()?,
            }
        }
    }

    /// Checks that a change can be stored: writes a record and syncs it. The inner error is why the store takes no adds,
    /// and then nothing was written. `now` reads the clocks. `None`: the store has failed, and the thread that got the
    /// error ends the process.
    ///
    /// # Errors
    /// [`Error`] if the record cannot be stored, or the store does not answer. No further request is answered.
    pub fn probe(&self, mut now: impl FnMut() -> ClockReading) -> Result<Option<Result<(), AddsRefused>>, Error> {
        loop {
            let Some(mut core) = self.core.try_lock_for(LOCK_CHECK) else {
                self.check()?;
                continue;
            };
            let probed = core.probe(now())?;
            let wake = core.wake();
            if wake < core.sleeps_until {
                core.sleeps_until = wake;
                // A committer that has failed needs no waking.
                let _failed = self.sender.send(InboxMessage::Wake);
            }
            return Ok(probed);
        }
    }

    fn send(&self, message: InboxMessage) {
        // Relaxed: a bound that the submitting thread itself checks. It publishes no data.
        self.shared.submitted_bytes.fetch_add(message.bytes(), Ordering::Relaxed);
        // Relaxed: it orders only later requests of this same thread.
        self.shared.submitted.fetch_add(1, Ordering::Relaxed);
        // A committer that has failed answers no request.
        let _failed = self.sender.send(message);
    }

    /// Whether the inbox has room for requests of a sink. If not, the committer calls [`super::ReplySink::notify_room`]
    /// once when the frontend should check again.
    ///
    /// # Panics
    /// If `sink` is 64 or more.
    pub fn has_room(&self, sink: usize, wait: &mut RoomWait) -> bool {
        self.shared.room.has_room(sink, wait, || self.is_full())
    }

    /// A frontend calls this after its longest sleep without a wake-up. If it waits and there is room, the metrics count
    /// a lost wake-up.
    pub fn count_if_overslept(&self, wait: &RoomWait) {
        self.shared.room.count_if_overslept(wait, || self.is_full());
    }

    /// Whether so much is waiting that a frontend should wait for answers before it submits more.
    fn is_full(&self) -> bool {
        // Relaxed: as in `send`.
        self.shared.submitted_bytes.load(Ordering::Relaxed) > INBOX_BYTES_MAX || self.sender.len() > INBOX_MAX
    }

    /// Checks whether answers can still come. Called by a frontend that has been waiting for some.
    ///
    /// # Errors
    /// [`Error`] if the store has failed in a way that the committer cannot see.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Has the value of a task read, as it was in this snapshot. A thread of the store calls `done`, and waits for it.
    ///
    /// # Panics
    /// If the payload refers to the store and `before` is `None`.
    pub fn read(
        &self,
        payload: &Payload,
        before: Option<&Arc<dyn StoreSnapshot>>,
        done: impl FnOnce(Result<Value, Error>) + Send + 'static,
    ) {
        let key = match payload {
            Payload::Fresh(value) => return done(Ok(value.clone())),
            Payload::Stored(key) => *key,
        };
        let before = Arc::clone(before.expect(BROUGHT));
        let order = before.order(&key);
        let read = move || {
            let read = found(before.get(&key), &*before);
            // The bytes of the snapshot may go before the answer does.
            drop(before);
            done(read);
        };
        self.shared.readers.read(ReadRequest { order, read: Box::new(read) });
    }

    /// Has the values of an answer read, as they were in this snapshot. As [`Tasks::read`].
    ///
    /// # Panics
    /// If the answer refers to the store and `before` is `None`.
    pub fn read_all(
        &self,
        outcome: Outcome,
        before: Option<&Arc<dyn StoreSnapshot>>,
        done: impl FnOnce(Result<ReadOutcome, Error>) + Send + 'static,
    ) {
        let before = before.cloned();
        let order = outcome.order(before.as_deref());
        let read = move || {
            let read = outcome.read(before.as_deref());
            drop(before);
            done(read);
        };
        self.shared.readers.read(ReadRequest { order, read: Box::new(read) });
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
