//! The client against a server that this test plays: a bare ROUTER whose replies are written by hand.
//!
//! No thread is needed: requests are sent before the server reads them, and replies are written before the client
//! reads.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::time::Duration;

use zmq::{Context, SNDMORE, Socket};

use super::{Client, Error, Subscriber};
use crate::clients::rust::socket::Disconnected;
use crate::feed::{FeedContent, FeedMessage, FeedPosition};
use crate::services::tables::wire::{NotificationKind, Reason, Reply, Request, ScanFields, TableName};

/// Long enough for any expected event.
const PATIENCE: Duration = Duration::from_secs(30);
/// Short enough to wait for an event that must not come.
const MOMENT: Duration = Duration::from_millis(30);

const PING: Request<'static> = Request::Ping;
const PONG: &[&[u8]] = &[b"\x01"];

/// A ROUTER or XPUB on a port of its own.
fn bind(context: &Context, socket_type: zmq::SocketType, endpoint: &str) -> (Socket, String) {
    let socket = context.socket(socket_type).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvtimeo(30_000).unwrap();
    socket.bind(endpoint).unwrap();
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    (socket, endpoint)
}

fn server(context: &Context) -> (Socket, String) {
    bind(context, zmq::ROUTER, "tcp://127.0.0.1:*")
}

/// The sender's id, and the frames of its request.
fn next_request(server: &Socket) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut frames = server.recv_multipart(0).unwrap();
    let id = frames.remove(0);
    (id, frames)
}

fn answer(server: &Socket, id: &[u8], frames: &[&[u8]]) {
    server.send(id, SNDMORE).unwrap();
    server.send_multipart(frames, 0).unwrap();
}

/// A client, its server, and the id under which the server can answer requests that were not sent yet.
fn acquainted(context: &Context) -> (Client, Socket, Vec<u8>) {
    let (server, endpoint) = server(context);
    let mut client = Client::connect_within(&endpoint, PATIENCE).unwrap();
    client.send(&PING).unwrap();
    let (id, _) = next_request(&server);
    answer(&server, &id, PONG);
    assert_eq!(client.receive(), Ok(Reply::Done));
    (client, server, id)
}

#[test]
fn a_refusal_is_an_answer_in_a_pipeline_and_an_error_of_a_method() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    let refusal: &[&[u8]] = &[b"\x00", b"KEY NOT FOUND"];
    answer(&server, &id, refusal);
    answer(&server, &id, refusal);
    let refused = Err(Error::Refused(Reason::KeyNotFound));
    assert_eq!(client.get(b"t", b"k"), refused);
    let table = TableName::spelt(b"t");
    client.send(&Request::Get { table, key: b"k" }).unwrap();
    assert_eq!(client.receive(), Ok(Reply::Refused(Reason::KeyNotFound)));
}

#[test]
fn a_page_is_decoded_by_the_fields_that_were_asked_for() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    let two = 2_u64.to_be_bytes();
    let mut scan = |fields, frames: &[&[u8]]| {
        answer(&server, &id, frames);
        client.scan(b"t", b"", 1, fields, b"").map(|page| page.rows.len())
    };
    assert_eq!(scan(ScanFields::Key, &[b"\x01", b"", b"a", b"b", b"c", b"d"]), Ok(4));
    assert_eq!(scan(ScanFields::Value, &[b"\x01", b"", b"a", b"b", b"c", b"d"]), Ok(2));
    assert_eq!(scan(ScanFields::Entry, &[b"\x01", b"", b"a", b"b", &two, &two]), Ok(1));
    assert_eq!(scan(ScanFields::Mirror, &[b"\x01", b"", b"a", b"b", &two, &two, b"\x01"]), Ok(1));
    assert_eq!(scan(ScanFields::Mirror, &[b"\x00", b"BAD CURSOR"]), Err(Error::Refused(Reason::BadCursor)));
    let odd = scan(ScanFields::Value, &[b"\x01", b"", b"a", b"b", b"c"]);
    assert!(matches!(odd, Err(Error::Malformed { .. })), "{odd:?}");
}

#[test]
fn an_empty_table_is_not_taken_for_an_envelope() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    let table = TableName::spelt(b"");
    client.send(&Request::DeleteTable { table }).unwrap();
    client.send(&PING).unwrap();
    assert_eq!(next_request(&server).1, [&b""[..], b"\x01", b""]);
    answer(&server, &id, &[b"", b"\x00", b"BAD TABLE NAME"]);
    answer(&server, &id, PONG);
    let refused = Reply::Refused(Reason::BadTableName);
    assert_eq!(client.receive(), Ok(refused));
    assert_eq!(client.receive(), Ok(Reply::Done));
}

#[test]
fn an_endpoint_that_is_none_is_named() {
    for endpoint in ["here", "tcp://", "tcp://127.0.0.1:port", "carrier-pigeon://a", "ipc://a\0b"] {
        let refused = Client::connect(endpoint).err();
        assert!(matches!(refused, Some(Error::Disconnected(Disconnected::Endpoint { .. }))), "{endpoint}: {refused:?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_waited_for_and_then_named() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}/nobody", directory.path().display());
    let error = Client::connect_within(&endpoint, MOMENT).err().unwrap();
    assert_eq!(error, Error::Disconnected(Disconnected::NoAnswer { endpoint, timeout: MOMENT }));
}

#[test]
fn a_server_that_comes_later_is_found() {
    let context = Context::new();
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}/late", directory.path().display());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Client::connect_within(&endpoint, PATIENCE));
        let (server, _) = bind(&context, zmq::ROUTER, &endpoint);
        let mut client = client.join().unwrap().unwrap();
        client.send(&PING).unwrap();
        assert_eq!(next_request(&server).1, [[5]]);
    });
}

/// A message of one deletion at this position.
fn one_change(position: FeedPosition) -> Vec<u8> {
    let numbers = [position.epoch, position.incarnation, position.sequence].map(u64::to_be_bytes);
    [&[2, 1][..], numbers.as_flattened(), &[0, 1, 3], &[7; 8], &[0; 8], b"\0\x01k", &[0; 4]].concat()
}

#[test]
fn a_replay_begins_where_it_was_asked_to_and_has_no_gap() {
    let context = Context::new();
    let (mut client, server, mut id) = acquainted(&context);
    let position = FeedPosition { epoch: 1, incarnation: 2, sequence: 3 };
    let at = |sequence| one_change(FeedPosition { sequence, ..position });
    answer(&server, &id, &[b"\x01", &at(3), &at(4)]);
    let messages = client.changes(b"t", position).unwrap();
    assert_eq!(messages.iter().map(|message| message.position.sequence).collect::<Vec<_>>(), [3, 4]);
    let FeedMessage { content: FeedContent::Changes(mut changes), .. } = messages[0] else { panic!("changes") };
    assert_eq!(changes.next().map(|change| change.key), Some(&b"k"[..]));
    answer(&server, &id, &[b"\x00", b"COMPACTED", &9_u64.to_be_bytes()]);
    assert_eq!(client.changes(b"t", position), Err(Error::Refused(Reason::Compacted { oldest: 9 })));
    for _ in 0..2 {
        next_request(&server);
    }
    let other = one_change(FeedPosition { incarnation: 3, ..position });
    for wrong in [vec![at(4)], vec![at(2)], vec![at(3), at(5)], vec![other], vec![b"payload".to_vec()]] {
        let frames: Vec<&[u8]> = [&b"\x01"[..]].into_iter().chain(wrong.iter().map(Vec::as_slice)).collect();
        answer(&server, &id, &frames);
        let error = client.changes(b"t", position).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        next_request(&server);
        client.send(&PING).unwrap();
        id = next_request(&server).0;
        answer(&server, &id, PONG);
        assert_eq!(client.receive(), Ok(Reply::Done));
    }
}

#[test]
fn a_late_answer_is_never_taken_for_the_next() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    let table = TableName::spelt(b"t");
    client.send(&Request::Get { table, key: b"slow" }).unwrap();
    let (_, slow) = next_request(&server);
    client.set_timeout(MOMENT);
    let late = client.receive().unwrap_err();
    assert!(matches!(late, Error::Disconnected(Disconnected::NoAnswer { .. })));
    assert_eq!(client.in_flight(), 0);
    answer(&server, &id, &[b"\x01", b"slow"]);

    client.set_timeout(PATIENCE);
    client.send(&Request::Get { table, key: b"quick" }).unwrap();
    let (id, quick) = next_request(&server);
    assert_eq!((&*slow[2], &*quick[2]), (&b"slow"[..], &b"quick"[..]));
    answer(&server, &id, &[b"\x01", b"quick"]);
    assert_eq!(client.receive(), Ok(Reply::Value(b"quick")));
}

#[test]
fn what_came_before_a_loss_is_read_before_the_loss_is_reported() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    for _ in 0..3 {
        client.send(&PING).unwrap();
        next_request(&server);
    }
    server.set_linger(30_000).unwrap();
    answer(&server, &id, PONG);
    answer(&server, &id, PONG);
    drop(server);
    assert_eq!(client.receive(), Ok(Reply::Done));
    assert_eq!(client.receive(), Ok(Reply::Done));
    let lost = client.receive().unwrap_err();
    assert!(matches!(lost, Error::Disconnected(Disconnected::Lost { unanswered: 1, .. })), "{lost}");
}

#[test]
fn nonsense_ends_the_connection_and_the_next_request_makes_another() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    let nonsense: &[&[&[u8]]] = &[&[b"HTTP/1.1 400"], &[b""], &[b"\x01", b"one frame more"]];
    let mut id = id;
    for frames in nonsense {
        client.send(&PING).unwrap();
        next_request(&server);
        answer(&server, &id, frames);
        let error = client.receive().unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        client.send(&PING).unwrap();
        id = next_request(&server).0;
        answer(&server, &id, PONG);
        assert_eq!(client.receive(), Ok(Reply::Done));
    }
}

#[test]
fn more_or_fewer_values_than_keys_are_nonsense() {
    let context = Context::new();
    let (mut client, server, id) = acquainted(&context);
    answer(&server, &id, &[b"\x01", b"\x01", b"v"]);
    let error = client.get_many(b"t", &[b"j", b"k"]).unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[test]
fn a_subscriber_receives_what_it_asked_for_and_an_error_after_a_loss() {
    let context = Context::new();
    let (publisher, endpoint) = bind(&context, zmq::XPUB, "tcp://127.0.0.1:*");
    let mut subscriber = Subscriber::connect_within(&endpoint, &[b"users", b"jobs"], PATIENCE).unwrap();
    for _ in 0..2 {
        assert_eq!(publisher.recv_bytes(0).unwrap()[0], 1);
    }
    assert_eq!(subscriber.receive(Duration::ZERO), Ok(None));
    publisher.send_multipart([&b"other"[..], b"\x00", b"k"], 0).unwrap();
    publisher.send_multipart([&b"users\0"[..], b"\x01", b"k"], 0).unwrap();
    let change = subscriber.receive(PATIENCE).unwrap().unwrap();
    assert_eq!((change.table, change.kind, change.key), (&b"users\0"[..], NotificationKind::Deleted, &b"k"[..]));

    publisher.send_multipart([&b"jobs"[..], b"\x07", b"k"], 0).unwrap();
    let error = subscriber.receive(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    assert_eq!(subscriber.receive(MOMENT), Ok(None));
    drop(publisher);
    let error = subscriber.receive(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Disconnected(Disconnected::Lost { .. })), "{error}");
}
