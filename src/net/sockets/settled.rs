//! Whether a connection can close without a loss.

use std::os::fd::{AsFd, AsRawFd};

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
