//! The name, type, unit, help and labels of each metric, and the paths in STATS, stay as they are: dashboards and alerts
//! name them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::admin::{awaited, full, get_with, json};
use crate::harness::spindle;
use crate::resp_operation::{reply, send};

/// The names of today. `SPINDLE_BLESS=1` writes them anew.
const NAMES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/metrics_names.txt");

/// Adds the paths of a document. Elements of an array share one path, and so do the lines of a command or verb.
fn paths(path: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let is_verb = name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_' || letter == ' ');
            paths(&format!("{path}.{}", if is_verb { "*" } else { name }), value, into);
        }),
        Value::Array(elements) => elements.iter().for_each(|element| paths(&format!("{path}[]"), element, into)),
        _ => drop(into.insert(path.to_owned())),
    }
}

/// A sample with any verb: which of them are timed is a matter of chance.
fn with_any_verb(line: &str) -> String {
    let Some((before, rest)) = line.split_once("verb=\"") else { return line.to_owned() };
    format!("{before}verb=\"*\"{}", rest.split_once('"').map_or("", |(_, rest)| rest))
}

/// The lines of an exposition without their values. Buckets of a histogram are left out.
fn families(text: &str) -> BTreeSet<String> {
    let is_bucket = |line: &&str| !line.starts_with('#') && line.contains("_bucket{");
    let name = |line: &str| match line.strip_prefix('#') {
        Some(head) => format!("#{head}"),
        None => with_any_verb(line.rsplit_once(' ').unwrap().0),
    };
    let is_one = |line: &String| !line.contains("worker=\"") || line.contains("worker=\"0\"");
    text.lines().filter(|line| !is_bucket(line)).map(name).filter(is_one).collect()
}

#[test]
fn every_metric_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = full(folder.path());
    let got = spindle(&["job", "get", "mail", "--connect", server.jobs()]);
    assert!(got.status.success());
    for queue in ["mail", "post"] {
        assert!(spindle(&["job", "add", queue, "again", "--connect", server.jobs()]).status.success());
    }
    let made = spindle(&["create-table", "lasting", "--durability", "soon", "--connect", server.kv()]);
    assert!(made.status.success());
    let mut redis = std::net::TcpStream::connect(server.resp()).unwrap();
    send(&mut redis, &[b"SET", b"a", b"1"]);
    assert_eq!(reply(&mut redis), b"+OK\r\n");
    let accept = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let text = awaited("all families", || {
        let (_, _, text) = get_with(server.admin(), "/metrics", accept);
        text.contains("spindle_execution_seconds_count{protocol=\"jobs\",verb=\"GET\"}").then_some(text)
    });
    let mut names: Vec<String> = families(&text).into_iter().collect();
    let mut stats = BTreeSet::new();
    paths("", &json(server.admin(), "/stats"), &mut stats);
    names.extend(stats);
    // The build of a package names its own.
    let names: Vec<String> = names.into_iter().filter(|name| !name.starts_with("spindle_build_info_info{")).collect();
    let found = names.join("\n") + "\n";
    if std::env::var_os("SPINDLE_BLESS").is_some() {
        std::fs::write(Path::new(NAMES), &found).unwrap();
    }
    let expected = std::fs::read_to_string(NAMES).unwrap();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (now, before) = (lines(&found), lines(&expected));
    assert_eq!(now.symmetric_difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
    server.stop();
}
