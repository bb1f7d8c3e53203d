//! The lock-step dialect as the first client speaks it: over sockets of pyzmq (`lockstep.py`), from `PROTOCOL.md` alone,
//! and beside a client of the `kv` protocol.

use rustix::process::Signal;
use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::Reason;

use crate::harness::{Server, run_python, spindle};

const ANY: &str = "tcp://127.0.0.1:*";
const ON: [&str; 4] = ["--lockstep", ANY, "--lockstep-publish", ANY];

fn run_chapter(chapter: &str, flags: &[&str]) {
    let server = Server::start(&[&ON, flags].concat());
    run_python("lockstep.py", &[chapter, server.lockstep(), server.lockstep_publish()]);
    server.stop();
}

#[test]
fn the_transcript_of_the_specification() {
    run_chapter("transcript", &[]);
}

#[test]
fn two_clients_of_one_identity_do_not_meet() {
    run_chapter("interleaved", &[]);
}

#[test]
fn a_half_command_dies_with_its_connection() {
    run_chapter("half", &[]);
}

#[test]
fn the_place_of_an_argument_decides_also_of_a_six_or_a_seven() {
    run_chapter("places", &[]);
}

#[test]
fn each_row_of_the_ttls() {
    run_chapter("ttls", &[]);
}

#[test]
fn arguments_at_their_limits_and_beyond() {
    run_chapter("limits", &[]);
}

#[test]
fn values_may_be_as_large_as_the_flag_says() {
    run_chapter("max_value", &["--max-value", "2000000"]);
}

#[test]
fn what_is_pending_is_there_until_the_next_frame() {
    run_chapter("pending", &[]);
}

#[test]
fn each_failure_has_its_reason() {
    run_chapter("reasons", &["--max-tables", "2"]);
}

#[test]
fn messages_of_another_shape_are_answered() {
    run_chapter("shapes", &[]);
}

#[test]
fn a_pipelining_connection_is_answered_in_order() {
    run_chapter("pipelined", &[]);
}

#[test]
fn many_clients_at_once() {
    run_chapter("many", &[]);
}

#[test]
fn each_reply_ends_with_a_nul_if_it_is_asked_for() {
    run_chapter("nul", &["--lockstep-nul"]);
}

#[test]
fn changes_are_announced_in_one_frame() {
    run_chapter("notifications", &[]);
}

#[test]
fn what_does_not_fit_into_memory_is_refused() {
    run_chapter("max_memory", &["--max-memory", "8388608"]);
}

/// A client of each protocol, on one server.
#[test]
fn the_two_dialects_see_the_same_tables_and_subscribers_of_both_the_same_changes() {
    let server = Server::start(&ON);
    let endpoints = [server.lockstep(), server.lockstep_publish(), server.kv(), server.publish()];
    let has_run = run_python("lockstep.py", &[&["beside_kv"], &endpoints[..]].concat());
    let lockstep = &server.stats()["lockstep"];
    assert!(!has_run || lockstep["requests"].as_u64() > lockstep["commands"].as_u64());
    server.stop();
}

struct LockstepPeer {
    socket: zmq::Socket,
}

impl LockstepPeer {
    fn connect(context: &zmq::Context, endpoint: &str) -> Self {
        let socket = context.socket(zmq::REQ).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(30_000).unwrap();
        socket.set_identity(b"my-req").unwrap();
        socket.connect(endpoint).unwrap();
        Self { socket }
    }

    /// Sends arguments, one after the other. Returns the last reply.
    fn call(&self, arguments: &[&[u8]]) -> Vec<u8> {
        let mut reply = Vec::new();
        for argument in arguments {
            self.socket.send(*argument, 0).unwrap();
            reply = self.socket.recv_bytes(0).unwrap();
        }
        reply
    }
}

#[test]
fn deadlines_are_kept_or_set_as_the_other_client_sees_them() {
    let server = Server::start(&ON);
    let (context, mut client) = (zmq::Context::new(), Client::connect(server.kv()).unwrap());
    let peer = LockstepPeer::connect(&context, server.lockstep());
    assert_eq!(peer.call(&[b"0\0", b"t\0"]), b"ok");
    let mut left = |ttl: &[u8], value: &[u8]| {
        assert_eq!(peer.call(&[b"2\0", b"t\0", b"k\0", value, ttl]), b"ok");
        let entry = client.get_entry(b"t\0", b"k").unwrap();
        assert_eq!(entry.value, value);
        entry.remaining_millis.map(|left| left / 1_000)
    };
    assert_eq!(left(b"a\0", b"new"), None);
    assert_eq!(left(b"0\0", b"zero"), None);
    assert!(left(b"300\0", b"first").is_some_and(|left| (1..=300).contains(&left)));
    for kept in [&b"a\0"[..], b"0\0", b"a", b"0", b"00"] {
        assert!(left(kept, b"again").is_some_and(|left| (1..=300).contains(&left)), "{kept:?}");
    }
    assert!(left(b"4294967295\0", b"long").is_some_and(|left| left > 4_000_000_000));
    server.stop();
}

#[test]
fn the_dialect_is_off_unless_asked_for_and_is_in_stats_when_it_is_on() {
    let server = Server::start(&[]);
    assert!(server.stats()["lockstep"].is_null());
    server.stop();
    let server = Server::start(&ON);
    let context = zmq::Context::new();
    let peer = LockstepPeer::connect(&context, server.lockstep());
    let count = |stats: &serde_json::Value, command: &str| stats["commands"][command]["requests"].as_u64();
    assert_eq!(peer.call(&[b"7", b"0", b"t", b"2", b"t", b"k", b"v", b"a"]), b"ok");
    assert_eq!(peer.call(&[b"4", b"t", b"none"]), b"error");
    assert_eq!(peer.call(&[b"what"]), b"error");
    let stats = server.stats();
    assert_eq!(
        (count(&stats, "CREATE_TABLE"), count(&stats, "UPDATE"), count(&stats, "GET")),
        (Some(1), Some(1), Some(1))
    );
    assert_eq!(stats["commands"]["GET"]["errors"]["KEY NOT FOUND"], 1);
    assert_eq!(stats["not_understood"]["UNKNOWN COMMAND"], 1);
    let lockstep = &stats["lockstep"];
    assert_eq!(
        (&lockstep["connections"], &lockstep["requests"], &lockstep["commands"]),
        (&1.into(), &12.into(), &3.into())
    );
    server.stop();
}

/// Without `--kv` the tables are there for this client alone.
#[test]
fn the_dialect_alone_is_something_to_serve() {
    let flags = ["--kv", "off", "--publish", "off", "--lockstep", ANY];
    let server = Server::start_exactly(&flags);
    let context = zmq::Context::new();
    let peer = LockstepPeer::connect(&context, server.lockstep());
    assert_eq!(peer.call(&[b"0", b"t"]), b"ok");
    server.signal(Signal::TERM);
    let (status, _) = server.wait();
    assert!(status.success());
}

#[test]
fn a_start_with_endpoints_that_collide_is_refused_with_a_sentence() {
    let output = spindle(&["serve", "--lockstep", "tcp://127.0.0.1:5555"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--kv and --lockstep have the same endpoint tcp://127.0.0.1:5555"), "{error}");
    // A port that another server has is found when it is bound.
    let server = Server::start(&ON);
    for flag in ["--lockstep", "--lockstep-publish"] {
        for taken in [server.lockstep(), server.lockstep_publish(), server.kv()] {
            let output = spindle(&["serve", "--kv", ANY, "--publish", "off", flag, taken]);
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(1) && error.contains(taken), "{flag} {taken}: {error}");
        }
    }
    server.stop();
}

/// The client reads `ok` for the last argument of a change that is then in the tables, also when the server ends.
#[test]
fn a_server_that_ends_answers_what_it_took() {
    let server = Server::start(&ON);
    let context = zmq::Context::new();
    let peer = LockstepPeer::connect(&context, server.lockstep());
    let socket = context.socket(zmq::SUB).unwrap();
    socket.set_rcvtimeo(30_000).unwrap();
    socket.set_subscribe(b"t\x00").unwrap();
    socket.connect(server.lockstep_publish()).unwrap();
    while server.stats()["lockstep"]["subscriptions"] != 1 {}
    assert_eq!(peer.call(&[b"0", b"t", b"2", b"t", b"k", b"v", b"a", b"2", b"t", b"half"]), b"ok");
    server.signal(Signal::TERM);
    let (status, _) = server.wait();
    assert!(status.success());
    assert_eq!(socket.recv_bytes(0).unwrap(), b"t\x000\x00k");
    assert!(socket.recv_bytes(zmq::DONTWAIT).is_err());
}

#[test]
fn a_table_that_is_deleted_by_one_client_is_gone_for_the_other() {
    let server = Server::start(&ON);
    let (context, mut client) = (zmq::Context::new(), Client::connect(server.kv()).unwrap());
    let peer = LockstepPeer::connect(&context, server.lockstep());
    client.create_table(b"t\0").unwrap();
    assert_eq!(peer.call(&[b"2\0", b"t\0", b"k\0", b"v\0", b"a\0"]), b"ok");
    assert_eq!(client.get(b"t", b"k"), Ok(b"v".to_vec()));
    client.update(b"t", b"k", b"w\0", None).unwrap();
    assert_eq!(peer.call(&[b"4\0", b"t\0", b"k\0", b"6\0"]), b"w\0", "a value comes as it is");
    assert_eq!(peer.call(&[b"1\0", b"t\0"]), b"ok");
    assert_eq!(client.get(b"t", b"k"), Err(Error::Refused(Reason::TableNotFound)));
    server.stop();
}
