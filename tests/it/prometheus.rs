//! A real Prometheus.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::admin::awaited;
use crate::harness::{Guarded, free_port, real_peer};

/// The settings that have it scrape a server each second.
pub(crate) fn scraping(admin: &str) -> String {
    let target = format!("- job_name: spindle\n  static_configs: [{{targets: ['{admin}']}}]\n");
    format!("global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nscrape_configs:\n{target}")
}

/// One that runs.
pub(crate) struct Prometheus {
    address: String,
    _child: Guarded,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one with these settings, or returns `None` if this machine has none.
    pub(crate) fn start(settings: &str) -> Option<Self> {
        let program = real_peer("prometheus")?;
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        std::fs::write(&config, settings).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { address, _child: Guarded(child), _folder: folder })
    }

    /// The series of a query, which may be none. `None`: Prometheus does not answer yet.
    pub(crate) fn query(&self, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        // A reply to HTTP/1.0 is in one piece.
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap();
        assert!(status == "200" || status == "503", "{query}: {body}");
        let reply: Value = (status == "200").then(|| serde_json::from_str(body).unwrap())?;
        reply["data"]["result"].as_array().cloned()
    }

    /// The first series of a query, as soon as there is one.
    pub(crate) fn await_one(&self, query: &str) -> Value {
        awaited(query, || self.query(query)?.into_iter().next())
    }
}
