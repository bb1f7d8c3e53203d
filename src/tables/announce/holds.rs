//! Audiences that sessions hold. A session asks for an audience without waiting, and the publisher notifies the session
//! when the audience has begun.
//!
//! ```text
//! any thread: hold ─► asked ─► wakes the publisher ─► begins it ─► `begun` is called there
//!             drop ─► the next review silences the tables without a subscriber or a holder
//! ```
//! This module begins no audience and silences no table.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::Mutex;
use crate::tables::TablesShared;
use crate::tables::batch::Session;
use crate::tables::table_audience::AudienceKind;

/// Called by the publisher's thread when an audience has begun. It must not block.
type AudienceBegun = Box<dyn FnOnce() + Send>;

/// An audience that was asked for and has not begun.
pub(super) struct AskedAudience {
    pub(super) topic: Box<[u8]>,
    pub(super) kind: AudienceKind,
    pub(super) begun: AudienceBegun,
}

/// The audiences that are held, and those that have not begun.
#[derive(Default)]
pub(in crate::tables) struct AudienceHolds {
    held: Mutex<Held>,
    /// Some were asked for. Written under the lock, read without it by the publisher.
    is_asked: AtomicBool,
    /// A topic has lost its last holder since the last review began. Written and read as `is_asked`.
    is_given_up: AtomicBool,
}

/// Topics, and how often each was added.
#[derive(Debug, Default)]
pub struct TopicCounts(BTreeMap<Box<[u8]>, usize>);

impl TopicCounts {
    /// Adds a topic once more.
    pub fn add(&mut self, topic: &[u8]) {
        *self.0.entry(topic.into()).or_default() += 1;
    }

    /// Takes a topic away once. Returns whether it is gone.
    pub fn remove(&mut self, topic: &[u8]) -> bool {
        let Some(count) = self.0.get_mut(topic) else { return false };
        *count -= 1;
        *count == 0 && self.0.remove(topic).is_some()
    }

    /// Whether there is no topic.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a topic touches the table with this name and a NUL behind it.
    #[must_use]
    pub fn touches(&self, table: &[u8]) -> bool {
        let mut longer = self.0.range::<[u8], _>((Bound::Included(table), Bound::Unbounded));
        (0..table.len()).filter_map(|length| table.get(..length)).any(|beginning| self.0.contains_key(beginning))
            || longer.next().is_some_and(|(topic, _)| topic.starts_with(table))
    }
}

#[derive(Default)]
struct Held {
    /// The topics of the holders of ends alone, and of all changes.
    ends: TopicCounts,
    changes: TopicCounts,
    asked: Vec<AskedAudience>,
}

impl Held {
    fn topics(&mut self, kind: AudienceKind) -> &mut TopicCounts {
        match kind {
            AudienceKind::Ends => &mut self.ends,
            AudienceKind::Changes => &mut self.changes,
        }
    }
}

/// An audience that its owner holds until this is dropped.
#[must_use]
pub struct AudienceHold {
    shared: Arc<TablesShared>,
    topic: Box<[u8]>,
    kind: AudienceKind,
}

impl Session {
    /// Asks for an audience of the tables that `topic` touches, and of later tables, for as long as the returned hold
    /// lives. The publisher's thread calls `begun` when it has begun. All changes of before that were pushed have come to
    /// the [`ChangeSink`](crate::tables::ChangeSink) then, and all that are committed later come. A topic touches a
    /// table if one of the topic and the table's name, with a NUL behind it, begins with the other.
    pub fn hold_audience(&self, topic: &[u8], kind: AudienceKind, begun: Box<dyn FnOnce() + Send>) -> AudienceHold {
        let shared = self.shared();
        let mut held = shared.audience_holds.held.lock();
        held.topics(kind).add(topic);
        held.asked.push(AskedAudience { topic: topic.into(), kind, begun });
        // Release: pairs with the Acquire in `take_asked`.
        shared.audience_holds.is_asked.store(true, Ordering::Release);
        drop(held);
        shared.change_queue.nudge();
        AudienceHold { shared: Arc::clone(shared), topic: topic.into(), kind }
    }
}

impl Drop for AudienceHold {
    fn drop(&mut self) {
        let holds = &self.shared.audience_holds;
        let mut held = holds.held.lock();
        if !held.topics(self.kind).remove(&self.topic) {
            return;
        }
        // Release: pairs with the Acquire in `is_given_up`.
        holds.is_given_up.store(true, Ordering::Release);
        drop(held);
        self.shared.change_queue.nudge();
    }
}

impl AudienceHolds {
    /// Publisher: those that were asked for since the last call.
    #[inline]
    pub(super) fn take_asked(&self) -> Vec<AskedAudience> {
        // Acquire: pairs with the Release in `hold_audience`.
        if !self.is_asked.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut held = self.held.lock();
        // Relaxed: the lock orders it.
        self.is_asked.store(false, Ordering::Relaxed);
        std::mem::take(&mut held.asked)
    }

    /// Publisher: whether a topic has lost its last holder since the last review began.
    pub(super) fn is_given_up(&self) -> bool {
        // Acquire: pairs with the Release in the drop of a hold.
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Publisher: a review begins.
    pub(super) fn begin_review(&self) {
        // Relaxed: a hold that goes after this sets it again.
        self.is_given_up.store(false, Ordering::Relaxed);
    }

    /// Whether there is any hold of this kind.
    pub(super) fn has_any(&self, kind: AudienceKind) -> bool {
        !self.held.lock().topics(kind).is_empty()
    }

    /// Whether a held topic touches the table with this name and a NUL behind it.
    pub(super) fn touches(&self, table: &[u8], kind: AudienceKind) -> bool {
        self.held.lock().topics(kind).touches(table)
    }
}
