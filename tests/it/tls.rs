//! TLS of jobs, events and `--admin`: served, read again, and refused at the start if its files are wrong.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustix::process::Signal;
use spindle::zmtp::PublicKey;

use crate::harness::{Server, real_peer, run_python, spindle, spindle_reads};

/// A folder with a certificate, its key, and the log of a server.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.renew();
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Makes another certificate and its key, and replaces the files in one step each.
    fn renew(&self) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        for (name, text) in [("key", signing_key.serialize_pem()), ("certificate", cert.pem())] {
            fs::write(self.path("new"), text).unwrap();
            fs::rename(self.path("new"), self.path(name)).unwrap();
        }
    }

    /// A server that others can reach, with a user `root` whose password is `heron`.
    pub(crate) fn start(&self) -> Server {
        self.start_with("0.0.0.0:0", &self.flags("certificate", "key"))
    }

    /// The same server, for this host alone and not encrypted.
    pub(crate) fn start_plain(&self) -> Server {
        self.start_with("127.0.0.1:0", &[])
    }

    fn start_with(&self, any: &str, tls: &[&str]) -> Server {
        let users = self.users();
        let data = self.text("data");
        let on = ["--frontend", "native", "--jobs", any, "--events", any, "--events-queue", "tcp://127.0.0.1:*"];
        let more = ["--admin", any, "--data", &data, "--users", &users];
        Server::start_logging(&self.path("log"), &[&on[..], &more, tls].concat())
    }

    /// A file of users with `root`, whose password is `heron`.
    fn users(&self) -> String {
        let users = self.text("users");
        let add = ["user", "add", "root", "--admin", "--password-stdin", "--users", &users];
        assert!(spindle_reads(&add, b"heron").status.success());
        users
    }

    /// A server of tables, with the same user, and its public key.
    pub(crate) fn start_tables(&self) -> (Server, PublicKey) {
        let (users, key) = (self.users(), self.text("curve"));
        let made = spindle(&["keygen", &key]);
        let public = String::from_utf8(made.stdout).unwrap().trim().parse().unwrap();
        (Server::start(&["--frontend", "queue", "--users", &users, "--curve-key", &key]), public)
    }

    /// Its user is served.
    pub(crate) fn ask_tables(&self, server: &Server) {
        let password = self.text("password");
        fs::write(&password, "heron\n").unwrap();
        let login = ["ping", "--connect", server.kv(), "--user", "root", "--password-file", &password];
        // The passwords of those that have gone are dropped in their turn, and until then no more may wait.
        while !spindle(&login).status.success() {
            assert!(rustix::process::test_kill_process(server.pid()).is_ok(), "the server has ended");
        }
    }

    pub(crate) fn flags(&self, certificate: &str, key: &str) -> [&'static str; 4] {
        let leak = |name: &str| -> &'static str { self.text(name).leak() };
        ["--tls-cert", leak(certificate), "--tls-key", leak(key)]
    }

    pub(crate) fn run(&self, chapter: &str, server: &Server) {
        let certificate = self.text("certificate");
        run_python("tls.py", &[chapter, &certificate, server.jobs(), server.events(), server.admin()]);
    }

    /// Waits until the log says this so many times.
    fn wait_for_log(&self, said: &str, times: usize) {
        while fs::read_to_string(self.path("log")).unwrap().matches(said).count() < times {
            std::thread::yield_now();
        }
    }
}

#[test]
fn jobs_events_and_the_operator_are_served_encrypted() {
    let folder = Folder::new();
    let server = folder.start();
    folder.run("served", &server);
    if let Some(curl) = real_peer("curl") {
        let url = server.admin().replace("0.0.0.0", "https://localhost") + "/stats";
        let flags = ["--silent", "--show-error", "--fail", "--noproxy", "*", "--user", "root:heron", "--cacert"];
        let output = Command::new(curl).args(flags).args([&folder.text("certificate"), &url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8(output.stdout).unwrap().starts_with("{\"version\""));
    }
    server.stop();
}

#[test]
fn commands_speak_tls_with_a_server_whose_authority_they_are_given() {
    let (folder, other) = (Folder::new(), Folder::new());
    let server = folder.start();
    let password = folder.text("password");
    fs::write(&password, "heron\n").unwrap();
    let login = ["--user", "root", "--password-file", &password];
    let run = |command: &[&str], at: &[&str]| spindle(&[command, at, &login].concat());
    let port = |address: &str| address.rsplit_once(':').unwrap().1.to_owned();
    let (jobs, admin) = (port(server.jobs()), port(server.admin()));
    let (authority, untrusted) = (folder.text("certificate"), other.text("certificate"));
    let add = ["job", "add", "mail", "to ada"];
    for scheme in ["", "tls://"] {
        let at = format!("{scheme}localhost:{jobs}");
        let added = run(&add, &["--connect", &at, "--tls-ca", &authority]);
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    let got = run(&["job", "get", "mail"], &["--connect", &format!("localhost:{jobs}"), "--tls-ca", &authority]);
    assert!(got.stdout.ends_with(b"\nto ada\n"));
    let near = format!("https://localhost:{admin}");
    for command in [&["slow", "--json"][..], &["top", "--once"]] {
        let shown = run(command, &["--admin", &near, "--tls-ca", &authority]);
        assert!(shown.status.success() && !shown.stdout.is_empty(), "{}", String::from_utf8_lossy(&shown.stderr));
    }
    let failed = |command: &[&str], at: &[&str], status: i32, about: &str| {
        let output = run(command, at);
        let said = String::from_utf8(output.stderr).unwrap();
        let is_right = said.contains(about) && said.lines().count() == 1;
        assert!(output.status.code() == Some(status) && is_right, "{command:?} {at:?}: {said}");
    };
    let slow = ["slow"];
    for (command, flag, port) in [(&add[..], "--connect", &jobs), (&slow, "--admin", &admin)] {
        let (by_name, by_number) = (format!("localhost:{port}"), format!("127.0.0.1:{port}"));
        failed(command, &[flag, &by_name, "--tls-ca", &untrusted], 1, "is not trusted");
        failed(command, &[flag, &by_number, "--tls-ca", &authority], 1, "by a name that is in the certificate");
        failed(command, &[flag, &by_name], 1, "speaks TLS: give the file of the authority");
        failed(command, &[flag, &format!("tls://{by_name}")], 2, "--tls-ca");
        failed(command, &[flag, &format!("tcp://{by_name}"), "--tls-ca", &authority], 2, "leave out --tls-ca");
        failed(command, &[flag, &by_name, "--tls-ca", &password], 1, "it has no certificate");
    }
    server.stop();
}

#[test]
fn a_command_that_is_to_speak_tls_says_so_of_a_server_that_does_not() {
    let folder = Folder::new();
    let server = Server::start_jobs(&folder.path("data"), &["--admin", "127.0.0.1:0"]);
    let authority = folder.text("certificate");
    for (command, address) in
        [(&["job", "get", "q", "--connect"][..], server.jobs()), (&["slow", "--admin"], server.admin())]
    {
        let address = address.replace("127.0.0.1", "localhost");
        let output = spindle(&[command, &[&*address, "--tls-ca", &authority]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("does not speak TLS"), "{said}");
    }
    server.stop();
}

#[test]
fn the_certificate_is_read_again_and_a_broken_one_changes_nothing() {
    let folder = Folder::new();
    let server = folder.start();
    folder.run("comes", &server);
    folder.renew();
    server.signal(Signal::HUP);
    folder.run("comes", &server);
    fs::copy(folder.path("certificate"), folder.path("good")).unwrap();
    for broken in ["", "-----BEGIN CERTIFICATE-----\n"] {
        fs::write(folder.path("certificate"), broken).unwrap();
        server.signal(Signal::HUP);
        folder.wait_for_log("the certificate stays as it was", 1);
    }
    fs::rename(folder.path("good"), folder.path("certificate")).unwrap();
    folder.run("served", &server);
    server.stop();
}

#[test]
fn a_client_that_does_not_finish_its_handshake_costs_its_own_connection_alone() {
    let folder = Folder::new();
    let server = folder.start();
    let silent: Vec<TcpStream> = [server.jobs(), server.events(), server.admin()]
        .into_iter()
        .flat_map(|address| {
            (0..20).map(|number| {
                let mut stream = TcpStream::connect(address.replace("0.0.0.0", "127.0.0.1")).unwrap();
                // The beginning of a ClientHello, or nothing.
                stream.write_all(&b"\x16\x03\x01\x02\x00\x01"[..number % 7]).unwrap();
                stream
            })
        })
        .collect();
    folder.run("served", &server);
    // They are closed when their time is over.
    for mut stream in silent {
        let mut received = Vec::new();
        let _reset = stream.read_to_end(&mut received);
    }
    server.stop();
}

#[test]
fn wrong_files_are_refused_at_the_start() {
    let (folder, other) = (Folder::new(), Folder::new());
    fs::copy(other.path("key"), folder.path("other-key")).unwrap();
    let serve = |certificate: &str, key: &str| {
        let data = folder.text("data");
        let flags = ["serve", "--kv", "off", "--publish", "off", "--jobs", "127.0.0.1:0", "--data", &data];
        let output = spindle(&[&flags[..], &folder.flags(certificate, key)].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(!Path::new(&data).exists(), "nothing is left");
        String::from_utf8(output.stderr).unwrap()
    };
    for (certificate, key, about) in [
        ("nowhere", "key", "nowhere: it cannot be read"),
        ("key", "key", "key: it has no certificate"),
        ("certificate", "certificate", "certificate: it has no private key"),
        ("certificate", "other-key", "other-key: it is not the key of the certificate in"),
    ] {
        let said = serve(certificate, key);
        assert!(said.contains(about) && said.contains("--tls-cert") && said.lines().count() <= 2, "{said}");
    }
}

/// As everybody makes one for a test. curl takes it, and commands refused it: an authority is no server's certificate.
#[test]
fn a_certificate_that_openssl_has_signed_by_itself_is_trusted_as_itself() {
    let Some(openssl) = real_peer("openssl") else { return };
    for names in [&["-addext", "subjectAltName=DNS:localhost"][..], &[]] {
        let folder = Folder::new();
        let mut command = Command::new(&openssl);
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        command.args(["-keyout", &folder.text("key"), "-out", &folder.text("certificate")]).args(names);
        assert!(command.output().unwrap().status.success());
        let server = folder.start_with("127.0.0.1:0", &folder.flags("certificate", "key"));
        let password = folder.text("password");
        fs::write(&password, "heron").unwrap();
        let at = format!("localhost:{}", server.jobs().rsplit_once(':').unwrap().1);
        let login = ["--user", "root", "--password-file", &password];
        let add = ["job", "add", "mail", "x", "--connect", &at, "--tls-ca", &folder.text("certificate")];
        let output = spindle(&[&add[..], &login].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let other = Folder::new();
        let add = ["job", "add", "mail", "x", "--connect", &at, "--tls-ca", &other.text("certificate")];
        assert_eq!(spindle(&[&add[..], &login].concat()).status.code(), Some(1));
        server.stop();
    }
}
