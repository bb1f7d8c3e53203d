//! The state of all queues with their store, and the commit of one batch: by the committer's thread, or by a frontend
//! while the committer is idle. One lock protects it.
//!
//! ```text
//! expire ─► apply: requests change the engine ─► commit: store, sync ─► answers to the reply sinks
//! ```
//! This module does not wait for requests; see `committer.rs`.

use std::sync::Arc;

use super::engine::{Engine, StepResult, SyncWithin};
use super::metrics::TaskMetrics;
use super::submission::{InboxMessage, Submission};
use super::{Delivery, Outcome, Payload, ReplySink, Ticket};
use crate::limits::{INBOX_BYTES_MAX, TASKS_PER_BATCH, TOKENS_RESERVED};
use crate::store::{Error, Store, StoreSnapshot};
use crate::wheel::Progress;

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
    pub(super) metrics: Arc<TaskMetrics>,
    /// Indexed by [`Ticket::sink`].
    pub(super) sinks: Vec<Box<dyn ReplySink>>,
    /// The time of the oldest unsynced change and the deadline of its sync, in milliseconds of the wall clock.
    pub(super) unsynced: Option<(u64, u64)>,
    /// The end of the committer's sleep if no message comes, in milliseconds of the wall clock. 0 while it is awake.
    pub(super) sleeps_until: u64,
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
        now: u64,
    ) -> Result<(Option<Delivery>, bool), Error> {
        let own = self.guarded(|core| {
            core.expire(now)?;
            core.apply(Some(InboxMessage::Submitted(requests)), || None);
            core.commit(now, Some(sink))
        })?;
        let wake = self.wake();
        let early = wake < self.sleeps_until;
        self.sleeps_until = self.sleeps_until.min(wake);
        Ok((own, early))
    }

    /// Tells a frontend to check for room again.
    pub(super) fn go_on(&self, sink: usize) {
        self.sinks.get(sink).into_iter().for_each(|sink| sink.go_on());
    }

    /// Runs `work` unless the store has failed. An error makes the state failed.
    pub(super) fn guarded(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Option<Delivery>, Error>,
    ) -> Result<Option<Delivery>, Error> {
        if self.failed {
            return Ok(None);
        }
        work(self).inspect_err(|_| self.failed = true)
    }

    /// The next deadline of a lease or a sync, in milliseconds of the wall clock. `u64::MAX` if there is none.
    pub(super) fn wake(&self) -> u64 {
        let unsynced = self.unsynced.map(|(_, until)| until);
        self.engine.next_wake().into_iter().chain(unsynced).min().unwrap_or(u64::MAX)
    }

    /// Expires the leases whose deadline has passed. A large number is stored in several batches.
    pub(super) fn expire(&mut self, now: u64) -> Result<(), Error> {
        while self.engine.expire(now) == Progress::More {
            self.commit(now, None)?;
        }
        Ok(())
    }

    /// Applies the messages, up to the size of one batch.
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
                    requests.into_iter().for_each(|submission| self.engine.apply(submission));
                }
            }
            if count >= TASKS_PER_BATCH / 2 || taken.bytes > INBOX_BYTES_MAX / 4 {
                break;
            }
            message = next();
        }
        taken
    }

    /// Stores the changes, syncs them if a sync is due, then answers. Returns the answers to the sink `own`.
    pub(super) fn commit(&mut self, now: u64, own: Option<usize>) -> Result<Option<Delivery>, Error> {
        let StepResult { batch, sync, answers } = self.engine.drain();
        let is_stored = |(_, outcome): &(Ticket, Outcome)| matches!(outcome.payload(), Some(Payload::Stored(_)));
        let before = answers.iter().any(is_stored).then(|| self.store.moment());
        // After the clock was set back the elapsed time is unknown, so a sync is due.
        let overdue = |(since, until): (u64, u64)| until <= now || now < since;
        let sync_now = sync == SyncWithin::Now || self.unsynced.is_some_and(overdue);
        self.metrics.commits.add(u64::from(!batch.is_empty()));
        match (batch.is_empty(), sync_now) {
            (false, _) => self.store.commit(batch, sync_now)?,
            (true, true) => self.store.sync()?,
            (true, false) => {}
        }
        self.engine.stored();
        self.note(sync, sync_now, now);
        let given_back = self.answer(answers, before.as_ref(), own);
        self.reserve_more()?;
        Ok(given_back)
    }

    fn note(&mut self, sync: SyncWithin, synced: bool, now: u64) {
        self.metrics.syncs.add(u64::from(synced));
        if synced {
            self.unsynced = None;
        } else if let SyncWithin::Millis(millis) = sync {
            let until = now.saturating_add(millis);
            let (since, earlier) = self.unsynced.unwrap_or((now, until));
            self.unsynced = Some((since, earlier.min(until)));
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
        let (batch, end) = self.engine.reservation(TOKENS_RESERVED);
        self.store.commit(batch, true)?;
        self.engine.reserved(end);
        Ok(())
    }
}
