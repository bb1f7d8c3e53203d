//! One connection.
//!
//! Of the states on a line, one holds at a time. The lines hold together, on each side of the connection:
//!
//! ```text
//! stage     Shaking │ Open │ Parting                                      peer   unknown │ claimed │ checked │ a user
//! input     no messages │ held                 all cut │ uncut            more may come │ ended │ a fault follows
//!           asked for │ hot: not, since messages are out                  received │ muted: the thread does not receive
//! turn      here │ out: closing or not         free     │ parked          memory   no wait │ throttled │ starved
//!           not queued │ queued                short │ long
//! sending   taken │ paused: the client has to read first                  whole │ broken     flushed │ touched
//! disk      no reply waits │ gated: one waits, and all behind it         more may come │ last: it closes when all is sent
//! system    reports nothing │ these events
//! ```
//! A parked turn is here with a frontend that answers by itself, and out with one whose workers answer. Messages are
//! held or out, never both, and a connection gets turns if it is neither paused, parked, out, throttled nor checked.

mod input;
mod turn_state;

use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::ioctl_fionread;

use super::authentication::PeerIdentity;
use super::interest::Interest;
use super::protocol::{Arrival, ConnectionProtocol, InputBounds};
use super::send_buffer::SendBuffer;
use super::stage::ConnectionStage;
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::RECEIVE_BYTES;
use crate::net::sockets::is_settled;
use crate::resp3::{ReplyWriter, RespVersion};
use crate::zmtp::{ClaimRefusal, Mechanisms, Messages, SocketType, Unconsumed};
pub(super) use input::{ConnectionInput, InputEnd, ReceivedMessages};
pub(super) use turn_state::{MemoryWait, MessagesOut, TurnState};

/// What the thread watches of a connection.
#[derive(Debug)]
pub(super) struct ConnectionWatch {
    /// The value of [`Connection::kept`] when it was last counted, in bytes.
    pub(super) counted: usize,
    /// The value of [`Connection::moved`], while the frontend holds too much.
    pub(super) moved: u64,
    /// The time since which it counts.
    pub(super) moved_at: Now,
    /// By then the connection must be through its handshake, or have ended its parting.
    pub(super) deadline: Now,
    /// When the last request came, or a part of one. Before the first one, when the connection came.
    pub(super) active: Now,
}

/// A connection, with the frontend's state for it.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) descriptor: ConnectionDescriptor,
    stage: ConnectionStage,
    pub(super) peer: PeerIdentity,
    pub(super) input: ConnectionInput,
    pub(super) turn: TurnState,
    pub(super) outbox: SendBuffer,
    pub(super) interest: Interest,
    pub(super) watch: ConnectionWatch,
    pub(super) state: S,
    /// Distinguishes it from other connections in the same slot.
    pub(super) generation: u32,
}

impl<S> Connection<S> {
    /// Greets a client that has just connected. It has to name a user by one of these mechanisms, if there are any.
    pub(super) fn greet(
        Arrival { descriptor, protocol, tls }: Arrival,
        state: S,
        generation: u32,
        deadline: Now,
        mechanisms: Option<&Arc<Mechanisms>>,
    ) -> Self {
        let mut outbox = SendBuffer::default();
        let stage = match protocol {
            ConnectionProtocol::Zmtp => ConnectionStage::greet(SocketType::Router, mechanisms, outbox.bytes_mut()),
            ConnectionProtocol::Resp if tls.is_some() => ConnectionStage::Securing,
            ConnectionProtocol::Resp => ConnectionStage::Open,
        };
        let mut input = ConnectionInput::new(protocol, mechanisms.is_some());
        if let Some(session) = tls {
            outbox.secure(session.clone());
            input.buffer.secure(session);
        }
        Self {
            descriptor,
            stage,
            peer: PeerIdentity::default(),
            input,
            turn: TurnState::default(),
            outbox,
            interest: Interest::default(),
            watch: ConnectionWatch { counted: 0, moved: 0, moved_at: deadline, deadline, active: deadline },
            state,
            generation,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage.is_open()
    }

    pub(super) fn is_disconnecting(&self) -> bool {
        self.stage.is_parting()
    }

    /// Whether nobody is served: the peer is not through its handshake, or has had its last reply.
    pub(super) fn is_outside(&self) -> bool {
        let is_outside = self.stage.is_shaking() || matches!(self.stage, ConnectionStage::Parting(true));
        (is_outside || self.input.needs_user) && !self.peer.is_checked()
    }

    /// Bytes of input and output that the connection holds.
    pub(super) fn bytes(&self) -> usize {
        self.input.bytes() + self.outbox.held() + self.turn.out_bytes()
    }

    /// Memory that the connection keeps, in bytes. Empty room in buffers counts, and so do the positions of frames.
    /// Buffers of at most [`BUFFER_KEPT_BYTES`](crate::limits::BUFFER_KEPT_BYTES), which each connection may keep,
    /// count as far as they are used.
    pub(super) fn kept(&self) -> usize {
        self.input.kept() + self.outbox.kept() + self.turn.out_bytes()
    }

    /// Whether the client has sent bytes that the thread has not received.
    pub(super) fn has_unreceived(&self) -> bool {
        ioctl_fionread(&self.descriptor).is_ok_and(|bytes| bytes > 0)
    }

    /// Bytes that it holds of an incomplete message.
    pub(super) fn unfinished(&self) -> usize {
        if self.has_messages() { 0 } else { self.input.buffer.held() }
    }

    /// Changes whenever the client has read bytes, or the thread has received bytes from it.
    pub(super) fn moved(&self) -> u64 {
        self.outbox.sent() + self.input.buffer.held() as u64
    }

    /// Counts from `now` on whether it moves.
    pub(super) fn watch_moves(&mut self, now: Now) {
        (self.watch.moved, self.watch.moved_at) = (self.moved(), now);
    }

    /// Whether it may have a turn.
    pub(super) fn is_served(&self) -> bool {
        let waits = self.outbox.is_paused || self.outbox.is_last || self.turn.is_busy() || self.turn.is_throttled();
        !waits && !self.peer.is_checked()
    }

    /// Whether it has messages that wait for this server. They are handled even if the client leaves meanwhile.
    pub(super) fn waits(&self) -> bool {
        self.turn.is_busy() || (self.turn.is_throttled() && self.input.held.is_some())
    }

    /// Whether messages of it are held here or with another thread.
    pub(super) fn has_messages(&self) -> bool {
        self.input.held.is_some() || self.turn.out.is_some()
    }

    /// Whether the thread receives from it although its messages wait: a client with heartbeats closes a connection on
    /// which no PONG comes.
    pub(super) fn is_read_ahead(&self) -> bool {
        let has_room = self.outbox.len() + self.outbox.put_off() < RECEIVE_BYTES;
        self.is_open() && self.waits() && self.input.may_have_pings(self.turn.is_parked) && has_room
    }

    /// Receives behind the messages that wait, and answers PINGs.
    pub(super) fn receive_ahead(&mut self) {
        self.input.receive_ahead(&self.descriptor, self.outbox.bytes_mut());
    }

    /// Receives input behind the bytes of `shared` if `readable`, and cuts it into at most `most` messages. They lie in the
    /// unused bytes of its input, or in what was added to `shared`. The caller keeps the rest
    /// with [`ConnectionInput::keep`]. After an end there is no rest to keep, but the messages before it are good.
    pub(super) fn take(
        &mut self,
        readable: bool,
        bounds: &InputBounds,
        most: usize,
        shared: &mut Vec<u8>,
        messages: &mut Messages,
    ) -> Result<Unconsumed, InputEnd> {
        messages.clear();
        let from = shared.len();
        if readable {
            self.outbox.receive();
            self.input.receive(&self.descriptor, shared)?;
            if self.stage.is_shaking() && !self.input.buffer.is_securing() {
                self.stage.secured();
                if self.claims_by_certificate() {
                    // What came with the end of the handshake is kept until the user is known.
                    return Ok(Unconsumed { begun: 0..0, rest: 0 });
                }
            }
        }
        let shared = shared.get_mut(from..).unwrap_or_default();
        let mut taken = 0;
        if !self.is_open() {
            let bytes = self.input.buffer.unused(shared);
            taken = if self.is_disconnecting() {
                bytes.len()
            } else {
                let shaken = self.stage.advance(bytes, self.outbox.bytes_mut(), &mut self.peer);
                shaken.map_err(|fault| InputEnd::Fault(fault.into()))?
            };
            if !self.is_open() {
                return Ok(Unconsumed { begun: taken..taken, rest: taken });
            }
        }
        self.input.cut(taken, bounds, most, shared, messages, self.outbox.bytes_mut())
    }

    /// Takes the certificate of the client for its claim, if it has one and users are named.
    fn claims_by_certificate(&mut self) -> bool {
        let certificate = self.input.buffer.certificate().filter(|_| self.input.needs_user);
        certificate.map(|own| self.peer = PeerIdentity::Certified(own)).is_some()
    }

    /// What the connection speaks.
    pub(super) fn protocol(&self) -> ConnectionProtocol {
        self.input.protocol()
    }

    /// Answers the fault of a client that speaks RESP.
    pub(super) fn answer_fault(&mut self) {
        if let Some(fault) = self.input.fault() {
            ReplyWriter::new(self.outbox.bytes_mut(), RespVersion::Two).error(fault.text());
        }
    }

    /// Lets the peer in after its claim. Frames have at most `frame_bytes`. False: the handshake has failed.
    pub(super) fn admit(&mut self, frame_bytes: u64) -> bool {
        if self.protocol() == ConnectionProtocol::Resp {
            self.input.needs_user = false;
            return true;
        }
        let Ok(cipher) = self.stage.admit(self.outbox.bytes_mut()) else { return false };
        let Some(cipher) = cipher else { return true };
        self.outbox.seal_from_here(cipher.sealer);
        self.input.buffer.open_from_here(cipher.opener, frame_bytes).is_ok()
    }

    /// Refuses the peer after its claim.
    pub(super) fn refuse(&mut self, why: ClaimRefusal) {
        self.stage.refuse(why, self.outbox.bytes_mut());
    }

    /// The bytes that messages were cut from, and the state and send buffer that the frontend needs to handle them.
    pub(super) fn parts<'b>(&'b mut self, shared: &'b [u8]) -> (&'b [u8], &'b mut S, &'b mut SendBuffer) {
        (self.input.buffer.unused(shared), &mut self.state, &mut self.outbox)
    }

    /// Writes as many bytes as the system takes, and shuts down our end of a parting connection once all are written.
    /// Returns true if the send buffer was too full and has room again.
    pub(super) fn flush(&mut self) -> bool {
        let mut has_room = self.outbox.drain(&self.descriptor);
        if self.outbox.is_empty() && self.stage.is_parting() && self.outbox.close() {
            has_room |= self.outbox.drain(&self.descriptor);
        }
        if self.outbox.is_empty() {
            self.stage.shut_down(&self.descriptor);
        }
        has_room
    }

    /// Events that the system is to report.
    pub(super) fn wanted(&self) -> EventFlags {
        let ConnectionInput { hot, muted, .. } = self.input;
        let reading = match (muted, self.waits()) {
            (true, _) => EventFlags::empty(),
            // Most messages are back before more input comes. If not, the connection is hot.
            (false, true) if self.is_read_ahead() || self.turn.out.is_some() && !hot => EventFlags::IN,
            (false, false) if hot && self.is_served() => EventFlags::empty(),
            // Requests received earlier are handled even if the client leaves meanwhile, so RDHUP is not asked for.
            (false, true) => EventFlags::empty(),
            (false, false) if self.is_served() => EventFlags::IN,
            // It waits for the disk, and not for its client.
            (false, false) if self.outbox.is_gated || self.outbox.is_last => EventFlags::empty(),
            (false, false) => EventFlags::RDHUP,
        };
        if self.outbox.has_next() { reading | EventFlags::OUT } else { reading }
    }

    /// Whether it is still in its handshake, or no bytes are on their way in either direction.
    pub(super) fn is_settled(&self) -> bool {
        let is_empty = self.outbox.is_empty() && !self.input.is_held();
        self.stage.is_shaking() || (is_empty && is_settled(&self.descriptor))
    }

    /// Takes no more requests.
    pub(super) fn disconnect(&mut self) {
        if !self.is_disconnecting() {
            self.stage = ConnectionStage::Parting(false);
            (self.turn.is_parked, self.turn.memory, self.input.held) = (false, MemoryWait::No, None);
            self.outbox.is_paused = false;
            self.peer.end_check();
        }
    }
}
