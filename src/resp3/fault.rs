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

impl Fault {
    /// The text of the reply. It has the byte that came as it came.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let what: &[u8] = match self {
            Self::LongArgumentCount => b"too big mbulk count string",
            Self::ArgumentCount => b"invalid multibulk length",
            Self::UnprovenArgumentCount => b"unauthenticated multibulk length",
            Self::LongArgumentLength => b"too big bulk count string",
            Self::NoArgument(byte) => &[b"expected '$', got '", std::slice::from_ref(byte), b"'"].concat(),
            Self::ArgumentLength => b"invalid bulk length",
            Self::UnprovenArgumentLength => b"unauthenticated bulk length",
            Self::LongInline => b"too big inline request",
            Self::Quotes => b"unbalanced quotes in request",
            Self::LongCommand => b"the command is longer than a client may have outstanding",
        };
        [b"ERR Protocol error: ", what].concat()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.text()).replace(char::is_control, " ");
        formatter.write_str(&text)
    }
}
