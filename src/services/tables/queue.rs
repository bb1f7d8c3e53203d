//! The frontend with libzmq's queue: one thread owns the clients' connections, and workers behind a ROUTER–DEALER queue
//! answer.
//!
//! ```text
//! clients ─► connections ─► batch: a turn of each connection that was readable ─► ROUTER ══ inproc ══► DEALER ─► worker
//!                    ▲                                                                                             │
//!                    └── sent ◄── the same batch, with the replies ◄── ROUTER ══════════════════════ DEALER ◄──────┘
//! ```
//! - **A connection has at most one turn out.** That alone keeps its order, so any worker may have the turn.
//! - **A worker has at most two batches**: one to work on, and one behind it. What comes beyond that is not received. It
//!   waits with the clients, so batches grow by themselves with the load, and nothing is bounded twice.
//! - A batch goes to the worker with the fewest. If several workers have room, they share what has come.
//! - A turn that has to wait stays with its worker, which brings it back in a batch of its own.
//!
//! The thread sleeps on one epoll, which has the connections and the ROUTER. Its descriptor is an edge, so before a sleep
//! the thread looks once more ([`QueueEnd::is_quiet`]).
//!
//! This module does not answer requests; see `turn`. It does not manage connections; see `net/zeromq`.

mod worker;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::disk_gates::{open_gates, unavailable};
use super::report::{ClientMetrics, ReportSources};
use super::turn::{ReplyTimes, TableClient};
use crate::clock::TimeLimit;
use crate::limits::{BATCH_BYTES, BATCH_MAX, BATCH_TURNS, BATCHES_OF_A_WORKER, LINGER};
use crate::net::sockets::{Stopper, WakeSignal, timespec};
use crate::net::zeromq::inproc::{Message, QueueEnd};
use crate::net::zeromq::{BoundListener, Connections, Serving, ServingParts, TurnBatch};
use crate::tables::Session;
pub(super) use worker::{QueueWorker, WorkerParts};

/// What passes between the queue and a worker.
#[derive(Default)]
pub(super) struct Work {
    pub(super) batch: TurnBatch<TableClient>,
    /// Turns that have waited. The queue has not sent this batch.
    pub(super) is_late: bool,
    /// The worker ends, and sends no more.
    pub(super) is_last: bool,
}

/// How long the thread waits for a batch alone while every worker has all that it may have. Then it looks after its
/// connections, but receives nothing.
const BUSY_LOOK: Duration = Duration::from_millis(2);
/// Turns that are not worth being divided among workers.
const TURNS_TOGETHER: usize = 8;

/// The thread of the connections, ready to run.
pub struct TablesQueue {
    connections: Connections<TableClient>,
    end: QueueEnd<Work>,
    /// How many batches each worker has.
    batches: Vec<usize>,
    /// Empty batches, whose memory is used again.
    spare: Vec<Message<Work>>,
    wake_signal: WakeSignal,
    stopper: Stopper,
    /// Set before the last message to each worker.
    stop_workers: Arc<AtomicBool>,
    metrics: Arc<ClientMetrics>,
    times: ReplyTimes,
    /// Is woken when memory is wanted: the buffers of the connections are this thread's.
    session: Session,
}

impl TablesQueue {
    /// A thread for these connections, with the workers at the other end. Each of its wake-ups raises
    /// `wake_signal`.
    pub(super) fn new(
        mut connections: Connections<TableClient>,
        end: QueueEnd<Work>,
        wake_signal: WakeSignal,
        stopper: Stopper,
        stop_workers: Arc<AtomicBool>,
        report: &ReportSources,
    ) -> io::Result<Self> {
        connections.watch(&end)?;
        let ReportSources { clock, tables, queue, queues, slow, .. } = report;
        let mut session = tables.session();
        let waker = wake_signal.clone();
        session.set_waker(Box::new(move || waker.raise()));
        let batches = vec![0; end.workers()];
        connections.allow_long_turns(batches.len());
        let metrics = Arc::clone(queues.first().expect("the queue's metrics are the first"));
        let times = ReplyTimes { clock: *clock, metrics: Arc::clone(queue), slow: Arc::clone(slow) };
        let spare = Vec::new();
        Ok(Self { connections, end, batches, spare, wake_signal, stopper, stop_workers, metrics, times, session })
    }

    /// Accepts the clients that connect to this listener.
    pub(super) fn listen(&mut self, listener: BoundListener) -> io::Result<()> {
        Ok(self.connections.listen(listener)?)
    }

    /// The loop of the thread. Returns after [`Stopper::stop`], when the requests that were taken are answered and the
    /// workers have ended.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn run(mut self) {
        let clock = self.times.clock;
        let serve = |queue: &mut Self, _limit| {
            queue.times.metrics.busy.begin(queue.connections.now().nanos());
            queue.round();
            queue.metrics.show(&queue.connections);
            queue.times.metrics.busy.end(clock.now().nanos());
            Ok::<(), Infallible>(())
        };
        let Ok(()) = Serving::run(&mut self, serve, |_, _| Ok(()));
        self.end_workers();
    }

    /// Waits for a batch, or a wake-up, alone. The turns of connections that were readable wait.
    fn has_no_batch_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(&self.end, PollFlags::IN), PollFd::new(&self.wake_signal, PollFlags::IN)];
        poll(&mut polled, Some(&timespec(time))).is_ok_and(|ready| ready == 0 || !polled[1].revents().is_empty())
    }

    /// Takes back what the workers have done, and gives them what has come, until there is nothing to do.
    fn round(&mut self) {
        loop {
            self.take_back();
            self.times.send(&mut self.connections, None);
            if !self.send_out() {
                break;
            }
        }
        self.times.send(&mut self.connections, None);
        open_gates(&mut self.connections, &self.session, unavailable);
        while self.connections.drained().is_some() {}
        while self.connections.gone().is_some() {}
        self.connections.closed();
    }

    fn take_back(&mut self) {
        while let Some((worker, mut work)) = self.end.receive() {
            self.connections.take_back(&mut work.batch);
            if !work.is_late {
                self.finished(worker);
                self.spare.push(work);
            }
        }
    }

    fn finished(&mut self, worker: usize) {
        let batches = self.batches.get_mut(worker).expect("a message comes from a worker");
        *batches -= 1;
    }

    fn has_room(&self) -> bool {
        self.batches.iter().any(|batches| *batches < BATCHES_OF_A_WORKER)
    }

    /// Gives out turns as long as there are some and a worker has room. Returns whether any was given out.
    fn send_out(&mut self) -> bool {
        let mut is_any = false;
        while let Some((worker, batches)) = self.batches.iter_mut().enumerate().min_by_key(|(_, batches)| **batches)
            && *batches < BATCHES_OF_A_WORKER
        {
            let most = self.connections.turns_waiting().div_ceil(self.batches.len()).clamp(TURNS_TOGETHER, BATCH_TURNS);
            let mut work = self.spare.pop().unwrap_or_default();
            let batch = &mut work.batch;
            while batch.len() < most
                && batch.received() < BATCH_BYTES
                && self.connections.send_out(BATCH_MAX, batch).is_some()
            {}
            if batch.is_empty() {
                self.spare.push(work);
                break;
            }
            if let Some(batches) = self.batches.get_mut(worker) {
                *batches += 1;
            }
            let sent = self.end.send(worker, work);
            assert!(sent, "workers end after the queue has said so");
            is_any = true;
        }
        is_any
    }

    /// Ends the workers. Their ends of the queue go before this one does.
    fn end_workers(mut self) {
        let clock = self.times.clock;
        let limit = TimeLimit::begin(clock.now(), LINGER);
        let left = end_workers(&mut self.end, self.batches.len(), &self.stop_workers, || limit.left(clock.now()));
        if left > 0 {
            tracing::warn!("{left} workers are stuck: the server ends without them");
            // A worker that continues after all finds the queue there.
            std::mem::forget(self.end);
        }
    }
}

impl Serving<TableClient> for TablesQueue {
    fn parts(&mut self) -> ServingParts<'_, TableClient> {
        ServingParts { connections: &mut self.connections, stopper: &self.stopper, clock: self.times.clock }
    }

    /// Waits until there is work. The last look at the queue has found nothing.
    fn wait(&mut self, limit: Option<TimeLimit>) {
        let clock = self.times.clock;
        if self.has_room() {
            let patience = self.session.patience();
            let timeout = limit.map_or(patience, |limit| limit.left(clock.now()).min(patience));
            self.connections.wait(Some(timeout), || clock.now());
            self.session.rest(self.connections.now());
        } else if self.has_no_batch_within(BUSY_LOOK) {
            self.connections.wait_without_receiving(Some(Duration::ZERO), || clock.now());
        }
    }

    fn has_waiting(&mut self) -> bool {
        self.connections.turns_out() > 0 || self.connections.awaited().is_some()
    }
}

/// Has all workers end, and waits for their last messages as long as `time_left` allows. Returns how many have not come.
fn end_workers(end: &mut QueueEnd<Work>, workers: usize, stop: &AtomicBool, time_left: impl Fn() -> Duration) -> usize {
    // Release: pairs with the Acquire of the worker, which looks at each wake-up.
    stop.store(true, Ordering::Release);
    for worker in 0..workers {
        // A worker that woke for another reason has seen `stop`. It may be gone already, and its last message is here.
        let _gone = end.send(worker, Message::default());
    }
    let mut left = workers;
    loop {
        while let Some((_, work)) = end.receive() {
            left -= usize::from(work.is_last);
        }
        let time = time_left().min(BUSY_LOOK);
        if left == 0 || time.is_zero() {
            return left;
        }
        // Interrupted or not, the queue is looked at again.
        let _ready = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&timespec(time)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::net::zeromq::inproc::queue;
    use crate::threads;

    /// The queue took its last message for one too many, and the server ended with a panic.
    #[test]
    fn a_worker_may_end_before_the_queue_asks_for_it() {
        let (mut end, workers) = queue::<Work>(2).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = workers.into_iter();
        let last = || Message::new(Work { is_late: true, is_last: true, ..Work::default() });
        let mut early = workers.next().unwrap();
        early.send(last());
        drop(early);
        let (mut late, stopped) = (workers.next().unwrap(), Arc::clone(&stop));
        let thread = threads::spawn("late", None, move || {
            while !stopped.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            late.send(last());
        });
        assert_eq!(end_workers(&mut end, 2, &stop, || LINGER), 0);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn a_worker_that_does_not_end_is_counted() {
        let (mut end, workers) = queue::<Work>(2).unwrap();
        assert_eq!(end_workers(&mut end, 2, &AtomicBool::new(false), || Duration::ZERO), 2);
        drop(workers);
    }
}
