//! The mirror: a copy of a table that follows the feed, and knows when it is exact.
//!
//! | file | content |
//! |---|---|
//! | `ask` | its requests, and their replies |
//! | `event` | what a mirror reports to its user |
//! | `copy` | the copy, and the rules by which rows and changes are merged |
//! | `follower` | the algorithm, without I/O |
//! | `link` | a connection that comes back |
//! | `proof`, `history`, `simulated`, `simulated_life`, `planted` | the algorithm against a simulated server; for tests |
//!
//! This file moves messages between the links and the follower. It decides nothing.

mod ask;
mod copy;
mod event;
mod follower;
mod link;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use copy::MirrorElement;
pub use event::{MirrorChange, MirrorEvent, MirrorMetrics, NotExact};

use super::{Client, ClientTimeouts, Error, TIMEOUT_DEFAULT};
use crate::clients::rust::socket::ConnectTarget;
use crate::clock::{Clock, Now};
use crate::feed::limits::FEED_FRAME_BYTES_MAX;
use crate::feed::{Digest, FeedPosition, topic_of_table};
use crate::services::tables::wire::{
    FeedEvent, Malformed, Reason, Reply, ReplyShape, Request, ScanFields, ScanRows, TableName, check_progress,
};
use ask::{Ask, MirrorAnswer};
use follower::Follower;
use link::{Link, LinkStep};

/// Elements that a page of the scan looks at: a server makes it within a millisecond.
const ELEMENTS_PER_PAGE: u32 = 1_000;

/// Messages that a call takes although its time is up, if they are there.
const STEPS_MIN: u32 = 64;

/// Bytes of the longest frame of a feed or of a reply.
pub(super) const FRAME_MAX: u64 = FEED_FRAME_BYTES_MAX as u64;

/// An outstanding request.
struct AwaitedReply {
    ask: Ask,
    shape: ReplyShape,
    /// When the server is late.
    due: Now,
}

/// A copy of a table that follows the server's feed (`--feed`), and knows when it is exact.
///
/// It reads the table by SCAN, merges the changes of the feed, and fills gaps by CHANGES. The writers do not wait for
/// it. A mirror that is exact at a sequence has the same keys, values, versions and deadlines that the feed has
/// published before this sequence. It checks this with each digest that the server publishes.
///
/// ```no_run
/// use std::time::Duration;
/// use spindle::clients::rust::tables::{Error, Mirror, MirrorEvent};
///
/// # fn main() -> Result<(), Error> {
/// let mut users = Mirror::connect("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5559", b"users")?;
/// assert!(users.wait_exact(Duration::from_secs(10))?);
/// for (key, element) in users.iter() {
///     println!("{key:?} {:?} version {}", element.value, element.version);
/// }
/// loop {
///     match users.next(Duration::from_secs(60))? {
///         Some(MirrorEvent::Changed(change)) => println!("{:?} {:?}", change.key, change.value),
///         Some(other) => println!("{other:?}"),
///         None => println!("no change within a minute"),
///     }
/// }
/// # }
/// ```
///
/// A mirror works only while one of its methods with a timeout runs. In between, messages wait in the system and in the
/// server, up to their bounds. Then the server drops them, and the mirror asks for them later.
///
/// It connects again by itself. Until it is exact again it keeps the old copy: [`Mirror::is_exact`] and
/// [`MirrorEvent::NotExact`] report this. It needs no timers: an expiry is a change. It has one copy of each value,
/// and remembers deletions only until it is exact.
pub struct Mirror {
    table: Vec<u8>,
    clock: Clock,
    timeout: Duration,
    bytes_max: u64,
    feed: Link,
    requests: Link,
    follower: Follower,
    awaited: Option<AwaitedReply>,
    /// When the next request may be sent, if a pause was asked for.
    pause: Option<Now>,
    /// The last message received.
    frames: Vec<Vec<u8>>,
}

impl Mirror {
    /// Connects to the endpoints of requests (`--kv`) and of the feed (`--feed`). Waits up to [`TIMEOUT_DEFAULT`] for
    /// each. The table need not exist yet.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::FeedOff`], [`Error::Refused`] with BAD TABLE NAME
    pub fn connect(endpoint: &str, feed: &str, table: &[u8]) -> Result<Self, Error> {
        Self::connect_within(endpoint, feed, table, TIMEOUT_DEFAULT)
    }

    /// Connects, and waits so long for a server to be there.
    ///
    /// A `Duration` bounds the time to connect, and afterwards the wait for each reply. [`ClientTimeouts`] bounds each
    /// separately.
    ///
    /// # Errors
    /// [`Error::Disconnected`], [`Error::FeedOff`], [`Error::Refused`] with BAD TABLE NAME
    pub fn connect_within(
        endpoint: &str,
        feed: &str,
        table: &[u8],
        timeouts: impl Into<ClientTimeouts>,
    ) -> Result<Self, Error> {
        let timeouts = timeouts.into();
        let timeout = timeouts.answer;
        match Client::connect_within(endpoint, timeouts)?.feed_state(table) {
            Ok(_) | Err(Error::Refused(Reason::TableNotFound)) => {}
            Err(Error::Refused(Reason::FeedOff)) => return Err(Error::FeedOff { endpoint: endpoint.to_owned() }),
            Err(error) => return Err(error),
        }
        let clock = Clock::start();
        let link = |target| Link::new(target, timeout, clock);
        let mut mirror = Self {
            table: table.to_vec(),
            clock,
            timeout,
            bytes_max: u64::MAX,
            feed: link(ConnectTarget::feed(feed, &topic_of_table(table), FRAME_MAX)),
            requests: link(ConnectTarget::requests(endpoint).with_frames_of(FRAME_MAX)),
            follower: Follower::new(),
            awaited: None,
            pause: None,
            frames: Vec::new(),
        };
        mirror.feed.open(timeouts)?;
        mirror.requests.open(timeouts)?;
        Ok(mirror)
    }

    /// Bounds the bytes that the copy may take: keys, values, and about 120 bytes for each. A mirror has no bound
    /// unless this sets one: it takes as much as the table.
    pub fn set_bytes_max(&mut self, bytes: u64) {
        self.bytes_max = bytes;
    }

    /// Waits for the next event. Returns `None` if there was none within `timeout`.
    ///
    /// The events are all changes of the copy, in their order. [`Mirror::get`] shows the copy as it is behind the
    /// messages that were received, which may be some changes ahead of the event.
    ///
    /// # Errors
    /// [`Error::FeedOff`] if the server was started again without its feed, [`Error::TooLarge`], [`Error::Malformed`],
    /// and [`Error::Disconnected`] if the system makes no connection. A lost connection is no error: the mirror
    /// connects again. After an error the next call continues.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<MirrorEvent>, Error> {
        let end = self.clock.now().after(timeout);
        for steps in 0.. {
            if let Some(event) = self.follower.next_event() {
                return Ok(Some(event));
            }
            if !self.step(end)? || self.is_over(end, steps) {
                break;
            }
        }
        Ok(self.follower.next_event())
    }

    /// Waits until the copy is exact. Returns false if it is not within `timeout`. The events on the way are not
    /// returned: the copy has all their changes.
    ///
    /// # Errors
    /// As [`Mirror::next`].
    pub fn wait_exact(&mut self, timeout: Duration) -> Result<bool, Error> {
        let end = self.clock.now().after(timeout);
        for steps in 0.. {
            self.follower.forget_events();
            if self.is_exact() || !self.step(end)? || self.is_over(end, steps) {
                break;
            }
        }
        self.follower.forget_events();
        Ok(self.is_exact())
    }

    /// Whether the time is up although messages keep coming.
    fn is_over(&self, end: Now, steps: u32) -> bool {
        steps >= STEPS_MIN && self.clock.now() >= end
    }

    /// The name of the table.
    #[must_use]
    pub fn table(&self) -> &[u8] {
        &self.table
    }

    /// Whether the copy is exact at [`Mirror::at`].
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.follower.is_exact()
    }

    /// The position of the change that the copy needs next. `None`: the mirror has received nothing yet. Incarnation 0:
    /// there is no such table.
    #[must_use]
    pub fn at(&self) -> Option<FeedPosition> {
        self.follower.at()
    }

    /// The element of a key in the copy.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<MirrorElement<'_>> {
        self.follower.get(key)
    }

    /// All elements of the copy, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], MirrorElement<'_>)> {
        self.follower.iter()
    }

    /// The number of elements in the copy.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.digest().elements
    }

    /// Whether there is no element in the copy.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The digest over the elements of the copy, as the server computes it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.follower.digest()
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> MirrorMetrics {
        self.follower.metrics()
    }

    // --------------------------------------------------------------------------------------------------------- steps

    /// Takes what has come, or waits for it. False: nothing came until `end`.
    fn step(&mut self, end: Now) -> Result<bool, Error> {
        if self.follower.bytes() > self.bytes_max {
            return Err(Error::TooLarge { bytes_max: self.bytes_max });
        }
        let received = self.receive_feed()?;
        let answered = self.receive_reply()?;
        let asked = self.ask()?;
        if received || answered || asked {
            return Ok(true);
        }
        let now = self.clock.now();
        if now >= end {
            return Ok(false);
        }
        let dues = [self.feed.due(), self.requests.due(), self.pause, self.awaited.as_ref().map(|awaited| awaited.due)];
        let wake = dues.into_iter().flatten().fold(end, Now::min);
        let waited = Link::wait_for_any([&self.feed, &self.requests], now.time_until(wake));
        waited.map_err(|error| self.feed.target().error(error, 0, self.timeout))?;
        Ok(true)
    }

    /// Takes one message of the feed. Returns whether there was something.
    fn receive_feed(&mut self) -> Result<bool, Error> {
        match self.feed.step(&mut self.frames)? {
            LinkStep::Idle => return Ok(false),
            LinkStep::Connected => {}
            LinkStep::Lost => self.follower.feed_lost(),
            LinkStep::Received => match FeedEvent::decode(&self.frames) {
                Ok(event) if event.table == TableName::spelt(&self.table).name() => {
                    self.follower.receive(&event.message);
                }
                Ok(_) => {}
                Err(malformed) => {
                    let error = Error::malformed(self.feed.target(), malformed);
                    self.feed.drop_connection();
                    self.follower.feed_lost();
                    return Err(error);
                }
            },
        }
        Ok(true)
    }

    /// Takes the reply to the outstanding request. Returns whether there was something.
    fn receive_reply(&mut self) -> Result<bool, Error> {
        match self.requests.step(&mut self.frames)? {
            LinkStep::Idle => {
                let is_late = self.awaited.as_ref().is_some_and(|awaited| awaited.due <= self.clock.now());
                if is_late {
                    self.requests.drop_connection();
                    self.request_lost();
                }
                return Ok(is_late);
            }
            LinkStep::Connected => return Ok(true),
            LinkStep::Lost => {
                self.request_lost();
                return Ok(true);
            }
            LinkStep::Received => {}
        }
        let refused = match self.awaited.take() {
            // The server answers what was not asked.
            None => Err(Malformed { rule: "a reply follows a request", given: self.frames.len() }),
            Some(awaited) => answer(&mut self.follower, &awaited, &self.frames),
        };
        let error = match refused {
            Ok(None) => return Ok(true),
            Ok(Some(Reason::FeedOff)) => Error::FeedOff { endpoint: self.requests.target().endpoint().to_owned() },
            Ok(Some(reason)) => Error::Refused(reason),
            Err(malformed) => Error::malformed(self.requests.target(), malformed),
        };
        self.requests.drop_connection();
        self.request_lost();
        Err(error)
    }

    fn request_lost(&mut self) {
        self.awaited = None;
        self.follower.requests_lost();
    }

    /// Sends the next request, if its pause is over. Returns whether one was sent.
    fn ask(&mut self) -> Result<bool, Error> {
        if self.awaited.is_some() || !self.requests.is_up() || !self.follower.wants() {
            self.pause = None;
            return Ok(false);
        }
        let now = self.clock.now();
        let due = *self.pause.get_or_insert(now.after(self.follower.pause()));
        if now < due {
            return Ok(false);
        }
        self.pause = None;
        let Some(ask) = self.follower.ask() else { return Ok(false) };
        let table = TableName::spelt(&self.table);
        let request: Request<'_> = match &ask {
            Ask::State => Request::FeedState { table },
            Ask::Changes(position) => Request::Changes { table, position: *position },
            Ask::Page(cursor) => {
                Request::Scan { table, cursor, count: ELEMENTS_PER_PAGE, fields: ScanFields::Mirror, prefix: b"" }
            }
        };
        let shape = request.reply_shape();
        if self.requests.send(|sink| request.encode(sink))? == LinkStep::Lost {
            self.follower.requests_lost();
            return Ok(true);
        }
        self.awaited = Some(AwaitedReply { ask, shape, due: now.after(self.timeout) });
        Ok(true)
    }
}

/// Gives a reply to the follower. Returns the refusal that ends the mirror's work.
fn answer(follower: &mut Follower, awaited: &AwaitedReply, frames: &[Vec<u8>]) -> Result<Option<Reason>, Malformed> {
    match (Reply::decode(awaited.shape, frames)?, &awaited.ask) {
        (Reply::FeedState(state), Ask::State) => follower.answer(&MirrorAnswer::State(state)),
        (Reply::Page { next, rows: ScanRows::Mirror(rows) }, Ask::Page(cursor)) => {
            check_progress(cursor, &next)?;
            follower.answer(&MirrorAnswer::Page { next: &next, rows: &rows });
        }
        (Reply::Changes(payloads), Ask::Changes(position)) => {
            let messages = FeedEvent::replayed(*position, &payloads)?;
            follower.answer(&MirrorAnswer::Changes(&messages));
        }
        (Reply::Refused(reason), _) => match reason {
            Reason::TableNotFound => follower.answer(&MirrorAnswer::NoTable),
            Reason::BadCursor => follower.answer(&MirrorAnswer::BadCursor),
            Reason::Compacted { .. } => follower.answer(&MirrorAnswer::Compacted),
            other => return Ok(Some(other)),
        },
        _ => return Err(Malformed { rule: "a reply has the frames of its command", given: frames.len() }),
    }
    Ok(None)
}
