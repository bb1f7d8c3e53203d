//! Which connection a frame came from, whether it still stands, and how far what was sent over it has come.
//!
//! libzmq names a connection's descriptor to who asks a frame. It opens and closes it as it likes; here the system is
//! only asked about it, and asked again whether it is still the same connection.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::frame::Frame;

/// Property in which libzmq keeps the descriptor of the connection that a frame came from, as text.
const DESCRIPTOR: &std::ffi::CStr = c"__fd";

/// Tells one connection from another, also if both have the same routing id or the same descriptor.
///
/// libzmq attaches to each frame the properties of its connection, one block of memory for each connection; the place
/// of that block is the mark. As long as a [`FrameOrigin`] keeps a frame of the connection, no other has the same mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMark(usize);

impl ConnectionMark {
    /// Of the connection that this frame came from. All frames without one have the same mark.
    #[must_use]
    pub fn of(frame: &Frame) -> Self {
        Self(frame.property(DESCRIPTOR).map_or(0, |text| text.as_ptr() as usize))
    }
}

/// A connection that frames came from.
pub struct FrameOrigin {
    /// Keeps the mark of this connection its own.
    _frame: Frame,
    mark: ConnectionMark,
    descriptor: i32,
    /// The system's number of the connection that had the descriptor when the link was made; never used again.
    cookie: Option<u64>,
}

impl FrameOrigin {
    /// Of the connection that this frame came from.
    #[must_use]
    pub fn of(frame: Frame) -> Self {
        let text = frame.property(DESCRIPTOR).and_then(|text| text.to_str().ok());
        let descriptor = text.and_then(|text| text.parse().ok()).unwrap_or(-1);
        let mark = ConnectionMark::of(&frame);
        Self { _frame: frame, mark, descriptor, cookie: cookie(descriptor) }
    }

    /// Tells it from other connections.
    #[must_use]
    pub const fn mark(&self) -> ConnectionMark {
        self.mark
    }

    /// Whether the connection stands. One that breaks is noticed by libzmq, and closed, a moment later. Of a connection
    /// for which libzmq names no descriptor nothing is known: it counts as open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.descriptor < 0 || (self.cookie.is_some() && self.cookie == cookie(self.descriptor))
    }

    /// Ends the connection; what waits to be sent over it goes with it. Nothing, if it does not stand any more. False: the process
    /// has no descriptor left to do it with.
    ///
    /// libzmq may close the descriptor at any time, and the system give it to another connection. So it is asked of a copy whether it
    /// is this one, and the copy is told.
    #[must_use]
    #[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
    pub fn end(&self) -> bool {
        if !self.is_open() || self.descriptor < 0 {
            return true;
        }
        // SAFETY: the number is not negative, and the borrow ends with the call. A descriptor that is closed is an error and nothing
        // else; of one that was used again the cookie tells.
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

    /// How far what was sent over the connection has come. Of one that is closed nothing waits.
    #[must_use]
    pub fn progress(&self) -> SendProgress {
        if self.is_open() { progress(self.descriptor) } else { SendProgress::Nothing }
    }
}

/// How far what was sent over a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// The far end's system has acknowledged so many bytes since the connection was opened.
    Acknowledged(u64),
    /// Nothing waits in this end's buffer. That is all that is known of connections within this host.
    Nothing,
    /// Something waits in this end's buffer.
    Something,
}

/// Of the connection with this descriptor. One that cannot be asked has nothing waiting.
fn progress(descriptor: i32) -> SendProgress {
    match acknowledged(descriptor) {
        Some(bytes) => SendProgress::Acknowledged(bytes),
        None if unsent(descriptor) > 0 => SendProgress::Something,
        None => SendProgress::Nothing,
    }
}

/// What the far end of a TCP connection has acknowledged: `tcpi_bytes_acked` of tcp(7).
#[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
fn acknowledged(descriptor: i32) -> Option<u64> {
    // SAFETY: it is a plain structure of integers, for which zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = bytes_of::<libc::tcp_info>();
    // SAFETY: the call writes at most `bytes` bytes to `info`, both live locals. A descriptor that is closed or of
    // another kind is an error and nothing else.
    let status = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut bytes)
    };
    (status == 0).then_some(info.tcpi_bytes_acked)
}

/// The size of an option's value.
fn bytes_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(libc::socklen_t::MAX)
}

/// Bytes in this end's buffer; 0 of a descriptor that is closed.
#[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
fn unsent(descriptor: i32) -> i32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one integer to `bytes`, a live local. A descriptor that is closed is an error.
    let status = unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &raw mut bytes) };
    if status == 0 { bytes } else { 0 }
}

/// Whether nothing is on its way over a connection: the far end has acknowledged everything, and nothing lies here unread. Closed then,
/// the connection ends without a reset, and nothing is lost.
pub(crate) fn is_settled(connection: impl AsFd) -> bool {
    let unread = rustix::io::ioctl_fionread(&connection);
    unsent(connection.as_fd().as_raw_fd()) == 0 && unread.is_ok_and(|bytes| bytes == 0)
}

/// The system's number of the connection that has this descriptor now, if one has.
#[expect(unsafe_code, reason = "the descriptor is libzmq's, and may be closed at any time")]
fn cookie(descriptor: i32) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut bytes = bytes_of::<u64>();
    // SAFETY: the call writes at most `bytes` bytes to `cookie`, both live locals. A descriptor that is closed, or is no
    // socket, is an error and nothing else; one that was used again gives the number of another connection.
    let status = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut bytes)
    };
    (status == 0).then_some(cookie)
}
