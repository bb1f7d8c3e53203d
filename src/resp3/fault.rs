//! What ends a connection: the peer has sent no command. The texts are those of Redis, which clients print.

use std::fmt;

/// A breach of the protocol. The reply is `-` and this text, and the connection closes behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The line that counts the arguments has no end.
    LongArgumentCount,
    /// The number of arguments is no number, or too large.
    ArgumentCount,
    /// The same, of a peer that has not named its user.
    UnprovenArgumentCount,
    /// The line that counts the bytes of an argument has no end.
    LongArgumentLength,
    /// An argument does not begin with `$`, but with this byte.
    NoArgument(u8),
    /// The number of bytes is no number, or too large.
    ArgumentLength,
    /// The same, of a peer that has not named its user.
    UnprovenArgumentLength,
    /// A line has no end.
    LongInline,
    /// A line has a quote without its partner.
    Quotes,
    /// The arguments take more bytes than a client may have outstanding.
    LongCommand,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::LongArgumentCount => "too big mbulk count string",
            Self::ArgumentCount => "invalid multibulk length",
            Self::UnprovenArgumentCount => "unauthenticated multibulk length",
            Self::LongArgumentLength => "too big bulk count string",
            Self::NoArgument(byte) => {
                // Redis writes the byte as a character. A line may not hold an end of line.
                let shown = if byte.is_ascii_control() { ' ' } else { char::from(*byte) };
                return write!(formatter, "ERR Protocol error: expected '$', got '{shown}'");
            }
            Self::ArgumentLength => "invalid bulk length",
            Self::UnprovenArgumentLength => "unauthenticated bulk length",
            Self::LongInline => "too big inline request",
            Self::Quotes => "unbalanced quotes in request",
            Self::LongCommand => "the command is longer than a client may have outstanding",
        };
        write!(formatter, "ERR Protocol error: {what}")
    }
}
