//! Clients whose changes the tables cannot take yet wait, each by itself. Other clients are served. Over both
//! frontends, with a publisher and a reaper that are held.

use std::thread;

use spindle::clock::Clock;
use spindle::net::sockets::Stopper;
use spindle::services::native::serve::{self as native, NativeThreads};
use spindle::services::resp::RespConfig;
use spindle::services::tables::serve::{self, FrontendKind, Kv, QueueFrontend, TablesAdmissions, WorkerCores};
use spindle::tables::{BackgroundThreads, Durability, FeedConfig, Tables, TablesConfig};

use crate::peer::{Frames, Peer};
use crate::seeded_rng::SeededRng;

const OK: &[u8] = &[1];
const PING: &[&[u8]] = &[&[5]];
/// Changes that the worker may have on the way.
const CHANGES: usize = 64;

/// A server without publisher and reaper. They run when [`Held::release`] is called.
pub(crate) struct Held<'s> {
    pub(crate) endpoint: String,
    pub(crate) feed: Option<String>,
    pub(crate) release: Box<dyn FnOnce() + 's>,
}

/// Serves with one worker until `test` is over.
fn serve_held(frontend: FrontendKind, changes_per_writer: usize, test: impl FnOnce(Held<'_>)) {
    serve_parts(frontend, changes_per_writer, |_| {}, test);
}

/// The same, with another setting.
pub(crate) fn serve_parts(
    frontend: FrontendKind,
    changes_per_writer: usize,
    configure: impl FnOnce(&mut serve::KvConfig),
    test: impl FnOnce(Held<'_>),
) {
    let clock = Clock::start();
    let mut settings = serve::KvConfig {
        frontend,
        endpoints: vec!["tcp://127.0.0.1:*".to_owned()],
        publish: None,
        publish_hwm: 1_000,
        feed: None,
        key_max: 64,
        value_max: 1_024,
        client_bytes_max: 64 << 20,
        held_bytes_max: 1 << 30,
        reply_bytes_max: 1 << 30,
        cores: match frontend {
            FrontendKind::Queue => WorkerCores { queue: vec![None], native: Vec::new() },
            FrontendKind::Native => WorkerCores { queue: Vec::new(), native: vec![None] },
        },
        admissions: TablesAdmissions::default(),
    };
    configure(&mut settings);
    let feed = settings.feed.as_ref().map(|_| FeedConfig { epoch: 1, history_bytes: 256 << 20 });
    let (tables, BackgroundThreads { changes, expiry, reaper, .. }) = Tables::with_feed(
        TablesConfig {
            expected_keys: 0,
            memory_max: 1 << 30,
            tables_max: 100,
            durability: Durability::None,
            changes_per_writer,
            version_base: 0,
            clock_start: 0,
        },
        feed,
    );
    // No element here has a TTL.
    drop(expiry);
    let mut kv = serve::bind(&settings, clock, &tables, changes, serve::OtherServices::default()).unwrap();
    let native = native::bind(&settings, RespConfig::default(), &mut kv).unwrap();
    let Kv { queue, reporter, publisher, mut stoppers, mut endpoints, feed, .. } = kv;
    thread::scope(|scope| {
        let mut front = Vec::new();
        front.push(scope.spawn(|| reporter.run()));
        if let Some(QueueFrontend { queue, workers }) = queue {
            front.push(scope.spawn(|| queue.run()));
            front.extend(workers.into_iter().map(|worker| scope.spawn(|| worker.run())));
        }
        if let Some(native) = native {
            stoppers.extend(native.stoppers);
            endpoints.extend(native.kv);
            let NativeThreads { acceptor, workers } = native.threads;
            front.push(scope.spawn(|| acceptor.run()));
            front.extend(workers.into_iter().map(|worker| scope.spawn(|| worker.run())));
        }
        let release = Box::new(|| {
            scope.spawn(|| publisher.run());
            scope.spawn(move || reaper.run(|| clock.now()));
        });
        let ending = Ending { stoppers, tables: &tables };
        test(Held { endpoint: endpoints[0].clone(), feed, release });
        ending.stoppers.iter().for_each(Stopper::stop);
        front.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Ends the threads, also those of a test that fails.
struct Ending<'t> {
    stoppers: Vec<Stopper>,
    tables: &'t Tables,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.stoppers.iter().for_each(Stopper::stop);
        self.tables.close();
    }
}

fn both(test: impl Fn(FrontendKind)) {
    [FrontendKind::Queue, FrontendKind::Native].into_iter().for_each(test);
}

/// Waits until this many clients wait for the tables.
fn wait_for_waiting(peer: &Peer, clients: u64) {
    while peer.stats()["workers"][0]["waiting"] != clients {}
}

fn assert_no_wake_up_was_lost(peer: &Peer) {
    assert_eq!(peer.stats()["changes"]["lost_wakeups"], 0);
}

#[test]
fn who_reads_goes_on_while_those_who_write_wait_for_the_publisher() {
    both(|frontend| {
        serve_held(frontend, CHANGES, |Held { endpoint, release, .. }| {
            let context = zmq::Context::new();
            let [reader, writer, other] = [(); 3].map(|()| Peer::connect(&context, &endpoint));
            assert_eq!(reader.call(&[&[0], b"t"]), [OK]);
            assert_eq!(reader.call(&[&[2], b"t", b"k", b"v"]), [OK]);
            for number in 0..200_u8 {
                writer.ask(&[&[2], b"t", &[number], &[number]]);
                writer.ask(&[&[4], b"t", &[number]]);
            }
            wait_for_waiting(&reader, 1);
            other.ask(&[&[2], b"t", b"other", b"1"]);
            other.ask(&[&[4], b"t", b"other"]);
            wait_for_waiting(&reader, 2);
            for _ in 0..1_000 {
                assert_eq!(reader.call(&[&[4], b"t", b"k"]), [OK, b"v"]);
            }
            // A request after a waiting one of the same client waits with it.
            other.ask(PING);
            assert_eq!(reader.call(PING), [OK]);
            assert_eq!(other.answer_within(std::time::Duration::ZERO), None);
            release();
            for number in 0..200_u8 {
                assert_eq!(writer.answer(), [OK]);
                assert_eq!(writer.answer(), [OK, &[number]]);
            }
            assert_eq!(other.answer(), [OK]);
            assert_eq!(other.answer(), [OK, b"1"]);
            assert_eq!(other.answer(), [OK]);
            wait_for_waiting(&reader, 0);
            assert_no_wake_up_was_lost(&reader);
        });
    });
}

#[test]
fn what_a_client_asked_before_it_left_is_done_after_it_has_waited() {
    both(|frontend| {
        serve_held(frontend, CHANGES, |Held { endpoint, release, .. }| {
            let context = zmq::Context::new();
            let reader = Peer::connect(&context, &endpoint);
            assert_eq!(reader.call(&[&[0], b"t"]), [OK]);
            let writer_context = zmq::Context::new();
            let writer = Peer::connect_with(&writer_context, &endpoint, |socket| socket.set_linger(-1).unwrap());
            for number in 0..100_u8 {
                writer.ask(&[&[2], b"t", &[number], &[number]]);
            }
            wait_for_waiting(&reader, 1);
            // The end of a context waits until its connections are closed.
            drop((writer, writer_context));
            for _ in 0..100 {
                assert_eq!(reader.call(PING), [OK]);
            }
            release();
            wait_for_waiting(&reader, 0);
            // Requests that had not been read when their client stopped waiting come in later turns.
            let last = (0..1_000_000).map(|_| reader.call(&[&[4], b"t", &[99]])).find(|answer| answer[0] == OK);
            assert_eq!(last, Some(vec![OK.to_vec(), vec![99]]), "{frontend:?}");
        });
    });
}

/// Tables of one name that may be on their way down.
const CLOSING: usize = 64;

#[test]
fn who_waits_for_a_table_to_be_taken_down_waits_alone() {
    both(|frontend| {
        serve_held(frontend, 1 << 16, |Held { endpoint, release, .. }| {
            let context = zmq::Context::new();
            let [waiting, other] = [(); 2].map(|()| Peer::connect(&context, &endpoint));
            for _ in 0..CLOSING {
                assert_eq!(waiting.call(&[&[0], b"t"]), [OK]);
                assert_eq!(waiting.call(&[&[1], b"t"]), [OK]);
            }
            waiting.ask(&[&[0], b"t"]);
            waiting.ask(&[&[2], b"t", b"k", b"v"]);
            wait_for_waiting(&other, 1);
            assert_eq!(other.call(&[&[0], b"u"]), [OK]);
            assert_eq!(other.call(&[&[2], b"u", b"k", b"v"]), [OK], "changes are still taken");
            assert_eq!(other.call(&[&[4], b"t", b"k"]), [&[0], &b"TABLE NOT FOUND"[..]]);
            release();
            assert_eq!(waiting.answer(), [OK]);
            assert_eq!(waiting.answer(), [OK]);
            assert_eq!(other.call(&[&[4], b"t", b"k"]), [OK, b"v"]);
            assert_no_wake_up_was_lost(&other);
        });
    });
}

/// A client of a storm: its requests, and their due answers.
struct Stormy {
    peer: Peer,
    key: u8,
    value: Vec<u8>,
    expected: Vec<Frames>,
}

impl Stormy {
    /// Sends a request about its key, without waiting for the answer.
    fn ask(&mut self, rng: &mut SeededRng, number: u32) {
        let value = number.to_be_bytes();
        let pair: [&[u8]; 2] = [&[self.key], &value];
        match rng.index(3) {
            0 => self.peer.ask(&[&[2], b"t", pair[0], pair[1]]),
            1 => self.peer.ask(&[&[&[11], &b"t"[..], b""], &pair.repeat(20)[..]].concat()),
            _ => {
                self.expected.push(vec![OK.to_vec(), self.value.clone()]);
                return self.peer.ask(&[&[4], b"t", &[self.key]]);
            }
        }
        self.value = value.to_vec();
        self.expected.push(vec![OK.to_vec()]);
    }
}

#[test]
fn in_a_storm_of_waiting_everybody_is_answered_in_order_and_no_wake_up_is_lost() {
    both(|frontend| {
        // With a feed there is an audience, and so changes to wait for.
        let configure = |settings: &mut serve::KvConfig| settings.feed = Some("tcp://127.0.0.1:*".to_owned());
        serve_parts(frontend, CHANGES, configure, |Held { endpoint, release, .. }| {
            let context = zmq::Context::new();
            let control = Peer::connect(&context, &endpoint);
            assert_eq!(control.call(&[&[0], b"t"]), [OK]);
            release();
            let mut rng = SeededRng(13);
            let stormy = |key| {
                let peer = Peer::connect(&context, &endpoint);
                assert_eq!(peer.call(&[&[2], b"t", &[key], b""]), [OK]);
                Stormy { peer, key, value: Vec::new(), expected: Vec::new() }
            };
            let mut clients: Vec<Stormy> = (0..16).map(stormy).collect();
            for round in 0..40 {
                for number in 0..50 {
                    clients.iter_mut().for_each(|client| client.ask(&mut rng, round * 100 + number));
                }
                for client in &mut clients {
                    for (number, expected) in client.expected.drain(..).enumerate() {
                        assert_eq!(client.peer.answer(), expected, "{frontend:?}, round {round}, answer {number}");
                    }
                }
            }
            let stats = control.stats();
            assert!(stats["changes"]["writer_waits"].as_u64().unwrap() > 100, "{stats}");
            assert_no_wake_up_was_lost(&control);
        });
    });
}

/// libzmq's own heartbeats: it closes a connection on which nothing has come for a while after a PING.
#[test]
fn a_client_with_heartbeats_whose_write_waits_keeps_its_connection() {
    both(|frontend| {
        serve_held(frontend, CHANGES, |Held { endpoint, release, .. }| {
            let context = zmq::Context::new();
            let watched = zmq::SocketEvent::DISCONNECTED.to_raw();
            let client = Peer::connect_with(&context, &endpoint, |socket| {
                socket.set_heartbeat_ivl(50).unwrap();
                socket.set_heartbeat_timeout(200).unwrap();
                socket.monitor("inproc://heartbeats", watched.into()).unwrap();
            });
            let monitor = context.socket(zmq::PAIR).unwrap();
            monitor.connect("inproc://heartbeats").unwrap();
            client.ask(&[&[0], b"t"]);
            let writes = u32::try_from(2 * CHANGES).unwrap();
            (0..writes).for_each(|number| client.ask(&[&[2], b"t", &number.to_be_bytes(), b"v"]));
            wait_for_waiting(&Peer::connect(&context, &endpoint), 1);
            // Four times as long as it would wait for an answer.
            assert_eq!(monitor.poll(zmq::PollEvents::POLLIN, 800), Ok(0), "{frontend:?}: it was disconnected");
            release();
            (0..=writes).for_each(|_| assert_eq!(client.answer(), [OK]));
        });
    });
}
