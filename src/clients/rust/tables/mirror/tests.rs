//! The mirror over real sockets. A thread has the simulated server behind a ROUTER and an XPUB.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

mod history;
mod planted;
mod proof;
mod simulated;
mod simulated_life;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use zmq::{Context, DONTWAIT, SNDMORE, Socket};

use super::ask::Ask;
use super::{Error, Mirror, MirrorEvent, NotExact};
use crate::feed::topic_of_table;
use crate::services::tables::wire::{FieldLimits, Payload, Reason, Reply, Request, ScanRows};
use simulated::{OwnedRow, Replied, Server};

const PATIENCE: Duration = Duration::from_secs(30);
const TABLE: &[u8] = b"users";

/// A step for the thread of the server.
type Step = Box<dyn FnOnce(&mut Served) + Send>;

struct Served {
    server: Server,
    context: Context,
    requests: Socket,
    feed: Option<Socket>,
    feed_endpoint: String,
    refusal: Option<Reason>,
}

/// The server's thread, and its endpoints.
struct Serving {
    requests: String,
    feed: String,
    steps: Option<Sender<Step>>,
    thread: Option<JoinHandle<()>>,
}

fn bound(context: &Context, kind: zmq::SocketType, endpoint: &str) -> (Socket, String) {
    let socket = context.socket(kind).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind(endpoint).unwrap();
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    (socket, endpoint)
}

impl Serving {
    fn start() -> Self {
        let context = Context::new();
        let (requests, requests_endpoint) = bound(&context, zmq::ROUTER, "tcp://127.0.0.1:*");
        let (feed, feed_endpoint) = bound(&context, zmq::XPUB, "tcp://127.0.0.1:*");
        let (sender, steps) = channel();
        let mut server = Server::new(None);
        server.create();
        let mut served =
            Served { server, context, requests, feed: Some(feed), feed_endpoint: feed_endpoint.clone(), refusal: None };
        let thread = std::thread::spawn(move || served.run(&steps));
        Self { requests: requests_endpoint, feed: feed_endpoint, steps: Some(sender), thread: Some(thread) }
    }

    fn with(&self, step: impl FnOnce(&mut Served) + Send + 'static) {
        self.steps.as_ref().unwrap().send(Box::new(step)).unwrap();
    }

    fn mirror(&self) -> Result<Mirror, Error> {
        Mirror::connect_within(&self.requests, &self.feed, TABLE, PATIENCE)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.steps = None;
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

impl Served {
    /// Serves until the test is over.
    fn run(&mut self, steps: &Receiver<Step>) {
        loop {
            match steps.try_recv() {
                Ok(step) => step(self),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            let mut items = vec![self.requests.as_poll_item(zmq::POLLIN)];
            items.extend(self.feed.iter().map(|feed| feed.as_poll_item(zmq::POLLIN)));
            zmq::poll(&mut items, 1).unwrap();
            while self.feed.as_ref().is_some_and(|feed| feed.recv_msg(DONTWAIT).is_ok_and(|command| command[0] == 1)) {
                let bookmark = self.server.bookmark();
                self.publish();
                self.send(&bookmark);
            }
            if let Ok(mut frames) = self.requests.recv_multipart(DONTWAIT) {
                let id = frames.remove(0);
                self.answer(&id, &frames);
            }
            self.publish();
        }
    }

    fn announce_all(&mut self) {
        while let Some(turn) = self.server.turns().first() {
            self.server.announce(*turn);
        }
        self.server.publish();
        let bookmark = self.server.bookmark();
        self.publish();
        self.send(&bookmark);
    }

    fn publish(&mut self) {
        for payload in std::mem::take(&mut self.server.out) {
            self.send(&payload);
        }
    }

    fn send(&self, payload: &[u8]) {
        if let Some(feed) = &self.feed {
            feed.send(topic_of_table(TABLE), SNDMORE).unwrap();
            feed.send(payload, 0).unwrap();
        }
    }

    fn answer(&mut self, id: &[u8], frames: &[Vec<u8>]) {
        let ask = match Request::decode(frames, FieldLimits::DEFAULT).unwrap() {
            Request::FeedState { .. } => Ask::State,
            Request::Changes { position, .. } => Ask::Changes(position),
            Request::Scan { cursor, .. } => Ask::Page(cursor.to_vec()),
            other => panic!("no request of a mirror: {other:?}"),
        };
        let replied = self.server.execute(&ask).unwrap_or_else(|mut job| {
            loop {
                if let Some(page) = self.server.read(&mut job) {
                    break page;
                }
            }
        });
        let (rows, payloads): (Vec<OwnedRow>, Vec<Vec<u8>>);
        let reply = match (self.refusal, replied) {
            (Some(reason), _) => Reply::Refused(reason),
            (None, Replied::State(state)) => Reply::FeedState(state),
            (None, Replied::NoTable) => Reply::Refused(Reason::TableNotFound),
            (None, Replied::BadCursor) => Reply::Refused(Reason::BadCursor),
            (None, Replied::Compacted) => Reply::Refused(Reason::Compacted { oldest: 1 }),
            (None, Replied::Page { next, rows: owned }) => {
                rows = owned;
                Reply::Page { next, rows: ScanRows::Mirror(rows.iter().map(OwnedRow::row).collect()) }
            }
            (None, Replied::Changes(owned)) => {
                payloads = owned;
                Reply::Changes(payloads.iter().map(|payload| Payload::Received(payload)).collect())
            }
        };
        let mut encoded: Vec<Vec<u8>> = Vec::new();
        reply.encode(|frame, _| encoded.push(frame.to_vec()));
        self.requests.send(id, SNDMORE).unwrap();
        self.requests.send_multipart(encoded, 0).unwrap();
    }
}

fn set(served: &mut Served, keys: std::ops::Range<u8>, value: &'static [u8]) {
    keys.for_each(|key| served.server.set(key, value.to_vec(), None));
    served.announce_all();
}

/// The next event that is not one of these changes.
fn next(mirror: &mut Mirror) -> MirrorEvent {
    mirror.next(PATIENCE).unwrap().expect("an event comes")
}

/// Waits for this value of a key, in an exact copy.
fn wait_for(mirror: &mut Mirror, key: u8, value: &[u8]) {
    while !(mirror.is_exact() && mirror.get(&[key]).is_some_and(|element| element.value == value)) {
        next(mirror);
    }
}

#[test]
fn a_mirror_reads_the_table_follows_it_and_comes_back_after_a_loss() {
    let serving = Serving::start();
    serving.with(|served| set(served, 0..4, b"old"));
    let mut mirror = serving.mirror().unwrap();
    assert!(mirror.wait_exact(PATIENCE).unwrap());
    assert_eq!((mirror.len(), mirror.iter().count()), (4, 4));
    let before = mirror.at().unwrap();
    serving.with(|served| set(served, 0..1, b"new"));
    wait_for(&mut mirror, 0, b"new");
    assert_eq!(mirror.at().unwrap().sequence, before.sequence + 1);
    // The feed goes away, and the table changes meanwhile.
    serving.with(|served| {
        served.feed = None;
        set(served, 1..2, b"missed");
    });
    while next(&mut mirror) != MirrorEvent::NotExact(NotExact::Disconnected) {}
    let messages = mirror.metrics().messages;
    assert_eq!(mirror.get(&[1]).unwrap().value, b"old", "the old copy stays readable");
    serving.with(|served| {
        let (feed, _) = bound(&served.context, zmq::XPUB, &served.feed_endpoint);
        served.feed = Some(feed);
    });
    wait_for(&mut mirror, 1, b"missed");
    assert!(messages > 0 && mirror.metrics().messages > messages, "{:?}", mirror.metrics());
    assert!(mirror.metrics().gaps > 0 && mirror.metrics().scans == 1, "{:?}", mirror.metrics());
    serving.with(|served| {
        served.server.drop_table();
        served.announce_all();
    });
    while next(&mut mirror) != MirrorEvent::NoTable {}
    assert!(matches!(next(&mut mirror), MirrorEvent::Exact(at) if at.incarnation == 0));
    assert!(mirror.is_empty() && mirror.is_exact());
}

#[test]
fn a_server_without_a_feed_says_how_to_start_it() {
    let serving = Serving::start();
    serving.with(|served| served.refusal = Some(Reason::FeedOff));
    while let Ok(mirror) = serving.mirror() {
        // The server has not taken the step yet.
        drop(mirror);
    }
    let error = serving.mirror().err().unwrap();
    assert_eq!(error, Error::FeedOff { endpoint: serving.requests.clone() });
    assert!(error.to_string().contains("--feed"), "{error}");
}

#[test]
fn a_copy_has_the_bound_that_its_user_sets() {
    let serving = Serving::start();
    serving.with(|served| set(served, 0..6, b"value"));
    let mut mirror = serving.mirror().unwrap();
    mirror.set_bytes_max(300);
    assert_eq!(mirror.wait_exact(PATIENCE), Err(Error::TooLarge { bytes_max: 300 }));
    mirror.set_bytes_max(u64::MAX);
    assert_eq!(mirror.wait_exact(PATIENCE), Ok(true));
}

#[test]
fn a_peer_that_is_no_feed_is_an_error_and_not_a_change() {
    let serving = Serving::start();
    let mut mirror = serving.mirror().unwrap();
    assert!(mirror.wait_exact(PATIENCE).unwrap());
    serving.with(|served| served.send(b"nonsense"));
    let error = loop {
        match mirror.next(PATIENCE) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
    assert!(mirror.wait_exact(PATIENCE).unwrap(), "it connects again");
}
