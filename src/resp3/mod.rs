//! The Redis serialization protocol, both versions, without I/O: commands are cut out of received bytes, and replies are
//! encoded.
//!
//! ```text
//! command   *3\r\n $3\r\nSET\r\n $1\r\nk\r\n $1\r\nv\r\n       an array of bulk strings
//!           SET k "a value"\r\n                                  or inline: words of a line
//! reply     +OK\r\n   -ERR text\r\n   :7\r\n   $1\r\nv\r\n     as in both versions
//!           $-1\r\n  *-1\r\n   |  _\r\n                         no value: version 2 | version 3
//!           *4\r\n …             |  %2\r\n …  ~4\r\n …            map, set: version 2 | version 3
//!           $3\r\n1.5\r\n       |  ,1.5\r\n                      double
//!           *3\r\n …             |  >3\r\n …                      push
//! ```
//! Formats and errors are those of the RESP specification and of Redis 7. [`CommandCutter`] reads, [`ReplyWriter`]
//! writes. This module knows no command.

mod command;
mod fault;
mod inline;
mod reply;

#[cfg(test)]
mod tests;

pub use command::{CommandBounds, CommandCutter, integer};
pub use fault::Fault;
pub use reply::{ReplyWriter, RespVersion, reply_length};
