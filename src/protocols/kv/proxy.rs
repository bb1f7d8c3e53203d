//! The proxy: one ROUTER towards the clients, one DEALER towards each worker.
//!
//! ```text
//! clients ══► ROUTER ─► take_requests ─► flow control ─► DEALER i ──inproc──► worker i, the last one: the reporter
//!         ◄══        ◄─ retry, return_replies ◄───────── DEALER i ◄──inproc──
//! ```
//! No socket call of this thread blocks. A receive from an empty socket and a send to a full pipe of a client fail at
//! once. A send to a worker always succeeds: its pipe has no high-water mark, and flow control's windows bound it. So
//! the proxy and a worker never wait for each other, and a client that sends too fast is held back alone.
//!
//! The thread sleeps when all sockets are empty. While it holds replies for clients with full pipes it also wakes by a
//! time-out, because libzmq does not signal reliably that a pipe has room again.
//!
//! **The client of a reply.** A ROUTER addresses clients by routing id, and a new connection may take over an old one's
//! id. libzmq never reuses the ids that it assigns. For a client's own id, the proxy notes at each request whether it
//! came over the same connection, and addresses each reply to the connection that asked: the router refuses it when
//! another one has the id (`.cargo/libzmq`), and the proxy drops it. libzmq closes a connection whose id is taken over,
//! and the proxy does so too when the new one sends, since libzmq first sends what the old one has to read.
//!
//! This module decodes of a request only its envelope, and whether it asks for a report or a page.

mod message;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::client_names::{ClientNames, KnownClient};
use super::flow_control::{
    AnsweredRequest, Bounds, ClientIndex, FlowControl, MessageSize, ReplyVerdict, RequestVerdict, RoutingId,
    TrackedConnection,
};
use super::packet::{DeferralNotice, MessageWriter, Sender};
use super::report::ProxyMetrics;
use crate::clock::{Clock, Now, TimeLimit};
use crate::limits::{FRAME_OVERHEAD_BYTES, LINGER, MESSAGE_FRAMES_MAX, QUEUE_BURST, QUEUE_BURST_FRAMES};
use crate::log::WarningPace;
use crate::protocols::sockets::{
    Addressed, ConnectionMark, Frame, FrameOrigin, SendProgress, Socket, Stopper, ThreadGroup, WakeSignal, wait,
};
use message::ProxyMessage;
pub(super) use message::message_bytes_max;

/// The first and the longest pause between two attempts to send held replies. It doubles while no reply moves.
const PATIENCE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];
/// The proxy asks its clients again after this many times the time that asking took.
const ASKING_SHARE: u32 = 10;
/// How often the proxy checks whether the clients that were cut off are gone.
const FORGET_EVERY: Duration = Duration::from_secs(1);

impl TrackedConnection for FrameOrigin {
    type Mark = ConnectionMark;

    fn mark(&self) -> ConnectionMark {
        self.mark()
    }

    fn is_open(&self) -> bool {
        self.is_open()
    }

    fn progress(&self) -> SendProgress {
        self.progress()
    }

    fn end(&self) -> bool {
        self.end()
    }
}

/// The parts of a proxy.
pub(super) struct ProxyParts {
    pub(super) router: Socket,
    /// One for each worker, and the last one for the reporter.
    pub(super) backends: Vec<Socket>,
    /// Told from outside to take no more requests. Rings `bell`.
    pub(super) stopper: Stopper,
    pub(super) bell: WakeSignal,
    /// Set by the proxy when it sends no more requests to the workers.
    pub(super) workers_stop: Arc<AtomicBool>,
    /// The workers that may still send.
    pub(super) workers: ThreadGroup,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<ProxyMetrics>,
    /// For the slow log and refusals.
    pub(super) names: Arc<ClientNames>,
    /// A client's connection has a user.
    pub(super) has_users: bool,
}

/// The proxy, ready to run.
pub struct Proxy {
    parts: ProxyParts,
    account: FlowControl<Frame, FrameOrigin>,
    /// The longest message that is kept, in bytes of memory.
    message_bytes_max: u64,
    id: Frame,
    /// The message that is being read, behind its routing id.
    message: ProxyMessage,
    packer: MessageWriter,
    /// The frame of a reply that is being passed on.
    frame: Frame,
    patience: Duration,
    /// The time of the next attempt to send held replies.
    retry_at: Now,
    ends_told: WarningPace,
    /// The time at which the clients were last asked for their progress.
    asked_at: Now,
    /// The time of the next check for clients that are cut off and gone.
    forget_at: Now,
}

impl Proxy {
    /// A proxy for values up to `value_max` bytes, with the bounds `client_bytes` per client and `held_bytes` for all.
    pub(super) fn new(parts: ProxyParts, value_max: usize, client_bytes: u64, held_bytes: u64) -> Self {
        let reply_bytes_per_frame = value_max as u64 + 2 * FRAME_OVERHEAD_BYTES;
        let bounds = Bounds::new(client_bytes, held_bytes, reply_bytes_per_frame);
        let now = parts.clock.now();
        Self {
            account: FlowControl::new(parts.backends.len() - 1, bounds),
            packer: MessageWriter::new(parts.has_users),
            parts,
            message_bytes_max: message_bytes_max(value_max),
            id: Frame::new(),
            message: ProxyMessage::new(),
            frame: Frame::new(),
            patience: PATIENCE[0],
            retry_at: now,
            ends_told: WarningPace::default(),
            asked_at: now,
            forget_at: now,
        }
    }

    /// The loop of the thread. Returns when it was told to stop and every request that was taken is answered.
    pub fn run(mut self) {
        while !self.parts.stopper.is_told() {
            self.rest();
            self.return_replies();
            self.retry();
            self.relieve();
            self.take_requests();
            self.show();
        }
        self.finish();
    }

    // --- requests ---

    /// Takes requests from clients, up to a burst, as long as flow control allows it.
    fn take_requests(&mut self) {
        let mut frames = 0;
        for _ in 0..QUEUE_BURST {
            if frames > QUEUE_BURST_FRAMES || self.account.is_full() || !self.parts.router.receive(&mut self.id) {
                return;
            }
            frames += self.take_request();
            self.tell_router();
        }
    }

    /// Has the router hold back the clients that press, and let those go on that no longer do.
    fn tell_router(&mut self) {
        while let Some((index, held_back)) = self.account.next_told() {
            self.parts.router.hold_back(self.account.id(index), held_back);
        }
    }

    /// Takes the message whose routing id has been received. Returns its number of frames.
    fn take_request(&mut self) -> u32 {
        let message_size = self.read_message();
        let index = self.index();
        self.parts.metrics.requests.add(1);
        let by = self.message.executor();
        match self.account.take(index, message_size, by) {
            RequestVerdict::Forward(worker) => {
                let sender = Sender { tag: index.tag(), login: self.account.connection(index).login() };
                self.packer.send(backend(&self.parts.backends, worker), sender, self.message.frames());
                self.message.forget();
            }
            RequestVerdict::Hold => {
                let login = self.account.connection(index).login();
                self.account.hold_request(index, message_size, (by, login), self.message.take());
            }
            RequestVerdict::Drop => {
                self.message.clear();
                self.parts.metrics.dropped_requests.add(1);
            }
        }
        message_size.frames
    }

    /// Reads the rest of a message into `message`. A message that is too long is read to its end and not kept.
    fn read_message(&mut self) -> MessageSize {
        let mut size = MessageSize::default();
        loop {
            let frame = self.message.next();
            self.parts.router.receive_rest(frame);
            let more = frame.more();
            size.count(frame.len());
            if size.bytes > self.message_bytes_max || (more && self.message.len() == MESSAGE_FRAMES_MAX) {
                self.discard_rest(more);
                return self.message.shorten();
            }
            if !more {
                return size;
            }
        }
    }

    fn discard_rest(&mut self, mut more: bool) {
        self.parts.metrics.oversized.add(1);
        while more {
            self.parts.router.receive_rest(&mut self.frame);
            more = self.frame.more();
        }
    }

    /// The index of the sender of the message that was read.
    fn index(&mut self) -> ClientIndex {
        let Some(index) = self.account.find(&self.id) else {
            let (id, known) = (RoutingId::of(&self.id), KnownClient::of(&self.id));
            let origin = FrameOrigin::of(self.take_id());
            let index = self.account.admit(id, origin);
            self.parts.names.put(index.tag(), known);
            return index;
        };
        if self.account.may_change_connection(index) {
            self.look_at_connection(index);
        }
        index
    }

    /// Tells flow control when the message came over another connection than the client's last one.
    fn look_at_connection(&mut self, index: ClientIndex) {
        if !self.account.comes_from(index, ConnectionMark::of(&self.id)) {
            self.parts.names.put(index.tag(), KnownClient::of(&self.id));
            let origin = FrameOrigin::of(self.take_id());
            self.account.reconnected(index, origin);
            self.go_on(index);
        }
    }

    fn take_id(&mut self) -> Frame {
        std::mem::take(&mut self.id)
    }

    /// Sends the client's held requests that may go to its worker now.
    fn go_on(&mut self, index: ClientIndex) {
        while let Some((worker, login, frames)) = self.account.next_request(index) {
            let (sender, mut frames) = (Sender { tag: index.tag(), login }, frames.collect::<Vec<Frame>>());
            self.packer.send(backend(&self.parts.backends, worker), sender, &mut frames);
        }
    }

    // --- replies ---

    /// Receives replies from the workers, up to a burst of each.
    fn return_replies(&mut self) {
        for worker in 0..self.parts.backends.len() {
            let mut frames = 0;
            for _ in 0..QUEUE_BURST {
                if frames > QUEUE_BURST_FRAMES || !backend(&self.parts.backends, worker).receive(&mut self.frame) {
                    break;
                }
                match DeferralNotice::read(&self.frame) {
                    None => frames += self.return_reply(worker),
                    Some(DeferralNotice::Deferred) => self.account.defer(worker),
                    Some(DeferralNotice::Late(number)) => self.account.is_late(worker, number),
                }
            }
        }
        self.tell_router();
    }

    /// Brings a reply whose first frame has been received to its client. Returns its number of frames.
    fn return_reply(&mut self, worker: usize) -> u32 {
        let answered = self.account.answered(worker);
        let index = answered.index;
        let fate = match answered.fate {
            ReplyVerdict::Send => self.address(index),
            held_or_dropped => held_or_dropped,
        };
        let size = match fate {
            ReplyVerdict::Send => self.pass_reply(worker, answered),
            ReplyVerdict::Hold => self.hold_reply(worker, answered),
            ReplyVerdict::Drop | ReplyVerdict::DropCut => {
                self.parts.metrics.undeliverable.add(u64::from(fate == ReplyVerdict::Drop));
                self.each_frame(worker, |_, _, _| {})
            }
        };
        self.go_on(index);
        while let Some(due) = self.account.next_due() {
            self.go_on(due);
        }
        size.frames
    }

    /// Begins a message over the client's connection, if that is there and has room.
    fn address(&mut self, index: ClientIndex) -> ReplyVerdict {
        let addressed = if self.account.has_room(index) {
            self.parts.router.address_over(self.account.id(index), self.account.connection(index))
        } else {
            Addressed::Full
        };
        match addressed {
            Addressed::Ready => ReplyVerdict::Send,
            Addressed::Full => ReplyVerdict::Hold,
            Addressed::Unknown => {
                self.account.gone(index);
                ReplyVerdict::Drop
            }
        }
    }

    /// Forwards the frames of a reply as they are received. The caller has addressed the client.
    fn pass_reply(&mut self, worker: usize, answered: AnsweredRequest) -> MessageSize {
        let size = self.each_frame(worker, |queue, frame, more| queue.router.send(frame, more));
        self.account.replied(answered, size.bytes);
        self.account.sent(answered.index, size);
        size
    }

    fn hold_reply(&mut self, worker: usize, answered: AnsweredRequest) -> MessageSize {
        let mut frames = Vec::new();
        let size = self.each_frame(worker, |_, frame, _| frames.push(std::mem::take(frame)));
        self.account.replied(answered, size.bytes);
        let stalled = self.account.stalled_count();
        self.account.hold_reply(answered.index, size, frames.into_iter());
        if self.account.stalled_count() > stalled {
            self.try_again_in(PATIENCE[0]);
        }
        size
    }

    /// Calls `each` on all frames of a reply, with whether more follow. Returns the reply's size.
    fn each_frame(&mut self, worker: usize, mut each: impl FnMut(&ProxyParts, &mut Frame, bool)) -> MessageSize {
        let mut size = MessageSize::default();
        loop {
            let more = self.frame.more();
            size.count_received(&self.frame, more);
            each(&self.parts, &mut self.frame, more);
            if !more {
                return size;
            }
            backend(&self.parts.backends, worker).receive_rest(&mut self.frame);
        }
    }

    /// Sends held replies to the clients whose pipes have room again.
    fn retry(&mut self) {
        if self.account.stalled_count() == 0 || self.parts.clock.now() < self.retry_at {
            return;
        }
        let mut moved = false;
        for position in (0..self.account.stalled_count()).rev() {
            if let Some(index) = self.account.stalled(position) {
                moved |= self.retry_client(index);
            }
        }
        let longer = (self.patience * 2).min(PATIENCE[1]);
        self.try_again_in(if moved { PATIENCE[0] } else { longer });
        self.tell_router();
    }

    /// Enforces the bound of all clients together, unread replies included. Asks the clients for their progress.
    fn relieve(&mut self) {
        let is_over = self.account.is_over();
        if !is_over {
            self.account.is_within();
        }
        if self.account.piped() == 0 && !self.account.asks_soon() {
            return;
        }
        let now = self.parts.clock.now();
        if now < self.asked_at.after(self.account.ask_every()) {
            return;
        }
        self.asked_at = now;
        if is_over {
            let cuts = self.account.cuts();
            self.account.relieve(now);
            self.tell_router();
            self.warn(self.account.cuts() - cuts, now);
        } else {
            self.account.ask_meters(now);
            // Where very many clients are asked, that takes a tenth of this thread's time at most.
            self.asked_at = now.after(now.time_until(self.parts.clock.now()) * ASKING_SHARE);
        }
    }

    fn warn(&mut self, ended: u64, now: Now) {
        if ended > 0 && self.ends_told.is_time(now) {
            tracing::warn!("clients together have too much to read: {ended} that have most of it are disconnected");
        }
    }

    fn try_again_in(&mut self, patience: Duration) {
        self.patience = patience;
        self.retry_at = self.parts.clock.now().after(patience);
    }

    fn retry_client(&mut self, index: ClientIndex) -> bool {
        let mut moved = false;
        while self.account.has_backlog(index) && self.address(index) == ReplyVerdict::Send {
            if let Some(frames) = self.account.next_reply(index) {
                self.parts.router.send_all(frames);
            }
            moved = true;
        }
        self.go_on(index);
        moved
    }

    // --- sleep ---

    /// Sleeps if no message is there, until one may have come.
    fn rest(&mut self) {
        self.forget_gone();
        let retry_at = (self.account.stalled_count() > 0).then_some(self.retry_at);
        let ask_at = self.account.asks_soon().then(|| self.asked_at.after(self.account.ask_every()));
        let left = |at: Now| self.parts.clock.now().time_until(at);
        let timeout = retry_at.into_iter().chain(ask_at).min().map(left);
        // While flow control is full, either answers are on their way, which wake the proxy, or clients have to read.
        self.wait(timeout, !self.account.is_full());
    }

    fn wait(&self, timeout: Option<Duration>, for_requests: bool) {
        let parts = &self.parts;
        let router = for_requests.then_some(&parts.router);
        let sockets: Vec<&Socket> = parts.backends.iter().chain(router).collect();
        wait(&sockets, &parts.bell, timeout);
    }

    /// Forgets clients that are gone, at intervals, and only after the ROUTER was found empty.
    fn forget_gone(&mut self) {
        if !self.account.has_cut_off() || !self.parts.router.is_quiet() {
            return;
        }
        let now = self.parts.clock.now();
        if now >= self.forget_at {
            self.account.forget_gone();
            self.forget_at = now.after(FORGET_EVERY);
        }
    }

    /// Updates the metrics for STATS.
    fn show(&self) {
        let (clients, held) = self.account.totals();
        self.parts.metrics.clients.set(clients as u64);
        self.parts.metrics.held_bytes.set(held);
        self.parts.metrics.unread_bytes.set(self.account.piped());
        self.parts.metrics.found_unread_bytes.set(self.account.found_unread());
        self.parts.metrics.cut_off.set(self.account.cuts());
        self.parts.metrics.held_back.set(self.account.holds());
    }

    // --- end ---

    /// Answers the requests that were taken, as long as sockets may linger, and ends the workers.
    fn finish(mut self) {
        let clock = self.parts.clock;
        let limit = TimeLimit::begin(clock.now(), LINGER);
        while !self.account.is_settled() && !limit.is_over(clock.now()) {
            self.wait(Some(PATIENCE[0]), false);
            self.return_replies();
            self.retry();
        }
        self.show();
        self.parts.router.set_linger(limit.left(clock.now()));
        self.end_workers();
    }

    /// Ends the workers, and keeps their pipes until the last of them is gone. Replies that still come are dropped.
    fn end_workers(mut self) {
        // Release: pairs with the Acquire in the worker, which reads the flag after it received the next frame.
        self.parts.workers_stop.store(true, Ordering::Release);
        for backend in &self.parts.backends {
            // The send fails if the worker is gone already, or was never run.
            let _gone = backend.try_send_bytes(&[], false);
        }
        while self.parts.workers.is_somebody_there() {
            self.wait(Some(PATIENCE[1]), false);
            for backend in &self.parts.backends {
                while backend.receive(&mut self.frame) {}
            }
        }
    }
}

fn backend(backends: &[Socket], worker: usize) -> &Socket {
    backends.get(worker).expect("the account knows how many workers there are")
}
