//! Redis for comparison: its bytes per element for the same keys and values. Skipped where it is not installed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use crate::fixture::VALUE_BYTES;

/// Commands that are sent before their replies are read.
const PIPELINE: usize = 1_000;

struct Server {
    child: Child,
    _folder: tempfile::TempDir,
    stream: BufReader<UnixStream>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Redis' version, and its resident bytes per element.
pub(crate) fn bytes_per_element(count: usize) -> Option<(String, f64)> {
    let mut server = start()?;
    let before = server.info("used_memory_rss:");
    let version = server.info("redis_version:");
    let value = "v".repeat(VALUE_BYTES);
    for start in (0..count).step_by(PIPELINE) {
        let commands: String = (start..count.min(start + PIPELINE))
            .map(|key| format!("*3\r\n$3\r\nSET\r\n$16\r\n{key:016}\r\n${VALUE_BYTES}\r\n{value}\r\n"))
            .collect();
        server.stream.get_mut().write_all(commands.as_bytes()).unwrap();
        for _ in start..count.min(start + PIPELINE) {
            let mut reply = String::new();
            server.stream.read_line(&mut reply).unwrap();
            assert_eq!(reply, "+OK\r\n");
        }
    }
    let after: f64 = server.info("used_memory_rss:").parse().unwrap();
    let before: f64 = before.parse().unwrap();
    Some((format!("redis {version}"), (after - before) / count as f64))
}

fn start() -> Option<Server> {
    let folder = tempfile::tempdir().ok()?;
    let socket = folder.path().join("redis.sock");
    let mut child = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    let stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(_) if child.try_wait().ok()?.is_some() => return None,
            Err(_) => std::thread::yield_now(),
        }
    };
    Some(Server { child, _folder: folder, stream: BufReader::new(stream) })
}

impl Server {
    /// One field of INFO.
    fn info(&mut self, field: &str) -> String {
        self.stream.get_mut().write_all(b"*1\r\n$4\r\nINFO\r\n").unwrap();
        let mut length = String::new();
        self.stream.read_line(&mut length).unwrap();
        let bytes: usize = length.trim_start_matches('$').trim().parse().unwrap();
        let mut text = vec![0; bytes + 2];
        self.stream.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
    }
}
