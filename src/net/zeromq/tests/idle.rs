//! Idle connections make place for clients that wait, and those with work under way do not.

use super::*;
use crate::limits::{PLACE_HANDSHAKE_TIME, PLACE_IDLE_TIME, PLACE_SILENT_TIME};
use crate::net::zeromq::ConnectionProtocol;

/// A server with room for this many connections.
fn server_for(most: usize) -> Echo {
    let mut echo = Echo::start();
    echo.connections.limit_to(most);
    echo
}

/// Passes until the server has so many connections that are through their handshakes.
fn pass_until_open(echo: &mut Echo, count: usize) {
    while echo.connections.open_count() < count {
        echo.pass();
    }
}

/// Whether the server has closed a connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; 1_024];
    let end = std::iter::repeat_with(|| stream.read(&mut bytes)).find(|read| !matches!(read, Ok(1..)));
    stream.set_nonblocking(false).unwrap();
    end.is_some_and(|end| end.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true))
}

/// A client that is through its handshake, and has had an answer.
fn served(echo: &mut Echo) -> TcpStream {
    let mut stream = echo.connect();
    stream.write_all(&[introduction(SocketType::Req), message(&[b"", b"x"])].concat()).unwrap();
    let received = echo.received.len() + 1;
    echo.receive(received);
    introduced(&mut stream);
    expect(&mut stream, &message(&[b"", b"x"]));
    stream
}

/// Further clients waited for as long as silent ones stayed.
#[test]
fn a_client_that_waits_gets_the_place_of_the_oldest_that_has_sent_nothing() {
    let mut echo = server_for(3);
    let mut silent = [echo.connect(), echo.connect()];
    let mut begun = echo.connect();
    begun.write_all(&introduction(SocketType::Req)[..5]).unwrap();
    while echo.connections.len() < 3 || echo.connections.traffic(ConnectionProtocol::Zmtp).received < 5 {
        echo.pass();
    }
    echo.now = echo.now.after(PLACE_SILENT_TIME);
    let mut late = echo.connect();
    late.write_all(&introduction(SocketType::Req)).unwrap();
    pass_until_open(&mut echo, 1);
    assert_eq!(echo.connections.len(), 3);
    assert_eq!(silent.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count(), 1);
    assert!(!is_closed(&mut begun), "it has its time for the handshake");
    echo.now = echo.now.after(PLACE_HANDSHAKE_TIME);
    let mut two = [echo.connect(), echo.connect()];
    two.iter_mut().for_each(|late| late.write_all(&introduction(SocketType::Req)).unwrap());
    pass_until_open(&mut echo, 3);
    assert!(silent.iter_mut().all(is_closed) && is_closed(&mut begun) && !is_closed(&mut late));
}

#[test]
fn who_is_idle_longest_makes_place_when_all_are_through_their_handshakes() {
    let mut echo = server_for(2);
    let (mut first, mut second) = (served(&mut echo), served(&mut echo));
    echo.now = echo.now.after(PLACE_IDLE_TIME / 2);
    first.write_all(&message(&[b"", b"y"])).unwrap();
    echo.receive(3);
    echo.now = echo.now.after(PLACE_IDLE_TIME / 2);
    let mut third = served(&mut echo);
    assert!(is_closed(&mut second) && !is_closed(&mut first), "the first had a request since");
    let mut fourth = echo.connect();
    while !echo.connections.listeners_wait() {
        echo.pass();
    }
    assert!(!is_closed(&mut first) && !is_closed(&mut third) && !is_closed(&mut fourth), "nobody was idle for so long");
}

#[test]
fn a_request_under_way_keeps_its_connection() {
    let mut echo = server_for(1);
    let mut client = served(&mut echo);
    let long = message(&[b"", &vec![7; 100_000]]);
    let (begin, rest) = long.split_at(50_000);
    echo.now = echo.now.after(10 * PLACE_IDLE_TIME);
    client.write_all(begin).unwrap();
    let received = echo.connections.traffic(ConnectionProtocol::Zmtp).received;
    while echo.connections.traffic(ConnectionProtocol::Zmtp).received < received + 50_000 {
        echo.pass();
    }
    let mut late = echo.connect();
    late.write_all(&introduction(SocketType::Req)).unwrap();
    while !echo.connections.listeners_wait() {
        echo.pass();
    }
    client.write_all(rest).unwrap();
    echo.receive(2);
    expect_while_passing(&mut echo, &mut client, &long);
    echo.now = echo.now.after(PLACE_IDLE_TIME);
    while !is_closed(&mut client) {
        echo.pass();
    }
    pass_until_open(&mut echo, 1);
}

/// Reads these bytes while the server works.
fn expect_while_passing(echo: &mut Echo, stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    let mut came = Vec::new();
    while came.len() < bytes.len() {
        let mut some = [0; 16 << 10];
        match stream.read(&mut some) {
            Ok(count) => came.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                echo.pass();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(came == bytes);
}
