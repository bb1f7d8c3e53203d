//! ZMTP 3.1, the protocol under ZeroMQ sockets, without any I/O: the caller passes in received bytes and gets bytes to
//! send.
//!
//! Sources: RFC 37 (ZMTP 3.1), with the NULL mechanism of RFC 23. Peers of version 3.0 are supported as well: with
//! NULL, the two versions differ only in commands that a 3.0 peer does not send.
//!
//! ```text
//! both      greeting (64 bytes)    signature ff 00×8 7f │ version 03 01 │ "NULL" 00×16 │ as-server 00 │ filler 00×31
//! both      READY                  Socket-Type, Identity
//! both      frames                 flags │ size │ body        and commands between messages: PING, PONG, SUBSCRIBE …
//! ```
//! A [`Handshake`] ends after both READYs. Then [`Part::decode`] decodes frames and commands, [`MessageCutter`] cuts
//! out whole messages, and [`encode_frame`] encodes. Decoded values borrow from the received bytes.
//!
//! This module has no sockets and no buffers of connections. It does not know the meaning of messages, and has no
//! mechanism but NULL.
//!
//! # A further mechanism
//!
//! A further mechanism would stand in `greeting.rs` and `handshake.rs`. A [`Handshake`] is begun in
//! `protocols/native/connection.rs`, `protocols/publish/subscriber.rs` and `load/dialect/kv.rs`. The keys, from new
//! flags, would come in there.
//!
//! A cipher needs state of the connection, which [`Part::decode`] and [`encode_frame`] do not have. After the
//! handshake, these files use them. Other paths than those of `zmtp` and `load` begin under `protocols`.
//!
//! - **Decoding of frames**: [`MessageCutter::cut`] in `zmtp/message.rs`, `publish/subscriber_command.rs`,
//!   `publish/queue.rs` (the ends of messages that wait), `load/dialect/kv.rs`.
//! - **Encoding of frames**: `native/send_buffer.rs`, `spiderq/responder.rs` (envelopes), `kv/reporter.rs`,
//!   `kv/publish.rs`, `load/dialect/kv.rs`. In `kv/worker.rs` it is for the proxy alone.
//! - **Encoding of commands**: `zmtp/message.rs`, `publish/subscriber.rs`, `load/dialect/kv.rs`.
//!
//! The publisher shares encoded bytes between subscribers (`protocols/publish/burst.rs`). The native workers share the
//! bytes of a report between connections (`FinishedReport`, `SendBuffer::push_shared`). A cipher for each connection
//! does not allow that.
//!
//! The proxy frontend and the clients do not use this module. Their mechanisms would be those of libzmq, set by its
//! options in `protocols/sockets.rs` and `protocols/client_socket.rs`. libzmq is built without CURVE (`.cargo/libzmq`).
//! To refuse a client, libzmq asks a ZAP handler. That is a socket and a thread that this server does not have.

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

/// A peer's violation that ends its connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The peer's bytes do not begin like ZMTP.
    #[error("the peer does not speak ZMTP")]
    NotZmtp,
    /// The peer speaks an older version.
    #[error("the peer speaks ZMTP {major}, and 3 is needed")]
    Version {
        /// The major version that the peer offers.
        major: u8,
    },
    /// The peer wants a mechanism with authentication or encryption.
    #[error("the peer wants the mechanism {mechanism}, and only NULL is spoken here")]
    Mechanism {
        /// The name of the mechanism, as far as it is text.
        mechanism: String,
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
