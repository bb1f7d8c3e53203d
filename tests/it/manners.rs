//! What a server and its commands do when nobody can be told, when they are told nonsense, and what they leave on disk.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use spindle::protocols::kv::client::Client;

use crate::harness::{Guarded, SPINDLE, Server, spindle};

/// Takes nothing: the disk is always full.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe that nobody reads any more.
fn closed_pipe() -> Stdio {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Starts a server of tables that logs everything to this; where it listens.
fn start(stderr: Stdio) -> (Guarded, String) {
    let mut child = Command::new(SPINDLE)
        .args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off"])
        .env("RUST_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let kv = lines.take_while(|line| line != "ready").find_map(|line| line.strip_prefix("kv ").map(str::to_owned));
    (Guarded(child), kv.unwrap())
}

/// Sends SIGHUP, which is logged, until so many lines are counted as dropped.
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
fn what_a_server_says_at_its_start_and_at_its_end_need_not_be_heard() {
    // Too few files, an endpoint in use, or none at all: each is said, and the status is what it is.
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
        for stdout in [full().into(), closed_pipe()] {
            let output = run(&arguments, stdout);
            let said = String::from_utf8_lossy(&output.stderr);
            // Done it was the first time.
            let done = said.contains("cannot write to standard output") || said.contains("table exists");
            assert!(output.status.code() == Some(1) && done && !said.contains("panicked"), "{arguments:?}: {said}");
        }
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
