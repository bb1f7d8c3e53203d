//! The bytes of the messages, the refusal of all others, and arbitrary bytes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use bolero::check;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const POSITION: FeedPosition = FeedPosition { epoch: 1, incarnation: 2, sequence: 3 };

fn change<'m>(cause: Cause, key: &'m [u8], value: &'m [u8]) -> FeedChange<'m> {
    FeedChange { cause, version: 7, deadline_millis: None, key, value }
}

fn changes(position: FeedPosition, changes: &[FeedChange<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_changes(position, changes, &mut out);
    out
}

fn decoded(payload: &[u8]) -> Vec<FeedChange<'_>> {
    match FeedMessage::decode(payload).unwrap().content {
        FeedContent::Changes(changes) => changes.collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_bytes_are_those_of_the_specification() {
    let number = |number: u8| [0, 0, 0, 0, 0, 0, 0, number];
    let head = |kind| [&[2, kind][..], &number(1), &number(2), &number(3)].concat();
    let set = FeedChange { deadline_millis: Some(9), ..change(Cause::Set, b"ada", b"countess") };
    let deleted = change(Cause::DeleteWithTable, b"", b"");
    let expected = [
        &head(1)[..],
        &[0, 2],
        &[0x81],
        &number(7),
        &number(9),
        b"\0\x03ada",
        b"\0\0\0\x08countess",
        &[5],
        &number(7),
        &number(0),
        b"\0\0",
        b"\0\0\0\0",
    ]
    .concat();
    assert_eq!(changes(POSITION, &[set, deleted]), expected);
    assert_eq!(decoded(&expected), [set, deleted]);
    let mut bookmark = Vec::new();
    let content = FeedContent::Bookmark { elements: 4, digest: 5, durable: 6 };
    FeedMessage { position: POSITION, content }.encode(&mut bookmark);
    assert_eq!(bookmark, [&head(2)[..], &number(4), &number(5), &number(6)].concat());
    let mut dropped = Vec::new();
    FeedMessage { position: POSITION, content: FeedContent::Dropped }.encode(&mut dropped);
    assert_eq!(dropped, head(3));
}

#[test]
fn a_payload_that_breaks_a_rule_is_refused_with_the_rule() {
    let good = changes(POSITION, &[change(Cause::Set, b"k", b"v")]);
    let with = |place: usize, byte: u8| {
        let mut bad = good.clone();
        bad[place] = byte;
        FeedMessage::decode(&bad).unwrap_err().rule
    };
    assert_eq!(with(0, 1), "the format of the feed is 2 (the server is older: update it)");
    assert_eq!(with(0, 3), "the format of the feed is 2 (the server is newer: update this client)");
    assert_eq!(with(1, 0), "the type of a payload is 1 to 3");
    assert_eq!(with(1, 4), "the type of a payload is 1 to 3");
    assert_eq!(with(17, 0), "the incarnation of a table that was there is 1 at least");
    assert_eq!(with(25, 0), "a sequence is 1 at least");
    assert_eq!(with(27, 0), "a message has 1 to 64 changes");
    assert_eq!(with(27, 65), "a message has 1 to 64 changes");
    assert_eq!(with(27, 2), "the changes of a message fill it");
    assert_eq!(with(28, 0), "a cause is 1 to 127");
    assert_eq!(with(28, 0x80), "a cause is 1 to 127");
    assert_eq!(with(28, 3), "a deletion has neither value nor deadline, and 0 bytes");
    assert_eq!(with(36, 0), "a version is above 0");
    assert_eq!(with(45, 255), "the changes of a message fill it");
    for bytes in [0, 64, 255, 256, 4_096] {
        assert_eq!(decoded(&changes(POSITION, &[change(Cause::Set, &vec![b'k'; bytes], b"v")]))[0].key.len(), bytes);
    }
    let long_key = changes(POSITION, &[change(Cause::Set, &[b'k'; 4_097], b"")]);
    assert_eq!(FeedMessage::decode(&long_key).unwrap_err().given, 4_097);
    let last = FeedPosition { sequence: u64::MAX, ..POSITION };
    assert!(FeedMessage::decode(&changes(last, &[change(Cause::Set, b"k", b"v")])).is_err());
    let mut none = Vec::new();
    let position = FeedPosition { incarnation: 0, sequence: 1, ..POSITION };
    let content = FeedContent::Bookmark { elements: 1, digest: 0, durable: 1 };
    FeedMessage { position, content }.encode(&mut none);
    assert!(FeedMessage::decode(&none).is_err(), "a table that is not there has no element");
}

#[test]
fn of_a_cause_that_is_not_known_bit_7_counts() {
    for (byte, cause) in [
        (0x81, Cause::Set),
        (0x86, Cause::CompareAndSwap),
        (0x8b, Cause::Persist),
        (0x90, Cause::CopyTo),
        (0x91, Cause::Set),
        (0xff, Cause::Set),
        (0x83, Cause::Set),
        (0x03, Cause::Delete),
        (0x08, Cause::Evict),
        (0x0e, Cause::RenameFrom),
        (0x0c, Cause::Delete),
        (0x7f, Cause::Delete),
        (0x01, Cause::Delete),
    ] {
        let mut payload = changes(POSITION, &[change(Cause::Set, b"k", b"")]);
        payload[28] = byte;
        assert_eq!(decoded(&payload)[0].cause, cause, "{byte:#x}");
    }
    assert!(Cause::ALL.iter().zip(1..).all(|(cause, number)| *cause as u8 == number));
}

#[test]
fn a_payload_that_is_cut_or_has_more_bytes_is_refused() {
    let mut bookmark = Vec::new();
    let content = FeedContent::Bookmark { elements: 4, digest: 5, durable: 6 };
    FeedMessage { position: POSITION, content }.encode(&mut bookmark);
    let mut dropped = Vec::new();
    FeedMessage { position: POSITION, content: FeedContent::Dropped }.encode(&mut dropped);
    for whole in [changes(POSITION, &[change(Cause::Set, b"k", b"v"); 2]), bookmark, dropped] {
        assert!(FeedMessage::decode(&whole).is_ok());
        for length in 0..whole.len() {
            assert!(FeedMessage::decode(&whole[..length]).is_err(), "{length}");
        }
        assert!(FeedMessage::decode(&[&whole[..], b"\0"].concat()).is_err());
    }
}

#[test]
fn a_topic_fits_one_table() {
    let longest = [b't'; 254];
    for name in [&b"t"[..], b"users", &longest] {
        let topic = topic_of_table(name);
        assert_eq!(topic, topic_of_table(&[name, b"\0"].concat()));
        assert_eq!(table_of_topic(&topic), Some(name));
        assert_eq!(table_of_topic(&topic[..topic.len() - 1]), None);
    }
    for other in [&b""[..], b"\0", b"\x01", b"\x02a\0", b"\x01ab"] {
        assert_eq!(table_of_topic(other), None, "{other:?}");
    }
}

#[test]
fn no_payload_makes_the_decoder_panic_and_a_decoded_one_is_encoded_as_it_came() {
    check!().with_iterations(50_000).for_each(|bytes: &[u8]| {
        if let Ok(message) = FeedMessage::decode(bytes) {
            let mut again = Vec::new();
            message.encode(&mut again);
            assert_eq!(again, bytes);
        }
    });
}

/// A change of any cause, with the value and deadline that the cause allows.
fn any_change() -> impl Strategy<Value = (Cause, u64, Option<u64>, Vec<u8>, Vec<u8>)> {
    let fields = (
        1..=11_u8,
        1_u64..,
        option::of(1_u64..),
        prop_oneof![9 => vec(any::<u8>(), 0..=64), 1 => vec(any::<u8>(), 65..=300)],
        vec(any::<u8>(), 0..200),
    );
    fields.prop_map(|(code, version, deadline, key, value)| {
        let cause = Cause::of_number(code).unwrap();
        if cause.is_live() { (cause, version, deadline, key, value) } else { (cause, version, None, key, Vec::new()) }
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        all in vec(any_change(), 1..=FEED_CHANGES_MAX),
        epoch: u64,
        incarnation in 1_u64..,
        sequence in 1..u64::MAX - 64,
        cut: prop::sample::Index,
        byte: u8,
    ) {
        let position = FeedPosition { epoch, incarnation, sequence };
        let all: Vec<FeedChange<'_>> = all
            .iter()
            .map(|(cause, version, deadline_millis, key, value)| FeedChange {
                cause: *cause,
                version: *version,
                deadline_millis: *deadline_millis,
                key,
                value,
            })
            .collect();
        let payload = changes(position, &all);
        prop_assert_eq!(payload.len(), CHANGES_HEAD_BYTES + all.iter().map(FeedChange::bytes).sum::<usize>());
        let message = FeedMessage::decode(&payload).unwrap();
        prop_assert_eq!(message.position, position);
        prop_assert_eq!(decoded(&payload), all);
        let mut again = Vec::new();
        message.encode(&mut again);
        prop_assert_eq!(&again, &payload);
        // A payload with one byte changed is refused, or has as many changes as it says.
        let mut other = payload.clone();
        other[cut.index(payload.len())] = byte;
        if let Ok(FeedMessage { content: FeedContent::Changes(changes), .. }) = FeedMessage::decode(&other) {
            prop_assert_eq!(changes.len(), changes.count());
        }
    }
}
