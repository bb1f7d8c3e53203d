//! Clients that were in time, and a thread that was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::*;
use crate::descriptors::wait_for_room;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The frontends over plain TCP waited for their pause.
#[test]
fn a_closed_connection_wakes_who_waits_for_a_descriptor() {
    let mut echo = Echo::start();
    let stream = echo.connect();
    while echo.connections.is_empty() {
        echo.pass();
    }
    let woken = Arc::<Woken>::default();
    wait_for_room(&Waker::from(Arc::clone(&woken)));
    drop(stream);
    while !echo.connections.is_empty() {
        echo.pass();
    }
    assert!(woken.0.load(Ordering::SeqCst));
}

/// Deadlines ran while a commit kept the thread from reading: clients that had sent in time were closed, and their
/// requests were lost unread.
#[test]
fn what_was_sent_in_time_is_received_however_late_the_thread_is() {
    let mut echo = Echo::start();
    let mut stream = echo.connect();
    while echo.connections.is_empty() {
        echo.pass();
    }
    stream.write_all(&[introduction(SocketType::Req), message(&[b"", b"x"])].concat()).unwrap();
    let silent = echo.connect();
    while echo.connections.len() < 2 {
        let now = echo.now;
        echo.connections.wait_without_receiving(PATIENCE, || now);
    }
    echo.now = echo.now.after(2 * HANDSHAKE_TIMEOUT);
    echo.receive(1);
    assert_eq!(echo.connections.len(), 1, "the other one has sent nothing");
    drop(silent);
    introduced(&mut stream);
    expect(&mut stream, &message(&[b"", b"x"]));
}

/// A client has sent so many requests at once, and takes nothing of a large reply to the first. From the message at
/// `parked` on they wait for the frontend, if there is one. Returns how many were handled when the client has `left`.
fn handled_of_a_paused_client(parked: Option<usize>, left: impl FnOnce(TcpStream)) -> u32 {
    let mut echo = Echo::start();
    let mut client = echo.connect();
    let requests = message(&[b"", b"x"]).repeat(REQUESTS as usize);
    client.write_all(&[introduction(SocketType::Req), requests].concat()).unwrap();
    let (mut first, mut waiting) = (None, None);
    let mut is_parked = parked.is_some();
    let mut turn = |connections: &mut Connections<u32>, resumed: Option<ConnectionId>, is_parked: bool| {
        let handle =
            |id, count: &mut u32, outbox: &mut super::super::ReplyBuffer, messages: crate::zmtp::MessageView<'_>| {
                first.get_or_insert(id);
                for (number, _) in messages.iter().enumerate() {
                    if is_parked && Some(number) == parked {
                        waiting = Some(id);
                        return TurnOutcome::Parked(number);
                    }
                    *count += 1;
                    outbox.push(&vec![7; if *count == 1 { 16 << 20 } else { 1 }], false);
                }
                TurnOutcome::All
            };
        match resumed {
            Some(id) => connections.resume(id, handle),
            None => drop(connections.receive(4, handle)),
        }
        (first, waiting)
    };
    let wait = |echo: &mut Echo| {
        let now = echo.now;
        echo.connections.wait(Some(Duration::from_millis(20)), || now);
    };
    while echo.connections.turns_waiting() == 0 || turn(&mut echo.connections, None, is_parked).0.is_none() {
        wait(&mut echo);
    }
    echo.connections.flush();
    left(client);
    for _ in 0..1_000 {
        wait(&mut echo);
        let (_, waiting) = turn(&mut echo.connections, None, is_parked);
        if let Some(id) = waiting.filter(|_| std::mem::take(&mut is_parked)) {
            turn(&mut echo.connections, Some(id), false);
        }
        echo.connections.flush();
        if let Some(closed) = echo.connections.gone() {
            return closed.state;
        }
    }
    panic!("it stays")
}

const REQUESTS: u32 = 40;

/// A connection that waited until its client reads was closed with what it held when the client was gone.
#[test]
fn requests_of_a_client_that_does_not_read_are_handled_when_it_is_gone() {
    let reset = |client: TcpStream| {
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
    };
    assert_eq!(handled_of_a_paused_client(None, reset), REQUESTS);
    assert_eq!(handled_of_a_paused_client(Some(2), reset), REQUESTS, "and those that wait for the frontend");
    let mut kept = None;
    let sends_no_more = |client: TcpStream| {
        client.shutdown(std::net::Shutdown::Write).unwrap();
        kept = Some(client);
    };
    assert_eq!(handled_of_a_paused_client(None, sends_no_more), REQUESTS);
}
