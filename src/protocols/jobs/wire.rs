//! The bytes of the `jobs` protocol. Nothing here does I/O or knows a queue; what is decoded borrows from its input.
//!
//! ```text
//! request                          replies
//! ADD <queue> <length> <data>      <id>
//! GET <queue>                      <id> <length> <data>, NONE
//! ACK <queue> <id>                 OK, NO       (or YES, NO)
//! IN <queue> <id>                  YES, NO
//! (what is not understood)         ERROR
//! ```
//! Fields are separated by one space; a request may end with LF or CRLF, a reply never does. A connection brings one request, so
//! what stands behind it among the bytes that have come makes it none. [`Decoded`] says when a request is whole: the protocol does not
//! ask for an end, so a GET, ACK or IN without one is whole when nothing follows.
//!
//! ```
//! use spindle::protocols::jobs::wire::{Decoded, Request, decode};
//!
//! let add = Request::Add { queue: b"mail", data: b"to ada" };
//! assert_eq!(decode(b"ADD mail 6 to ada", false), Decoded::Whole(add));
//! assert_eq!(decode(b"GET mail\n", false), Decoded::Whole(Request::Get { queue: b"mail" }));
//! assert_eq!(decode(b"GET mail", false), Decoded::Pausing);
//! ```

mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use reply::{AckWording, Malformed, Reply};
pub use request::{Decoded, Fault, Id, Request, Verb, decode};
