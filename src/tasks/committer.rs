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

use super::engine::{Engine, Step, Within};
use super::figures::Figures;
use super::inbox::{Ask, Message, Shared, Tasks};
use super::order::Order;
use super::record::{Damaged, FORMAT, FORMAT_KEY, TOKENS_KEY, number_of, queue_of_key};
use super::{Delivery, Face, Family, Outcome, Payload, Policy, QueueId, Ticket};
use crate::limits::{ASKED_BYTES_MAX, ASKED_MAX, TASKS_PER_BATCH, TOKENS_RESERVED};
use crate::store::{Error, Moment, Space, Store};
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
    let figures = Arc::default();
    let engine = restore(&*store, now, &figures)?;
    let shared = Arc::new(Shared::new(Arc::clone(&figures), store.watch()));
    let mut core = Core { store, engine, figures, faces: Vec::new(), unsynced: None, sleeps_until: 0, failed: false };
    core.reserve()?;
    let core = Arc::new(Mutex::new(core));
    let tasks = Tasks::new(sender, Arc::clone(&shared), Arc::clone(&core));
    Ok((tasks, Committer { core, inbox, shared }))
}

/// Reads all but the values.
fn restore(store: &dyn Store, now: u64, figures: &Arc<Figures>) -> Result<Engine, Error> {
    let mut meta = Vec::new();
    store.scan(Space::Meta, &mut |key, value| meta.push((key.to_vec(), value.to_vec())))?;
    let find = |key: &[u8]| meta.iter().find(|(other, _)| other == key).map(|(_, value)| &**value);
    let damaged = |damaged: Damaged| store.damaged(&damaged.to_string());
    let tokens = find(TOKENS_KEY).map_or(Ok(1), |end| number_of(end, "end of the tokens")).map_err(damaged)?;
    if find(FORMAT_KEY).is_some_and(|format| format != FORMAT.to_be_bytes()) {
        return Err(store.damaged("it was written in another format"));
    }
    let mut engine = Engine::new(now, tokens, Arc::clone(figures));
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
    core: Arc<Mutex<Core>>,
    inbox: Receiver<Message>,
    shared: Arc<Shared>,
}

impl Committer {
    /// The queue of this name, which is made if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] if there is one of another order.
    pub fn queue(&mut self, name: &[u8], order: Order, policy: Policy) -> Result<QueueId, Error> {
        let mut core = self.core.lock();
        let queue = core.engine.open(name, order, policy);
        queue.ok_or_else(|| core.store.damaged(&format!("the queue {} has another order", name.escape_ascii())))
    }

    /// The family of all queues whose names begin with `prefix`, some of which may be in the store.
    ///
    /// # Errors
    /// [`Error::Damaged`] if one of these has another order.
    pub fn family(&mut self, prefix: &[u8], order: Order, policy: Policy) -> Result<Family, Error> {
        let mut core = self.core.lock();
        let family = core.engine.family(prefix, order, policy);
        family.ok_or_else(|| core.store.damaged(&format!("a queue {}… has another order", prefix.escape_ascii())))
    }

    /// The number that tickets of this face have to bear.
    pub fn face(&mut self, face: Box<dyn Face>) -> usize {
        let mut core = self.core.lock();
        core.faces.push(face);
        core.faces.len() - 1
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
        while let Wait::Over(first) = self.wait(&mut now)? {
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
    fn step(&self, first: Option<Message>, now: &mut dyn FnMut() -> u64) -> Result<(), Error> {
        let mut core = self.lock()?;
        // Read when it is our turn: a lease begins when it is granted.
        let now = now();
        core.sleeps_until = 0;
        let mut taken = Taken::default();
        let done = core.guarded(|core| {
            core.run_out(now)?;
            taken = core.apply(first, || self.inbox.try_recv().ok());
            // While this batch is being synced the next one gathers.
            self.shared.tell(|face| core.go_on(face));
            core.commit(now, None)
        });
        self.shared.done(taken.messages, taken.bytes);
        self.shared.tell(|face| core.go_on(face));
        done.map(drop)
    }

    /// One batch of these requests.
    #[cfg(test)]
    pub(super) fn batch(&mut self, asked: Vec<Ask>, now: u64) -> Result<(), Error> {
        self.step(Some(Message::Asked(asked)), &mut || now)
    }

    /// The same, of queues of families.
    #[cfg(test)]
    pub(super) fn batch_named(&mut self, asked: Vec<Ask<super::QueueName>>, now: u64) -> Result<(), Error> {
        self.step(Some(Message::AskedNamed(asked)), &mut || now)
    }

    /// Waits for a message, or until there is something to do without one, and looks now and then whether the store still works.
    fn wait(&self, now: &mut dyn FnMut() -> u64) -> Result<Wait, Error> {
        let (wake, now) = {
            let mut core = self.lock()?;
            core.sleeps_until = core.wake();
            (core.sleeps_until, now())
        };
        let due = wake != u64::MAX;
        let sleep = if due { Duration::from_millis(wake.saturating_sub(now).min(SLEEP_MAX)) } else { CHECK };
        match self.inbox.recv_timeout(sleep) {
            Ok(message) => Ok(Wait::Over(Some(message))),
            Err(RecvTimeoutError::Disconnected) => Ok(Wait::Ended),
            Err(RecvTimeoutError::Timeout) => {
                self.shared.check()?;
                Ok(Wait::Over(None))
            }
        }
    }

    /// The state, when whoever commits lets it go.
    fn lock(&self) -> Result<MutexGuard<'_, Core>, Error> {
        loop {
            match self.core.try_lock_for(CHECK) {
                Some(core) => return Ok(core),
                None => self.shared.check()?,
            }
        }
    }
}

/// What the thread has waited for.
enum Wait {
    /// This message, or the time.
    Over(Option<Message>),
    /// Nobody is left who could ask.
    Ended,
}

/// What was taken into a batch.
#[derive(Default)]
struct Taken {
    messages: u64,
    bytes: u64,
}

/// The state of all queues, and where it is stored. One thread at a time has it.
pub(super) struct Core {
    store: Box<dyn Store>,
    engine: Engine,
    figures: Arc<Figures>,
    /// By [`Ticket::face`].
    faces: Vec<Box<dyn Face>>,
    /// Since when something is not synced, and when it has to be, in milliseconds of the wall clock.
    unsynced: Option<(u64, u64)>,
    /// Until when the thread sleeps if nothing comes; 0 if it does not.
    sleeps_until: u64,
    /// The store has failed: nothing is answered any more, and whoever was told ends the process.
    failed: bool,
}

impl Core {
    /// One batch of what a face asks: what is answered to itself is given back, and whether the thread has to be woken, since
    /// there is something to do before it wakes.
    pub(super) fn commit_for(
        &mut self,
        face: usize,
        asked: Message,
        now: u64,
    ) -> Result<(Option<Delivery>, bool), Error> {
        let own = self.guarded(|core| {
            core.run_out(now)?;
            core.apply(Some(asked), || None);
            core.commit(now, Some(face))
        })?;
        let wake = self.wake();
        let early = wake < self.sleeps_until;
        self.sleeps_until = self.sleeps_until.min(wake);
        Ok((own, early))
    }

    /// Tells a face that it is worth another look whether there is room.
    fn go_on(&self, face: usize) {
        self.faces.get(face).into_iter().for_each(|face| face.go_on());
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
    fn apply(&mut self, first: Option<Message>, mut next: impl FnMut() -> Option<Message>) -> Taken {
        let (mut count, mut taken) = (0, Taken::default());
        let mut message = first.or_else(&mut next);
        while let Some(this) = message {
            taken.messages += u64::from(!matches!(this, Message::Wake));
            taken.bytes += this.bytes();
            match this {
                Message::Wake => {}
                Message::Dismiss => self.engine.dismiss(),
                Message::Asked(asked) => {
                    count += asked.len();
                    for Ask { queue, ticket, request } in asked {
                        self.engine.apply(queue, ticket, request);
                    }
                }
                Message::AskedNamed(asked) => {
                    count += asked.len();
                    for Ask { queue, ticket, request } in asked {
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
        let Step { batch, sync, answers } = self.engine.drain();
        let is_stored = |(_, outcome): &(Ticket, Outcome)| matches!(outcome.payload(), Some(Payload::Stored(_)));
        let before = answers.iter().any(is_stored).then(|| self.store.moment());
        // A clock that was set back says nothing of how much time has passed.
        let overdue = |(since, until): (u64, u64)| until <= now || now < since;
        let sync_now = sync == Within::Now || self.unsynced.is_some_and(overdue);
        self.figures.commits.add(u64::from(!batch.is_empty()));
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

    fn note(&mut self, sync: Within, synced: bool, now: u64) {
        self.figures.syncs.add(u64::from(synced));
        if synced {
            self.unsynced = None;
        } else if let Within::Millis(millis) = sync {
            let until = now.saturating_add(millis);
            let (since, earlier) = self.unsynced.unwrap_or((now, until));
            self.unsynced = Some((since, earlier.min(until)));
        }
    }

    /// Each face gets its answers at once, but for `own`.
    fn answer(
        &self,
        answers: Vec<(Ticket, Outcome)>,
        before: Option<&Arc<dyn Moment>>,
        own: Option<usize>,
    ) -> Option<Delivery> {
        let mut parts: Vec<Vec<(u64, Outcome)>> = self.faces.iter().map(|_| Vec::new()).collect();
        for (Ticket { face, number }, outcome) in answers {
            if let Some(part) = parts.get_mut(face) {
                part.push((number, outcome));
            }
        }
        let mut given_back = None;
        for (number, (face, answers)) in
            self.faces.iter().zip(parts).enumerate().filter(|(_, (_, part))| !part.is_empty())
        {
            let delivery = Delivery { answers, before: before.cloned() };
            if own == Some(number) { given_back = Some(delivery) } else { face.deliver(delivery) }
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
