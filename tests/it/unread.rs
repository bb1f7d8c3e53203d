//! Unread replies are no memory of the tables. Regression: they counted against `--max-memory`, and writers of other
//! clients got OUT OF MEMORY.

use crate::harness::Server;
use crate::memory::status;
use crate::peer::Peer;

const OK: &[u8] = &[1];
const VALUE: usize = 1 << 20;
/// Values of one answer.
const KEYS: u8 = 8;
const SILENT: usize = 220;
/// Less than the bytes of the answers that stay, and more than tables and slack together may take.
const UNREAD: u64 = 180 << 20;

fn silent_clients_leave_the_tables_their_memory(frontend: &str) {
    let server = Server::start(&["--frontend", frontend, "--workers", "2", "--max-memory", "96M", "--max-value", "1M"]);
    let context = zmq::Context::new();
    let writer = Peer::connect(&context, server.kv());
    assert_eq!(writer.call(&[&[0], b"t"]), [OK]);
    let value = vec![7; VALUE];
    for key in 0..KEYS {
        assert_eq!(writer.call(&[&[2], b"t", &[key], &value]), [OK]);
    }
    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    let get_many: Vec<&[u8]> = [&[10][..], b"t"].into_iter().chain(keys.iter().map(<[u8; 1]>::as_slice)).collect();
    let silent = || {
        let peer = Peer::connect_with(&context, server.kv(), |socket| {
            socket.set_rcvhwm(1).unwrap();
            socket.set_rcvbuf(4_096).unwrap();
        });
        // libzmq takes one whole answer for a client that reads none. The second stays with the server.
        (0..2).for_each(|_| peer.ask(&get_many));
        peer
    };
    let _silent: Vec<Peer> = (0..SILENT).map(|_| silent()).collect();
    while writer.clients("outstanding_bytes") + writer.clients("unread_bytes") < UNREAD {}
    for number in 0..1_000_usize {
        let key = [u8::try_from(number % 32).unwrap()];
        assert_eq!(writer.call(&[&[2], b"t", &key, &value]), [OK], "{number}");
    }
    assert_eq!(writer.clients("cut_off"), 0);
    server.stop();
}

#[test]
fn silent_clients_of_the_queue_leave_the_tables_their_memory() {
    silent_clients_leave_the_tables_their_memory("queue");
}

#[test]
fn silent_clients_of_workers_with_connections_leave_the_tables_their_memory() {
    silent_clients_leave_the_tables_their_memory("native");
}

/// Regression: a batch of TOUCH kept the entries that it replaced until its end. Small requests made the server take
/// ten times its limit.
fn touches_of_large_values_stay_within_memory(frontend: &str) {
    const LARGE: usize = 16 << 20;
    const LIMIT: u64 = 256 << 20;
    /// Bytes of the process beside tables: a few replaced values for each thread, and what was there before.
    const BESIDE: u64 = 192 << 20;
    let flags = ["--frontend", frontend, "--workers", "2", "--max-memory", "256M", "--max-value", "16M"];
    let server = Server::start(&flags);
    let context = zmq::Context::new();
    let toucher = Peer::connect(&context, server.kv());
    assert_eq!(toucher.call(&[&[0], b"t"]), [OK]);
    let value = vec![7; LARGE];
    for key in 0..4 {
        assert_eq!(toucher.call(&[&[2], b"t", &[key], &value]), [OK]);
    }
    for _ in 0..3 {
        (0..64_u8).for_each(|number| toucher.ask(&[&[9], b"t", &[number % 4], &[0; 8]]));
        (0..64).for_each(|_| assert_eq!(toucher.answer(), [OK]));
    }
    let peak = status(server.pid(), "VmHWM");
    assert!(peak < LIMIT + BESIDE, "the server has had {peak} bytes");
    server.stop();
}

#[test]
fn touches_of_large_values_stay_within_memory_behind_the_queue() {
    touches_of_large_values_stay_within_memory("queue");
}

#[test]
fn touches_of_large_values_stay_within_memory_in_workers_with_connections() {
    touches_of_large_values_stay_within_memory("native");
}
