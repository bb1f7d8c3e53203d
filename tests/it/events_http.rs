//! Events at the edges of HTTP: requests that are cut, malformed, late, or sent by pages of other sites.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use crate::harness::Server;
use crate::stage::{Stage, address, client};

fn serve(flags: &[&str]) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap().to_owned();
    let server = Server::start_events(&[&["--data", &data][..], flags].concat());
    (folder, server)
}

/// All bytes of the reply to these bytes.
fn answer(server: &Server, bytes: &[u8], is_half_closed: bool) -> String {
    let mut stream = TcpStream::connect(address(server)).unwrap();
    stream.write_all(bytes).unwrap();
    if is_half_closed {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)));
    String::from_utf8(reply).unwrap()
}

/// The status and the body of a reply. Its type must be JSON.
fn parsed(reply: &str) -> (u16, Value) {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {reply:?}"));
    let head = head.to_ascii_lowercase();
    assert!(head.contains("\r\ncontent-type: application/json") && head.contains("\r\ndate: "), "{head}");
    assert!(head.contains(&format!("\r\ncontent-length: {}", body.len())), "{head}");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("{reply:?}")))
}

/// A request that a client sent and then closed its half for was carried out, and got no reply.
#[test]
fn a_client_that_closes_its_half_gets_its_reply() {
    let (_folder, server) = serve(&[]);
    let ask = |line: &str, more: &str| {
        parsed(&answer(&server, format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").as_bytes(), true))
    };
    assert_eq!(ask("GET /events", "").0, 200);
    assert_eq!(ask("POST /events", "").0, 201);
    assert_eq!(ask("POST /events", "Content-Length: 0\r\n").0, 201);
    assert_eq!(ask("GET /events/2", "").1["id"], 2);
    // Two requests in one piece.
    let two = "GET /events/1 HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2);
    assert_eq!(answer(&server, two.as_bytes(), true).matches("HTTP/1.1 200 OK").count(), 2);
    // A request without its end is none.
    let (status, body) = parsed(&answer(&server, b"POST /events HTTP/1.1\r\nHost: h\r\n", true));
    assert!(status == 400 && body["error"].is_string(), "{body}");
    let cut = b"POST /events HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc";
    assert_eq!(parsed(&answer(&server, cut, true)).0, 400);
    assert_eq!(client(&server).count().unwrap(), 2);
    server.stop();
}

#[test]
fn every_error_is_json_and_reaches_the_client() {
    let (_folder, server) = serve(&[]);
    let head = "POST /events HTTP/1.1\r\nHost: h\r\n";
    let long_head = format!("{head}X: {}\r\n\r\n", "x".repeat(200_000));
    let many = format!("{head}{}\r\n", "X: x\r\n".repeat(500));
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(100_000));
    let long_body = format!("{head}Content-Length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
    let chunked = |chunk: &str| format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}");
    for (request, expected) in [
        ("nonsense\r\n\r\n".to_owned(), 400),
        ("GET\r\n\r\n".to_owned(), 400),
        ("GET /events HTTP/9.9\r\nHost: h\r\n\r\n".to_owned(), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400),
        (format!("{head}no header\r\n\r\n"), 400),
        (format!("{head}Content-Length: many\r\n\r\n"), 400),
        (format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400),
        (chunked("ZZ\r\nabc\r\n"), 400),
        (chunked("3\r\nabcdef\r\n"), 400),
        (long_head, 431),
        (many, 431),
        (long_path, 431),
        (long_body, 413),
        (chunked(&format!("{:x}\r\n{}\r\n0\r\n\r\n", 100_000, "x".repeat(100_000))), 413),
    ] {
        let (status, body) = parsed(&answer(&server, request.as_bytes(), false));
        let shown = &request[..request.len().min(100)];
        assert!(status == expected && body["error"].is_string(), "{shown}: {status} {body}");
    }
    // The reply before an error is whole.
    let both = "GET /events HTTP/1.1\r\nHost: h\r\n\r\nnonsense\r\n\r\n";
    let reply = answer(&server, both.as_bytes(), false);
    let (first, second) = reply.split_once("{\"count\":0}").unwrap();
    assert!(first.starts_with("HTTP/1.1 200 OK") && parsed(second).0 == 400, "{reply}");
    assert_eq!(client(&server).count().unwrap(), 0);
    server.stop();
}

#[test]
fn a_request_names_the_server_once_and_by_a_name_that_it_goes_by() {
    let (_folder, server) = serve(&["--events-host", "events.example"]);
    let port = address(&server).port();
    let status = |version: &str, headers: &str| {
        let request = format!("GET /events HTTP/{version}\r\n{headers}Connection: close\r\n\r\n");
        parsed(&answer(&server, request.as_bytes(), false)).0
    };
    assert_eq!(status("1.1", ""), 400);
    assert_eq!(status("1.1", "Host: a\r\nHost: b\r\n"), 400);
    assert_eq!(status("1.0", ""), 200);
    for own in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "[::1]".into(), "events.example".into()] {
        assert_eq!(status("1.1", &format!("Host: {own}\r\n")), 200, "{own}");
    }
    assert_eq!(status("1.1", &format!("Host: evil.example:{port}\r\n")), 403, "DNS rebinding");
    server.stop();
}

#[test]
fn a_page_of_another_site_posts_nothing() {
    let (_folder, server) = serve(&[]);
    let port = address(&server).port();
    let post = |headers: &str| {
        let head = format!("POST /events HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n");
        parsed(&answer(&server, format!("{head}{headers}Content-Length: 2\r\n\r\n{{}}").as_bytes(), false)).0
    };
    for foreign in
        ["Origin: http://evil.example", "Origin: null", "Origin: http://localhost", "Sec-Fetch-Site: cross-site"]
    {
        assert_eq!(post(&format!("{foreign}\r\n")), 403, "{foreign}");
    }
    assert_eq!(client(&server).count().unwrap(), 0);
    assert_eq!(post(&format!("Origin: http://localhost:{port}\r\nSec-Fetch-Site: same-origin\r\n")), 201);
    assert_eq!(post(""), 201, "a program sends neither header");
    server.stop();
}

/// The same, over a database.
#[test]
fn a_client_that_closes_its_half_waits_for_the_database() {
    let Some(stage) = Stage::mysql() else { return };
    let server = stage.serve();
    let post = b"POST /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(parsed(&answer(&server, post, true)).0, 201);
    server.stop();
}
