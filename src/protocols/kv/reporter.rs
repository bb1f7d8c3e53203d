//! Reports for workers that own their connections: LIST_TABLES and STATS, which take long where there are many tables. A thread of
//! its own makes them, and the workers serve others meanwhile.
//!
//! ```text
//! worker ─► Counter::order ─► Reporter: figures of all tables ─► frames ─► shelf, bell ─► Counter::next ─► worker: its outbox
//! ```
//! A connection orders one report at a time, and waits for it with all that it asks after that. So orders are bounded by the number
//! of connections, and answers stay in order. A report is made after it has been ordered, so it tells of all that the client has
//! heard of; those that wait for the same one share it.
//!
//! What is not here: what a report says (`report`), and who waits (`protocols/native`).

use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::handle::tables;
use super::report::ReportSources;
use super::wire::{Command, Reason, Reply};
use crate::protocols::native::ConnectionId;
use crate::protocols::sockets::WakeSignal;
use crate::zmtp::encode_frame;

/// A report as it goes to a client, behind the envelope.
pub(super) struct FinishedReport {
    /// Its frames as they are on the wire.
    pub(super) frames: Vec<u8>,
    /// Why there is none.
    pub(super) refused: Option<Reason>,
}

impl FinishedReport {
    fn of(reply: &Reply<'_>) -> Arc<Self> {
        let mut frames = Vec::new();
        reply.encode(|frame, more| encode_frame(&mut frames, frame, more));
        let refused = if let Reply::Refused(reason) = reply { Some(*reason) } else { None };
        Arc::new(Self { frames, refused })
    }
}

/// Who wants which report, and where it goes.
struct ReportRequest {
    id: ConnectionId,
    command: Command,
    shelf: Arc<ReportMailbox>,
}

/// Where a worker finds what was made for its connections.
struct ReportMailbox {
    /// Put there by the reporter, taken by the worker.
    made: Mutex<Vec<(ConnectionId, Arc<FinishedReport>)>>,
    bell: WakeSignal,
}

/// Makes reports, ready to run.
pub struct Reporter {
    orders: Receiver<ReportRequest>,
    sender: Sender<ReportRequest>,
    report: Arc<ReportSources>,
}

impl Reporter {
    pub(super) fn new(report: Arc<ReportSources>) -> Self {
        let (sender, orders) = unbounded();
        Self { orders, sender, report }
    }

    /// Where a further worker orders; `bell` wakes it when there is something for it.
    pub(super) fn counter(&self, bell: WakeSignal) -> ReportClient {
        let shelf = Arc::new(ReportMailbox { made: Mutex::default(), bell });
        ReportClient { orders: self.sender.clone(), shelf, taken: Vec::new(), waiting: 0 }
    }

    /// The loop of the thread. Returns when all workers have ended.
    pub fn run(self) {
        let Self { orders, sender, report } = self;
        drop(sender);
        while let Ok(first) = orders.recv() {
            // What is ordered from here on is made after these.
            let due: Vec<ReportRequest> = [first].into_iter().chain(orders.try_iter()).collect();
            let (mut list, mut stats) = (None, None);
            for order in due {
                let made = match order.command {
                    Command::Stats => stats.get_or_insert_with(|| FinishedReport::of(&Reply::Stats(report.render()))),
                    _ => list.get_or_insert_with(|| FinishedReport::of(&tables(report.tables()))),
                };
                order.shelf.put(order.id, Arc::clone(made));
            }
        }
    }
}

impl ReportMailbox {
    fn put(&self, id: ConnectionId, made: Arc<FinishedReport>) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((id, made));
        self.bell.ring();
    }
}

/// Where one worker orders reports and gets them.
pub(super) struct ReportClient {
    orders: Sender<ReportRequest>,
    shelf: Arc<ReportMailbox>,
    /// Taken from the shelf.
    taken: Vec<(ConnectionId, Arc<FinishedReport>)>,
    /// Orders that have not come.
    waiting: usize,
}

impl ReportClient {
    /// Orders a report for a connection.
    pub(super) fn order(&mut self, id: ConnectionId, command: Command) {
        let order = ReportRequest { id, command, shelf: Arc::clone(&self.shelf) };
        // Without a reporter the server is about to end, and nobody is answered any more.
        self.waiting += usize::from(self.orders.send(order).is_ok());
    }

    /// Whether something that was ordered has not been taken.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// What has come for one of the connections.
    pub(super) fn next(&mut self) -> Option<(ConnectionId, Arc<FinishedReport>)> {
        if self.taken.is_empty() && self.waiting > 0 {
            self.taken = take(&mut *self.shelf.made.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let next = self.taken.pop();
        self.waiting -= usize::from(next.is_some());
        next
    }
}
