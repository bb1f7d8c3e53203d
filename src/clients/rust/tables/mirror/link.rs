//! A connection that comes back: it is made without waiting, used, lost, and made again after a pause.
//!
//! ```text
//! Down ── the pause is over ──► Opening ── handshake ──► Up
//!   ▲                              │ no server, or late   │ lost, late, malformed
//!   └──────────────────────────────┴──────────────────────┘
//! ```
//! This module knows no protocol.

use std::time::Duration;

use rustix::event::PollFd;

use crate::clients::rust::socket::{
    ClientSocket, ClientTimeouts, ConnectError, ConnectTarget, Disconnected, OpeningSocket, OpeningStep, sleep,
};
use crate::clock::{Clock, Now};

/// The pause before another try to connect.
const PAUSE: Duration = Duration::from_millis(100);

enum LinkState {
    Down,
    Opening(OpeningSocket),
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

    /// Continues to connect, or receives a message, without waiting.
    ///
    /// # Errors
    /// If the endpoint is none, the server refuses the user, or the system makes no connection.
    pub(super) fn step(&mut self, frames: &mut Vec<Vec<u8>>) -> Result<LinkStep, Disconnected> {
        let now = self.clock.now();
        let stepped = match &mut self.state {
            LinkState::Down if now < self.due => return Ok(LinkStep::Idle),
            LinkState::Up(socket) => {
                socket.try_receive(frames).map(|come| if come { LinkStep::Received } else { LinkStep::Idle })
            }
            LinkState::Down | LinkState::Opening(_) => self.connect(now),
        };
        stepped.or_else(|error| self.lose(error))
    }

    /// Begins to connect, or continues.
    fn connect(&mut self, now: Now) -> Result<LinkStep, ConnectError> {
        let opening = match std::mem::replace(&mut self.state, LinkState::Down) {
            LinkState::Opening(opening) => opening,
            LinkState::Down | LinkState::Up(_) => {
                self.due = now.after(self.timeout);
                OpeningSocket::start(&self.target, self.timeout)?
            }
        };
        match opening.step()? {
            OpeningStep::Open(socket) => {
                self.state = LinkState::Up(socket);
                Ok(LinkStep::Connected)
            }
            OpeningStep::Waiting(_) if now >= self.due => Err(ConnectError::Late),
            OpeningStep::Waiting(opening) => {
                self.state = LinkState::Opening(opening);
                Ok(LinkStep::Idle)
            }
        }
    }

    /// Sends a message of these frames.
    ///
    /// # Errors
    /// As [`Link::step`].
    pub(super) fn send(&mut self, encode: impl FnOnce(&mut dyn FnMut(&[u8], bool))) -> Result<LinkStep, Disconnected> {
        let LinkState::Up(socket) = &mut self.state else { return Ok(LinkStep::Lost) };
        let sent = socket.send(encode, self.timeout);
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
            | ConnectError::UnknownHost(_)
            | ConnectError::Busy
            | ConnectError::Closed
            | ConnectError::Lost => Ok(LinkStep::Idle),
            ConnectError::Denied | ConnectError::Foreign(_) | ConnectError::Endpoint(_) | ConnectError::Socket(_) => {
                Err(self.target.error(error, 0, self.timeout))
            }
        }
    }

    /// Sleeps until one of these links may have a message, news of its connection or a next step, for `timeout` at most.
    /// A signal cuts the sleep short.
    pub(super) fn wait_for_any(links: [&Self; 2], timeout: Duration) -> Result<(), ConnectError> {
        let waits = links.map(Self::waits);
        let patience = waits.iter().fold(timeout, |least, (_, patience)| least.min(*patience));
        let mut polled: Vec<PollFd<'_>> = waits.into_iter().filter_map(|(polled, _)| polled).collect();
        Ok(sleep(&mut polled, patience).map(drop)?)
    }

    /// The descriptor to wait for, and the longest wait.
    fn waits(&self) -> (Option<PollFd<'_>>, Duration) {
        match &self.state {
            LinkState::Down => (None, Duration::MAX),
            LinkState::Opening(opening) => opening.waits(),
            LinkState::Up(socket) => (Some(socket.poll_fd()), Duration::MAX),
        }
    }

    /// When a step is due although nothing comes. `None`: never.
    pub(super) fn due(&self) -> Option<Now> {
        (!self.is_up()).then_some(self.due)
    }
}
