//! ZMTP 3.1, the protocol under ZeroMQ sockets, without any I/O: bytes that came go in, bytes to send come out.
//!
//! After RFC 37 (ZMTP 3.1) with the NULL mechanism of RFC 23; peers of version 3.0 are spoken to as well, since with NULL
//! the two differ only in commands that a 3.0 peer does not send.
//!
//! ```text
//! both      greeting (64 bytes)    signature ff 00×8 7f │ version 03 01 │ "NULL" 00×16 │ as-server 00 │ filler 00×31
//! both      READY                  Socket-Type, Identity
//! both      frames                 flags │ size │ body        and commands between messages: PING, PONG, SUBSCRIBE …
//! ```
//! [`Handshake`] goes as far as both READYs; then [`Part::decode`] reads frames and commands, [`MessageCutter`] whole messages, and
//! [`encode_frame`] writes. What is read borrows from the bytes that came.
//!
//! What is not here: sockets, buffers of connections, what messages mean, mechanisms but NULL.

mod command;
mod frame;
#[cfg(test)]
mod fuzz;
mod greeting;
mod handshake;
mod message;

use thiserror::Error;

pub use command::{ZmtpCommand, encode_error, encode_pong, encode_subscribe};
pub use frame::{Part, encode_frame, encode_frame_header};
pub use handshake::{Handshake, HandshakePeer, HandshakeStep, SocketType};
pub use message::{Message, MessageBounds, MessageCutter, Messages, Unconsumed};

/// What a peer did that ends its connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It does not begin as ZMTP does.
    #[error("the peer does not speak ZMTP")]
    NotZmtp,
    /// It speaks an older version.
    #[error("the peer speaks ZMTP {major}, and 3 is needed")]
    Version {
        /// The major version that it offers.
        major: u8,
    },
    /// It wants to be sure who we are, or that nobody listens.
    #[error("the peer wants the mechanism {mechanism}, and only NULL is spoken here")]
    Mechanism {
        /// Its name, as far as it is text.
        mechanism: String,
    },
    /// Flags of a frame that nobody has defined, or that do not go together.
    #[error("a frame has the flags {flags:#04x}")]
    Flags {
        /// The first byte of the frame.
        flags: u8,
    },
    /// A frame, or what a handshake takes, is larger than what is kept.
    #[error("a frame has {bytes} bytes, and at most {most} are taken")]
    TooLong {
        /// Its size, in bytes.
        bytes: u64,
        /// The most that is taken, in bytes.
        most: u64,
    },
    /// A command whose parts do not add up, or one that has no place here.
    #[error("a command cannot be read: {what}")]
    Command {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The sockets do not talk to each other.
    #[error("a {theirs} socket does not talk to a {ours} socket")]
    SocketType {
        /// What the peer is.
        theirs: String,
        /// What we are.
        ours: SocketType,
    },
    /// It has ended the handshake.
    #[error("the peer refused: {reason}")]
    Refused {
        /// In its own words.
        reason: String,
    },
}
