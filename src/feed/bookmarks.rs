//! The times of bookmarks: a pure schedule; the caller passes the time in.
//!
//! ```text
//! a new subscription to a whole topic ─► to it alone, at once; at most once a second for a subscriber and topic
//! a message of a topic ─► to all, if the last one to all is 100 ms old
//!                     └─► else to all within a second of the last one, each topic at an offset of its own
//! a topic without change for 10 s ─► to the subscribers of the whole topic
//! ```
//! The three kinds take turns, and so do the subscribers that wait for a bookmark of their own. So neither a busy topic
//! nor a subscriber with many topics keeps the others from theirs.
//!
//! The bounds on this state are in `limits.rs`. A subscriber may wait for, and have lately had, as many bookmarks of its
//! own as there is room left. So there is always room for another subscriber. The topics of a subscriber beyond that get
//! the bookmark of the idle topic.
//!
//! This module knows no subscribers and makes no bookmarks.

mod initial;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use ahash::{AHashMap, RandomState};

use super::limits::{BOOKMARK_CHANGED, BOOKMARK_IDLE, BOOKMARK_INITIAL_MAX, BOOKMARK_PAUSE, BOOKMARK_TOPICS_MAX};
use crate::clock::Now;
use initial::InitialBookmarks;

/// A subscriber, as the caller names it. No other has the same name later.
pub type SubscriberId = u64;

/// Times that one call looks at, so that many of topics without subscribers do not take long at once.
const LOOKS_A_CALL: usize = 64;
/// Topics that a subscription looks at while there are many. Half of them at most have subscribers, so these are enough
/// to forget the others in time.
const LOOKS_A_SUBSCRIPTION: usize = 4;

/// A bookmark whose time has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DueBookmark {
    /// To one subscriber.
    ToOne(SubscriberId, Arc<[u8]>),
    /// To all whose subscriptions fit the topic.
    ToAll(Arc<[u8]>),
    /// To the subscribers of the whole topic.
    ToExact(Arc<[u8]>),
}

/// A topic that has changed lately, or has subscribers of the whole topic.
#[derive(Debug)]
struct ScheduledTopic {
    /// When the last bookmark went to all, if one has.
    sent_at: Option<Now>,
    /// Messages have come since.
    is_changed: bool,
    /// It is in `ready`.
    is_ready: bool,
    /// Its entry in `times`.
    due: Now,
}

/// The kinds of bookmarks, which take turns.
#[derive(Clone, Copy, Debug, Default)]
enum BookmarkTurn {
    #[default]
    Changed,
    Timed,
    Initial,
}

impl BookmarkTurn {
    const fn following(self) -> Self {
        match self {
            Self::Changed => Self::Timed,
            Self::Timed => Self::Initial,
            Self::Initial => Self::Changed,
        }
    }
}

/// The schedule of the bookmarks.
#[derive(Debug)]
pub struct BookmarkSchedule {
    topics: AHashMap<Arc<[u8]>, ScheduledTopic>,
    topics_max: usize,
    times: BTreeSet<(Now, Arc<[u8]>)>,
    /// The entry of `times` that was looked at last for a topic without subscribers.
    looked_at: Option<(Now, Arc<[u8]>)>,
    /// Topics that have changed, and whose bookmark to all has its time.
    ready: VecDeque<Arc<[u8]>>,
    initial: InitialBookmarks,
    turn: BookmarkTurn,
    hasher: RandomState,
}

impl Default for BookmarkSchedule {
    fn default() -> Self {
        Self::new()
    }
}

impl BookmarkSchedule {
    /// An empty schedule.
    #[must_use]
    pub fn new() -> Self {
        Self::within(BOOKMARK_TOPICS_MAX, BOOKMARK_INITIAL_MAX)
    }

    /// An empty schedule of so many topics and initial bookmarks at most.
    fn within(topics_max: usize, initial_max: usize) -> Self {
        Self {
            topics: AHashMap::new(),
            topics_max,
            times: BTreeSet::new(),
            looked_at: None,
            ready: VecDeque::new(),
            initial: InitialBookmarks::within(initial_max),
            turn: BookmarkTurn::default(),
            hasher: RandomState::default(),
        }
    }

    /// A message of changes, or the end of a life, has been published.
    pub fn published(&mut self, topic: &Arc<[u8]>, now: Now) {
        let offset = self.offset(topic);
        let is_full = self.topics.len() >= self.topics_max;
        let known = self.topics.get_mut(topic);
        if known.is_none() && is_full {
            return;
        }
        let sent_at = known.as_ref().and_then(|known| known.sent_at);
        let (due, sent_at, is_changed) = match sent_at {
            Some(sent) if now < sent.after(BOOKMARK_CHANGED) => {
                (sent.after(BOOKMARK_CHANGED + offset), Some(sent), true)
            }
            _ => (now.after(BOOKMARK_PAUSE), Some(now), false),
        };
        let was_ready = known.as_ref().is_some_and(|known| known.is_ready);
        let is_ready = was_ready || !is_changed;
        match known {
            Some(known) if known.is_changed && is_changed => return,
            Some(known) => {
                self.times.remove(&(known.due, Arc::clone(topic)));
                *known = ScheduledTopic { sent_at, is_changed, is_ready, due };
            }
            None => {
                self.topics.insert(Arc::clone(topic), ScheduledTopic { sent_at, is_changed, is_ready, due });
            }
        }
        self.times.insert((due, Arc::clone(topic)));
        if is_ready && !was_ready {
            self.ready.push_back(Arc::clone(topic));
        }
    }

    /// The offset of a topic within the second, so that many that change together do not get their bookmarks together.
    fn offset(&self, topic: &[u8]) -> Duration {
        let spread = BOOKMARK_PAUSE.saturating_sub(BOOKMARK_CHANGED).as_millis();
        let hash = u128::from(self.hasher.hash_one(topic));
        Duration::from_millis(u64::try_from(hash % spread.max(1)).unwrap_or(0))
    }

    /// A subscription to a whole topic has come. `has_subscriber` as for [`BookmarkSchedule::next`].
    pub fn subscribed(
        &mut self,
        subscriber: SubscriberId,
        topic: &[u8],
        now: Now,
        has_subscriber: impl Fn(&[u8]) -> bool,
    ) {
        let topic: Arc<[u8]> = topic.into();
        if !self.topics.contains_key(&topic) {
            self.forget_some(now, &has_subscriber);
            if self.topics.len() < self.topics_max {
                let due = now.after(BOOKMARK_IDLE);
                let scheduled = ScheduledTopic { sent_at: None, is_changed: false, is_ready: false, due };
                self.topics.insert(Arc::clone(&topic), scheduled);
                self.times.insert((due, Arc::clone(&topic)));
            }
        }
        self.initial.subscribed(subscriber, topic);
    }

    /// Forgets some topics without subscribers, if half of the topics are there that may be. They would stay until their
    /// time comes, and keep others out.
    fn forget_some(&mut self, now: Now, has_subscriber: &impl Fn(&[u8]) -> bool) {
        if self.topics.len() < self.topics_max / 2 {
            return;
        }
        for _ in 0..LOOKS_A_SUBSCRIPTION {
            let behind = self.looked_at.take().and_then(|at| self.times.range((Excluded(at), Unbounded)).next());
            let Some(entry) = behind.or(self.times.first()).cloned() else { return };
            let is_idle = self.topics.get(&entry.1).is_some_and(|known| {
                let is_due = known.is_changed || known.is_ready;
                !is_due && known.sent_at.is_none_or(|sent| sent.after(BOOKMARK_CHANGED) <= now)
            });
            if is_idle && !has_subscriber(&entry.1) {
                self.topics.remove(&entry.1);
                self.times.remove(&entry);
            }
            self.looked_at = Some(entry);
        }
    }

    /// The next bookmark whose time has come. `has_subscriber` says whether a whole topic has one. `None`: no further
    /// one in this turn, and [`BookmarkSchedule::next_due`] says when there may be one.
    pub fn next(&mut self, now: Now, has_subscriber: impl Fn(&[u8]) -> bool) -> Option<DueBookmark> {
        self.initial.end_pauses(now, LOOKS_A_CALL);
        for _ in 0..3 {
            let turn = self.turn;
            self.turn = turn.following();
            let due = match turn {
                BookmarkTurn::Changed => self.next_changed(),
                BookmarkTurn::Timed => self.next_timed(now, &has_subscriber),
                BookmarkTurn::Initial => self.initial.next(now).map(|(one, topic)| DueBookmark::ToOne(one, topic)),
            };
            if due.is_some() {
                return due;
            }
        }
        None
    }

    fn next_changed(&mut self) -> Option<DueBookmark> {
        let topic = self.ready.pop_front()?;
        if let Some(known) = self.topics.get_mut(&topic) {
            known.is_ready = false;
        }
        Some(DueBookmark::ToAll(topic))
    }

    fn next_timed(&mut self, now: Now, has_subscriber: &impl Fn(&[u8]) -> bool) -> Option<DueBookmark> {
        for _ in 0..LOOKS_A_CALL {
            let (due, topic) = self.times.pop_first()?;
            if due > now {
                self.times.insert((due, topic));
                return None;
            }
            let bookmark = self.come_up(topic, now, has_subscriber);
            if bookmark.is_some() {
                return bookmark;
            }
        }
        None
    }

    /// The time of a topic has come.
    fn come_up(&mut self, topic: Arc<[u8]>, now: Now, has_subscriber: &impl Fn(&[u8]) -> bool) -> Option<DueBookmark> {
        let known = self.topics.get_mut(&topic)?;
        let idle = known.sent_at.map_or(now, |sent| sent.after(BOOKMARK_IDLE));
        let bookmark = if known.is_ready {
            // Its bookmark to all is the next, and another one not needed before the pause is over.
            (known.is_changed, known.due) = (false, now.after(BOOKMARK_PAUSE));
            None
        } else if known.is_changed {
            (known.sent_at, known.is_changed, known.due) = (Some(now), false, now.after(BOOKMARK_PAUSE));
            Some(DueBookmark::ToAll(Arc::clone(&topic)))
        } else if !has_subscriber(&topic) {
            self.topics.remove(&topic);
            return None;
        } else if idle <= now {
            known.due = now.after(BOOKMARK_IDLE);
            known.sent_at = known.sent_at.map(|_| now);
            Some(DueBookmark::ToExact(Arc::clone(&topic)))
        } else {
            known.due = idle;
            None
        };
        self.times.insert((known.due, topic));
        bookmark
    }

    /// When [`BookmarkSchedule::next`] is to be called again. `None`: no bookmark is scheduled.
    #[must_use]
    pub fn next_due(&self) -> Option<Now> {
        if !self.ready.is_empty() {
            return Some(Now::from_nanos(0));
        }
        self.times.first().map(|(due, _)| *due).into_iter().chain(self.initial.next_due()).min()
    }
}
