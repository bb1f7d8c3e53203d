//! The settings of a server: a flag is over the environment, that over the file, and that over the default.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::harness::{SPINDLE, Server, spindle};

/// A file of settings.
fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

/// The output of `config show` with these flags and variables.
fn shown(flags: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(SPINDLE);
    let output = command.args(["config", "show"]).args(flags).envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The line of bad usage of a server with these flags and variables.
fn refused(flags: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(SPINDLE);
    let output = command.arg("serve").args(flags).envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    said
}

#[test]
fn a_flag_is_over_the_environment_and_that_over_the_file_and_that_over_the_default() {
    let file = file("workers = 7\nmax-tables = 8\npublish-hwm = 9\n");
    let variables = [("SPINDLE_WORKERS", "17"), ("SPINDLE_MAX_TABLES", "18")];
    let flags = ["--config", path(&file), "--workers", "27"];
    let json: Value = serde_json::from_str(&shown(&[&flags[..], &["--json"]].concat(), &variables)).unwrap();
    for (flag, value, from) in [
        ("workers", 27, "flag".to_owned()),
        ("max-tables", 18, "SPINDLE_MAX_TABLES".to_owned()),
        ("publish-hwm", 9, format!("{}:3", path(&file))),
        ("max-key", 64, "default".to_owned()),
        ("max-value", 1024, "default".to_owned()),
    ] {
        assert_eq!(json[flag], serde_json::json!({ "value": value, "from": from }), "{flag}");
    }
    let text = shown(&flags, &variables);
    assert!(text.contains("\nworkers = 27  # flag\n"), "{text}");
    assert!(text.contains("\nmax-tables = 18  # SPINDLE_MAX_TABLES\n"), "{text}");
}

#[test]
fn what_is_shown_is_a_file_with_the_same_settings() {
    let flags = ["--repair", "--kv", "tcp://h:1", "--kv", "ipc:///a\\b", "--tasks", "--jobs", "81", "--sync", "5"];
    let settings = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect()
    };
    let first = shown(&flags, &[]);
    let second = shown(&["--config", path(&file(&first))], &[]);
    assert_eq!(settings(&first), settings(&second));
    assert!(first.contains("repair = true") && first.contains(r#"kv = ["tcp://h:1","ipc:///a\\b"]"#), "{first}");
}

#[test]
fn a_server_takes_all_its_settings_from_a_file_that_the_environment_names() {
    let file = file("kv = 'tcp://127.0.0.1:*'\npublish = 'off'\nmax-tables = 1\n");
    let mut command = Command::new(SPINDLE);
    let server = Server::start_by(command.arg("serve").env("SPINDLE_CONFIG", file.path()));
    let create = |table| spindle(&["create-table", table, "--connect", server.kv()]);
    assert!(create("one").status.success());
    assert!(String::from_utf8_lossy(&create("two").stderr).contains("--max-tables"));
    server.stop();
}

#[test]
fn a_file_and_the_environment_choose_the_allocator_too() {
    let lines = "kv = 'tcp://127.0.0.1:*'\npublish = 'off'\nallocator = 'jemalloc'\n";
    let file = file(lines);
    let (flags, variable) = (["--config", path(&file)], "SPINDLE_ALLOCATOR");
    for (named, in_use) in [("", "jemalloc"), ("system", "system")] {
        let mut command = Command::new(SPINDLE);
        let server = Server::start_by(command.env(variable, named).arg("serve").args(flags));
        assert_eq!(server.stats()["memory"]["allocator"], in_use);
        server.stop();
    }
}

#[test]
fn wrong_settings_are_bad_usage_that_says_where_they_stand() {
    let unknown = file("\nworkres = 3\n");
    let said = refused(&["--config", path(&unknown)], &[]);
    assert!(said.contains(&format!("{}:2: ", path(&unknown))) && said.contains("did you mean workers?"), "{said}");
    let wrong = file("workers = 'many'");
    // What a flag overrides in the file is checked too.
    let said = refused(&["--config", path(&wrong), "--workers", "3"], &[]);
    assert!(said.contains(":1: workers: ") && said.contains("it takes THREADS as a string or a number"), "{said}");
    let said = refused(&[], &[("SPINDLE_ALLOCATOR", "tcmalloc")]);
    assert!(said.contains("SPINDLE_ALLOCATOR in the environment: no such allocator: tcmalloc"), "{said}");
    let said = refused(&["--config", "/nowhere/at/all"], &[]);
    assert!(said.contains("--config /nowhere/at/all: it cannot be read"), "{said}");
}

#[test]
fn a_password_is_shown_neither_in_settings_nor_in_errors() {
    let url = "events-store = 'mysql://u:secret@h/d'";
    let good = file(url);
    let text = shown(&["--config", path(&good)], &[]);
    assert!(text.contains(r#"events-store = "mysql://u@h/d"  # "#) && !text.contains("secret"), "{text}");
    assert!(text.contains("without its password"), "{text}");
    let bad = file("events-store = 'mysql://u:secret@h:x/d'");
    for said in
        [refused(&["--config", path(&bad)], &[]), refused(&[], &[("SPINDLE_EVENTS_STORE", "mysql:/u:secret@h/d")])]
    {
        assert!(!said.contains("secret") && said.to_lowercase().contains("events"), "{said}");
    }
}

#[test]
fn help_of_the_settings_names_the_environment_and_the_file() {
    let output = Command::new(SPINDLE).args(["serve", "--help"]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("SPINDLE_MAX_MEMORY") && text.contains("--config <FILE>"), "{text}");
}
