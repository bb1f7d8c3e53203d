//! The core of the feed: it turns committed changes into numbered messages, and keeps digest, published versions and
//! history. A pure state machine.
//!
//! ```text
//! publish: a change whose turn has come ─► published already? ─ yes ─► nothing, but its version may leave `ahead`
//!                                                │ no
//!                                                ▼
//!          the present state of the element ─► sequence, digest ─► the life's open message ─► seal ─► history
//!                                                                                               └──► messages
//! ```
//! # Conflation
//!
//! Changes of an element come in the order of their versions, which grow by one within its slot. When the turn of a
//! change comes, the log publishes the state that the element has then. This state may have a later version. The log
//! does not publish the changes up to this version again. `ahead` keeps the published version only while it is above
//! the version whose turn came last. Each such element has a change outstanding, so the writers' credits bound `ahead`.
//!
//! # Digest
//!
//! A change says whether its predecessor had a value, and of which version. When a change is published, its
//! predecessor's version was published last: either by the predecessor itself, or at the end of the changes that were
//! published early. So the digest loses the predecessor's version if it had a value, and gains the published version if
//! it has a value.
//!
//! # Lives
//!
//! A life of a table begins here with its first change, and ends with [`FeedLog::dropped`]. Its history stays until it
//! is evicted, since to free all of it at once would take long. Until then what is left of the life counts as history.
//!
//! The caller holds [`FeedLog`] locked from the first `publish` of a batch to its `seal`. So whoever locks it sees whole
//! batches: a published change is in the sequence, in the digest and in the history.

mod lives;

use std::sync::Arc;

use ahash::AHashMap;

use super::digest::Digest;
use super::history::{ARC_BYTES, History, KeptMessages};
use super::limits::{FEED_CHANGES_MAX, FEED_MESSAGE_BYTES, FEED_REPLAY_BYTES};
use super::message::{
    CHANGE_BYTES, CHANGES_HEAD_BYTES, Cause, FeedChange, FeedContent, FeedMessage, FeedPosition, changes_head,
    topic_of_table,
};
use crate::allocator::size_class;
use lives::Lives;

/// Messages that are evicted at once.
const EVICTED_AT_ONCE: usize = 256;
/// Bytes of a buffer that is kept for a next message.
const BUFFER_KEPT_BYTES: usize = 16 << 10;

/// A committed change whose turn has come, and the state that its element has by now.
#[derive(Clone, Copy, Debug)]
pub struct DueChange<'c> {
    /// The life of the table.
    pub incarnation: u64,
    /// The name of the table.
    pub table: &'c [u8],
    /// The identity of the element's slot, which no other slot has while a change of this one is outstanding.
    pub element: usize,
    /// The key.
    pub key: &'c [u8],
    /// The version of the change.
    pub version: u64,
    /// The cause. `None`: the element was absent before and after, and this is the last change of its slot.
    pub cause: Option<Cause>,
    /// The version of the value that the element had before the change, if it had one.
    pub replaced: Option<u64>,
    /// The present state, of the same version or a later one.
    pub present: PresentState<'c>,
}

/// The state that an element has when the turn of a change of it comes.
#[derive(Clone, Copy, Debug)]
pub struct PresentState<'c> {
    /// The version.
    pub version: u64,
    /// The value. `None`: the element is absent.
    pub value: Option<&'c [u8]>,
    /// The deadline, in milliseconds since 1970. `None`: no deadline.
    pub deadline_millis: Option<u64>,
}

/// A message that is to be sent to the subscribers of its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedMessage {
    /// The topic.
    pub topic: Arc<[u8]>,
    /// The payload.
    pub payload: Arc<[u8]>,
}

/// The state of one life of a table, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeState {
    /// The position of the change that comes next.
    pub next: FeedPosition,
    /// The oldest sequence that is kept. The next one if none is.
    pub oldest: u64,
    /// The elements that were published as live.
    pub digest: Digest,
}

/// The feed does not keep the change that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest sequence that is kept of the present life.
    pub oldest: u64,
}

/// The feed's metrics. All but the last two grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedMetrics {
    /// Changes that were published.
    pub changes: u64,
    /// Changes that were not published by themselves, because their state or a later one was published before.
    pub conflated: u64,
    /// Messages of changes.
    pub messages: u64,
    /// Bytes that the history takes.
    pub history_bytes: u64,
    /// Messages in the history.
    pub history_messages: u64,
}

/// One life of a table.
#[derive(Debug)]
struct TableLife {
    topic: Arc<[u8]>,
    /// The sequence of the next change, those of the open message included.
    next: u64,
    digest: Digest,
    kept: KeptMessages,
    /// The open message: room for its head, then its changes. Empty: none is open.
    open: Vec<u8>,
    open_count: u16,
    is_dropped: bool,
    disk: LifeOnDisk,
}

/// What is on disk of a life whose changes are published before that.
#[derive(Debug)]
struct LifeOnDisk {
    /// All changes before this sequence are.
    durable: u64,
    /// The sequence of a later bookmark, which is on disk with this epoch.
    coming: Option<(u64, u64)>,
}

/// Epochs of a log at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskMoment {
    /// The epoch that is open. Everything that is published by now was committed in this epoch, or earlier.
    pub open: u64,
    /// The last epoch on disk.
    pub synced: u64,
}

impl TableLife {
    fn new(table: &[u8]) -> Self {
        Self {
            topic: topic_of_table(table).into(),
            next: 1,
            digest: Digest::default(),
            kept: KeptMessages::default(),
            open: Vec::new(),
            open_count: 0,
            is_dropped: false,
            disk: LifeOnDisk { durable: 1, coming: None },
        }
    }

    /// The sequence of the newest bookmark that is on disk at this moment.
    fn durable_at(&mut self, DiskMoment { open, synced }: DiskMoment) -> u64 {
        let LifeOnDisk { durable, coming } = &mut self.disk;
        if let Some((sequence, _)) = coming.take_if(|(_, epoch)| *epoch <= synced) {
            *durable = sequence;
        }
        coming.get_or_insert((self.next, open));
        *durable
    }

    /// Bytes that it takes when it is over, beside its messages: its places, and its topic.
    fn bytes(&self) -> usize {
        Lives::<Self>::BYTES + size_class(ARC_BYTES + self.topic.len())
    }

    fn is_full(&self) -> bool {
        usize::from(self.open_count) >= FEED_CHANGES_MAX || self.open.len() >= FEED_MESSAGE_BYTES
    }

    /// Whether the open message has no room for a change of this many bytes. A message of one change has any.
    fn lacks_room(&self, bytes: usize) -> bool {
        self.open_count > 0 && self.open.len() + bytes > FEED_MESSAGE_BYTES
    }
}

/// A message that no change is added to.
#[derive(Debug)]
struct EndedMessage {
    incarnation: u64,
    /// The sequence of its first change.
    first: u64,
    payload: Arc<[u8]>,
}

/// The published versions, the digests, the history, and the messages that are yet to be sent. One thread writes them,
/// under a lock.
#[derive(Debug)]
pub struct FeedLog {
    epoch: u64,
    lives: Lives<TableLife>,
    /// The newest life of each topic that has published a change and is not dropped.
    newest: AHashMap<Arc<[u8]>, u64>,
    /// The published version of each element for which it is above the version whose turn came last.
    ahead: AHashMap<usize, u64>,
    /// Lives with an open message.
    open: Vec<u64>,
    /// Messages that have ended since the last [`FeedLog::seal`]. Empty after it.
    ended: Vec<EndedMessage>,
    /// Buffers for open messages, a few. Lives without an open message have none: there may be many.
    spare: Vec<Vec<u8>>,
    /// Bytes of the changes that were published since the messages were taken.
    batch_bytes: usize,
    published: Vec<PublishedMessage>,
    history: History,
    /// Messages that have just left the history. Empty between two calls.
    evicted: Vec<Arc<[u8]>>,
    metrics: FeedMetrics,
}

impl FeedLog {
    /// A feed that has published nothing. `epoch` distinguishes this start of the server from others.
    #[must_use]
    pub fn new(epoch: u64, history_bytes: usize) -> Self {
        Self {
            epoch,
            lives: Lives::new(),
            newest: AHashMap::new(),
            ahead: AHashMap::new(),
            open: Vec::new(),
            ended: Vec::new(),
            spare: Vec::new(),
            batch_bytes: 0,
            published: Vec::new(),
            history: History::new(history_bytes),
            evicted: Vec::new(),
            metrics: FeedMetrics::default(),
        }
    }

    /// Continues the feed of an earlier start, before anything is published.
    pub fn resume(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Enters a life whose elements are there before its first change is published here.
    pub fn resume_life(&mut self, incarnation: u64, table: &[u8], next: u64, digest: Digest) {
        if self.lives.place(incarnation).is_none() {
            let place = self.begin_life(incarnation, table);
            if let Some(life) = self.lives.at(place, incarnation) {
                (life.next, life.digest, life.disk.durable) = (next, digest, next);
            }
        }
    }

    // ---------------------------------------------------------------------------------------------------- publishing

    /// Publishes a change, unless a state at least as new has been published. `cause_of` knows the causes of the versions
    /// whose changes have come. The caller calls [`FeedLog::seal`] before it lets other threads see the feed.
    pub fn publish(&mut self, change: &DueChange<'_>, cause_of: impl FnOnce(u64) -> Option<Cause>) {
        debug_assert!(change.present.version >= change.version, "a change is committed before its turn comes");
        if let Some(&published) = self.ahead.get(&change.element) {
            debug_assert!(published >= change.version, "only what is ahead is remembered");
            if published == change.version {
                self.ahead.remove(&change.element);
            }
            self.metrics.conflated += u64::from(change.cause.is_some());
            return;
        }
        let Some(own_cause) = change.cause else { return };
        let PresentState { version, value, deadline_millis } = change.present;
        let cause = if version == change.version { Some(own_cause) } else { cause_of(version) };
        let cause = cause.filter(|cause| cause.is_live() == value.is_some()).unwrap_or(Cause::plain(value.is_some()));
        if version > change.version {
            let before = self.ahead.insert(change.element, version);
            debug_assert!(before.is_none(), "an element is published again after the turn of its published version");
        }
        let value_bytes = value.unwrap_or_default();
        let bytes = CHANGE_BYTES + change.key.len() + value_bytes.len();
        // No open message has more bytes than the batch and a head.
        if CHANGES_HEAD_BYTES + self.batch_bytes + bytes > FEED_MESSAGE_BYTES
            && self.lives.get(change.incarnation).is_some_and(|life| life.lacks_room(bytes))
        {
            self.end_messages();
        }
        let place =
            self.lives.place(change.incarnation).unwrap_or_else(|| self.begin_life(change.incarnation, change.table));
        let Some(life) = self.lives.at(place, change.incarnation) else { unreachable!("it has begun") };
        if let Some(replaced) = change.replaced {
            life.digest.remove(change.key, replaced);
        }
        if value.is_some() {
            life.digest.add(change.key, version);
        }
        if life.open.is_empty() {
            life.open = self.spare.pop().unwrap_or_default();
            life.open.resize(CHANGES_HEAD_BYTES, 0);
            self.open.push(change.incarnation);
        }
        let deadline_millis = deadline_millis.filter(|_| cause.is_live());
        FeedChange { cause, version, deadline_millis, key: change.key, value: value_bytes }.encode(&mut life.open);
        self.batch_bytes += bytes;
        life.open_count += 1;
        life.next += 1;
        self.metrics.changes += 1;
        if life.is_full() {
            self.end_messages();
        }
    }

    /// Returns its place.
    #[cold]
    fn begin_life(&mut self, incarnation: u64, table: &[u8]) -> usize {
        let life = TableLife::new(table);
        let newest = self.newest.entry(Arc::clone(&life.topic)).or_default();
        *newest = incarnation.max(*newest);
        self.lives.insert(incarnation, life)
    }

    /// Whether so many bytes were published that the caller should end the batch, and take the messages.
    #[must_use]
    pub fn ends_batch(&self) -> bool {
        self.batch_bytes >= FEED_MESSAGE_BYTES
    }

    /// Ends the open messages. They are in the history, and among the messages for the caller.
    pub fn seal(&mut self) {
        self.end_messages();
        let mut ended = std::mem::take(&mut self.ended);
        for EndedMessage { incarnation, first, payload } in ended.drain(..) {
            let Some(life) = self.lives.get_mut(incarnation) else { unreachable!("a life with a message stays") };
            self.published.push(PublishedMessage { topic: Arc::clone(&life.topic), payload: Arc::clone(&payload) });
            self.history.push(incarnation, &mut life.kept, first, payload);
            self.metrics.messages += 1;
        }
        self.ended = ended;
        self.evict_some();
    }

    /// Ends the open messages. Older lives come first: so the message with the last change of a key in an older life
    /// precedes the message with the first change in a younger life.
    ///
    /// [`FeedLog::seal`] does the rest, later. It counts references, and such an instruction waits for all earlier
    /// stores: here for the stores of a long copy to memory that no cache has.
    fn end_messages(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        open.sort_unstable();
        open.drain(..).for_each(|incarnation| self.end_message(incarnation));
        self.open = open;
    }

    fn end_message(&mut self, incarnation: u64) {
        let Some(life) = self.lives.get_mut(incarnation).filter(|life| life.open_count > 0) else { return };
        let first = life.next - u64::from(life.open_count);
        let position = FeedPosition { epoch: self.epoch, incarnation, sequence: first };
        let head = changes_head(position, life.open_count);
        life.open.iter_mut().zip(head).for_each(|(byte, head)| *byte = head);
        self.ended.push(EndedMessage { incarnation, first, payload: Arc::from(&*life.open) });
        let mut buffer = std::mem::take(&mut life.open);
        if self.spare.len() < FEED_CHANGES_MAX {
            buffer.clear();
            buffer.shrink_to(BUFFER_KEPT_BYTES);
            self.spare.push(buffer);
        }
        life.open_count = 0;
    }

    /// Evicts some messages if the history has more than its bound. Returns false when it is within it. A caller that
    /// shares the feed gives others their turn between two calls: one long message may represent very many short ones.
    pub fn evict_some(&mut self) -> bool {
        for _ in 0..EVICTED_AT_ONCE {
            let Some(incarnation) = self.history.next_to_evict() else { break };
            let Some(life) = self.lives.get_mut(incarnation) else { unreachable!("a life stays while it is kept") };
            self.evicted.extend(self.history.evict(&mut life.kept));
            if life.is_dropped && life.kept.is_empty() {
                self.history.forget_life(life.bytes());
                self.lives.remove(incarnation);
            }
        }
        // Their counts have left all caches. To read them all first lets the cache misses overlap; to give the references
        // back one by one does not.
        std::hint::black_box(self.evicted.iter().map(Arc::strong_count).sum::<usize>());
        self.evicted.clear();
        self.history.next_to_evict().is_some()
    }

    /// Ends a life of a table: no change of it follows.
    pub fn dropped(&mut self, incarnation: u64, table: &[u8]) {
        self.seal();
        let sequence = self.lives.get(incarnation).map_or(1, |life| life.next);
        let position = FeedPosition { epoch: self.epoch, incarnation, sequence };
        let mut payload = Vec::new();
        FeedMessage { position, content: FeedContent::Dropped }.encode(&mut payload);
        let topic: Arc<[u8]> = topic_of_table(table).into();
        if self.newest.get(&topic) == Some(&incarnation) {
            self.newest.remove(&topic);
        }
        self.published.push(PublishedMessage { topic, payload: payload.into() });
        if let Some(life) = self.lives.get_mut(incarnation) {
            life.is_dropped = true;
            if life.kept.is_empty() {
                self.lives.remove(incarnation);
            } else {
                self.history.keep_life(life.bytes());
                self.evict_some();
            }
        }
    }

    /// The messages that were made since the last call, in their order.
    pub fn take_published(&mut self) -> Vec<PublishedMessage> {
        self.batch_bytes = 0;
        std::mem::take(&mut self.published)
    }

    // ------------------------------------------------------------------------------------------------------- reading

    /// The published version of an element, if it is above the version whose turn came last.
    #[must_use]
    pub fn published_ahead(&self, element: usize) -> Option<u64> {
        self.ahead.get(&element).copied()
    }

    /// The state of a life that is not dropped. A life that has published nothing is new.
    #[must_use]
    pub fn state(&self, incarnation: u64) -> LifeState {
        let life = self.lives.get(incarnation);
        let sequence = life.map_or(1, |life| life.next);
        LifeState {
            next: FeedPosition { epoch: self.epoch, incarnation, sequence },
            oldest: life.and_then(|life| life.kept.oldest()).unwrap_or(sequence),
            digest: life.map(|life| life.digest).unwrap_or_default(),
        }
    }

    /// The messages of a life from a position on: about a megabyte, and the first has the position. None if the
    /// position is the one that comes next. `current` is the present life of the table.
    ///
    /// # Errors
    /// [`Compacted`] if the position is evicted, of another life or start, or beyond the next.
    pub fn replay(&self, current: u64, position: FeedPosition) -> Result<Vec<Arc<[u8]>>, Compacted> {
        let LifeState { next, oldest, .. } = self.state(current);
        let FeedPosition { epoch, incarnation, sequence } = position;
        if (epoch, incarnation) != (next.epoch, next.incarnation) || !(oldest..=next.sequence).contains(&sequence) {
            return Err(Compacted { oldest });
        }
        if sequence == next.sequence {
            return Ok(Vec::new());
        }
        let life = self.lives.get(current);
        Ok(life.map(|life| life.kept.from(sequence, FEED_REPLAY_BYTES)).unwrap_or_default())
    }

    /// A bookmark of the newest life of a topic, as a payload. `current` is the present life of the table, if there is
    /// one. A life that is deleted and not yet dropped is the newest until another one is there. `disk` says what is on
    /// disk of a table whose changes are published before that.
    #[must_use]
    pub fn bookmark(&mut self, topic: &[u8], current: Option<u64>, disk: Option<DiskMoment>) -> Vec<u8> {
        let newest = self.newest.get(topic).copied();
        let incarnation = current.max(newest).unwrap_or(0);
        let LifeState { next, digest, .. } = self.state(incarnation);
        let durable = match (disk, self.lives.get_mut(incarnation)) {
            (Some(disk), Some(life)) => life.durable_at(disk),
            (Some(_) | None, _) => next.sequence,
        };
        let content = FeedContent::Bookmark { elements: digest.elements, digest: digest.sum, durable };
        let mut payload = Vec::new();
        FeedMessage { position: next, content }.encode(&mut payload);
        payload
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> FeedMetrics {
        FeedMetrics {
            history_bytes: self.history.bytes() as u64,
            history_messages: self.history.len() as u64,
            ..self.metrics
        }
    }
}

#[cfg(test)]
mod tests;
