//! The conventions of the commands: their exit statuses, their errors for programs, how they find their server, and how
//! they read and write bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Guarded, SPINDLE, Server, free_port, spindle, spindle_reads};

/// The status of a command that fails, and the object of its error.
#[track_caller]
fn failed(arguments: &[&str]) -> (i32, Value) {
    let output = spindle(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty() && said.lines().count() == 1, "{arguments:?}: {said}");
    (output.status.code().unwrap(), serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")))
}

#[test]
fn the_status_and_the_object_say_why_a_command_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let any = "tcp://127.0.0.1:*";
    let server = Server::start(&["--tasks", any, "--jobs", "0", "--data", folder.path().to_str().unwrap()]);
    let kv = ["--json", "--connect", server.kv()];
    for good in [&["create-table", "t"][..], &["set", "t", "k", "v"]] {
        assert!(spindle(&[good, &kv].concat()).status.success());
    }
    for good in [&["task", "add", "there", "v"][..], &["task", "lend"]] {
        assert!(spindle(&[good, &["--connect", server.tasks()]].concat()).status.success());
    }
    let rows: [(&[&str], &str, i32, &str); 15] = [
        (&["get", "t", "absent"], server.kv(), 3, "not_found"),
        (&["get", "absent", "k"], server.kv(), 3, "not_found"),
        (&["scan", "absent"], server.kv(), 3, "not_found"),
        (&["delete-table", "absent"], server.kv(), 3, "not_found"),
        (&["cas", "t", "k", "1", "v"], server.kv(), 4, "version_mismatch"),
        (&["delete", "t", "k", "--if-version", "1"], server.kv(), 4, "version_mismatch"),
        (&["create-table", "t"], server.kv(), 6, "already_there"),
        (&["get", "t"], server.kv(), 2, "usage"),
        (&["task", "lookup", "absent"], server.tasks(), 3, "not_found"),
        (&["task", "lend"], server.tasks(), 3, "not_found"),
        (&["task", "add", "there", "v"], server.tasks(), 6, "already_there"),
        (&["task", "repay", "9", "there", "v", "--status", "drop"], server.tasks(), 3, "not_found"),
        (&["task", "heartbeat", "9", "there", "--timeout", "9"], server.tasks(), 3, "not_found"),
        (&["job", "ack", "q", "00000000000000000009"], server.jobs(), 3, "not_found"),
        (&["job", "get", "absent"], server.jobs(), 3, "not_found"),
    ];
    for (command, endpoint, status, kind) in rows {
        let (code, json) = failed(&[command, &["--json", "--connect", endpoint]].concat());
        assert_eq!((code, &json["status"], &json["kind"]), (status, &status.into(), &kind.into()), "{command:?}");
        assert!(!json["error"].as_str().unwrap().is_empty(), "{command:?}");
    }
    let entry: Value = serde_json::from_slice(&spindle(&[&["get", "t", "k"][..], &kv].concat()).stdout).unwrap();
    let (_, mismatch) = failed(&[&["cas", "t", "k", "1", "v"][..], &kv].concat());
    assert_eq!(mismatch["current_version"], entry["version"]);
    let (_, absent) = failed(&[&["cas", "t", "new", "1", "v"][..], &kv].concat());
    assert_eq!(absent["current_version"], 0);
    server.stop();
}

#[test]
fn a_command_finds_its_server_without_a_scheme_and_by_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (any, data) = ("tcp://127.0.0.1:*", folder.path().to_str().unwrap());
    let server = Server::start(&["--tasks", any, "--jobs", "0", "--data", data]);
    let port = |endpoint: &str| endpoint.rsplit_once(':').unwrap().1.to_owned();
    let commands: [(&[&str], &str, &str); 3] = [
        (&["ping"], server.kv(), "SPINDLE_CONNECT"),
        (&["task", "count"], server.tasks(), "SPINDLE_CONNECT_TASKS"),
        (&["job", "add", "q", "data"], server.jobs(), "SPINDLE_CONNECT_JOBS"),
    ];
    for (command, endpoint, variable) in commands {
        let port = port(endpoint);
        for typed in [format!("localhost:{port}"), format!(":{port}"), port.clone(), format!("tcp://127.0.0.1:{port}")]
        {
            let output = spindle(&[command, &["--connect", &typed]].concat());
            assert!(output.status.success(), "{command:?} {typed}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let found = Command::new(SPINDLE).args(command).env(variable, format!("localhost:{port}")).status().unwrap();
        assert!(found.success(), "{variable}");
        let other = format!("localhost:{}", free_port());
        let flag =
            Command::new(SPINDLE).args(command).args(["--connect", &port]).env(variable, other).status().unwrap();
        assert!(flag.success(), "the flag is over {variable}");
    }
    server.stop();
}

/// Without `--timeout` a refused connection is reported at once. It was tried again for 5 s.
#[test]
fn a_server_that_is_not_there_is_reported_with_its_endpoint_and_what_to_do() {
    let port = free_port();
    let at = format!("localhost:{port}");
    let others = [
        (&["job", "get", "q", "--connect", &at][..], "is a server with --jobs running there?"),
        (&["slow", "--admin", &at], "is a server with --admin running there?"),
        (&["top", "--admin", &at], "is a server with --admin running there?"),
        (&["load", "--connect", &at], "is the server running there?"),
    ];
    for (command, advice) in others {
        let output = spindle(command);
        let said = String::from_utf8(output.stderr).unwrap();
        let is_right = said.contains(&port.to_string()) && said.contains("refused") && said.contains(advice);
        assert!(output.status.code() == Some(1) && is_right && said.lines().count() == 1, "{command:?}: {said}");
    }
    let commands: [&[&str]; 6] = [
        &["ping", "--connect", &at],
        &["scan", "t", "--connect", &at],
        &["dump", "t", "--connect", &at],
        &["watch", "--subscribe", &at],
        &["mirror", "t", "--connect", &at],
        &["task", "count", "--connect", &at],
    ];
    for command in commands {
        let output = spindle(command);
        let said = String::from_utf8(output.stderr).unwrap();
        let is_right = said.contains(&format!("no server listens at tcp://{at}")) && said.contains("spindle serve");
        assert!(output.status.code() == Some(1) && is_right && said.lines().count() == 1, "{command:?}: {said}");
    }
    let output = spindle(&["ping", "--connect", &at, "--timeout", "0.05"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("no answer from tcp://{at} within 0.05 s")), "it was tried again: {said}");
}

/// The host accepts at once, so the server is there: the command waits for it as long as for an answer.
#[test]
fn a_server_that_accepts_and_is_slow_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let output = spindle(&["ping", "--connect", &at]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("within 5 s"), "{said}");
}

/// It was said that no server listens there.
#[test]
fn a_connection_that_is_closed_in_its_handshake_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = listener.local_addr().unwrap().to_string();
    let closes = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let said = |arguments: &[&str]| {
        let output = spindle(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["ping", "--connect", &other]).contains("has closed the connection within the handshake"));
    closes.join().unwrap();
}

/// It was said that a resource is temporarily unavailable.
#[test]
fn a_service_that_accepts_and_is_silent_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    for command in [&["job", "get", "q", "--connect", &at][..], &["slow", "--admin", &at]] {
        let output = spindle(&[command, &["--timeout", "0.05"]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("it was silent for 0.05 s"), "{said}");
    }
}

/// It was said that no server listens there, or that there is no answer.
#[test]
fn a_name_that_is_no_hosts_is_reported() {
    // No server of names is asked about it: a part of it is empty.
    let at = "nohost..invalid:80";
    let commands: [&[&str]; 6] = [
        &["ping", "--connect", at],
        &["ping", "--connect", at, "--timeout", "0.5"],
        &["task", "count", "--connect", at],
        &["watch", "--subscribe", at],
        &["job", "get", "q", "--connect", at],
        &["slow", "--admin", at],
    ];
    for command in commands {
        let output = spindle(command);
        let said = String::from_utf8(output.stderr).unwrap();
        let is_right = said.contains("no host is known by the name in") && said.contains(at) && said.contains("lookup");
        assert!(output.status.code() == Some(1) && is_right && said.lines().count() == 1, "{command:?}: {said}");
    }
}

/// A script may start a server and its first command together.
#[test]
fn a_server_that_starts_is_waited_for_with_a_timeout() {
    let port = free_port();
    let at = format!("localhost:{port}");
    let ping = Command::new(SPINDLE).args(["ping", "--connect", &at, "--timeout", "60"]).spawn().unwrap();
    let server = Server::start_exactly(&["--kv", &format!("tcp://127.0.0.1:{port}"), "--publish", "off"]);
    assert!(ping.wait_with_output().unwrap().status.success());
    server.stop();
}

/// The output of a command that succeeds.
#[track_caller]
pub(crate) fn output_of(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let output = spindle_reads(arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn a_value_comes_back_as_the_bytes_that_were_set() {
    let server = Server::start(&[]);
    let run = |arguments: &[&str], input: &[u8]| output_of(&[arguments, &["--connect", server.kv()]].concat(), input);
    run(&["create-table", "t"], b"");
    for value in [&b""[..], b"ada", b"ada\n", b"0x00", b"\x00\xff\n\n"] {
        run(&["set", "t", "k", "-"], value);
        assert_eq!(run(&["get", "t", "k"], b""), value, "no byte more, and none less");
    }
    assert_eq!(run(&["get", "t", "k", "--hex"], b""), b"0x00ff0a0a\n");
    let json: Value = serde_json::from_slice(&run(&["get", "t", "k", "--json"], b"")).unwrap();
    assert_eq!(json["value"], "0x00ff0a0a");
    server.stop();
}

/// `script` gives the command a terminal.
#[test]
fn a_person_is_shown_a_value_on_a_line() {
    let server = Server::start(&[]);
    let run = |arguments: &[&str]| output_of(&[arguments, &["--connect", server.kv()]].concat(), b"");
    run(&["create-table", "t"]);
    run(&["set", "t", "text", "ada"]);
    run(&["set", "t", "bytes", "0xff00", "--hex"]);
    for (key, line) in [("text", "ada\r\n"), ("bytes", "0xff00\r\n")] {
        let get = format!("{SPINDLE} get t {key} --connect {}", server.kv());
        let output = Command::new("script").args(["-qec", &get, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), line);
    }
    server.stop();
}

#[test]
fn arguments_are_bytes_in_hexadecimal_only_with_hex() {
    let server = Server::start(&[]);
    let run = |arguments: &[&str]| {
        String::from_utf8(output_of(&[arguments, &["--connect", server.kv()]].concat(), b"")).unwrap()
    };
    run(&["create-table", "0x74", "--hex"]);
    run(&["set", "t", "0x6b", "0x76"]);
    run(&["set", "t", "0x6b", "0x76", "--hex", "--ttl", "600"]);
    assert_eq!((run(&["get", "t", "0x6b"]), run(&["get", "t", "k"])), ("0x76".to_owned(), "v".to_owned()));
    let mut rows: Vec<_> = run(&["scan", "t", "--values", "--hex"]).lines().map(str::to_owned).collect();
    rows.sort();
    assert_eq!(rows, ["0x30783662 0x30783736", "0x6b 0x76"]);
    assert_eq!(run(&["scan", "t", "--prefix", "0x6b", "--hex"]), "0x6b\n");
    assert_eq!(run(&["scan", "t", "--prefix", "0x6b"]), "0x30783662\n", "it can be typed again with --hex");
    let version: Value = serde_json::from_str(&run(&["get", "t", "0x6b", "--hex", "--json"])).unwrap();
    run(&["cas", "t", "0x6b", &version["version"].to_string(), "0x31", "--hex"]);
    assert_eq!(run(&["incr", "0x74", "0x6b", "--hex"]), "2\n");
    assert_eq!(run(&["tables", "--hex"]), "2 elements  0x74\n");
    assert_eq!(run(&["touch", "t", "0x6b", "--hex", "--ttl", "10m"]), "OK\n");
    assert_eq!(run(&["delete", "t", "0x6b", "--hex"]), "0x32\n");
    let odd = spindle(&["get", "t", "0x6", "--hex", "--connect", server.kv()]);
    let said = String::from_utf8(odd.stderr).unwrap();
    assert!(odd.status.code() == Some(2) && said.contains("0x6: with --hex"), "{said}");
    server.stop();
}

/// Runs a command on a terminal, which `script` makes, and types this. Returns the status and what the terminal shows.
fn on_a_terminal(arguments: &[&str], typed: &str) -> (Option<i32>, String) {
    let line = format!("{SPINDLE} {}", arguments.join(" "));
    let mut script = Command::new("script");
    let mut child =
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// The terminal did not show any more what was typed.
#[test]
fn ctrl_c_at_a_password_gives_the_echo_back() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    let user = format!("env --default-signal {SPINDLE} user add ada --users {}", users.display());
    let line = format!("trap : INT; {user}; echo status $?; stty -a");
    let mut script = Command::new("env");
    script.args(["--default-signal", "script", "-qec", &line, "/dev/null"]);
    let mut child = Guarded(script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut keys, mut screen) = (child.0.stdin.take().unwrap(), child.0.stdout.take().unwrap());
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("Password of ada: ") {
        let mut byte = [0];
        screen.read_exact(&mut byte).expect("it asks");
        shown.extend(byte);
    }
    keys.write_all(b"\x03").unwrap();
    let mut rest = String::new();
    screen.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("status 130") && rest.contains(" echo ") && !users.exists(), "{rest}");
    child.0.wait().unwrap();
}

#[test]
fn flush_deletes_all_tables_once_it_is_confirmed() {
    let server = Server::start(&[]);
    let at = ["--connect", server.kv()];
    for table in ["a", "b"] {
        output_of(&[&["create-table", table][..], &at].concat(), b"");
    }
    output_of(&[&["set", "a", "k", "v"][..], &at].concat(), b"");
    let tables = || String::from_utf8(output_of(&[&["tables"][..], &at].concat(), b"")).unwrap().lines().count();
    let unasked = spindle(&[&["flush"][..], &at].concat());
    let said = String::from_utf8(unasked.stderr).unwrap();
    assert!(unasked.status.code() == Some(2) && said.contains("give --yes"), "{said}");
    let flush = [&["flush"][..], &at].concat();
    let (status, shown) = on_a_terminal(&flush, "y\n");
    assert!(status == Some(1) && shown.contains("Delete 2 tables with 1 element of tcp://"), "{shown}");
    assert_eq!(tables(), 2);
    let (status, shown) = on_a_terminal(&flush, "yes\n");
    assert!(status == Some(0) && shown.contains("2 tables deleted"), "{shown}");
    assert_eq!(tables(), 0);
    output_of(&[&["create-table", "a"][..], &at].concat(), b"");
    assert_eq!(output_of(&[&["flush", "--yes"][..], &at].concat(), b""), b"1 table deleted\n");
    assert_eq!(
        output_of(&[&["flush", "--json"][..], &at].concat(), b""),
        b"{\"deleted\":0}\n",
        "nothing is to be asked"
    );
    server.stop();
}

#[test]
fn pings_are_counted_and_have_percentiles() {
    let server = Server::start(&[]);
    let at = ["--connect", server.kv()];
    let json: Value =
        serde_json::from_slice(&output_of(&[&["ping", "--count", "50", "--json"][..], &at].concat(), b"")).unwrap();
    assert_eq!((&json["count"], &json["ok"]), (&50.into(), &true.into()));
    let names = ["p50_nanos", "p90_nanos", "p99_nanos", "p99.9_nanos", "max_nanos"];
    assert!(names.map(|name| json[name].as_u64().unwrap()).is_sorted(), "{json}");
    assert_eq!(server.stats()["commands"]["PING"]["requests"], 50);
    let text = String::from_utf8(output_of(&[&["ping", "--count", "2"][..], &at].concat(), b"")).unwrap();
    assert!(text.contains("answered 2 times:  p50 ") && text.lines().count() == 1, "{text}");
    let one = String::from_utf8(output_of(&[&["ping"][..], &at].concat(), b"")).unwrap();
    assert!(one.contains(" answered in "), "{one}");
    server.stop();
}

#[test]
fn ctrl_c_ends_pings_with_what_they_took_and_a_watch_of_the_stats() {
    let server = Server::start(&[]);
    let start = |arguments: &[&str]| {
        let mut command = Command::new(SPINDLE);
        command.args(arguments).args(["--json", "--connect", server.kv()]).stdout(Stdio::piped()).spawn().unwrap()
    };
    let ping = start(&["ping", "--count", "1000000000"]);
    while server.stats()["commands"]["PING"]["requests"] == 0 {}
    kill_process(Pid::from_child(&ping), Signal::INT).unwrap();
    let output = ping.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && json["count"].as_u64().unwrap() > 0, "{json}");
    let mut stats = Guarded(start(&["stats", "--watch", "0.01"]));
    let mut lines = BufReader::new(stats.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..3 {
        let json: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        assert!(json["uptime_seconds"].is_number(), "{json}");
    }
    kill_process(Pid::from_child(&stats.0), Signal::INT).unwrap();
    lines.for_each(drop);
    assert!(stats.0.wait().unwrap().success());
    server.stop();
}

#[test]
fn a_shell_completes_commands_and_flags() {
    let complete = |words: &str, at: usize, last: &str| {
        let script = format!(
            ". <(\"$0\" completions bash); COMP_WORDS=({words}); COMP_CWORD={at}; _spindle spindle '{last}' x; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &script, SPINDLE]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(complete("spindle conf", 1, "conf"), "config");
    assert_eq!(complete("spindle serve --max-m", 2, "--max-m"), "--max-memory");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(output_of(&["completions", shell], b"").len() > 1_000, "{shell}");
    }
    assert_eq!(spindle(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_page_of_the_manual() {
    let page = |words: &[&str]| String::from_utf8(output_of(&[&["man"], words].concat(), b"")).unwrap();
    assert!(page(&[]).contains(".TH spindle 1"));
    let serve = page(&["serve"]);
    assert!(serve.contains(".TH spindle-serve 1") && serve.contains("max\\-memory"), "{serve}");
    assert!(page(&["task", "lend"]).contains(".TH spindle-task-lend 1"));
    assert_eq!(spindle(&["man", "fly"]).status.code(), Some(2));
    let folder = tempfile::tempdir().unwrap();
    output_of(&["man", "--directory", folder.path().to_str().unwrap()], b"");
    for file in ["spindle.1", "spindle-serve.1", "spindle-config-show.1"] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
}

#[test]
fn a_shell_without_a_terminal_is_a_script_that_ends_with_the_first_line_that_fails() {
    let server = Server::start(&[]);
    let shell = ["shell", "--connect", server.kv()];
    let script = b"# birds\ncreate-table birds\nspindle set birds 'grey heron' \"ardea cinerea\"\nget birds 'grey heron' --hex\n";
    assert_eq!(output_of(&shell, script), b"OK\nOK\n0x61726465612063696e65726561\n");
    let output = spindle_reads(&shell, b"get birds wren\ndelete-table birds\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("line 1 has failed"), "{said}");
    assert_eq!(output_of(&shell, b"tables\nexit\ndelete-table birds\n"), b"1 element   birds\n");
    let pair = b"set birds wren brown\nget birds 'grey heron'\nget birds wren\nget birds -\n";
    let output = spindle_reads(&shell, pair);
    assert_eq!(output.stdout, b"OK\nardea cinerea\nbrown\n", "each value has a line, and - reads nothing");
    assert_eq!(output.status.code(), Some(1), "no line of the script was its key");
    server.stop();
}

#[test]
fn a_value_behind_a_key_may_begin_with_a_dash() {
    let folder = tempfile::tempdir().unwrap();
    let (any, data) = ("tcp://127.0.0.1:*", folder.path().to_str().unwrap());
    let server = Server::start(&["--tasks", any, "--jobs", "0", "--data", data]);
    let kv = |words: &[&str]| output_of(&[words, &["--connect", server.kv()]].concat(), b"");
    kv(&["create-table", "t"]);
    for value in ["-v", "-1.5e3", "--value", "-- ", "-x=y"] {
        kv(&["set", "t", "k", value, "--ttl", "60"]);
        assert_eq!(kv(&["get", "t", "k"]), value.as_bytes());
        kv(&["cas", "t", value.trim_start_matches('-'), "0", value]);
    }
    output_of(&["task", "add", "k", "--head", "-v", "--connect", server.tasks()], b"");
    assert_eq!(output_of(&["task", "lookup", "k", "--connect", server.tasks()], b""), b"-v\n");
    output_of(&["job", "add", "q", "--data of a job", "--connect", server.jobs()], b"");
    assert_eq!(spindle(&["set", "t", "k", "v", "--tll", "5", "--connect", server.kv()]).status.code(), Some(2));
    server.stop();
}

/// Reads the screen until the editor has taken the terminal over and shows its prompt: earlier keys may be lost.
fn until_the_shell_listens(screen: &mut impl Read) -> String {
    let mut shown = Vec::new();
    let is_ready = |shown: &str| shown.rsplit_once("\x1b[?2004h").is_some_and(|(_, rest)| rest.contains("spindle> "));
    while !is_ready(&String::from_utf8_lossy(&shown)) {
        let mut byte = [0];
        screen.read_exact(&mut byte).expect("the shell is there");
        shown.extend(byte);
    }
    String::from_utf8(shown).unwrap()
}

#[test]
fn a_shell_goes_on_after_a_mistake_and_keeps_its_lines() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let line = format!("XDG_STATE_HOME={state} {SPINDLE} shell --connect {}", server.kv());
    let mut script = Command::new("script");
    let mut child =
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut shown = String::new();
    for line in ["fly\r", "create-table t\r", "set t k 'a b'\r", "ge\tt k\r", "exit\r"] {
        shown += &until_the_shell_listens(&mut screen);
        keys.write_all(line.as_bytes()).unwrap();
    }
    screen.read_to_string(&mut shown).unwrap();
    assert!(child.wait().unwrap().success() && shown.contains("'fly'") && shown.contains("a b\r\n"), "{shown}");
    let history = std::fs::read_to_string(folder.path().join("spindle/history")).unwrap();
    let kept: Vec<_> = history.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(kept, ["fly", "create-table t", "set t k 'a b'", "get t k", "exit"]);
    server.stop();
}
