//! Gives a body to the errors that hyper answers by itself.
//!
//! hyper answers a head that it cannot parse without asking the routes, and without a body:
//!
//! ```text
//! hyper ─► HTTP/1.1 431 …, content-length: 0 ─► this module ─► HTTP/1.1 431 …, {"error":…} ─► client
//! hyper ─► any other reply ───────────────────────────────────────────────────────────────► client
//! ```
//! Such an error is the last reply of its connection. hyper hands over all bytes that it has left in one piece, since
//! this stream does no vectored writes. So the error is the end of one write, if it is there.
//!
//! This module does not parse requests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::refusal::{HttpRefusal, encode};
use crate::clock::{http_date, wall_millis};

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

/// A stream below hyper.
pub(super) struct OwnErrors<S> {
    stream: S,
    /// The reply in place of hyper's own, from the byte at `sent` on.
    reply: Vec<u8>,
    sent: usize,
    /// Whether bytes have come since the last reply.
    is_begun: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> OwnErrors<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, reply: Vec::new(), sent: 0, is_begun: false }
    }

    /// The stream, when hyper has ended.
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Whether a request has begun that has no reply.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Writes the reply in place of hyper's own, if there is one.
    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.reply.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for OwnErrors<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.is_begun |= buffer.filled().len() > before;
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for OwnErrors<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_begun = false;
        let Some((before, status)) = own_error(bytes) else {
            return Pin::new(&mut self.stream).poll_write(context, bytes);
        };
        if !before.is_empty() {
            return Pin::new(&mut self.stream).poll_write(context, before);
        }
        self.reply = encode(&HttpRefusal::Unparsed(status), &http_date(wall_millis()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_reply(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_reply(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The status of an error of hyper's own that these bytes end with, and the bytes before it. Replies of the routes have
/// a type, and hyper's own have none.
fn own_error(bytes: &[u8]) -> Option<(&[u8], u16)> {
    let heads = bytes.strip_suffix(END)?;
    let start = heads.windows(9).rposition(|window| window == b"HTTP/1.1 " || window == b"HTTP/1.0 ")?;
    let (before, head) = heads.split_at_checked(start)?;
    let head = std::str::from_utf8(head).ok()?.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok().filter(|status| (400..600).contains(status))?;
    let is_own = head.contains("\r\ncontent-length: 0") && !head.contains("\r\ncontent-type:");
    is_own.then_some((before, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_hypers_own_is_distinguished_from_other_replies() {
        let error = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(own_error(error.as_bytes()), Some((&b""[..], 431)));
        let reply = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(own_error(reply.as_bytes()), None);
        let both = [reply, error].concat();
        assert_eq!(own_error(both.as_bytes()), Some((reply.as_bytes(), 431)));
        let rest = &both[reply.len() - 1..];
        assert_eq!(own_error(rest.as_bytes()), Some((&b"}"[..], 431)));
        let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n";
        assert_eq!(own_error(head.as_bytes()), None, "the reply to HEAD");
        assert_eq!(own_error(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
    }
}
