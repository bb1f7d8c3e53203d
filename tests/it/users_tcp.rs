//! Users over plain TCP: `AUTH` before a command about jobs, and `Authorization: Basic` over HTTP.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::harness::{Server, spindle, spindle_reads};
use crate::jobs::{is_id, rest};

/// A server with jobs, events and `--admin`, and the users ada, eve, of few permissions, and root.
pub(crate) struct Served {
    pub(crate) server: Server,
    folder: tempfile::TempDir,
}

impl Served {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let users = inside("users");
        let add = |flags: &[&str]| {
            let output =
                spindle_reads(&[&["user", "add", "--password-stdin", "--users", &users], flags].concat(), b"heron");
            assert!(output.status.success());
        };
        add(&["ada", "--jobs-write", "mail", "--events", "write"]);
        add(&["eve", "--jobs-read", "", "--events", "read"]);
        add(&["root", "--admin"]);
        let any = "127.0.0.1:0";
        let data = inside("data");
        let native = ["--frontend", "native"];
        let on = ["--jobs", any, "--events", any, "--events-queue", "tcp://127.0.0.1:*", "--admin", any];
        let flags = [&native[..], &on, &["--data", &data, "--users", &users]].concat();
        let server = Server::start_logging(&folder.path().join("log"), &flags);
        Self { server, folder }
    }

    pub(crate) fn users(&self) -> String {
        self.folder.path().join("users").to_str().unwrap().to_owned()
    }

    /// Where the server keeps all of it.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn job(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.server.jobs()).unwrap();
        stream.write_all(bytes).unwrap();
        rest(stream)
    }

    /// The refusals until now, by their reasons.
    fn refused(&self) -> serde_json::Value {
        let stats = http(self.server.admin(), "GET /stats", Some(ROOT));
        let stats: serde_json::Value = serde_json::from_str(stats.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        stats["users"]["refused"].clone()
    }

    /// Nothing that was logged shows a password. Each refusal has its address, if its client was still there.
    pub(crate) fn stop(self) {
        let log = self.log();
        self.server.stop();
        let log = fs::read_to_string(log).unwrap();
        assert!(!log.contains("heron") && !log.contains("egret"), "{log}");
        let has_address = |line: &str| line.contains("127.0.") || line.contains("a client that is gone");
        assert!(log.lines().filter(|line| line.contains(": refused \"")).all(has_address), "{log}");
    }
}

#[test]
fn a_connection_for_jobs_names_its_user_before_its_command() {
    let served = Served::start();
    let id = served.job(b"AUTH ada heron\nADD mail 2 hi");
    assert!(is_id(&id), "{id}");
    assert_eq!(served.job(format!("AUTH eve heron\r\nIN mail {id}\n").as_bytes()), "YES");
    for refused in [
        &b"ADD mail 2 hi"[..],
        b"GET mail\n",
        b"AUTH ada egret\nGET mail\n",
        b"AUTH bob heron\nGET mail\n",
        b"AUTH ada\nGET mail\n",
        b"AUTH eve heron\nGET mail\n",
        b"AUTH ada heron\nGET other\n",
        b"AUTH ada heron\nADD other 1 x",
        b"AUTH ada heron\nAUTH ada heron\nGET mail\n",
        b"AUTH ada heron\nnonsense\n",
    ] {
        assert_eq!(served.job(refused), "ERROR", "{}", refused.escape_ascii());
    }
    let refused = served.refused();
    assert_eq!(refused["password"], 2, "{refused}");
    assert_eq!((&refused["anonymous"], &refused["permission"]), (&3.into(), &3.into()), "{refused}");
    // However it is cut.
    let mut stream = TcpStream::connect(served.server.jobs()).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in b"AUTH ada heron\nGET mail\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(rest(stream), format!("{id} 2 hi"));
    assert_eq!(served.job(format!("AUTH root heron\nACK mail {id}\n").as_bytes()), "OK");
    let mut late = TcpStream::connect(served.server.jobs()).unwrap();
    late.write_all(b"AUTH ada heron\n").unwrap();
    assert!(spindle(&["user", "remove", "ada", "--users", &served.users()]).status.success());
    while served.job(b"AUTH ada heron\nGET mail\n") != "ERROR" {}
    late.write_all(b"GET mail\n").unwrap();
    assert_eq!(rest(late), "ERROR", "it was admitted when it was a user");
    assert_eq!(served.job(b"AUTH root heron\nGET mail\n"), "NONE");
    served.stop();
}

#[test]
fn a_command_about_jobs_logs_in() {
    let served = Served::start();
    let file = served.folder.path().join("password");
    let run = |password: &str, queue: &str| {
        fs::write(&file, password).unwrap();
        let login = ["--user", "ada", "--password-file", file.to_str().unwrap()];
        spindle(&[&["job", "add", queue, "data", "--connect", served.server.jobs()][..], &login].concat())
    };
    assert!(run("heron\n", "mail").status.success());
    let status = |output: Output, about: &str| {
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(about) && said.lines().count() == 1, "{said}");
        output.status.code().unwrap()
    };
    for (password, queue) in [("egret\n", "mail"), ("heron\n", "other")] {
        assert_eq!(status(run(password, queue), "denies permission"), 5);
    }
    let nobody = spindle(&["job", "get", "mail", "--connect", served.server.jobs()]);
    assert_eq!(status(nobody, "--user"), 5);
    assert_eq!(status(run("heron\n", "two words"), "without white space"), 2, "it was not sent");
    assert!(run("heron\n", "mail").status.success());
    let folder = tempfile::tempdir().unwrap();
    let open = Server::start_jobs(folder.path(), &[]);
    let login = ["--user", "ada", "--password-file", file.to_str().unwrap(), "--connect", open.jobs()];
    assert_eq!(status(spindle(&[&["job", "get", "mail"], &login[..]].concat()), "leave out --user"), 1);
    open.stop();
    served.stop();
}

#[test]
fn without_users_a_line_that_names_one_is_no_command() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_jobs(folder.path(), &[]);
    let mut stream = TcpStream::connect(server.jobs()).unwrap();
    stream.write_all(b"AUTH ada heron\nGET mail\n").unwrap();
    assert_eq!(rest(stream), "ERROR");
    server.stop();
}

/// `heron` and `egret` as the passwords of these users, in base 64.
pub(crate) const ADA: &str = "Basic YWRhOmhlcm9u";
pub(crate) const EVE: &str = "Basic ZXZlOmhlcm9u";
pub(crate) const ROOT: &str = "Basic cm9vdDpoZXJvbg==";
pub(crate) const WRONG: &str = "Basic YWRhOmVncmV0";

/// Sends a request, with this authorization, and returns the whole reply.
pub(crate) fn http(address: &str, request: &str, authorization: Option<&str>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let authorization = authorization.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
    let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\n{authorization}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[track_caller]
fn answered(address: &str, request: &str, authorization: Option<&str>, status: u16) {
    let reply = http(address, request, authorization);
    assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {reply}");
    let challenge = "www-authenticate: Basic realm=\"spindle\", charset=\"UTF-8\"\r\n";
    assert_eq!(reply.contains(challenge), status == 401, "{reply}");
}

#[test]
fn a_request_over_http_names_its_user() {
    let served = Served::start();
    let (events, admin) = (served.server.events(), served.server.admin());
    let rows = [
        ("POST /events", ADA, 201),
        ("POST /events", EVE, 403),
        ("POST /events/async", EVE, 403),
        ("GET /events", EVE, 200),
        ("GET /events/1", EVE, 200),
        ("HEAD /events/1", EVE, 200),
        ("GET /events/2", EVE, 404),
        ("GET /nowhere", EVE, 404),
        ("DELETE /events", EVE, 403),
        ("DELETE /events", ADA, 405),
        ("GET /events", "Bearer heron", 401),
        ("GET /events", WRONG, 401),
    ];
    for (request, authorization, status) in rows {
        answered(events, request, Some(authorization), status);
    }
    for (request, status) in [("GET /health", 200), ("GET /events", 401), ("POST /events", 401), ("GET /nowhere", 401)]
    {
        answered(events, request, None, status);
    }
    for (path, without, as_ada, as_root) in [
        ("/health", 200, 200, 200),
        ("/ready", 200, 200, 200),
        ("/stats", 401, 403, 200),
        ("/metrics", 401, 403, 200),
        ("/slow", 401, 403, 200),
        ("/", 401, 403, 200),
        ("/page/page.js", 401, 403, 200),
        ("/x", 401, 403, 404),
    ] {
        let request = format!("GET {path}");
        answered(admin, &request, None, without);
        answered(admin, &request, Some(ADA), as_ada);
        answered(admin, &request, Some(ROOT), as_root);
    }
    // The reply to root has no end.
    answered(admin, "GET /events", None, 401);
    answered(admin, "GET /events", Some(ADA), 403);
    // Every refusal is counted, by its reason.
    let refused = served.refused();
    assert_eq!((&refused["password"], &refused["permission"]), (&1.into(), &10.into()), "{refused}");
    assert_eq!(refused["anonymous"], 11, "{refused}");
    let metrics = http(admin, "GET /metrics", Some(ROOT));
    assert!(metrics.contains("spindle_denials_total{reason=\"permission\"} 10\n"), "{metrics}");
    assert!(spindle(&["user", "remove", "ada", "--users", &served.users()]).status.success());
    while !http(events, "GET /events", Some(ADA)).starts_with("HTTP/1.1 401 ") {}
    answered(events, "GET /events", Some(EVE), 200);
    served.stop();
}

/// A removed user continued to read what the page shows.
#[test]
fn a_reply_without_an_end_ends_with_its_user() {
    let served = Served::start();
    let live = |authorization: &str| {
        let mut stream = TcpStream::connect(served.server.admin()).unwrap();
        let head = format!(
            "GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut begun = vec![0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut begun).unwrap();
        assert_eq!(begun, b"HTTP/1.1 200");
        stream
    };
    let mut root = live(ROOT);
    assert!(spindle(&["user", "remove", "root", "--users", &served.users()]).status.success());
    let mut rest = Vec::new();
    root.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "it is whole");
    served.stop();
}

#[test]
fn a_connection_is_used_again_after_a_refusal() {
    let served = Served::start();
    let mut stream = TcpStream::connect(served.server.events()).unwrap();
    let request = |authorization: &str| {
        format!("POST /events HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Length: 2\r\n\r\n{{}}")
    };
    let login = format!("Authorization: {ADA}\r\n");
    let all = [request(""), request(&login), request("Connection: close\r\n")].concat();
    stream.write_all(all.as_bytes()).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let statuses: Vec<&str> =
        replies.lines().filter_map(|line| line.split("HTTP/1.1 ").nth(1)).map(|rest| &rest[..3]).collect();
    assert_eq!(statuses, ["401", "201", "401"], "{replies}");
    served.stop();
}

#[test]
fn passwords_cross_no_network_as_they_are_unless_it_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "").unwrap();
    let data = folder.path().join("data");
    for flag in ["--jobs", "--events", "--admin"] {
        let flags = ["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*", "--data"];
        let rest = [data.to_str().unwrap(), "--users", users.to_str().unwrap(), flag, "0.0.0.0:0"];
        let output = spindle(&[&flags[..], &rest].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("unencrypted") && said.contains(flag), "{said}");
        assert!(!Path::new(&data).exists(), "nothing is left");
    }
}

#[test]
fn a_command_for_an_operator_logs_in() {
    let served = Served::start();
    let password = served.folder.path().join("password");
    fs::write(&password, "heron\n").unwrap();
    let run = |command: &[&str], user: &[&str]| spindle(&[command, &["--admin", served.server.admin()], user].concat());
    let of = |name| ["--user", name, "--password-file", password.to_str().unwrap()];
    for command in [&["slow"][..], &["slow", "--json"], &["top", "--once"]] {
        let done = run(command, &of("root"));
        assert!(done.status.success() && !done.stdout.is_empty(), "{command:?}: {done:?}");
        for (user, about) in [(&[][..], "--user"), (&of("bob"), "--user"), (&of("eve"), "403")] {
            let refused = run(command, user);
            let said = String::from_utf8(refused.stderr).unwrap();
            assert!(refused.status.code() == Some(5) && said.contains(about), "{command:?} {user:?}: {said}");
        }
    }
    served.stop();
}
