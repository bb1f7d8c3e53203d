//! A connection that comes back: it is made without waiting, used, lost, and made again after a pause.
//!
//! ```text
//! Down ── the pause is over ──► Opening ── handshake ──► Up
//!   ▲                              │ no server, or late   │ lost, late, malformed
//!   └──────────────────────────────┴──────────────────────┘
//! ```
//! This module knows no protocol.

use std::time::Duration;

use zmq::Message;

use crate::clock::{Clock, Now};
use crate::protocols::client_socket::{ClientSocket, ClientTimeouts, ConnectError, ConnectTarget, Disconnected};

/// The pause before another try to connect.
const PAUSE: Duration = Duration::from_millis(100);

enum LinkState {
    Down,
    Opening(ClientSocket),
    Up(ClientSocket),
}

/// A connection to one endpoint.
pub(super) struct Link {
    target: ConnectTarget,
    /// How long a handshake may take.
    timeout: Duration,
    clock: Clock,
    state: LinkState,
    /// When the next try begins, or the handshake is late.
    due: Now,
}

/// What a step of a link has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkStep {
    /// Nothing.
    Idle,
    /// The connection is there.
    Connected,
    /// A message is in the frames.
    Received,
    /// The connection is lost.
    Lost,
}

impl Link {
    pub(super) fn new(target: ConnectTarget, timeout: Duration, clock: Clock) -> Self {
        Self { target, timeout, clock, state: LinkState::Down, due: clock.now() }
    }

    /// The endpoint, for errors.
    pub(super) fn target(&self) -> &ConnectTarget {
        &self.target
    }

    /// Connects and waits for it, so long at most.
    pub(super) fn open(&mut self, timeouts: ClientTimeouts) -> Result<(), Disconnected> {
        let opened = ClientSocket::open(&self.target, timeouts);
        self.state = LinkState::Up(opened.map_err(|error| self.target.error(error, 0, timeouts))?);
        Ok(())
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up(_))
    }

    /// Goes on connecting, or receives a message, without waiting.
    ///
    /// # Errors
    /// If libzmq refuses the endpoint or fails.
    pub(super) fn step(&mut self, frames: &mut Vec<Message>) -> Result<LinkStep, Disconnected> {
        let now = self.clock.now();
        let stepped = match &mut self.state {
            LinkState::Down if now < self.due => return Ok(LinkStep::Idle),
            LinkState::Down => ClientSocket::start(&self.target).map(|socket| {
                self.due = now.after(self.timeout);
                self.state = LinkState::Opening(socket);
                LinkStep::Idle
            }),
            LinkState::Opening(socket) => match socket.is_connected() {
                Ok(true) => {
                    if let LinkState::Opening(socket) = std::mem::replace(&mut self.state, LinkState::Down) {
                        self.state = LinkState::Up(socket);
                    }
                    return Ok(LinkStep::Connected);
                }
                Ok(false) if now >= self.due => Err(ConnectError::Late),
                Ok(false) => return Ok(LinkStep::Idle),
                Err(error) => Err(error),
            },
            LinkState::Up(socket) => {
                socket.try_receive(frames).map(|come| if come { LinkStep::Received } else { LinkStep::Idle })
            }
        };
        stepped.or_else(|error| self.lose(error))
    }

    /// Sends a message of these frames.
    ///
    /// # Errors
    /// If libzmq fails.
    pub(super) fn send(&mut self, encode: impl FnOnce(&mut dyn FnMut(&[u8], bool))) -> Result<LinkStep, Disconnected> {
        let LinkState::Up(socket) = &mut self.state else { return Ok(LinkStep::Lost) };
        let mut sent = Ok(());
        encode(&mut |frame, more| {
            if sent.is_ok() {
                sent = socket.send(frame, more, self.timeout);
            }
        });
        sent.map(|()| LinkStep::Idle).or_else(|error| self.lose(error))
    }

    /// Drops the connection. Another one is made after a pause.
    pub(super) fn drop_connection(&mut self) {
        self.state = LinkState::Down;
        self.due = self.clock.now().after(PAUSE);
    }

    fn lose(&mut self, error: ConnectError) -> Result<LinkStep, Disconnected> {
        let was_up = self.is_up();
        self.drop_connection();
        match error {
            ConnectError::Late | ConnectError::Lost if was_up => Ok(LinkStep::Lost),
            ConnectError::Late
            | ConnectError::Unreached
            | ConnectError::Refused
            | ConnectError::Busy
            | ConnectError::Closed
            | ConnectError::Lost => Ok(LinkStep::Idle),
            ConnectError::Denied | ConnectError::Endpoint(_) | ConnectError::Socket(_) => {
                Err(self.target.error(error, 0, self.timeout))
            }
        }
    }

    /// The socket to wait for.
    pub(super) fn socket(&self) -> Option<&ClientSocket> {
        match &self.state {
            LinkState::Down => None,
            LinkState::Opening(socket) | LinkState::Up(socket) => Some(socket),
        }
    }

    /// When a step is due although nothing comes. `None`: never.
    pub(super) fn due(&self) -> Option<Now> {
        (!self.is_up()).then_some(self.due)
    }
}
