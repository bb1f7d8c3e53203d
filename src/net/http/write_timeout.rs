//! A connection with a limit on how long the client may leave sent bytes unread.
//!
//! This module does not limit how long a client takes to send its request: hyper does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::activity::Activity;
use crate::net::tcp::ClientStream;

/// The stream, and the deadline of a write that is stuck.
pub(super) struct WriteTimeout {
    stream: ClientStream,
    activity: Activity,
    /// How long a write may be stuck.
    most: Duration,
    /// None while no write is stuck.
    until: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    /// A connection on which a write may be stuck for `most`.
    pub(super) fn new(stream: ClientStream, activity: Activity, most: Duration) -> Self {
        Self { stream, activity, most, until: None }
    }

    /// The connection without the limit.
    pub(super) fn stream(&mut self) -> &mut ClientStream {
        &mut self.stream
    }

    /// Passes the result of a write on, or returns an error if the write has been stuck for too long.
    fn judge<T>(&mut self, sent: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.activity.set_stuck(sent.is_pending());
        if sent.is_ready() {
            self.until = None;
            return sent;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(self.most)));
        ready!(until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.received();
        }
        read
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(sent, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // With TLS, bytes may wait in the stream.
        let sent = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(sent, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(sent, context)
    }
}
