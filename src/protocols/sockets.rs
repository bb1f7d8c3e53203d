//! The part of libzmq that the protocols use: sockets, endpoints, and the origin of a frame.
//!
//! - Receiving and sending never fail halfway. "No message", "the pipe is full" and "no such client" are results. Every
//!   other error is a mistake of this program, and panics.
//! - Errors are read from errno directly, since the binding panics at an errno that it does not list. The binding
//!   serves calls made once (contexts, options), and libzmq itself serves calls made for each frame.
//! - A socket's descriptor is edge-triggered: it becomes readable when a command for the socket comes, and *any* call
//!   on the socket may take that command away. So a socket is *quiet* from a receive that found no message until
//!   [`wait`] sees its descriptor readable. A quiet socket is not asked again, and [`wait`] sleeps only if all sockets
//!   are quiet.
//!
//! This module does not know any protocol's bytes, does not start threads, and does not decide what follows a full
//! pipe.

mod accept;
mod authentication;
mod context;
mod endpoint;
mod frame;
mod frame_origin;
mod in_flight_bytes;
#[cfg(test)]
mod libzmq_tests;
mod logged_in;
mod mailbox;
mod message_size;
mod stop;
mod unfinished;
mod wait;

use std::borrow::BorrowMut;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use zmq_sys::{zmq_bind, zmq_errno, zmq_msg_recv, zmq_msg_send, zmq_send};

pub use authentication::{RouterMechanisms, ZAP_ENDPOINT};
pub use context::SocketContext;
pub(crate) use context::keep_alive;
pub use endpoint::BindError;
pub use frame::{Frame, INLINE_BYTES_MAX};
pub(crate) use frame_origin::is_settled;
pub use frame_origin::{ConnectionMark, FrameOrigin, SendProgress};
pub use in_flight_bytes::InFlightBytes;
pub use logged_in::{allow_login, end_logins, forget_logins};
pub use mailbox::Mailbox;
pub use message_size::MessageSize;
pub use stop::{ServeError, Stopper, ThreadGroup, ThreadToken};
pub use unfinished::{bound_received, received_bytes};
pub use wait::{WakeSignal, wait};
pub(crate) use wait::{is_readable, timespec};

pub(crate) use endpoint::{bind_error, occupied};

/// Unwraps a result that libzmq guarantees for these arguments.
fn must<T>(result: zmq::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("libzmq refused a valid call: {error}"))
}

/// Router options that only the libzmq of this server has (`.cargo/libzmq`): receive no more from a client, …
const HOLD_BACK: i32 = 20_001;
/// … and receive again.
const GO_ON: i32 = 20_002;

/// Whether a message to a client may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressed {
    /// The frames that follow go to this client. libzmq refuses none of them.
    Ready,
    /// The pipe of this client is full. No message was begun.
    Full,
    /// There is no such client, or it has gone. No message was begun.
    Unknown,
}

/// A socket of libzmq. One thread uses it at a time.
pub struct Socket {
    /// The pointer by which libzmq knows it. Dropping `options` closes it.
    raw: *mut c_void,
    /// Readable when a command has come.
    descriptor: i32,
    /// A receive has found no message, and none can have come since.
    quiet: Cell<bool>,
    /// The receive timeout that libzmq was told last.
    patience: Cell<Option<Duration>>,
    /// The binding's handle, for options.
    options: zmq::Socket,
}

// SAFETY: libzmq lets another thread use a socket after a full fence, and handing the socket over is one. The pointer
// is the socket's own, and no copy of it outlives the socket. The socket is not Sync, because of `raw` and `quiet`.
#[expect(unsafe_code, reason = "a pointer is not Send by itself")]
unsafe impl Send for Socket {}

impl Socket {
    /// Listens at an endpoint. Returns the endpoint, with the port that the system chose if it was `*` or 0.
    ///
    /// It replaces a stale socket in the file system. A socket at which a server still answers counts as in use.
    ///
    /// # Errors
    /// [`BindError`] if the endpoint cannot be listened at.
    #[expect(unsafe_code, reason = "the binding panics at an errno that it does not list")]
    pub fn bind(&mut self, endpoint: &str) -> Result<String, BindError> {
        let given = || endpoint.to_owned();
        if let Some(error) = occupied(endpoint) {
            return Err(error);
        }
        let text = CString::new(endpoint).map_err(|_| BindError::NotAnEndpoint { endpoint: given() })?;
        loop {
            // SAFETY: the socket is open as long as `self` is, and `text` is a live string that ends with NUL.
            let status = unsafe { zmq_bind(self.raw, text.as_ptr()) };
            match errno() {
                _ if status != -1 => break,
                // A signal has come to a process that did not block it. The call has begun no work.
                libc::EINTR => {}
                error => return Err(bind_error(endpoint, error)),
            }
        }
        Ok(must(self.options.get_last_endpoint()).unwrap_or_else(|_| given()))
    }

    /// Connects to an endpoint within this process.
    pub fn connect_within(&self, endpoint: &str) {
        let connected = loop {
            match self.options.connect(endpoint) {
                // As in `bind`.
                Err(zmq::Error::EINTR) => {}
                other => break other,
            }
        };
        must(connected);
    }

    /// Receives a frame if one is there. The later frames of a message are always there once its first is.
    ///
    /// # Panics
    /// If the socket cannot receive at all.
    #[inline]
    pub fn receive(&self, frame: &mut Frame) -> bool {
        !self.quiet.get() && self.receive_with(frame, zmq_sys::ZMQ_DONTWAIT)
    }

    /// Whether a receive has found no message, and no message can have come since as far as is known.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.quiet.get()
    }

    /// Receives the next frame of a message whose first frame has been received.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn receive_rest(&self, frame: &mut Frame) {
        let received = self.receive(frame);
        assert!(received, "libzmq gives messages whole");
    }

    /// Waits for a frame.
    ///
    /// # Panics
    /// If the socket cannot receive at all.
    pub fn receive_waiting(&self, frame: &mut Frame) {
        while !self.receive_with(frame, 0) {}
        self.quiet.set(false);
    }

    /// Waits for a frame for at most `patience`, to the millisecond. Returns whether one has come.
    ///
    /// # Panics
    /// If the socket cannot receive at all.
    pub fn receive_within(&self, frame: &mut Frame, patience: Duration) -> bool {
        if self.patience.replace(Some(patience)) != Some(patience) {
            must(self.options.set_rcvtimeo(i32::try_from(patience.as_millis()).unwrap_or(i32::MAX)));
        }
        let received = self.receive_with(frame, 0);
        if received {
            self.quiet.set(false);
        }
        received
    }

    #[inline]
    #[expect(unsafe_code, reason = "frames are received into again")]
    fn receive_with(&self, frame: &mut Frame, flags: u32) -> bool {
        // SAFETY: the socket is open as long as `self` is. The frame is initialised, and the call leaves it so.
        let status = unsafe { zmq_msg_recv(frame.as_raw(), self.raw, flags.cast_signed()) };
        if status >= 0 {
            return true;
        }
        match errno() {
            libc::EAGAIN => self.quiet.set(true),
            libc::EINTR => {}
            error => panic!("receiving: errno {error}"),
        }
        false
    }

    /// Sends a frame and leaves it empty. `more` says whether another frame of the message follows. For sockets that
    /// refuse no frame: unbounded pipes, and a router that has just returned [`Addressed::Ready`].
    ///
    /// # Panics
    /// If the socket refuses all the same.
    #[inline]
    #[expect(unsafe_code, reason = "frames are used again")]
    pub fn send(&self, frame: &mut Frame, more: bool) {
        self.quiet.set(false);
        // SAFETY: the socket is open as long as `self` is. The frame is initialised, and the call leaves it so.
        let status = unsafe { zmq_msg_send(frame.as_raw(), self.raw, flags(more)) };
        assert!(status >= 0, "sending: errno {}", errno());
    }

    /// Sends these frames as the last ones of a message, and leaves them empty. As [`Socket::send`].
    ///
    /// # Panics
    /// If the socket refuses.
    #[inline]
    pub fn send_all(&self, frames: impl Iterator<Item = impl BorrowMut<Frame>>) {
        let mut frames = frames.peekable();
        while let Some(mut frame) = frames.next() {
            self.send(frame.borrow_mut(), frames.peek().is_some());
        }
    }

    /// As [`Socket::send`], for a copy of `bytes`.
    ///
    /// # Panics
    /// If the socket refuses.
    #[inline]
    pub fn send_bytes(&self, bytes: &[u8], more: bool) {
        let sent = self.try_send_bytes(bytes, more);
        assert!(sent, "sending: errno {}", errno());
    }

    /// Begins a router's message to the client with this routing id.
    ///
    /// # Panics
    /// If the socket is no router.
    #[inline]
    pub fn address(&self, id: &[u8]) -> Addressed {
        if self.try_send_bytes(id, true) {
            return Addressed::Ready;
        }
        match errno() {
            libc::EAGAIN | libc::EINTR => Addressed::Full,
            libc::EHOSTUNREACH => Addressed::Unknown,
            error => panic!("sending: errno {error}"),
        }
    }

    /// As [`Socket::address`], but a client that has come with the same id over another connection counts as unknown.
    /// `origin` is of an id that this socket has received.
    ///
    /// # Panics
    /// If the socket is no router.
    #[inline]
    pub fn address_over(&self, id: &[u8], origin: &FrameOrigin) -> Addressed {
        origin.addressed(|| self.address(id))
    }

    /// Makes a router stop or resume receiving from the client with this routing id. Messages sent meanwhile wait, in
    /// the end with the client. If there is no such client, or it has gone, the call has no effect. Not to be called in
    /// the middle of a message.
    ///
    /// # Panics
    /// If libzmq is not the one of `.cargo/libzmq`.
    pub fn hold_back(&self, id: &[u8], held_back: bool) {
        self.quiet.set(false);
        let status = self.set_option(if held_back { HOLD_BACK } else { GO_ON }, id);
        assert!(status == 0 || errno() == libc::EHOSTUNREACH, "holding back: errno {}", errno());
    }

    /// As [`Socket::send_bytes`], but the socket may refuse. Returns false if it did, and then sent no byte.
    #[inline]
    #[expect(unsafe_code, reason = "the binding makes a frame of it first")]
    pub fn try_send_bytes(&self, bytes: &[u8], more: bool) -> bool {
        self.quiet.set(false);
        // SAFETY: the socket is open as long as `self` is. The call copies the bytes before it returns.
        unsafe { zmq_send(self.raw, bytes.as_ptr().cast(), bytes.len(), flags(more)) >= 0 }
    }

    /// Sets how long a dropped socket goes on sending to the connections it has then. The default is not at all.
    pub fn set_linger(&self, linger: Duration) {
        must(self.options.set_linger(i32::try_from(linger.as_millis()).unwrap_or(i32::MAX)));
    }
}

impl AsFd for Socket {
    #[expect(unsafe_code, reason = "libzmq gives the descriptor as a number")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: libzmq keeps the descriptor of the socket's mailbox open until the socket is closed. Only dropping
        // the socket closes it, and the borrow ends before.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

#[inline]
fn flags(more: bool) -> i32 {
    let flags = if more { zmq_sys::ZMQ_DONTWAIT | zmq_sys::ZMQ_SNDMORE } else { zmq_sys::ZMQ_DONTWAIT };
    flags.cast_signed()
}

/// The error of this thread's last call of libzmq.
#[expect(unsafe_code, reason = "the binding panics at an errno that it does not list")]
fn errno() -> i32 {
    // SAFETY: it reads a variable of the calling thread.
    unsafe { zmq_errno() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    fn refusal(context: &SocketContext, endpoint: &str) -> BindError {
        context.dealer().unwrap().bind(endpoint).unwrap_err()
    }

    #[test]
    fn an_endpoint_that_cannot_be_had_is_refused_with_its_reason() {
        let context = SocketContext::new(1);
        let mut first = context.dealer().unwrap();
        let taken = first.bind("tcp://127.0.0.1:*").unwrap();
        assert!(!taken.ends_with('*'), "{taken}");
        assert!(matches!(refusal(&context, &taken), BindError::InUse { endpoint } if endpoint == taken));
        let long = format!("ipc:///tmp/{}", "long".repeat(40));
        assert!(matches!(refusal(&context, &long), BindError::PathTooLong { .. }));
        for nonsense in ["nonsense", "tcp://", "tcp://127.0.0.1", "udp://127.0.0.1:5555", "a\0b"] {
            assert!(matches!(refusal(&context, nonsense), BindError::NotAnEndpoint { .. }), "{nonsense}");
        }
        assert!(matches!(refusal(&context, "tcp://192.0.2.1:5555"), BindError::NoSuchAddress { .. }));
        let file = tempfile::NamedTempFile::new().unwrap();
        let endpoint = format!("ipc://{}", file.path().display());
        assert!(matches!(refusal(&context, &endpoint), BindError::NoSocket { .. }));
        assert!(file.path().exists());
        let error = refusal(&context, "ipc:///nonexistent/socket");
        assert!(error.to_string().contains("ipc:///nonexistent/socket"), "{error}");
    }

    /// A router and a dealer that are connected over TCP, and a first message with its id.
    fn connected(context: &SocketContext) -> (Socket, Socket, Frame, Frame) {
        let mut router = context.router(2_000).unwrap();
        let endpoint = router.bind("tcp://127.0.0.1:*").unwrap();
        let dealer = context.dealer().unwrap();
        dealer.connect_within(&endpoint);
        dealer.send_bytes(b"hello", false);
        let (mut id, mut frame) = (Frame::new(), Frame::new());
        router.receive_waiting(&mut id);
        router.receive_waiting(&mut frame);
        (router, dealer, id, frame)
    }

    #[test]
    fn a_router_says_who_is_there() {
        let context = SocketContext::new(1);
        let (router, dealer, id, _) = connected(&context);
        assert_eq!(router.address(&id), Addressed::Ready);
        router.send_bytes(b"answer", false);
        let mut frame = Frame::new();
        dealer.receive_waiting(&mut frame);
        assert_eq!(&*frame, b"answer");
        assert_eq!(router.address(b"nobody"), Addressed::Unknown);
    }

    #[test]
    fn a_link_tells_connections_apart_and_sees_the_end() {
        let context = SocketContext::new(1);
        let (router, dealer, id, frame) = connected(&context);
        let (_, _other, other_id, _) = connected(&context);
        assert_eq!(ConnectionMark::of(&frame), ConnectionMark::of(&id));
        assert_ne!(ConnectionMark::of(&frame), ConnectionMark::of(&other_id));
        let origin = FrameOrigin::of(frame);
        assert!(origin.is_open());
        assert!(matches!(origin.progress(), SendProgress::Acknowledged(bytes) if bytes > 0), "the handshake at least");
        drop(dealer);
        let bell = WakeSignal::new().unwrap();
        while origin.is_open() {
            // libzmq cleans up a closed connection when the router is asked for more.
            wait(&[&router], &bell, Some(Duration::from_millis(1)));
            router.receive(&mut Frame::new());
        }
        assert_eq!(origin.progress(), SendProgress::Nothing);
    }

    #[test]
    fn a_bell_wakes_who_waits_next() {
        let bell = WakeSignal::new().unwrap();
        bell.ring();
        bell.clone().ring();
        wait(&[], &bell, None);
        wait(&[], &bell, Some(Duration::from_millis(1)));
    }

    #[test]
    fn a_quiet_socket_is_woken_by_what_comes() {
        let context = SocketContext::new(1);
        let bell = WakeSignal::new().unwrap();
        let (router, dealer, id, _) = connected(&context);
        let mut frame = Frame::new();
        for number in 0..1_000_u32 {
            assert!(!dealer.receive(&mut frame));
            assert_eq!(router.address(&id), Addressed::Ready);
            router.send_bytes(&number.to_be_bytes(), false);
            while !dealer.receive(&mut frame) {
                wait(&[&dealer], &bell, None);
            }
            assert_eq!(*frame, number.to_be_bytes());
        }
    }
}
