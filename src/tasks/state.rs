//! The state of all queues with their store, and the commit of one batch: by the committer's thread, or by a frontend
//! while the committer is idle. One lock protects it.
//!
//! ```text
//! begin: lost values, expired leases ─► apply: requests change the engine ─► commit: store, sync ─► answers
//! ```
//! This module does not wait for requests; see `committer.rs`.

use std::sync::Arc;

use super::engine::{Engine, StepResult, SyncWithin};
use super::metrics::TaskMetrics;
use super::reading::NeededRecords;
use super::record::CLOCK_KEY;
use super::slow_disk::SlowDiskBackoff;
use super::submission::{InboxMessage, Submission};
use super::{Delivery, Outcome, ReplySink, Ticket};
use crate::clock::lasting::LastingClock;
use crate::clock::{ClockReading, Now};
use crate::limits::{TASKS_BATCH_BYTES, TASKS_PER_BATCH, TOKENS_RESERVED};
use crate::log::WarningPace;
use crate::store::{
    AddsRefused, Error, IDS_MARK, IdleWork, NUMBERS_MARK, Space, Store, StoreBackup, StoreSnapshot, TOKENS_MARK,
    WriteBatch,
};

/// How long no batch was stored before the store does its idle work, in milliseconds: longer than the pause of a client
/// that asks, gets its answer and asks again.
pub(super) const STORE_IDLE: u64 = 100;
/// The pause before idle work that waits for readers, in milliseconds.
const IDLE_LATER: u64 = 1_000;

/// The size of the requests in a batch.
#[derive(Default)]
pub(super) struct TakenRequests {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// The state of all queues and their store. Owned by the thread that holds the lock.
pub(super) struct CommitterState {
    pub(super) store: Box<dyn Store>,
    pub(super) engine: Engine,
    pub(super) clock: LastingClock,
    pub(super) metrics: Arc<TaskMetrics>,
    /// Indexed by [`Ticket::sink`].
    pub(super) sinks: Vec<Box<dyn ReplySink>>,
    /// The deadline of the sync of the oldest unsynced change, in milliseconds of the leases' clock.
    pub(super) unsynced: Option<u64>,
    /// The end of the committer's sleep if no message comes, in milliseconds of the leases' clock. 0 while it is awake.
    pub(super) sleeps_until: u64,
    /// When the store's idle work is due, in milliseconds of the leases' clock.
    pub(super) idle_at: Option<u64>,
    /// When the log last reported that adds are refused.
    pub(super) refusals_logged: WarningPace,
    /// Whether frontends leave their commits to the committer.
    pub(super) backoff: SlowDiskBackoff,
    /// The next commit writes a record and syncs it, also without a change.
    pub(super) is_probed: bool,
    /// The store has failed. Nothing more is answered, and the thread that got the error ends the process.
    pub(super) failed: bool,
}

impl CommitterState {
    /// Commits one batch of requests of a frontend. Returns the answers to that frontend, and whether the committer
    /// must be woken because a deadline now comes before the end of its sleep.
    pub(super) fn commit_for(
        &mut self,
        sink: usize,
        requests: Vec<Submission>,
        now: ClockReading,
    ) -> Result<(Option<Delivery>, bool), Error> {
        let now = self.clock.advance(now);
        let own = self.guarded(|core| {
            core.begin(now)?;
            core.apply(Some(InboxMessage::Submitted(requests)), || None);
            core.commit(now, Some(sink))
        })?;
        let wake = self.wake();
        let early = wake < self.sleeps_until;
        self.sleeps_until = self.sleeps_until.min(wake);
        Ok((own, early))
    }

    /// How often something was written or synced.
    pub(super) fn written(&self) -> u64 {
        self.metrics.commits.get() + self.metrics.syncs.get()
    }

    /// Takes note of the time of a commit that began with this [`CommitterState::written`]. Returns whether the disk is
    /// slow.
    pub(super) fn note_commit(&mut self, written: u64, start: ClockReading, end: ClockReading) -> bool {
        if self.written() != written {
            self.backoff.note(start, end);
        }
        self.backoff.is_on()
    }

    /// Writes a record and syncs it, as a batch of requests would be: the record is the mark of the clock. Returns why
    /// the store takes no adds, and writes nothing then. `None`: the store has failed.
    pub(super) fn probe(&mut self, now: ClockReading) -> Result<Option<Result<(), AddsRefused>>, Error> {
        let now = self.clock.advance(now);
        self.guarded(|core| {
            core.store.measure_space();
            if let Err(why) = core.store.adds_room() {
                return Ok(Some(Err(why)));
            }
            core.begin(now)?;
            core.is_probed = true;
            core.commit(now, None)?;
            Ok(Some(Ok(())))
        })
    }

    /// Syncs, and returns a backup of the store. `None`: the store has failed.
    pub(super) fn backup(&mut self) -> Result<Option<Box<dyn StoreBackup>>, Error> {
        self.guarded(|core| {
            let backup = core.store.backup()?;
            core.unsynced = None;
            Ok(Some(backup))
        })
    }

    /// Wakes a frontend, which checks for room again.
    pub(super) fn notify_room(&self, sink: usize) {
        self.sinks.get(sink).into_iter().for_each(|sink| sink.notify_room());
    }

    /// Runs `work` unless the store has failed. An error makes the state failed.
    pub(super) fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        if self.failed {
            return Ok(None);
        }
        work(self).inspect_err(|_| self.failed = true)
    }

    /// The next deadline of a lease, a sync or idle work, in milliseconds of the leases' clock. `u64::MAX` if there is
    /// none.
    pub(super) fn wake(&self) -> u64 {
        self.engine.next_wake().into_iter().chain(self.unsynced).chain(self.idle_at).min().unwrap_or(u64::MAX)
    }

    /// Begins a batch: sets tasks aside whose values are lost, and looks whether the store takes adds. Then it expires
    /// leases whose deadline has passed. Of a large number each batch expires a portion, and takes requests behind it.
    pub(super) fn begin(&mut self, now: u64) -> Result<(), Error> {
        self.set_aside()?;
        let room = self.store.adds_room();
        self.engine.bound_adds(room.unwrap_or(0));
        if let Err(why) = room
            && self.refusals_logged.is_time(Now::from_millis(now))
        {
            tracing::warn!("tasks, jobs and events are not added at present: {why}");
        }
        // If more leases are due, the next batch follows at once: `wake` returns a time that has passed.
        let _more = self.engine.expire(now, &*self.store);
        Ok(())
    }

    /// Sets the tasks aside whose records were found lost.
    pub(super) fn set_aside(&mut self) -> Result<(), Error> {
        let lost = self.store.lost()?;
        if !lost.is_empty() {
            for what in self.engine.lose(&lost) {
                tracing::error!("{what}: the device has changed its bytes");
            }
        }
        Ok(())
    }

    /// Does a piece of the store's idle work if it is due: no batch was stored for [`STORE_IDLE`].
    pub(super) fn work_idle(&mut self, now: u64) -> Result<(), Error> {
        if self.idle_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        self.idle_at = match self.store.work_idle()? {
            IdleWork::Done => None,
            IdleWork::More => Some(now),
            IdleWork::Later => Some(now.saturating_add(IDLE_LATER)),
        };
        self.note_store();
        Ok(())
    }

    /// Applies the messages, up to the size of one batch: it ends with the message that exceeds a bound.
    pub(super) fn apply(
        &mut self,
        first: Option<InboxMessage>,
        mut next: impl FnMut() -> Option<InboxMessage>,
    ) -> TakenRequests {
        let (mut count, mut taken) = (0, TakenRequests::default());
        let mut message = first.or_else(&mut next);
        while let Some(this) = message {
            taken.messages += u64::from(!matches!(this, InboxMessage::Wake));
            taken.bytes += this.bytes();
            match this {
                InboxMessage::Wake => {}
                InboxMessage::Dismiss => self.engine.dismiss(),
                InboxMessage::Submitted(requests) => {
                    count += requests.len();
                    let (engine, store) = (&mut self.engine, &mut *self.store);
                    requests.into_iter().for_each(|submission| engine.apply(submission, store));
                }
            }
            if count >= TASKS_PER_BATCH / 2 || taken.bytes.max(self.engine.batch_bytes()) >= TASKS_BATCH_BYTES {
                break;
            }
            message = next();
        }
        taken
    }

    /// Stores the changes, syncs them if a sync is due, then answers. Returns the answers to the sink `own`. A step of
    /// the wall clock is stored and synced also without a change: it must be known after a crash. So is a probe.
    pub(super) fn commit(&mut self, now: u64, own: Option<usize>) -> Result<Option<Delivery>, Error> {
        let StepResult { mut batch, sync, answers, ids, floor } = self.engine.drain();
        let mut needed = NeededRecords::default();
        answers.iter().for_each(|(_, outcome)| needed.add(outcome));
        let before = (!needed.is_empty()).then(|| self.store.moment(&needed.values, &needed.records));
        self.store.raise(IDS_MARK, ids);
        self.store.raise(NUMBERS_MARK, floor);
        let is_stepped = self.clock.is_stepped();
        let is_forced = is_stepped || std::mem::take(&mut self.is_probed);
        let sync_now = is_forced || sync == SyncWithin::Now || self.unsynced.is_some_and(|until| until <= now);
        if is_forced || !batch.is_empty() {
            self.mark_clock(&mut batch);
        }
        let is_stirred = !batch.is_empty();
        self.metrics.commits.add(u64::from(is_stirred));
        match (batch.is_empty(), sync_now) {
            (false, _) => self.store.commit(batch, sync_now)?,
            (true, true) => self.store.sync()?,
            (true, false) => {}
        }
        self.engine.stored();
        if is_stirred && self.store.has_idle_work() {
            self.idle_at = Some(now.saturating_add(STORE_IDLE));
        }
        self.note_store();
        self.note(sync, sync_now, now);
        let given_back = self.answer(answers, before.as_ref(), own);
        self.reserve_more()?;
        Ok(given_back)
    }

    fn note_store(&self) {
        *self.metrics.store.lock() = self.store.metrics();
    }

    fn note(&mut self, sync: SyncWithin, synced: bool, now: u64) {
        self.metrics.syncs.add(u64::from(synced));
        if synced {
            self.unsynced = None;
        } else if let SyncWithin::Millis(millis) = sync {
            let until = now.saturating_add(millis);
            self.unsynced = Some(self.unsynced.map_or(until, |earlier| earlier.min(until)));
        }
    }

    /// Delivers each sink's answers in one call. Returns those of `own` instead.
    fn answer(
        &self,
        answers: Vec<(Ticket, Outcome)>,
        before: Option<&Arc<dyn StoreSnapshot>>,
        own: Option<usize>,
    ) -> Option<Delivery> {
        let mut parts: Vec<Vec<(u64, Outcome)>> = self.sinks.iter().map(|_| Vec::new()).collect();
        for (Ticket { sink, number }, outcome) in answers {
            if let Some(part) = parts.get_mut(sink) {
                part.push((number, outcome));
            }
        }
        let mut given_back = None;
        for (number, (sink, answers)) in
            self.sinks.iter().zip(parts).enumerate().filter(|(_, (_, part))| !part.is_empty())
        {
            let delivery = Delivery { answers, before: before.cloned() };
            if own == Some(number) { given_back = Some(delivery) } else { sink.deliver(delivery) }
        }
        given_back
    }

    /// Reserves more tokens if fewer than half a reservation are left, so that the next batch cannot run out of them.
    fn reserve_more(&mut self) -> Result<(), Error> {
        if self.engine.tokens_left() < TOKENS_RESERVED / 2 { self.reserve() } else { Ok(()) }
    }

    /// Syncs a reservation of tokens, and only then allows their use.
    pub(super) fn reserve(&mut self) -> Result<(), Error> {
        let (mut batch, end) = self.engine.reservation(TOKENS_RESERVED);
        self.store.raise(TOKENS_MARK, end);
        self.mark_clock(&mut batch);
        self.store.commit(batch, true)?;
        self.engine.reserved(end);
        Ok(())
    }

    /// Adds the latest mark of the clock to a batch.
    fn mark_clock(&mut self, batch: &mut WriteBatch) {
        batch.put(Space::Meta, CLOCK_KEY, &self.clock.take_mark().encode());
    }
}
