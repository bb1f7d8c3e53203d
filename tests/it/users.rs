//! Users on the command line, and the gate in front of endpoints that others can reach.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::harness::{Guarded, SPINDLE, Server, run_python, spindle, spindle_reads};
use crate::stage::Worker;

/// A folder with a file of users, their keys and passwords, and the data of a server.
struct UsersFolder(tempfile::TempDir);

impl UsersFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn inside(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn users(&self) -> String {
        self.inside("users")
    }

    /// Makes a secret key in a file of this name. Returns its public key.
    fn key(&self, name: &str) -> String {
        text(&spindle(&["keygen", &self.inside(name)]).stdout).trim().to_owned()
    }

    /// Adds a user, who has this password if the flags say so.
    fn add(&self, password: &str, flags: &[&str]) {
        let users = self.users();
        let output = spindle_reads(&[&["user", "add", "--users", &users], flags].concat(), password.as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Writes a password into a file of this name. Returns its path.
    fn password(&self, name: &str, password: &str) -> String {
        fs::write(self.inside(name), format!("{password}\n")).unwrap();
        self.inside(name)
    }
}

/// Runs a chapter of `users.py` against a server with this frontend and the users ada and eve, of few permissions, the
/// reader, the writer and the owner of a table, and root.
fn run_chapter(chapter: &str, frontend: &str) {
    let folder = UsersFolder::new();
    let (users, data) = (folder.users(), folder.inside("data"));
    let [ada, eve, _server, _unknown] = ["ada", "eve", "server", "unknown"].map(|name| folder.key(name));
    let of_ada = ["--read", "eu-", "--own", "eu-own", "--tasks", "write", "--password-stdin"];
    folder.add("heron", &[&["ada", "--curve", &ada][..], &of_ada].concat());
    folder.add("", &["eve", "--curve", &eve, "--own", "eu-own"]);
    folder.add("ibis", &["root", "--admin", "--password-stdin"]);
    for (user, flag) in [("reader", "--read"), ("writer", "--write"), ("owner", "--own")] {
        folder.add(user, &[user, flag, "verbs", "--password-stdin"]);
    }
    let any = "tcp://127.0.0.1:*";
    let server = Server::start_exactly(&[
        "--frontend",
        frontend,
        "--kv",
        any,
        "--publish",
        any,
        "--feed",
        any,
        "--lockstep",
        any,
        "--lockstep-publish",
        any,
        "--tasks",
        any,
        "--data",
        &data,
        "--users",
        &users,
        "--curve-key",
        &folder.inside("server"),
        "--max-value",
        "2M",
        "--segment-size",
        "4M",
    ]);
    let keys = folder.0.path().to_str().unwrap();
    let publishers = [server.publish(), server.feed(), server.lockstep_publish()];
    let arguments = [chapter, server.kv(), server.lockstep(), server.tasks(), &users, SPINDLE, keys];
    run_python("users.py", &[&arguments[..], &publishers].concat());
    server.stop();
}

#[test]
fn a_user_may_do_to_tables_what_it_was_granted_and_no_more() {
    run_chapter("tables", "native");
    run_chapter("tables", "queue");
}

#[test]
fn each_verb_needs_its_permission() {
    run_chapter("verbs", "native");
    run_chapter("verbs", "queue");
}

#[test]
fn messages_of_every_size_pass_the_cipher() {
    run_chapter("many", "native");
    run_chapter("many", "queue");
}

#[test]
fn anonymous_clients_wrong_passwords_and_unknown_keys_are_refused_everywhere() {
    run_chapter("refused", "native");
}

#[test]
fn libzmq_refuses_anonymous_clients_wrong_passwords_and_unknown_keys() {
    run_chapter("refused", "queue");
}

#[test]
fn a_flood_of_wrong_passwords_keeps_no_user_out() {
    run_chapter("flood", "native");
    run_chapter("flood", "queue");
}

#[test]
fn a_routing_id_that_goes_from_user_to_user_takes_no_permission_along() {
    run_chapter("ids", "native");
    run_chapter("ids", "queue");
}

#[test]
fn a_user_may_do_in_lock_step_what_it_may_do_elsewhere() {
    run_chapter("lockstep", "native");
}

#[test]
fn a_user_may_do_to_tasks_what_it_was_granted() {
    run_chapter("tasks", "native");
}

#[test]
fn a_subscriber_gets_topics_that_its_user_may_read_and_no_others() {
    run_chapter("topics", "native");
}

#[test]
fn a_sealed_subscriber_that_reads_late_loses_nothing() {
    run_chapter("burst", "native");
}

#[test]
fn a_command_logs_in_and_says_by_its_status_that_it_may_not() {
    command_logs_in("native");
    command_logs_in("queue");
}

fn command_logs_in(frontend: &str) {
    let folder = UsersFolder::new();
    folder.add("heron", &["ada", "--own", "eu", "--password-stdin"]);
    let users = folder.users();
    let flags = ["--frontend", frontend, "--kv", "tcp://127.0.0.1:*", "--publish", "off", "--users", &users];
    let server = Server::start_exactly(&flags);
    let (right, wrong) = (folder.password("right", "heron"), folder.password("wrong", "egret"));
    let run = |command: &[&str], file: &str| {
        let login = ["--user", "ada", "--password-file", file, "--connect", server.kv()];
        spindle(&[command, &login].concat())
    };
    assert!(run(&["create-table", "eu"], &right).status.success());
    assert!(run(&["set", "eu", "k", "v"], &right).status.success());
    refused(&run(&["create-table", "us"], &right), 5, &["denied"]);
    refused(&run(&["stats"], &right), 5, &["denied"]);
    refused(&run(&["get", "eu", "k"], &wrong), 5, &["refuses this client"]);
    refused(&spindle(&["get", "eu", "k", "--connect", server.kv()]), 5, &["refuses this client", "--user"]);
    let json: Value = serde_json::from_slice(&run(&["stats", "--json"], &right).stderr).unwrap();
    assert_eq!((&json["status"], &json["kind"]), (&5.into(), &"denied".into()));
    server.stop();
}

/// The users ada, of a table and tasks, and eve, who may read tasks, with keys alone, and a server for them.
fn with_keys(folder: &UsersFolder) -> (Server, String) {
    let [ada, eve, public] = ["ada", "eve", "server"].map(|name| folder.key(name));
    folder.add("", &["ada", "--own", "eu", "--tasks", "write", "--curve", &ada]);
    folder.add("", &["eve", "--tasks", "read", "--curve", &eve]);
    let (any, users, key, data) = ("tcp://127.0.0.1:*", folder.users(), folder.inside("server"), folder.inside("data"));
    let on = ["--frontend", "native", "--kv", any, "--publish", any, "--feed", any, "--tasks", any, "--data", &data];
    (Server::start_exactly(&[&on[..], &["--users", &users, "--curve-key", &key]].concat()), public)
}

#[test]
fn a_command_logs_in_with_its_key() {
    let folder = UsersFolder::new();
    let inside = |name: &str| folder.inside(name);
    let (server, public) = with_keys(&folder);
    let (kv, tasks) = (server.kv().to_owned(), server.tasks().to_owned());
    let run = |command: &[&str], at: &str, of: &str| {
        spindle(&[command, &["--connect", at, "--curve-key", &inside(of), "--curve-server", &public]].concat())
    };
    let good = |command: &[&str], at: &str| {
        let output = run(command, at, "ada");
        assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    good(&["create-table", "eu"], &kv);
    good(&["set", "eu", "k", "v"], &kv);
    assert_eq!(good(&["get", "eu", "k"], &kv), "v");
    assert_eq!(good(&["scan", "eu"], &kv), "k\n");
    assert!(run(&["dump", "eu"], &kv, "ada").stdout.starts_with(b"spindle dump 2\n"));
    good(&["task", "add", "key", "value"], &tasks);
    assert_eq!(text(&run(&["task", "count"], &tasks, "eve").stdout), "1\n");
    refused(&run(&["task", "remove", "key"], &tasks, "eve"), 5, &["denies permission"]);
    refused(&run(&["create-table", "us"], &kv, "ada"), 5, &["denied"]);
    // A key of no user.
    refused(&run(&["get", "eu", "k"], &kv, "server"), 5, &["refuses this client", "--curve-key"]);
    refused(&run(&["get", "eu", "k"], &kv, "nowhere"), 1, &["--curve-key"]);
    // By the environment, which a flag overrides.
    let by_variables = |arguments: &[&str], of: &str| {
        let mut command = Command::new(SPINDLE);
        command.env("SPINDLE_CONNECT", &kv).env("SPINDLE_CURVE_KEY", inside(of)).env("SPINDLE_CURVE_SERVER", &public);
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(text(&by_variables(&["get", "eu", "k"], "ada").stdout), "v");
    assert_eq!(text(&by_variables(&["get", "eu", "k", "--curve-key", &inside("ada")], "eve").stdout), "v");
    refused(&by_variables(&["get", "eu", "k", "--user", "ada"], "ada"), 2, &["SPINDLE_PASSWORD"]);
    let both = ["get", "eu", "k", "--user", "ada", "--curve-key", &inside("eve")];
    refused(&by_variables(&both, "ada"), 2, &["leave out one of them"]);
    refused(&spindle(&["ping", "--curve-key", &inside("ada")]), 2, &["--curve-server"]);
    refused(&spindle(&["ping", "--curve-server", &public]), 2, &["--curve-key"]);
    server.stop();
}

/// A server that is not the one whose key was given learns nothing of the user.
#[test]
fn a_command_talks_to_no_server_of_another_key() {
    let folder = UsersFolder::new();
    let (server, _) = with_keys(&folder);
    let unknown = folder.key("unknown");
    let login = ["--curve-key", &folder.inside("ada"), "--curve-server", &unknown, "--connect", server.kv()];
    let output = spindle(&[&["ping"][..], &login].concat());
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.lines().count() == 1 && said.contains("--curve-server"), "{said}");
    server.stop();
}

#[test]
fn a_subscriber_of_the_command_line_logs_in_with_its_key() {
    let folder = UsersFolder::new();
    let inside = |name: &str| folder.inside(name);
    let (server, public) = with_keys(&folder);
    let login = ["--curve-key", &inside("ada"), "--curve-server", &public].map(str::to_owned);
    let run = |arguments: &[&str]| {
        let login = login.each_ref().map(String::as_str);
        assert!(spindle(&[arguments, &["--connect", server.kv()], &login].concat()).status.success());
    };
    run(&["create-table", "eu"]);
    for (command, about) in [
        (&["watch", "eu", "--subscribe", server.publish()][..], "UPDATED eu k"),
        (&["watch", "eu", "--values", "--feed", server.feed()], "UPDATED eu k v"),
        (&["mirror", "eu", "--connect", server.kv(), "--feed", server.feed()], "k v"),
    ] {
        let mut child = Command::new(SPINDLE).args(command).args(&login).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let _watching = Guarded(child);
        let received = std::thread::scope(|scope| {
            let received = scope.spawn(move || lines.any(|line| line.contains(about)));
            // A subscriber receives the changes after its subscription.
            while !received.is_finished() {
                run(&["set", "eu", "k", "v"]);
            }
            received.join().unwrap()
        });
        assert!(received, "{command:?}");
    }
    server.stop();
}

/// Its answer was taken for a request that the server does not know.
#[test]
fn a_command_about_tasks_says_by_its_status_that_it_may_not() {
    let folder = UsersFolder::new();
    let (users, password, data) = (folder.users(), folder.password("password", "heron"), folder.inside("data"));
    folder.add("heron", &["eve", "--tasks", "read", "--password-stdin"]);
    let off = ["--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*"];
    let server = Server::start_exactly(&[&off[..], &["--data", &data, "--users", &users]].concat());
    let login = ["--user", "eve", "--password-file", &password, "--connect", server.tasks()];
    assert_eq!(spindle(&[&["task", "count"], &login[..]].concat()).stdout, b"0\n");
    refused(&spindle(&[&["task", "add", "k", "v"], &login[..]].concat()), 5, &["denies permission"]);
    server.stop();
    // A server without users closes the connection of a client that names one.
    let open = Server::start(&["--frontend", "queue"]);
    let login = ["--user", "eve", "--password-file", &password, "--connect", open.kv()];
    let output = spindle(&[&["ping"], &login[..]].concat());
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("--user"), "{said}");
    open.stop();
}

#[test]
fn the_load_generator_logs_in_with_a_password_or_a_key() {
    load_logs_in("native");
    load_logs_in("queue");
}

fn load_logs_in(frontend: &str) {
    let folder = UsersFolder::new();
    let (users, password) = (folder.users(), folder.password("password", "heron"));
    let [ada, eve, public] = ["ada", "eve", "server"].map(|name| folder.key(name));
    folder.add("heron", &["ada", "--own", "load", "--curve", &ada, "--password-stdin"]);
    folder.add("", &["eve", "--curve", &eve, "--read", "load"]);
    let flags = ["--frontend", frontend, "--kv", "tcp://127.0.0.1:*", "--publish", "off", "--users", &users];
    let server = Server::start_exactly(&[&flags[..], &["--curve-key", &folder.inside("server")]].concat());
    let load = |login: &[&str]| {
        let flags = ["load", "--connect", server.kv(), "--seconds", "0.2", "--warm-up", "0", "--keys", "100", "--json"];
        spindle(&[&flags[..], &["--mix", "set=50,get=40,many=10", "--depth", "16", "--prefill"], login].concat())
    };
    let with_key =
        |of: &str| ["--curve-key".to_owned(), folder.inside(of), "--curve-server".to_owned(), public.clone()];
    let strs = |flags: &[String; 4]| load(&flags.each_ref().map(String::as_str));
    for run in [load(&["--user", "ada", "--password-file", &password]), strs(&with_key("ada"))] {
        assert!(run.status.success(), "{}", text(&run.stderr));
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let phase = &report["phases"][0];
        assert!(phase["verbs"]["all"]["answers"].as_u64() > Some(100), "{report}");
        assert_eq!(phase["refused"], serde_json::json!({}), "{report}");
    }
    let denied = |run: Output| {
        assert_eq!(run.status.code(), Some(5), "{}", text(&run.stderr));
        assert!(text(&run.stderr).contains("refuses this client"), "{}", text(&run.stderr));
    };
    denied(load(&[]));
    denied(load(&["--user", "eve", "--password-file", &password]));
    denied(strs(&with_key("server")));
    assert_eq!(load(&["--user", "ada", "--curve-server", &public]).status.code(), Some(2));
    assert_eq!(strs(&with_key("nowhere")).status.code(), Some(1));
    let reader = spindle(
        &[
            &["load", "--connect", server.kv(), "--seconds", "0.2", "--warm-up", "0", "--mix", "get=1,set=1", "--json"],
            &with_key("eve").each_ref().map(String::as_str)[..],
        ]
        .concat(),
    );
    let report: Value = serde_json::from_slice(&reader.stdout).unwrap();
    assert!(report["phases"][0]["refused"]["DENIED"].as_u64() > Some(0), "a reader does not write: {report}");
    server.stop();
}

#[test]
fn a_worker_logs_in_to_the_queue_of_events() {
    let folder = UsersFolder::new();
    let (users, data) = (folder.users(), folder.inside("data"));
    let (right, wrong) = (folder.password("right", "heron"), folder.password("wrong", "egret"));
    folder.add("heron", &["ada", "--events", "write", "--password-stdin"]);
    let off = ["--kv", "off", "--publish", "off"];
    let events = ["--events", "127.0.0.1:0", "--events-queue", "tcp://127.0.0.1:*", "--data", &data];
    let server = Server::start_exactly(&[&off[..], &events, &["--users", &users, "--open"]].concat());
    let source = ["--connect".to_owned(), server.events_queue().to_owned()];
    let login = |password: &str| ["--user", "ada", "--password-file", password].map(str::to_owned);
    let denied = |flags: &[String]| {
        let flags: Vec<&str> = ["worker"].into_iter().chain(source.iter().chain(flags).map(String::as_str)).collect();
        refused(&spindle(&flags), 5, &["refuses this client"]);
    };
    denied(&login(&wrong));
    denied(&[]);
    let login = login(&right);
    let flags: Vec<&str> = login.iter().map(String::as_str).collect();
    let worker = Worker::start(&source, &flags, "error", Stdio::inherit());
    assert_eq!(worker.end(), (0, 0), "it was ready, and had nothing to do");
    refused(&spindle(&["worker", "--store", "mysql://u@h/d", "--user", "ada"]), 2, &["--store"]);
    server.stop();
}

#[test]
fn a_refusal_is_logged_with_the_address_of_its_peer() {
    for frontend in ["native", "queue"] {
        let folder = UsersFolder::new();
        let (users, wrong) = (folder.users(), folder.password("password", "egret"));
        folder.add("heron", &["ada", "--password-stdin"]);
        let log = folder.0.path().join("log");
        let server = Server::start_logging(&log, &["--frontend", frontend, "--users", &users]);
        let login = ["--user", "ada", "--password-file", &wrong];
        refused(&spindle(&[&["ping", "--connect", server.kv()][..], &login].concat()), 5, &[]);
        server.stop();
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("127.0.0.1: refused \"ada\": an unknown name or a wrong password"), "{frontend}: {log}");
    }
}

#[test]
fn a_user_who_is_removed_loses_its_connections_and_others_stay() {
    run_chapter("removed", "native");
    run_chapter("removed", "queue");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn refused(output: &Output, status: i32, about: &[&str]) {
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(status) && said.lines().count() == 1, "{said}");
    assert!(about.iter().all(|about| said.contains(about)), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn users_are_added_listed_and_removed_and_no_secret_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let file = ["--users", path.to_str().unwrap()];
    let add = |flags: &[&str]| spindle_reads(&[&["user", "add"], flags, &file].concat(), b"heron\n");
    let ada = add(&["ada", "--password-stdin", "--read", "eu-", "us-", "--write", "eu-orders", "--tasks", "write"]);
    assert!(ada.status.success(), "{}", text(&ada.stderr));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let key = folder.path().join("key");
    let public = text(&spindle(&["keygen", key.to_str().unwrap()]).stdout);
    assert_eq!((public.trim().len(), fs::metadata(&key).unwrap().permissions().mode() & 0o777), (40, 0o600));
    assert!(add(&["bob", "--curve", public.trim(), "--admin"]).status.success());
    let written = fs::read_to_string(&path).unwrap();
    assert!(!written.contains("heron") && written.contains("$argon2id$"));
    let listed = text(&spindle(&[&["user", "list", "--json"], &file[..]].concat()).stdout);
    let lines: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [ada, bob] = &lines[..] else { panic!("{listed}") };
    assert_eq!(
        (&ada["name"], &ada["password"], &ada["read"]),
        (&"ada".into(), &true.into(), &serde_json::json!(["eu-", "us-"]))
    );
    assert_eq!((&bob["admin"], &bob["curve"], &bob["password"]), (&true.into(), &public.trim().into(), &false.into()));
    assert!(!listed.contains("argon2id"));
    refused(&add(&["ada", "--password-stdin"]), 6, &["a user \"ada\" already"]);
    refused(&add(&["eve", "--curve", public.trim()]), 1, &["the key of \"eve\" is that of \"bob\""]);
    refused(&add(&["eve"]), 2, &["--password-stdin"]);
    refused(&spindle(&[&["user", "remove", "eve"], &file[..]].concat()), 3, &["no user \"eve\""]);
    assert!(spindle(&[&["user", "remove", "ada"], &file[..]].concat()).status.success());
    assert_eq!(text(&spindle(&[&["user", "list"], &file[..]].concat()).stdout).lines().count(), 1);
}

/// A device was replaced by a file of users.
#[test]
fn only_a_regular_file_is_replaced_by_one_of_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let add = ["user", "add", "ada", "--users", path.to_str().unwrap(), "--password-stdin"];
    refused(&spindle_reads(&add, b"heron\n"), 1, &["no regular file"]);
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
}

#[test]
fn an_endpoint_that_others_can_reach_is_refused_unless_it_is_knowingly_open() {
    let any = "tcp://*:*";
    for flags in [
        &["--kv", any, "--publish", "off"][..],
        &["--kv", "off", "--tasks", any],
        &["--kv", "off", "--publish", "off", "--jobs", "0.0.0.0:0"],
        &["--kv", "off", "--publish", "off", "--events", "0.0.0.0:0"],
        &["--kv", "off", "--publish", "off", "--events", "127.0.0.1:0", "--events-queue", any],
        &["--kv", "ipc://@gate", "--publish", "off", "--feed", any],
        &["--kv", "off", "--publish", "off", "--lockstep", any],
        &["--kv", "ipc://@gate", "--publish", any],
        &["--kv", "ipc://@gate", "--publish", "off", "--lockstep-publish", any],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let flags = [&["serve", "--data", data.to_str().unwrap()], flags].concat();
        refused(&spindle(&flags), 1, &["others can reach", "--users FILE", "--open"]);
        assert!(!data.exists(), "nothing is left");
    }
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "").unwrap();
    let checked = ["serve", "--open", "--users", users.to_str().unwrap(), "--kv", "ipc://@gate", "--publish", any];
    refused(&spindle(&checked), 1, &["--publish", "--curve-key FILE", "--plain-anywhere"]);
    let server = Server::start_exactly(&["--open", "--kv", any, "--publish", any]);
    let near = server.kv().replace("0.0.0.0", "127.0.0.1");
    assert!(spindle(&["ping", "--connect", &near]).status.success());
    server.stop();
}

#[test]
fn a_wrong_file_of_users_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    fs::write(&path, "[ada]\npasword = 'x'\n").unwrap();
    let serve = |path: &str| {
        spindle(&["serve", "--frontend", "native", "--kv", "ipc://@wrong-users", "--publish", "off", "--users", path])
    };
    refused(&serve(path.to_str().unwrap()), 1, &[":2: there is no key \"pasword\": did you mean password?"]);
    refused(&serve("/nowhere"), 1, &["/nowhere: it cannot be read"]);
}
