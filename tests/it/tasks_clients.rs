//! Clients of the tasks that do not behave: they do not read, vanish, or come back under the same name.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::clock::ClockReading;
use spindle::limits::JOB_ROOM_BYTES;
use spindle::net::service::{Service, ServiceParts};
use spindle::services::jobs::serve as jobs;
use spindle::services::jobs::wire::{AckWording, JobId};
use spindle::services::tasks::calls::NamedQueues;
use spindle::services::tasks::handle::Access;
use spindle::services::tasks::serve as spiderq;
use spindle::services::tasks::wire::{AddMode, LendMode, Reply, Request};
use spindle::store::{KeyedStore, StoreConfig};
use spindle::tasks::{self, Delivery, LeaseOrder, Policy, ReplySink, RoomWait, Submission, Ticket, open};
use spindle::zmtp::SocketType;
use zmq::{Context, DEALER, Socket};

use crate::harness::{Server, spindle};
use crate::zmtp::Plain;

const LONG: u64 = 600_000;

fn client(server: &Server) -> TasksClient {
    TasksClient::connect(server.tasks()).unwrap()
}

fn dealer(context: &Context, server: &Server, name: Option<&[u8]>) -> Socket {
    let socket = context.socket(DEALER).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvtimeo(10_000).unwrap();
    if let Some(name) = name {
        socket.set_identity(name).unwrap();
    }
    socket.connect(server.tasks()).unwrap();
    socket
}

/// A client that has hardly any room, and never reads.
fn stalled(context: &Context, server: &Server) -> Socket {
    let stalled = context.socket(DEALER).unwrap();
    stalled.set_linger(0).unwrap();
    stalled.set_rcvhwm(1).unwrap();
    stalled.set_rcvbuf(4_096).unwrap();
    stalled.connect(server.tasks()).unwrap();
    stalled
}

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

fn send(socket: &Socket, request: &Request<'_>) {
    socket.send(encoded(request), 0).unwrap();
}

fn receives_pong(socket: &Socket) {
    send(socket, &Request::Ping);
    assert_eq!(Reply::decode(&socket.recv_bytes(0).unwrap()), Ok(Reply::Pong));
}

/// The tasks part of STATS.
fn metrics(server: &Server) -> serde_json::Value {
    let output = spindle(&["stats", "--json", "--connect", server.kv()]);
    let mut stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stats["tasks"].take()
}

fn waiting(server: &Server) -> u64 {
    metrics(server)["queues"][0]["waiting"].as_u64().unwrap()
}

#[test]
fn what_was_lent_to_a_client_that_never_reads_goes_back_when_it_is_gone() {
    const TASKS: u32 = 200;
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &["--sync", "never"]);
    let mut other = client(&server);
    for number in 0..TASKS {
        assert!(other.add(&number.to_be_bytes(), &[7; 100_000], AddMode::Tail).unwrap());
    }
    let stream = TcpStream::connect(server.tasks().strip_prefix("tcp://").unwrap()).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4_096).unwrap();
    let mut stalled = Plain::meet(stream, SocketType::Dealer).unwrap().0;
    let lend = encoded(&Request::Lend { timeout_ms: u64::MAX, mode: LendMode::Poll });
    // At once: the frontend takes no more from a client whose answers wait.
    stalled.send_all(&vec![&[&lend[..]][..]; TASKS as usize]);
    while other.count().unwrap() > 0 {}
    drop(stalled);
    // Tasks whose replies the system had taken for it are lent to no client until their leases expire. The rest of 20
    // MB is not.
    while other.count().unwrap() < TASKS / 3 {}
    server.stop();
}

#[test]
fn of_a_client_that_does_not_read_no_more_is_taken_and_nothing_is_lost() {
    const LOOKS: u32 = 2_000;
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut other = client(&server);
    other.add(b"k", &vec![7; 100_000], AddMode::Tail).unwrap();
    let context = Context::new();
    let slow = stalled(&context, &server);
    slow.set_rcvtimeo(10_000).unwrap();
    (0..LOOKS).for_each(|_| send(&slow, &Request::Lookup { key: b"k" }));
    // Its replies are 200 MB, and hardly any have room on the way. Other clients are served as ever.
    (0..200).for_each(|_| other.ping().unwrap());
    for number in 0..LOOKS {
        let frame = slow.recv_bytes(0).unwrap();
        assert!(matches!(Reply::decode(&frame), Ok(Reply::ValueFound(value)) if value.len() == 100_000), "{number}");
    }
    server.stop();
}

#[test]
fn large_replies_that_nobody_reads_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut other = client(&server);
    other.add(b"large", &vec![7; 4 << 20], AddMode::Tail).unwrap();
    let context = Context::new();
    let stalled = stalled(&context, &server);
    (0..300).for_each(|_| send(&stalled, &Request::Lookup { key: b"large" }));
    // The last request is counted when everything before it has been answered, or the client is cut off.
    for _ in 0..50 {
        other.ping().unwrap();
        assert_eq!(other.lookup(b"large").unwrap().map(|value| value.len()), Some(4 << 20));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 700 << 10, "1,200 MiB were asked for, and {} MiB taken", kib >> 10);
    drop(stalled);
    server.stop();
}

#[test]
fn a_lease_for_a_connection_that_was_taken_over_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let context = Context::new();
    let first = dealer(&context, &server, Some(b"me"));
    send(&first, &Request::Lend { timeout_ms: LONG, mode: LendMode::Block });
    receives_pong(&first);
    drop(first);
    // libzmq closes the connection a moment later. Only then is it gone.
    while waiting(&server) > 0 {}
    let second = dealer(&context, &server, Some(b"me"));
    receives_pong(&second);
    let mut other = client(&server);
    other.add(b"k", b"v", AddMode::Tail).unwrap();
    let lent = other.lend(LONG, LendMode::Block).unwrap().unwrap();
    assert_eq!(lent.key, b"k");
    receives_pong(&second);
    server.stop();
}

/// A client with 100,000 blocked Lends took the place of every other client: their Lends were answered QueueEmpty.
#[test]
fn one_client_does_not_take_all_places_of_waiting_lends() {
    const LENDS: usize = 60_000;
    const SHARE: usize = 50_000;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let context = Context::new();
    let greedy = dealer(&context, &server, None);
    (0..LENDS).for_each(|_| send(&greedy, &Request::Lend { timeout_ms: LONG, mode: LendMode::Block }));
    for _ in SHARE..LENDS {
        assert!(matches!(Reply::decode(&greedy.recv_bytes(0).unwrap()), Ok(Reply::QueueEmpty)));
    }
    receives_pong(&greedy);
    assert_eq!(waiting(&server), SHARE as u64);
    let modest = dealer(&context, &server, None);
    send(&modest, &Request::Lend { timeout_ms: LONG, mode: LendMode::Block });
    receives_pong(&modest);
    drop(greedy);
    while waiting(&server) > 1 {}
    client(&server).add(b"k", b"v", AddMode::Tail).unwrap();
    assert!(matches!(Reply::decode(&modest.recv_bytes(0).unwrap()), Ok(Reply::Lent { .. })));
    server.stop();
}

#[test]
fn who_waits_and_goes_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(&["--tasks", "tcp://127.0.0.1:*", "--data", data]);
    let context = Context::new();
    let gone: Vec<Socket> = (0..20).map(|_| dealer(&context, &server, None)).collect();
    for socket in &gone {
        send(socket, &Request::Lend { timeout_ms: LONG, mode: LendMode::Block });
        receives_pong(socket);
    }
    assert_eq!(waiting(&server), 20);
    drop(gone);
    while waiting(&server) > 0 {}
    server.stop();
}

#[test]
fn two_who_terminate_end_the_server_once_and_well() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let stream = TcpStream::connect(server.tasks().strip_prefix("tcp://").unwrap()).unwrap();
    let (mut plain, _) = Plain::meet(stream, SocketType::Dealer).unwrap();
    // In one segment: the second has arrived when the first is answered.
    plain.send_all(&[&[&[0x08]], &[&[0x08]]]);
    for _ in 0..2 {
        assert_eq!(Reply::decode(&plain.receive()[0]), Ok(Reply::Terminated));
    }
    assert!(server.wait().0.success());
}

#[test]
fn an_envelope_beyond_all_use_closes_its_connection_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_tasks(folder.path(), &[]);
    let mut other = client(&server);
    let ping: &[u8] = &[0x0B];
    let connect = || {
        let stream = TcpStream::connect(server.tasks().strip_prefix("tcp://").unwrap()).unwrap();
        Plain::meet(stream, SocketType::Dealer).unwrap().0
    };
    let mut longest = vec![&b"x"[..]; 64];
    longest.push(ping);
    let mut plain = connect();
    plain.send_all(&[&longest]);
    assert_eq!(plain.receive().len(), 65, "the longest envelope that there is");
    let mut many = vec![&b"x"[..]; 65];
    many.push(ping);
    for too_long in [&many[..], &[&vec![1; 100_000], ping]] {
        let mut plain = connect();
        plain.send_all(&[&[ping], too_long, &[ping]]);
        // Earlier requests are answered or not, later ones are not, and then the connection ends.
        assert!(plain.count_until_closed() <= 1);
        other.ping().unwrap();
    }
    server.stop();
}

/// A reply sink that passes no answer on.
struct Silent;

impl ReplySink for Silent {
    fn deliver(&self, _: Delivery) {}

    fn notify_room(&self) {}
}

fn settings() -> spiderq::SpiderqConfig {
    spiderq::SpiderqConfig {
        endpoint: "tcp://127.0.0.1:*".to_owned(),
        version: spiderq::Version::V1_4,
        terminate: false,
        access: Access::Full,
    }
}

#[test]
fn frontends_that_find_the_committer_full_are_woken_when_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig { segment_bytes: 1 << 20, max_disk: None, repair: false, copied: false };
    let store = KeyedStore::open(folder.path(), config).unwrap();
    let (tasks, mut committer) = open(Box::new(store), ClockReading::from_millis(0)).unwrap();
    let metrics = Arc::clone(tasks.metrics());
    let queue = committer.queue(b"queue", LeaseOrder::Priority, Policy::Never).unwrap();
    let family = committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Never).unwrap();
    let settings = settings();
    let address = "127.0.0.1:0".parse().unwrap();
    let jobs_settings = jobs::JobsConfig { address, lease: LONG, words: AckWording::OkNo };
    let parts = ServiceParts { held_bytes_max: 1 << 30, ..ServiceParts::default() };
    let listener = spiderq::SpiderqListener::bind(&settings, parts.clone()).unwrap();
    let jobs_listener = jobs::JobsListener::bind(&jobs_settings, parts).unwrap();
    let Service { front, stopper, endpoint, .. } =
        listener.serve(&mut committer, tasks.clone(), NamedQueues::new(queue.clone(), None), Box::new(|| {}));
    let Service { front: jobs_front, stopper: jobs_stopper, endpoint: address, .. } =
        jobs_listener.serve(JOB_ROOM_BYTES, &mut committer, tasks.clone(), family);
    let sink = committer.sink(Box::new(Silent));
    // The committer does not run yet, and its inbox is as full as it may be.
    let mut wait = RoomWait::default();
    for number in 0.. {
        if !tasks.has_room(sink, &mut wait) {
            break;
        }
        let (queue, ticket) = (queue.clone(), Ticket { sink, number });
        tasks.submit(vec![Submission { queue, ticket, request: tasks::Request::Nothing }]);
    }
    let (waited, added, id) = thread::scope(|scope| {
        scope.spawn(move || front.run().unwrap());
        scope.spawn(move || jobs_front.run().unwrap());
        let adding = scope.spawn(move || TasksClient::connect(&endpoint).unwrap().add(b"key", b"value", AddMode::Tail));
        let id = scope.spawn(move || JobsClient::new(&address).add(b"queue", b"data"));
        // Of the two frontends and of the sink here.
        while metrics.waits() < 3 {
            thread::yield_now();
        }
        let waited = !adding.is_finished() && !id.is_finished();
        drop(tasks);
        scope.spawn(move || committer.run(|| ClockReading::from_millis(0)).unwrap());
        let answers = (waited, adding.join().unwrap(), id.join().unwrap());
        stopper.stop();
        jobs_stopper.stop();
        answers
    });
    assert!(waited && added.unwrap());
    assert_eq!(id.unwrap(), JobId(1));
    assert_eq!(metrics.lost_wakeups(), 0);
}
