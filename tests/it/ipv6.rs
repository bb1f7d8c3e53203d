//! Endpoints of IPv6 and of `localhost`: every flag takes them, and clients of both versions reach what they name.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::attack::zmtp::{Client, command};
use crate::endpoints::{all, command_of};
use crate::harness::{FRONTENDS, SPINDLE, Server, spindle};
use crate::peer::Peer;

/// A server with all endpoints at free ports of this host.
fn start(frontend: &str, folder: &Path, host: &str) -> Server {
    let plain = format!("{host}:0");
    let mut command = command_of(frontend, folder, &plain, |_| format!("tcp://{host}:*"));
    Server::start_by(command.args(["--open", "--jobs", &plain, "--admin", &plain]))
}

/// An address with another host.
fn at(host: &str, address: &str) -> String {
    let port = address.rsplit_once(':').unwrap().1;
    format!("{host}:{port}")
}

fn asked(address: &str, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Clients that connect to this host reach each service.
fn is_served(server: &Server, host: &str) {
    for endpoint in all(server) {
        let mut client = Client::meet(&at(host, &endpoint.at), endpoint.socket_type).unwrap();
        client.send(&command(b"PING", b"\0\x64here")).unwrap();
        assert_eq!(client.receive_pong().unwrap(), b"here", "{} {host}", endpoint.flag);
    }
    for service in [server.admin(), server.events()] {
        let address = at(host, service);
        let health = asked(&address, format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes());
        assert!(health.starts_with(b"HTTP/1.0 200"), "{address}: {}", health.escape_ascii());
    }
    assert!(!asked(&at(host, server.jobs()), b"GET q\n").is_empty(), "{host}");
    let context = zmq::Context::new();
    let peer = Peer::connect_with(&context, &format!("tcp://{}", at(host, server.kv())), |socket| {
        socket.set_ipv6(true).unwrap();
    });
    assert_eq!(peer.call(&[&[5]]), [[1]], "{host}");
}

#[test]
fn each_flag_takes_endpoints_of_ipv6_and_localhost() {
    for frontend in FRONTENDS {
        for (host, bound, reached) in [
            ("[::1]", "[::1]", &["[::1]"][..]),
            ("[::]", "[::]", &["[::1]", "127.0.0.1"]),
            ("localhost", "127.0.0.1", &["127.0.0.1", "localhost"]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let server = start(frontend, folder.path(), host);
            for endpoint in all(&server) {
                assert!(endpoint.at.starts_with(&format!("tcp://{bound}:")), "{} {}", endpoint.flag, endpoint.at);
            }
            for address in [server.jobs(), server.events(), server.admin()] {
                assert!(address.starts_with(&format!("{bound}:")), "{address}");
            }
            reached.iter().for_each(|host| is_served(&server, host));
            server.stop();
        }
    }
}

#[test]
fn what_only_this_host_reaches_is_served_without_being_opened() {
    for frontend in FRONTENDS {
        for host in ["[::1]", "localhost", "[::ffff:127.0.0.1]"] {
            let at = format!("tcp://{host}:*");
            Server::start_exactly(&["--frontend", frontend, "--kv", &at, "--publish", &at]).stop();
        }
        for host in ["[::]", "[::ffff:0.0.0.0]"] {
            let output = spindle(&["serve", "--frontend", frontend, "--kv", &format!("tcp://{host}:*")]);
            assert_eq!(output.status.code(), Some(1), "{SPINDLE} {host}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("--open"), "{host}");
        }
    }
}

#[test]
fn one_place_under_two_names_is_refused_before_anything_is_bound() {
    let port = crate::harness::free_port();
    for (first, second) in [("[::]", "127.0.0.1"), ("[::]", "*"), ("localhost", "127.0.0.1"), ("[::]", "[::1]")] {
        let [kv, publish] = [first, second].map(|host| format!("tcp://{host}:{port}"));
        let output = spindle(&["serve", "--open", "--kv", &kv, "--publish", &publish]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{kv} {publish}: {said}");
        assert!(said.contains("are one place"), "{said}");
    }
}
