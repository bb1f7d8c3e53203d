//! What the frontends share: the queue of libzmq between threads, wake-ups, the errors of endpoints, and how serving
//! stops.
//!
//! This module does not know any protocol's bytes and does not start threads. No peer reaches libzmq: it is used within
//! the process alone ([`inproc`]).

mod endpoint;
pub mod inproc;
mod mailbox;
mod settled;
mod stop;
mod wait;

pub use endpoint::BindError;
pub(crate) use endpoint::{bind_error, occupied};
pub use mailbox::Mailbox;
pub(crate) use settled::is_settled;
pub use stop::{ServeError, Stopper};
pub(crate) use wait::timespec;
pub use wait::{WakeSignal, wait};

use std::time::Duration;

use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};

/// Turns on keepalive, so that a TCP connection ends when the host at its other end has vanished.
///
/// # Errors
/// The error of libzmq for a closed socket.
pub(crate) fn keep_alive(socket: &zmq::Socket) -> zmq::Result<()> {
    let seconds = |time: Duration| i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
    socket.set_tcp_keepalive_idle(seconds(KEEPALIVE_IDLE))?;
    socket.set_tcp_keepalive_intvl(seconds(KEEPALIVE_INTERVAL))?;
    socket.set_tcp_keepalive_cnt(i32::try_from(KEEPALIVE_PROBES).unwrap_or(i32::MAX))?;
    socket.set_tcp_keepalive(1)
}
