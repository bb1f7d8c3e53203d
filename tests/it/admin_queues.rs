//! Queues over `--admin`: who may look at them and change them, and that a page of another site cannot.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{Server, spindle};
use crate::users_tcp::{ADA, EVE, ROOT, Served};

/// The header of a change.
const CHANGE: &str = "X-Spindle-Change: yes\r\n";

/// The status and the document of a request.
fn ask(address: &str, request: &str, headers: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    write!(stream, "{request} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: 0\r\n{headers}\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

fn add(server: &Server, queue: &str, login: &[&str]) {
    let added = spindle(&[&["job", "add", queue, "data", "--connect", server.jobs()], login].concat());
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
}

#[test]
fn a_page_of_another_site_changes_no_queue() {
    let server = Server::start(&["--admin", "0", "--jobs", "0"]);
    let (admin, purge) = (server.admin(), "POST /queues/purge?family=jobs&queue=mail&states=ready");
    add(&server, "mail", &[]);
    let refused = |headers: &str, why: &str| {
        let (status, json) = ask(admin, purge, headers);
        assert!(status == 403 && json["error"].as_str().unwrap().contains(why), "{headers}: {status} {json}");
    };
    refused("", "X-Spindle-Change");
    refused(&format!("{CHANGE}Origin: http://evil.example\r\n"), "another site");
    refused(&format!("{CHANGE}Origin: null\r\n"), "another site");
    refused(&format!("{CHANGE}Sec-Fetch-Site: cross-site\r\n"), "another site");
    refused(&format!("{CHANGE}Host: evil.example\r\n"), "--admin-host");
    let origin = "Host: evil.example\r\nOrigin: http://evil.example\r\n";
    refused(&format!("{CHANGE}{origin}"), "--admin-host");
    assert_eq!(ask(admin, &purge.replace("POST", "GET"), CHANGE).0, 405);
    assert_eq!(ask(admin, &purge.replace("POST", "PUT"), CHANGE).0, 405);
    let preflight = format!("{CHANGE}Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n");
    assert_eq!(ask(admin, &purge.replace("POST", "OPTIONS"), &preflight).0, 405, "no browser gets a leave");
    let (_, page) = ask(admin, "GET /queues/peek?family=jobs&queue=mail&state=ready", "");
    assert_eq!(page["tasks"].as_array().unwrap().len(), 1, "it is there");
    let own = format!("{CHANGE}Origin: http://{admin}\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(ask(admin, purge, &own), (200, json!({ "removed": 1 })));
    server.stop();
}

/// By DNS rebinding a page has a name of its own point to a server that others can reach.
#[test]
fn where_others_may_look_a_browser_changes_something_by_a_known_name_alone() {
    for (flags, status) in [(&[][..], 403), (&["--admin-host", "server.example"], 200)] {
        let server = Server::start(&[&["--admin", "0.0.0.0:0", "--open", "--jobs", "0"], flags].concat());
        add(&server, "mail", &[]);
        let admin = server.admin().replace("0.0.0.0", "127.0.0.1");
        let pause = "POST /queues/configure?family=jobs&queue=mail&pause=on";
        let named = format!("{CHANGE}Host: server.example\r\nOrigin: http://server.example\r\n");
        assert_eq!(ask(&admin, pause, &named).0, status, "{flags:?}");
        let (_, queues) = ask(&admin, "GET /queues?family=jobs", "");
        assert_eq!(queues["queues"][0]["paused"], status == 200);
        let address = format!("{CHANGE}Host: {admin}\r\nOrigin: http://{admin}\r\n");
        assert_eq!(ask(&admin, pause, &address).0, 200, "{flags:?}");
        server.stop();
    }
}

#[test]
fn what_is_malformed_is_refused_and_changes_nothing() {
    let server = Server::start(&["--admin", "0", "--jobs", "0", "--tasks", "tcp://127.0.0.1:*"]);
    add(&server, "mail", &[]);
    let jobs = "family=jobs&queue=mail";
    for (request, why) in [
        ("GET /queues".to_owned(), "family is tasks or jobs"),
        ("GET /queues?family=events".to_owned(), "family is tasks or jobs"),
        ("GET /queues?family=jobs&moste=1".to_owned(), "no parameter moste"),
        ("GET /queues?family=jobs&queue=".to_owned(), "1 to 255 bytes"),
        (format!("GET /queues/peek?{jobs}"), "state is"),
        (format!("GET /queues/peek?{jobs}&state=gone"), "state is"),
        (format!("GET /queues/peek?{jobs}&state=ready&most=-1"), "most is a whole number"),
        (format!("GET /queues/peek?{jobs}&state=ready&from=7"), "from is"),
        ("GET /queues/peek?family=jobs&queue=&state=ready".to_owned(), "1 to 255 bytes"),
        (format!("GET /queues/peek?family=jobs&queue={}&state=ready", "q".repeat(256)), "1 to 255 bytes"),
        (format!("POST /queues/kick?{jobs}"), "kick the key"),
        (format!("POST /queues/kick?{jobs}&state=ready"), "kick the key"),
        (format!("POST /queues/kick?{jobs}&key=k&state=dead"), "kick the key"),
        (format!("POST /queues/kick?{jobs}&id=7"), "20 digits"),
        (format!("POST /queues/purge?{jobs}"), "states are"),
        (format!("POST /queues/purge?{jobs}&states=ready,lent"), "states are"),
        (format!("POST /queues/purge?{jobs}&states=ready&older=7"), "older is"),
        (format!("POST /queues/purge?{jobs}&states=ready&older=0s&older=0s"), "there twice"),
        (format!("POST /queues/configure?{jobs}"), "no setting is named"),
        (format!("POST /queues/configure?{jobs}&pause=on&rate=fast"), "a rate is"),
        (format!("POST /queues/configure?{jobs}&sync=never"), "they have no sync"),
    ] {
        let (status, json) = ask(server.admin(), &request, CHANGE);
        assert!(status == 400 && json["error"].as_str().unwrap().contains(why), "{request}: {status} {json}");
    }
    let (_, queues) = ask(server.admin(), "GET /queues?family=jobs", "");
    let queue = &queues["queues"][0];
    assert_eq!((&queue["ready"], &queue["paused"]), (&json!(1), &json!(false)), "{queue}");
    let (_, tasks) = ask(server.admin(), "GET /queues?family=tasks&from=0", "");
    assert_eq!(tasks, json!({ "queues": [tasks["queues"][0]], "next": null }), "the one without a name alone");
    assert_eq!(tasks["queues"][0]["name"], "default");
    server.stop();
}

#[test]
fn one_queue_is_shown_without_the_others() {
    let server = Server::start(&["--admin", "0", "--jobs", "0"]);
    assert!(spindle(&["job", "pause", "other", "--admin", server.admin()]).status.success());
    add(&server, "mail", &[]);
    let shown = |queue: &str| ask(server.admin(), &format!("GET /queues?family=jobs&queue={queue}"), "").1;
    let mail = shown("mail");
    assert_eq!((&mail["queues"][0]["name"], &mail["queues"][0]["ready"]), (&json!("mail"), &json!(1)));
    assert_eq!((mail["queues"].as_array().unwrap().len(), &mail["next"]), (1, &Value::Null));
    assert_eq!(shown("other")["queues"][0]["paused"], true);
    assert_eq!(shown("mai"), json!({ "queues": [], "next": null }));
    server.stop();
}

/// Ada may write the queue mail, eve may read all, and root may do everything.
#[test]
fn with_users_each_request_needs_its_access_to_the_queue() {
    let served = Served::start();
    let file = served.folder().join("password");
    std::fs::write(&file, "heron").unwrap();
    let login = ["--user", "root", "--password-file", file.to_str().unwrap()];
    add(&served.server, "mail", &login);
    add(&served.server, "other", &login);
    let of = |user: &str, request: &str| {
        ask(served.server.admin(), request, &format!("{CHANGE}Authorization: {user}\r\n")).0
    };
    let requests = |queue: &str| {
        [
            format!("GET /queues?family=jobs&queue={queue}"),
            format!("GET /queues/peek?family=jobs&queue={queue}&state=ready"),
            format!("POST /queues/kick?family=jobs&queue={queue}&state=dead"),
            format!("POST /queues/configure?family=jobs&queue={queue}&tries=7"),
            format!("POST /queues/purge?family=jobs&queue={queue}&states=dead"),
        ]
    };
    let statuses = |user: &str, queue: &str| requests(queue).map(|request| of(user, &request));
    assert_eq!(statuses(ADA, "mail"), [200, 200, 200, 403, 403]);
    assert_eq!(statuses(ADA, "other"), [403; 5]);
    assert_eq!(statuses(EVE, "mail"), [200, 200, 403, 403, 403]);
    assert_eq!(statuses(ROOT, "other"), [200; 5]);
    let anonymous = requests("mail").map(|request| ask(served.server.admin(), &request, CHANGE).0);
    assert_eq!(anonymous, [401; 5]);
    let names = |user: &str| {
        let headers = format!("Authorization: {user}\r\n");
        let (_, page) = ask(served.server.admin(), "GET /queues?family=jobs", &headers);
        let mut names: Vec<String> =
            page["queues"].as_array().unwrap().iter().map(|queue| queue["name"].to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(ADA), ["\"mail\""]);
    assert_eq!(names(EVE), ["\"mail\"", "\"other\""]);
    assert_eq!(of(ADA, "GET /stats"), 403, "the rest is the administrators'");
    let list = |user: &str| {
        let flags = ["--admin", served.server.admin(), "--user", user, "--password-file", file.to_str().unwrap()];
        spindle(&[&["job", "pause", "mail"], &flags[..]].concat()).status.code()
    };
    assert_eq!((list("ada"), list("root")), (Some(5), Some(0)));
    served.stop();
}
