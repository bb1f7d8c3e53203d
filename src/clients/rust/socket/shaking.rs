//! The handshake of a client on a connection that was accepted.
//!
//! ```text
//! socket ─► Shaking ── step, step … ──► ByteStream: the first message may follow
//!              └─► ShakeError: closed, refused, or no ZMTP 3
//! ```

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::PollFd;
use thiserror::Error;

use super::byte_stream::{ByteStream, StreamEnd};
use crate::clock::{Clock, TimeLimit};
use crate::zmtp::{ClaimRefusal, ClientHandshake, Credentials, ProtocolError, SocketType};

/// The first byte of every version of ZMTP since 2.0.
const GREETING_FIRST: u8 = 0xff;

/// Bytes of a foreign greeting that an error shows.
const SHOWN_BYTES: usize = 40;

/// Why there is no connection after all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ShakeError {
    /// The time was up.
    #[error("no answer to the handshake")]
    Late,
    /// The other end has closed the connection, or it broke.
    #[error("{0}")]
    Ended(StreamEnd),
    /// The server does not take this user, or this way to name one.
    #[error("{0}")]
    Denied(ProtocolError),
    /// The server has not checked the password: others are being checked.
    #[error("the server is busy with other passwords")]
    Busy,
    /// The other end is no server of ZMTP 3 for this socket.
    #[error("{0}")]
    Foreign(String),
}

impl From<StreamEnd> for ShakeError {
    fn from(end: StreamEnd) -> Self {
        Self::Ended(end)
    }
}

/// A handshake in progress.
pub(crate) struct Shaking {
    stream: ByteStream,
    handshake: ClientHandshake,
    /// The server has greeted as one of ZMTP.
    is_greeted: bool,
    /// Bytes of the longest frame that is received after it.
    frame_bytes: u64,
}

impl Shaking {
    /// Begins the handshake on a socket that does not block.
    pub(crate) fn begin(descriptor: OwnedFd, ours: SocketType, credentials: Credentials, frame_bytes: u64) -> Self {
        let mut stream = ByteStream::new(descriptor);
        let handshake = ClientHandshake::begin(ours, credentials, stream.outbox());
        Self { stream, handshake, is_greeted: false, frame_bytes }
    }

    /// Continues, without waiting. Returns whether the handshake is over.
    ///
    /// # Errors
    /// [`ShakeError`]
    pub(super) fn step(&mut self) -> Result<bool, ShakeError> {
        // A server that refuses says so before it closes. So a broken connection ends the handshake when it is read.
        let _broken = self.stream.flush();
        if !self.stream.receive()? {
            return Ok(false);
        }
        let (bytes, out) = self.stream.unused();
        match self.handshake.advance(bytes, out) {
            Err(fault) => Err(judged(fault, bytes, self.is_greeted)),
            Ok((taken, server)) => {
                self.is_greeted |= taken > 0;
                self.stream.consume(taken);
                let _broken = self.stream.flush();
                if server.is_some()
                    && let Some(cipher) = self.handshake.cipher()
                {
                    self.stream.seal(cipher, self.frame_bytes)?;
                }
                Ok(server.is_some())
            }
        }
    }

    /// Continues, and waits up to this time for the end.
    ///
    /// # Errors
    /// [`ShakeError`]
    pub(crate) fn wait(mut self, time: Duration) -> Result<ByteStream, ShakeError> {
        let clock = Clock::start();
        let limit = TimeLimit::begin(clock.now(), time);
        while !self.step()? {
            if limit.is_over(clock.now()) {
                return Err(ShakeError::Late);
            }
            self.stream.wait(limit.left(clock.now())).map_err(StreamEnd::Broken)?;
        }
        Ok(self.stream)
    }

    /// The connection after the handshake.
    pub(super) fn into_stream(self) -> ByteStream {
        self.stream
    }

    /// The descriptor to poll before continuing.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        self.stream.poll_fd()
    }
}

/// The error for a fault in these bytes, before or after the greeting.
fn judged(fault: ProtocolError, bytes: &[u8], is_greeted: bool) -> ShakeError {
    let is_status = |text: &str| text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    match &fault {
        // The status of ZAP (RFC 27). Any other reason is one of ZMTP.
        ProtocolError::Refused { reason } if reason == ClaimRefusal::Busy.status() => ShakeError::Busy,
        ProtocolError::Refused { reason } if is_status(reason) => ShakeError::Denied(fault),
        ProtocolError::Mechanism { .. } => ShakeError::Denied(fault),
        _ if is_greeted || bytes.first() == Some(&GREETING_FIRST) => ShakeError::Foreign(fault.to_string()),
        _ => {
            let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
            let shown = line.get(..SHOWN_BYTES).unwrap_or(line);
            ShakeError::Foreign(format!("{fault}: it begins with \"{}\"", shown.escape_ascii()))
        }
    }
}
