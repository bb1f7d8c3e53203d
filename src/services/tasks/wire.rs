//! The bytes of the `spiderq` protocol. This module does no I/O and does not know the queue. Decoded values borrow from
//! the input.
//!
//! A request and its reply are one frame each, the last frame of their message. Integers are big-endian. `bytes` is a
//! length of four bytes and that many bytes.
//!
//! ```text
//! tag  request     fields                                        replies (tag)
//! 0B   Ping                                                      Pong 11
//! 01   Count                                                     Counted 01 total:u32
//! 02   Add         key:bytes value:bytes [mode:u8]               Added 02, Kept 03
//! 03   Update      key:bytes value:bytes                         Updated 04, NotFound 05
//! 04   Lend        timeout_ms:u64 mode:u8                        Lent 06 lend_key:u64 key:bytes value:bytes,
//!                                                                QueueEmpty 10
//! 05   Repay       lend_key:u64 key:bytes value:bytes status:u8  Repaid 07, NotFound 05
//! 06   Heartbeat   lend_key:u64 key:bytes timeout_ms:u64         Heartbeaten 08, Skipped 09
//! 07   Stats                                                     StatsGot 0A and 8 or 10 counters of 8 bytes
//! 08   Terminate                                                 Terminated 0C
//! 09   Lookup      key:bytes                                     ValueFound 0D value:bytes, ValueNotFound 0E
//! 0A   Flush                                                     Flushed 0F
//! 0C   Remove      key:bytes                                     Removed 12, NotRemoved 13
//!      (malformed request)                                       Error 0B field:u8 required:u32 given:u32,
//!                                                                Error 0B field:u8 offending:u8
//! ```
//! ```
//! use spindle::services::tasks::wire::{AddMode, Reply, Request};
//!
//! let request = Request::Add { key: b"k", value: b"v", mode: AddMode::Tail };
//! let mut bytes = Vec::new();
//! request.encode(&mut bytes);
//! assert_eq!(Request::decode(&bytes), Ok(request));
//! assert_eq!(Reply::decode(&[0x02]), Ok(Reply::Added));
//! ```

mod any_request;
mod fault;
mod fields;
mod options;
mod queue_reply;
mod queues;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use any_request::AnyRequest;
pub use fault::{Fault, Field};
pub use queue_reply::{AnyReply, ItemResult, LentTask, QueueFigures, QueueReply, SeenQueue, SeenSettings, SeenTask};
pub use queues::{Kicked, LIST_MAX, LeaseEnd, NamedLease, QueueRequest};
pub use reply::{Counters, Malformed, Reply};
pub use request::{AddMode, LendMode, RepayStatus, Request, Verb, tag};
