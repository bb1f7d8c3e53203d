//! The messages of well-behaved clients at each endpoint. Attacks are made from them.

use std::net::SocketAddr;

use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus, Request};

use super::Face;
use super::zmtp::{command, greeting, hello, message, ready};
use crate::resp_client::command as redis_command;
use crate::seeded_rng::SeededRng;

/// The table that attackers share. Control clients use others.
pub(super) const TABLE: &[u8] = b"attacked";
/// An element with a long value, the key of a task with one, and the queue of a long job.
pub(super) const LARGE: &[u8] = b"large";
/// Bytes of those values.
pub(super) const LARGE_BYTES: usize = 100_000;
/// How often a client that never reads asks in one go.
const THIRST: usize = 16;
/// Keys of a greedy request: their values fit into one reply.
const KEYS_OF_GREED: usize = 32;

/// An endpoint, and its protocol.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) face: Face,
    pub(super) address: SocketAddr,
}

impl Target {
    /// Greeting and READY, if there are such.
    pub(super) fn hello(&self, rng: &mut SeededRng) -> Vec<u8> {
        match self.face {
            Face::Events | Face::Jobs | Face::Admin | Face::Resp => Vec::new(),
            Face::Publish => hello(rng.pick(&[&b"SUB"[..], b"XSUB"])),
            _ if rng.one_in(2) => hello(rng.pick(&[&b"REQ"[..], b"DEALER"])),
            _ => [greeting(), ready(b"DEALER", Some(&identity(rng)))].concat(),
        }
    }

    /// A message that a client sends after its hello.
    pub(super) fn request(&self, rng: &mut SeededRng) -> Vec<u8> {
        match self.face {
            Face::Queue | Face::Native => {
                let frames = kv_frames(rng);
                message(&[&[&b""[..]], &frames.iter().map(Vec::as_slice).collect::<Vec<_>>()[..]].concat())
            }
            Face::Tasks => message(&[b"", &task_bytes(rng)]),
            Face::Lockstep => conversation(&lockstep_arguments(rng)),
            Face::Publish => subscription(rng),
            Face::Events | Face::Admin => http_bytes(rng),
            Face::Jobs => job_bytes(rng),
            Face::Resp if rng.one_in(4) => resp_walk(rng),
            Face::Resp => resp_bytes(rng),
        }
    }

    /// A whole conversation of one request.
    pub(super) fn talk(&self, rng: &mut SeededRng) -> Vec<u8> {
        [self.hello(rng), self.request(rng)].concat()
    }

    /// A request with a long answer, and whether it can be repeated on the same connection.
    pub(super) fn thirst(&self) -> (Vec<u8>, bool) {
        match self.face {
            Face::Queue | Face::Native => (message(&[&[4], TABLE, LARGE]).repeat(THIRST), true),
            Face::Tasks => (message(&[&encoded(&Request::Lookup { key: LARGE })]).repeat(THIRST), true),
            Face::Lockstep => (conversation(&[b"4", TABLE, LARGE, b"6"].map(<[u8]>::to_vec)).repeat(THIRST), true),
            Face::Admin => (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(THIRST), true),
            Face::Events => (b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n".repeat(THIRST), true),
            Face::Publish => (command(b"SUBSCRIBE", b""), false),
            Face::Jobs => ([b"GET ", LARGE, b"\n"].concat(), false),
            Face::Resp => (redis_command(&[b"GET", LARGE]).repeat(THIRST), true),
        }
    }

    /// A request of a few bytes with the longest answer that there is.
    pub(super) fn greed(&self) -> Vec<u8> {
        match self.face {
            Face::Queue | Face::Native => message(&[&[&[10][..], TABLE], &[LARGE; KEYS_OF_GREED][..]].concat()),
            Face::Resp => redis_command(&[&[&b"MGET"[..]], &[LARGE; KEYS_OF_GREED][..]].concat()),
            _ => self.thirst().0,
        }
    }

    /// Frames and commands behind a handshake, of every kind.
    pub(super) fn frames(&self, rng: &mut SeededRng) -> Vec<u8> {
        let context = vec![b'c'; rng.pick(&[0, 1, 16, 17, 200])];
        match rng.index(12) {
            0 => command(b"PING", &[&[0, 10], &context[..]].concat()),
            1 => command(b"PING", &context[..context.len().min(1)]),
            2 => command(b"PONG", &context),
            3 => command(b"SUBSCRIBE", &context),
            4 => command(b"CANCEL", &context),
            5 => command(b"ERROR", b"\x03why"),
            6 => ready(b"DEALER", Some(b"again")),
            7 => command(b"UNKNOWN", &context),
            8 => command(b"", b""),
            9 => message(&vec![&b"many"[..]; rng.pick(&[64, 65, 3_000])]),
            10 => message(&[&vec![7; rng.pick(&[255, 256, 70_000, 1 << 20])]]),
            _ => self.request(rng),
        }
    }
}

/// Names that clients may give themselves. No client should use some of them.
pub(super) fn identity(rng: &mut SeededRng) -> Vec<u8> {
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    match rng.index(7) {
        0 => Vec::new(),
        1 => b"the same".to_vec(),
        2 => vec![0, a, b, c, d],
        3 => vec![0, 0, 0, 0, d],
        4 => vec![a; 255],
        5 => vec![0],
        _ => vec![a, b, c],
    }
}

/// A request to the tables: mostly of frames that a command has.
pub(super) fn kv_frames(rng: &mut SeededRng) -> Vec<Vec<u8>> {
    let table = || TABLE.to_vec();
    let key = vec![b'a' + u8::try_from(rng.index(20)).unwrap()];
    let value = vec![b'v'; rng.pick(&[0, 1, 33, 1_024])];
    let ttl = rng.pick(&[0_u64, 1, 1, 100]).to_be_bytes().to_vec();
    let version = rng.next().to_be_bytes().to_vec();
    match rng.index(24) {
        0 => vec![vec![0], format!("{}{}", "attacked", rng.index(30)).into_bytes()],
        1 => vec![vec![1], format!("{}{}", "attacked", rng.index(30)).into_bytes()],
        2 | 3 => vec![vec![2], table(), key, value],
        4 => vec![vec![2], table(), key, value, ttl],
        5 => vec![vec![3], table(), key],
        6 => vec![vec![4], table(), key],
        7 => vec![vec![6], table(), key],
        8 => vec![vec![7], table(), key, rng.pick(&[vec![0; 8].as_slice(), &version]).to_vec(), value, ttl],
        9 => vec![vec![8], table(), key, version],
        10 => vec![vec![9], table(), key, ttl],
        11 => [vec![vec![10], table()], vec![key; 1 + rng.index(40)]].concat(),
        12 => [vec![vec![11], table(), ttl], vec![[key, value]; 1 + rng.index(40)].concat()].concat(),
        13 => vec![vec![rng.pick(&[12, 13])]],
        14 => vec![vec![rng.next().to_be_bytes()[0]], table(), key, value],
        15 => {
            let cursor = vec![7; rng.pick(&[0, 0, 0, 1, 32, 33])];
            let count = rng.pick(&[0_u64, 1, 100, 10_000, 10_001]).to_be_bytes().to_vec();
            vec![vec![14], table(), cursor, count, vec![u8::try_from(rng.index(5)).unwrap()], key]
        }
        16 => vec![vec![15], table(), key, version, ttl],
        17 => vec![vec![16], table(), key, ttl],
        18 => [vec![vec![17], table()], vec![key; 1 + rng.index(40)]].concat(),
        19 => vec![vec![18], table()],
        20 => {
            let sequence = rng.pick(&[0_u64, 1, u64::MAX]).to_be_bytes().to_vec();
            vec![vec![19], table(), version.clone(), version, sequence]
        }
        21 => {
            let version = rng.pick(&[1_u64, 7, 1 << 50, u64::MAX]).to_be_bytes().to_vec();
            vec![vec![22], table(), key, value, version, ttl]
        }
        22 => vec![vec![20], table(), vec![rng.pick(&[0, 0, 3])]],
        _ => vec![vec![5]],
    }
}

/// The arguments of a command in lock-step, and mostly the question for its second part.
pub(super) fn lockstep_arguments(rng: &mut SeededRng) -> Vec<Vec<u8>> {
    let name = format!("attacked{}", rng.index(30)).into_bytes();
    let key = vec![b'a' + u8::try_from(rng.index(20)).unwrap()];
    let value = vec![b'v'; rng.pick(&[0, 1, 33, 1_024, 100_000])];
    let ttl = rng.pick(&[&b"a"[..], b"0", b"1", b"4294967296", b"soon"]).to_vec();
    let (table, code) = (TABLE.to_vec(), |code: &[u8]| code.to_vec());
    let mut arguments = match rng.index(7) {
        0 => vec![code(b"0"), name],
        1 => vec![code(b"1"), name],
        2 | 3 => vec![code(b"2"), table, key, value, ttl],
        4 => vec![code(b"3"), table, key],
        5 => vec![code(b"4"), table, key],
        _ => vec![code(b"7")],
    };
    if rng.index(4) > 0 {
        arguments.push(code(b"6"));
    }
    if rng.one_in(2) {
        arguments.iter_mut().for_each(|argument| argument.push(0));
    }
    arguments
}

/// The requests of a conversation in lock-step, all at once.
fn conversation(arguments: &[Vec<u8>]) -> Vec<u8> {
    arguments.iter().flat_map(|argument| message(&[b"", argument])).collect()
}

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

/// A request to the tasks. None of them waits.
pub(super) fn task_bytes(rng: &mut SeededRng) -> Vec<u8> {
    let name = format!("attacked {}", rng.index(50));
    let (key, lend_key) = (name.as_bytes(), rng.next() % 100);
    let value = vec![b'v'; rng.index(300)];
    let timeout_ms = rng.pick(&[0, 1, 1_000, u64::MAX]);
    encoded(&match rng.index(12) {
        0 => Request::Count,
        1 | 2 => Request::Add { key, value: &value, mode: rng.pick(&[AddMode::Head, AddMode::Tail]) },
        3 => Request::Update { key, value: &value },
        4 => Request::Lend { timeout_ms, mode: LendMode::Poll },
        5 => Request::Repay { lend_key, key, value: &value, status: RepayStatus::Reward },
        6 => Request::Heartbeat { lend_key, key, timeout_ms },
        7 => Request::Stats,
        8 => Request::Lookup { key },
        9 => Request::Flush,
        10 => Request::Remove { key },
        _ => Request::Ping,
    })
}

/// A subscription or its end, in both of their forms.
fn subscription(rng: &mut SeededRng) -> Vec<u8> {
    let topic = rng.next().to_be_bytes();
    let topic = &topic[..rng.index(9)];
    match rng.index(4) {
        0 => command(b"SUBSCRIBE", topic),
        1 => command(b"CANCEL", topic),
        2 => message(&[&[&[1], topic].concat()]),
        _ => message(&[&[&[0], topic].concat()]),
    }
}

fn http_bytes(rng: &mut SeededRng) -> Vec<u8> {
    rng.pick(&[
        &b"POST /events HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"POST /events/async HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST /events HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /events/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /events/99999999999999999999 HTTP/1.0\r\n\r\n",
        b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /events HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ])
    .to_vec()
}

fn job_bytes(rng: &mut SeededRng) -> Vec<u8> {
    rng.pick(&[
        &b"ADD attacked 5 hello"[..],
        b"ADD attacked 5 hello\r\n",
        b"ADD attacked 0 ",
        b"ADD attacked 26 GET attacked\nADD attacked 1 x\n",
        b"GET attacked\n",
        b"GET attacked",
        b"ACK attacked 00000000000000000001\n",
        b"IN attacked 00000000000000000001\r\n",
        b"ADD attacked 1000000 hello",
    ])
    .to_vec()
}

/// A command of a Redis client whose reply depends on the commands before it alone: no time, no order, no chance.
pub(crate) fn resp_bytes(rng: &mut SeededRng) -> Vec<u8> {
    let key = [b'a' + u8::try_from(rng.index(20)).unwrap()];
    let other = [b'a' + u8::try_from(rng.index(20)).unwrap()];
    let value = vec![b'v'; rng.pick(&[0, 1, 33, 1_024])];
    let number = rng.pick(&[&b"0"[..], b"1", b"-7", b"9223372036854775807", b"1.5", b"x", b"16777216"]);
    let option = rng.pick(&[&b"NX"[..], b"XX", b"GET", b"KEEPTTL", b"EX"]);
    let (key, other, value) = (&key[..], &other[..], &value[..]);
    let arguments: Vec<&[u8]> = match rng.index(20) {
        0 | 1 => vec![b"SET", key, value],
        2 => vec![b"SET", key, value, option],
        3 => vec![b"SET", key, value, option, number],
        4 => vec![b"GET", key],
        5 => vec![b"INCRBY", key, number],
        6 => vec![b"DECR", key],
        7 => vec![b"APPEND", key, value],
        8 => vec![b"SETRANGE", key, b"17", value],
        9 => vec![b"GETRANGE", key, number, b"-1"],
        10 => vec![b"MGET", key, other, key],
        11 => vec![b"MSET", key, value, other, number],
        12 => vec![b"DEL", key, other],
        13 => vec![b"EXISTS", key, key],
        14 => vec![b"SELECT", number],
        15 => vec![b"HELLO", rng.pick(&[&b"2"[..], b"3", b"4"]), b"SETNAME", key],
        16 => vec![b"CLIENT", b"SETNAME", value],
        17 => vec![b"ECHO", value],
        18 => return rng.pick(&[&b"GET \"a\\x62\" 'c'\r\n"[..], b"PING\r\n", b"*0\r\n", b"\r\n"]).to_vec(),
        _ => vec![b"PING"],
    };
    redis_command(&arguments)
}

/// A command about many keys, or about the server.
fn resp_walk(rng: &mut SeededRng) -> Vec<u8> {
    let number = rng.next().to_string();
    let arguments: Vec<&[u8]> = match rng.index(7) {
        0 => vec![b"SCAN", number.as_bytes(), b"COUNT", b"10", b"MATCH", b"*a*"],
        1 => vec![b"KEYS", b"*"],
        2 => vec![b"FLUSHDB"],
        3 => vec![b"INFO"],
        4 => vec![b"COMMAND"],
        5 => vec![b"SET", b"a", b"v", b"PX", b"1"],
        _ => vec![b"RANDOMKEY"],
    };
    redis_command(&arguments)
}
