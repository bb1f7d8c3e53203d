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
fn a_terminal_is_as_before_when_it_ends() {
    let server = Server::start(&["--admin", "0"]);
    fill(&server);
    run_python("top.py", &[env!("CARGO_BIN_EXE_spindle"), server.admin()]);
    server.stop();
}
