//! The last actions of a thread before it ends, and the messages to its caller.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::*;

/// Raises a wake signal after a long time, unless it is dropped before. A wait that does not end by itself ends then,
/// and says that the signal was raised.
struct Alarm(Option<std::thread::JoinHandle<()>>);

impl Alarm {
    fn set(wake_signal: &WakeSignal) -> Self {
        let wake_signal = wake_signal.clone();
        Self(Some(std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_secs(20));
            wake_signal.raise();
        })))
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let thread = self.0.take().unwrap();
        thread.thread().unpark();
        thread.join().unwrap();
    }
}

/// Runs passes until this holds.
fn until(echo: &mut Echo, mut holds: impl FnMut(&mut Echo) -> bool) {
    let start = Instant::now();
    while !holds(echo) {
        assert!(start.elapsed() < Duration::from_secs(15), "it does not come");
        let now = echo.now;
        echo.connections.wait(Some(Duration::from_millis(100)), || now);
        echo.turns();
    }
}

/// A client that has had one answer, and its connection.
fn answered(echo: &mut Echo) -> (TcpStream, ConnectionId) {
    let mut stream = echo.connect();
    stream.write_all(&[introduction(SocketType::Dealer), message(&[b"x"])].concat()).unwrap();
    let received = echo.received.len();
    echo.receive(received + 1);
    introduced(&mut stream);
    expect(&mut stream, &message(&[b"x"]));
    (stream, echo.received[received])
}

/// Lets the time for all handshakes pass. No deadline ends a wait then.
fn without_deadlines(echo: &mut Echo) {
    echo.now = echo.now.after(HANDSHAKE_TIMEOUT);
    echo.wake_signal.raise();
    assert!(echo.pass());
}

#[test]
fn a_thread_that_receives_no_more_takes_no_message_but_sees_disconnected_clients_leave() {
    let mut echo = Echo::start();
    let (mut stream, _) = answered(&mut echo);
    let (mut other, _) = answered(&mut echo);
    echo.connections.stop_receiving();
    stream.write_all(&message(&[b"y"])).unwrap();
    other.write_all(&message(&[b"y"])).unwrap();
    for _ in 0..20 {
        let now = echo.now;
        echo.connections.wait(Some(Duration::from_millis(5)), || now);
        echo.turns();
    }
    assert_eq!((echo.received.len(), echo.connections.len()), (2, 2));
    echo.connections.disconnect_all();
    drop(stream);
    until(&mut echo, |echo| echo.connections.len() == 1);
    reset(other);
    until(&mut echo, |echo| echo.connections.is_empty());
    assert_eq!((echo.received.len(), echo.gone.len()), (2, 2));
}

#[test]
fn all_is_sent_when_open_connections_have_no_bytes_left() {
    let mut echo = Echo::start();
    let (_stream, id) = answered(&mut echo);
    assert!(echo.connections.is_all_sent());
    echo.connections.connection(id).unwrap().1.push(&vec![7; 64 << 20], false);
    echo.connections.flush();
    assert!(!echo.connections.is_all_sent());
    let (_parting, parting) = answered(&mut echo);
    echo.connections.connection(parting).unwrap().1.push(&vec![7; 64 << 20], false);
    echo.connections.discard_all();
    assert!(echo.connections.is_all_sent());
    let (_parting, parting) = answered(&mut echo);
    echo.connections.connection(parting).unwrap().1.push(&vec![7; 64 << 20], false);
    assert!(!echo.connections.is_all_sent());
    echo.connections.disconnect(parting);
    assert!(echo.connections.is_all_sent(), "it is not open");
}

#[test]
fn closed_connections_are_counted_until_they_are_asked_for() {
    let mut echo = Echo::start();
    let ids: Vec<ConnectionId> = (0..3).map(|_| answered(&mut echo).1).collect();
    until(&mut echo, |echo| echo.connections.is_empty());
    assert_eq!((ids.len(), echo.connections.closed(), echo.connections.closed()), (3, 3, 0));
    // The system does not wait for a file: it is closed at once.
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    echo.connections.insert(file().into(), Now::from_millis(1));
    echo.connections.insert(file().into(), Now::from_millis(1));
    assert_eq!((echo.connections.len(), echo.connections.closed(), echo.connections.closed()), (0, 2, 0));
}

#[test]
fn a_wait_does_not_last_while_received_input_has_no_turn() {
    let mut echo = Echo::start();
    let (mut stream, id) = answered(&mut echo);
    without_deadlines(&mut echo);
    assert!(!echo.connections.has_backlog());
    stream.write_all(&message(&[b"y"]).repeat(3)).unwrap();
    let (now, mut turns) = (echo.now, 0);
    let _alarm = Alarm::set(&echo.wake_signal);
    while turns < 3 {
        assert!(!echo.connections.wait(None, || now), "it has slept");
        let one = |of, _: &mut u32, _: &mut super::super::ReplyBuffer, messages: crate::zmtp::MessageView<'_>| {
            assert_eq!((of, messages.len()), (id, 1));
            turns += 1;
            TurnOutcome::All
        };
        // One turn at most.
        let _turn = echo.connections.receive(1, one);
        assert_eq!(echo.connections.has_backlog(), (1..3).contains(&turns));
    }
}

#[test]
fn a_wait_does_not_last_while_the_caller_has_connections_to_take_back() {
    let mut echo = Echo::start();
    let (_stream, id) = answered(&mut echo);
    without_deadlines(&mut echo);
    let now = echo.now;
    echo.connections.close(id);
    let _alarm = Alarm::set(&echo.wake_signal);
    assert!(!echo.connections.wait(None, || now), "it has slept");
    assert_eq!(echo.connections.gone().map(|gone| gone.id), Some(id));
}

#[test]
fn a_resumed_connection_without_further_input_has_no_turn() {
    let mut echo = Echo::start();
    let (mut stream, id) = answered(&mut echo);
    stream.write_all(&message(&[b"y"])).unwrap();
    let (now, mut parked) = (echo.now, false);
    while !parked {
        echo.connections.wait(PATIENCE, || now);
        let _turn = echo.connections.receive(4, |_, _, _, _| {
            parked = true;
            TurnOutcome::Parked(0)
        });
    }
    assert!(!echo.connections.has_backlog());
    echo.connections.resume(id, |_, _, _, _| TurnOutcome::All);
    assert!(!echo.connections.has_backlog());
}

#[test]
fn a_client_that_does_not_read_is_reported_when_it_has_read_and_closed_when_it_leaves() {
    let mut echo = Echo::start();
    let (mut reading, id) = answered(&mut echo);
    let (leaving, _) = answered(&mut echo);
    for id in [id, echo.received[1]] {
        echo.connections.connection(id).unwrap().1.push(&vec![7; 64 << 20], false);
    }
    echo.connections.flush();
    assert_eq!(echo.connections.drained(), None);
    // It has not read its reply, and can still do so. The server has nothing to wait for.
    leaving.shutdown(std::net::Shutdown::Write).unwrap();
    until(&mut echo, |echo| echo.connections.len() == 1);
    let (now, mut some) = (echo.now, vec![0; 1 << 20]);
    reading.set_nonblocking(true).unwrap();
    let drained = loop {
        let _none_yet = reading.read(&mut some);
        echo.connections.wait(Some(Duration::from_millis(1)), || now);
        if let Some(drained) = echo.connections.drained() {
            break drained;
        }
        assert!(!echo.connections.is_all_sent(), "the thread must report it to its caller before");
    };
    assert_eq!(drained, id);
}
