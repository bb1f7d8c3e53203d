//! The stream of one conversation, as its steps need it: readiness to read apart from reading, and both beside sending.
//!
//! With TLS there is no readiness of its own, since bytes on the connection may be no bytes of the request. So the
//! stream reads a little ahead.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::sockopt::socket_error;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::net::sockets::{has_hung_up, is_settled, keep_alive};
use crate::net::tcp::ClientStream;
use crate::security::Fingerprint;

/// Bytes that are read ahead at once, as many as the first buffer of a request has.
const AHEAD_BYTES: usize = crate::limits::JOB_BUFFER_BYTES;

/// A connection, plain or with TLS.
pub(super) enum JobStream {
    Plain(TcpStream),
    Tls(RefCell<ReadAhead>),
}

/// A connection with TLS.
pub(super) struct ReadAhead {
    stream: ClientStream,
    /// Bytes that were read, and not taken.
    ahead: Vec<u8>,
    /// The end of the stream, once it has come. An error means that it is broken.
    end: Option<io::Result<()>>,
}

impl ReadAhead {
    fn poll_read_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.ahead.is_empty() || self.end.is_some() {
            return Poll::Ready(());
        }
        let mut room = [0; AHEAD_BYTES];
        let mut buffer = ReadBuf::new(&mut room);
        match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
            Ok(()) if buffer.filled().is_empty() => self.end = Some(Ok(())),
            Ok(()) => self.ahead.extend_from_slice(buffer.filled()),
            Err(error) => self.end = Some(Err(error)),
        }
        Poll::Ready(())
    }

    /// The bytes that were read ahead, as many as there is room for.
    fn take(&mut self, room: usize) -> io::Result<Vec<u8>> {
        if !self.ahead.is_empty() {
            let rest = self.ahead.split_off(room.min(self.ahead.len()));
            return Ok(std::mem::replace(&mut self.ahead, rest));
        }
        match &self.end {
            None => Err(ErrorKind::WouldBlock.into()),
            Some(Ok(())) => Ok(Vec::new()),
            Some(Err(error)) => Err(error.kind().into()),
        }
    }
}

impl JobStream {
    pub(super) fn new(stream: ClientStream) -> Self {
        match stream {
            ClientStream::Plain(stream) => Self::Plain(stream),
            stream => Self::Tls(RefCell::new(ReadAhead { stream, ahead: Vec::new(), end: None })),
        }
    }

    /// Where the client connects from. None if it has gone.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr().ok(),
            Self::Tls(tls) => tls.borrow().stream.address(),
        }
    }

    /// The fingerprint of the certificate whose key the client has. None: it has shown none.
    pub(super) fn certificate(&self) -> Option<Fingerprint> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls.borrow().stream.certificate(),
        }
    }

    /// Ready when there are bytes to read, or the end of the stream.
    pub(super) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(stream) => stream.poll_read_ready(context).map(drop),
            Self::Tls(tls) => tls.borrow_mut().poll_read_ready(context),
        }
    }

    /// Appends bytes that have come, as many as the buffer has room for. 0: the client sends no more.
    pub(super) fn try_read_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.try_read_buf(buffer),
            Self::Tls(tls) => {
                let came = tls.borrow_mut().take(buffer.capacity() - buffer.len())?;
                buffer.extend_from_slice(&came);
                Ok(came.len())
            }
        }
    }

    /// Discards bytes that have come, with a buffer for them. 0: the client sends no more.
    pub(super) fn try_discard(&self, scrap: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.try_read(scrap),
            Self::Tls(tls) => Ok(tls.borrow_mut().take(usize::MAX)?.len()),
        }
    }

    /// Sends some of these bytes. More follow, or [`JobStream::poll_end`].
    pub(super) fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => return Pin::new(&mut tls.borrow_mut().stream).poll_write(context, bytes),
        };
        loop {
            let write = || Ok(send(stream, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?);
            match stream.try_io(Interest::WRITABLE, write) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(stream.poll_write_ready(context))?,
                sent => return Poll::Ready(sent),
            }
        }
    }

    /// Has the system take all that was sent.
    pub(super) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(&mut tls.borrow_mut().stream).poll_flush(context),
        }
    }

    /// Shuts our end down.
    pub(super) fn poll_end(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Poll::Ready(shutdown(stream, Shutdown::Write).map_err(io::Error::from)),
            Self::Tls(tls) => Pin::new(&mut tls.borrow_mut().stream).poll_shutdown(context),
        }
    }

    /// What this says of the connection as the system has it.
    fn of_descriptor<T>(&self, ask: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Self::Plain(stream) => ask(stream.as_fd()),
            Self::Tls(tls) => ask(tls.borrow().stream.as_fd()),
        }
    }

    /// Has the system notice a client that has vanished.
    pub(super) fn keep_alive(&self) {
        // A stream of another kind has no such need.
        let _kept = self.of_descriptor(|one| keep_alive(one));
    }

    /// Whether the system has found that the client is gone.
    pub(super) fn is_broken(&self) -> bool {
        !matches!(self.of_descriptor(|one| socket_error(one)), Ok(Ok(())))
    }

    /// Whether the client sends no more, or is gone. What it has sent may lie here unread.
    pub(super) fn has_hung_up(&self) -> bool {
        self.of_descriptor(|one| has_hung_up(one))
    }

    /// Whether no bytes are on their way in either direction.
    pub(super) fn is_settled(&self) -> bool {
        self.of_descriptor(|one| is_settled(one))
    }
}
