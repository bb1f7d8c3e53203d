//! Clients of other projects against `serve`: the `zmq` crate, C, Node, Java, and Python with CURVE.
//!
//! Their sources are in `peers`. `tests/run` installs what they need. Each asks by a REQ and a DEALER, and receives a
//! change by a SUB.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::endpoints::{ANY_EVENTS, command_of};
use crate::harness::{FRONTENDS, Guarded, Server, is_made, real_peer, run_python, spindle, spindle_reads};
use crate::peer::Peer;

/// What `libzmq3-dev` and `libjeromq-java` of Debian install.
const ZMQ_H: &str = "/usr/include/zmq.h";
const JEROMQ: &str = "/usr/share/java/jeromq.jar";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peers").join(name)
}

/// Runs a client to its end against a server with each frontend.
fn is_served(client: impl Fn() -> Command) {
    for frontend in FRONTENDS {
        let server = Server::start(&["--frontend", frontend]);
        let output = client().args([server.kv(), server.publish()]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{frontend}: {}", String::from_utf8_lossy(&output.stderr));
        server.stop();
    }
}

#[test]
fn a_client_in_c() {
    let Some(cc) = real_peer("cc").filter(|_| is_made(Path::new(ZMQ_H))) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("peer");
    let mut build = Command::new(cc);
    build.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source("peer.c")).arg("-lzmq");
    assert!(build.status().unwrap().success());
    is_served(|| Command::new(&program));
}

#[test]
fn a_client_in_node() {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/node/node_modules");
    let Some(node) = real_peer("node").filter(|_| is_made(&modules.join("zeromq"))) else { return };
    is_served(|| {
        let mut command = Command::new(&node);
        command.arg(source("peer.cjs")).env("NODE_PATH", &modules);
        command
    });
}

#[test]
fn a_client_on_the_zmq_crate() {
    let update: &[&[u8]] = &[&[2], b"rs", b"k", b"v"];
    for frontend in FRONTENDS {
        let server = Server::start(&["--frontend", frontend]);
        let context = zmq::Context::new();
        let sub = context.socket(zmq::SUB).unwrap();
        sub.set_subscribe(b"rs").unwrap();
        sub.connect(server.publish()).unwrap();
        let req = context.socket(zmq::REQ).unwrap();
        req.set_rcvtimeo(20_000).unwrap();
        req.connect(server.kv()).unwrap();
        req.send_multipart([&[0][..], b"rs"], 0).unwrap();
        assert_eq!(req.recv_multipart(0).unwrap(), [[1]]);
        let dealer = Peer::connect(&context, server.kv());
        (0..100).for_each(|_| dealer.ask(update));
        (0..100).for_each(|_| assert_eq!(dealer.answer(), [[1]]));
        // The subscription takes a moment to reach the server.
        while sub.poll(zmq::POLLIN, 100).unwrap() == 0 {
            assert_eq!(dealer.call(update), [[1]]);
        }
        assert_eq!(sub.recv_multipart(0).unwrap(), [&b"rs"[..], &[0], b"k"]);
        req.send_multipart([&[4][..], b"rs", b"k"], 0).unwrap();
        assert_eq!(req.recv_multipart(0).unwrap(), [&[1][..], b"v"]);
        server.stop();
    }
}

#[test]
fn a_client_in_python_with_curve() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let public = |name: &str| {
        let made = spindle(&["keygen", &inside(name)]);
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let (key, user, users) = (public("server"), public("ada"), inside("users"));
    let added = spindle_reads(&["user", "add", "--users", &users, "ada", "--own", "py", "--curve", &user], b"");
    assert!(added.status.success());
    let secret = fs::read_to_string(inside("ada")).unwrap();
    for frontend in FRONTENDS {
        let on = ["--frontend", frontend, "--users", &users, "--curve-key", &inside("server")];
        let server = Server::start(&on);
        run_python("peers/curve.py", &[server.kv(), server.publish(), &key, secret.trim()]);
        server.stop();
    }
}

/// JeroMQ asks the server at an endpoint until the log says that it is refused. It must receive nothing.
fn jeromq_is_refused(java: &Path, socket_type: &str, endpoint: &str, log: &mut impl BufRead) {
    let mut command = Command::new(java);
    command.args(["-cp", JEROMQ]).arg(source("Peer.java")).args([socket_type, endpoint]);
    let mut peer = Guarded(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let expected = format!(
        "127.0.0.1: refused at {endpoint}: the peer speaks ZMTP 2.0, and ZMTP 3.0 is needed (libzmq 4.0 or later)"
    );
    let said = log.lines().map_while(Result::ok).find(|line| line.contains(&expected));
    assert!(said.is_some(), "the log ends before it names {socket_type}");
    let mut printed = String::new();
    let mut output = peer.0.stdout.take().unwrap();
    drop(peer);
    output.read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "");
}

#[test]
fn a_client_in_java_of_zmtp_2_is_refused_and_the_log_says_why() {
    let Some(java) = real_peer("java").filter(|_| is_made(Path::new(JEROMQ))) else { return };
    for frontend in FRONTENDS {
        let folder = tempfile::tempdir().unwrap();
        let (log, writer) = std::io::pipe().unwrap();
        let mut command = command_of(frontend, folder.path(), ANY_EVENTS, |_| "tcp://127.0.0.1:*".to_owned());
        let server = Server::start_by(command.stderr(writer));
        // The writer is the server's alone: its end is that of the log.
        drop(command);
        let mut log = BufReader::new(log);
        for (socket_type, endpoint) in
            [("DEALER", server.kv()), ("SUB", server.publish()), ("DEALER", server.tasks()), ("SUB", server.feed())]
        {
            jeromq_is_refused(&java, socket_type, endpoint, &mut log);
        }
        server.stop();
    }
}
