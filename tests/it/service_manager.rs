//! systemd's notify protocol: the test is the service manager, at a real datagram socket.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{SPINDLE, Server};

/// How long a message may take that is sure to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server whose service manager listens at this socket, with these further variables.
fn serve(socket: &Path, variables: &[(&str, &str)]) -> Server {
    let mut command = Command::new(SPINDLE);
    command
        .args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off"])
        .env("NOTIFY_SOCKET", socket)
        .envs(variables.iter().copied());
    Server::start_by(&mut command)
}

/// The next message, as its lines.
fn next(manager: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 1_024];
    let length = manager.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
}

fn manager(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn the_service_manager_receives_the_start_and_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = manager(&path);
    let server = serve(&path, &[]);
    assert_eq!(next(&manager), ["READY=1"]);
    server.signal(Signal::TERM);
    assert_eq!(next(&manager), ["STOPPING=1"], "no watchdog was asked for");
    assert!(server.wait().0.success());
}

#[test]
fn the_watchdog_is_notified_while_the_workers_come_back_from_their_batches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = manager(&path);
    let server = serve(&path, &[("WATCHDOG_USEC", "200000")]);
    // The thread of the watchdog starts before the start is notified.
    let mut received = Vec::new();
    while received.iter().filter(|message| **message == ["WATCHDOG=1"]).count() < 5 {
        received.push(next(&manager));
    }
    assert_eq!(received.iter().filter(|message| **message == ["READY=1"]).count(), 1, "{received:?}");
    server.stop();
}

#[test]
fn a_watchdog_of_another_process_is_not_notified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = manager(&path);
    let server = serve(&path, &[("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")]);
    assert_eq!(next(&manager), ["READY=1"]);
    server.signal(Signal::TERM);
    assert_eq!(next(&manager), ["STOPPING=1"]);
    assert!(server.wait().0.success());
}

#[test]
fn a_service_manager_that_is_gone_does_not_keep_the_server_from_serving() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let server = serve(&path, &[("WATCHDOG_USEC", "1000")]);
    assert!(server.stats()["tables"].is_array());
    server.stop();
}
