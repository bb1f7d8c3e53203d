//! The proxy between real sockets, with a worker that answers when the test lets it.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::*;
use crate::protocols::sockets::{SocketContext, WakeSignal};

/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(30);
const VALUE_MAX: usize = 1 << 20;
const CLIENT_BYTES: u64 = 16 << 20;
const HELD_BYTES: u64 = 64 << 20;

/// A proxy in a thread, with one worker, which is this test.
struct ProxyRig {
    clients: zmq::Context,
    endpoint: String,
    worker: Socket,
    reporter: Socket,
    stopper: Stopper,
    bell: WakeSignal,
    metrics: Arc<ProxyMetrics>,
    thread: JoinHandle<()>,
    frame: Frame,
}

impl ProxyRig {
    fn start() -> Self {
        let context = SocketContext::new(1);
        let mut router = context.router(1_000).unwrap();
        let endpoint = router.bind("tcp://127.0.0.1:*").unwrap();
        let pipe = |endpoint| {
            let mut backend = context.dealer().unwrap();
            backend.bind(endpoint).unwrap();
            let socket = context.dealer().unwrap();
            socket.connect_within(endpoint);
            (backend, socket)
        };
        let [(backend, worker), (other, reporter)] = ["inproc://worker", "inproc://reporter"].map(pipe);
        let (bell, metrics) = (WakeSignal::new().unwrap(), Arc::<ProxyMetrics>::default());
        let stopper = Stopper::new(&bell);
        let parts = ProxyParts {
            router,
            backends: vec![backend, other],
            stopper: stopper.clone(),
            bell: bell.clone(),
            workers_stop: Arc::default(),
            workers: ThreadGroup::new(&bell),
            clock: Clock::start(),
            metrics: Arc::clone(&metrics),
            names: Arc::default(),
            has_users: false,
        };
        let queue = Proxy::new(parts, VALUE_MAX, CLIENT_BYTES, HELD_BYTES);
        let thread = thread::spawn(move || queue.run());
        let clients = zmq::Context::new();
        Self { clients, endpoint, worker, reporter, stopper, bell, metrics, thread, frame: Frame::new() }
    }

    fn client(&self) -> zmq::Socket {
        let socket = self.clients.socket(zmq::DEALER).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
        socket.connect(&self.endpoint).unwrap();
        socket
    }

    /// Waits until `is_so` holds.
    fn until(&self, what: &str, is_so: impl Fn(&ProxyMetrics) -> bool) {
        let clock = Clock::start();
        while !is_so(&self.metrics) {
            assert!(Duration::from_nanos(clock.now().nanos()) < PATIENCE, "{what}");
            thread::yield_now();
        }
    }

    /// The bytes of the next message that came to the worker.
    fn next(&mut self) -> Vec<u8> {
        next(&self.worker, &mut self.frame)
    }

    fn answer(&self) {
        self.worker.send_bytes(&[1], false);
    }

    /// Answers all requests that come to the worker, until `is_so` holds.
    fn serve_until(&mut self, mut is_so: impl FnMut(&ProxyMetrics) -> bool) {
        while !is_so(&self.metrics) {
            wait(&[&self.worker], &self.bell, Some(Duration::from_millis(1)));
            while self.worker.receive(&mut self.frame) {
                while self.frame.more() {
                    self.worker.receive_rest(&mut self.frame);
                }
                self.answer();
            }
        }
    }

    fn end(self) {
        self.stopper.stop();
        self.thread.join().unwrap();
    }
}

/// The bytes of the next message that comes to this socket.
fn next(socket: &Socket, frame: &mut Frame) -> Vec<u8> {
    let (clock, bell) = (Clock::start(), WakeSignal::new().unwrap());
    while !socket.receive(frame) {
        assert!(Duration::from_nanos(clock.now().nanos()) < PATIENCE, "nothing comes");
        wait(&[socket], &bell, Some(Duration::from_millis(1)));
    }
    let mut bytes = frame.to_vec();
    while frame.more() {
        socket.receive_rest(frame);
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// Regression: the client's worker carried out all waiting requests for reports before it served others again.
#[test]
fn reports_are_made_one_at_a_time_beside_all_else_and_in_their_turn() {
    const ASKED: usize = 100;
    let mut rig = ProxyRig::start();
    let [one, other] = [rig.client(), rig.client()];
    for _ in 0..ASKED {
        one.send_multipart([&[12][..]], 0).unwrap();
        one.send_multipart([&[5][..]], 0).unwrap();
    }
    assert!(next(&rig.reporter, &mut rig.frame).ends_with(b"\x0c"));
    for _ in 0..50 {
        // The reporter has not answered, and the worker is there for others.
        other.send_multipart([b"cookie", &b""[..], b"\x05"], 0).unwrap();
        assert!(rig.next().ends_with(b"\x05"));
        rig.worker.send_bytes(b"cookie", true);
        rig.worker.send_bytes(b"", true);
        rig.answer();
        assert_eq!(other.recv_multipart(0).unwrap(), [&b"cookie"[..], b"", b"\x01"]);
    }
    rig.until("all is taken", |metrics| metrics.requests.get() == 2 * ASKED as u64 + 50);
    for number in 0..ASKED {
        assert!(!rig.reporter.receive(&mut rig.frame), "no further one before it is answered");
        // A report has two frames. The first may be any byte with which a reply begins.
        rig.reporter.send_bytes(&[1], true);
        rig.reporter.send_bytes(&number.to_be_bytes(), false);
        assert!(rig.next().ends_with(b"\x05"));
        rig.answer();
        if number + 1 < ASKED {
            assert!(next(&rig.reporter, &mut rig.frame).ends_with(b"\x0c"));
        }
    }
    for number in 0..ASKED {
        assert_eq!(one.recv_multipart(0).unwrap(), [vec![1], number.to_be_bytes().to_vec()]);
        assert_eq!(one.recv_multipart(0).unwrap(), [[1]]);
    }
    rig.end();
}

/// Regression: while a client that reads had half of its bytes outstanding, the proxy took no request from any client
/// until a worker had answered some of them. One client that loaded much made all others wait for its worker.
#[test]
fn a_client_that_asks_faster_than_it_is_answered_makes_no_other_wait() {
    const LARGE: u32 = 60;
    let mut rig = ProxyRig::start();
    let value = vec![7; VALUE_MAX];
    let loader = rig.client();
    for number in 0..LARGE {
        loader.send_multipart([&[2][..], b"t", &number.to_be_bytes(), &value], 0).unwrap();
    }
    let pressing = CLIENT_BYTES / 2;
    rig.until("the loader presses", |metrics| metrics.held_bytes.get() > pressing);
    // No request has been answered yet, and none is before all of these have come.
    assert!(rig.next().len() > VALUE_MAX);
    let others: Vec<zmq::Socket> = (0..20).map(|_| rig.client()).collect();
    for (number, other) in others.iter().enumerate() {
        other.send_multipart([&[5][..]], 0).unwrap();
        assert!(rig.next().len() < 40, "a small request comes, number {number}");
    }
    assert!(rig.metrics.held_bytes.get() < pressing + 2 * VALUE_MAX as u64, "and nothing more of the loader is taken");
    (0..=others.len()).for_each(|_| rig.answer());
    for _ in 1..LARGE {
        assert!(rig.next().len() > VALUE_MAX);
        rig.answer();
    }
    for other in &others {
        assert_eq!(other.recv_multipart(0).unwrap(), [[1]]);
    }
    for number in 0..LARGE {
        assert_eq!(loader.recv_multipart(0).unwrap(), [[1]], "{number}");
    }
    rig.until("all is settled", |metrics| metrics.held_bytes.get() == 0);
    assert!(rig.metrics.held_back.get() > 0, "it was held back");
    assert_eq!(rig.metrics.cut_off.get(), 0);
    rig.end();
}

/// The proxy releases a client that is held back and goes away, or comes again under the same id.
#[test]
fn a_client_that_is_held_back_can_leave_and_come_again() {
    let mut rig = ProxyRig::start();
    let value = vec![7; VALUE_MAX];
    for _ in 0..3 {
        let loader = rig.clients.socket(zmq::DEALER).unwrap();
        loader.set_identity(b"loader").unwrap();
        loader.set_linger(0).unwrap();
        loader.connect(&rig.endpoint).unwrap();
        let held = rig.metrics.held_back.get();
        for _ in 0..30 {
            loader.send_multipart([&[2][..], b"t", b"k", &value], 0).unwrap();
        }
        rig.until("the loader is held back", |metrics| metrics.held_back.get() > held);
        drop(loader);
        // Every request that was taken from the client is executed.
        rig.serve_until(|metrics| metrics.held_bytes.get() == 0);
    }
    let other = rig.client();
    other.send_multipart([&[5][..]], 0).unwrap();
    rig.serve_until(|_| other.poll(zmq::POLLIN, 0).unwrap() > 0);
    assert_eq!(other.recv_multipart(0).unwrap(), [[1]]);
    rig.end();
}

/// Regression: no total counted the bytes in the pipes of libzmq, and no client was ended for them. Sixty clients that
/// requested large values and read no reply made the server hold 1.3 GB.
#[test]
fn clients_that_read_nothing_are_ended_the_largest_first_when_all_hold_too_much() {
    const LARGE: usize = 10 << 20;
    /// libzmq reads two replies for a client that reads none, and then stops reading.
    const FIRST: usize = 3;
    let mut rig = ProxyRig::start();
    let ask = |rig: &mut ProxyRig, socket: &zmq::Socket, bytes: usize| {
        let requests = rig.metrics.requests.get();
        socket.send_multipart([&[4][..]], 0).unwrap();
        assert!(rig.next().ends_with(b"\x04"));
        rig.worker.send_bytes(&vec![7; bytes], false);
        rig.until("it is taken", |metrics| metrics.requests.get() > requests);
    };
    let silent = |rig: &mut ProxyRig| {
        let socket = rig.clients.socket(zmq::DEALER).unwrap();
        let options =
            [socket.set_linger(0), socket.set_rcvhwm(1), socket.set_rcvbuf(4_096), socket.set_reconnect_ivl(-1)];
        options.into_iter().for_each(Result::unwrap);
        let monitor = format!("inproc://ends-{}", rig.metrics.requests.get());
        socket.monitor(&monitor, i32::from(zmq::SocketEvent::DISCONNECTED.to_raw())).unwrap();
        socket.connect(&rig.endpoint).unwrap();
        let ends = rig.clients.socket(zmq::PAIR).unwrap();
        ends.connect(&monitor).unwrap();
        (0..FIRST).for_each(|_| ask(rig, &socket, 1));
        (socket, ends)
    };
    let small = silent(&mut rig);
    ask(&mut rig, &small.0, 1 << 20);
    let large: Vec<_> = (0..12)
        .map(|_| {
            let one = silent(&mut rig);
            ask(&mut rig, &one.0, LARGE);
            one
        })
        .collect();
    rig.until("the largest are ended", |metrics| metrics.unread_bytes.get() <= HELD_BYTES && metrics.cut_off.get() > 0);
    // A client whose libzmq has stopped reading learns of the end when it reads on. The others get their replies whole.
    let clock = Clock::start();
    let is_ended = |(socket, ends): &(zmq::Socket, zmq::Socket)| loop {
        assert!(Duration::from_nanos(clock.now().nanos()) < PATIENCE, "a connection ends, or brings its replies");
        if ends.poll(zmq::POLLIN, 0).unwrap() > 0 {
            return true;
        }
        if socket.poll(zmq::POLLIN, 1).unwrap() > 0 && socket.recv_bytes(0).unwrap().len() == LARGE {
            return false;
        }
    };
    // The last reply may end one more, so they are counted when all have come to their end or their reply.
    let ended = large.iter().filter(|one| is_ended(one)).count() as u64;
    rig.until("as many are ended as are counted", |metrics| metrics.cut_off.get() == ended);
    // Others are served, and the small one, which holds least, reads its own replies.
    let other = rig.client();
    other.send_multipart([&[5][..]], 0).unwrap();
    rig.serve_until(|_| other.poll(zmq::POLLIN, 0).unwrap() > 0);
    small.0.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
    (0..FIRST).for_each(|_| assert_eq!(small.0.recv_multipart(0).unwrap(), [[7]]));
    assert_eq!(small.0.recv_multipart(0).unwrap(), [vec![7; 1 << 20]]);
    rig.end();
}

/// Regression: a proxy without requests asked no client for its progress. Replies that had been read remained no memory
/// of the tables until the next request.
#[test]
fn a_proxy_at_rest_finds_replies_unread_until_the_client_has_read_them() {
    const LARGE: usize = 4 << 20;
    const REPLIES: usize = 4;
    /// Fewer are not asked about soon.
    const MANY: u64 = 1 << 20;
    let mut rig = ProxyRig::start();
    let reader = rig.clients.socket(zmq::DEALER).unwrap();
    [reader.set_linger(0), reader.set_rcvhwm(1), reader.set_rcvbuf(4_096)].into_iter().for_each(Result::unwrap);
    reader.connect(&rig.endpoint).unwrap();
    for _ in 0..REPLIES {
        reader.send_multipart([&[4][..]], 0).unwrap();
        assert!(rig.next().ends_with(b"\x04"));
        rig.worker.send_bytes(&vec![7; LARGE], false);
    }
    // libzmq takes two of them for a client that reads none.
    rig.until("they are found", |metrics| metrics.found_unread_bytes.get() >= MANY);
    for _ in 0..REPLIES {
        assert_eq!(reader.recv_multipart(0).unwrap(), [vec![7; LARGE]]);
    }
    rig.until("they are read", |metrics| metrics.found_unread_bytes.get() < MANY);
    rig.end();
}

/// A client that reads may have a reply that is larger than the bound of all clients together.
#[test]
fn a_client_that_reads_a_reply_larger_than_the_bound_is_not_ended() {
    let mut rig = ProxyRig::start();
    let reader = rig.client();
    reader.send_multipart([&[4][..]], 0).unwrap();
    assert!(rig.next().ends_with(b"\x04"));
    let bytes = usize::try_from(2 * HELD_BYTES).unwrap();
    rig.worker.send_bytes(&vec![7; bytes], false);
    let other = rig.client();
    for _ in 0..20 {
        other.send_multipart([&[5][..]], 0).unwrap();
        rig.serve_until(|_| other.poll(zmq::POLLIN, 0).unwrap() > 0);
        assert_eq!(other.recv_multipart(0).unwrap(), [[1]]);
    }
    assert_eq!(reader.recv_multipart(0).unwrap(), [vec![7; bytes]]);
    assert_eq!(rig.metrics.cut_off.get(), 0);
    rig.end();
}

/// Regression: the connection before kept the replies that it did not read, and no bound counted them.
#[test]
fn a_connection_whose_id_is_taken_over_ends_with_the_replies_that_it_did_not_read() {
    let mut rig = ProxyRig::start();
    let connect = |rig: &ProxyRig, number: u8| {
        let socket = rig.clients.socket(zmq::DEALER).unwrap();
        let options = [
            socket.set_identity(b"worker-9"),
            socket.set_linger(0),
            socket.set_rcvhwm(1),
            socket.set_rcvbuf(4_096),
            socket.set_reconnect_ivl(-1),
        ];
        options.into_iter().for_each(Result::unwrap);
        let monitor = format!("inproc://takeover-{number}");
        socket.monitor(&monitor, i32::from(zmq::SocketEvent::DISCONNECTED.to_raw())).unwrap();
        socket.connect(&rig.endpoint).unwrap();
        let ends = rig.clients.socket(zmq::PAIR).unwrap();
        ends.connect(&monitor).unwrap();
        ends.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
        (socket, ends)
    };
    let mut before = connect(&rig, 0);
    for number in 1..5 {
        before.0.send_multipart([&[4][..]], 0).unwrap();
        assert!(rig.next().ends_with(b"\x04"));
        rig.worker.send_bytes(&vec![7; 12 << 20], false);
        rig.until("it is sent", |metrics| metrics.unread_bytes.get() > 0);
        let next = connect(&rig, number);
        next.0.send_multipart([&[5][..]], 0).unwrap();
        rig.serve_until(|_| next.0.poll(zmq::POLLIN, 0).unwrap() > 0);
        assert_eq!(next.0.recv_multipart(0).unwrap(), [[1]]);
        assert!(before.1.recv_multipart(0).is_ok(), "the connection before is closed");
        before = next;
    }
    rig.end();
}
