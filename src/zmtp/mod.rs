//! ZMTP 3.1, the protocol under ZeroMQ sockets, without any I/O: the caller passes in received bytes and gets bytes to
//! send.
//!
//! Sources: RFC 37 (ZMTP 3.1), with NULL of RFC 23, PLAIN of RFC 24 and CURVE of RFC 26. Peers of version 3.0 are
//! supported as well: the two versions differ only in commands that a 3.0 peer does not send.
//!
//! ```text
//! both      greeting (64 bytes)    signature ff 00×8 7f │ version 03 01 │ "NULL" 00×16 │ as-server 00 │ filler 00×31
//! both      READY                  Socket-Type, Identity
//! both      frames                 flags │ size │ body        and commands between messages: PING, PONG, SUBSCRIBE …
//! ```
//! A [`Handshake`] ends after both READYs. Then [`Part::decode`] decodes frames and commands, [`MessageCutter`] cuts
//! out whole messages, and [`encode_frame`] encodes. Decoded values borrow from the received bytes.
//!
//! This module has no sockets and no buffers of connections. It does not know the meaning of messages, and does not
//! decide who is admitted.
//!
//! # Mechanisms
//!
//! A [`Handshake`] that [`serve`](Handshake::serve)s takes the mechanisms of its [`Mechanisms`]. It returns what the peer
//! claims ([`Claim`]: a name and a password, or a public key), and continues when its caller
//! [`admit`](Handshake::admit)s the peer. After CURVE it has a [`Cipher`]: a [`Sealer`] makes sealed frames of encoded
//! ones, and an [`Opener`] the other way round, so that nothing else changes. `net/zeromq` has both where it
//! writes and receives (`send_buffer.rs`, `receive_buffer.rs`).
//!
//! The publisher has both in `net/zeromq/publish` (`sealed.rs`, `subscriber.rs`). A client's side is a [`ClientHandshake`]
//! with its [`Credentials`]: the clients and the load generator make it in `clients/rust/socket`, which has both ends
//! of the cipher too (`byte_stream.rs`).

mod cipher;
mod client;
mod command;
mod curve;
mod curve_key;
mod frame;
mod greeting;
mod handshake;
mod mechanism;
mod message;
mod spoken;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use crate::messages::{Message, MessageView, Messages, Unconsumed};
pub use cipher::{Cipher, Opener, SEALED_EXTRA_BYTES, Sealer};
pub use client::{ClientHandshake, Credentials};
pub use command::{ZmtpCommand, encode_error, encode_pong, encode_subscribe};
pub use curve_key::{KEY_CHARS, NotAKey, PublicKey, SecretKey};
pub use frame::{FRAME_HEADER_BYTES_MAX, Part, encode_frame, encode_frame_header};
pub use handshake::{Handshake, HandshakePeer, HandshakeStep, SocketType};
pub use mechanism::{Claim, ClaimRefusal, Mechanisms};
pub use message::{MessageBounds, MessageCutter};
pub use spoken::SpokenProtocol;

/// A peer's violation that ends its connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The peer's bytes do not begin like ZMTP 3.
    #[error("the peer speaks {spoken}, and ZMTP 3.0 is needed (libzmq 4.0 or later)")]
    OtherProtocol {
        /// What the peer speaks.
        spoken: SpokenProtocol,
    },
    /// The peer wants a mechanism that is not taken here: another than NULL, or NULL where users are named.
    #[error("the peer wants the mechanism {mechanism}, and it is not taken here")]
    Mechanism {
        /// The name of the mechanism, as far as it is text.
        mechanism: String,
    },
    /// A frame of a connection with CURVE is not sealed, or not by the peer.
    #[error("an encrypted frame cannot be read: {what}")]
    Sealed {
        /// The violation.
        what: &'static str,
    },
    /// The flags of a frame are undefined or do not go together.
    #[error("a frame has the flags {flags:#04x}")]
    Flags {
        /// The first byte of the frame.
        flags: u8,
    },
    /// A frame, or a command of the handshake, is larger than its bound.
    #[error("a frame has {bytes} bytes, and at most {most} are taken")]
    TooLong {
        /// The size of the frame, in bytes.
        bytes: u64,
        /// The bound, in bytes.
        most: u64,
    },
    /// A command cannot be decoded, or does not belong here.
    #[error("a command cannot be read: {what}")]
    Command {
        /// The violation.
        what: &'static str,
    },
    /// The two socket types do not talk to each other.
    #[error("a {theirs} socket does not talk to a {ours} socket")]
    SocketType {
        /// The socket type of the peer.
        theirs: String,
        /// Our socket type.
        ours: SocketType,
    },
    /// The peer has ended the handshake.
    #[error("the peer refused: {reason}")]
    Refused {
        /// The peer's own text.
        reason: String,
    },
}
