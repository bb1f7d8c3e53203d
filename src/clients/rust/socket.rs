//! A client's connection, from its handshake until it is lost.
//!
//! ```text
//! ConnectTarget ─► OpeningSocket (dialing.rs, shaking.rs) ─► ClientSocket ──► the server closes: read what has come, then Lost
//!      ▲               └─► no server there, or it closes in the handshake: once more, until the time is up
//!      └────────────────────┘
//! ```
//! A lost connection is never replaced behind its user's back, since requests and notifications on the way are lost with
//! it. The calling thread does all the work: it sends and receives when a method is called, and no other thread does.
//!
//! | file | content |
//! |---|---|
//! | `dialing` | from an endpoint to a connected socket |
//! | `shaking` | the handshake |
//! | `opening` | both, one step at a time |
//! | `byte_stream` | bytes in and out, sealed with CURVE |
//! | `pipeline` | the requests in flight, and their replies |
//! | `errors` | why there is no connection |
//!
//! This module does not know any protocol's bytes, and does not decide what follows a lost connection; see the clients.

mod byte_stream;
mod dialing;
mod errors;
mod opening;
mod pipeline;
mod shaking;

#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

pub(crate) use byte_stream::{ByteStream, StreamEnd};
pub(crate) use dialing::{Dialing, resolve};
pub(super) use errors::ConnectError;
pub use errors::{Disconnected, UnknownHost};
pub(super) use opening::{OpeningSocket, OpeningStep};
pub(super) use pipeline::{Pipeline, ReplyError};
pub(crate) use shaking::{ShakeError, Shaking};

use crate::clock::Clock;
use crate::lock::Mutex;
use crate::net::sockets::timespec;
use crate::zmtp::{Credentials, MessageBounds, MessageCutter, Messages, SocketType, encode_frame};

/// Pause between two tries to reach a server that is not there: a server that starts is found within a blink, and 50
/// tries a second cost nothing.
const RETRY: Duration = Duration::from_millis(20);

/// The user that this process names when it connects. Written by [`log_in`], read for each new connection.
static LOGIN: Mutex<Credentials> = Mutex::new(Credentials::None);

/// From now on all clients of this process connect as this user. With CURVE their connections are encrypted.
pub fn log_in(credentials: Credentials) {
    *LOGIN.lock() = credentials;
}

/// How long a client waits for its server.
///
/// A server whose host accepts connections is there, however slowly it answers. So the time to connect can be short. The
/// system looks up the name of a host before that, in its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// Time until the host of the server has accepted the connection. If the host has several addresses, they share it.
    pub connect: Duration,
    /// Time for the handshake behind that, and for each reply.
    pub answer: Duration,
    /// Whether a refused connection is tried again within `connect`, for a server that starts.
    pub retries: bool,
}

impl From<Duration> for ClientTimeouts {
    /// This time for everything, with tries again.
    fn from(timeout: Duration) -> Self {
        Self { connect: timeout, answer: timeout, retries: true }
    }
}

impl ClientTimeouts {
    /// Time until the handshake is over.
    fn handshake(&self) -> Duration {
        self.connect.max(self.answer)
    }
}

/// An endpoint and the kind of socket to connect to it.
#[derive(Clone, Debug)]
pub(super) struct ConnectTarget {
    endpoint: String,
    socket_type: SocketType,
    /// Tables whose names begin so are the ones a subscriber receives. For the feed: topics.
    prefixes: Vec<Vec<u8>>,
    /// Bytes of the longest frame that is received.
    frame_bytes: u64,
}

/// The only connection that a [`ConnectTarget`] has been opened to.
pub(super) struct ClientSocket {
    stream: ByteStream,
    cutter: MessageCutter,
    bounds: MessageBounds,
    /// The message that has come whole and was not taken yet, cut from the unused bytes of the stream.
    message: Messages,
    /// Bytes up to the end of that message.
    message_end: usize,
    /// Nothing more comes. Earlier messages may still be unread.
    is_lost: bool,
}

impl ConnectTarget {
    /// A DEALER for an endpoint that answers requests.
    pub(super) fn requests(endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            socket_type: SocketType::Dealer,
            prefixes: Vec::new(),
            frame_bytes: u64::MAX,
        }
    }

    /// A SUB for an endpoint that publishes changes.
    pub(super) fn notifications(endpoint: &str, prefixes: &[&[u8]]) -> Self {
        let prefixes = prefixes.iter().map(|prefix| prefix.to_vec()).collect();
        Self { socket_type: SocketType::Sub, prefixes, ..Self::requests(endpoint) }
    }

    /// A SUB for an endpoint that publishes a feed. A connection that sends a longer frame is dropped.
    pub(super) fn feed(endpoint: &str, topic: &[u8], frame_bytes: u64) -> Self {
        Self::notifications(endpoint, &[topic]).with_frames_of(frame_bytes)
    }

    /// The same, with a bound on the bytes of a frame.
    pub(super) fn with_frames_of(self, frame_bytes: u64) -> Self {
        Self { frame_bytes, ..self }
    }

    /// The server's endpoint.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The error that the user sees.
    pub(super) fn error(
        &self,
        error: ConnectError,
        unanswered: usize,
        timeouts: impl Into<ClientTimeouts>,
    ) -> Disconnected {
        let (endpoint, timeouts) = (self.endpoint.clone(), timeouts.into());
        match error {
            ConnectError::Late => Disconnected::NoAnswer { endpoint, timeout: timeouts.answer },
            ConnectError::Unreached => Disconnected::NoAnswer { endpoint, timeout: timeouts.connect },
            ConnectError::Refused => Disconnected::Refused(endpoint),
            ConnectError::UnknownHost(problem) => Disconnected::UnknownHost(UnknownHost { address: endpoint, problem }),
            ConnectError::Denied => Disconnected::Denied(endpoint),
            ConnectError::Busy => Disconnected::Busy(endpoint),
            ConnectError::Closed => Disconnected::Closed(endpoint),
            ConnectError::Lost => Disconnected::Lost { endpoint, unanswered },
            ConnectError::Foreign(problem) => Disconnected::Foreign { endpoint, problem },
            ConnectError::Endpoint(problem) => Disconnected::Endpoint { endpoint, problem },
            ConnectError::Socket(error) => Disconnected::Socket(error.to_string()),
        }
    }
}

impl ClientSocket {
    /// A connection whose handshake is over.
    fn new(stream: ByteStream, frame_bytes: u64) -> Self {
        let bounds = MessageBounds { frame_bytes, frames: usize::MAX, bytes: usize::MAX };
        let (cutter, message) = (MessageCutter::default(), Messages::default());
        Self { stream, cutter, bounds, message, message_end: 0, is_lost: false }
    }

    /// Connects, and tries again while no server is there, until the time to connect is over.
    pub(super) fn open(target: &ConnectTarget, timeouts: impl Into<ClientTimeouts>) -> Result<Self, ConnectError> {
        let (clock, timeouts) = (Clock::start(), timeouts.into());
        loop {
            match Self::try_open(target, clock, &timeouts) {
                Err(ConnectError::Lost) if !timeouts.retries => return Err(ConnectError::Refused),
                Err(error @ (ConnectError::Lost | ConnectError::Closed | ConnectError::UnknownHost(_)))
                    if timeouts.retries =>
                {
                    let is_unknown = matches!(error, ConnectError::UnknownHost(_));
                    let late = if is_unknown { error } else { ConnectError::Unreached };
                    let left = remaining(clock, timeouts.connect).unwrap_or_default();
                    sleep(&mut [], RETRY.min(left))?;
                    if left <= RETRY {
                        return Err(late);
                    }
                }
                other => return other,
            }
        }
    }

    /// Connects once. The times count from the start of the clock.
    fn try_open(target: &ConnectTarget, clock: Clock, timeouts: &ClientTimeouts) -> Result<Self, ConnectError> {
        let left = remaining(clock, timeouts.connect).map_err(|_| ConnectError::Unreached)?;
        let mut opening = OpeningSocket::start(target, left)?;
        loop {
            opening = match opening.step()? {
                OpeningStep::Open(socket) => return Ok(socket),
                OpeningStep::Waiting(opening) => opening,
            };
            let is_accepted = opening.is_accepted();
            let timeout = if is_accepted { timeouts.handshake() } else { timeouts.connect };
            let late = if is_accepted { ConnectError::Late } else { ConnectError::Unreached };
            let left = remaining(clock, timeout).map_err(|_| late)?;
            let (polled, patience) = opening.waits();
            sleep(&mut Vec::from_iter(polled), patience.min(left))?;
        }
    }

    /// Sends a message, whose frames `encode` hands on with whether more follow. It returns when the system has taken
    /// all bytes. A server that takes none until its replies are read does not block it: replies are received meanwhile.
    ///
    /// If the connection is lost, the message is lost with it, and [`ClientSocket::receive`] reports the loss behind the
    /// messages that had come.
    ///
    /// # Errors
    /// `Late` if no byte has moved either way for `timeout`.
    pub(super) fn send(
        &mut self,
        encode: impl FnOnce(&mut dyn FnMut(&[u8], bool)),
        timeout: Duration,
    ) -> Result<(), ConnectError> {
        let outbox = self.stream.outbox();
        encode(&mut |frame, more| encode_frame(outbox, frame, more));
        let mut clock = None;
        while !self.flush() {
            let left = remaining(*clock.get_or_insert_with(Clock::start), timeout)?;
            if self.stream.wait(left)? {
                self.fill();
                clock = None;
            }
        }
        Ok(())
    }

    /// Receives one message into `frames`, which it clears first. It reports a loss only after all received messages
    /// are read.
    pub(super) fn receive(&mut self, frames: &mut Vec<Vec<u8>>, timeout: Duration) -> Result<(), ConnectError> {
        // The clock is read only if the call has to wait.
        let mut clock = None;
        while !self.try_receive(frames)? {
            self.stream.wait(remaining(*clock.get_or_insert_with(Clock::start), timeout)?)?;
        }
        Ok(())
    }

    /// Receives one message into `frames` if it is there, and returns whether it was. It reports a loss only after all
    /// received messages are read.
    pub(super) fn try_receive(&mut self, frames: &mut Vec<Vec<u8>>) -> Result<bool, ConnectError> {
        if !self.find() {
            return if self.is_lost { Err(ConnectError::Lost) } else { Ok(false) };
        }
        let (bytes, _) = self.stream.unused();
        if let Some(message) = self.message.iter(bytes).next() {
            copy(message.frames(), frames);
        }
        self.message.clear();
        self.stream.consume(self.message_end);
        Ok(true)
    }

    /// Whether there is a message to receive, or a loss to report.
    pub(super) fn has_come(&mut self) -> bool {
        self.find() || self.is_lost
    }

    /// Sleeps until a message may have come or the connection is gone. Returns true if `over` became readable before
    /// that.
    pub(super) fn wait_unless(&self, over: BorrowedFd<'_>) -> Result<bool, ConnectError> {
        let mut polled = [self.stream.poll_fd(), PollFd::from_borrowed_fd(over, PollFlags::IN)];
        sleep(&mut polled, Duration::MAX)?;
        let [come, over] = polled.map(|descriptor| !descriptor.revents().is_empty());
        Ok(over && !come)
    }

    /// The descriptor to poll before a receive.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        self.stream.poll_fd()
    }

    /// Whether a message has come whole. Receives once if none has.
    fn find(&mut self) -> bool {
        if self.cut() {
            return true;
        }
        self.flush();
        self.fill();
        self.cut()
    }

    /// Cuts the next message out of the received bytes, unless there is one.
    fn cut(&mut self) -> bool {
        if !self.message.is_empty() {
            return true;
        }
        let (bytes, out) = self.stream.unused();
        match self.cutter.cut(bytes, &self.bounds, 1, &mut self.message, out) {
            Ok(left) if self.message.is_empty() => self.stream.keep(&left),
            Ok(left) => self.message_end = left.rest,
            // What follows a fault cannot be read.
            Err(_) => self.is_lost = true,
        }
        !self.message.is_empty()
    }

    /// Receives once, if more may come.
    fn fill(&mut self) {
        if !self.is_lost {
            self.is_lost = self.stream.receive().is_err();
        }
    }

    /// Sends what the system takes. Returns whether nothing is left. If the connection is broken, nothing is left either:
    /// all that has come is received, since it is the last.
    fn flush(&mut self) -> bool {
        let flushed = if self.is_lost { Err(StreamEnd::Closed) } else { self.stream.flush() };
        flushed.unwrap_or_else(|_| {
            while !self.is_lost {
                self.fill();
            }
            self.stream.outbox().clear();
            true
        })
    }
}

/// Copies the frames of a message, into the vectors of an earlier one where there are some.
fn copy<'f>(from: impl ExactSizeIterator<Item = &'f [u8]>, to: &mut Vec<Vec<u8>>) {
    /// Bytes of memory that a frame keeps for the next one.
    const KEPT_BYTES: usize = 64 << 10;
    to.resize_with(from.len(), Vec::new);
    for (from, to) in from.zip(to) {
        to.clear();
        to.shrink_to(KEPT_BYTES);
        to.extend_from_slice(from);
    }
}

/// Sleeps until one of these descriptors is ready, for `timeout` at most. A signal cuts the sleep short. Returns whether
/// one is ready.
///
/// # Errors
/// The error of the system.
pub(super) fn sleep(polled: &mut [PollFd<'_>], timeout: Duration) -> Result<bool, Errno> {
    match poll(polled, Some(&timespec(timeout))) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The rest of `timeout`, or `Late`.
fn remaining(clock: Clock, timeout: Duration) -> Result<Duration, ConnectError> {
    let passed = Duration::from_nanos(clock.now().nanos());
    let left = timeout.saturating_sub(passed);
    if left.is_zero() {
        return Err(ConnectError::Late);
    }
    Ok(left)
}
