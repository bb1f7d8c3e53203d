//! The bounds of the feed. [`crate::limits`] has those that it shares with others, and says how they read.

use std::time::Duration;

use crate::limits::{FRAME_BYTES_MAX, SUBSCRIPTIONS_ALL_MAX, SUBSCRIPTIONS_MAX};

/// Changes of one message (`FEED.md`).
pub(crate) const FEED_CHANGES_MAX: usize = 64;
/// Bytes of a message of several changes (`FEED.md`). A message of a single change may be longer.
pub(crate) const FEED_MESSAGE_BYTES: usize = 256 << 10;
/// Bytes of the longest frame of the feed, and of the replies that a mirror reads (`FEED.md`): the largest value, the
/// longest key, and the fields beside them.
pub(crate) const FEED_FRAME_BYTES_MAX: usize = FRAME_BYTES_MAX + (8 << 10);
/// Bytes of a reply to CHANGES after which no further message is added (`tables/PROTOCOL.md`).
pub(crate) const FEED_REPLAY_BYTES: usize = 1 << 20;

/// A subscriber gets a bookmark of its own for a topic once in this time, and a topic that has changed gets one to all
/// within it (`FEED.md`).
pub(crate) const BOOKMARK_PAUSE: Duration = Duration::from_secs(1);
/// While a topic changes, it gets a bookmark to all once in this time (`FEED.md`).
pub(crate) const BOOKMARK_CHANGED: Duration = Duration::from_millis(100);
/// A topic without change gets a bookmark this often (`FEED.md`).
pub(crate) const BOOKMARK_IDLE: Duration = Duration::from_secs(10);
/// Pairs of a subscriber and a topic that wait for a bookmark of their own, or got one within [`BOOKMARK_PAUSE`], about
/// 200 bytes each. A subscriber has as many of them as are left at most: one with a topic for each table by default is
/// served whole, and any number of subscribers leave room for another.
pub(crate) const BOOKMARK_INITIAL_MAX: usize = 1 << 18;
const _: () = assert!(BOOKMARK_INITIAL_MAX / 2 > SUBSCRIPTIONS_MAX);
/// Topics with a schedule, 200 bytes each: those of all subscriptions, and as many that have just changed or lost their
/// subscribers. Further ones get no bookmark while they are idle, and those of changes only with the next change.
pub(crate) const BOOKMARK_TOPICS_MAX: usize = 2 * SUBSCRIPTIONS_ALL_MAX;
