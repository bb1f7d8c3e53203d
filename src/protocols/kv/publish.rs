//! The publisher: takes committed changes from the tables and sends a notification for each to who subscribes.
//!
//! It is the one thread that uses the XPUB, and reads it whenever it turns to it: subscriptions that nobody reads pile
//! up without a bound. It sends nothing for a table to which no subscription fits; libzmq would find that out for each
//! notification, frame by frame. XPUB never refuses: who has fallen `--publish-hwm` messages behind loses messages, and
//! nobody else notices.
//!
//! It sleeps when there is nothing to announce. While nobody subscribes it does not let itself be woken for each change:
//! it looks every 10 ms, until it finds nothing twice; then the next change wakes it.
//!
//! What is not here: the order of changes (`tables::Changes` keeps it), and which table or key there is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::report::PublishTally;
use super::wire::{Kind, Notification};
use crate::limits::{LINGER, PUBLISH_BURST};
use crate::protocols::sockets::{Bell, Frame, Socket, wait};
use crate::tables::{ChangeKind, Changes};

/// How long it sleeps between two looks while nobody subscribes.
const LAZY_SLEEP: Duration = Duration::from_millis(10);
/// Tables for which it is remembered whether anybody listens. Names come and go; when they are more, it starts anew.
const REMEMBERED_MAX: usize = 1 << 16;

/// The publisher, ready to run.
pub struct Publisher {
    /// `None`: notifications are off.
    socket: Option<Socket>,
    changes: Changes,
    bell: Bell,
    topics: Topics,
    tally: Arc<PublishTally>,
}

impl Publisher {
    pub(super) fn new(socket: Option<Socket>, mut changes: Changes, bell: Bell, tally: Arc<PublishTally>) -> Self {
        let ringer = bell.clone();
        changes.set_waker(Box::new(move || ringer.ring()));
        Self { socket, changes, bell, topics: Topics::default(), tally }
    }

    /// The loop of the thread. Returns when the tables are closed and all that was committed is announced.
    pub fn run(mut self) {
        let mut found = true;
        loop {
            self.listen();
            let drained = self.announce();
            if drained.closed {
                return self.linger();
            }
            if drained.taken > 0 {
                self.wait(Some(Duration::ZERO));
            } else {
                self.rest(found);
            }
            found = drained.taken > 0;
        }
    }

    /// What is announced is still to reach who listens.
    fn linger(&self) {
        if let Some(socket) = &self.socket {
            socket.set_linger(LINGER);
        }
    }

    /// Sends what has been committed, up to a burst.
    fn announce(&mut self) -> crate::tables::Drained {
        let (topics, socket, tally) = (&mut self.topics, self.socket.as_ref(), &self.tally);
        self.changes.drain(PUBLISH_BURST, &mut |table, kind, key| {
            let Some(socket) = socket else { return };
            if topics.fit(table) {
                let kind = match kind {
                    ChangeKind::Updated => Kind::Updated,
                    ChangeKind::Deleted => Kind::Deleted,
                };
                Notification { table, kind, key }.encode(|bytes, more| socket.send_bytes(bytes, more));
                tally.published.add(1);
            }
        })
    }

    /// Reads all subscriptions that have come.
    fn listen(&mut self) {
        let Some(socket) = &self.socket else { return };
        let mut frame = Frame::new();
        let mut first = true;
        while socket.receive(&mut frame) {
            if first {
                self.topics.note(&frame);
            }
            first = !frame.more();
        }
        self.tally.topics.set(self.topics.known.len() as u64);
    }

    /// Sleeps until there may be something to announce, or a subscription. `found`: the last look but one did find.
    fn rest(&mut self, found: bool) {
        let lazily = found && self.topics.known.is_empty();
        if self.changes.prepare_sleep(lazily) {
            self.wait(lazily.then_some(LAZY_SLEEP));
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        match &self.socket {
            Some(socket) => wait(&[socket], &self.bell, timeout),
            None => wait(&[], &self.bell, timeout),
        }
    }
}

/// What subscribers have asked for: beginnings of the first frame.
#[derive(Default)]
struct Topics {
    known: HashSet<Box<[u8]>>,
    /// Whether a table fits any of `known`; forgotten when that changes.
    fitting: HashMap<Box<[u8]>, bool>,
    /// The last table that was asked for, and the answer: changes come in runs.
    last: Option<(Box<[u8]>, bool)>,
}

impl Topics {
    /// Takes a message of a subscriber: 1 and a topic to subscribe, 0 and a topic to end that. The socket passes on the
    /// first subscription to a topic and the end of the last one. Anything else says nothing.
    fn note(&mut self, message: &[u8]) {
        match message {
            [1, topic @ ..] => drop(self.known.insert(topic.into())),
            [0, topic @ ..] => drop(self.known.remove(topic)),
            _ => return,
        }
        self.fitting.clear();
        self.last = None;
    }

    /// Whether anybody hears of this table.
    fn fit(&mut self, table: &[u8]) -> bool {
        if self.known.is_empty() {
            return false;
        }
        match &self.last {
            Some((last, fits)) if **last == *table => *fits,
            _ => {
                let fits = self.look_up(table);
                self.last = Some((table.into(), fits));
                fits
            }
        }
    }

    fn look_up(&mut self, table: &[u8]) -> bool {
        if let Some(fits) = self.fitting.get(table) {
            return *fits;
        }
        let fits = (0..=table.len()).any(|end| table.get(..end).is_some_and(|start| self.known.contains(start)));
        if self.fitting.len() >= REMEMBERED_MAX {
            self.fitting.clear();
        }
        self.fitting.insert(table.into(), fits);
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_topics_with_which_it_begins() {
        let mut topics = Topics::default();
        assert!(!topics.fit(b"users"));
        topics.note(b"\x01users\0");
        assert!(topics.fit(b"users\0"));
        assert!(!topics.fit(b"users"));
        assert!(!topics.fit(b"users2"));
        topics.note(b"\x01user");
        assert!(topics.fit(b"users"));
        assert!(topics.fit(b"users2"));
        topics.note(b"\x00user");
        assert!(!topics.fit(b"users2"));
        assert!(topics.fit(b"users\0"));
    }

    #[test]
    fn the_empty_topic_fits_all() {
        let mut topics = Topics::default();
        topics.note(b"\x01");
        assert!(topics.fit(b""));
        assert!(topics.fit(b"any"));
        topics.note(b"\x00");
        assert!(!topics.fit(b"any"));
    }

    #[test]
    fn what_is_no_subscription_says_nothing() {
        let mut topics = Topics::default();
        topics.note(b"");
        topics.note(b"\x02any");
        assert!(topics.known.is_empty());
    }
}
