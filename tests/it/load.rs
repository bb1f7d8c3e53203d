//! `spindle load` against the real server, and against real Redis and memcached: its requests are answered, its counts
//! are those of the server, and an error is one line.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use spindle::clients::rust::tables::Client;

use crate::harness::{Guarded, Server, real_peer, spindle};
use crate::loading;

/// The arguments of a short load with these further flags.
fn short<'a>(endpoint: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["load", "--connect", endpoint, "--json", "--warm-up", "0", "--seconds", "0.3", "--keys", "500"];
    [&fixed[..], flags].concat()
}

/// Runs a short load with these further flags, and returns its JSON.
fn load(endpoint: &str, flags: &[&str]) -> Value {
    let output = spindle(&short(endpoint, flags));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn answers(phase: &Value, verb: &str) -> u64 {
    phase["verbs"][verb]["answers"].as_u64().unwrap_or(0)
}

/// The server's count of a command.
fn counted(server: &Server, command: &str) -> u64 {
    let mut client = Client::connect(server.kv()).unwrap();
    let stats: Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    stats["commands"][command]["requests"].as_u64().unwrap()
}

#[test]
fn a_closed_loop_counts_what_the_server_counts() {
    let server = Server::start(&[]);
    let report = load(
        server.kv(),
        &["--prefill", "--depth", "16", "--connections", "5", "--threads", "2", "--mix", "get=3,set=1"],
    );
    let phase = &report["phases"][0];
    assert!(answers(phase, "get") > 0 && answers(phase, "set") > 0, "{report}");
    assert_eq!(answers(phase, "all"), answers(phase, "get") + answers(phase, "set"));
    assert_eq!(phase["refused"], serde_json::json!({}), "every key was stored before");
    assert_eq!(counted(&server, "GET"), answers(phase, "get"));
    assert_eq!(counted(&server, "UPDATE"), answers(phase, "set") + 500);
    assert_eq!(phase["asked_per_second"], Value::Null);
    server.stop();
}

#[test]
fn an_open_loop_asks_what_is_due_and_a_ramp_has_a_phase_for_each_rate() {
    let server = Server::start(&[]);
    let report = load(server.kv(), &["--rate", "1000,2000", "--mix", "get=1", "--threads", "3"]);
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2);
    for (phase, (rate, due)) in phases.iter().zip([(1_000.0, 300), (2_000.0, 600)]) {
        assert_eq!(phase["asked_per_second"], rate);
        // A request is due each millisecond, or half of it, for 0.3 s. Every due request was sent, however late.
        assert!(answers(phase, "all") <= due + 3, "{phase}");
        assert!(answers(phase, "all") > 0, "{phase}");
        assert_eq!(phase["refused"]["KEY NOT FOUND"].as_u64(), Some(answers(phase, "all")));
    }
    assert_eq!(counted(&server, "GET"), phases.iter().map(|phase| answers(phase, "all")).sum::<u64>());
    server.stop();
}

#[test]
fn every_verb_is_understood_by_the_server() {
    let server = Server::start(&[]);
    let mix = "get=1,set=1,delete=1,cas=1,many=1,incr=1,scan=1";
    let flags = ["--mix", mix, "--distribution", "zipf", "--value-size", "0-100", "--ttl-share", "50", "--depth", "4"];
    let report = load(server.kv(), &flags);
    let phase = &report["phases"][0];
    for verb in ["get", "set", "delete", "cas", "many", "incr", "scan"] {
        assert!(answers(phase, verb) > 0, "{verb}: {report}");
    }
    let refused = phase["refused"].as_object().unwrap();
    assert!(refused.keys().all(|reason| ["KEY NOT FOUND", "VERSION MISMATCH"].contains(&reason.as_str())), "{report}");
    let swapped = counted(&server, "COMPARE_AND_SWAP");
    let mismatched = phase["refused"]["VERSION MISMATCH"].as_u64().unwrap_or(0);
    assert!(mismatched < swapped, "some versions were right: {report}");
    server.stop();
}

#[test]
fn people_get_lines_a_table_and_a_log() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let hdr = folder.path().join("load.hdr").display().to_string();
    let flags = ["--warm-up", "0", "--seconds", "1.2", "--hdr", &hdr];
    let output = spindle(&[&["load", "--connect", server.kv()], &flags[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("p99.99") && text.contains("/s  p50"), "{text}");
    let log = std::fs::read_to_string(hdr).unwrap();
    assert!(log.contains("#[StartTime: ") && log.contains("Tag=get,") && log.contains("HISTFAA"), "{log}");
    server.stop();
}

/// Runs the load of comparisons, and returns its JSON.
fn load_to_compare(arguments: &[&str]) -> Result<Value, String> {
    let mut out = Vec::new();
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    let done = loading::run(arguments, &Arc::default(), &mut out);
    done.map_err(|error| error.sentence()).map(|()| serde_json::from_slice(&out).unwrap())
}

#[test]
fn a_comparison_has_a_plot() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let begins: [(&str, &[u8]); 2] = [("load.svg", b"<svg"), ("load.png", b"\x89PNG")];
    for (name, begin) in begins {
        if name.ends_with("png") && real_peer("rsvg-convert").is_none() {
            continue;
        }
        let plot = folder.path().join(name).display().to_string();
        let flags = ["--warm-up", "0", "--seconds", "1.2", "--json", "--plot", &plot];
        let report = load_to_compare(&[&["load", "--connect", server.kv()], &flags[..]].concat()).unwrap();
        assert!(answers(&report["phases"][0], "all") > 0, "{report}");
        assert!(std::fs::read(plot).unwrap().starts_with(begin));
    }
    server.stop();
}

#[test]
fn what_goes_wrong_is_one_line_and_status_1() {
    let fails = |arguments: &[&str], about: &str| {
        let output = spindle(&[&["load"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.trim_end().lines().count() == 1 && said.contains(about), "{said}");
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails(&["--connect", &format!("tcp://{free}")], "is the server running there?");
    let refused = load_to_compare(&short("tcp://127.0.0.1:1", &["--protocol", "redis", "--mix", "cas=1"]));
    assert!(refused.is_err_and(|said| said.contains("redis has no cas")));
    let server = Server::start(&[]);
    fails(&["--connect", server.kv(), "--hdr", "/nonexistent/load.hdr"], "/nonexistent/load.hdr");
    fails(&["--connect", server.publish()], "XPUB");
    let small = Server::start(&["--max-value", "10"]);
    fails(
        &["--connect", small.kv(), "--prefill", "--value-size", "11"],
        "refuses: 100000 of 100000 keys could not be stored: VALUE TOO LONG",
    );
    let full = Server::start(&["--max-tables", "1"]);
    assert!(spindle(&["create-table", "other", "--connect", full.kv()]).status.success());
    fails(&["--connect", full.kv()], "refuses: the table: TOO MANY TABLES");
}

#[test]
fn a_server_that_is_killed_under_load_ends_the_load() {
    let server = Server::start(&[]);
    let mut load = Command::new(env!("CARGO_BIN_EXE_spindle"))
        .args(["load", "--connect", server.kv(), "--seconds", "60", "--mix", "set=1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while counted(&server, "UPDATE") == 0 {}
    drop(server);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut load.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(load.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("was lost"), "{said}");
}

#[test]
fn ctrl_c_ends_a_load_with_the_summary_of_what_it_has_measured() {
    let server = Server::start(&[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_spindle"));
    let flags = ["--warm-up", "0", "--seconds", "600", "--mix", "set=1", "--rate", "1000,2000", "--json"];
    let load = command.args(["load", "--connect", server.kv()]).args(flags).stdout(Stdio::piped()).spawn().unwrap();
    while counted(&server, "UPDATE") == 0 {}
    kill_process(Pid::from_child(&load), Signal::INT).unwrap();
    let output = load.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["interrupted"], report["phases"].as_array().unwrap().len()), (&true.into(), 1), "{report}");
    let phase = &report["phases"][0];
    assert_eq!(answers(phase, "set"), counted(&server, "UPDATE"), "what was sent was answered and counted");
    assert!(phase["seconds"].as_f64().unwrap() < 600.0, "{report}");
    server.stop();
}

/// Starts a program that listens on the port that replaces `PORT`, and waits until it does.
fn start(program: &str, flags: &[&str]) -> Option<(Guarded, String)> {
    let program = real_peer(program)?;
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = address.port().to_string();
    let flags = flags.iter().map(|flag| if *flag == "PORT" { port.as_str() } else { flag });
    let mut child = Command::new(program).args(flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while TcpStream::connect(address).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
    }
    Some((Guarded(child), format!("tcp://{address}")))
}

fn compare(protocol: &str, endpoint: &str) {
    let load = |flags: &[&str]| load_to_compare(&[&short(endpoint, &["--protocol", protocol])[..], flags].concat());
    let report = load(&["--prefill", "--depth", "8", "--mix", "get=4,set=4,many=1"]).unwrap();
    let phase = &report["phases"][0];
    for verb in ["get", "set", "many"] {
        assert!(answers(phase, verb) > 0, "{verb}: {report}");
    }
    assert_eq!(phase["refused"], serde_json::json!({}), "every key was stored before");
    let report = load(&["--mix", "get=1,delete=1,set=1", "--ttl-share", "100"]).unwrap();
    let refused = report["phases"][0]["refused"].as_object().unwrap();
    assert!(refused.keys().eq(["KEY NOT FOUND"]), "{report}");
}

#[test]
fn redis_is_asked_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display().to_string();
    let flags = ["--port", "PORT", "--bind", "127.0.0.1", "--save", "", "--dir", &folder];
    if let Some((_redis, endpoint)) = start("redis-server", &flags) {
        compare("redis", &endpoint);
    }
}

#[test]
fn memcached_is_asked_the_same() {
    let flags = ["-l", "127.0.0.1", "-p", "PORT", "-U", "0", "-u", "root"];
    if let Some((_memcached, endpoint)) = start("memcached", &flags) {
        compare("memcached", &endpoint);
    }
}
