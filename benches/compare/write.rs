//! A writer that stores many elements with little processor time: pipelined UPDATE_MANY by our ZMTP on a plain socket.

use std::io::{Read, Write};
use std::net::TcpStream;

use spindle::clients::rust::tables::Client;
use spindle::clock::Ttl;
use spindle::services::tables::wire::{Request, TableName};
use spindle::zmtp::{Part, SocketType, encode_frame};

use crate::meet::meet;

pub(crate) const TABLE: &[u8] = b"load";
/// Pairs of one request.
const PAIRS: usize = 256;
/// Requests that are outstanding.
const PIPELINE: usize = 32;

/// A client for single requests. Creates the table if it is missing.
pub(crate) fn client(endpoint: &str) -> Client {
    let mut client = Client::connect(endpoint).unwrap();
    let _there_already = client.create_table(TABLE);
    client
}

/// Stores the keys `prefix` and a number, below `count`, with values of 64 bytes. `ttl` is called before each request.
pub(crate) fn store(endpoint: &str, prefix: &str, count: usize, ttl: impl FnMut() -> Option<Ttl>) {
    store_in_turn(endpoint, (prefix, count), count, ttl);
}

/// The same for this many `keys` in turn, until `count` values are stored.
pub(crate) fn store_in_turn(
    endpoint: &str,
    (prefix, keys): (&str, usize),
    count: usize,
    mut ttl: impl FnMut() -> Option<Ttl>,
) {
    let mut writer = Writer::connect(endpoint.strip_prefix("tcp://").unwrap());
    let value = [b'v'; 64];
    for start in (0..count).step_by(PAIRS) {
        let names: Vec<String> =
            (start..count.min(start + PAIRS)).map(|number| format!("{prefix}{:012}", number % keys)).collect();
        let pairs: Vec<[&[u8]; 2]> = names.iter().map(|key| [key.as_bytes(), &value[..]]).collect();
        while writer.outstanding >= PIPELINE {
            writer.receive();
        }
        writer.send(&Request::UpdateMany { table: TableName::spelt(TABLE), ttl: ttl(), pairs: &pairs });
    }
    while writer.outstanding > 0 {
        writer.receive();
    }
}

struct Writer {
    stream: TcpStream,
    out: Vec<u8>,
    bytes: Vec<u8>,
    outstanding: usize,
}

impl Writer {
    fn connect(address: &str) -> Self {
        let (stream, bytes) = meet(address, SocketType::Dealer);
        Self { stream, out: Vec::new(), bytes, outstanding: 0 }
    }

    fn send(&mut self, request: &Request<'_>) {
        request.encode(|frame, more| encode_frame(&mut self.out, frame, more));
        self.stream.write_all(&self.out).unwrap();
        self.out.clear();
        self.outstanding += 1;
    }

    /// Waits for answers and takes all that have come.
    fn receive(&mut self) {
        let mut some = [0; 4096];
        let count = self.stream.read(&mut some).unwrap();
        assert!(count > 0, "the server is there");
        self.bytes.extend_from_slice(&some[..count]);
        let mut taken = 0;
        while let Some((part, length)) = Part::decode(&self.bytes[taken..], 1 << 20).unwrap() {
            assert_eq!(part, Part::Frame { body: &[1], more: false });
            self.outstanding -= 1;
            taken += length;
        }
        self.bytes.drain(..taken);
    }
}
