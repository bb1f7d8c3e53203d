//! Keys of every length, at the places where the form of their slot changes: what is true of one is true of all.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeMap;

use super::super::{AnnouncedChange, ChangeSink, FeedConfig, ScanContent, ScanPage};
use super::{TablesRig, settings};
use crate::feed::tests::follower::Follower;
use crate::feed::{PublishedMessage, topic_of_table};

const LENGTHS: [usize; 12] = [0, 1, 63, 64, 65, 126, 127, 128, 255, 256, 4_095, 4_096];
const FEED: FeedConfig = FeedConfig { epoch: 5, history_bytes: 1 << 20 };

/// A copy of the table by the feed.
struct Copying(Follower);

impl ChangeSink for Copying {
    fn announce(&mut self, _change: &AnnouncedChange<'_>) {}

    fn publish(&mut self, message: &PublishedMessage) {
        self.0.receive(&message.topic, &message.payload).unwrap();
    }
}

impl Copying {
    fn settle(&mut self, rig: &TablesRig) {
        for _ in 0..20 {
            rig.expire();
            rig.0.changes.borrow_mut().drain_to(10_000, self);
            rig.reap();
        }
        let bookmark = rig.0.changes.borrow().bookmark(&topic_of_table(b"t")).unwrap();
        self.0.receive(&topic_of_table(b"t"), &bookmark).unwrap();
    }

    fn elements(&self) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
        let (_, life) = self.0.lives.last_key_value().unwrap();
        life.elements.clone()
    }
}

/// The keys that stay, and the keys that expire: none is the beginning of another by chance alone.
fn keys() -> (Vec<String>, Vec<String>) {
    let of = |letter: &str| LENGTHS.map(|length| letter.repeat(length)).to_vec();
    (of("s"), of("e").split_off(1))
}

fn bytes_of_table(rig: &TablesRig) -> u64 {
    rig.0.session.borrow_mut().batch(rig.now()).list_tables()[0].bytes
}

fn scanned(rig: &TablesRig, prefix: &[u8]) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let (mut elements, mut cursor) = (BTreeMap::new(), Vec::new());
    loop {
        let content = ScanContent::ForMirror;
        let page = ScanPage { cursor: &cursor, count: 3, bytes_max: 5_000, prefix, content };
        let mut session = rig.0.session.borrow_mut();
        let next = session.batch(rig.now()).scan(b"t", &page, |row| {
            elements.insert(row.key.to_vec(), (row.version, row.value.to_vec()));
        });
        match next.unwrap() {
            Some(next) => cursor = next.as_bytes().to_vec(),
            None => return elements,
        }
    }
}

#[test]
fn an_element_is_stored_found_moved_published_and_expires_whatever_the_length_of_its_key() {
    let rig = TablesRig::with_feed(settings(), Some(FEED));
    let mut copying = Copying(Follower::new(FEED.epoch, b"t"));
    let (stay, expire) = keys();
    let mut bytes = Vec::new();
    for round in 0..3 {
        rig.at(1 + round * 100_000);
        for (number, key) in stay.iter().chain(&expire).enumerate() {
            let ttl = (number >= stay.len()).then_some(10);
            rig.set(key, &format!("first {number}"), ttl).unwrap();
            rig.set(key, &format!("value {number}"), None).unwrap();
        }
        copying.settle(&rig);
        let before: Vec<_> = stay.iter().map(|key| rig.with_slot(key, |slot| slot.address())).collect();
        let used = bytes_of_table(&rig);
        rig.0.compactor.borrow_mut().move_all(rig.now());
        for (number, (key, address)) in stay.iter().zip(before).enumerate() {
            let (moved, length) = rig.with_slot(key, |slot| (slot.address() != address, slot.key().len()));
            assert_eq!((moved, length), (true, key.len()), "the deadline of none of them");
            assert_eq!(rig.get(key), Some(format!("value {number}")));
        }
        assert_eq!(bytes_of_table(&rig), used, "the new slot costs as much as the old one");
        let all = scanned(&rig, b"");
        assert_eq!((all.len(), &all), (stay.len() + expire.len(), &copying.elements()));
        assert_eq!(scanned(&rig, "e".repeat(255).as_bytes()).len(), 4);
        rig.at(50_000 + round * 100_000);
        copying.settle(&rig);
        assert_eq!(copying.elements().len(), stay.len(), "the others have expired");
        assert!(expire.iter().all(|key| rig.get(key).is_none()));
        for (number, key) in stay.iter().enumerate() {
            assert_eq!(rig.delete(key).unwrap(), format!("value {number}"));
        }
        copying.settle(&rig);
        assert_eq!((copying.elements().len(), scanned(&rig, b"").len()), (0, 0));
        bytes.push(bytes_of_table(&rig));
    }
    assert_eq!(bytes[1], bytes[2], "what a key costs is given back");
}

#[test]
fn keys_that_begin_alike_are_distinct_at_every_length() {
    let rig = TablesRig::new();
    for length in LENGTHS {
        rig.set(&"k".repeat(length), &length.to_string(), None).unwrap();
        let mut other = "k".repeat(length);
        if other.pop().is_some() {
            rig.set(&(other + "l"), "other", None).unwrap();
        }
    }
    for length in LENGTHS {
        assert_eq!(rig.get(&"k".repeat(length)), Some(length.to_string()));
        assert_eq!(rig.get(&("k".repeat(length) + "m")), None);
    }
}
