//! The load: DEALER sockets without a delimiter, each of which always has so many requests outstanding.
//!
//! It is the same for every side: a reply that is no OK ends the bench, and nothing else of it is looked at. The load is
//! closed: it says how many requests a side completes, and nothing about latency under a given rate.

use std::time::{Duration, Instant};

use super::side::usage_of;
use super::{KEY_BYTES, VALUE_BYTES};

/// Elements in the table.
const KEYS: usize = 100_000;
const TABLE: &[u8] = b"bench";
const CREATE_TABLE: &[u8] = b"\x00";
const SET: &[u8] = b"\x02";
const GET: &[u8] = b"\x04";
const OK: &[u8] = b"\x01";
const VALUE: &[u8] = &[7; VALUE_BYTES];
/// Requests that are outstanding while the table is filled.
const FILL_DEPTH: usize = 256;
/// Run before anything is counted.
const WARM_UP: Duration = Duration::from_millis(200);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Set,
}

/// One setting of the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) verb: Verb,
    pub(crate) connections: usize,
    /// Requests that each connection has outstanding.
    pub(crate) depth: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Requests answered per second.
    pub(crate) rate: f64,
    /// Answers in all, with those of the warm-up.
    pub(crate) answers: u64,
    /// Nanoseconds of the processor that the load took itself, its I/O thread included.
    pub(crate) own_nanos: u64,
}

struct Load {
    sockets: Vec<zmq::Socket>,
    keys: Vec<[u8; KEY_BYTES]>,
    verb: Verb,
    random: u64,
    answers: u64,
    frame: zmq::Message,
}

/// Loads what listens at `endpoint` for the warm-up and `time` after it.
pub(crate) fn run(endpoint: &str, shape: Shape, time: Duration) -> Count {
    let mut load = Load::new(endpoint, shape);
    for _ in 0..shape.depth {
        (0..shape.connections).for_each(|connection| load.ask(connection));
    }
    load.go_on(WARM_UP);
    let (warm, start) = (load.answers, Instant::now());
    load.go_on(time);
    let rate = (load.answers - warm) as f64 / start.elapsed().as_secs_f64();
    load.drain(shape.connections * shape.depth);
    // As long as the sockets live, their I/O thread does.
    Count { rate, answers: load.answers, own_nanos: usage_of("self").total() }
}

/// Creates the table and stores all elements.
pub(crate) fn fill(endpoint: &str) {
    let mut load = Load::new(endpoint, Shape { verb: Verb::Set, connections: 1, depth: FILL_DEPTH });
    let socket = &load.sockets[0];
    socket.send(CREATE_TABLE, zmq::SNDMORE).unwrap();
    socket.send(TABLE, 0).unwrap();
    for key in 0..KEYS {
        load.store(0, key);
        if key >= FILL_DEPTH {
            load.drain(1);
        }
    }
    load.drain(FILL_DEPTH + 1);
}

impl Load {
    fn new(endpoint: &str, shape: Shape) -> Self {
        let context = zmq::Context::new();
        let connect = |_| {
            let socket = context.socket(zmq::DEALER).unwrap();
            socket.set_linger(0).unwrap();
            socket.connect(endpoint).unwrap();
            socket
        };
        Self {
            sockets: (0..shape.connections).map(connect).collect(),
            keys: (0..KEYS).map(|key| format!("{key:016}").into_bytes().try_into().unwrap()).collect(),
            verb: shape.verb,
            random: 0x2545_f491_4f6c_dd1d,
            answers: 0,
            frame: zmq::Message::new(),
        }
    }

    /// Keeps the load up for so long.
    fn go_on(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let before = self.answers;
            for connection in 0..self.sockets.len() {
                while self.take(connection) {
                    self.ask(connection);
                }
            }
            if self.answers == before {
                self.wait();
            }
        }
    }

    /// Takes so many answers and asks nothing.
    fn drain(&mut self, answers: usize) {
        let end = self.answers + answers as u64;
        while self.answers < end {
            if !(0..self.sockets.len()).any(|connection| self.take(connection)) {
                self.wait();
            }
        }
    }

    fn ask(&mut self, connection: usize) {
        // A step of xorshift64 (Marsaglia, "Xorshift RNGs", 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let key = self.random as usize % KEYS;
        match self.verb {
            Verb::Get => self.read(connection, key),
            Verb::Set => self.store(connection, key),
        }
    }

    fn read(&self, connection: usize, key: usize) {
        let socket = &self.sockets[connection];
        socket.send(GET, zmq::SNDMORE).unwrap();
        socket.send(TABLE, zmq::SNDMORE).unwrap();
        socket.send(&self.keys[key][..], 0).unwrap();
    }

    fn store(&self, connection: usize, key: usize) {
        let socket = &self.sockets[connection];
        socket.send(SET, zmq::SNDMORE).unwrap();
        socket.send(TABLE, zmq::SNDMORE).unwrap();
        socket.send(&self.keys[key][..], zmq::SNDMORE).unwrap();
        socket.send(VALUE, 0).unwrap();
    }

    /// Takes an answer if one is there.
    fn take(&mut self, connection: usize) -> bool {
        let socket = &self.sockets[connection];
        match socket.recv(&mut self.frame, zmq::DONTWAIT) {
            Ok(()) => {}
            Err(zmq::Error::EAGAIN) => return false,
            Err(error) => panic!("receiving: {error}"),
        }
        assert_eq!(&*self.frame, OK, "a side refused a request");
        while self.frame.get_more() {
            socket.recv(&mut self.frame, 0).unwrap();
        }
        self.answers += 1;
        true
    }

    fn wait(&self) {
        let mut items: Vec<_> = self.sockets.iter().map(|socket| socket.as_poll_item(zmq::POLLIN)).collect();
        zmq::poll(&mut items, 10).unwrap();
    }
}
