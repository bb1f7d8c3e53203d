//! The one thread that commits: it takes what waits, applies it, stores it, and answers.
//!
//! ```text
//! wait ─► run out leases ─► apply all that waits ─► commit: store, then answer ─► wait
//! ```
//! While a batch is being synced the next one gathers in the inbox: the more clients, the larger the batches. There is no
//! timer but that of leases, and of syncs that may wait.
//!
//! What is not here: what requests mean (`engine.rs`), and what faces do with their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvError, RecvTimeoutError, Sender, bounded};

use super::engine::{Engine, Step, Within};
use super::figures::Figures;
use super::order::Order;
use super::record::{Damaged, FORMAT, FORMAT_KEY, TOKENS_KEY, number_of, queue_of_key};
use super::{Delivery, Face, Family, Outcome, Payload, Policy, QueueId, QueueName, Request, Ticket};
use crate::limits::{ASKED_BYTES_MAX, ASKED_MAX, TASKS_PER_BATCH, TOKENS_RESERVED};
use crate::store::{Error, Moment, Space, Store, Watch};
use crate::wheel::Progress;

/// The longest sleep: a wall clock that was set is noticed after it.
const SLEEP_MAX: u64 = 1_000;

/// What comes in.
enum Message {
    /// Requests of one face, in their order.
    Asked(Vec<Ask>),
    /// The same, about queues of families.
    AskedNamed(Vec<Ask<QueueName>>),
    /// Nobody is to wait for a task from now on.
    Dismiss,
}

/// A request, whose it is and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask<Q = QueueId> {
    /// The queue.
    pub queue: Q,
    /// Whom to answer.
    pub ticket: Ticket,
    /// What to do.
    pub request: Request,
}

/// What all handles share with the committer.
struct Shared {
    /// Bytes of what was asked and is not stored yet. Added to by who asks; taken from by the committer.
    asked_bytes: AtomicU64,
    figures: Arc<Figures>,
    watch: Arc<dyn Watch>,
}

/// A handle to ask with. Cheap to clone. The committer ends when there is none left.
#[derive(Clone)]
pub struct Tasks {
    sender: Sender<Message>,
    shared: Arc<Shared>,
}

impl Tasks {
    /// Asks; the faces of the tickets hear the answers, unless the store has failed. Waits while too much is waiting.
    pub fn ask(&self, asked: Vec<Ask>) {
        let bytes = asked.iter().map(|ask| ask.request.bytes()).sum();
        self.send(bytes, Message::Asked(asked));
    }

    /// As [`Tasks::ask`], about queues of families.
    pub fn ask_named(&self, asked: Vec<Ask<QueueName>>) {
        let bytes = asked.iter().map(|ask| ask.request.bytes()).sum();
        self.send(bytes, Message::AskedNamed(asked));
    }

    fn send(&self, bytes: u64, message: Message) {
        // Relaxed: a bound that is checked by who asks most; no data is published with it.
        self.shared.asked_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A committer that has failed answers nobody.
        let _failed = self.sender.send(message);
    }

    /// Whether so much is waiting that who asks should wait for answers before it asks again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // Relaxed: as in `ask`.
        self.shared.asked_bytes.load(Ordering::Relaxed) > ASKED_BYTES_MAX || self.sender.len() > ASKED_MAX / 2
    }

    /// Whether answers can still come. To be asked by a face that has been waiting for some.
    ///
    /// # Errors
    /// [`Error`] if the store has failed in a way that the committer cannot see.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.watch.check()
    }

    /// Has all who wait for a task answered that there is none, and so all who will ask for one. For the end.
    pub fn dismiss(&self) {
        let _failed = self.sender.send(Message::Dismiss);
    }

    /// What there is to tell of the queues.
    #[must_use]
    pub fn figures(&self) -> &Arc<Figures> {
        &self.shared.figures
    }
}

/// Opens the queues of a store; `now` in milliseconds of the wall clock.
///
/// # Errors
/// [`Error`] if the store cannot be read, or does not hold what was stored.
pub fn open(store: Box<dyn Store>, now: u64) -> Result<(Tasks, Committer), Error> {
    let (sender, inbox) = bounded(ASKED_MAX);
    let figures = Arc::default();
    let engine = restore(&*store, now, &figures)?;
    let shared = Arc::new(Shared { asked_bytes: AtomicU64::new(0), figures, watch: store.watch() });
    let mut committer =
        Committer { store, engine, inbox, shared: Arc::clone(&shared), faces: Vec::new(), unsynced: None };
    committer.reserve()?;
    Ok((Tasks { sender, shared }, committer))
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

/// The committer, ready to run.
pub struct Committer {
    store: Box<dyn Store>,
    engine: Engine,
    inbox: Receiver<Message>,
    shared: Arc<Shared>,
    /// By [`Ticket::face`].
    faces: Vec<Box<dyn Face>>,
    /// Since when something is not synced, and when it has to be, in milliseconds of the wall clock.
    unsynced: Option<(u64, u64)>,
}

impl Committer {
    /// The queue of this name, which is made if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] if there is one of another order.
    pub fn queue(&mut self, name: &[u8], order: Order, policy: Policy) -> Result<QueueId, Error> {
        self.engine
            .open(name, order, policy)
            .ok_or_else(|| self.store.damaged(&format!("the queue {} has another order", name.escape_ascii())))
    }

    /// The family of all queues whose names begin with `prefix`, some of which may be in the store.
    ///
    /// # Errors
    /// [`Error::Damaged`] if one of these has another order.
    pub fn family(&mut self, prefix: &[u8], order: Order, policy: Policy) -> Result<Family, Error> {
        self.engine
            .family(prefix, order, policy)
            .ok_or_else(|| self.store.damaged(&format!("a queue {}… has another order", prefix.escape_ascii())))
    }

    /// The number that tickets of this face have to bear.
    pub fn face(&mut self, face: Box<dyn Face>) -> usize {
        self.faces.push(face);
        self.faces.len() - 1
    }

    /// The loop of the thread. Returns when nobody is left who could ask, and everything is on disk and answered. `now` reads
    /// the wall clock in milliseconds.
    ///
    /// # Errors
    /// [`Error`] if something cannot be stored: whatever was not answered then may or may not be stored.
    pub fn run(mut self, mut now: impl FnMut() -> u64) -> Result<(), Error> {
        self.store.set_lazy(self.engine.is_lazy())?;
        while let Ok(first) = self.wait(now()) {
            self.step(first, now())?;
        }
        self.engine.dismiss();
        self.commit(now())?;
        self.store.sync()
    }

    /// One batch, with this message first.
    fn step(&mut self, first: Option<Message>, now: u64) -> Result<(), Error> {
        self.run_out(now)?;
        self.apply(first);
        self.commit(now)
    }

    /// One batch of these requests.
    #[cfg(test)]
    pub(super) fn batch(&mut self, asked: Vec<Ask>, now: u64) -> Result<(), Error> {
        self.step(Some(Message::Asked(asked)), now)
    }

    /// The same, of queues of families.
    #[cfg(test)]
    pub(super) fn batch_named(&mut self, asked: Vec<Ask<QueueName>>, now: u64) -> Result<(), Error> {
        self.step(Some(Message::AskedNamed(asked)), now)
    }

    /// Waits for a message, or until there is something to do without one.
    fn wait(&self, now: u64) -> Result<Option<Message>, RecvError> {
        let wake = [self.engine.next_wake(), self.unsynced.map(|(_, until)| until)].into_iter().flatten().min();
        let Some(wake) = wake else { return self.inbox.recv().map(Some) };
        let sleep = wake.saturating_sub(now).min(SLEEP_MAX);
        match self.inbox.recv_timeout(Duration::from_millis(sleep)) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RecvError),
        }
    }

    /// Ends the leases that have run out. A great many are stored part by part.
    fn run_out(&mut self, now: u64) -> Result<(), Error> {
        while self.engine.run_out(now) == Progress::More {
            self.commit(now)?;
        }
        Ok(())
    }

    /// Applies what waits, as far as one batch goes.
    fn apply(&mut self, first: Option<Message>) {
        let (mut count, mut bytes) = (0, 0);
        let mut next = first.or_else(|| self.inbox.try_recv().ok());
        while let Some(message) = next {
            match message {
                Message::Dismiss => self.engine.dismiss(),
                Message::Asked(asked) => {
                    count += asked.len();
                    for Ask { queue, ticket, request } in asked {
                        bytes += request.bytes();
                        self.engine.apply(queue, ticket, request);
                    }
                }
                Message::AskedNamed(asked) => {
                    count += asked.len();
                    for Ask { queue, ticket, request } in asked {
                        bytes += request.bytes();
                        self.engine.apply_named(&queue, ticket, request);
                    }
                }
            }
            if count >= TASKS_PER_BATCH / 2 || bytes > ASKED_BYTES_MAX / 4 {
                break;
            }
            next = self.inbox.try_recv().ok();
        }
        // Relaxed: as in `Tasks::ask`.
        self.shared.asked_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Stores what has changed, syncs if it has to be, and then answers.
    fn commit(&mut self, now: u64) -> Result<(), Error> {
        let Step { batch, sync, answers } = self.engine.drain();
        let is_stored = |(_, outcome): &(Ticket, Outcome)| matches!(outcome.payload(), Some(Payload::Stored(_)));
        let before = answers.iter().any(is_stored).then(|| self.store.moment());
        // A clock that was set back says nothing of how much time has passed.
        let overdue = |(since, until): (u64, u64)| until <= now || now < since;
        let sync_now = sync == Within::Now || self.unsynced.is_some_and(overdue);
        self.shared.figures.commits.add(u64::from(!batch.is_empty()));
        match (batch.is_empty(), sync_now) {
            (false, _) => self.store.commit(batch, sync_now)?,
            (true, true) => self.store.sync()?,
            (true, false) => {}
        }
        self.engine.stored();
        self.note(sync, sync_now, now);
        self.answer(answers, before.as_ref());
        self.reserve_more()
    }

    fn note(&mut self, sync: Within, synced: bool, now: u64) {
        self.shared.figures.syncs.add(u64::from(synced));
        if synced {
            self.unsynced = None;
        } else if let Within::Millis(millis) = sync {
            let until = now.saturating_add(millis);
            let (since, earlier) = self.unsynced.unwrap_or((now, until));
            self.unsynced = Some((since, earlier.min(until)));
        }
    }

    /// Each face gets its answers at once.
    fn answer(&self, answers: Vec<(Ticket, Outcome)>, before: Option<&Arc<dyn Moment>>) {
        let mut parts: Vec<Vec<(u64, Outcome)>> = self.faces.iter().map(|_| Vec::new()).collect();
        for (Ticket { face, number }, outcome) in answers {
            if let Some(part) = parts.get_mut(face) {
                part.push((number, outcome));
            }
        }
        for (face, answers) in self.faces.iter().zip(parts).filter(|(_, answers)| !answers.is_empty()) {
            face.deliver(Delivery { answers, before: before.cloned() });
        }
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
