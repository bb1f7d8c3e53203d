//! A subscriber that never reads costs as much as `--publish-hwm` allows, and does not affect others.

use std::time::Duration;

use spindle::clients::rust::tables::{Client, Subscriber};

use super::harness::Server;

/// Notifications that the server keeps for a subscriber.
const BEHIND: usize = 20_000;
/// Several times the room of its pipe and the sockets' buffers together.
const CHANGES: usize = 300_000;
const BLOCK: usize = 1_000;
/// A long name, so that the buffers of the sockets do not hold much.
const TABLE: [u8; 200] = [b't'; 200];
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_subscriber_that_never_reads_loses_messages_and_others_lose_none() {
    let server = Server::start(&["--publish-hwm", &BEHIND.to_string(), "--max-memory", "256M"]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(&TABLE).unwrap();
    let stalled = stalled_subscriber(server.publish());
    let mut reader = Subscriber::connect(server.publish(), &[&TABLE]).unwrap();
    wait_until_both_receive(&mut client, &mut reader, &stalled);

    let keys: Vec<[u8; 8]> = (0..CHANGES as u64).map(u64::to_be_bytes).collect();
    for keys in keys.chunks(BLOCK) {
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_slice(), b"value".as_slice()]).collect();
        client.update_many(&TABLE, None, &pairs).unwrap();
        for key in keys {
            let received = reader.receive(PATIENCE).unwrap().expect("who reads receives everything");
            assert_eq!(received.key, key);
        }
    }
    client.ping().unwrap();
    let received = drain(&stalled);
    assert!(received.len() < CHANGES, "it fell behind, and lost what came then");
    assert!(received.len() >= BEHIND, "and got what was kept for it: {}", received.len());
    assert!(received.is_sorted(), "in order");
    server.stop();
}

/// A SUB socket that takes as little as it can.
fn stalled_subscriber(endpoint: &str) -> zmq::Socket {
    let socket = zmq::Context::new().socket(zmq::SUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvhwm(1).unwrap();
    socket.set_subscribe(&TABLE).unwrap();
    socket.connect(endpoint).unwrap();
    socket
}

/// Announces until the server knows both subscribers, and lets both receive the end of that.
fn wait_until_both_receive(client: &mut Client, reader: &mut Subscriber, stalled: &zmq::Socket) {
    let mut received = [false, false];
    while received != [true, true] {
        client.update(&TABLE, b"are you there", b"", None).unwrap();
        received[0] |= reader.receive(Duration::from_millis(20)).unwrap().is_some();
        received[1] |= stalled.poll(zmq::POLLIN, 20).unwrap() > 0;
    }
    client.update(&TABLE, b"begin", b"", None).unwrap();
    while reader.receive(PATIENCE).unwrap().expect("the beginning is published").key != b"begin" {}
    while stalled.recv_multipart(0).unwrap()[2] != b"begin" {}
}

/// The keys that it still receives, up to the last one that was kept for it.
fn drain(stalled: &zmq::Socket) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    while stalled.poll(zmq::POLLIN, 1_000).unwrap() > 0 {
        keys.push(stalled.recv_multipart(0).unwrap().swap_remove(2));
    }
    keys
}
