//! One connection.
//!
//! ```text
//! Shaking ──► Open ──► (the client closes, or the connection breaks) closed
//!    │          │ a protocol fault, or the end of the server
//!    └──────────┴──► Parting: send the rest, shut down our end, throw later input away ──► closed
//! ```
//! The thread parts with a client and does not close at once: the system would otherwise report a broken connection to
//! the client and throw away replies that the client has not read yet.

use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{Shutdown, shutdown};

use super::receive_buffer::{ReceiveBuffer, ReceiveOutcome};
use super::send_buffer::SendBuffer;
use super::turn::TurnBytes;
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::{OUTBOX_BYTES_MAX, RECEIVE_BYTES};
use crate::net::sockets::is_settled;
use crate::security::{Identity, Login};
use crate::zmtp::{
    Claim, ClaimRefusal, Handshake, HandshakeStep, Mechanisms, MessageBounds, MessageCutter, MessageView, Messages,
    ProtocolError, SocketType, Unconsumed,
};

/// Stage of a connection.
#[derive(Debug)]
enum ConnectionStage {
    Shaking(Handshake),
    Open,
    /// `true`: our end is shut down.
    Parting(bool),
}

/// Why no more input comes from a client.
#[derive(Debug)]
pub(super) enum InputEnd {
    /// The client closed the connection, or the connection broke.
    Gone,
    /// The client broke the protocol. Messages that it sent before are good.
    Fault(ProtocolError),
}

impl From<Errno> for InputEnd {
    fn from(_: Errno) -> Self {
        Self::Gone
    }
}

/// Messages that have been cut and not handled, with the bytes that they lie in.
#[derive(Debug)]
pub(super) struct ReceivedMessages {
    pub(super) messages: Messages,
    pub(super) bytes: Vec<u8>,
}

impl ReceivedMessages {
    pub(super) fn view(&self) -> MessageView<'_> {
        self.messages.view(&self.bytes)
    }
}

/// A connection, with the frontend's state for it.
#[derive(Debug)]
pub(super) struct Connection<S> {
    descriptor: ConnectionDescriptor,
    stage: ConnectionStage,
    inbox: ReceiveBuffer,
    cutter: MessageCutter,
    /// Messages to handle before the thread receives more.
    pub(super) held: Option<Box<ReceivedMessages>>,
    /// The held messages wait until the frontend resumes this connection.
    pub(super) parked: bool,
    /// Messages of it are with another thread. Memory that they take, in bytes.
    pub(super) out: Option<usize>,
    /// The receive buffer has more messages, which were not cut when the last ones went out.
    pub(super) uncut: bool,
    /// It closes when they come back.
    pub(super) closing: bool,
    /// Input has come while messages of it were out. The system is asked not to report more: the thread receives after
    /// each turn by itself, until there is nothing.
    pub(super) hot: bool,
    /// The client has sent its last byte, which was found when the thread received ahead.
    ended: bool,
    /// Input has come while the thread does not receive. The system is asked not to report more.
    pub(super) muted: bool,
    /// The connection gets no turns, since the frontend holds too much.
    pub(super) throttled: bool,
    /// The next reply is large, and waits for memory. The connection itself need not hold much.
    pub(super) starved: bool,
    /// The value of [`Connection::moved`] and the time since which it counts, while the frontend holds too much.
    pub(super) progress: (u64, Now),
    /// A protocol fault follows the held messages.
    pub(super) faulty: bool,
    /// What the peer claims, until the thread begins to check it.
    pub(super) claim: Option<Claim>,
    /// The check of its password, while it lasts. Meanwhile it gets no turns.
    pub(super) login: Option<Login>,
    /// The user, where users are named.
    pub(super) identity: Option<Identity>,
    pub(super) outbox: SendBuffer,
    pub(super) state: S,
    /// Tells it from other connections in the same slot.
    pub(super) generation: u32,
    /// Events that the system has been asked to report.
    pub(super) interest: EventFlags,
    /// The descriptor is in the epoll.
    pub(super) registered: bool,
    /// The thread receives no more until the client has read.
    paused: bool,
    /// The client takes no more bytes. Bytes that it sent before are still received.
    broken: bool,
    /// It is in the list of connections to flush.
    pub(super) touched: bool,
    /// It is in the list of connections with input that was received and not handled.
    pub(super) queued: bool,
    /// Its last turn was long, so the next one comes after those of others.
    pub(super) is_long: bool,
    /// By then the connection must be through its handshake, or have ended its parting.
    pub(super) deadline: Now,
    /// The value of [`Connection::kept`] when it was last counted, in bytes.
    pub(super) counted: usize,
    /// When the last request came, or a part of one. Before the first one, when the connection came.
    pub(super) active: Now,
}

impl<S> Connection<S> {
    /// Greets a client that has just connected. It has to name a user by one of these mechanisms, if there are any.
    pub(super) fn greet(
        descriptor: ConnectionDescriptor,
        state: S,
        generation: u32,
        deadline: Now,
        mechanisms: Option<&Arc<Mechanisms>>,
    ) -> Self {
        let mut outbox = SendBuffer::default();
        let handshake = match mechanisms {
            None => Handshake::open(SocketType::Router, outbox.bytes_mut()),
            Some(mechanisms) => Handshake::serve(SocketType::Router, mechanisms, outbox.bytes_mut()),
        };
        Self {
            descriptor,
            stage: ConnectionStage::Shaking(handshake),
            inbox: ReceiveBuffer::default(),
            cutter: MessageCutter::default(),
            held: None,
            parked: false,
            out: None,
            uncut: false,
            closing: false,
            hot: false,
            ended: false,
            muted: false,
            throttled: false,
            starved: false,
            progress: (0, deadline),
            faulty: false,
            claim: None,
            login: None,
            identity: None,
            outbox,
            state,
            generation,
            interest: EventFlags::IN,
            registered: true,
            paused: false,
            broken: false,
            touched: false,
            queued: false,
            is_long: false,
            deadline,
            counted: 0,
            active: deadline,
        }
    }

    pub(super) fn descriptor(&self) -> &std::os::fd::OwnedFd {
        &self.descriptor
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, ConnectionStage::Open)
    }

    pub(super) fn is_disconnecting(&self) -> bool {
        matches!(self.stage, ConnectionStage::Parting(_))
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether nobody is served: the peer is not through its handshake, or has had its last reply.
    pub(super) fn is_outside(&self) -> bool {
        let is_outside = matches!(self.stage, ConnectionStage::Shaking(_) | ConnectionStage::Parting(true));
        is_outside && self.login.is_none()
    }

    /// Bytes of input and output that the connection holds.
    pub(super) fn bytes(&self) -> usize {
        self.inbox.held()
            + self.outbox.held()
            + self.held.as_ref().map_or(0, |held| held.bytes.len())
            + self.out_bytes()
    }

    fn out_bytes(&self) -> usize {
        self.out.unwrap_or(0)
    }

    /// Memory that the connection keeps, in bytes. Empty room in buffers counts, and so do the positions of frames.
    /// Buffers of at most [`BUFFER_KEPT_BYTES`](crate::limits::BUFFER_KEPT_BYTES), which each connection may keep,
    /// count as far as they are used.
    pub(super) fn kept(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.bytes.capacity() + held.messages.kept_bytes());
        self.inbox.kept() + self.outbox.kept() + held + self.cutter.kept_bytes() + self.out_bytes()
    }

    /// Bytes that were received from it, ever.
    pub(super) fn received(&self) -> u64 {
        self.inbox.received()
    }

    /// Whether the client has sent bytes that the thread has not received.
    pub(super) fn has_unreceived(&self) -> bool {
        ioctl_fionread(&self.descriptor).is_ok_and(|bytes| bytes > 0)
    }

    /// Bytes that it holds of an incomplete message.
    pub(super) fn unfinished(&self) -> usize {
        if self.has_messages() { 0 } else { self.inbox.held() }
    }

    /// Changes whenever the client has read bytes, or the thread has received bytes from it.
    pub(super) fn moved(&self) -> u64 {
        self.outbox.sent() + self.inbox.held() as u64
    }

    /// Whether it may have a turn.
    pub(super) fn is_served(&self) -> bool {
        !self.paused && !self.parked && !self.throttled && self.out.is_none() && self.login.is_none()
    }

    /// Whether it has messages that wait for this server. They are handled even if the client leaves meanwhile.
    pub(super) fn waits(&self) -> bool {
        self.parked || self.out.is_some() || (self.throttled && self.held.is_some())
    }

    /// Whether its messages wait for this server, and not for memory or its client.
    pub(super) fn is_busy(&self) -> bool {
        self.parked || self.out.is_some()
    }

    /// Whether messages of it are held here or with another thread.
    pub(super) fn has_messages(&self) -> bool {
        self.held.is_some() || self.out.is_some()
    }

    /// Whether the thread receives from it although its messages wait: a client with heartbeats closes a connection on
    /// which no PONG comes. It is not known of a client that has to wait before its first PING.
    pub(super) fn is_read_ahead(&self) -> bool {
        let pings = self.parked || self.cutter.has_pings();
        let answers = self.outbox.len() + self.outbox.put_off();
        let has_room = self.inbox.held() < RECEIVE_BYTES && answers < RECEIVE_BYTES;
        self.is_open() && pings && self.waits() && !self.ended && !self.faulty && has_room
    }

    /// Receives behind the messages that wait, and answers PINGs.
    pub(super) fn receive_ahead(&mut self) {
        match self.inbox.receive_own(&self.descriptor) {
            Ok(ReceiveOutcome::Bytes) => self.inbox.answer_pings(&self.cutter, self.outbox.bytes_mut()),
            // The thread finds the end again when it receives the next time.
            Ok(ReceiveOutcome::End | ReceiveOutcome::Fault(_)) | Err(_) => self.ended = true,
        }
    }

    /// Receives input behind the bytes of `shared` if `readable`, and cuts it into at most `most` messages. They lie in the
    /// connection's [unused](Connection::unused) bytes, or in what was added to `shared`. The caller keeps the rest with
    /// [`Connection::keep`]. After an end there is no rest to keep, but the messages before it are good.
    pub(super) fn take(
        &mut self,
        readable: bool,
        bounds: &MessageBounds,
        most: usize,
        shared: &mut Vec<u8>,
        messages: &mut Messages,
    ) -> Result<Unconsumed, InputEnd> {
        messages.clear();
        let from = shared.len();
        let end = if readable {
            self.outbox.receive();
            self.inbox.receive(&self.descriptor, shared)?
        } else {
            ReceiveOutcome::Bytes
        };
        let shared = shared.get(from..).unwrap_or_default();
        match (&mut self.stage, end) {
            (_, ReceiveOutcome::End) => Err(InputEnd::Gone),
            (_, ReceiveOutcome::Fault(fault)) => Err(InputEnd::Fault(fault)),
            (ConnectionStage::Parting(_), ReceiveOutcome::Bytes) => {
                let rest = self.inbox.unused(shared).len();
                Ok(Unconsumed { begun: rest..rest, rest })
            }
            (ConnectionStage::Open, ReceiveOutcome::Bytes) => self.cut(0, bounds, most, shared, messages),
            (ConnectionStage::Shaking(handshake), ReceiveOutcome::Bytes) => {
                let bytes = self.inbox.unused(shared);
                let (taken, step) = handshake.advance(bytes, self.outbox.bytes_mut()).map_err(InputEnd::Fault)?;
                match step {
                    HandshakeStep::More => Ok(Unconsumed { begun: taken..taken, rest: taken }),
                    HandshakeStep::Claimed(claim) => {
                        self.claim = Some(claim);
                        Ok(Unconsumed { begun: taken..taken, rest: taken })
                    }
                    HandshakeStep::Done(_) => {
                        self.stage = ConnectionStage::Open;
                        self.cut(taken, bounds, most, shared, messages)
                    }
                }
            }
        }
    }

    /// Lets the peer in after its claim. Frames have at most `frame_bytes`. False: the handshake has failed.
    pub(super) fn admit(&mut self, frame_bytes: u64) -> bool {
        let ConnectionStage::Shaking(handshake) = &mut self.stage else { return false };
        let Ok(step) = handshake.admit(self.outbox.bytes_mut()) else { return false };
        let HandshakeStep::Done(_) = step else { return true };
        let cipher = handshake.cipher();
        self.stage = ConnectionStage::Open;
        let Some(cipher) = cipher else { return true };
        self.outbox.seal_from_here(cipher.sealer);
        self.inbox.open_from_here(cipher.opener, frame_bytes).is_ok()
    }

    /// Refuses the peer after its claim.
    pub(super) fn refuse(&mut self, why: ClaimRefusal) {
        if let ConnectionStage::Shaking(handshake) = &mut self.stage {
            handshake.refuse(why, self.outbox.bytes_mut());
        }
    }

    /// Cuts the unused bytes, from `start` on.
    fn cut(
        &mut self,
        start: usize,
        bounds: &MessageBounds,
        most: usize,
        shared: &[u8],
        messages: &mut Messages,
    ) -> Result<Unconsumed, InputEnd> {
        let bytes = self.inbox.unused(shared).get(start..).unwrap_or_default();
        let left = self.cutter.cut(bytes, bounds, most, messages, self.outbox.bytes_mut());
        messages.shift(start);
        let left = left.map_err(InputEnd::Fault)?;
        Ok(Unconsumed { begun: left.begun.start + start..left.begun.end + start, rest: left.rest + start })
    }

    /// The bytes that messages were cut from.
    pub(super) fn unused<'b>(&'b self, shared: &'b [u8]) -> &'b [u8] {
        self.inbox.unused(shared)
    }

    /// The bytes that messages were cut from, and the state and send buffer that the frontend needs to handle them.
    pub(super) fn parts<'b>(&'b mut self, shared: &'b [u8]) -> (&'b [u8], &'b mut S, &'b mut SendBuffer) {
        (self.inbox.unused(shared), &mut self.state, &mut self.outbox)
    }

    /// Holds these messages, except the first `taken`.
    pub(super) fn hold(&mut self, taken: usize, messages: MessageView<'_>) {
        let (messages, bytes) = messages.rest(taken);
        self.held = (!messages.is_empty()).then(|| Box::new(ReceivedMessages { messages, bytes }));
    }

    /// As [`Connection::hold`], for messages that have just been cut. Call it before [`Connection::keep`].
    pub(super) fn hold_of_shared(&mut self, taken: usize, messages: &Messages, shared: &[u8]) {
        let (messages, bytes) = messages.rest(taken, self.inbox.unused(shared));
        self.held = (!messages.is_empty()).then(|| Box::new(ReceivedMessages { messages, bytes }));
    }

    /// Gives away the bytes of messages that have just been cut, if they lie in the connection's own buffer, with the
    /// place where they begin. Keeps the unused bytes. `is_full`: the messages are as many as a turn may have, so further
    /// ones may follow.
    pub(super) fn detach(&mut self, left: &Unconsumed, shared: &[u8], is_full: bool) -> Option<(Vec<u8>, usize)> {
        self.uncut = is_full && left.rest < self.inbox.unused(shared).len();
        self.inbox.detach(left, shared)
    }

    /// Keeps the unused bytes. Returns whether the receive buffer has bytes that were not looked at.
    pub(super) fn keep(&mut self, left: &Unconsumed, shared: &[u8]) -> bool {
        let more = left.rest < self.inbox.unused(shared).len();
        self.inbox.keep(left, shared);
        more
    }

    /// Whether it holds input that was received and not handled.
    pub(super) fn holds_input(&self) -> bool {
        self.held.is_some() || !self.inbox.is_empty()
    }

    /// As [`Connection::holds_input`], or whether the client may have sent input that the system does not report.
    pub(super) fn may_have_input(&self) -> bool {
        self.holds_input() || self.hot
    }

    /// Keeps messages that a turn has brought back.
    pub(super) fn hold_rest(&mut self, messages: Messages, bytes: TurnBytes) {
        let TurnBytes::Own(mut bytes, start) = bytes else { return };
        bytes.drain(..start);
        self.held = (!messages.is_empty()).then(|| Box::new(ReceivedMessages { messages, bytes }));
    }

    /// Writes as many bytes as the system takes, and shuts down our end of a parting connection once all are written.
    /// Returns true if the send buffer was too full and has room again.
    pub(super) fn flush(&mut self) -> bool {
        let was_full = self.paused || self.outbox.len() > OUTBOX_BYTES_MAX;
        self.broken = self.broken || self.outbox.flush(&self.descriptor).is_err();
        if self.broken {
            self.outbox.discard();
        }
        self.paused = was_full && self.outbox.len() > OUTBOX_BYTES_MAX / 2;
        if let ConnectionStage::Parting(closed @ false) = &mut self.stage
            && self.outbox.is_empty()
        {
            *closed = true;
            // It fails if the connection is gone. Epoll reports that end.
            let _gone = shutdown(&self.descriptor, Shutdown::Write);
        }
        was_full && !self.paused
    }

    /// Events that the system is to report.
    pub(super) fn wanted(&self) -> EventFlags {
        let reading = match (self.muted, self.waits()) {
            (true, _) => EventFlags::empty(),
            // Most messages are back before more input comes. If not, the connection is hot.
            (false, true) if self.is_read_ahead() || self.out.is_some() && !self.hot => EventFlags::IN,
            (false, false) if self.hot && self.is_served() => EventFlags::empty(),
            // Requests received earlier are handled even if the client leaves meanwhile, so RDHUP is not asked for.
            (false, true) => EventFlags::empty(),
            (false, false) if self.is_served() => EventFlags::IN,
            (false, false) => EventFlags::RDHUP,
        };
        if self.outbox.is_empty() { reading } else { reading | EventFlags::OUT }
    }

    /// Whether the client takes no more bytes.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Drops the unsent bytes, and later ones too. Received requests are still handled.
    pub(super) fn discard(&mut self) {
        self.broken = true;
        self.outbox.discard();
    }

    /// Whether it is still in its handshake, or no bytes are on their way in either direction.
    pub(super) fn is_settled(&self) -> bool {
        let is_empty = self.outbox.is_empty() && !self.holds_input();
        matches!(self.stage, ConnectionStage::Shaking(_)) || (is_empty && is_settled(&self.descriptor))
    }

    /// Closes the connection, and returns the frontend's state for it.
    pub(super) fn end(self) -> S {
        self.state
    }

    /// Takes no more requests.
    pub(super) fn disconnect(&mut self) {
        if !self.is_disconnecting() {
            self.stage = ConnectionStage::Parting(false);
            (self.paused, self.parked, self.throttled, self.held) = (false, false, false, None);
            (self.claim, self.login) = (None, None);
        }
    }
}
