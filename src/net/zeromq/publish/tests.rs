//! Subscribers over real sockets of this host, which the tests speak for byte by byte, beside libzmq's XPUB.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

mod libzmq;

use super::{PublishLimits, PublisherMetrics, Subscribers, TopicForm};
use crate::clock::{Clock, Now};
use crate::limits::{
    BURST_BYTES_MAX, CONTROL_BYTES_MAX, HANDSHAKE_TIMEOUT, PLACE_HANDSHAKE_TIME, PLACE_SILENT_TIME,
    SUBSCRIBER_FRAME_BYTES_MAX, SUBSCRIBERS_RECEIVE_BYTES,
};
use crate::net::sockets::WakeSignal;
use crate::net::zeromq::BoundListener;
use crate::net::zeromq::tests::{introduction, message};
use crate::zmtp::{Part, SocketType, ZmtpCommand, encode_subscribe};

/// Passes that a test waits for a condition. Each waits for work, up to [`PATIENCE`].
const PASSES: usize = 100_000;
const PATIENCE: Option<Duration> = Some(Duration::from_millis(20));

/// A publisher that the test runs by hand.
struct PublisherRig {
    subscribers: Subscribers,
    now: Now,
    address: String,
}

impl PublisherRig {
    fn start(limits: PublishLimits) -> Self {
        Self::listen_at("tcp://127.0.0.1:*", limits)
    }

    fn listen_at(endpoint: &str, limits: PublishLimits) -> Self {
        let mut subscribers = Subscribers::new(&WakeSignal::new().unwrap(), limits, TopicForm::Name, None).unwrap();
        let listener = BoundListener::bind(endpoint).unwrap();
        let address = listener.endpoint().split_once("://").unwrap().1.to_owned();
        subscribers.listen(listener).unwrap();
        Self { subscribers, now: Now::from_millis(1), address }
    }

    fn pass(&mut self) {
        let now = self.now;
        self.subscribers.turn(PATIENCE, || now);
    }

    fn pass_until(&mut self, mut done: impl FnMut(&Subscribers) -> bool) {
        for _ in 0..PASSES {
            if done(&self.subscribers) {
                return;
            }
            self.pass();
        }
        panic!("it does not come to pass: {:?}", self.subscribers.metrics());
    }

    fn publisher_metrics(&self) -> PublisherMetrics {
        self.subscribers.metrics()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A subscriber whose handshake is over and whose subscription has come.
    fn join(&mut self, topic: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&introduction(SocketType::Sub)).unwrap();
        stream.write_all(&subscribe(topic)).unwrap();
        let before = self.publisher_metrics().subscriptions;
        self.pass_until(|subscribers| subscribers.metrics().subscriptions > before);
        let mut greeting = vec![0; introduction(SocketType::XPub).len()];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, introduction(SocketType::XPub));
        stream
    }

    fn publish(&mut self, topic: &[u8], number: u32) -> bool {
        let bytes = message(&[topic, &number.to_be_bytes()]);
        self.subscribers.publish(topic, |out| out.extend_from_slice(&bytes))
    }

    /// The bytes that come until the connection is closed, while the publisher works.
    fn rest(&mut self, stream: &mut TcpStream) -> Vec<u8> {
        stream.set_nonblocking(true).unwrap();
        let (mut out, mut some) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match stream.read(&mut some) {
                Ok(0) => return out,
                Ok(count) => out.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.pass(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn limits() -> PublishLimits {
    PublishLimits::new(1_000_000)
}

fn subscribe(topic: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_subscribe(&mut bytes, topic);
    bytes
}

/// Decodes these bytes: the frames of each message, and the reason of an ERROR.
fn understood(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let (mut at, mut all, mut frames) = (0, Vec::new(), Vec::new());
    while at < bytes.len() {
        let (part, length) = Part::decode(&bytes[at..], u64::MAX).unwrap().expect("nothing is cut off");
        at += length;
        match part {
            Part::Frame { body, more } => {
                frames.push(body.to_vec());
                if !more {
                    all.push(std::mem::take(&mut frames));
                }
            }
            Part::Command(ZmtpCommand::Error { reason }) => all.push(vec![b"ERROR".to_vec(), reason.to_vec()]),
            Part::Command(_) => {}
        }
    }
    all
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    let number = |message: &Vec<Vec<u8>>| u32::from_be_bytes(message[1][..].try_into().unwrap());
    understood(bytes).iter().map(number).collect()
}

/// Ends the connection from the publisher's side, and returns all bytes that came.
fn all_that_came(rig: PublisherRig, stream: &mut TcpStream) -> Vec<u8> {
    let PublisherRig { mut subscribers, .. } = rig;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = Vec::new();
            stream.read_to_end(&mut out).unwrap();
            let _gone = stream.shutdown(std::net::Shutdown::Both);
            out
        });
        let clock = Clock::start();
        subscribers.finish(clock.now().after(Duration::from_secs(60)), || clock.now());
        reader.join().unwrap()
    })
}

#[test]
fn a_message_goes_once_to_each_who_subscribes_to_its_beginning() {
    let mut rig = PublisherRig::start(limits());
    assert!(!rig.publish(b"users", 0), "nobody is there");
    let mut all = rig.join(b"");
    let mut some = rig.join(b"us");
    some.write_all(&subscribe(b"users")).unwrap();
    rig.pass_until(|subscribers| subscribers.metrics().subscriptions == 3);
    for (number, topic) in [&b"users"[..], b"birds", b"users", b"use"].into_iter().enumerate() {
        assert!(rig.publish(topic, u32::try_from(number).unwrap()));
    }
    let publisher_metrics = PublisherMetrics { subscribers: 2, topics: 3, subscriptions: 3, lost: 0, closed: 0 };
    assert_eq!(rig.publisher_metrics(), publisher_metrics);
    rig.subscribers.send();
    let mut bytes = [0; 26];
    some.read_exact(&mut bytes).unwrap();
    drop(some);
    assert_eq!(numbers(&all_that_came(rig, &mut all)), [0, 1, 2, 3]);
    assert_eq!(bytes[..13], message(&[b"users", &0_u32.to_be_bytes()]));
    assert_eq!(bytes[13..], message(&[b"users", &2_u32.to_be_bytes()]));
}

#[test]
fn ipc_is_served_and_peers_that_do_not_subscribe_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}", folder.path().join("publish").display());
    let mut rig = PublisherRig::listen_at(&endpoint, limits());
    let mut stream = UnixStream::connect(&rig.address).unwrap();
    stream.write_all(&introduction(SocketType::XSub)).unwrap();
    stream.write_all(b"\x00\x02\x01t").unwrap();
    rig.pass_until(|subscribers| subscribers.metrics().topics == 1);
    stream.write_all(b"\x00\x02\x00t").unwrap();
    rig.pass_until(|subscribers| subscribers.metrics().topics == 0);
    drop(stream);
    rig.pass_until(|subscribers| subscribers.metrics().subscribers == 0);
    let mut other = UnixStream::connect(&rig.address).unwrap();
    other.write_all(&introduction(SocketType::Dealer)).unwrap();
    other.set_nonblocking(true).unwrap();
    let mut out = Vec::new();
    while other.read_to_end(&mut out).is_err() {
        rig.pass();
    }
    let received = understood(&out[introduction(SocketType::XPub).len()..]);
    assert_eq!(received[0][1], b"a DEALER socket does not talk to a XPUB socket");
    assert_eq!(rig.publisher_metrics().closed, 0, "it was no subscriber");
}

#[test]
fn a_subscriber_that_does_not_read_alone_loses_what_is_beyond_its_bound() {
    const SENT: u32 = 400_000;
    const BEHIND: usize = 1_000;
    let mut rig = PublisherRig::start(PublishLimits::new(BEHIND));
    let mut stalled = rig.join(b"");
    let (mut reader, mut received) = (rig.join(b""), Vec::new());
    reader.set_nonblocking(true).unwrap();
    let mut some = vec![0; 1 << 16];
    for number in 0..SENT {
        rig.publish(&[7; 50], number);
        if number % 100 == 99 {
            rig.subscribers.send();
            while received.len() < (number as usize + 1) * 58 {
                match reader.read(&mut some) {
                    Ok(count) => received.extend_from_slice(&some[..count]),
                    Err(_) => rig.pass(),
                }
            }
        }
    }
    assert!(numbers(&received).into_iter().eq(0..SENT), "who reads loses nothing");
    drop(reader);
    let lost = rig.publisher_metrics().lost;
    assert!(lost > 0);
    let kept = numbers(&all_that_came(rig, &mut stalled));
    assert_eq!(kept.len() as u64 + lost, u64::from(SENT), "each is received or counted");
    assert!(kept.iter().copied().eq(0..u32::try_from(kept.len()).unwrap()), "the oldest, without a gap");
    assert!(kept.len() >= BEHIND);
}

#[test]
fn what_waits_for_several_is_kept_once_and_all_of_it_is_bounded() {
    const HELD: usize = 4 << 20;
    let mut rig = PublisherRig::start(PublishLimits { held_bytes: HELD, ..limits() });
    let _stalled: Vec<TcpStream> = (0..4).map(|_| rig.join(b"")).collect();
    let mut most = 0;
    let mut number = 0;
    // Until each subscriber has lost messages. The system keeps different amounts for them.
    while rig.publisher_metrics().lost < 1_000_000 {
        for _ in 0..1_000 {
            rig.publish(&[7; 100], number);
            number += 1;
        }
        rig.subscribers.send();
        most = most.max(usize::try_from(rig.subscribers.delivery.held.held()).unwrap());
    }
    assert!(most > HELD - BURST_BYTES_MAX, "it is used up: {most}");
    assert!(most <= HELD + 4 * 108, "and nothing more than that, but for a begun message of each: {most}");
    let waiting: usize =
        rig.subscribers.connections.iter().map(|(_, subscriber)| subscriber.output.queue.bytes()).sum();
    assert!(waiting > most, "{waiting} bytes wait in {most}");
}

#[test]
fn all_that_waits_is_bounded_for_subscribers_of_different_topics_and_a_late_one_gets_its_share() {
    const HELD: usize = 512 << 10;
    const STALLED: u8 = 12;
    let mut rig = PublisherRig::start(PublishLimits { held_bytes: HELD, ..limits() });
    let _stalled: Vec<TcpStream> = (0..STALLED).map(|number| rig.join(&[number])).collect();
    let burst = |rig: &mut PublisherRig, number: u8| {
        (0..1_000).for_each(|count| assert!(rig.publish(&[number; 100], count)));
        rig.subscribers.send();
        let held = usize::try_from(rig.subscribers.delivery.held.held()).unwrap();
        assert!(held <= HELD + usize::from(STALLED) * 108, "{held}");
    };
    // Until each subscriber has lost messages. The system keeps different amounts for them.
    while rig.publisher_metrics().lost < 100_000
        || rig.subscribers.connections.iter().any(|(_, one)| one.output.queue.is_empty())
    {
        (0..STALLED).for_each(|number| burst(&mut rig, number));
    }
    let _late = rig.join(&[STALLED]);
    let waiting = |rig: &mut PublisherRig| {
        let late = rig.subscribers.connections.iter_mut().max_by_key(|(_, subscriber)| subscriber.generation);
        late.map(|(_, late)| late.output.queue.messages()).unwrap()
    };
    let mut bursts = 0;
    while waiting(&mut rig) < 2 {
        burst(&mut rig, STALLED);
        bursts += 1;
        assert!(bursts < 10_000, "more than a message that was begun");
    }
}

#[test]
fn too_many_subscriptions_close_a_connection_and_leave_nothing_behind() {
    let bounds = [
        (PublishLimits { subscriptions: 5_000, ..limits() }, &b"too many subscriptions: at most 5000"[..]),
        (PublishLimits { topic_bytes: 10_000, ..limits() }, &b"subscriptions with too many bytes: at most 10000"[..]),
    ];
    for (limits, reason) in bounds {
        let mut rig = PublisherRig::start(limits);
        let mut honest = rig.join(b"t");
        let mut greedy = rig.join(b"");
        let flood: Vec<u8> = (0..6_000_u32).flat_map(|number| subscribe(&number.to_be_bytes())).collect();
        greedy.write_all(&flood).unwrap();
        let received = rig.rest(&mut greedy);
        assert_eq!(understood(&received), [[b"ERROR".to_vec(), reason.to_vec()]]);
        drop(greedy);
        rig.pass_until(|subscribers| subscribers.connections.len() == 1 && subscribers.subscriptions.topics.len() == 1);
        let publisher_metrics = PublisherMetrics { subscribers: 1, topics: 1, subscriptions: 1, lost: 0, closed: 1 };
        assert_eq!(rig.publisher_metrics(), publisher_metrics);
        assert!(rig.publish(b"table", 1));
        assert_eq!(numbers(&all_that_came(rig, &mut honest)), [1]);
    }
}

#[test]
fn when_all_together_have_too_many_the_one_with_the_most_goes() {
    let mut rig = PublisherRig::start(PublishLimits { all_subscriptions: 1_000, ..limits() });
    let mut honest = rig.join(b"t");
    let mut greedy = rig.join(b"g");
    let topics = |range: std::ops::Range<u32>| -> Vec<u8> {
        range.flat_map(|number| subscribe(&number.to_be_bytes())).collect()
    };
    greedy.write_all(&topics(0..900)).unwrap();
    rig.pass_until(|subscribers| subscribers.metrics().subscriptions == 902);
    honest.write_all(&topics(0..200)).unwrap();
    assert_eq!(understood(&rig.rest(&mut greedy))[0][1], b"too many subscriptions of all subscribers");
    drop(greedy);
    rig.pass_until(|subscribers| subscribers.metrics().subscriptions == 201);
    assert_eq!((rig.publisher_metrics().subscribers, rig.publisher_metrics().closed), (1, 1));
}

#[test]
fn those_who_send_without_end_take_turns_and_get_so_much_of_each_turn() {
    const FLOODS: usize = 7;
    let mut rig = PublisherRig::start(PublishLimits { subscriptions: usize::MAX, ..limits() });
    let mut floods: Vec<TcpStream> = (0..FLOODS).map(|_| rig.join(b"")).collect();
    let mut numbers = 0_u64..;
    let mut fill = |flood: &mut TcpStream| {
        flood.set_nonblocking(true).unwrap();
        loop {
            let bytes: Vec<u8> =
                numbers.by_ref().take(100).flat_map(|number| subscribe(&number.to_be_bytes())).collect();
            if flood.write(&bytes).ok() != Some(bytes.len()) {
                break;
            }
        }
    };
    floods.iter_mut().for_each(&mut fill);
    let length = subscribe(&[0; 8]).len();
    for _ in 0..50 {
        let before = rig.publisher_metrics().subscriptions;
        rig.pass();
        let came = usize::try_from(rig.publisher_metrics().subscriptions - before).unwrap();
        assert!(came * length <= SUBSCRIBERS_RECEIVE_BYTES + FLOODS * length, "{came} in a turn");
    }
    let counts: Vec<usize> =
        rig.subscribers.connections.iter().map(|(_, subscriber)| subscriber.topics.nodes.len()).collect();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    // The system's windows open in steps, so they are not equal.
    assert!(4 * least > *most, "{counts:?}");
}

#[test]
fn nothing_is_kept_of_messages_without_end_and_a_long_frame_closes_its_connection() {
    let mut rig = PublisherRig::start(limits());
    let mut endless = rig.join(b"");
    let frame = message(&[&[9; 1_000], b""]);
    let frames = frame[..frame.len() - 2].repeat(7);
    for _ in 0..500 {
        endless.write_all(&frames).unwrap();
        rig.pass();
        let kept =
            rig.subscribers.connections.iter().map(|(_, subscriber)| subscriber.input.unfinished.capacity()).max();
        assert!(kept.unwrap() as u64 <= 4 * SUBSCRIBER_FRAME_BYTES_MAX, "{kept:?}");
    }
    assert_eq!(rig.publisher_metrics().subscribers, 1, "what it says is no subscription, and it stays");
    let mut long = rig.join(b"");
    long.write_all(b"\x06\0\0\0\0\0\x10\0\0\x09SUBSCRIBE").unwrap();
    let received = rig.rest(&mut long);
    assert_eq!(understood(&received)[0][1], b"a frame has 1048576 bytes, and at most 8192 are taken");
    assert_eq!(rig.publisher_metrics().closed, 1);
}

#[test]
fn a_ping_is_answered_with_its_context_and_one_without_a_time_to_live_is_a_fault() {
    let mut rig = PublisherRig::start(limits());
    let mut stream = rig.join(b"");
    stream.write_all(b"\x04\x17\x04PING\0\x0a0123456789abcdef").unwrap();
    let mut pong = [0; 23];
    stream.set_nonblocking(true).unwrap();
    while stream.peek(&mut pong).unwrap_or(0) < pong.len() {
        rig.pass();
    }
    stream.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"\x04\x15\x04PONG0123456789abcdef");
    stream.write_all(b"\x04\x05\x04PING").unwrap();
    let received = rig.rest(&mut stream);
    assert_eq!(
        understood(&received),
        [[b"ERROR".to_vec(), b"a command cannot be read: a PING has no time to live".to_vec()]]
    );
    let mut stream = rig.join(b"");
    stream.write_all(b"\x04\x18\x04PING\0\x0a0123456789abcdefg").unwrap();
    assert_eq!(understood(&rig.rest(&mut stream)).len(), 1, "a context of 17 bytes");
    assert_eq!(rig.publisher_metrics().closed, 2);
}

#[test]
fn one_that_does_not_read_the_answers_to_its_pings_is_closed() {
    let mut rig = PublisherRig::start(limits());
    let mut stream = rig.join(b"");
    stream.set_nonblocking(true).unwrap();
    let pings = b"\x04\x17\x04PING\0\x0a0123456789abcdef".repeat(300);
    while rig.publisher_metrics().closed == 0 {
        let _full = stream.write(&pings);
        rig.pass();
        let control =
            rig.subscribers.connections.iter().map(|(_, subscriber)| subscriber.output.queue.control_bytes()).max();
        assert!(control.unwrap() <= CONTROL_BYTES_MAX + pings.len());
    }
}

#[test]
fn a_silent_connection_has_so_long_for_its_handshake() {
    let mut rig = PublisherRig::start(limits());
    let mut honest = rig.join(b"");
    let mut silent = rig.connect();
    let mut greeting = vec![0; 12];
    rig.pass_until(|subscribers| subscribers.connections.len() == 2);
    silent.read_exact(&mut greeting).unwrap();
    rig.now = rig.now.after(HANDSHAKE_TIMEOUT);
    rig.pass_until(|subscribers| subscribers.connections.len() == 1);
    assert_eq!(silent.read(&mut greeting).unwrap(), 0);
    rig.publish(b"t", 5);
    assert_eq!(numbers(&all_that_came(rig, &mut honest)), [5]);
}

/// Further subscribers waited for as long as connections without a subscription stayed.
#[test]
fn a_connection_without_a_subscription_makes_place_and_a_subscriber_does_not() {
    let mut rig = PublisherRig::start(PublishLimits { subscribers: 3, ..limits() });
    let mut honest = rig.join(b"");
    let (mut silent, mut shaken) = (rig.connect(), rig.connect());
    shaken.write_all(&introduction(SocketType::Sub)).unwrap();
    rig.pass_until(|subscribers| subscribers.metrics().subscribers == 2 && subscribers.connections.len() == 3);
    rig.now = rig.now.after(PLACE_SILENT_TIME);
    let mut second = rig.join(b"t");
    let is_end = |stream: &mut TcpStream| stream.read_to_end(&mut Vec::new()).is_ok();
    assert!(is_end(&mut silent));
    rig.now = rig.now.after(PLACE_HANDSHAKE_TIME);
    let mut third = rig.join(b"t");
    assert!(is_end(&mut shaken));
    let _waits = rig.connect();
    rig.pass_until(|subscribers| subscribers.port.listeners.again_at().is_some());
    rig.now = rig.now.after(HANDSHAKE_TIMEOUT);
    rig.publish(b"t", 5);
    rig.pass();
    assert_eq!(rig.publisher_metrics().subscribers, 3);
    for stream in [&mut honest, &mut second, &mut third] {
        let mut first = vec![0; message(&[b"t", &5_u32.to_be_bytes()]).len()];
        stream.read_exact(&mut first).unwrap();
    }
}

#[test]
fn what_waits_at_the_end_is_sent_and_one_that_never_reads_is_not_waited_for_longer_than_that() {
    const SENT: u32 = 300_000;
    let mut rig = PublisherRig::start(limits());
    let mut slow = rig.join(b"");
    let stalled = rig.join(b"");
    for number in 0..SENT {
        rig.publish(&[7; 100], number);
    }
    rig.subscribers.send();
    assert!(rig.subscribers.delivery.held.held() > 1 << 20, "more than the system takes");
    let PublisherRig { mut subscribers, .. } = rig;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = Vec::new();
            slow.read_to_end(&mut out).unwrap();
            drop(slow);
            out
        });
        // The clock stands still until the reading subscriber has read everything.
        let clock = || Now::from_nanos(if reader.is_finished() { u64::MAX } else { 1 });
        subscribers.finish(Now::from_millis(20), clock);
        assert!(numbers(&reader.join().unwrap()).into_iter().eq(0..SENT));
    });
    drop(stalled);
}
