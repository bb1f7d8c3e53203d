//! The bytes of the `jobs` protocol. This module does no I/O and does not know the queues. Decoded values borrow from
//! the input.
//!
//! ```text
//! request                          replies
//! ADD <queue> <length> <data>      <id>
//! GET <queue>                      <id> <length> <data>, NONE
//! ACK <queue> <id>                 OK, NO       (or YES, NO)
//! IN <queue> <id>                  YES, NO
//! ADDX <queue> <options> <length> <data>   as ADD
//! WAIT <queue>[,…] <seconds> [tries]   as GET, or <id> <length> <tries> <data>
//! NACK <queue> <id> [delay] [reason]   as ACK
//! TOUCH <queue> <id> <seconds>     as ACK
//! SAVE                             ERROR        (or OK)
//! (anything else)                  ERROR        (BUSY: the password was not checked)
//! ```
//! Where users are named, the line of `auth` comes before the request. One space separates two fields. A request may end with LF or CRLF, a reply never does. A connection carries one
//! request, so bytes that were read with the request and stand behind it make the request malformed. [`Decoded`] says
//! whether a request is complete. The protocol does not require an end of line, so another command than
//! ADD or ADDX without one is complete when no byte follows.
//!
//! ```
//! use spindle::services::jobs::wire::{Decoded, Request, decode};
//!
//! let add = Request::Add { queue: b"mail", data: b"to ada" };
//! assert_eq!(decode(b"ADD mail 6 to ada", false), Decoded::Whole(add));
//! assert_eq!(decode(b"GET mail\n", false), Decoded::Whole(Request::Get { queue: b"mail" }));
//! assert_eq!(decode(b"GET mail", false), Decoded::Pausing);
//! ```

mod auth;
mod options;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use auth::{DecodedAuth, decode_auth, encode_auth};
pub use options::{read_backoff, read_options, read_time};
pub use reply::{AckWording, Malformed, Reply};
pub use request::{Decoded, Fault, JobId, Request, Verb, decode};
