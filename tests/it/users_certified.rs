//! Users whom a certificate proves: over jobs by both protocols, HTTP and RESP.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{CertifiedKey as MadeKey, generate_simple_self_signed};
use rustix::process::Signal;
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme, StreamOwned};

use crate::harness::{Server, real_peer, spindle, spindle_reads};
use crate::tls::Folder;
use crate::users_tcp::{EVE, ROOT};

/// A certificate of a client, and the key that it signs with. Notes whether a server has asked for it.
#[derive(Debug)]
struct Own {
    pem: String,
    der: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    is_asked: AtomicBool,
}

impl Own {
    fn make() -> Self {
        let MadeKey { cert, signing_key } = generate_simple_self_signed(["client".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        Self { pem: cert.pem(), der: cert.der().clone(), key, is_asked: AtomicBool::new(false) }
    }

    /// The certificate of this one with the key of another.
    fn with_key_of(&self, other: &Self) -> Self {
        Self { pem: self.pem.clone(), der: self.der.clone(), key: other.key.clone_key(), is_asked: false.into() }
    }
}

impl ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_asked.store(true, Ordering::Relaxed);
        let key = default_provider().key_provider.load_private_key(self.key.clone_key()).unwrap();
        Some(Arc::new(CertifiedKey::new(vec![self.der.clone()], key)))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A server of all services with TLS. Its users are ada, who has a certificate and a password, eve, who has a password
/// and few permissions, and root.
struct Certified {
    server: Server,
    folder: Folder,
    ada: Arc<Own>,
}

const ANY: &str = "127.0.0.1:0";

impl Certified {
    fn start() -> Self {
        let (folder, ada) = (Folder::new(), Arc::new(Own::make()));
        let text = |name: &str| folder.path(name).to_str().unwrap().to_owned();
        fs::write(folder.path("ada"), &ada.pem).unwrap();
        let (certificate, users) = (text("ada"), text("users"));
        let may = ["--jobs-write", "mail", "--events", "write", "--write", ""];
        let add = |flags: &[&str]| {
            let file = ["user", "add", "--password-stdin", "--users", &users];
            assert!(spindle_reads(&[&file[..], flags].concat(), b"heron").status.success());
        };
        add(&[&["ada", "--certificate", &certificate], &may[..]].concat());
        add(&["eve", "--jobs-read", "", "--events", "read"]);
        add(&["root", "--admin"]);
        let server = Self::serve(&folder, &["--users", &users, "--beanstalk", "127.0.0.1:0,user=eve"]);
        Self { server, folder, ada }
    }

    fn serve(folder: &Folder, flags: &[&str]) -> Server {
        let data = folder.path("data").to_str().unwrap().to_owned();
        let off = ["--kv", "off", "--publish", "off", "--data", &data, "--resp", ANY, "--beanstalk", ANY];
        let on = ["--jobs", ANY, "--events", ANY, "--events-queue", "tcp://127.0.0.1:*", "--admin", ANY];
        Server::start_exactly(&[&off[..], &on, &folder.flags("certificate", "key"), flags].concat())
    }

    fn connect(&self, address: &str, own: Option<&Arc<Own>>) -> Client {
        Client::connect(&self.folder, address, own)
    }

    /// The reply to a request over HTTP, and the status alone.
    fn status(&self, address: &str, request: &str, authorization: &str, own: Option<&Arc<Own>>) -> String {
        let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\n{authorization}Connection: close\r\n\r\n");
        let reply = self.connect(address, own).rest(&head);
        reply.strip_prefix("HTTP/1.1 ").unwrap()[..3].to_owned()
    }

    fn job(&self, request: &str, own: Option<&Arc<Own>>) -> String {
        self.connect(self.server.jobs(), own).rest(request)
    }

    /// How often a certificate was refused.
    fn refused(&self) -> u64 {
        let head =
            format!("GET /stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: {ROOT}\r\nConnection: close\r\n\r\n");
        let reply = self.connect(self.server.admin(), None).rest(&head);
        let stats: serde_json::Value = serde_json::from_str(reply.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        stats["users"]["refused"]["certificate"].as_u64().unwrap()
    }

    fn user(&self, arguments: &[&str]) -> Output {
        let users = self.folder.path("users");
        spindle(&[&["user"], arguments, &["--users", users.to_str().unwrap()]].concat())
    }
}

struct Client(StreamOwned<ClientConnection, TcpStream>);

impl Client {
    fn connect(folder: &Folder, address: &str, own: Option<&Arc<Own>>) -> Self {
        let mut roots = RootCertStore::empty();
        let pem = fs::read(folder.path("certificate")).unwrap();
        roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = match own {
            Some(own) => config.with_client_cert_resolver(Arc::clone(own) as Arc<dyn ResolvesClientCert>),
            None => config.with_no_client_auth(),
        };
        let session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(StreamOwned::new(session, stream))
    }

    /// Sends a request, with the end of the handshake if it is the first.
    fn send(&mut self, request: &str) {
        self.0.conn.writer().write_all(request.as_bytes()).unwrap();
        // A server that refuses the client may have closed already.
        let _closed = self.0.flush();
    }

    /// The reply to a request is this one.
    #[track_caller]
    fn says(&mut self, request: &str, expected: &str) {
        self.send(request);
        let mut reply = vec![0; expected.len()];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), expected, "{request}");
    }

    /// All that comes after a request until the server ends the connection.
    fn rest(mut self, request: &str) -> String {
        self.send(request);
        let mut reply = String::new();
        self.0.read_to_string(&mut reply).unwrap();
        reply
    }

    /// The server ends the connection, and says nothing.
    #[track_caller]
    fn expect_end(mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }
}

#[test]
fn a_client_with_the_certificate_of_a_user_is_the_user_over_each_service() {
    let certified = Certified::start();
    let (server, own) = (&certified.server, Some(&certified.ada));
    assert_eq!(certified.job("ADD mail 2 hi", own), "00000000000000000001");
    assert_eq!(certified.job("GET mail\n", own), "00000000000000000001 2 hi");
    assert_eq!(certified.job("ADD other 2 hi", own), "ERROR");
    assert_eq!(certified.job("AUTH ada\nIN mail 1\n", own), "ERROR", "the line is malformed");
    // Also where each client without a certificate is eve.
    for address in server.beanstalk_all() {
        let mut client = certified.connect(address, own);
        client.says("use mail\r\n", "USING mail\r\n");
        client.says("kick 1\r\n", "KICKED 0\r\n");
        client.says("use other\r\nkick 1\r\n", "USING other\r\nNOT_ALLOWED\r\n");
    }
    for (address, request, status) in [
        (server.events(), "GET /events", "200"),
        (server.events(), "POST /events", "201"),
        (server.admin(), "GET /stats", "403"),
        (server.admin(), "GET /health", "200"),
    ] {
        assert_eq!(certified.status(address, request, "", own), status, "{request}");
    }
    let mut client = certified.connect(server.resp(), own);
    client.says("SET a 1\r\nGET a\r\n", "+OK\r\n$1\r\n1\r\n");
    client.says("FLUSHDB\r\n", "-NOPERM");
    assert_eq!(certified.refused(), 0);
    certified.server.stop();
}

#[test]
fn a_client_with_an_unknown_certificate_is_nobody_until_it_has_a_password() {
    let certified = Certified::start();
    let (server, unknown) = (&certified.server, Arc::new(Own::make()));
    let own = Some(&unknown);
    assert_eq!(certified.job("ADD mail 2 hi", own), "ERROR");
    assert_eq!(certified.job("AUTH ada heron\nADD mail 2 hi", own), "00000000000000000001");
    let mut client = certified.connect(server.beanstalk(), own);
    client.says("use mail\r\n", "NOT_AUTHENTICATED\r\n");
    client.says("auth ada heron\r\nuse mail\r\n", "AUTHENTICATED\r\nUSING mail\r\n");
    let mut eve = certified.connect(server.beanstalk_all().nth(1).unwrap(), own);
    eve.says("use mail\r\nkick 1\r\n", "USING mail\r\nNOT_ALLOWED\r\n");
    assert_eq!(certified.status(server.events(), "GET /events", "", own), "401");
    let mut client = certified.connect(server.resp(), own);
    client.says("GET a\r\n", "-NOAUTH Authentication required.\r\n");
    client.says("AUTH ada heron\r\nGET a\r\n", "+OK\r\n$-1\r\n");
    assert_eq!(certified.refused(), 5, "a line for jobs decides before a certificate is looked at");
    certified.server.stop();
}

#[test]
fn a_certificate_with_the_key_of_somebody_else_ends_the_handshake() {
    let certified = Certified::start();
    let thief = Some(Arc::new(certified.ada.with_key_of(&Own::make())));
    let server = &certified.server;
    let requests = [
        (server.jobs(), "IN mail 1\n"),
        (server.beanstalk(), "list-tubes\r\n"),
        (server.events(), "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        (server.resp(), "PING\r\n"),
    ];
    for (address, request) in requests {
        let mut client = certified.connect(address, thief.as_ref());
        client.send(request);
        client.expect_end();
    }
    assert_eq!(certified.job("ADD mail 2 hi", Some(&certified.ada)), "00000000000000000001");
    certified.server.stop();
}

#[test]
fn a_password_decides_who_a_client_with_a_certificate_is() {
    let certified = Certified::start();
    let (server, own) = (&certified.server, Some(&certified.ada));
    assert_eq!(certified.job("AUTH eve heron\nADD mail 2 hi", own), "ERROR");
    assert_eq!(certified.job("AUTH ada egret\nADD mail 2 hi", own), "ERROR");
    let mut client = certified.connect(server.beanstalk(), own);
    client.says("use mail\r\nkick 1\r\n", "USING mail\r\nKICKED 0\r\n");
    client.says("auth eve heron\r\nkick 1\r\n", "AUTHENTICATED\r\nNOT_ALLOWED\r\n");
    let eve = format!("Authorization: {EVE}\r\n");
    assert_eq!(certified.status(server.events(), "POST /events", &eve, own), "403");
    assert_eq!(certified.status(server.events(), "GET /events", "Authorization: Bearer x\r\n", own), "401");
    let mut client = certified.connect(server.resp(), own);
    client.says("SET a 1\r\n", "+OK\r\n");
    client.says("AUTH eve egret\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    client.says("GET a\r\n", "$1\r\n1\r\n");
    client.says("AUTH eve heron\r\n", "+OK\r\n");
    client.says("GET a\r\n", "-NOPERM");
    certified.server.stop();
}

#[test]
fn a_user_who_is_removed_or_has_another_certificate_loses_its_connections() {
    let certified = Certified::start();
    let (server, own) = (&certified.server, Some(&certified.ada));
    let begin = || {
        let mut of_jobs = certified.connect(server.beanstalk(), own);
        of_jobs.says("use mail\r\nkick 1\r\n", "USING mail\r\nKICKED 0\r\n");
        let mut of_tables = certified.connect(server.resp(), own);
        of_tables.says("GET a\r\n", "$-1\r\n");
        (of_jobs, of_tables)
    };
    let changes = |arguments: &[&str]| {
        assert!(certified.user(arguments).status.success());
        server.signal(Signal::HUP);
    };
    let over = |(mut of_jobs, of_tables): (Client, Client)| {
        of_tables.expect_end();
        of_jobs.says("kick 1\r\n", "");
        of_jobs.expect_end();
        assert_eq!(certified.status(server.events(), "GET /events", "", own), "401");
        assert_eq!(certified.job("IN mail 1\n", own), "ERROR");
    };
    let begun = begin();
    let other = Arc::new(Own::make());
    fs::write(certified.folder.path("other"), &other.pem).unwrap();
    let file = certified.folder.path("other").to_str().unwrap().to_owned();
    changes(&["edit", "ada", "--certificate", &file]);
    over(begun);
    assert_eq!(certified.job("IN mail 1\n", Some(&other)), "NO");
    fs::write(certified.folder.path("other"), &certified.ada.pem).unwrap();
    changes(&["edit", "ada", "--certificate", &file]);
    while certified.job("IN mail 1\n", own) != "NO" {}
    let begun = begin();
    changes(&["remove", "ada"]);
    over(begun);
    certified.server.stop();
}

#[test]
fn without_users_no_client_is_asked_for_a_certificate() {
    let (folder, own) = (Folder::new(), Arc::new(Own::make()));
    let server = Certified::serve(&folder, &[]);
    let connect = |address: &str| Client::connect(&folder, address, Some(&own));
    assert_eq!(connect(server.jobs()).rest("ADD mail 2 hi"), "00000000000000000001");
    connect(server.beanstalk()).says("use mail\r\n", "USING mail\r\n");
    connect(server.resp()).says("PING\r\n", "+PONG\r\n");
    assert!(!own.is_asked.load(Ordering::Relaxed));
    server.stop();
    let certified = Certified::start();
    assert_eq!(certified.job("IN mail 1\n", Some(&certified.ada)), "NO");
    assert!(certified.ada.is_asked.load(Ordering::Relaxed));
    assert_eq!(certified.job("AUTH ada heron\nIN mail 1\n", None), "NO", "none is needed");
    certified.server.stop();
}

#[test]
fn a_certificate_is_one_users_and_the_file_takes_what_openssl_prints() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, users) = (path("certificate"), path("users"));
    fs::write(&certificate, Own::make().pem).unwrap();
    let user = |arguments: &[&str]| spindle(&[&["user"], arguments, &["--users", &users]].concat());
    let failed = |arguments: &[&str], status: i32, about: &str| {
        let output = user(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && said.contains(about), "{arguments:?}: {said}");
    };
    let listed = || String::from_utf8(user(&["list"]).stdout).unwrap();
    assert!(user(&["add", "ada", "--certificate", &certificate, "--admin"]).status.success());
    let ada = listed();
    assert!(ada.starts_with("ada  admin  certificate ") && !ada.contains("password"), "{ada}");
    failed(&["add", "eve", "--certificate", &certificate], 1, "the certificate of \"eve\" is that of \"ada\"");
    failed(&["add", "eve", "--certificate", &users], 1, "it has no certificate");
    failed(&["add", "eve", "--certificate", &path("nowhere")], 1, "it cannot be read");
    failed(&["edit", "ada", "--no-certificate"], 1, "no password, key or certificate");
    failed(&["edit", "ada", "--no-certificate", "--certificate", &certificate], 2, "--no-certificate");
    if let Some(openssl) = real_peer("openssl") {
        let arguments = ["x509", "-noout", "-fingerprint", "-sha256", "-in", &certificate];
        let printed = String::from_utf8(Command::new(openssl).args(arguments).output().unwrap().stdout).unwrap();
        let (_, fingerprint) = printed.trim().split_once('=').unwrap();
        fs::write(&users, format!("[ada]\nadmin = true\ncertificate = \"{fingerprint}\"\n")).unwrap();
        assert_eq!(listed(), ada);
    }
}
