//! `spindle top`: in a terminal, and as one plain frame without one.

use crate::admin::fill;
use crate::harness::{Server, run_python, spindle};

#[test]
fn a_frame_without_a_terminal_is_plain_text() {
    let server = Server::start(&["--admin", "0", "--slow", "600000000"]);
    fill(&server);
    let output = spindle(&["top", "--admin", server.admin(), "--sort", "count"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !text.contains('\x1b'), "{text}");
    assert!(text.starts_with("Spindle ") && text.contains(server.admin()), "{text}");
    let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
    assert!(line("UPDATE").split_whitespace().any(|cell| cell == "2"), "{text}");
    assert!(line("users").split_whitespace().any(|cell| cell == "2"), "{text}");
    assert!(text.contains("No request took longer than 600 s."), "{text}");
    server.stop();
    let away = spindle(&["top", "--once", "--admin", "127.0.0.1:1"]);
    assert_eq!(away.status.code(), Some(1));
    assert_eq!(spindle(&["top", "--sort", "size"]).status.code(), Some(2));
}

#[test]
fn a_frame_shows_queues_by_state_and_what_is_dead_with_its_reason() {
    let server = Server::start(&["--admin", "0", "--tasks", "tcp://127.0.0.1:*", "--jobs", "0"]);
    let run = |arguments: &[&str], at: &str| {
        let output = spindle(&[arguments, &["--connect", at]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["task", "add", "k", "v", "--queue", "mail", "--group", "acme"], server.tasks());
    let lent = run(&["task", "lend", "--queue", "mail"], server.tasks());
    let lend_key = lent.split(' ').next().unwrap();
    run(&["task", "nack", lend_key, "k", "no such host", "--dead", "--queue", "mail"], server.tasks());
    let id = run(&["job", "add", "post", "data", "--tries", "1"], server.jobs());
    run(&["job", "get", "post"], server.jobs());
    run(&["job", "nack", "post", id.trim(), "no such user"], server.jobs());
    let output = spindle(&["top", "--once", "--admin", server.admin()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
    assert!(line("delayed").contains("dead") && line("delayed").contains("ready"), "{text}");
    assert!(line("no such host").starts_with("tasks/mail") && line("no such host").contains("acme"), "{text}");
    assert!(line("no such user").starts_with("jobs/post") && line("no such user").contains(id.trim()), "{text}");
    server.stop();
}

#[test]
fn a_terminal_is_as_before_when_it_ends() {
    let server = Server::start(&["--admin", "0", "--jobs", "0"]);
    fill(&server);
    let to = ["--connect", server.jobs()];
    for command in
        [&["add", "mail", "data", "--tries", "1"][..], &["get", "mail"], &["nack", "mail", "00000000000000000001"]]
    {
        assert!(spindle(&[&["job"], command, &to].concat()).status.success(), "{command:?}");
    }
    run_python("top.py", &[env!("CARGO_BIN_EXE_spindle"), server.admin()]);
    server.stop();
}
