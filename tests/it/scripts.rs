//! Lines of `spindle shell` from a file or a pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::commands::output_of;
use crate::harness::{Guarded, SPINDLE, Server, spindle_reads};

/// Each line was a process of its own with a connection of its own: 3,000 of them took 42 s.
#[test]
fn the_lines_of_a_script_share_a_connection() {
    let server = Server::start(&[]);
    let shell = ["shell", "--connect", server.kv()];
    let connections = || server.stats()["connections"]["connections_ever"].as_u64().unwrap();
    let before = connections();
    let sets: String = (0..3_000).map(|number| format!("set t k{number} v{number}\n")).collect();
    let script = format!("create-table t\n{sets}get t k2999\nincr t hits\n");
    let expected = format!("OK\n{}v2999\n1\n", "OK\n".repeat(3_000));
    assert_eq!(String::from_utf8(output_of(&shell, script.as_bytes())).unwrap(), expected);
    assert!(connections() <= before + 3, "that of the shell, and those that asked");
    let output = spindle_reads(&shell, b"set t a 1\nset absent b 2\nset t c 3\ndelete-table t\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"OK\n"[..]));
    assert!(said.contains("table not found") && said.contains("line 2 has failed: 1 set behind it had been"), "{said}");
    assert_eq!(output_of(&["get", "t", "c", "--connect", server.kv()], b""), b"3");
    server.stop();
}

/// Who writes the lines one by one waits for the answer to each.
#[test]
fn a_script_answers_each_line_before_it_waits_for_the_next() {
    let server = Server::start(&[]);
    output_of(&["create-table", "t", "--connect", server.kv()], b"");
    let mut command = Command::new(SPINDLE);
    let shell = command.args(["shell", "--connect", server.kv()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = Guarded(shell.spawn().unwrap());
    let (mut lines, answers) = (shell.0.stdin.take().unwrap(), shell.0.stdout.take().unwrap());
    let mut answers = BufReader::new(answers).lines();
    for (line, answer) in [("set t k v", "OK"), ("get t k", "v"), ("set t k w", "OK"), ("ping", "")] {
        lines.write_all(format!("{line}\n").as_bytes()).unwrap();
        assert!(answers.next().unwrap().unwrap().contains(answer));
    }
    drop(lines);
    assert!(shell.0.wait().unwrap().success());
    server.stop();
}
