//! One connection.
//!
//! ```text
//! Shaking ──► Open ──► (the peer closes, or the connection breaks) gone
//!    │          │ a fault, or the end of the server
//!    └──────────┴──► Parting: what is left is sent, then our end is closed, and what still comes is thrown away ──► gone
//! ```
//! Parting, and not closing at once: the system would otherwise tell the peer that the connection was broken, and throw away
//! what it has not read yet.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{Shutdown, shutdown};

use super::receive_buffer::{ReceiveBuffer, ReceiveOutcome};
use super::send_buffer::SendBuffer;
use crate::clock::Now;
use crate::limits::OUTBOX_BYTES_MAX;
use crate::protocols::sockets::is_settled;
use crate::zmtp::{
    Handshake, HandshakeStep, MessageBounds, MessageCutter, Messages, ProtocolError, SocketType, Unconsumed,
};

/// How far a connection is.
#[derive(Debug)]
enum ConnectionStage {
    Shaking(Handshake),
    Open,
    /// `true`: our end is closed.
    Parting(bool),
}

/// Why nothing more comes from a peer.
#[derive(Debug)]
pub(super) enum InputEnd {
    /// It has closed the connection, or it broke.
    Gone,
    /// It did what it must not. What it sent before is good.
    Fault(ProtocolError),
}

impl From<Errno> for InputEnd {
    fn from(_: Errno) -> Self {
        Self::Gone
    }
}

/// Messages that have been cut and not taken, with the bytes that they lie in.
#[derive(Debug)]
pub(super) struct ReceivedMessages {
    pub(super) messages: Messages,
    pub(super) bytes: Vec<u8>,
}

/// A connection, and what whoever serves keeps for it.
#[derive(Debug)]
pub(super) struct Connection<S> {
    descriptor: OwnedFd,
    stage: ConnectionStage,
    inbox: ReceiveBuffer,
    cutter: MessageCutter,
    /// What is taken before anything else is received.
    pub(super) held: Option<Box<ReceivedMessages>>,
    /// What is held waits for whoever serves.
    pub(super) parked: bool,
    /// It has sent something while nothing is received: the system does not tell of more.
    pub(super) muted: bool,
    /// Nothing is taken of it, since the frontend holds too much.
    pub(super) throttled: bool,
    /// And not because of what itself holds: its next answer would be large.
    pub(super) starved: bool,
    /// What [`Peer::moved`] was, and when it was so first, while the frontend holds too much.
    pub(super) progress: (u64, Now),
    /// What follows the messages that are held is a fault.
    pub(super) faulty: bool,
    pub(super) outbox: SendBuffer,
    pub(super) state: S,
    /// Tells it from others that have or had its place.
    pub(super) generation: u32,
    /// What the system has been asked to tell of.
    pub(super) interest: EventFlags,
    /// The system has been asked at all.
    pub(super) registered: bool,
    /// No more is received until it has read.
    paused: bool,
    /// It takes nothing any more. What it has sent before is still received.
    broken: bool,
    /// It is in the list of those whose outboxes are to be flushed.
    pub(super) touched: bool,
    /// It is in the list of those who have sent more than was taken.
    pub(super) queued: bool,
    /// When it has to be through with the handshake, or gone.
    pub(super) deadline: Now,
    /// What [`Peer::kept`] was when it was last counted, in bytes.
    pub(super) counted: usize,
}

impl<S> Connection<S> {
    /// Greets a peer that has just connected.
    pub(super) fn greet(descriptor: OwnedFd, state: S, generation: u32, deadline: Now) -> Self {
        let mut outbox = SendBuffer::default();
        let handshake = Handshake::begin(SocketType::Router, outbox.bytes_mut());
        Self {
            descriptor,
            stage: ConnectionStage::Shaking(handshake),
            inbox: ReceiveBuffer::default(),
            cutter: MessageCutter::default(),
            held: None,
            parked: false,
            muted: false,
            throttled: false,
            starved: false,
            progress: (0, deadline),
            faulty: false,
            outbox,
            state,
            generation,
            interest: EventFlags::IN,
            registered: true,
            paused: false,
            broken: false,
            touched: false,
            queued: false,
            deadline,
            counted: 0,
        }
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
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

    /// What it holds, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.inbox.held() + self.outbox.held() + self.held.as_ref().map_or(0, |held| held.bytes.len())
    }

    /// What it keeps in memory, in bytes: room that is empty counts, and where frames lie. What each connection may keep in any case
    /// ([`BUFFER_KEPT_BYTES`](crate::limits::BUFFER_KEPT_BYTES)) counts as far as it is used.
    pub(super) fn kept(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.bytes.capacity() + held.messages.kept_bytes());
        self.inbox.kept() + self.outbox.kept() + held + self.cutter.kept_bytes()
    }

    /// Whether it has sent something that was not received yet.
    pub(super) fn has_unreceived(&self) -> bool {
        ioctl_fionread(&self.descriptor).is_ok_and(|bytes| bytes > 0)
    }

    /// What it holds of a message that has not come whole, in bytes.
    pub(super) fn unfinished(&self) -> usize {
        if self.held.is_some() { 0 } else { self.inbox.held() }
    }

    /// Changes whenever the peer has read something, or sent something that was received.
    pub(super) fn moved(&self) -> u64 {
        self.outbox.sent() + self.inbox.held() as u64
    }

    /// Whether it may have a turn.
    pub(super) fn is_served(&self) -> bool {
        !self.paused && !self.parked && !self.throttled
    }

    /// Whether it waits for us with messages that are to be taken, also if it leaves meanwhile.
    pub(super) fn waits(&self) -> bool {
        self.parked || (self.throttled && self.held.is_some())
    }

    /// Receives what is there, if any is expected, and cuts it into at most `most` messages. What is left is to be kept with
    /// [`Peer::keep`]; in case of an end there is nothing to keep, but the messages before it are good.
    pub(super) fn take(
        &mut self,
        readable: bool,
        (bounds, most): (&MessageBounds, usize),
        shared: &mut Vec<u8>,
        messages: &mut Messages,
    ) -> Result<Unconsumed, InputEnd> {
        messages.clear();
        let end = if readable { self.inbox.receive(&self.descriptor, shared)? } else { ReceiveOutcome::Bytes };
        if !readable {
            shared.clear();
        }
        match (&mut self.stage, end) {
            (_, ReceiveOutcome::End) => Err(InputEnd::Gone),
            (ConnectionStage::Parting(_), ReceiveOutcome::Bytes) => {
                let rest = self.inbox.unused(shared).len();
                Ok(Unconsumed { begun: rest..rest, rest })
            }
            (ConnectionStage::Open, ReceiveOutcome::Bytes) => self.cut(0, (bounds, most), shared, messages),
            (ConnectionStage::Shaking(handshake), ReceiveOutcome::Bytes) => {
                let bytes = self.inbox.unused(shared);
                let (taken, step) = handshake.advance(bytes, self.outbox.bytes_mut()).map_err(InputEnd::Fault)?;
                match step {
                    HandshakeStep::More => Ok(Unconsumed { begun: taken..taken, rest: taken }),
                    HandshakeStep::Done(_) => {
                        self.stage = ConnectionStage::Open;
                        self.cut(taken, (bounds, most), shared, messages)
                    }
                }
            }
        }
    }

    /// Cuts what is not used, from `start` on.
    fn cut(
        &mut self,
        start: usize,
        (bounds, most): (&MessageBounds, usize),
        shared: &[u8],
        messages: &mut Messages,
    ) -> Result<Unconsumed, InputEnd> {
        let bytes = self.inbox.unused(shared).get(start..).unwrap_or_default();
        let left = self.cutter.cut(bytes, bounds, most, messages, self.outbox.bytes_mut());
        messages.shift(start);
        let left = left.map_err(InputEnd::Fault)?;
        Ok(Unconsumed { begun: left.begun.start + start..left.begun.end + start, rest: left.rest + start })
    }

    /// The bytes that messages were cut from, and what whoever serves needs to handle them.
    pub(super) fn parts<'b>(&'b mut self, shared: &'b [u8]) -> (&'b [u8], &'b mut S, &'b mut SendBuffer) {
        (self.inbox.unused(shared), &mut self.state, &mut self.outbox)
    }

    /// Holds these messages but for the first `taken`.
    pub(super) fn hold(&mut self, taken: usize, messages: &Messages, bytes: &[u8]) {
        let (messages, bytes) = messages.rest(taken, bytes);
        self.held = (!messages.is_empty()).then(|| Box::new(ReceivedMessages { messages, bytes }));
    }

    /// The same of messages that have just been cut. To be called before [`Peer::keep`].
    pub(super) fn hold_of_shared(&mut self, taken: usize, messages: &Messages, shared: &[u8]) {
        let (messages, bytes) = messages.rest(taken, self.inbox.unused(shared));
        self.held = (!messages.is_empty()).then(|| Box::new(ReceivedMessages { messages, bytes }));
    }

    /// Keeps what was left. Whether anything is in the inbox that was not looked at.
    pub(super) fn keep(&mut self, left: &Unconsumed, shared: &[u8]) -> bool {
        let more = left.rest < self.inbox.unused(shared).len();
        self.inbox.keep(left, shared);
        more
    }

    /// Whether anything was received that was not taken.
    pub(super) fn holds_input(&self) -> bool {
        self.held.is_some() || !self.inbox.is_empty()
    }

    /// Has the system take what it takes of the outbox, and closes our end of a connection that is parting. True: the outbox was
    /// too full and has room again.
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
            // It fails if the connection is gone, which is heard of otherwise.
            let _gone = shutdown(&self.descriptor, Shutdown::Write);
        }
        was_full && !self.paused
    }

    /// What the system is to tell of.
    pub(super) fn wanted(&self) -> EventFlags {
        let reading = match (self.waits() || self.muted, self.is_served()) {
            // What it has asked before is done, also if it leaves meanwhile.
            (true, _) => EventFlags::empty(),
            (false, false) => EventFlags::RDHUP,
            (false, true) => EventFlags::IN,
        };
        if self.outbox.is_empty() { reading } else { reading | EventFlags::OUT }
    }

    /// What has not been taken by the system is not sent, and nothing else.
    pub(super) fn discard(&mut self) {
        self.broken = true;
        self.outbox.discard();
    }

    /// Whether it has never asked anything, or nothing is on its way to it or from it.
    pub(super) fn is_settled(&self) -> bool {
        let is_empty = self.outbox.is_empty() && !self.holds_input();
        matches!(self.stage, ConnectionStage::Shaking(_)) || (is_empty && is_settled(&self.descriptor))
    }

    /// Takes no more requests.
    pub(super) fn disconnect(&mut self) {
        if !self.is_disconnecting() {
            self.stage = ConnectionStage::Parting(false);
            (self.paused, self.parked, self.throttled, self.held) = (false, false, false, None);
        }
    }
}
