//! A file of users that is edited while a server reads it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Output;

use crate::harness::{spindle, spindle_reads};
use crate::users_tcp::{ADA, Served, http};

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command about the users of a server.
fn user(served: &Served, arguments: &[&str], input: &str) -> Output {
    spindle_reads(&[&["user"], arguments, &["--users", &served.users()]].concat(), input.as_bytes())
}

fn until_answered(served: &Served, authorization: &str, status: u16) {
    while !http(served.server.events(), "GET /events", Some(authorization)).starts_with(&format!("HTTP/1.1 {status} "))
    {
    }
}

#[test]
fn a_user_gets_another_password_and_other_permissions() {
    let served = Served::start();
    until_answered(&served, ADA, 200);
    let listed = || {
        let output = spindle(&["user", "list", "--users", &served.users()]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.starts_with("ada ")).unwrap().to_owned()
    };
    let before = "ada  events write  jobs_write [\"mail\"]  password";
    assert_eq!(listed(), before);
    let passwd = |name, input| user(&served, &["passwd", name, "--password-stdin"], input);
    assert_eq!(passwd("ada", "egret\n").status.code(), Some(0));
    // `egret` is its password now, and `heron` is not.
    until_answered(&served, ADA, 401);
    until_answered(&served, crate::users_tcp::WRONG, 200);
    assert_eq!(listed(), before);
    let edited = user(&served, &["edit", "ada", "--jobs-write", "--read", "eu-", "us-", "--events", "none"], "");
    assert!(edited.status.success(), "{}", said(&edited));
    assert_eq!(listed(), "ada  password  read [\"eu-\",\"us-\"]");
    until_answered(&served, crate::users_tcp::WRONG, 403);
    for (arguments, status, about) in [
        (&["passwd", "bob", "--password-stdin"][..], 3, "no user \"bob\""),
        (&["passwd", "ada", "--password-stdin"], 2, "the password is empty"),
        (&["passwd", "ada"], 2, "--password-stdin"),
        (&["edit", "bob", "--admin"], 3, "no user \"bob\""),
        (&["edit", "ada", "--no-password"], 1, "no password, key or certificate"),
        (&["edit", "ada", "--curve", "x"], 2, "--curve"),
        (&["edit", "ada", "--tasks", "all"], 2, "--tasks"),
        (&["add", "bob", "--password-stdin", "--read"], 2, "a list of prefixes is empty"),
    ] {
        let refused = user(&served, arguments, "");
        assert_eq!(refused.status.code(), Some(status), "{arguments:?}: {}", said(&refused));
        assert!(said(&refused).contains(about), "{arguments:?}: {}", said(&refused));
    }
    assert_eq!(listed(), "ada  password  read [\"eu-\",\"us-\"]");
    served.stop();
}

/// A server with the right of the group to read it kept the users that it knew.
#[test]
fn a_file_that_a_group_may_read_stays_so_and_a_removed_user_is_out() {
    let served = Served::start();
    until_answered(&served, ADA, 200);
    let path = served.users();
    // Only root may give it away. Others see that it stays theirs.
    let _not_root = chown(&path, None, Some(1));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let state = || fs::metadata(&path).map(|file| (file.uid(), file.gid(), file.mode() & 0o777)).unwrap();
    let before = state();
    let removed = user(&served, &["remove", "ada"], "");
    assert!(removed.status.success() && said(&removed).is_empty(), "{}", said(&removed));
    assert_eq!(state(), before);
    until_answered(&served, ADA, 401);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let removed = user(&served, &["remove", "eve"], "");
    assert!(removed.status.success() && said(&removed).contains("can read it no more"), "{}", said(&removed));
    served.stop();
}

#[test]
fn a_server_that_cannot_read_its_users_is_not_ready_and_says_why() {
    let served = Served::start();
    let ready = |expected: u16| {
        let reply = loop {
            let reply = http(served.server.admin(), "GET /ready", None);
            if reply.starts_with(&format!("HTTP/1.1 {expected} ")) {
                break reply;
            }
        };
        assert_eq!(reply.contains("the users are those of before"), expected == 503, "{reply}");
    };
    ready(200);
    let (path, text) = (served.users(), fs::read_to_string(served.users()).unwrap());
    for broken in [None, Some("[ada"), Some("x = 1\n")] {
        fs::remove_file(&path).unwrap();
        broken.iter().for_each(|text| fs::write(&path, text).unwrap());
        ready(503);
        // Nobody is locked out, and the commands say what is wrong.
        until_answered(&served, ADA, 200);
        let listed = user(&served, &["remove", "ada"], "");
        assert!(!listed.status.success() && said(&listed).contains(&path), "{}", said(&listed));
        fs::write(&path, &text).unwrap();
        ready(200);
    }
    let log = fs::read_to_string(served.log()).unwrap();
    let errors = log.lines().filter(|line| line.contains("the users stay as they were")).count();
    assert!((3..=6).contains(&errors), "one for each change of the file: {log}");
    served.stop();
}
