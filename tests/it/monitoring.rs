//! What the package has for operators, asked of real ones: the Grafana dashboard and the alerts of a Prometheus, and the
//! page for Kubernetes of its schemas.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::admin::{awaited, full};
use crate::harness::{real_peer, run_python, spindle};
use crate::prometheus::{Prometheus, scraping};

pub(crate) fn packaged(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/server/package")).join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(packaged(name)).unwrap()
}

/// The queries of the dashboard, with the values that Grafana gives its variables.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let given = [("$__rate_interval", "10s"), ("$job", ".*"), ("$instance", ".*")];
    let filled = |query: &str| given.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
    targets.map(|target| filled(target["expr"].as_str().unwrap())).collect()
}

/// The metrics that a text names.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("spindle_")).collect()
}

#[test]
fn a_real_prometheus_has_an_answer_to_each_query_of_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let server = full(folder.path());
    let Some(prometheus) = Prometheus::start(&scraping(server.admin())) else { return };
    for arguments in [
        &["task", "add", "key", "value", "--connect", server.tasks()][..],
        &["set", "users", "soon", "1", "--ttl", "1ms", "--connect", server.kv()],
    ] {
        let output = spindle(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut number = 0;
    let queries = queries();
    assert!(queries.len() > 40, "{}", queries.len());
    for query in queries {
        awaited(&query, || {
            // A rate is of requests that came between two scrapes.
            number += 1;
            let (value, kv) = (number.to_string(), server.kv());
            assert!(spindle(&["set", "users", "ada", &value, "--ttl", "1ms", "--connect", kv]).status.success());
            assert_eq!(spindle(&["get", "users", "nobody", "--connect", kv]).status.code(), Some(3));
            let series = prometheus.query(&query)?;
            let is_number = |one: &Value| one["value"][1].as_str().is_some_and(|value| value != "NaN");
            series.iter().any(is_number).then_some(())
        });
    }
    server.stop();
}

#[test]
fn promtool_and_prometheus_take_the_alerts_and_their_metrics_exist() {
    // The page has those of servers with users and timers too.
    let known =
        [include_str!("metrics_names.txt"), include_str!("../../src/services/operator/admin/ADMIN.md")].concat();
    let names = metrics(&known);
    for file in ["alerts.yml", "grafana.json"] {
        let text = text(file);
        let is_known = |name: &&str| {
            names.contains(name.trim_end_matches("_bucket"))
                || names.contains(name.trim_end_matches("_bucket").trim_end_matches("_total"))
        };
        let unknown: Vec<_> = metrics(&text).into_iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let Some(promtool) = real_peer("promtool") else { return };
    for arguments in
        [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]]
    {
        let mut command = Command::new(&promtool);
        let output = command.args(arguments).current_dir(packaged("")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = full(folder.path());
    let rules = format!("rule_files: ['{}']\n", packaged("alerts.yml").display());
    let Some(prometheus) = Prometheus::start(&(rules + &scraping(server.admin()))) else { return };
    // It has just been started, and no other alert is pending.
    let restarted = prometheus.await_one(r#"ALERTS{alertname="SpindleRestarted",alertstate="firing"}"#);
    assert_eq!(restarted["metric"]["severity"], "info", "{restarted}");
    let others = prometheus.query(r#"ALERTS{alertname!="SpindleRestarted"}"#).unwrap();
    assert!(others.is_empty(), "{others:?}");
    server.stop();
}

#[test]
fn the_manifests_keep_to_the_schemas_and_their_flags_are_those_of_the_server() {
    run_python("manifests.py", &[env!("CARGO_BIN_EXE_spindle"), packaged("").to_str().unwrap()]);
}
