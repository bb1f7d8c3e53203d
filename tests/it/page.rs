//! The page of `--admin` in a real Chromium: it shows what STATS says, survives a restart of the server, and stands on
//! a small screen and a large one. It loads nothing from elsewhere.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::admin::{awaited, fill, get, get_with};
use crate::browser::Browser;
use crate::harness::{Server, free_port, spindle};

/// Listeners that a server serves at once.
const LISTENERS_MAX: usize = 32;
/// A folder for pictures of the page, if a person wants to see them.
const PICTURES: &str = "SPINDLE_PICTURES";

fn start(port: u16, data: &std::path::Path, flags: &[&str]) -> Server {
    let (admin, any) = (format!("127.0.0.1:{port}"), "tcp://127.0.0.1:*");
    let all = ["--admin", &admin, "--tasks", any, "--jobs", "0", "--events", "127.0.0.1:0", "--events-queue", any];
    let more = ["--feed", any, "--lockstep", any, "--data", data.to_str().unwrap()];
    Server::start(&[&all[..], &more, flags].concat())
}

/// The cells of a row of a table of the page, found by the text of two of its first cells.
fn row(browser: &Browser, id: &str, first: &[&str]) -> Option<Vec<String>> {
    let rows = browser.value(&format!(
        "[...document.querySelectorAll('#{id} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    ));
    let rows: Vec<Vec<String>> = serde_json::from_value(rows).unwrap();
    rows.into_iter().find(|row| first.iter().zip(row).all(|(wanted, cell)| wanted == cell))
}

fn text(browser: &Browser, id: &str) -> String {
    browser.value(&format!("document.getElementById('{id}').textContent")).as_str().unwrap().to_owned()
}

/// Waits for the row.
fn await_row(browser: &Browser, id: &str, first: &[&str]) -> Vec<String> {
    awaited(&format!("{first:?}"), || row(browser, id, first))
}

#[test]
fn the_page_shows_what_stats_say_and_goes_on_after_a_restart() {
    let Some(browser) = Browser::start() else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let server = start(port, folder.path(), &["--slow", "600000000"]);
    fill(&server);
    let added = spindle(&["job", "add", "mail", "hello", "--connect", server.jobs()]);
    assert!(added.status.success());
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.wait_for("document.getElementById('state').textContent === 'live'");
    let stats = server.stats();
    let update = await_row(&browser, "verbs", &["kv", "UPDATE"]);
    assert_eq!(update[3], stats["commands"]["UPDATE"]["requests"].to_string());
    let entry = await_row(&browser, "verbs", &["kv", "GET_ENTRY"]);
    assert_eq!(entry[4], "1", "refused");
    assert_eq!(await_row(&browser, "verbs", &["jobs", "ADD"])[3], "1");
    assert_eq!(await_row(&browser, "tables", &["users"])[1], "2");
    assert_eq!(await_row(&browser, "families", &["jobs/…"])[1..3], ["1", "1"], "a sum stands apart from queues");
    assert!(row(&browser, "queues", &["jobs/…"]).is_none());
    await_row(&browser, "queues", &["tasks"]);
    assert_eq!(update[5..7], update[7..9], "all of the first minute is in the last one");
    assert_eq!(text(&browser, "timers"), "1");
    assert_eq!(text(&browser, "version").trim(), stats["version"].as_str().unwrap());
    assert_eq!(text(&browser, "slow"), "No request was slow.");
    assert_eq!(browser.errors(), [""; 0], "the policy forbids nothing that the page needs");
    server.stop();
    browser.wait_for("document.getElementById('state').className === 'waiting'");
    let again = start(port, folder.path(), &["--slow", "0"]);
    browser.wait_for("document.getElementById('state').textContent === 'live'");
    fill(&again);
    await_row(&browser, "tables", &["users"]);
    browser.wait_for("document.querySelectorAll('#slow tbody tr').length > 0");
    again.stop();
}

/// Clicks a button of the page by its words.
fn click(browser: &Browser, place: &str, words: &str) {
    let found =
        format!("[...document.querySelectorAll('#{place} button')].find((one) => one.textContent === '{words}')");
    browser.wait_for(&format!("{found} !== undefined"));
    browser.value(&format!("{found}.click() === undefined"));
}

/// Waits until the table of tasks has this text in it, or has not.
fn await_tasks(browser: &Browser, part: &str, is_there: bool) {
    browser.wait_for(&format!("document.getElementById('near-tasks').textContent.includes('{part}') === {is_there}"));
}

#[test]
fn a_click_shows_a_queue_and_kicks_purges_and_pauses_it() {
    let Some(browser) = Browser::start() else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let server = start(port, folder.path(), &[]);
    let run = |arguments: &[&str], to: &[&str]| {
        let output = spindle(&[arguments, to].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (tasks, jobs) = (["--connect", server.tasks()], ["--connect", server.jobs()]);
    for (key, reason) in [("first", "no such host"), ("<b>second</b>", "<i>bad</i> data")] {
        run(&["task", "add", key, "value", "--queue", "odd&name", "--group", "acme"], &tasks);
        let lent = run(&["task", "lend", "--queue", "odd&name"], &tasks);
        let lend_key = lent.split(' ').next().unwrap();
        run(&["task", "nack", lend_key, key, reason, "--dead", "--queue", "odd&name"], &tasks);
    }
    run(&["task", "add", "third", "value", "--queue", "odd&name"], &tasks);
    run(&["job", "add", "mail", "hello", "--delay", "7d"], &jobs);
    browser.open(&format!("http://127.0.0.1:{port}/"));
    let figures = await_row(&browser, "queues", &["tasks/odd&name"]);
    assert_eq!(figures[1..7], ["1", "0", "0", "2", "0", "1"], "ready, delayed, lent, dead, dropped, groups");
    click(&browser, "queues", "tasks/odd&name");
    await_tasks(&browser, "no such host", true);
    let second = await_row(&browser, "near-tasks", &["<b>second</b>"]);
    assert_eq!((&*second[3], &*second[6]), ("acme", "<i>bad</i> data"), "it is no markup");
    browser
        .wait_for("[...document.querySelectorAll('#near-states button')].some((one) => one.textContent === 'dead 2')");
    // One is kicked.
    click(&browser, "near-tasks", "Kick");
    await_tasks(&browser, "no such host", false);
    assert_eq!(text(&browser, "near-said"), "1 kicked");
    // A purge wants a second click.
    click(&browser, "near-actions", "Purge all");
    click(&browser, "near-actions", "Really purge all?");
    browser.wait_for("document.getElementById('near-said').textContent === '1 removed'");
    await_tasks(&browser, "Nothing is dead.", true);
    click(&browser, "near-actions", "Pause");
    browser.wait_for("document.getElementById('near-said').textContent.startsWith('paused')");
    let queue = || run(&["task", "stats", "odd&name", "--json"], &tasks);
    let stats: Value = serde_json::from_str(&queue()).unwrap();
    let counts = ["ready", "dead", "paused"].map(|name| stats[name].clone());
    assert_eq!(counts, [Value::from(2), Value::from(0), Value::from(true)]);
    click(&browser, "near-actions", "Resume");
    browser.wait_for("document.getElementById('near-said').textContent === 'resumed'");
    assert_eq!(serde_json::from_str::<Value>(&queue()).unwrap()["paused"], false);
    click(&browser, "queues", "jobs/mail");
    browser.wait_for(
        "[...document.querySelectorAll('#near-states button')].some((one) => one.textContent === 'delayed 1')",
    );
    click(&browser, "near-states", "delayed 1");
    await_tasks(&browser, "hello", true);
    click(&browser, "near-actions", "Kick all");
    await_tasks(&browser, "Nothing is delayed.", true);
    for (size, scheme) in [((375, 812), "dark"), ((1_440, 900), "light")] {
        browser.look(size, scheme);
        browser.wait_for(&format!("innerWidth === {}", size.0));
        browser.wait_for("document.documentElement.scrollWidth <= innerWidth");
        if let Some(folder) = std::env::var_os(PICTURES) {
            let name = format!("queue-{}-{scheme}.png.base64", size.0);
            std::fs::write(std::path::Path::new(&folder).join(name), browser.picture()).unwrap();
        }
    }
    assert_eq!(browser.errors(), [""; 0], "the policy forbids nothing that the page needs");
    server.stop();
}

#[test]
fn the_page_stands_on_a_small_screen_and_a_large_one_light_and_dark() {
    let Some(browser) = Browser::start() else { return };
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let server = start(port, folder.path(), &["--slow", "0", "--frontend", "native"]);
    fill(&server);
    let long = "a-table-with-a-name-that-is-much-longer-than-any-column-has-room-for-".repeat(3);
    assert!(spindle(&["create-table", &long, "--connect", server.kv()]).status.success());
    assert!(spindle(&["task", "add", "key", "value", "--connect", server.tasks()]).status.success());
    crate::stage::client(&server).create().unwrap();
    let load = ["load", "--connect", server.kv(), "--depth", "16", "--seconds", "1", "--warm-up", "0", "--prefill"];
    assert!(spindle(&load).status.success());
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.wait_for("document.getElementById('state').textContent === 'live'");
    browser.wait_for("document.querySelectorAll('#slow tbody tr').length > 0");
    for (size, scheme) in [((375, 812), "light"), ((375, 812), "dark"), ((1_440, 900), "light"), ((1_440, 900), "dark")]
    {
        browser.look(size, scheme);
        browser.wait_for(&format!("innerWidth === {}", size.0));
        browser.wait_for("document.documentElement.scrollWidth <= innerWidth");
        // A figure, a table or a name that does not fit, or a chart that is wider than its place.
        let clipped = "[...document.querySelectorAll('.figure, .note, h2, .chart, .scroll, td')].filter((one) => \
                       one.scrollWidth > one.clientWidth).map((one) => one.id + one.textContent)";
        awaited("that all fits", || (browser.value(clipped) == Value::Array(Vec::new())).then_some(()));
        let back = browser.value("getComputedStyle(document.documentElement).backgroundColor");
        assert_eq!(back == "rgb(246, 247, 249)", scheme == "light", "{back}");
        if let Some(folder) = std::env::var_os(PICTURES) {
            let name = format!("page-{}-{scheme}.png.base64", size.0);
            std::fs::write(std::path::Path::new(&folder).join(name), browser.picture()).unwrap();
        }
    }
    assert_eq!(browser.errors(), [""; 0]);
    server.stop();
}

/// The points of the page's charts, and its ticks.
#[test]
fn the_page_shows_what_was_before_it_was_opened_and_its_ticks_are_round() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start(&["--admin", "0", "--jobs", "0"]);
    fill(&server);
    assert!(spindle(&["job", "add", "mail", "hello", "--connect", server.jobs()]).status.success());
    // Of requests about tables one of 32 is timed.
    let load = ["load", "--connect", server.kv(), "--depth", "16", "--seconds", "1", "--warm-up", "0", "--prefill"];
    assert!(spindle(&load).status.success());
    let read = || {
        let (_, mut stream) = listen(server.admin());
        let mut text = Vec::new();
        while !text.ends_with(b"\n\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            text.extend(byte);
        }
        let text = String::from_utf8(text).unwrap();
        let json: Value = serde_json::from_str(text.split_once("data: ").unwrap().1.trim()).unwrap();
        json["points"].as_array().unwrap().clone()
    };
    // Nobody has listened, and each second has its point.
    let points = awaited("points of the past", || Some(read()).filter(|points| points.len() >= 4));
    let has = |protocol: &str| points.iter().any(|point| point["latency_micros"][protocol]["p99"].is_f64());
    assert!(has("kv") && has("jobs"), "{points:?}");
    browser.open(&format!("http://{}/", server.admin()));
    browser.wait_for("document.getElementById('state').textContent === 'live'");
    browser.wait_for("points.length >= 5");
    assert!(browser.value("points[0].unix_millis").as_u64() <= points[0]["unix_millis"].as_u64());
    assert_eq!(browser.value("document.getElementById('latency-legend').textContent"), "jobskv");
    let ticks = browser.value(
        "[['4.00 KiB', '64.0 MiB', '2.50 k', '10 µs', '100 ms', '0.50 µs', '1.00 G'].map(tick), \
         [1024, 3072, 1048576].map(bytes).map(tick)]",
    );
    let expected = serde_json::json!([
        ["4 KiB", "64 MiB", "2.5 k", "10 µs", "100 ms", "0.5 µs", "1 G"],
        ["1 KiB", "3 KiB", "1 MiB"],
    ]);
    assert_eq!(ticks, expected);
    assert_eq!(browser.errors(), [""; 0]);
    server.stop();
}

/// A browser has six connections for a server, and a page that is live takes one of them: the seventh page hung.
#[test]
fn eight_pages_of_one_browser_are_shown_and_a_hidden_one_has_no_connection() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start(&["--admin", "0"]);
    let url = format!("http://{}/", server.admin());
    let live = "document.getElementById('state').textContent === 'live'";
    browser.open(&url);
    browser.wait_for(live);
    for _ in 1..8 {
        // A browser without a window shows all its pages, so this one is hidden as a person would hide it.
        browser.hide(true);
        browser.wait_for("source === null && document.body.classList.contains('stale')");
        browser.open_tab(&url);
        browser.wait_for(live);
    }
    browser.hide(true);
    browser.wait_for("source === null");
    browser.hide(false);
    browser.wait_for(live);
    assert_eq!(browser.errors(), [""; 0]);
    server.stop();
}

#[test]
fn the_files_are_served_with_a_policy_and_name_no_other_host() {
    let server = Server::start(&["--admin", "0"]);
    let (status, head, page) = get_with(server.admin(), "/", "");
    assert!(status == 200 && head.contains("content-type: text/html"), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{head}");
    let links = page.split(['"', '\'']).filter(|part| part.starts_with("page/"));
    for link in links {
        let (status, body) = get(server.admin(), &format!("/{link}"));
        assert!(status == 200 && !body.is_empty(), "{link}");
    }
    assert!(!page.contains("://") && !page.contains("<style") && !page.contains("onclick"), "{page}");
    assert!(get(server.admin(), "/page/uPlot.LICENSE.txt").1.contains("MIT License"));
    server.stop();
}

/// A listener of the live metrics, after its first message.
fn listen(address: &str) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut received = Vec::new();
    while !received.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        received.extend(byte);
    }
    let head = String::from_utf8(received).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), stream)
}

#[test]
fn so_many_listen_at_once_and_a_place_is_given_again() {
    let server = Server::start(&["--admin", "0"]);
    let listeners: Vec<_> = (0..LISTENERS_MAX).map(|_| listen(server.admin())).collect();
    assert!(listeners.iter().all(|(status, _)| *status == 200));
    assert_eq!(listen(server.admin()).0, 503);
    assert_eq!(get(server.admin(), "/health").0, 200, "others are served");
    drop(listeners);
    awaited("a place", || Some(listen(server.admin())).filter(|(status, _)| *status == 200));
    server.stop();
}

#[test]
fn the_end_of_the_server_ends_those_who_listen() {
    let server = Server::start(&["--admin", "0"]);
    let (status, mut stream) = listen(server.admin());
    assert_eq!(status, 200);
    server.stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: {\"version\":") && rest.ends_with("0\r\n\r\n"), "a whole reply: {rest}");
}
