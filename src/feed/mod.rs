//! The feed: an exact copy of a table for whoever follows it, and the knowledge that the copy is exact.
//!
//! This module has the messages, the digest, and the state machine of the server's side. It is pure: it opens no socket,
//! reads no clock and knows neither tables nor frames of ZMTP. The tables pass their changes in (`tables/feed.rs`), and
//! the publisher of `services::tables` sends its messages.
//!
//! | file | content |
//! |---|---|
//! | `message` | the topic and the three payloads, encoded and decoded |
//! | `digest` | the sum over the elements that were published as live |
//! | `log` | the state machine: changes in, numbered messages out; published versions, digests, replay |
//! | `history` | the messages that are kept, within a bound of bytes |
//! | `bookmarks` | the times of bookmarks |
//! | `limits` | the bounds |
//!
#![doc = include_str!("FEED.md")]

mod bookmarks;
mod digest;
mod history;
pub(crate) mod limits;
mod log;
mod message;
#[cfg(test)]
pub(crate) mod tests;

pub use bookmarks::{BookmarkSchedule, DueBookmark, SubscriberId};
pub use digest::Digest;
pub use log::{Compacted, DiskMoment, DueChange, FeedLog, FeedMetrics, LifeState, PresentState, PublishedMessage};
pub use message::{
    Cause, FeedChange, FeedChanges, FeedContent, FeedMessage, FeedPosition, MessageFault, encode_changes,
    table_of_topic, topic_of_table,
};
