//! A client's connection, from its handshake until it is lost.
//!
//! A libzmq socket outlives its connections. It reconnects silently, and the requests or notifications on the way are
//! lost without a word. This module watches each socket with a monitor and lets it have one connection, ever.
//!
//! ```text
//!           connect ──► CONNECT_RETRIED: no server there  ──► another socket, until the time is up
//!                   └─► HANDSHAKE_SUCCEEDED: usable ──► DISCONNECTED: read the received messages, then Lost
//! ```
//! This module does not know any protocol's bytes, and does not decide what follows a lost connection; see the clients.

mod errors;
mod pipeline;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zmq::{Context, DONTWAIT, Message, PollEvents, PollItem, SNDMORE, Socket, SocketEvent, SocketType};

pub(super) use errors::ConnectError;
pub use errors::Disconnected;
pub(super) use pipeline::{Pipeline, ReplyError};

use super::sockets::keep_alive;
use crate::byte_reader::ByteReader;
use crate::clock::Clock;
use crate::lock::Mutex;
use crate::zmtp::{ClaimRefusal, Credentials};

/// Time before libzmq reconnects by itself, in milliseconds: practically for ever. A negative number would make libzmq
/// throw away received messages that the client has not read.
const RECONNECT_MILLIS: i32 = 1 << 30;

/// Pause between two tries to reach a server that is not there: a server that starts is found within a blink, and 50
/// tries a second cost nothing.
const RETRY: Duration = Duration::from_millis(20);

/// Notifications that may wait in a subscriber before its server has to keep them. Past that the server drops them
/// (`--publish-hwm`), so this bound is as large as the server's own.
const NOTIFICATIONS_MAX: i32 = crate::limits::PUBLISH_HWM_DEFAULT;

/// Messages of the feed that may wait in a mirror: 64 MiB of usual ones at most. The server keeps the rest, and a
/// mirror can ask for those that it drops.
const FEED_MESSAGES_MAX: i32 = 256;

/// What this process tells of its user when it connects. Written by [`log_in`], read for each new socket.
static LOGIN: Mutex<Credentials> = Mutex::new(Credentials::None);

/// From now on all clients of this process connect as this user. With CURVE their connections are encrypted.
pub fn log_in(credentials: Credentials) {
    *LOGIN.lock() = credentials;
}

/// Gives each monitor in the process its own name.
static MONITORS: AtomicU64 = AtomicU64::new(0);

/// How long a client waits for its server.
///
/// A server whose host accepts connections is there, however slowly it answers. So the time to connect can be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// Time until the host of the server has accepted the connection.
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
pub(super) struct ConnectTarget {
    context: Context,
    endpoint: String,
    socket_type: SocketType,
    /// Tables whose names begin so are the ones a subscriber hears of. For the feed: topics.
    prefixes: Vec<Vec<u8>>,
    /// Messages that may wait in the socket. 0: no bound, since the caller bounds its requests on the way. A bound
    /// there would only drop frames, or block in the middle of a message.
    received_max: i32,
    /// Bytes of the longest frame that is received. `None`: no bound.
    frame_bytes_max: Option<u64>,
}

/// A socket with its only connection.
pub(super) struct ClientSocket {
    socket: Socket,
    /// Receives DISCONNECTED.
    monitor: Socket,
    /// DISCONNECTED was received. Earlier messages may still be unread.
    disconnected: bool,
}

impl ConnectTarget {
    /// A DEALER for an endpoint that answers requests.
    pub(super) fn requests(context: &Context, endpoint: &str) -> Self {
        Self {
            context: context.clone(),
            endpoint: endpoint.to_owned(),
            socket_type: zmq::DEALER,
            prefixes: Vec::new(),
            received_max: 0,
            frame_bytes_max: None,
        }
    }

    /// A SUB for an endpoint that publishes changes.
    pub(super) fn notifications(context: &Context, endpoint: &str, prefixes: &[&[u8]]) -> Self {
        Self {
            context: context.clone(),
            endpoint: endpoint.to_owned(),
            socket_type: zmq::SUB,
            prefixes: prefixes.iter().map(|prefix| prefix.to_vec()).collect(),
            received_max: NOTIFICATIONS_MAX,
            frame_bytes_max: None,
        }
    }

    /// A SUB for an endpoint that publishes a feed. A connection that sends a longer frame is dropped.
    pub(super) fn feed(context: &Context, endpoint: &str, topic: &[u8], frame_bytes_max: u64) -> Self {
        Self { received_max: FEED_MESSAGES_MAX, ..Self::notifications(context, endpoint, &[topic]) }
            .with_frames_of(frame_bytes_max)
    }

    /// The same, with a bound on the bytes of a frame.
    pub(super) fn with_frames_of(self, bytes_max: u64) -> Self {
        Self { frame_bytes_max: Some(bytes_max), ..self }
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
            ConnectError::Refused => Disconnected::Refused { endpoint },
            ConnectError::Denied => Disconnected::Denied { endpoint },
            ConnectError::Busy => Disconnected::Busy { endpoint },
            ConnectError::Closed => Disconnected::Closed { endpoint },
            ConnectError::Lost => Disconnected::Lost { endpoint, unanswered },
            ConnectError::Endpoint(error) => Disconnected::Endpoint { endpoint, problem: error.message().to_owned() },
            ConnectError::Socket(error) => Disconnected::Socket(error.message().to_owned()),
        }
    }

    /// A socket with all its options, which must be set before it connects.
    fn socket(&self) -> zmq::Result<Socket> {
        let socket = self.context.socket(self.socket_type)?;
        socket.set_linger(0)?;
        socket.set_reconnect_ivl(RECONNECT_MILLIS)?;
        // A client that waits without a timeout, for a task or a change, would not learn that the server's host has
        // vanished.
        keep_alive(&socket)?;
        socket.set_rcvhwm(self.received_max)?;
        match &*LOGIN.lock() {
            Credentials::None => {}
            Credentials::Plain { name, password } => {
                socket.set_plain_username(Some(name))?;
                socket.set_plain_password(Some(password))?;
            }
            Credentials::Curve { own, server } => {
                socket.set_curve_serverkey(server.bytes())?;
                socket.set_curve_publickey(own.public_key().bytes())?;
                socket.set_curve_secretkey(own.secret_bytes())?;
            }
        }
        if let Some(bytes) = self.frame_bytes_max {
            socket.set_maxmsgsize(i64::try_from(bytes).unwrap_or(i64::MAX))?;
        }
        if self.socket_type == zmq::SUB {
            for prefix in &self.prefixes {
                socket.set_subscribe(prefix)?;
            }
        } else {
            socket.set_sndhwm(0)?;
        }
        Ok(socket)
    }
}

/// An event of a socket: its kind, and what it says beside it.
#[derive(Clone, Copy)]
struct MonitorEvent {
    kind: u16,
    value: u32,
}

impl MonitorEvent {
    fn is(self, kind: SocketEvent) -> bool {
        self.kind == kind.to_raw()
    }

    /// The error if the server has refused the user, or the mechanism. The value is the status of ZAP.
    fn denial(self) -> Option<ConnectError> {
        let busy = ClaimRefusal::Busy.status().parse();
        match self {
            _ if self.is(SocketEvent::HANDSHAKE_FAILED_AUTH) && busy == Ok(self.value) => Some(ConnectError::Busy),
            _ if self.is(SocketEvent::HANDSHAKE_FAILED_AUTH) => Some(ConnectError::Denied),
            _ if self.is(SocketEvent::HANDSHAKE_FAILED_PROTOCOL) => Some(ConnectError::Denied),
            _ => None,
        }
    }
}

impl ClientSocket {
    /// Connects, and tries again while no server is there, until the time to connect is over.
    pub(super) fn open(target: &ConnectTarget, timeouts: impl Into<ClientTimeouts>) -> Result<Self, ConnectError> {
        let (clock, timeouts) = (Clock::start(), timeouts.into());
        loop {
            let mut connection = Self::start(target)?;
            match connection.wait_for_handshake(clock, &timeouts) {
                Err(ConnectError::Lost) if !timeouts.retries => return Err(ConnectError::Refused),
                Err(ConnectError::Lost | ConnectError::Closed) if timeouts.retries => {
                    let left = remaining(clock, timeouts.connect).map_err(|_| ConnectError::Unreached)?;
                    pause(RETRY.min(left));
                }
                other => return other.map(|()| connection),
            }
        }
    }

    /// Begins to connect.
    pub(super) fn start(target: &ConnectTarget) -> Result<Self, ConnectError> {
        let socket = target.socket().map_err(ConnectError::Socket)?;
        let events = [
            SocketEvent::CONNECTED,
            SocketEvent::HANDSHAKE_SUCCEEDED,
            SocketEvent::HANDSHAKE_FAILED_AUTH,
            SocketEvent::HANDSHAKE_FAILED_PROTOCOL,
            SocketEvent::CONNECT_RETRIED,
            SocketEvent::DISCONNECTED,
        ];
        let events = events.map(|event| i32::from(event.to_raw()));
        let monitor = watch(&target.context, &socket, events.iter().sum()).map_err(ConnectError::Socket)?;
        let connection = Self { socket, monitor, disconnected: false };
        if target.endpoint.contains('\0') {
            return Err(ConnectError::Endpoint(zmq::Error::EINVAL));
        }
        connection.socket.connect(&target.endpoint).map_err(ConnectError::Endpoint)?;
        Ok(connection)
    }

    /// Waits for the handshake. `Lost` if no server is there, `Unreached` if its host is silent, `Closed` if it has
    /// accepted the connection and closes it.
    fn wait_for_handshake(&mut self, clock: Clock, timeouts: &ClientTimeouts) -> Result<(), ConnectError> {
        let mut is_accepted = false;
        loop {
            let timeout = if is_accepted { timeouts.handshake() } else { timeouts.connect };
            let late = if is_accepted { ConnectError::Late } else { ConnectError::Unreached };
            let millis = poll_millis(remaining(clock, timeout).map_err(|_| late)?);
            match self.monitor.poll(PollEvents::POLLIN, millis) {
                Ok(_) | Err(zmq::Error::EINTR) => {}
                Err(error) => return Err(ConnectError::Socket(error)),
            }
            match next_event(&self.monitor) {
                Some(event) if event.is(SocketEvent::HANDSHAKE_SUCCEEDED) => return Ok(()),
                Some(event) if event.is(SocketEvent::CONNECTED) => is_accepted = true,
                Some(event) => {
                    let lost = if is_accepted { ConnectError::Closed } else { ConnectError::Lost };
                    return Err(event.denial().unwrap_or(lost));
                }
                None => {}
            }
        }
    }

    /// Whether the handshake is over, without waiting. `Lost` if no server is there.
    pub(super) fn is_connected(&self) -> Result<bool, ConnectError> {
        match next_event(&self.monitor) {
            Some(event) if event.is(SocketEvent::HANDSHAKE_SUCCEEDED) => Ok(true),
            Some(event) if event.is(SocketEvent::CONNECTED) => Ok(false),
            Some(event) => Err(event.denial().unwrap_or(ConnectError::Lost)),
            None => Ok(false),
        }
    }

    /// Sends one frame.
    pub(super) fn send(&mut self, frame: &[u8], more: bool, timeout: Duration) -> Result<(), ConnectError> {
        let flags = DONTWAIT | if more { SNDMORE } else { 0 };
        // The clock is read only if the call has to wait.
        let mut clock = None;
        loop {
            match self.socket.send(frame, flags) {
                Ok(()) => return Ok(()),
                Err(zmq::Error::EAGAIN) => {
                    self.wait(PollEvents::POLLOUT, remaining(*clock.get_or_insert_with(Clock::start), timeout)?)?;
                }
                Err(zmq::Error::EINTR) => {}
                Err(error) => return Err(ConnectError::Socket(error)),
            }
        }
    }

    /// Receives one message into `frames`, which it clears first. It reports a loss only after all received messages
    /// are read.
    pub(super) fn receive(&mut self, frames: &mut Vec<Message>, timeout: Duration) -> Result<(), ConnectError> {
        // The clock is read only if the call has to wait.
        let mut clock = None;
        loop {
            match self.receive_now(frames) {
                Ok(()) => return Ok(()),
                Err(zmq::Error::EINTR) => {}
                Err(zmq::Error::EAGAIN) if self.disconnected => return Err(ConnectError::Lost),
                Err(zmq::Error::EAGAIN) => {
                    self.wait(PollEvents::POLLIN, remaining(*clock.get_or_insert_with(Clock::start), timeout)?)?;
                }
                Err(error) => return Err(ConnectError::Socket(error)),
            }
        }
    }

    /// Receives one message into `frames` if it is there, and returns whether it was. It reports a loss only after all
    /// received messages are read.
    pub(super) fn try_receive(&mut self, frames: &mut Vec<Message>) -> Result<bool, ConnectError> {
        match self.receive_now(frames) {
            Ok(()) => Ok(true),
            Err(zmq::Error::EINTR) => Ok(false),
            Err(zmq::Error::EAGAIN) if self.disconnected => Err(ConnectError::Lost),
            Err(zmq::Error::EAGAIN) => {
                self.hear_monitor();
                Ok(false)
            }
            Err(error) => Err(ConnectError::Socket(error)),
        }
    }

    /// Sleeps until one of these sockets may have a message or news of its connection, for `timeout` at most. A signal
    /// cuts the sleep short.
    pub(super) fn wait_for_any(sockets: &[&Self], timeout: Duration) -> Result<(), ConnectError> {
        let both = sockets.iter().flat_map(|own| [&own.socket, &own.monitor]);
        let mut items: Vec<PollItem<'_>> = both.map(|socket| socket.as_poll_item(PollEvents::POLLIN)).collect();
        match zmq::poll(&mut items, poll_millis(timeout)) {
            Ok(_) | Err(zmq::Error::EINTR) => Ok(()),
            Err(error) => Err(ConnectError::Socket(error)),
        }
    }

    /// Receives one message if it is there. libzmq delivers whole messages only: after its first frame the rest is
    /// there.
    fn receive_now(&self, frames: &mut Vec<Message>) -> zmq::Result<()> {
        frames.clear();
        loop {
            let frame = self.socket.recv_msg(DONTWAIT)?;
            let more = frame.get_more();
            frames.push(frame);
            if !more {
                return Ok(());
            }
        }
    }

    /// Sleeps until a message may have come or the connection is gone. Returns true if `over` became readable before
    /// that.
    pub(super) fn wait_unless(&mut self, over: BorrowedFd<'_>) -> Result<bool, ConnectError> {
        let [socket, monitor] = [&self.socket, &self.monitor].map(|socket| socket.as_poll_item(PollEvents::POLLIN));
        let mut items = [socket, monitor, PollItem::from_fd(over.as_raw_fd(), PollEvents::POLLIN)];
        match zmq::poll(&mut items, -1) {
            Ok(_) | Err(zmq::Error::EINTR) => {}
            Err(error) => return Err(ConnectError::Socket(error)),
        }
        let [come, _, over] = items.map(|item| item.is_readable());
        self.hear_monitor();
        Ok(over && !come && !self.disconnected)
    }

    /// Whether there is a message to receive, or a loss to report.
    pub(super) fn has_come(&self) -> Result<bool, ConnectError> {
        let events = self.socket.get_events().map_err(ConnectError::Socket)?;
        Ok(self.disconnected || events.contains(PollEvents::POLLIN))
    }

    /// Sleeps until the socket is ready, its connection is gone, or a signal came. The caller tries again in each case.
    fn wait(&mut self, events: PollEvents, timeout: Duration) -> Result<(), ConnectError> {
        let mut items = [self.socket.as_poll_item(events), self.monitor.as_poll_item(PollEvents::POLLIN)];
        match zmq::poll(&mut items, poll_millis(timeout)) {
            Ok(_) | Err(zmq::Error::EINTR) => {}
            Err(error) => return Err(ConnectError::Socket(error)),
        }
        self.hear_monitor();
        Ok(())
    }

    fn hear_monitor(&mut self) {
        while let Some(event) = next_event(&self.monitor) {
            self.disconnected |= event.is(SocketEvent::DISCONNECTED);
        }
    }
}

impl Drop for ClientSocket {
    /// Ends the monitoring before either socket goes: an event without a listener would block the libzmq thread that
    /// reports it. Monitoring anew, for no event at all, ends the old monitoring.
    fn drop(&mut self) {
        let _ended = self.socket.monitor(&monitor_name(), 0);
    }
}

/// A socket that receives `events` of `socket`.
fn watch(context: &Context, socket: &Socket, events: i32) -> zmq::Result<Socket> {
    let name = monitor_name();
    let monitor = context.socket(zmq::PAIR)?;
    monitor.set_linger(0)?;
    socket.monitor(&name, events)?;
    monitor.connect(&name)?;
    Ok(monitor)
}

fn monitor_name() -> String {
    // Relaxed: the number only has to be unique.
    let number = MONITORS.fetch_add(1, Ordering::Relaxed);
    format!("inproc://spindle-client-{number}")
}

/// The next event of the monitor: two bytes and a value in the byte order of this machine, then a frame with the
/// address.
fn next_event(monitor: &Socket) -> Option<MonitorEvent> {
    let event = monitor.recv_msg(DONTWAIT).ok()?;
    if event.get_more() {
        let _address = monitor.recv_msg(DONTWAIT);
    }
    let mut fields = ByteReader::new(&event);
    let kind = fields.array().map(u16::from_ne_bytes)?;
    Some(MonitorEvent { kind, value: fields.array().map(u32::from_ne_bytes)? })
}

/// Sleeps for `time`. A signal cuts the sleep short, which does no harm.
fn pause(time: Duration) {
    let _nothing_to_poll = zmq::poll(&mut [], poll_millis(time));
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

/// Rounded up, so that a poll does not spin through the last millisecond.
fn poll_millis(timeout: Duration) -> i64 {
    let millis = timeout.as_micros().div_ceil(1_000);
    i64::try_from(millis).unwrap_or(i64::MAX)
}
