//! The committer: drains the inbox, applies the requests, writes and syncs one batch, then answers.
//!
//! ```text
//! committer   wait ─► expire leases ─► apply the inbox    ─► commit: store, then answer ─► wait
//! frontend            expire leases ─► apply its requests ─► commit: store, then answer      if the committer is idle
//! ```
//! When no batch was stored for a while, the committer does a piece of the store's idle work, and looks at the inbox
//! again: cleaning, and a record for the next opening that all is synced.
//!
//! While one batch is being synced the next one gathers in the inbox: the more clients, the larger the batches. The
//! only timers are the deadlines of leases and of delayed syncs, and the beginning of idle work. A commit takes place
//! under one lock, so there is one order. While the committer is idle, a frontend may commit its requests by itself
//! ([`Tasks::try_commit`]). That spares two thread switches before its answer.
//!
//! This module does not interpret requests (see `engine.rs`) and does not send answers to clients (see `services`).

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, unbounded};

use super::engine::Engine;
use super::inbox::{Tasks, TasksShared};
use super::metrics::TaskMetrics;
use super::order::LeaseOrder;
use super::record::{
    CLOCK_KEY, Damaged, FORMAT, FORMAT_KEY, OLDEST_FORMAT, TOKENS_KEY, number_of, queue_of_key, task_of_key,
};
use super::slow_disk::SlowDiskBackoff;
use super::state::{CommitterState, TakenRequests};
use super::submission::InboxMessage;
use super::{Family, Policy, QueueName, ReplySink};
use crate::clock::ClockReading;
use crate::clock::lasting::{ClockMark, LastingClock};
use crate::lock::{Mutex, MutexGuard};
use crate::log::WarningPace;
use crate::store::{Error, IDS_MARK, NUMBERS_MARK, Space, Store, TOKENS_MARK, WriteBatch};

/// The longest wait for the lock before the committer checks the store. Also its longest sleep: after it the committer
/// marks a wall clock that was set, and notices that the system was suspended.
const CHECK: Duration = Duration::from_secs(5);

/// Opens the queues of a store.
///
/// # Errors
/// [`Error`] if the store cannot be read, or its records are damaged.
pub fn open(store: Box<dyn Store>, now: ClockReading) -> Result<(Tasks, Committer), Error> {
    open_with(store, now, Arc::default())
}

/// Opens the queues of a store, whose metrics others may read already.
///
/// # Errors
/// [`Error`] if the store cannot be read, or its records are damaged.
pub fn open_with(
    mut store: Box<dyn Store>,
    now: ClockReading,
    metrics: Arc<TaskMetrics>,
) -> Result<(Tasks, Committer), Error> {
    let (sender, inbox) = unbounded();
    let (clock, engine, lost) = restore(&mut *store, now, &metrics)?;
    let shared = Arc::new(TasksShared::new(Arc::clone(&metrics), store.watch()));
    let mut core = CommitterState {
        store,
        engine,
        clock,
        metrics,
        sinks: Vec::new(),
        unsynced: None,
        sleeps_until: 0,
        idle_at: None,
        refusals_logged: WarningPace::default(),
        backoff: SlowDiskBackoff::default(),
        is_probed: false,
        failed: false,
    };
    let now = core.clock.now();
    if !lost.is_empty() {
        core.store.commit(lost, true)?;
    }
    core.set_aside()?;
    core.reserve()?;
    core.commit(now, None)?;
    // The last life may have left more than this one needs.
    core.idle_at = core.store.has_idle_work().then_some(now);
    let core = Arc::new(Mutex::new(core));
    let tasks = Tasks::new(sender, Arc::clone(&shared), Arc::clone(&core));
    Ok((tasks, Committer { core, inbox, shared }))
}

/// Reads all records except the values. Returns also the removal of those that do not fit to the others, which is not
/// empty only after a repair.
fn restore(
    store: &mut dyn Store,
    now: ClockReading,
    metrics: &Arc<TaskMetrics>,
) -> Result<(LastingClock, Engine, WriteBatch), Error> {
    let mut meta = Vec::new();
    store.take(Space::Meta, &mut |key, value| meta.push((key.to_vec(), value.to_vec())));
    let find = |key: &[u8]| meta.iter().find(|(other, _)| other == key).map(|(_, value)| &**value);
    let damaged = |damaged: Damaged| store.damaged(&damaged.to_string());
    let tokens = find(TOKENS_KEY).map_or(Ok(1), |end| number_of(end, "end of the tokens")).map_err(damaged)?;
    let is_known = |format: &[u8]| (OLDEST_FORMAT..=FORMAT).any(|known| format == known.to_be_bytes());
    if find(FORMAT_KEY).is_some_and(|format| !is_known(format)) {
        return Err(store.damaged("it was written in another format"));
    }
    // A store without records of queues has no tasks either: `restore_task` would fail.
    if find(FORMAT_KEY).is_none() && !meta.is_empty() && !store.is_repairing() {
        return Err(store.damaged("the version of the format is missing"));
    }
    let mark = find(CLOCK_KEY)
        .map(|mark| ClockMark::decode(mark).ok_or(Damaged { what: "mark of the clock" }))
        .transpose()
        .map_err(damaged)?;
    let clock = LastingClock::resume(mark, now);
    metrics.clock_ahead_of_uptime.set(clock.ahead_of_uptime());
    let mut engine = Engine::new(clock.now(), tokens.max(store.marks()[TOKENS_MARK]), Arc::clone(metrics));
    for (key, record) in meta.iter().filter(|(key, _)| queue_of_key(key).is_some()) {
        engine.restore_queue(key, record).map_err(damaged)?;
    }
    reserve(store, &mut engine);
    let lost = match store.is_repairing() {
        true => restore_those_that_fit(store, &mut engine),
        false => {
            let mut restored = Ok(());
            store.take(Space::Tasks, &mut |key, record| {
                if restored.is_ok() {
                    restored = engine.restore_task(key, record, false);
                }
            });
            restored.map_err(|damaged| store.damaged(&damaged.to_string()))?;
            WriteBatch::new()
        }
    };
    engine.restore_ids(store.marks()[IDS_MARK], store.marks()[NUMBERS_MARK]);
    engine.has_restored();
    Ok((clock, engine, lost))
}

/// Makes room for the tasks of each queue, so that no table grows while they are restored.
fn reserve(store: &dyn Store, engine: &mut Engine) {
    let mut found: Option<(u32, usize)> = None;
    store.found(&mut |key| {
        let Ok((queue, _)) = task_of_key(key) else { return };
        match &mut found {
            Some((same, count)) if *same == queue => *count += 1,
            before => {
                if let Some((queue, count)) = before.replace((queue, 1)) {
                    engine.queues.reserve(queue, count);
                }
            }
        }
    });
    if let Some((queue, count)) = found {
        engine.queues.reserve(queue, count);
    }
}

/// Restores the tasks after a repair, the newest first: of two with one key the older one was finished. Returns the
/// removal of those that do not fit to their queues.
fn restore_those_that_fit(store: &mut dyn Store, engine: &mut Engine) -> WriteBatch {
    let (mut found, mut lost) = (Vec::new(), WriteBatch::new());
    store.take(Space::Tasks, &mut |key, record| found.push((key.to_vec(), record.to_vec())));
    for (key, record) in found.iter().rev() {
        if let Err(damaged) = engine.restore_task(key, record, true) {
            tracing::error!("a task is left out: {damaged}");
            lost.delete(Space::Tasks, key);
            lost.delete(Space::Values, key);
        }
    }
    engine.mark_all();
    lost
}

/// The committer thread, ready to run.
pub struct Committer {
    core: Arc<Mutex<CommitterState>>,
    inbox: Receiver<InboxMessage>,
    shared: Arc<TasksShared>,
}

impl Committer {
    /// Returns the queue with this name, and creates it if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it exists with another order.
    pub fn queue(&mut self, name: &[u8], order: LeaseOrder, policy: Policy) -> Result<QueueName, Error> {
        let mut core = self.core.lock();
        let queue = core.engine.open(name, order, policy);
        queue.ok_or_else(|| core.store.damaged(&format!("the queue {} has another order", name.escape_ascii())))
    }

    /// Returns the family of all queues whose names begin with `prefix`. Some of them may be in the store.
    ///
    /// # Errors
    /// [`Error::Damaged`] if one of them has another order.
    pub fn family(&mut self, prefix: &[u8], order: LeaseOrder, policy: Policy) -> Result<Family, Error> {
        let mut core = self.core.lock();
        let family = core.engine.family(prefix, order, policy);
        family.ok_or_else(|| core.store.damaged(&format!("a queue {}… has another order", prefix.escape_ascii())))
    }

    /// Tasks of a queue that [`Committer::queue`] has opened, or of all queues of a family, are dead after so many leases,
    /// where neither they nor their queue say otherwise.
    pub fn bound_tries(&mut self, queue: &QueueName, tries: Option<NonZeroU32>) {
        self.core.lock().engine.bound_tries(queue, tries);
    }

    /// Beyond so many tasks of all queues, in any state, none is added.
    pub fn bound_tasks(&mut self, most: u64) {
        self.core.lock().engine.bound_tasks(most);
    }

    /// Beyond so many queues none is made.
    pub fn bound_queues(&mut self, most: usize) {
        self.core.lock().engine.queues.bound(most);
    }

    /// Registers a sink and returns its number for [`super::Ticket::sink`].
    pub fn sink(&mut self, sink: Box<dyn ReplySink>) -> usize {
        let mut core = self.core.lock();
        core.sinks.push(sink);
        core.sinks.len() - 1
    }

    /// Runs the thread's loop. Returns when the last [`Tasks`] handle is gone, and everything is on disk and answered.
    /// `now` reads the clocks.
    ///
    /// # Errors
    /// [`Error`] if a batch cannot be stored. Requests without an answer may or may not be stored then.
    pub fn run(self, mut now: impl FnMut() -> ClockReading) -> Result<(), Error> {
        while let WakeReason::Over(first) = self.wait(&mut now)? {
            self.step(first, &mut now)?;
        }
        let mut core = self.lock()?;
        if core.failed {
            return Ok(());
        }
        core.engine.dismiss();
        let now = core.clock.advance(now());
        core.commit(now, None)?;
        core.store.rest()?;
        // A folder that is gone did not show itself to the writes.
        self.shared.check()
    }

    /// Commits one batch, with this message first.
    fn step(&self, first: Option<InboxMessage>, now: &mut dyn FnMut() -> ClockReading) -> Result<(), Error> {
        let mut core = self.lock()?;
        // The clock is read under the lock, because a lease begins when it is granted.
        let (start, written) = (now(), core.written());
        let time = core.clock.advance(start);
        core.sleeps_until = 0;
        let mut taken = TakenRequests::default();
        let done = core.guarded(|core| {
            core.begin(time)?;
            taken = core.apply(first, || self.inbox.try_recv().ok());
            // The drain made room in the inbox: frontends fill it while this batch is being synced.
            self.shared.notify_room(|sink| core.notify_room(sink));
            let committed = core.commit(time, None)?;
            if taken.messages == 0 {
                core.work_idle(time)?;
            }
            Ok(committed)
        });
        self.shared.set_disk_slow(core.note_commit(written, start, now()));
        self.shared.done(taken.messages, taken.bytes);
        self.shared.notify_room(|sink| core.notify_room(sink));
        done.map(drop)
    }

    /// Commits one batch of the requests in the inbox.
    #[cfg(test)]
    pub(crate) fn batch(&mut self, now: ClockReading) -> Result<(), Error> {
        self.step(None, &mut || now)
    }

    /// The record of each task as it is in memory, by its queue and its number. Without the reason of its failure.
    #[cfg(test)]
    pub(super) fn records(&self) -> Vec<(crate::store::TaskKey, Vec<u8>)> {
        let core = self.core.lock();
        let queues = core.engine.queues.indices().into_iter();
        let of_queue = |queue_index| core.engine.queues.get(queue_index).map(|entry| entry.queue.records());
        queues.filter_map(of_queue).flatten().collect()
    }

    /// Waits for a message, a deadline or the end. Checks the store after each wait without a message.
    fn wait(&self, now: &mut dyn FnMut() -> ClockReading) -> Result<WakeReason, Error> {
        let (wake, now) = {
            let mut core = self.lock()?;
            core.sleeps_until = core.wake();
            (core.sleeps_until, core.clock.advance(now()))
        };
        let sleep = Duration::from_millis(wake.saturating_sub(now)).min(CHECK);
        match self.inbox.recv_timeout(sleep) {
            Ok(message) => Ok(WakeReason::Over(Some(message))),
            Err(RecvTimeoutError::Disconnected) => Ok(WakeReason::Ended),
            Err(RecvTimeoutError::Timeout) => {
                self.shared.check()?;
                Ok(WakeReason::Over(None))
            }
        }
    }

    /// Waits for the lock. Checks the store every [`CHECK`] meanwhile.
    fn lock(&self) -> Result<MutexGuard<'_, CommitterState>, Error> {
        loop {
            match self.core.try_lock_for(CHECK) {
                Some(core) => return Ok(core),
                None => self.shared.check()?,
            }
        }
    }
}

/// The reason why a wait ended.
enum WakeReason {
    /// A message came, or the time is up.
    Over(Option<InboxMessage>),
    /// The last [`Tasks`] handle is gone.
    Ended,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::super::{Request, Submission, Ticket};
    use super::*;
    use crate::limits::TOKENS_RESERVED;
    use crate::store::tests::fake_disk::FakeDisk;

    #[test]
    fn a_frontend_wakes_the_committer_only_for_a_deadline_before_the_end_of_its_sleep() {
        let (_tasks, mut committer) = open(Box::new(FakeDisk::new()), ClockReading::from_millis(0)).unwrap();
        let queue = committer.queue(b"queue", LeaseOrder::Priority, Policy::Always).unwrap();
        let mut core = committer.core.lock();
        let commit = |core: &mut CommitterState, requests: Vec<Request>| {
            let ticket = Ticket { sink: 0, number: 0 };
            let submission = |request| Submission { queue: queue.clone(), ticket, request };
            let (_, early) = core
                .commit_for(0, requests.into_iter().map(submission).collect(), ClockReading::from_millis(0))
                .unwrap();
            (early, core.sleeps_until)
        };
        let push = || Request::Push { value: (&b"v"[..]).into(), terms: None };
        let lease = |timeout| Request::Lease { timeout, wait: false };
        assert_eq!(commit(&mut core, vec![push(), push(), push(), lease(50)]), (false, 0), "it is awake");
        core.sleeps_until = 40;
        assert_eq!(commit(&mut core, vec![lease(45)]), (false, 40), "it wakes up before");
        core.sleeps_until = 45;
        assert_eq!(commit(&mut core, vec![push()]), (false, 45), "it wakes up just then");
        core.sleeps_until = 1_000;
        assert_eq!(commit(&mut core, vec![lease(30)]), (true, 30));
    }

    #[test]
    fn tokens_are_reserved_again_when_fewer_than_half_a_reservation_is_left() {
        let (_tasks, committer) = open(Box::new(FakeDisk::new()), ClockReading::from_millis(0)).unwrap();
        let mut core = committer.core.lock();
        let mut left_after = |left| {
            let end = core.engine.reservation(0).1 - core.engine.tokens_left() + left;
            core.engine.reserved(end);
            core.commit(0, None).unwrap();
            core.engine.tokens_left()
        };
        assert_eq!(left_after(TOKENS_RESERVED / 2), TOKENS_RESERVED / 2);
        assert_eq!(left_after(TOKENS_RESERVED / 2 - 1), TOKENS_RESERVED / 2 - 1 + TOKENS_RESERVED);
    }
}
