//! Redis clients over TLS: small and large values, handshakes that stop or never begin, many connections.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{Server, real_peer};
use crate::resp_operation::{reply, send};
use crate::tls::Folder;

/// A server for Redis clients over TLS, its certificate, and how clients begin.
struct TlsServer {
    server: Server,
    folder: Folder,
    config: Arc<ClientConfig>,
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

impl TlsServer {
    fn start() -> Self {
        let folder = Folder::new();
        let on = ["--kv", "off", "--publish", "off", "--resp", "127.0.0.1:0", "--resp-workers", "2"];
        let server = Server::start_exactly(&[&on[..], &folder.flags("certificate", "key")].concat());
        let mut roots = RootCertStore::empty();
        let pem = fs::read(folder.path("certificate")).unwrap();
        roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        Self { server, folder, config }
    }

    fn plain(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.resp()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn connect(&self) -> TlsStream {
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), name).unwrap(), self.plain())
    }
}

fn ask(stream: &mut TlsStream, words: &[&[u8]]) -> Vec<u8> {
    send(stream, words);
    stream.flush().unwrap();
    reply(stream)
}

#[test]
fn commands_are_served_also_in_pipelines_and_one_byte_after_the_other() {
    let tls = TlsServer::start();
    let mut stream = tls.connect();
    assert_eq!(ask(&mut stream, &[b"SET", b"a", b"1"]), b"+OK\r\n");
    let mut expected = Vec::new();
    for round in 0..8_u32 {
        let mut sent = Vec::new();
        for number in 0..4_000_u32 {
            let (key, value) = ((round << 16 | number).to_le_bytes(), [b'x'; 100]);
            send(&mut sent, &[b"SET", &key, &value]);
            send(&mut sent, &[b"GET", &key]);
            expected.extend_from_slice(&[&b"+OK\r\n$100\r\n"[..], &value, b"\r\n"].concat());
        }
        stream.write_all(&sent).unwrap();
        stream.flush().unwrap();
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == expected, "{round}");
        expected.clear();
    }
    let mut sent = Vec::new();
    send(&mut sent, &[b"GET", b"a"]);
    for byte in sent {
        stream.write_all(&[byte]).unwrap();
        stream.flush().unwrap();
    }
    assert_eq!(reply(&mut stream), b"$1\r\n1\r\n");
    assert_eq!(ask(&mut stream, &[b"QUIT"]), b"+OK\r\n");
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "the server says that it ends");
    tls.server.stop();
}

#[test]
fn the_largest_value_goes_both_ways() {
    let tls = TlsServer::start();
    let mut stream = tls.connect();
    let value: Vec<u8> = (0..16_u32 << 20).map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for _ in 0..2 {
        assert_eq!(ask(&mut stream, &[b"SET", b"large", &value]), b"+OK\r\n");
        let got = ask(&mut stream, &[b"GET", b"large"]);
        assert!(got.starts_with(b"$16777216\r\n") && got[11..got.len() - 2] == value);
    }
    let mut slow = tls.connect();
    send(&mut slow, &[b"GET", b"large"]);
    slow.flush().unwrap();
    // It does not read now, and others are served.
    assert_eq!(ask(&mut stream, &[b"STRLEN", b"large"]), b":16777216\r\n");
    assert_eq!(reply(&mut slow).len(), value.len() + 13);
    tls.server.stop();
}

/// The bytes until the end of a connection, which the server closes.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "after {}", bytes.escape_ascii()),
    }
    bytes
}

#[test]
fn what_is_no_handshake_is_answered_by_an_alert_and_closed() {
    let tls = TlsServer::start();
    let mut open = tls.connect();
    assert_eq!(ask(&mut open, &[b"PING"]), b"+PONG\r\n");
    for noise in
        [&b"*1\r\n$4\r\nPING\r\n"[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0; 100_000], b"\x16\x03\x01\xff\xff"]
    {
        let mut stream = tls.plain();
        // The server may close before it has read all.
        let _closed_early = stream.write_all(noise);
        let alert = rest(stream);
        assert!(alert.is_empty() || alert[0] == 0x15, "{}", alert.escape_ascii());
    }
    // Records that cannot be opened, in an open session.
    let mut broken = tls.connect();
    assert_eq!(ask(&mut broken, &[b"PING"]), b"+PONG\r\n");
    broken.sock.write_all(b"\x17\x03\x03\x00\x20nothing of this was ever sealed.").unwrap();
    let mut alert = [0; 64];
    assert!(broken.sock.read(&mut alert).is_ok_and(|count| count > 0), "an alert, sealed");
    assert_eq!(ask(&mut open, &[b"PING"]), b"+PONG\r\n");
    tls.server.stop();
}

#[test]
fn handshakes_that_stop_halfway_end_in_time_and_cost_others_nothing() {
    let tls = TlsServer::start();
    let name = ServerName::try_from("localhost").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(Arc::clone(&tls.config), name).unwrap().write_tls(&mut hello).unwrap();
    let halves: Vec<TcpStream> = [0, 1, 5, hello.len() / 2, hello.len()]
        .map(|length| {
            let mut stream = tls.plain();
            stream.write_all(&hello[..length]).unwrap();
            stream
        })
        .into();
    let mut open = tls.connect();
    assert_eq!(ask(&mut open, &[b"PING"]), b"+PONG\r\n");
    for half in halves {
        let answer = rest(half);
        assert!(answer.first().is_none_or(|kind| matches!(kind, 0x15 | 0x16)), "{}", answer.escape_ascii());
    }
    assert_eq!(ask(&mut open, &[b"PING"]), b"+PONG\r\n", "it has been through its own");
    tls.server.stop();
}

#[test]
fn many_connections_are_served_and_leave() {
    let tls = TlsServer::start();
    let mut streams: Vec<_> = (0..300).map(|_| tls.connect()).collect();
    for round in 0..3_u8 {
        for (number, stream) in (0_u16..).zip(&mut streams) {
            let key = number.to_le_bytes();
            assert_eq!(ask(stream, &[b"SET", &key, &[round]]), b"+OK\r\n");
        }
        for (number, stream) in (0_u16..300).zip(&mut streams).rev() {
            assert_eq!(ask(stream, &[b"GET", &number.to_le_bytes()]), [b"$1\r\n", &[round][..], b"\r\n"].concat());
        }
    }
    drop(streams.split_off(1));
    crate::admin::awaited("their ends", || {
        let info = ask(&mut streams[0], &[b"INFO", b"clients"]);
        String::from_utf8(info).unwrap().contains("connected_clients:1\r\n").then_some(())
    });
    tls.server.stop();
}

#[test]
fn redis_cli_is_served_over_tls() {
    let Some(program) = real_peer("redis-cli") else { return };
    let tls = TlsServer::start();
    let (_, port) = tls.server.resp().rsplit_once(':').unwrap();
    let certificate = tls.folder.path("certificate");
    let run = |words: &[&str], input: &[u8]| {
        let mut command = Command::new(&program);
        command
            .args(["-h", "localhost", "-p", port, "--tls", "--sni", "localhost", "--cacert"])
            .arg(&certificate)
            .args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(run(&["set", "a", "b"], b""), b"OK\n");
    assert_eq!(run(&["get", "a"], b""), b"b\n");
    let value = vec![b'x'; 16 << 20];
    assert_eq!(run(&["-x", "set", "large"], &value), b"OK\n");
    assert_eq!(run(&["get", "large"], b"").len(), value.len() + 1);
    let pipelined: String = (0..50_000).map(|number| format!("SET {number} {number}\r\n")).collect();
    let said = String::from_utf8(run(&["--pipe"], pipelined.as_bytes())).unwrap();
    assert!(said.ends_with("errors: 0, replies: 50000\n"), "{said}");
    assert_eq!(run(&["dbsize"], b""), b"50002\n");
    tls.server.stop();
}
