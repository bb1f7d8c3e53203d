//! The publisher understands a subscriber's commands as libzmq's XPUB does.

use std::io::{Read, Write};
use std::net::TcpStream;

use proptest::prelude::*;

use super::{PublisherRig, limits, subscribe, understood};
use crate::net::zeromq::tests::{introduction, message};
use crate::zmtp::SocketType;

/// Topics for subscriptions and for published messages.
const TOPICS: [&[u8]; 6] = [b"", b"a", b"ab", b"abc", b"b", b"ba"];
const MARK: &[u8] = b"~the end";

/// One command of a subscriber: whether it subscribes, its topic, and its form.
type Word = (bool, usize, u8);

fn said(words: &[Word]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (subscribes, topic, form) in words {
        let (topic, first) = (TOPICS[*topic], u8::from(*subscribes));
        let frame = [&[first][..], topic].concat();
        match form {
            0 => bytes.extend(message(&[&frame])),
            1 => bytes.extend(message(&[b"other", &frame, b"\x02"])),
            _ if *subscribes => bytes.extend(subscribe(topic)),
            _ => {
                let size = u8::try_from(topic.len() + 7).unwrap();
                bytes.extend([&[4, size, 6][..], b"CANCEL", topic].concat());
            }
        }
    }
    bytes.extend(subscribe(MARK));
    bytes
}

/// Reads until the mark, and returns the topics before it.
fn received(stream: &mut TcpStream, mut pass: impl FnMut()) -> Vec<Vec<u8>> {
    stream.set_nonblocking(true).unwrap();
    let (mut bytes, mut some) = (Vec::new(), [0; 4096]);
    let mark = message(&[MARK]);
    while !bytes.ends_with(&mark) {
        match stream.read(&mut some) {
            Ok(count) => bytes.extend_from_slice(&some[..count]),
            Err(_) => pass(),
        }
    }
    understood(&bytes).into_iter().map(|mut message| message.swap_remove(0)).collect()
}

/// The messages that a libzmq socket sends to a subscriber with these commands.
fn sent_by_libzmq(context: &zmq::Context, said: &[u8]) -> Vec<Vec<u8>> {
    let publisher = context.socket(zmq::XPUB).unwrap();
    publisher.set_linger(0).unwrap();
    publisher.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = publisher.get_last_endpoint().unwrap().unwrap();
    let mut stream = TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap();
    stream.write_all(&introduction(SocketType::Sub)).unwrap();
    let mut greeting = vec![0; 64];
    stream.read_exact(&mut greeting).unwrap();
    let mut header = [0; 2];
    stream.read_exact(&mut header).unwrap();
    stream.read_exact(&mut vec![0; usize::from(header[1])]).unwrap();
    stream.write_all(said).unwrap();
    while publisher.recv_bytes(0).unwrap() != [&b"\x01"[..], MARK].concat() {}
    TOPICS.iter().for_each(|topic| publisher.send(*topic, 0).unwrap());
    publisher.send(MARK, 0).unwrap();
    received(&mut stream, || ())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Includes topics subscribed twice, cancelled more often than that, or named in the middle of a message.
    #[test]
    fn a_subscriber_is_understood_as_libzmq_understands_it(
        words in prop::collection::vec((any::<bool>(), 0..TOPICS.len(), 0_u8..3), 0..25),
    ) {
        let said = said(&words);
        let expected = sent_by_libzmq(&zmq::Context::new(), &said);
        let mut rig = PublisherRig::start(limits());
        let mut stream = rig.connect();
        stream.write_all(&[introduction(SocketType::Sub), said].concat()).unwrap();
        rig.pass_until(|subscribers| {
            let mut topics = 0;
            // The empty topic fits all, and it may be there as well.
            subscribers.subscriptions.topics.matching(MARK, |_| topics += 1);
            let mut empty = 0;
            subscribers.subscriptions.topics.matching(b"", |_| empty += 1);
            topics > empty
        });
        let mut greeting = vec![0; introduction(SocketType::XPub).len()];
        stream.read_exact(&mut greeting).unwrap();
        for topic in TOPICS.iter().copied().chain([MARK]) {
            rig.subscribers.publish(topic, |out| out.extend(message(&[topic])));
        }
        rig.subscribers.send();
        prop_assert_eq!(received(&mut stream, || rig.pass()), expected);
    }
}
