//! A server with each of its ZeroMQ endpoints on, and what a client may ask at each of them.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::attack::zmtp::{command, message};
use crate::harness::{SPINDLE, Server};

/// An endpoint of a running server.
pub(crate) struct Endpoint {
    /// The flag that it is given by.
    pub(crate) flag: &'static str,
    /// The endpoint as the server prints it.
    pub(crate) at: String,
    /// The type of the client's socket.
    pub(crate) socket_type: &'static [u8],
    /// A request behind the handshake.
    pub(crate) request: Vec<u8>,
    /// What the server sends to answer it.
    pub(crate) reply: Vec<u8>,
}

impl Endpoint {
    /// Where a client connects to.
    pub(crate) fn address(&self) -> &str {
        self.at.trim_start_matches("tcp://")
    }
}

/// The flags of the ZeroMQ endpoints.
pub(crate) const FLAGS: [&str; 7] =
    ["--kv", "--publish", "--feed", "--lockstep", "--lockstep-publish", "--tasks", "--events-queue"];

/// A free port for events, without which there is no queue of them.
pub(crate) const ANY_EVENTS: &str = "127.0.0.1:0";

/// A command that starts a server with one worker and events at this address, whose endpoints `at` says for each flag.
pub(crate) fn command_of(frontend: &str, data: &Path, events: &str, at: impl Fn(&str) -> String) -> Command {
    let mut command = Command::new(SPINDLE);
    command.args(["serve", "--frontend", frontend, "--workers", "1", "--segment-size", "4M", "--events", events]);
    command.arg("--data").arg(data).env("RUST_LOG", "warn");
    FLAGS.iter().for_each(|flag| {
        command.args([*flag, &at(flag)]);
    });
    command
}

/// A server with a free port of 127.0.0.1 for each endpoint, these further flags, and its log in a file.
pub(crate) fn start(frontend: &str, folder: &Path, flags: &[&str]) -> Server {
    let log = File::create(log_of(folder)).unwrap();
    let mut command = command_of(frontend, &folder.join("data"), ANY_EVENTS, |_| "tcp://127.0.0.1:*".to_owned());
    Server::start_by(command.args(flags).stderr(log))
}

/// The file of the log of a server that was started in this folder.
pub(crate) fn log_of(folder: &Path) -> std::path::PathBuf {
    folder.join("log")
}

/// The endpoints of a server that [`command_of`] has started.
pub(crate) fn all(server: &Server) -> Vec<Endpoint> {
    let endpoint =
        |flag, at: &str, request, reply| Endpoint { flag, at: at.to_owned(), socket_type: b"DEALER", request, reply };
    let subscription = [command(b"SUBSCRIBE", b""), command(b"PING", b"\0\x64context")].concat();
    let publisher = |flag, at: &str| {
        let pong = command(b"PONG", b"context");
        Endpoint { socket_type: b"SUB", ..endpoint(flag, at, subscription.clone(), pong) }
    };
    let tasks = |flag, at: &str| endpoint(flag, at, message(&[b"", b"\x0b"]), message(&[b"", b"\x11"]));
    vec![
        endpoint("--kv", server.kv(), message(&[b"\x05"]), message(&[b"\x01"])),
        publisher("--publish", server.publish()),
        publisher("--feed", server.feed()),
        endpoint("--lockstep", server.lockstep(), message(&[b"", b"7"]), message(&[b"", b"ok"])),
        publisher("--lockstep-publish", server.lockstep_publish()),
        tasks("--tasks", server.tasks()),
        tasks("--events-queue", server.events_queue()),
    ]
}
