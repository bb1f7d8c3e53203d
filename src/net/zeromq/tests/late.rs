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
fn who_has_sent_in_time_is_heard_however_late_the_thread_is() {
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
    echo.hear(1);
    assert_eq!(echo.connections.len(), 1, "the other one has sent nothing");
    drop(silent);
    introduced(&mut stream);
    expect(&mut stream, &message(&[b"", b"x"]));
}
