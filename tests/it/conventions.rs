//! The server and its commands without a reader for their output or with nonsense arguments, and the files that they
//! leave on disk.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use spindle::clients::rust::tables::Client;

use crate::harness::{Guarded, SPINDLE, Server, spindle};

/// Takes no bytes: the disk is always full.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe without a reader.
fn closed_pipe() -> Stdio {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A full pipe that is not read. Returns the end that would be read, and the other.
fn full_pipe() -> (OwnedFd, Stdio) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut pipe = File::from(writer);
    let flags = rustix::fs::fcntl_getfl(&pipe).unwrap();
    rustix::fs::fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).unwrap();
    while pipe.write(&[b'x'; 4_096]).is_ok() {}
    rustix::fs::fcntl_setfl(&pipe, flags).unwrap();
    (reader, pipe.into())
}

/// Starts a server of tables that logs everything to this. Returns where it listens.
fn start(stderr: Stdio) -> (Guarded, String) {
    let (server, endpoints) = start_with(&["--kv", "tcp://127.0.0.1:*", "--publish", "off"], stderr);
    (server, endpoints[0].clone())
}

/// Starts a server with these flags that logs everything to this. Returns where it listens, in the printed order.
fn start_with(flags: &[&str], stderr: Stdio) -> (Guarded, Vec<String>) {
    let mut child = Command::new(SPINDLE)
        .arg("serve")
        .args(flags)
        .env("RUST_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let endpoint = |line: String| line.split_once(' ').unwrap().1.to_owned();
    (Guarded(child), lines.take_while(|line| line != "ready").map(endpoint).collect())
}

/// Sends SIGHUP, which is logged, until this many lines are counted as dropped.
fn dropped_lines(server: &Child, client: &mut Client, wanted: u64) -> u64 {
    loop {
        kill_process(Pid::from_child(server), Signal::HUP).unwrap();
        let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
        let dropped = stats["log"]["dropped_lines"].as_u64().unwrap();
        if dropped >= wanted {
            return dropped;
        }
    }
}

#[test]
fn words_of_older_command_lines_are_taken_and_a_warning_says_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, is_warned) in
        [(&["--frontend", "proxy", "--io-threads", "3"][..], true), (&["--frontend", "queue"], false)]
    {
        let log = folder.path().join(format!("log{is_warned}"));
        let server = Server::start_logging(&log, flags);
        Client::connect(server.kv()).unwrap().create_table(b"t").unwrap();
        server.stop();
        let said = fs::read_to_string(&log).unwrap();
        for word in ["--frontend queue", "--io-threads"] {
            assert_eq!(said.contains(word), is_warned, "{said}");
        }
    }
}

#[test]
fn a_line_that_cannot_be_logged_is_dropped_and_counted() {
    for stderr in [full().into(), closed_pipe()] {
        let (mut server, kv) = start(stderr);
        let mut client = Client::connect(&kv).unwrap();
        assert!(dropped_lines(&server.0, &mut client, 3) >= 3);
        client.create_table(b"t").unwrap();
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_reader_of_the_log_that_does_not_read_holds_nobody_up() {
    for frontend in ["queue", "native"] {
        let folder = tempfile::tempdir().unwrap();
        let (any, data) = ("tcp://127.0.0.1:*", folder.path().to_str().unwrap());
        let flags = ["--kv", any, "--publish", any, "--frontend", frontend, "--tasks", any, "--jobs", "0"];
        let more = ["--events", "127.0.0.1:0", "--events-queue", any, "--data", data];
        let (reader, stderr) = full_pipe();
        let (mut server, endpoints) = start_with(&[&flags[..], &more].concat(), stderr);
        let [kv, publish, tasks, jobs, events, queue] = &endpoints[..] else { panic!("{endpoints:?}") };
        let mut client = Client::connect(kv).unwrap();
        client.create_table(b"t").unwrap();
        while dropped_lines(&server.0, &mut client, 0) == 0 {
            // More than waits for a reader: a line for each of these.
            for _ in 0..512 {
                let mut stream = TcpStream::connect(kv.trim_start_matches("tcp://")).unwrap();
                stream.write_all(&[b'x'; 64]).unwrap();
                let _closed = stream.read(&mut [0; 64]);
            }
        }
        client.update(b"t", b"k", b"v", None).unwrap();
        for endpoint in [publish, tasks, queue] {
            let mut stream = TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap();
            stream.read_exact(&mut [0; 12]).expect("it is greeted");
        }
        let answer = |address: &str, request: &[u8]| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        assert_eq!(answer(jobs, b"GET q\n"), "NONE");
        assert!(answer(events, b"GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1"));
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        assert_eq!(server.0.wait().unwrap().code(), Some(0), "{frontend}");
        drop(reader);
    }
}

#[test]
fn a_server_needs_no_reader_for_its_output_at_its_start_and_at_its_end() {
    // Too few files, an endpoint in use, or no endpoint at all: each prints a message, and the status is the documented
    // one.
    let server = Server::start(&[]);
    let busy = format!("ulimit -n 100; exec {SPINDLE} serve --publish off --kv {}", server.kv());
    for (command, status) in [(&*busy, 1), (&format!("exec {SPINDLE} serve --kv nonsense"), 2)] {
        for stderr in ["2>/dev/full", "2>&-"] {
            let ended = Command::new("sh").args(["-c", &format!("{command} {stderr}")]).status().unwrap();
            assert_eq!(ended.code(), Some(status), "{command} {stderr}");
        }
    }
    server.stop();
}

#[test]
fn a_log_that_is_no_terminal_has_no_colours() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let (mut server, _) = start(log.reopen().unwrap().into());
    while !fs::read_to_string(log.path()).unwrap().contains("SIGHUP") {
        kill_process(Pid::from_child(&server.0), Signal::HUP).unwrap();
    }
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(!said.contains('\x1b'), "{said}");
}

fn run(arguments: &[&str], stdout: Stdio) -> Output {
    let mut command = Command::new(SPINDLE);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_command_whose_output_nobody_takes_says_so_and_fails() {
    let server = Server::start(&[]);
    let kv = ["--connect", server.kv()];
    let commands: [&[&str]; 6] =
        [&["create-table", "t"], &["tables"], &["stats"], &["ping"], &["set", "t", "k", "v"], &["get", "t", "k"]];
    for command in commands {
        let arguments = [command, &kv].concat();
        let output = run(&arguments, full().into());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot write to standard output") && said.lines().count() == 1, "{arguments:?}: {said}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        // A reader that has gone, such as `head`, has what it wanted.
        let output = run(&arguments, closed_pipe());
        let said = String::from_utf8_lossy(&output.stderr);
        // The first run has created the table.
        let expected = if said.contains("table exists") { 6 } else { 1 };
        let is_quiet = said.is_empty() || expected == 6;
        assert!(output.status.code() == Some(expected) && is_quiet, "{arguments:?}: {said}");
    }
    for help in [&["--help"][..], &["serve", "--help"], &["--version"]] {
        let output = run(help, full().into());
        assert_eq!(output.status.code(), Some(1), "{help:?}");
    }
    server.stop();
}

#[test]
fn nonsense_in_rust_log_is_bad_usage() {
    for nonsense in ["wran", "spindle=loud", "=="] {
        for command in [&["serve", "--kv", "off", "--tasks", "off", "--jobs", "0"][..], &["worker"]] {
            let output = Command::new(SPINDLE).args(command).env("RUST_LOG", nonsense).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{nonsense}: {said}");
            assert!(said.trim_end().lines().count() == 1 && said.contains(nonsense), "{said}");
        }
    }
}

#[test]
fn a_store_that_is_a_file_is_refused_with_what_to_do() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for data in [path.to_owned(), format!("{path}/below")] {
        let output = spindle(&["serve", "--kv", "off", "--publish", "off", "--jobs", "0", "--data", &data]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.trim_end().lines().count() == 1 && said.contains("choose a folder for --data"), "{said}");
    }
}

#[test]
fn the_store_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("around/data");
    let server = Server::start_jobs(&data, &[]);
    let mode = fs::metadata(&data).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "{mode:o}");
    server.stop();
}

/// The log of a server with a file of settings, which changes to each of `on_hang_up` before a SIGHUP.
fn log_of(settings: &str, flags: &[&str], on_hang_up: &[&str]) -> String {
    let (log, file) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    fs::write(file.path(), settings).unwrap();
    let mut command = Command::new(SPINDLE);
    command.args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off", "--config"]).arg(file.path()).args(flags);
    let server = Server::start_by(command.stderr(log.reopen().unwrap()));
    let hang_ups = || fs::read_to_string(log.path()).unwrap().matches("SIGHUP: ").count();
    for (before, settings) in on_hang_up.iter().enumerate() {
        fs::write(file.path(), settings).unwrap();
        server.signal(Signal::HUP);
        while hang_ups() == before {
            assert!(server.stats().is_object());
        }
    }
    server.stop();
    fs::read_to_string(log.path()).unwrap()
}

#[test]
fn the_log_says_what_listens_where_and_the_limits_and_why_the_server_stops() {
    let log = log_of("max-tables = 77", &["--frontend", "queue"], &[]);
    let place = |word: &str| log.find(word).unwrap_or_else(|| panic!("{word}: {log}"));
    let version = format!("started version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let order =
        [&version, "listens service=\"kv\" endpoint=\"tcp://127.0.0.1:", " tables=77 ", "SIGTERM: stopping", "stopped"];
    assert!(order.map(place).is_sorted(), "{log}");
    assert!(log.lines().all(|line| line.contains(" INFO ")), "{log}");
}

#[test]
fn a_log_in_json_is_an_object_on_each_line() {
    let log = log_of("log = 'json'", &[], &["log = 'json'"]);
    let objects: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects[0]["message"], "started");
    assert_eq!((&objects[1]["message"], &objects[1]["service"]), (&"listens".into(), &"kv".into()));
    assert_eq!(objects.last().unwrap()["message"], "stopped");
    let failed = spindle(&["serve", "--log", "json", "--kv", "tcp://192.0.2.1:1", "--publish", "off"]);
    let said: serde_json::Value = serde_json::from_slice(&failed.stderr).unwrap();
    assert_eq!((failed.status.code(), &said["kind"]), (Some(1), &"failed".into()));
    for wrong in [&["serve", "--log", "json", "--workers", "many"][..], &["serve", "--log=json", "--nonsense"]] {
        let failed = spindle(wrong);
        let said: serde_json::Value = serde_json::from_slice(&failed.stderr).unwrap();
        assert_eq!((failed.status.code(), &said["kind"]), (Some(2), &"usage".into()), "from the first line on");
    }
}

#[test]
fn sighup_takes_the_level_of_the_file_unless_a_flag_has_set_it() {
    let levels = ["log-level = 'debug'", "log-level = 'loud'", "", "log-level = 'error'"];
    let log = log_of("", &[], &levels[..3]);
    for expected in ["SIGHUP: the log level is debug", "WARN", "stays as it is: ", "log-level: it is one of", "is info"]
    {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    let quiet = log_of("", &["--log-level", "info"], &levels[3..]);
    assert!(quiet.contains("a flag or the environment has set it") && quiet.contains("stopped"), "{quiet}");
    let silent = log_of("log-level = 'error'", &[], &[]);
    assert_eq!(silent, "");
}

#[test]
fn ready_is_printed_once_and_last() {
    let server = Command::new(SPINDLE)
        .args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "tcp://127.0.0.1:*"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = Guarded(server);
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first: Vec<_> = lines.by_ref().take(3).map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(first, ["kv", "publish", "ready"]);
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert_eq!(lines.next(), None);
    assert!(server.0.wait().unwrap().success());
}
