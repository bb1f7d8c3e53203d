//! Makes sockets, and the threads in which libzmq reads and writes for them.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use super::{Socket, must};
use crate::limits::{
    ACCEPT_BACKLOG, FRAME_BYTES_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, REQUEST_KIBIBYTES_IN_PIPE,
};

/// Added to a high-water mark of which the rest counts kibibytes and not messages (`.cargo/libzmq`).
const COUNTED_IN_KIBIBYTES: i32 = 1 << 20;

/// The sockets of this process, and the threads in which libzmq reads and writes for them.
#[derive(Clone)]
pub struct SocketContext(zmq::Context);

impl SocketContext {
    /// A new context with this many I/O threads.
    #[must_use]
    pub fn new(io_threads: i32) -> Self {
        let context = zmq::Context::new();
        must(context.set_io_threads(io_threads.max(1)));
        Self(context)
    }

    /// Makes the I/O threads, which would otherwise come with the first socket. They run on the calling thread's cores.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn start(&self) -> io::Result<()> {
        // libzmq has no call for it: `zmq_ctx_t::create_socket` makes them. The socket closes at once.
        self.socket(zmq::DEALER).map(drop)
    }

    /// A router for clients with routing ids. It reports an unreachable client, and lets a new connection take over an
    /// id. The pipe to each client holds up to `messages_in_pipe` messages, the pipe from it
    /// [`REQUEST_KIBIBYTES_IN_PIPE`], and at most one message more.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn router(&self, messages_in_pipe: i32) -> io::Result<Socket> {
        self.router_for(messages_in_pipe, FRAME_BYTES_MAX)
    }

    /// As [`SocketContext::router`], for frames of up to `frame_bytes` bytes. A larger frame closes its connection.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn router_for(&self, messages_in_pipe: i32, frame_bytes: usize) -> io::Result<Socket> {
        let socket = self.socket(zmq::ROUTER)?;
        must(socket.options.set_maxmsgsize(i64::try_from(frame_bytes).unwrap_or(i64::MAX)));
        must(socket.options.set_router_mandatory(true));
        must(socket.options.set_router_handover(true));
        must(socket.options.set_sndhwm(messages_in_pipe));
        must(socket.options.set_rcvhwm(COUNTED_IN_KIBIBYTES + REQUEST_KIBIBYTES_IN_PIPE));
        Ok(socket)
    }

    /// One end of a pipe within this process, unbounded in both directions.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn dealer(&self) -> io::Result<Socket> {
        let socket = self.socket(zmq::DEALER)?;
        must(socket.options.set_sndhwm(0));
        must(socket.options.set_rcvhwm(0));
        Ok(socket)
    }

    /// A socket with the options that all sockets here share.
    fn socket(&self, kind: zmq::SocketType) -> io::Result<Socket> {
        let mut socket = self.0.socket(kind).map_err(|error| match error {
            zmq::Error::EMFILE => io::Error::from_raw_os_error(libc::EMFILE),
            other => io::Error::other(other),
        })?;
        // As long as the server runs: bytes that a gone connection has not read go with it at once, not seconds later.
        must(socket.set_linger(0));
        must(socket.set_maxmsgsize(FRAME_BYTES_MAX as i64));
        must(socket.set_backlog(ACCEPT_BACKLOG));
        must(keep_alive(&socket));
        Ok(Socket {
            raw: socket.as_mut_ptr(),
            descriptor: must(socket.get_fd()),
            quiet: Cell::new(false),
            patience: Cell::new(None),
            options: socket,
        })
    }
}

/// Turns on keepalive, so that a TCP connection ends when the host at its other end has vanished.
///
/// # Errors
/// The error of libzmq for a closed socket.
fn keep_alive(socket: &zmq::Socket) -> zmq::Result<()> {
    let seconds = |time: Duration| i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
    socket.set_tcp_keepalive_idle(seconds(KEEPALIVE_IDLE))?;
    socket.set_tcp_keepalive_intvl(seconds(KEEPALIVE_INTERVAL))?;
    socket.set_tcp_keepalive_cnt(i32::try_from(KEEPALIVE_PROBES).unwrap_or(i32::MAX))?;
    socket.set_tcp_keepalive(1)
}
