//! The feed: followed with pyzmq from `FEED.md` alone (`feed.py`), and across a restart with our own client.

use std::collections::BTreeMap;

use spindle::clients::rust::tables::{Client, Error};
use spindle::feed::{Digest, FeedContent, FeedMessage, FeedPosition, topic_of_table};
use spindle::services::tables::serve::{FrontendKind, KvConfig};
use spindle::services::tables::wire::{FeedEvent, Reason};

use crate::harness::{Server, run_python};
use crate::waiting::serve_parts;

const ON: [&str; 2] = ["--feed", "tcp://127.0.0.1:*"];

fn run_chapter(chapter: &str, flags: &[&str]) {
    let server = Server::start(&[&ON, flags].concat());
    run_python("feed.py", &[chapter, server.kv(), server.feed()]);
    server.stop();
}

#[test]
fn a_copy_is_exact_after_concurrent_writers_and_expiries() {
    run_chapter("copy", &["--workers", "2"]);
}

#[test]
fn tables_come_and_go_and_each_life_is_published_to_its_end() {
    run_chapter("lives", &["--workers", "2"]);
}

#[test]
fn a_small_history_is_compacted() {
    run_chapter("compacted", &["--feed-history", "64K"]);
}

#[test]
fn bookmarks_come_while_tables_change_and_when_all_is_idle() {
    run_chapter("bookmarks", &[]);
}

#[test]
fn a_restarted_server_has_another_epoch_and_replays_nothing_of_the_last() {
    let life = || {
        let server = Server::start(&ON);
        let mut client = Client::connect(server.kv()).unwrap();
        client.create_table(b"t").unwrap();
        client.update(b"t", b"k", b"v", None).unwrap();
        loop {
            let state = client.feed_state(b"t").unwrap();
            if state.next.sequence == 2 {
                return (server, client, state);
            }
        }
    };
    let (server, mut client, first) = life();
    let position = FeedPosition { sequence: 1, ..first.next };
    assert_eq!(client.changes(b"t", position).map(|messages| messages.len()), Ok(1));
    server.stop();
    let (server, mut client, second) = life();
    assert!(second.next.epoch > first.next.epoch);
    assert_eq!(second.elements, 1);
    let compacted = client.changes(b"t", position);
    assert_eq!(compacted, Err(Error::Refused(Reason::Compacted { oldest: 1 })));
    server.stop();
}

#[test]
fn a_server_without_a_feed_says_so() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.kv()).unwrap();
    assert_eq!(client.feed_state(b"t"), Err(Error::Refused(Reason::TableNotFound)), "the table comes first");
    client.create_table(b"t").unwrap();
    assert_eq!(client.feed_state(b"t"), Err(Error::Refused(Reason::FeedOff)));
    assert_eq!(client.changes(b"t", FeedPosition::default()), Err(Error::Refused(Reason::FeedOff)));
    assert!(server.stats()["feed"].is_null());
    server.stop();
}

#[test]
fn stats_reports_where_the_feed_is() {
    let server = Server::start(&ON);
    assert_eq!(server.stats()["feed"]["endpoint"], server.feed());
    server.stop();
}

/// Bytes of the longest frame that a reader of the feed need take (`FEED.md`).
const READER_FRAME_BYTES: i64 = (16 << 20) + (1 << 10);
/// Bytes of the longest value of a request beside the longest key.
const LONGEST_VALUE: usize = (16 << 20) - 64;

#[test]
fn a_reader_takes_frames_of_16_mib_and_1_kib_alone() {
    let configure = |settings: &mut KvConfig| {
        settings.feed = Some("tcp://127.0.0.1:*".to_owned());
        settings.value_max = 16 << 20;
    };
    serve_parts(FrontendKind::Native, 1 << 12, configure, |held| {
        let mut client = Client::connect(&held.endpoint).unwrap();
        client.create_table(b"t").unwrap();
        let context = zmq::Context::new();
        let socket = context.socket(zmq::SUB).unwrap();
        socket.set_maxmsgsize(READER_FRAME_BYTES).unwrap();
        socket.set_rcvhwm(0).unwrap();
        socket.set_rcvtimeo(30_000).unwrap();
        socket.set_subscribe(&topic_of_table(b"t")).unwrap();
        socket.connect(&held.feed.clone().unwrap()).unwrap();
        // The publisher does not run yet, so it takes these changes together.
        let long = vec![b'v'; LONGEST_VALUE];
        let short = [b'v'; 20_000];
        let keys: Vec<[u8; 64]> = (0..11_u8).map(|number| [number; 64]).collect();
        let (last, first) = keys.split_last().unwrap();
        first.iter().for_each(|key| client.update(b"t", key, &short, None).unwrap());
        client.update(b"t", last, &long, None).unwrap();
        (held.release)();
        // A longer frame would end the connection: what it had would then be missing for ever.
        let mut copy = Copy { next: 1, ..Copy::default() };
        while !copy.versions.contains_key(&last[..]) {
            let frames: Vec<Vec<u8>> = socket.recv_multipart(0).unwrap();
            copy.merge(&FeedEvent::decode(&frames).unwrap().message, &mut client);
        }
        assert_eq!((copy.versions.len(), copy.next), (11, 12));
        let state = client.feed_state(b"t").unwrap();
        let replayed = client.changes(b"t", FeedPosition { sequence: 1, ..state.next }).unwrap();
        let counts: Vec<usize> = replayed
            .iter()
            .map(|message| match message.content {
                FeedContent::Changes(changes) => changes.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(counts, [10, 1], "the long change stands alone");
    });
}

/// A copy that fills its gaps by CHANGES.
#[derive(Default)]
struct Copy {
    next: u64,
    gaps: usize,
    versions: BTreeMap<Vec<u8>, u64>,
}

impl Copy {
    fn merge(&mut self, message: &FeedMessage<'_>, client: &mut Client) {
        let position = message.position;
        if position.sequence > self.next {
            self.gaps += 1;
        }
        while position.sequence > self.next {
            let missing = FeedPosition { sequence: self.next, ..position };
            let replayed = client.changes(b"t", missing).unwrap();
            assert!(!replayed.is_empty(), "what is missing has been published");
            replayed.iter().for_each(|message| self.apply(message));
        }
        self.apply(message);
    }

    fn apply(&mut self, message: &FeedMessage<'_>) {
        let FeedContent::Changes(changes) = message.content else { return };
        for (change, sequence) in changes.zip(message.position.sequence..) {
            if sequence < self.next {
                continue;
            }
            self.next += 1;
            let before = self.versions.insert(change.key.to_vec(), change.version);
            assert!(before.is_none_or(|before| before < change.version));
        }
    }
}

#[test]
fn a_follower_that_reads_too_slowly_finds_its_gap_and_fills_it() {
    const VALUE: [u8; 1_000] = [b'v'; 1_000];
    let configure = |settings: &mut KvConfig| {
        settings.feed = Some("tcp://127.0.0.1:*".to_owned());
        settings.held_bytes_max = 1 << 20;
    };
    serve_parts(FrontendKind::Native, 1 << 12, configure, |held| {
        (held.release)();
        let mut client = Client::connect(&held.endpoint).unwrap();
        client.create_table(b"t").unwrap();
        let context = zmq::Context::new();
        let socket = context.socket(zmq::SUB).unwrap();
        socket.set_rcvhwm(1).unwrap();
        socket.set_rcvbuf(8 << 10).unwrap();
        socket.set_rcvtimeo(30_000).unwrap();
        socket.set_subscribe(&topic_of_table(b"t")).unwrap();
        socket.connect(&held.feed.unwrap()).unwrap();
        let receive = |copy: &mut Copy, client: &mut Client| {
            let frames: Vec<Vec<u8>> = socket.recv_multipart(0).unwrap();
            copy.merge(&FeedEvent::decode(&frames).unwrap().message, client);
        };
        let mut copy = Copy { next: 1, ..Copy::default() };
        receive(&mut copy, &mut client);
        let keys: Vec<[u8; 4]> = (0..500_u32).map(u32::to_be_bytes).collect();
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&key[..], &VALUE[..]]).collect();
        let lost = |client: &mut Client| {
            let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
            stats["feed"]["lost_messages"].as_u64().unwrap()
        };
        while lost(&mut client) < 100 {
            client.update_many(b"t", None, &pairs).unwrap();
        }
        client.update(b"t", b"last", b"value", None).unwrap();
        let mut digest = Digest::default();
        while !copy.versions.contains_key(&b"last"[..]) {
            receive(&mut copy, &mut client);
        }
        copy.versions.iter().for_each(|(key, version)| digest.add(key, *version));
        let state = client.feed_state(b"t").unwrap();
        assert_eq!((state.elements, state.digest, state.next.sequence), (digest.elements, digest.sum, copy.next));
        assert!(copy.gaps > 0);
    });
}
