//! How the server starts, its message when it cannot, and how it ends.

use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;
use spindle::clients::rust::tables::Client;
use spindle::services::tables::wire::{Reply, Request, TableName};

use crate::harness::{Server, spindle};

/// The only line of a program that could not do its work.
#[track_caller]
fn assert_one_line(arguments: &[&str], status: i32, about: &str) {
    let output = spindle(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{arguments:?}: {said}");
    assert!(said.contains(about), "{arguments:?} says nothing of {about}: {said}");
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    for (arguments, about) in [
        (&["serve", "--nonsense"][..], "--nonsense"),
        (&["serve", "--workers", "none"], "--workers"),
        (&["serve", "--workers", "0"], "--workers"),
        (&["serve", "--allocator", "tcmalloc"], "--allocator"),
        (&["serve", "--max-memory", "110%"], "--max-memory"),
        (&["serve", "--max-value", "99999999999"], "--max-value"),
        (&["serve", "--pin", "x"], "--pin"),
        (&["serve", "--kv", "nonsense"], "nonsense"),
        (&["serve", "--kv", "off", "--publish", "tcp://127.0.0.1:*"], "--tasks"),
        (&["serve", "--expected-keys", "1000000000000000"], "--expected-keys"),
        (&["fly"], "fly"),
        (&["get", "table"], "KEY"),
        (&["touch", "table", "key", "--ttl", "soon"], "--ttl"),
    ] {
        assert_one_line(arguments, 2, about);
    }
}

#[test]
fn an_endpoint_in_use_is_one_line_and_status_1() {
    let server = Server::start(&[]);
    assert_one_line(&["serve", "--kv", server.kv(), "--publish", "off"], 1, server.kv());
    assert_one_line(&["serve", "--kv", "tcp://127.0.0.1:*", "--publish", server.kv()], 1, server.kv());
    server.stop();
}

#[test]
fn a_server_that_is_not_there_is_one_line_and_status_1() {
    assert_one_line(&["ping", "--connect", "ipc:///nonexistent/spindle"], 1, "ipc:///nonexistent/spindle");
}

#[test]
fn both_signals_end_the_server_well() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(&[]);
        server.signal(signal);
        let (status, _) = server.wait();
        assert!(status.success(), "{signal:?}: {status}");
    }
}

#[test]
fn tables_are_scanned_counted_and_compared_from_the_command_line() {
    let server = Server::start(&[]);
    let run = |arguments: &[&str]| {
        let output = spindle(&[arguments, &["--connect", server.kv()]].concat());
        let (printed, said) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned());
        (output.status.code(), if printed.is_empty() { said } else { printed })
    };
    let good = |arguments: &[&str]| {
        let (status, printed) = run(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {printed}");
        printed
    };
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&good(&[arguments, &["--json"]].concat())).unwrap()
    };
    good(&["create-table", "t"]);
    assert_eq!(good(&["scan", "t"]), "");
    assert_eq!(good(&["incr", "t", "hits"]), "1\n");
    assert_eq!(good(&["incr", "t", "hits", "-3", "--ttl", "60s"]), "-2\n");
    let counted = json(&["incr", "t", "hits", "44"]);
    assert_eq!(counted["value"], 42);
    let created = good(&["cas", "t", "owner", "0", "ada"]);
    let version = created.trim().parse::<u64>().unwrap();
    let swapped = json(&["cas", "t", "owner", created.trim(), "0x00", "--hex", "--ttl", "90500ms"]);
    let owner = json(&["get", "t", "owner"]);
    assert!(owner["remaining_millis"].as_u64().is_some_and(|left| (60_000..=90_500).contains(&left)), "{owner}");
    assert!(swapped["version"].as_u64().unwrap() > version);
    let (status, said) = run(&["cas", "t", "owner", created.trim(), "eve"]);
    let now = format!("version mismatch: it has version {}", swapped["version"]);
    assert!(status == Some(4) && said.contains(&now), "{said}");
    let mut client = Client::connect(server.kv()).unwrap();
    for key in 0..2_500 {
        client.update(b"t", format!("key {key}").as_bytes(), b"text", None).unwrap();
    }
    let keys = good(&["scan", "t"]);
    assert_eq!(keys.lines().collect::<std::collections::BTreeSet<_>>().len(), 2_502);
    assert_eq!(good(&["scan", "t", "--prefix", "ow", "--values"]), "owner 0x00\n");
    let row = json(&["scan", "t", "--prefix", "hits"]);
    assert_eq!((&row["key"], &row["value"], &row["version"]), (&"hits".into(), &"42".into(), &counted["version"]));
    assert!(row["remaining_millis"].is_null());
    let (status, _) = run(&["delete", "t", "owner", "--if-version", created.trim()]);
    assert_eq!(status, Some(4));
    assert_eq!(good(&["delete", "t", "owner", "--if-version", &swapped["version"].to_string()]), "0x00\n");
    let (status, said) = run(&["incr", "t", "key 7"]);
    assert!(status == Some(1) && said.contains("not a number"), "{said}");
    server.stop();
}

#[test]
fn versions_grow_over_a_restart() {
    let first = |client: &mut Client, changes: usize| {
        client.create_table(b"t").unwrap();
        for _ in 0..changes {
            client.update(b"t", b"k", b"v", None).unwrap();
        }
        client.get_entry(b"t", b"k").unwrap().version
    };
    let mut server = Server::start(&[]);
    let before = first(&mut Client::connect(server.kv()).unwrap(), 100);
    server.stop();
    server = Server::start(&[]);
    let after = first(&mut Client::connect(server.kv()).unwrap(), 1);
    server.stop();
    assert!(after > before, "{after} after {before}: a client that waited for the change would not see it");
}

#[test]
fn several_endpoints_serve_the_same_tables() {
    let folder = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}/kv", folder.path().display());
    let server = Server::start(&["--kv", &ipc]);
    assert_eq!(server.kv_all().len(), 2, "{:?}", server.kv_all());
    Client::connect(server.kv()).unwrap().create_table(b"t").unwrap();
    let mut other = Client::connect(&ipc).unwrap();
    assert_eq!(other.update(b"t", b"k", b"v", None), Ok(()));
    server.stop();
}

#[test]
fn a_server_without_notifications_serves() {
    let server = Server::start_exactly(&["--kv", "tcp://127.0.0.1:*", "--publish", "off"]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    for number in 0..200_u8 {
        client.update(b"t", &[number], b"v", None).unwrap();
    }
    client.delete_table(b"t").unwrap();
    server.stop();
}

#[test]
fn what_was_answered_before_the_end_was_answered_in_order() {
    let server = Server::start(&["--workers", "4"]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    let (table, key) = (TableName::spelt(b"t"), &b"k"[..]);
    for number in 0..20_000_u32 {
        let value = &number.to_be_bytes();
        let swap: Request<'_> = Request::CompareAndSwap { table, key, expected: 0, value, ttl: None };
        client.send(&swap).unwrap();
        let delete: Request<'_> = Request::Delete { table, key };
        client.send(&delete).unwrap();
    }
    // The first answer has come, so the server is at work.
    assert!(matches!(client.receive(), Ok(Reply::Version(_))));
    server.signal(Signal::TERM);
    let mut answered = 1;
    while let Ok(reply) = client.receive() {
        match (answered % 2, reply) {
            (0, Reply::Version(_)) => {}
            (_, Reply::Value(value)) => assert_eq!(value, u32::to_be_bytes(answered / 2)),
            (_, reply) => panic!("answer {answered} is {reply:?}"),
        }
        answered += 1;
        if client.in_flight() == 0 {
            break;
        }
    }
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
}

/// Where `.cargo/config.toml` is read, which says so. A build from another folder has pairs of sockets.
#[test]
fn libzmq_wakes_threads_through_eventfds() {
    let flags = option_env!("CXXFLAGS_x86_64_unknown_linux_gnu").or(option_env!("CXXFLAGS_aarch64_unknown_linux_gnu"));
    if !flags.is_some_and(|flags| flags.contains("ZMQ_HAVE_EVENTFD")) {
        eprintln!("skipped: this build has not read .cargo/config.toml");
        return;
    }
    let server = Server::start(&["--frontend", "queue", "--workers", "1"]);
    let folder = format!("/proc/{}/fd", server.pid().as_raw_nonzero());
    let links = std::fs::read_dir(Path::new(&folder)).unwrap();
    let eventfds = links
        .filter_map(|link| std::fs::read_link(link.unwrap().path()).ok())
        .filter(|target| target.to_string_lossy().contains("[eventfd]"))
        .count();
    // Beside those of this program, the reaper of sockets, the ROUTER and the DEALER have one.
    assert!(eventfds >= 6, "{eventfds} eventfds: libzmq was built without them");
    server.stop();
}

#[test]
fn the_allocator_is_chosen_at_run_time() {
    for allocator in ["mimalloc", "jemalloc", "system"] {
        let server = Server::start(&["--allocator", allocator]);
        let report = Client::connect(server.kv()).unwrap().stats().unwrap();
        assert!(report.contains(&format!("\"{allocator}\"")), "{report}");
        server.stop();
    }
}

/// Each start that found a port in use took a block of lend keys, and left a folder.
#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let zmtp = format!("tcp://{taken}");
    let any = "tcp://127.0.0.1:*";
    let flags = |folder: &Path, changed: &[(&str, &str)]| {
        let endpoints = [
            ("--kv", any),
            ("--publish", any),
            ("--tasks", any),
            ("--jobs", "127.0.0.1:0"),
            ("--events", "127.0.0.1:0"),
            ("--events-queue", any),
            ("--data", folder.to_str().unwrap()),
        ];
        let value = |name, value| changed.iter().find(|(other, _)| *other == name).map_or(value, |(_, other)| *other);
        endpoints.map(|(name, given)| format!("{name}={}", value(name, given)))
    };
    // The first keys and ids of a server on this folder.
    let first = |folder: &Path| {
        let flags = flags(folder, &[]);
        let server = Server::start_exactly(&flags.each_ref().map(String::as_str));
        let job = spindle(&["job", "add", "q", "data", "--connect", server.jobs()]).stdout;
        spindle(&["task", "add", "key", "value", "--connect", server.tasks()]);
        let lent = spindle(&["task", "lend", "--timeout", "60000", "--connect", server.tasks()]).stdout;
        let event =
            spindle::clients::rust::events::EventsClient::new(server.events().parse().unwrap()).create().unwrap();
        server.stop();
        (String::from_utf8(job).unwrap(), String::from_utf8(lent).unwrap(), event.id)
    };
    let [undisturbed, disturbed, used] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let expected = first(&undisturbed.path().join("data"));
    assert!(expected.0.contains('1') && expected.1.contains("key"), "{expected:?}");
    let again = first(&undisturbed.path().join("data"));
    first(&used.path().join("data"));
    for failing in [
        [("--kv", &*zmtp)],
        [("--publish", &*zmtp)],
        [("--tasks", &*zmtp)],
        [("--jobs", &*taken)],
        [("--events", &*taken)],
        [("--events-queue", &*zmtp)],
    ] {
        for folder in [&disturbed, &used] {
            let folder = folder.path().join("data");
            let flags = flags(&folder, &failing);
            let output = spindle(&[&["serve"][..], &flags.each_ref().map(String::as_str)].concat());
            assert_eq!(output.status.code(), Some(1), "{failing:?}");
        }
        assert!(!disturbed.path().join("data").exists(), "{failing:?} has left a folder");
    }
    assert_eq!(first(&disturbed.path().join("data")), expected);
    assert_eq!(first(&used.path().join("data")), again);
}
