//! What commits: it takes what waits, applies it, stores it, and answers.
//!
//! ```text
//! thread   wait ─► run out leases ─► apply all that waits ─► commit: store, then answer ─► wait
//! a face          run out leases ─► apply what it asks     ─► commit: store, then answer          if nobody else does, nor waits
//! ```
//! While a batch is being synced the next one gathers in the inbox: the more clients, the larger the batches. There is no
//! timer but that of leases, and of syncs that may wait. What commits has one lock, so there is one order; a face that asks
//! little while nothing else is to do commits it itself, which spares two changes of threads before its answer.
//!
//! What is not here: what requests mean (`engine.rs`), and what faces do with their answers.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::{Mutex, MutexGuard};

use super::engine::{Engine, StepResult, SyncWithin};
use super::inbox::{InboxMessage, Submission, Tasks, TasksShared};
use super::metrics::TaskMetrics;
use super::order::LeaseOrder;
use super::record::{Damaged, FORMAT, FORMAT_KEY, TOKENS_KEY, number_of, queue_of_key};
use super::{Delivery, Family, Outcome, Payload, Policy, QueueId, ReplySink, Ticket};
use crate::limits::{ASKED_BYTES_MAX, ASKED_MAX, TASKS_PER_BATCH, TOKENS_RESERVED};
use crate::store::{Error, Space, Store, StoreSnapshot};
use crate::wheel::Progress;

/// The longest sleep: a wall clock that was set is noticed after it.
const SLEEP_MAX: u64 = 1_000;
/// How long who holds the lock may take before it is looked whether the store still works, and how often it is looked in any case.
const CHECK: Duration = Duration::from_secs(5);

/// Opens the queues of a store; `now` in milliseconds of the wall clock.
///
/// # Errors
/// [`Error`] if the store cannot be read, or does not hold what was stored.
pub fn open(store: Box<dyn Store>, now: u64) -> Result<(Tasks, Committer), Error> {
    let (sender, inbox) = bounded(ASKED_MAX);
    let metrics = Arc::default();
    let engine = restore(&*store, now, &metrics)?;
    let shared = Arc::new(TasksShared::new(Arc::clone(&metrics), store.watch()));
    let mut core =
        CommitterState { store, engine, metrics, sinks: Vec::new(), unsynced: None, sleeps_until: 0, failed: false };
    core.reserve()?;
    let core = Arc::new(Mutex::new(core));
    let tasks = Tasks::new(sender, Arc::clone(&shared), Arc::clone(&core));
    Ok((tasks, Committer { core, inbox, shared }))
}

/// Reads all but the values.
fn restore(store: &dyn Store, now: u64, metrics: &Arc<TaskMetrics>) -> Result<Engine, Error> {
    let mut meta = Vec::new();
    store.scan(Space::Meta, &mut |key, value| meta.push((key.to_vec(), value.to_vec())))?;
    let find = |key: &[u8]| meta.iter().find(|(other, _)| other == key).map(|(_, value)| &**value);
    let damaged = |damaged: Damaged| store.damaged(&damaged.to_string());
    let tokens = find(TOKENS_KEY).map_or(Ok(1), |end| number_of(end, "end of the tokens")).map_err(damaged)?;
    if find(FORMAT_KEY).is_some_and(|format| format != FORMAT.to_be_bytes()) {
        return Err(store.damaged("it was written in another format"));
    }
    let mut engine = Engine::new(now, tokens, Arc::clone(metrics));
    for (key, record) in meta.iter().filter(|(key, _)| queue_of_key(key).is_some()) {
        engine.restore_queue(key, record).map_err(damaged)?;
    }
    let mut restored = Ok(());
    store.scan(Space::Tasks, &mut |key, record| {
        if restored.is_ok() {
            restored = engine.restore_task(key, record);
        }
    })?;
    restored.map_err(damaged)?;
    if find(FORMAT_KEY).is_none() && !(meta.is_empty() && engine.is_empty()) {
        return Err(store.damaged("the version of the format is missing"));
    }
    Ok(engine)
}

/// The thread that commits, ready to run.
pub struct Committer {
    core: Arc<Mutex<CommitterState>>,
    inbox: Receiver<InboxMessage>,
    shared: Arc<TasksShared>,
}

impl Committer {
    /// The queue of this name, which is made if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] if there is one of another order.
    pub fn queue(&mut self, name: &[u8], order: LeaseOrder, policy: Policy) -> Result<QueueId, Error> {
        let mut core = self.core.lock();
        let queue = core.engine.open(name, order, policy);
        queue.ok_or_else(|| core.store.damaged(&format!("the queue {} has another order", name.escape_ascii())))
    }

    /// The family of all queues whose names begin with `prefix`, some of which may be in the store.
    ///
    /// # Errors
    /// [`Error::Damaged`] if one of these has another order.
    pub fn family(&mut self, prefix: &[u8], order: LeaseOrder, policy: Policy) -> Result<Family, Error> {
        let mut core = self.core.lock();
        let family = core.engine.family(prefix, order, policy);
        family.ok_or_else(|| core.store.damaged(&format!("a queue {}… has another order", prefix.escape_ascii())))
    }

    /// The number that tickets of this face have to bear.
    pub fn sink(&mut self, sink: Box<dyn ReplySink>) -> usize {
        let mut core = self.core.lock();
        core.sinks.push(sink);
        core.sinks.len() - 1
    }

    /// Has the store know whether changes may be unsynced when later ones are written. To be called when all queues are open, and
    /// before anybody asks.
    ///
    /// # Errors
    /// [`Error`] if that cannot be stored.
    pub fn begin(&mut self) -> Result<(), Error> {
        let mut core = self.core.lock();
        let lazy = core.engine.is_lazy();
        core.store.set_lazy(lazy)
    }

    /// The loop of the thread. Returns when nobody is left who could ask, and everything is on disk and answered. `now` reads
    /// the wall clock in milliseconds.
    ///
    /// # Errors
    /// [`Error`] if something cannot be stored: whatever was not answered then may or may not be stored.
    pub fn run(self, mut now: impl FnMut() -> u64) -> Result<(), Error> {
        while let WakeReason::Over(first) = self.wait(&mut now)? {
            self.step(first, &mut now)?;
        }
        let mut core = self.lock()?;
        if core.failed {
            return Ok(());
        }
        core.engine.dismiss();
        core.commit(now(), None)?;
        core.store.sync()
    }

    /// One batch, with this message first.
    fn step(&self, first: Option<InboxMessage>, now: &mut dyn FnMut() -> u64) -> Result<(), Error> {
        let mut core = self.lock()?;
        // Read when it is our turn: a lease begins when it is granted.
        let now = now();
        core.sleeps_until = 0;
        let mut taken = TakenRequests::default();
        let done = core.guarded(|core| {
            core.run_out(now)?;
            taken = core.apply(first, || self.inbox.try_recv().ok());
            // While this batch is being synced the next one gathers.
            self.shared.tell(|sink| core.go_on(sink));
            core.commit(now, None)
        });
        self.shared.done(taken.messages, taken.bytes);
        self.shared.tell(|sink| core.go_on(sink));
        done.map(drop)
    }

    /// One batch of these requests.
    #[cfg(test)]
    pub(super) fn batch(&mut self, asked: Vec<Submission>, now: u64) -> Result<(), Error> {
        self.step(Some(InboxMessage::Asked(asked)), &mut || now)
    }

    /// The same, of queues of families.
    #[cfg(test)]
    pub(super) fn batch_named(&mut self, asked: Vec<Submission<super::QueueName>>, now: u64) -> Result<(), Error> {
        self.step(Some(InboxMessage::AskedNamed(asked)), &mut || now)
    }

    /// Waits for a message, or until there is something to do without one, and looks now and then whether the store still works.
    fn wait(&self, now: &mut dyn FnMut() -> u64) -> Result<WakeReason, Error> {
        let (wake, now) = {
            let mut core = self.lock()?;
            core.sleeps_until = core.wake();
            (core.sleeps_until, now())
        };
        let due = wake != u64::MAX;
        let sleep = if due { Duration::from_millis(wake.saturating_sub(now).min(SLEEP_MAX)) } else { CHECK };
        match self.inbox.recv_timeout(sleep) {
            Ok(message) => Ok(WakeReason::Over(Some(message))),
            Err(RecvTimeoutError::Disconnected) => Ok(WakeReason::Ended),
            Err(RecvTimeoutError::Timeout) => {
                self.shared.check()?;
                Ok(WakeReason::Over(None))
            }
        }
    }

    /// The state, when whoever commits lets it go.
    fn lock(&self) -> Result<MutexGuard<'_, CommitterState>, Error> {
        loop {
            match self.core.try_lock_for(CHECK) {
                Some(core) => return Ok(core),
                None => self.shared.check()?,
            }
        }
    }
}

/// What the thread has waited for.
enum WakeReason {
    /// This message, or the time.
    Over(Option<InboxMessage>),
    /// Nobody is left who could ask.
    Ended,
}

/// What was taken into a batch.
#[derive(Default)]
struct TakenRequests {
    messages: u64,
    bytes: u64,
}

/// The state of all queues, and where it is stored. One thread at a time has it.
pub(super) struct CommitterState {
    store: Box<dyn Store>,
    engine: Engine,
    metrics: Arc<TaskMetrics>,
    /// By [`Ticket::face`].
    sinks: Vec<Box<dyn ReplySink>>,
    /// Since when something is not synced, and when it has to be, in milliseconds of the wall clock.
    unsynced: Option<(u64, u64)>,
    /// Until when the thread sleeps if nothing comes; 0 if it does not.
    sleeps_until: u64,
    /// The store has failed: nothing is answered any more, and whoever was told ends the process.
    failed: bool,
}

impl CommitterState {
    /// One batch of what a face asks: what is answered to itself is given back, and whether the thread has to be woken, since
    /// there is something to do before it wakes.
    pub(super) fn commit_for(
        &mut self,
        sink: usize,
        asked: InboxMessage,
        now: u64,
    ) -> Result<(Option<Delivery>, bool), Error> {
        let own = self.guarded(|core| {
            core.run_out(now)?;
            core.apply(Some(asked), || None);
            core.commit(now, Some(sink))
        })?;
        let wake = self.wake();
        let early = wake < self.sleeps_until;
        self.sleeps_until = self.sleeps_until.min(wake);
        Ok((own, early))
    }

    /// Tells a face that it is worth another look whether there is room.
    fn go_on(&self, sink: usize) {
        self.sinks.get(sink).into_iter().for_each(|sink| sink.go_on());
    }

    /// Nothing follows an error.
    fn guarded(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Option<Delivery>, Error>,
    ) -> Result<Option<Delivery>, Error> {
        if self.failed {
            return Ok(None);
        }
        work(self).inspect_err(|_| self.failed = true)
    }

    /// When there is something to do without a message, in milliseconds of the wall clock.
    fn wake(&self) -> u64 {
        let unsynced = self.unsynced.map(|(_, until)| until);
        self.engine.next_wake().into_iter().chain(unsynced).min().unwrap_or(u64::MAX)
    }

    /// Ends the leases that have run out. A great many are stored part by part.
    fn run_out(&mut self, now: u64) -> Result<(), Error> {
        while self.engine.run_out(now) == Progress::More {
            self.commit(now, None)?;
        }
        Ok(())
    }

    /// Applies what waits, as far as one batch goes.
    fn apply(&mut self, first: Option<InboxMessage>, mut next: impl FnMut() -> Option<InboxMessage>) -> TakenRequests {
        let (mut count, mut taken) = (0, TakenRequests::default());
        let mut message = first.or_else(&mut next);
        while let Some(this) = message {
            taken.messages += u64::from(!matches!(this, InboxMessage::Wake));
            taken.bytes += this.bytes();
            match this {
                InboxMessage::Wake => {}
                InboxMessage::Dismiss => self.engine.dismiss(),
                InboxMessage::Asked(asked) => {
                    count += asked.len();
                    for Submission { queue, ticket, request } in asked {
                        self.engine.apply(queue, ticket, request);
                    }
                }
                InboxMessage::AskedNamed(asked) => {
                    count += asked.len();
                    for Submission { queue, ticket, request } in asked {
                        self.engine.apply_named(&queue, ticket, request);
                    }
                }
            }
            if count >= TASKS_PER_BATCH / 2 || taken.bytes > ASKED_BYTES_MAX / 4 {
                break;
            }
            message = next();
        }
        taken
    }

    /// Stores what has changed, syncs if it has to be, and then answers; what is answered to the face `own` is given back.
    fn commit(&mut self, now: u64, own: Option<usize>) -> Result<Option<Delivery>, Error> {
        let StepResult { batch, sync, answers } = self.engine.drain();
        let is_stored = |(_, outcome): &(Ticket, Outcome)| matches!(outcome.payload(), Some(Payload::Stored(_)));
        let before = answers.iter().any(is_stored).then(|| self.store.moment());
        // A clock that was set back says nothing of how much time has passed.
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

    /// Each face gets its answers at once, but for `own`.
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

    /// Sees to it that the next batch cannot run out of tokens.
    fn reserve_more(&mut self) -> Result<(), Error> {
        if self.engine.tokens_left() < TOKENS_RESERVED / 2 { self.reserve() } else { Ok(()) }
    }

    /// Has a reservation of tokens on disk, and only then in use.
    fn reserve(&mut self) -> Result<(), Error> {
        let (batch, end) = self.engine.reservation(TOKENS_RESERVED);
        self.store.commit(batch, true)?;
        self.engine.reserved(end);
        Ok(())
    }
}
