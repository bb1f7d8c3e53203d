//! Whether the far end of a connection is there, and has everything.

use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};

/// Has the system notice a far end that has vanished.
pub(crate) fn keep_alive(connection: impl AsFd) -> Result<(), Errno> {
    sockopt::set_tcp_keepidle(&connection, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&connection, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&connection, KEEPALIVE_PROBES)?;
    sockopt::set_socket_keepalive(&connection, true)
}

/// Whether the far end sends no more, or is gone. Bytes that lie here unread do not matter.
pub(crate) fn has_hung_up(connection: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&connection, PollFlags::RDHUP)];
    // A call that fails says nothing of the far end.
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}

/// Whether no bytes are on their way over a connection: the far end has acknowledged everything, and no input lies here
/// unread. If the connection is closed then, it ends without a reset, and no bytes are lost.
pub(crate) fn is_settled(connection: impl AsFd) -> bool {
    let unread = rustix::io::ioctl_fionread(&connection);
    unsent(&connection) == 0 && unread.is_ok_and(|bytes| bytes == 0)
}

/// Bytes that the system has for the far end, and that the far end has not acknowledged.
#[expect(unsafe_code, reason = "rustix does not have this request")]
fn unsent(connection: &impl AsFd) -> i32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as it is borrowed, and the call writes one integer to `bytes`, a live local.
    let status = unsafe { libc::ioctl(connection.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if status == 0 { bytes } else { 0 }
}
