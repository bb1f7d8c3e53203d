//! The connection that a frame came from: whether it still stands, and how much of the bytes sent over it has arrived.
//!
//! A frame names the descriptor of its connection through libzmq. libzmq opens and closes that descriptor as it likes.
//! This module only asks the system about the descriptor, and checks that it still belongs to the same connection.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::frame::Frame;
use super::logged_in::login_of;

/// Property in which libzmq keeps the descriptor of a frame's connection, as text.
const DESCRIPTOR: &std::ffi::CStr = c"__fd";
/// Property in which libzmq keeps what the ZAP handler has named a connection's user, as text.
const USER: &std::ffi::CStr = c"User-Id";

/// Tells one connection from another, even if both have the same routing id or the same descriptor.
///
/// libzmq attaches to each frame the properties of its connection, one block of memory for each connection. The address
/// of that block is the mark. As long as a [`FrameOrigin`] keeps a frame of the connection, no other connection has the
/// same mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMark(usize);

impl ConnectionMark {
    /// The mark of this frame's connection. All frames without a connection have the same mark.
    #[must_use]
    pub fn of(frame: &Frame) -> Self {
        Self(frame.property(DESCRIPTOR).map_or(0, |text| text.as_ptr() as usize))
    }
}

#[expect(unsafe_code, reason = "the binding does not know the functions")]
unsafe extern "C" {
    /// The number of the peer whose routing id this thread received last, or 0 if the router chose that id
    /// (`.cargo/libzmq`).
    safe fn spindle_peer() -> u64;
    /// The next message of this thread's router goes to this peer or to nobody. 0: to whoever has the id.
    safe fn spindle_address_peer(peer: u64);
}

/// A connection that frames came from.
pub struct FrameOrigin {
    /// Keeps the mark unique to this connection.
    _frame: Frame,
    mark: ConnectionMark,
    descriptor: i32,
    /// The system's number of the connection that had the descriptor when this was made. The system never reuses it.
    cookie: Option<u64>,
    /// The router's number of the peer if the id is its own, otherwise 0.
    peer: u64,
    /// The login of the peer (`security`), otherwise 0.
    login: u32,
}

impl FrameOrigin {
    /// The connection that this frame came from. To address its peer, the frame must be the last routing id that this
    /// thread has received.
    #[must_use]
    pub fn of(frame: Frame) -> Self {
        let text = frame.property(DESCRIPTOR).and_then(|text| text.to_str().ok());
        let descriptor = text.and_then(|text| text.parse().ok()).unwrap_or(-1);
        let mark = ConnectionMark::of(&frame);
        let login = frame.property(USER).map_or(0, |user| login_of(user.to_bytes()));
        Self { _frame: frame, mark, descriptor, cookie: cookie(descriptor), peer: spindle_peer(), login }
    }

    /// Runs a router's send of the first frame of a message. The message goes over this connection: the call fails if
    /// another one has its routing id by then.
    #[inline]
    pub(super) fn addressed<R>(&self, send: impl FnOnce() -> R) -> R {
        if self.peer == 0 {
            return send();
        }
        spindle_address_peer(self.peer);
        let result = send();
        // A send that fails early has not used it.
        spindle_address_peer(0);
        result
    }

    /// The number under which its peer has logged in, or 0.
    #[must_use]
    #[inline]
    pub const fn login(&self) -> u32 {
        self.login
    }

    /// Tells it from other connections.
    #[must_use]
    pub const fn mark(&self) -> ConnectionMark {
        self.mark
    }

    /// Whether the connection stands. libzmq notices a broken connection, and closes it, a moment later. A connection
    /// without a known descriptor counts as open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.descriptor < 0 || (self.cookie.is_some() && self.cookie == cookie(self.descriptor))
    }

    /// Ends the connection. Bytes that wait to be sent over it are lost. If it does not stand any more, the call has no
    /// effect. Returns false if the process has no descriptor left for the call.
    ///
    /// libzmq may close the descriptor at any time, and the system may give it to another connection. So this call
    /// copies the descriptor, checks that the copy is this connection, and shuts down the copy.
    #[must_use]
    #[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
    pub fn end(&self) -> bool {
        if !self.is_open() || self.descriptor < 0 {
            return true;
        }
        // SAFETY: the number is not negative, and the borrow ends with the call. A closed descriptor only makes the
        // call fail. The cookie reveals a descriptor that was reused.
        let copy = unsafe { rustix::io::fcntl_dupfd_cloexec(BorrowedFd::borrow_raw(self.descriptor), 0) };
        match copy {
            Ok(copy) if cookie(copy.as_raw_fd()) == self.cookie => {
                // It fails if the far end was faster.
                let _gone = shutdown(&copy, Shutdown::Both);
                true
            }
            Ok(_) | Err(Errno::BADF) => true,
            Err(_) => false,
        }
    }

    /// How much of the bytes sent over the connection has arrived. A closed connection has no bytes waiting.
    #[must_use]
    pub fn progress(&self) -> SendProgress {
        if self.is_open() { progress(self.descriptor) } else { SendProgress::Nothing }
    }
}

/// How much of the bytes sent over a connection has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// The far end's system has acknowledged this many bytes since the connection was opened.
    Acknowledged(u64),
    /// This end's buffer is empty. More is not known of connections within this host.
    Nothing,
    /// Bytes wait in this end's buffer.
    Something,
}

/// The progress of the connection with this descriptor. If the system cannot say, no bytes are waiting.
fn progress(descriptor: i32) -> SendProgress {
    match acknowledged(descriptor) {
        Some(bytes) => SendProgress::Acknowledged(bytes),
        None if unsent(descriptor) > 0 => SendProgress::Something,
        None => SendProgress::Nothing,
    }
}

/// Bytes that the far end of a TCP connection has acknowledged: `tcpi_bytes_acked` of tcp(7).
#[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
fn acknowledged(descriptor: i32) -> Option<u64> {
    // SAFETY: it is a plain structure of integers, for which zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = bytes_of::<libc::tcp_info>();
    // SAFETY: the call writes at most `bytes` bytes to `info`, both live locals. A descriptor that is closed or of
    // another kind only makes the call fail.
    let status = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut bytes)
    };
    (status == 0).then_some(info.tcpi_bytes_acked)
}

/// The size of an option's value.
fn bytes_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(libc::socklen_t::MAX)
}

/// Bytes in this end's buffer, or 0 if the descriptor is closed.
#[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
fn unsent(descriptor: i32) -> i32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one integer to `bytes`, a live local. A closed descriptor is an error.
    let status = unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &raw mut bytes) };
    if status == 0 { bytes } else { 0 }
}

/// Whether no bytes are on their way over a connection: the far end has acknowledged everything, and no input lies here
/// unread. If the connection is closed then, it ends without a reset, and no bytes are lost.
pub(crate) fn is_settled(connection: impl AsFd) -> bool {
    let unread = rustix::io::ioctl_fionread(&connection);
    unsent(connection.as_fd().as_raw_fd()) == 0 && unread.is_ok_and(|bytes| bytes == 0)
}

/// The system's number of the connection that has this descriptor now, if one has.
#[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
fn cookie(descriptor: i32) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut bytes = bytes_of::<u64>();
    // SAFETY: the call writes at most `bytes` bytes to `cookie`, both live locals. A descriptor that is closed, or is
    // no socket, only makes the call fail. A reused descriptor gives the number of another connection.
    let status = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut bytes)
    };
    (status == 0).then_some(cookie)
}
