//! Nonsense on the command line: each command answers in one line that says what is expected, by the right status.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{SPINDLE, Server, spindle, spindle_reads};

/// The words of every command, from what `--help` lists.
fn commands(group: &[String]) -> Vec<Vec<String>> {
    let words: Vec<&str> = group.iter().map(String::as_str).collect();
    let help = String::from_utf8(spindle(&[&words, &["--help"][..]].concat()).stdout).unwrap();
    let Some((_, listed)) = help.split_once("Commands:\n") else { return vec![group.to_vec()] };
    let lines = listed.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.flat_map(|name| commands(&[group, &[name.to_owned()]].concat())).collect()
}

/// A command, its standard input, the status with which it ends, and a part of what it says.
type Row<'r> = (&'r [&'r str], &'r [u8], i32, &'r str);

#[track_caller]
fn refused(output: &Output, status: i32, about: &str) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let is_one_line = said.starts_with("spindle: ") && said.lines().count() == 1;
    assert!(output.status.code() == Some(status) && is_one_line && said.contains(about), "{status} {about}: {said}");
    assert!(output.stdout.is_empty(), "{said}");
}

#[test]
fn an_unknown_flag_of_any_command_is_bad_usage_in_json_too() {
    let mut with_json = 0;
    for words in commands(&[]) {
        let command: Vec<&str> = words.iter().map(String::as_str).collect();
        refused(&spindle(&[&command, &["--no-such-flag"][..]].concat()), 2, "'--no-such-flag'");
        let help = spindle(&[&command, &["--help"][..]].concat());
        assert!(help.status.success(), "{command:?}");
        if !String::from_utf8(help.stdout).unwrap().contains("--json") {
            continue;
        }
        with_json += 1;
        let output = spindle(&[&command, &["--no-such-flag", "--json"][..]].concat());
        let json: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!((output.status.code(), &json["kind"], &json["status"]), (Some(2), &"usage".into(), &2.into()));
    }
    assert!(with_json > 30, "{with_json}");
}

#[test]
fn nonsense_about_tables_is_answered_with_what_is_expected() {
    let server = Server::start(&["--max-value", "16M"]);
    let run = |arguments: &[&str], input: &[u8]| {
        let (before, after) =
            arguments.split_at(arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len()));
        spindle_reads(&[before, &["--connect", server.kv()], after].concat(), input)
    };
    let good = |arguments: &[&str], input: &[u8], expected: &[u8]| {
        let output = run(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, expected, "{arguments:?}");
    };
    good(&["create-table", "t"], b"", b"OK\n");
    let long = "k".repeat(300);
    // An empty key is a key, and so is one with a newline, which is shown as bytes.
    good(&["set", "t", "", "empty"], b"", b"OK\n");
    good(&["get", "t", ""], b"", b"empty");
    good(&["set", "t", "a\nb", "line"], b"", b"OK\n");
    good(&["scan", "t", "--prefix", "a"], b"", b"0x610a62\n");
    good(&["set", "t", "--", "--key", "-1"], b"", b"OK\n");
    good(&["get", "t", "--", "--key"], b"", b"-1");
    let most = vec![b'x'; 16 << 20];
    good(&["set", "t", "most", "-"], &most, b"OK\n");
    let more = [&most[..], b"x"].concat();
    let rows: &[Row<'_>] = &[
        (&["create-table", ""], b"", 1, "1 to 254 bytes"),
        (&["create-table", &long], b"", 1, "1 to 254 bytes"),
        (&["set", "t", &long, "v"], b"", 1, "a larger --max-key"),
        (&["set", "t", "k", "-"], &more, 2, "more than 16777216 bytes"),
        (&["set", "t", "-", "-"], b"", 2, "only one of KEY and VALUE"),
        (&["set", "t", "-k", "v"], b"", 2, "write -- before the operands"),
        (&["set", "t", "k", "v", "--ttl", "-1"], b"", 2, "a whole number of seconds, or of ms"),
        (&["touch", "t", "k", "--ttl", "99999999999999999999"], b"", 2, "a whole number of seconds, or of ms"),
        (&["incr", "t", "n", "9223372036854775808"], b"", 2, "the number to add is a whole number"),
        (&["incr", "t", "a\nb"], b"", 1, "not a number"),
        (&["cas", "t", "k", "-1", "v"], b"", 2, "a version is a whole number"),
        (&["delete", "t", "k", "--if-version", "18446744073709551616"], b"", 2, "a version is a whole number"),
        (&["get", "t", "0x6", "--hex"], b"", 2, "pairs of hexadecimal digits"),
        (&["ping", "--timeout", "-1"], b"", 2, "0.001 to 86400 seconds"),
        (&["ping", "--timeout", "86401"], b"", 2, "0.001 to 86400 seconds"),
        (&["ping", "--count", "-1"], b"", 2, "'--count <N>'"),
        (&["stats", "--watch", "0"], b"", 2, "0.001 to 86400 seconds"),
        (&["load-dump"], b"", 1, "no dump of a table"),
        (&["load-dump"], b"\xff\xff", 1, "no dump of a table"),
        (&["flush"], b"", 2, "--yes"),
        (&["load", "--keys", "0"], b"", 2, "--keys"),
        (&["load", "--seconds", "-1"], b"", 2, "--seconds"),
        (&["load", "--rate", "1e30"], b"", 2, "a rate is requests a second"),
    ];
    for (arguments, input, status, about) in rows {
        refused(&run(arguments, input), *status, about);
    }
    server.stop();
}

#[test]
fn nonsense_about_tasks_and_jobs_is_answered_with_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_jobs(folder.path(), &["--tasks", "tcp://127.0.0.1:*"]);
    let most = vec![b'x'; 1_000_001];
    let long = "q".repeat(256);
    let about_tasks: &[Row<'_>] = &[
        (&["task", "lend", "--timeout", "-1"], b"", 2, "whole number of milliseconds"),
        (&["task", "heartbeat", "x", "k", "--timeout", "1"], b"", 2, "a lend key is a whole number"),
        (&["task", "repay", "1", "k", "v", "--status", "fail"], b"", 2, "possible values: penalty"),
        (&["task", "remove", "absent"], b"", 3, "spindle task add"),
        (&["task", "add", "-", "-"], b"", 2, "only one of KEY and VALUE"),
    ];
    let about_jobs: &[Row<'_>] = &[
        (&["job", "add", "", "x"], b"", 2, "1 to 255 bytes"),
        (&["job", "add", &long, "x"], b"", 2, "1 to 255 bytes"),
        (&["job", "add", "a\nb", "x"], b"", 2, "without white space"),
        (&["job", "add", "q", "-"], &most, 2, "at most 1000000 bytes"),
        (&["job", "add", "q", "--file", "/"], b"", 1, "Is a directory"),
        (&["job", "ack", "q", "-1"], b"", 2, "an id has 20 digits"),
    ];
    for (endpoint, rows) in [(server.tasks(), about_tasks), (server.jobs(), about_jobs)] {
        for (arguments, input, status, about) in rows {
            refused(&spindle_reads(&[arguments, &["--connect", endpoint][..]].concat(), input), *status, about);
        }
    }
    for group in ["task", "job", "user", "config"] {
        refused(&spindle(&[group]), 2, "requires a subcommand");
    }
    server.stop();
}

#[test]
fn a_file_that_is_none_is_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let here = folder.path().to_str().unwrap();
    std::fs::write(inside("file"), "text").unwrap();
    let file = inside("file");
    let rows: &[(&[&str], i32, &str)] = &[
        (&["user", "list", "--users", here], 1, "Is a directory"),
        (&["user", "remove", "ada", "--users", "/nowhere"], 1, "/nowhere"),
        (&["keygen", &file], 6, "name another file"),
        (&["check", &file], 1, "is no folder"),
        (&["check", "/nowhere"], 1, "/nowhere is not there"),
        (&["backup", "/nowhere/backup", "--data", "/nowhere"], 1, "/nowhere is not there"),
        (&["config", "show", "--config", here], 2, "Is a directory"),
        (&["config", "show", "--workers", "many"], 2, "it is no whole number"),
        (&["man", "--directory", &file], 1, "cannot write pages"),
        (&["slow", "--tls-ca", here], 1, "--tls-ca"),
        (&["ping", "--user", "ada", "--password-file", here], 1, "--password-file"),
    ];
    for (arguments, status, about) in rows {
        refused(&spindle(arguments), *status, about);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text", "nothing is overwritten");
}

/// A variable that is empty counts as not set, as for a server.
#[test]
fn empty_variables_are_passed_over() {
    let server = Server::start(&[]);
    let mut ping = Command::new(SPINDLE);
    ping.args(["ping", "--connect", server.kv()]);
    for variable in ["SPINDLE_CONNECT", "SPINDLE_TIMEOUT", "SPINDLE_USER", "SPINDLE_CURVE_KEY", "SPINDLE_CURVE_SERVER"]
    {
        ping.env(variable, "");
    }
    assert!(ping.stdout(Stdio::null()).status().unwrap().success());
    server.stop();
}

/// A wrong variable was reported as its flag, which the user had not typed.
#[test]
fn a_wrong_variable_is_reported_by_its_name() {
    for (command, variable, value) in [
        (&["ping"][..], "SPINDLE_TIMEOUT", "never"),
        (&["get", "t", "k"], "SPINDLE_CONNECT", "nowhere"),
        (&["task", "count"], "SPINDLE_CONNECT_TASKS", "nowhere"),
        (&["job", "get", "q"], "SPINDLE_CONNECT_JOBS", "nowhere"),
    ] {
        let output = Command::new(SPINDLE).args(command).env(variable, value).output().unwrap();
        refused(&output, 2, &format!("'{value}' for {variable}"));
    }
    let mut ping = Command::new(SPINDLE);
    let output = ping.args(["ping", "--timeout", "soon"]).env("SPINDLE_TIMEOUT", "never").output().unwrap();
    refused(&output, 2, "'soon' for '--timeout <SECONDS>'");
}

#[test]
fn a_reader_that_has_had_enough_ends_a_command_in_silence() {
    let server = Server::start(&[]);
    let at = ["--connect", server.kv()];
    assert!(spindle(&[&["create-table", "t"][..], &at].concat()).status.success());
    for key in ["a", "b", "c"] {
        let value = "v".repeat(1_000);
        assert!(spindle(&[&["set", "t", key, &value][..], &at].concat()).status.success());
    }
    // `head` may also take all of it, which is no error.
    let line = format!("{SPINDLE} scan t --json {} | head -n 1", at.join(" "));
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!((output.stderr, output.stdout.iter().filter(|byte| **byte == b'\n').count()), (Vec::new(), 1));
    server.stop();
}

/// What a terminal shows of this command line, which `script` runs.
fn on_a_terminal(line: &str) -> String {
    let mut script = Command::new("script");
    script.args(["-qec", line, "/dev/null"]).stdin(Stdio::null()).env_remove("NO_COLOR").env("TERM", "xterm");
    String::from_utf8(script.output().unwrap().stdout).unwrap()
}

#[test]
fn a_terminal_has_colours_unless_they_are_turned_off() {
    assert!(on_a_terminal(&format!("{SPINDLE} --help")).contains('\x1b'));
    assert!(!on_a_terminal(&format!("NO_COLOR=1 {SPINDLE} --help")).contains('\x1b'));
    assert!(!spindle(&["--help"]).stdout.contains(&0x1b));
}

#[test]
fn elements_are_counted_swapped_and_deleted_by_their_versions() {
    let server = Server::start(&[]);
    let run = |arguments: &[&str]| {
        let output = spindle(&[arguments, &["--connect", server.kv()]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["create-table", "t"]);
    assert_eq!(run(&["incr", "t", "n"]), "1\n");
    assert_eq!(run(&["incr", "t", "n", "-5"]), "-4\n");
    let made = run(&["cas", "t", "k", "0", "first"]);
    let swapped = run(&["cas", "t", "k", made.trim(), "second"]);
    assert_ne!(made, swapped);
    refused(&spindle(&["delete", "t", "k", "--if-version", made.trim(), "--connect", server.kv()]), 4, swapped.trim());
    assert_eq!(run(&["delete", "t", "k", "--if-version", swapped.trim()]), "second\n");
    assert_eq!(run(&["scan", "t", "--values"]), "n -4\n");
    let json: Value = serde_json::from_str(&run(&["scan", "t", "--json"])).unwrap();
    assert_eq!((&json["key"], &json["value"]), (&"n".into(), &"-4".into()));
    server.stop();
}

/// The input of a command may be closed: the shell, and a command that reads none.
#[test]
fn a_closed_input_disturbs_no_command_that_reads_none() {
    let server = Server::start(&[]);
    for command in ["ping", "tables", "shell"] {
        let line = format!("{SPINDLE} {command} --connect {} <&-", server.kv());
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    server.stop();
}

#[test]
fn a_shell_reports_the_line_of_nonsense() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(folder.path()).join("script");
    std::fs::File::create(&script).unwrap().write_all(b"\n# nothing\nget 'open\n").unwrap();
    let output = Command::new(SPINDLE).arg("shell").stdin(std::fs::File::open(&script).unwrap()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("line 3 has failed") && said.contains("quote"), "{said}");
}
