//! Reports for workers that own their connections: LIST_TABLES and STATS, which take long where there are many tables.
//! The reporter's thread makes them, and the workers serve other connections meanwhile.
//!
//! ```text
//! worker ─► ReportClient::order ─► Reporter: metrics of all tables ─► frames ─► WakingSender
//!        ─► ReportClient::next ─► worker: the connection's send buffer
//! ```
//! A connection orders one report at a time, and its later requests wait for that report. So the number of connections
//! bounds the orders, and answers stay in order. The reporter makes a report after it was ordered, so the report shows
//! every change that its client knows of. Requests that wait for the same report share it. But a list of the tables
//! that a user may read is made for each request alone.
//!
//! This module does not define the contents of a report; see `report`. It does not park connections; see
//! `net/zeromq`.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::handle::tables;
use super::permission::may_read;
use super::report::ReportSources;
use super::wire::{Command, Reason, Reply};
use crate::net::sockets::{WakeSignal, WakingSender};
use crate::net::zeromq::{ConnectionId, ReplyBuffer};
use crate::security::Identity;
use crate::zmtp::encode_frame;

/// A report as its client receives it, behind the envelope.
pub(crate) struct FinishedReport {
    /// Its frames as they are on the wire.
    frames: Arc<Vec<u8>>,
    /// The reason if there is no report.
    pub(super) refused: Option<Reason>,
}

impl FinishedReport {
    fn of(reply: &Reply<'_>) -> Arc<Self> {
        let mut frames = Vec::new();
        reply.encode(|frame, more| encode_frame(&mut frames, frame, more));
        let refused = if let Reply::Refused(reason) = reply { Some(*reason) } else { None };
        Arc::new(Self { frames: Arc::new(frames), refused })
    }

    /// Appends the report behind this envelope.
    pub(super) fn write(&self, envelope: &[&[u8]], replies: &mut ReplyBuffer) {
        envelope.iter().for_each(|frame| replies.push(frame, true));
        replies.push_shared(&self.frames);
    }
}

/// An order: the connection, the command, and the sender for the report.
struct ReportRequest {
    id: ConnectionId,
    command: Command,
    /// The user that has ordered it, if it may not read all tables.
    user: Option<Identity>,
    sender: WakingSender<MadeReport>,
}

/// A report, and the connection that has ordered it.
type MadeReport = (ConnectionId, Arc<FinishedReport>);

/// The reporter, ready to run.
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

    /// The client of a further worker. The reporter raises `wake_signal` when it has sent that worker a report.
    pub(super) fn client(&self, wake_signal: &WakeSignal) -> ReportClient {
        let (sender, reports) = WakingSender::new(wake_signal);
        ReportClient { orders: self.sender.clone(), sender, reports, waiting: 0 }
    }

    /// The loop of the thread. Returns when all workers have ended.
    pub fn run(self) {
        let Self { orders, sender, report } = self;
        drop(sender);
        while let Ok(first) = orders.recv() {
            // Later orders are served after these.
            let due: Vec<ReportRequest> = [first].into_iter().chain(orders.try_iter()).collect();
            let (mut list, mut stats) = (None, None);
            for order in due {
                if let (Command::ListTables, Some(user)) = (order.command, &order.user) {
                    let readable = report.tables().into_iter().filter(|table| may_read(user, &table.name)).collect();
                    let made = FinishedReport::of(&tables(readable, report.reply_bytes_max));
                    order.sender.send((order.id, made));
                    continue;
                }
                let made = match order.command {
                    Command::Stats => stats.get_or_insert_with(|| FinishedReport::of(&Reply::Stats(report.render()))),
                    _ => {
                        list.get_or_insert_with(|| FinishedReport::of(&tables(report.tables(), report.reply_bytes_max)))
                    }
                };
                order.sender.send((order.id, Arc::clone(made)));
            }
        }
    }
}

/// One worker's client of the reporter: it orders reports and takes them.
pub(crate) struct ReportClient {
    orders: Sender<ReportRequest>,
    /// Goes with each order.
    sender: WakingSender<MadeReport>,
    /// The reports that have been made.
    reports: Receiver<MadeReport>,
    /// Orders whose reports have not been taken.
    waiting: usize,
}

impl ReportClient {
    /// Orders a report for a connection.
    pub(super) fn order(&mut self, id: ConnectionId, command: Command, user: Option<&Identity>) {
        let user = user.filter(|user| !user.permissions().admin).cloned();
        let order = ReportRequest { id, command, user, sender: self.sender.clone() };
        // Without a reporter the server is about to end, and no further request is answered.
        self.waiting += usize::from(self.orders.send(order).is_ok());
    }

    /// Whether an ordered report has not been taken.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// The next report that has come, and its connection.
    pub(crate) fn next(&mut self) -> Option<MadeReport> {
        let next = if self.waiting > 0 { self.reports.try_recv().ok() } else { None };
        self.waiting -= usize::from(next.is_some());
        next
    }
}
