//! The end of a server: it answers the requests that it took, publishes the changes that it committed, and exits with
//! status 0.

use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use spindle::clock::Clock;
use spindle::limits::LINGER;
use spindle::server::{
    self, DurabilitySettings, ElementBounds, NotificationSettings, OperationConfig, Pin, RespSettings, SecurityConfig,
    ServerConfig, ServerLimits, StorageConfig, WorkersConfig,
};
use spindle::services::tables::serve::{
    FrontendKind, KvConfig, OtherServices, QueueFrontend, TablesAdmissions, WorkerCores, bind,
};
use spindle::store::StoreConfig;
use spindle::tables::{self, Durability, EvictionPolicy, Tables};

use crate::harness::Server;
use crate::peer::Peer;

/// How long a test waits for an expected message.
const PATIENCE: Duration = Duration::from_secs(20);

/// A subscriber to everything whose subscription has arrived, and its count of notifications.
struct Listener {
    socket: zmq::Socket,
    received: usize,
}

impl Listener {
    /// Subscribes, and makes changes until the first is announced to it.
    fn tune(context: &zmq::Context, server: &Server, peer: &Peer) -> Self {
        let socket = context.socket(zmq::SUB).unwrap();
        socket.set_rcvhwm(0).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_subscribe(b"").unwrap();
        socket.connect(server.publish()).unwrap();
        let mut listener = Self { socket, received: 0 };
        let mut made = 0;
        while listener.received == 0 {
            assert_eq!(peer.call(&[&[2], b"t", b"tune", b""]), [[1]]);
            made += 1;
            listener.listen(Duration::from_millis(1));
        }
        // It misses changes from before the subscription and receives all later ones, in order. A last one ends the
        // wait.
        assert_eq!(peer.call(&[&[2], b"t", b"end", b""]), [[1]]);
        while listener.last_key(PATIENCE).as_deref() != Some(b"end") {}
        assert!(listener.received <= made + 1);
        listener.received = 0;
        listener
    }

    fn last_key(&mut self, time: Duration) -> Option<Vec<u8>> {
        let millis = i64::try_from(time.as_millis()).unwrap();
        if self.socket.poll(zmq::POLLIN, millis).unwrap() == 0 {
            return None;
        }
        let message = self.socket.recv_multipart(0).unwrap();
        self.received += 1;
        Some(message[2].clone())
    }

    /// Receives the waiting notifications.
    fn listen(&mut self, time: Duration) {
        while self.last_key(time).is_some() {}
    }
}

#[test]
fn a_signal_under_load_leaves_nothing_unanswered_or_unpublished() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(&["--workers", "2"]);
        let context = zmq::Context::new();
        let peer = Peer::connect(&context, server.kv());
        assert_eq!(peer.call(&[&[0], b"t"]), [[1]]);
        let mut listener = Listener::tune(&context, &server, &peer);
        let loud = Peer::connect_with(&context, server.kv(), |socket| socket.set_rcvhwm(0).unwrap());
        for number in 0..40_000_u32 {
            loud.ask(&[&[2], b"t", &number.to_be_bytes(), b"value"]);
            if number == 20_000 {
                server.signal(signal);
                break;
            }
        }
        let (status, rest) = server.wait();
        assert_eq!((status.code(), rest.as_str()), (Some(0), ""));
        // All messages of the server have reached this host. A notification that is still missing is on its way through
        // it.
        let deadline = Instant::now() + PATIENCE;
        let mut answered = 0;
        loop {
            while let Some(reply) = loud.answer_within(Duration::from_millis(20)) {
                assert_eq!(reply, [[1]]);
                answered += 1;
            }
            listener.listen(Duration::from_millis(20));
            if answered == listener.received && answered > 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{answered} answered, {} published", listener.received);
        }
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let server = Server::start(&[]);
    let context = zmq::Context::new();
    let peer = Peer::connect(&context, server.kv());
    assert_eq!(peer.call(&[&[0], b"t"]), [[1]]);
    // Replies without a reader: the server would wait for this client, as long as sockets linger.
    let stalled = Peer::connect_with(&context, server.kv(), |socket| {
        socket.set_rcvhwm(1).unwrap();
        socket.set_rcvbuf(4096).unwrap();
    });
    assert_eq!(peer.call(&[&[2], b"t", b"k", &[0; 1000]]), [[1]]);
    for _ in 0..20_000 {
        stalled.ask(&[&[4], b"t", b"k"]);
    }
    while peer.clients("outstanding_bytes") < 100_000 {}
    // Whether the server noticed the first signal cannot be seen from outside. One of the following is the second.
    let process = pidfd_open(server.pid(), PidfdFlags::empty()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| while pidfd_send_signal(&process, Signal::TERM).is_ok() {});
        let (status, _) = server.wait();
        assert_eq!(status.code(), Some(128 + 15), "{status}");
    });
}

fn publishing(publish: Option<String>) -> NotificationSettings {
    NotificationSettings { publish, lockstep: None, hwm: 1_000 }
}

fn config() -> ServerConfig {
    ServerConfig {
        kv: vec!["tcp://127.0.0.1:*".to_owned()],
        notifications: publishing(Some("tcp://127.0.0.1:0".to_owned())),
        feed: None,
        lockstep: None,
        limits: ServerLimits {
            evict: EvictionPolicy::None,
            elements: ElementBounds { key_bytes: 64, value_bytes: 1_024 },
            resp_elements: ElementBounds { key_bytes: 4_096, value_bytes: 16 << 20 },
            memory_bytes: 1 << 30,
            tables: 10,
            client_bytes: 1 << 20,
            expected_keys: 0,
        },
        workers: WorkersConfig {
            frontend: FrontendKind::Queue,
            count: 2,
            pin: Pin::Off,
            resp: RespSettings::default(),
        },
        storage: StorageConfig {
            data: "/nonexistent/spindle".into(),
            store: StoreConfig { segment_bytes: 1 << 20, max_disk: None, repair: false, copied: false },
            tables: DurabilitySettings { durability: Durability::None, interval: Duration::from_secs(1) },
        },
        tasks: None,
        events: None,
        security: SecurityConfig::default(),
        operation: OperationConfig {
            admin: None,
            slow: Duration::from_millis(10),
            allocator: spindle::allocator::in_use(),
        },
    }
}

#[test]
fn a_server_within_the_process_gives_its_endpoints_back() {
    let context = zmq::Context::new();
    let begin_again = || {
        let first = server::start(config()).unwrap();
        let (kv, publish) = (first.endpoints("kv").to_vec(), first.endpoints("publish").first().cloned());
        let peer = Peer::connect(&context, &kv[0]);
        assert_eq!(peer.call(&[&[5]]), [[1]]);
        drop(peer);
        first.stop();
        let second =
            server::start(ServerConfig { kv: kv.clone(), notifications: publishing(publish), ..config() }).ok()?;
        assert_eq!(second.endpoints("kv"), kv);
        let peer = Peer::connect(&context, &kv[0]);
        assert_eq!(peer.call(&[&[5]]), [[1]]);
        Some(())
    };
    // The system may give a port to another process as soon as it is free.
    assert!((0..10).any(|_| begin_again().is_some()), "the endpoints are not given back");
}

#[test]
fn a_server_that_cannot_start_leaves_nothing_running() {
    let running = server::start(config()).unwrap();
    let taken = running.endpoints("publish").first().cloned();
    for _ in 0..50 {
        let error = server::start(ServerConfig { notifications: publishing(taken.clone()), ..config() }).err().unwrap();
        assert!(error.to_string().contains(taken.as_deref().unwrap()), "{error}");
    }
}

/// The parts between clients and tables, for these workers, with tables that take few changes at a time.
fn parts(workers: usize) -> (spindle::services::tables::serve::Kv, Tables) {
    let settings = tables::TablesConfig {
        expected_keys: 0,
        memory_max: 1 << 30,
        tables_max: 4,
        durability: Durability::None,
        changes_per_writer: CHANGES,
        version_base: 0,
        clock_start: 0,
    };
    let (tables, backstage) = Tables::new(settings);
    let settings = KvConfig {
        frontend: FrontendKind::Queue,
        endpoints: vec!["tcp://127.0.0.1:*".to_owned()],
        publish: None,
        publish_hwm: 1,
        feed: None,
        key_max: 64,
        value_max: 1_024,
        client_bytes_max: 1 << 20,
        held_bytes_max: 1 << 30,
        reply_bytes_max: 1 << 30,
        cores: WorkerCores { queue: vec![None; workers], native: Vec::new() },
        admissions: TablesAdmissions::default(),
    };
    let kv = bind(&settings, Clock::start(), &tables, backstage.changes, OtherServices::default()).unwrap();
    (kv, tables)
}

/// Changes that a writer may have on the way.
const CHANGES: usize = 64;

#[test]
fn answers_that_are_late_at_the_end_are_let_go() {
    let (kv, tables) = parts(1);
    let QueueFrontend { queue, mut workers } = kv.queue.unwrap();
    let worker = workers.pop().unwrap();
    drop(kv.reporter);
    std::thread::scope(|scope| {
        let (sender, ended) = std::sync::mpsc::channel();
        let queue = scope.spawn(move || {
            queue.run();
            // The server may have stopped listening.
            let _late = sender.send(());
        });
        let worker = scope.spawn(move || worker.run());
        let peers = zmq::Context::new();
        let peer = Peer::connect(&peers, &kv.endpoints[0]);
        assert_eq!(peer.call(&[&[0], b"t"]), [[1]]);
        for number in 0..10 * CHANGES {
            peer.ask(&[&[2], b"t", &number.to_be_bytes(), b"value"]);
        }
        // Without a publisher the worker waits soon, with unsent answers.
        assert_eq!(peer.answer(), [[1]]);
        kv.stoppers.iter().for_each(spindle::net::sockets::Stopper::stop);
        // The queue gives the answers up after a time. It may then end, or wait for its worker.
        let _ended = ended.recv_timeout(2 * LINGER);
        // Now the worker has room for its changes, if it still runs: its late answers find a pipe, or are not sent.
        tables.close();
        let publisher = scope.spawn(|| kv.publisher.run());
        for thread in [worker, queue, publisher] {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_queue_whose_workers_never_ran_ends() {
    let (kv, _tables) = parts(3);
    let (QueueFrontend { queue, workers }, reporter) = (kv.queue.unwrap(), kv.reporter);
    kv.stoppers.iter().for_each(spindle::net::sockets::Stopper::stop);
    std::thread::scope(|scope| {
        let queue = scope.spawn(move || queue.run());
        drop((workers, reporter));
        queue.join().unwrap();
    });
}
