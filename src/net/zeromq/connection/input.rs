//! The reading side of a connection.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::super::protocol::{ConnectionProtocol, InputBounds, InputCutter, InputFault};
use super::super::receive_buffer::{ReceiveBuffer, ReceiveOutcome};
use super::super::turn::TurnBytes;
use crate::limits::RECEIVE_BYTES;
use crate::resp3::{CommandBounds, Fault};
use crate::zmtp::{MessageView, Messages, Unconsumed};

/// Why no more input comes from a client.
#[derive(Debug)]
pub(in super::super) enum InputEnd {
    /// The client closed the connection, or the connection broke.
    Gone,
    /// The client broke the protocol. Messages that it sent before are good.
    Fault(InputFault),
}

impl From<Errno> for InputEnd {
    fn from(_: Errno) -> Self {
        Self::Gone
    }
}

/// Messages that have been cut and not handled, with the bytes that they lie in.
#[derive(Debug)]
pub(in super::super) struct ReceivedMessages {
    pub(in super::super) messages: Messages,
    pub(in super::super) bytes: Vec<u8>,
}

impl ReceivedMessages {
    pub(in super::super) fn view(&self) -> MessageView<'_> {
        self.messages.view(&self.bytes)
    }
}

/// What follows the input that was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InputProspect {
    /// As far as is known, more of it.
    #[default]
    More,
    /// The client has sent its last byte, which was found when the thread received ahead.
    Ended,
    /// A protocol fault follows the held messages. One of RESP is answered behind their replies.
    Faulty(Option<Fault>),
}

/// The input of a connection.
#[derive(Debug, Default)]
pub(in super::super) struct ConnectionInput {
    pub(in super::super) buffer: ReceiveBuffer,
    cutter: InputCutter,
    /// Messages to handle before the thread receives more.
    pub(in super::super) held: Option<Box<ReceivedMessages>>,
    /// The buffer has more messages, which were not cut when the last ones went out.
    pub(in super::super) uncut: bool,
    /// Input has come while messages of it were out. The system is asked not to report more: the thread receives after
    /// each turn by itself, until there is nothing.
    pub(in super::super) hot: bool,
    /// Input has come while the thread does not receive. The system is asked not to report more.
    pub(in super::super) muted: bool,
    /// The client speaks RESP, and has not named the user that it has to name.
    pub(super) needs_user: bool,
    prospect: InputProspect,
}

impl ConnectionInput {
    /// The input of a new connection. `has_users`: clients have to name their users.
    pub(super) fn new(protocol: ConnectionProtocol, has_users: bool) -> Self {
        let needs_user = protocol == ConnectionProtocol::Resp && has_users;
        Self { cutter: InputCutter::new(protocol), needs_user, ..Self::default() }
    }

    pub(super) fn protocol(&self) -> ConnectionProtocol {
        self.cutter.protocol()
    }

    /// Bytes of input here: messages with another thread do not count.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.held() + self.held.as_ref().map_or(0, |held| held.bytes.len())
    }

    /// Memory that it keeps, in bytes. The positions of frames count as well.
    pub(super) fn kept(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.bytes.capacity() + held.messages.kept_bytes());
        self.buffer.kept() + held + self.cutter.kept_bytes()
    }

    /// Whether it holds input that was received and not handled.
    pub(in super::super) fn is_held(&self) -> bool {
        self.held.is_some() || !self.buffer.is_empty()
    }

    /// As [`ConnectionInput::is_held`], or whether the client may have sent input that the system does not report.
    pub(in super::super) fn may_come(&self) -> bool {
        self.is_held() || self.hot
    }

    /// Whether a protocol fault comes next.
    pub(in super::super) fn is_faulty(&self) -> bool {
        matches!(self.prospect, InputProspect::Faulty(_)) && self.held.is_none()
    }

    /// The fault of a client that speaks RESP. It is answered before the connection ends.
    pub(super) fn fault(&self) -> Option<Fault> {
        if let InputProspect::Faulty(fault) = self.prospect { fault } else { None }
    }

    /// A protocol fault follows the held messages.
    pub(in super::super) fn note_fault(&mut self, fault: &InputFault) {
        self.prospect = InputProspect::Faulty(if let InputFault::Resp(fault) = fault { Some(*fault) } else { None });
    }

    /// Whether there may be PINGs behind the messages that wait. It is not known of a client that has to wait before its
    /// first PING.
    pub(super) fn may_have_pings(&self, is_parked: bool) -> bool {
        let Some(cutter) = self.cutter.zmtp() else { return false };
        let has_room = self.buffer.held() < RECEIVE_BYTES;
        (is_parked || cutter.has_pings()) && self.prospect == InputProspect::More && has_room
    }

    /// Receives behind the messages that wait, and answers PINGs.
    pub(super) fn receive_ahead(&mut self, descriptor: &OwnedFd, out: &mut Vec<u8>) {
        match self.buffer.receive_own(descriptor) {
            Ok(ReceiveOutcome::Bytes) => {
                if let Some(cutter) = self.cutter.zmtp() {
                    self.buffer.answer_pings(cutter, out);
                }
            }
            // The thread finds the end again when it receives the next time.
            Ok(ReceiveOutcome::End | ReceiveOutcome::Fault(_)) | Err(_) => self.prospect = InputProspect::Ended,
        }
    }

    /// Receives behind the bytes of `shared`.
    pub(super) fn receive(&mut self, descriptor: &OwnedFd, shared: &mut Vec<u8>) -> Result<(), InputEnd> {
        match self.buffer.receive(descriptor, shared)? {
            ReceiveOutcome::Bytes => Ok(()),
            ReceiveOutcome::End => Err(InputEnd::Gone),
            ReceiveOutcome::Fault(fault) => Err(InputEnd::Fault(fault)),
        }
    }

    /// Cuts the unused bytes, from `start` on. Answers to PINGs are appended to `out`.
    pub(super) fn cut(
        &mut self,
        start: usize,
        bounds: &InputBounds,
        most: usize,
        shared: &mut [u8],
        messages: &mut Messages,
        out: &mut Vec<u8>,
    ) -> Result<Unconsumed, InputEnd> {
        let commands = CommandBounds { is_proven: !self.needs_user, ..bounds.commands };
        let bounds = InputBounds { commands, ..*bounds };
        let bytes = self.buffer.unused_mut(shared).get_mut(start..).unwrap_or_default();
        let left = self.cutter.cut(bytes, &bounds, most, messages, out);
        messages.shift(start);
        let left = left.map_err(InputEnd::Fault)?;
        Ok(Unconsumed { begun: left.begun.start + start..left.begun.end + start, rest: left.rest + start })
    }

    /// Holds these messages, except the first `taken`.
    pub(in super::super) fn hold(&mut self, taken: usize, messages: MessageView<'_>) {
        let (messages, bytes) = messages.rest(taken);
        self.hold_all(messages, bytes);
    }

    /// As [`ConnectionInput::hold`], for messages that have just been cut. Call it before [`ConnectionInput::keep`].
    pub(in super::super) fn hold_of_shared(&mut self, taken: usize, messages: &Messages, shared: &[u8]) {
        let (messages, bytes) = messages.rest(taken, self.buffer.unused(shared));
        self.hold_all(messages, bytes);
    }

    /// Keeps messages that a turn has brought back.
    pub(in super::super) fn hold_rest(&mut self, messages: Messages, bytes: TurnBytes) {
        let TurnBytes::Own(mut bytes, start) = bytes else { return };
        bytes.drain(..start);
        self.hold_all(messages, bytes);
    }

    fn hold_all(&mut self, messages: Messages, bytes: Vec<u8>) {
        self.held = (!messages.is_empty()).then(|| Box::new(ReceivedMessages { messages, bytes }));
    }

    /// Gives away the bytes of messages that have just been cut, if they lie in the connection's own buffer, with the
    /// place where they begin. Keeps the unused bytes. `is_full`: the messages are as many as a turn may have, so further
    /// ones may follow.
    pub(in super::super) fn detach(
        &mut self,
        left: &Unconsumed,
        shared: &[u8],
        is_full: bool,
    ) -> Option<(Vec<u8>, usize)> {
        self.uncut = is_full && left.rest < self.buffer.unused(shared).len();
        self.buffer.detach(left, shared)
    }

    /// Keeps the unused bytes. Returns whether the receive buffer has bytes that were not looked at.
    pub(in super::super) fn keep(&mut self, left: &Unconsumed, shared: &[u8]) -> bool {
        let more = left.rest < self.buffer.unused(shared).len();
        self.buffer.keep(left, shared);
        more
    }
}
