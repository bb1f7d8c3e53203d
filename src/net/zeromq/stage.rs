//! The stage of a connection. Requests' connections and subscribers share it.
//!
//! ```text
//! Shaking, Securing ──► Open ──► (the client closes, or the connection breaks) closed
//!    │                    │ a protocol fault, an exceeded bound, or the end of the server
//!    └────────────────────┴──► Parting: send the rest, shut down our end, throw later input away ──► closed
//! ```
//! The thread parts with a client and does not close at once: the system would otherwise report a broken connection to
//! the client and throw away replies that the client has not read yet.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};

use super::authentication::PeerIdentity;
use crate::zmtp::{Cipher, ClaimRefusal, Handshake, HandshakeStep, Mechanisms, ProtocolError, SocketType};

/// Stage of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionStage {
    Shaking(Handshake),
    /// In the handshake of TLS.
    Securing,
    Open,
    /// `true`: our end is shut down.
    Parting(bool),
}

impl ConnectionStage {
    /// Greets a client that has just connected. It has to name a user by one of these mechanisms, if there are any.
    pub(crate) fn greet(ours: SocketType, mechanisms: Option<&Arc<Mechanisms>>, out: &mut Vec<u8>) -> Self {
        Self::Shaking(match mechanisms {
            None => Handshake::open(ours, out),
            Some(mechanisms) => Handshake::serve(ours, mechanisms, out),
        })
    }

    /// Whether the peer has not been through its handshake.
    pub(crate) fn is_shaking(&self) -> bool {
        matches!(self, Self::Shaking(_) | Self::Securing)
    }

    /// The handshake of TLS is over.
    pub(crate) fn secured(&mut self) {
        if matches!(self, Self::Securing) {
            *self = Self::Open;
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    pub(crate) fn is_parting(&self) -> bool {
        matches!(self, Self::Parting(_))
    }

    /// Continues the handshake, if it is not over. Notes what the peer claims. Returns the number of bytes used.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The caller sends `out` first.
    pub(crate) fn advance(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        peer: &mut PeerIdentity,
    ) -> Result<usize, ProtocolError> {
        let Self::Shaking(handshake) = self else { return Ok(0) };
        let (taken, step) = handshake.advance(bytes, out)?;
        match step {
            HandshakeStep::More => {}
            HandshakeStep::Claimed(claim) => *peer = PeerIdentity::Claimed(claim),
            HandshakeStep::Done(_) => *self = Self::Open,
        }
        Ok(taken)
    }

    /// Lets the peer in after its claim. With CURVE the connection is then open, and has a cipher.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The caller sends `out` first.
    pub(crate) fn admit(&mut self, out: &mut Vec<u8>) -> Result<Option<Box<Cipher>>, ProtocolError> {
        let Self::Shaking(handshake) = self else {
            return Err(ProtocolError::Command { what: "the handshake is over" });
        };
        let HandshakeStep::Done(_) = handshake.admit(out)? else { return Ok(None) };
        let cipher = handshake.cipher();
        *self = Self::Open;
        Ok(cipher)
    }

    /// Refuses the peer after its claim.
    pub(crate) fn refuse(&mut self, why: ClaimRefusal, out: &mut Vec<u8>) {
        if let Self::Shaking(handshake) = self {
            handshake.refuse(why, out);
        }
    }

    /// Shuts down our end of a parting connection whose bytes are all sent.
    pub(crate) fn shut_down(&mut self, descriptor: &OwnedFd) {
        if let Self::Parting(closed @ false) = self {
            *closed = true;
            // It fails if the connection is gone. Epoll reports that end.
            let _gone = shutdown(descriptor, Shutdown::Write);
        }
    }
}
