//! A writer that stores many elements with few requests: pipelined UPDATE_MANY.

use spindle::protocols::kv::client::Client;
use spindle::protocols::kv::wire::{Reply, Request, TableName};

pub(crate) const TABLE: &[u8] = b"load";
/// Pairs of one request.
const PAIRS: usize = 256;
/// Requests that are outstanding.
const PIPELINE: usize = 32;

/// Makes the table, if need be.
pub(crate) fn writer(endpoint: &str) -> Client {
    let mut client = Client::connect(endpoint).unwrap();
    let _there_already = client.create_table(TABLE);
    client
}

/// Stores the keys `prefix` and a number, below `count`, with values of 64 bytes; `ttl` is asked before each request.
pub(crate) fn store(client: &mut Client, prefix: &str, count: usize, mut ttl: impl FnMut() -> Option<u32>) {
    let value = [b'v'; 64];
    for start in (0..count).step_by(PAIRS) {
        let keys: Vec<String> =
            (start..count.min(start + PAIRS)).map(|number| format!("{prefix}{number:012}")).collect();
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_bytes(), &value[..]]).collect();
        if client.in_flight() >= PIPELINE {
            answered(client);
        }
        client.send(&Request::UpdateMany { table: TableName::spelt(TABLE), ttl: ttl(), pairs: &pairs }).unwrap();
    }
    while client.in_flight() > 0 {
        answered(client);
    }
}

fn answered(client: &mut Client) {
    assert_eq!(client.receive().unwrap(), Reply::Done);
}
