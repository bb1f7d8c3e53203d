//! The places of events in a test, and their workers: one suite for both stores.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Weak};

use rustix::process::{Pid, Signal, kill_process};
use spindle::clients::rust::events::EventsClient;
use spindle::services::events::wire::Event;
use tempfile::TempDir;

use crate::harness::{Guarded, SPINDLE, Server, real_peer};
use crate::lock::Mutex;
use crate::mariadb::{MariaDb, installed};

/// An empty store.
pub(crate) enum Stage {
    Embedded(TempDir),
    MySql(Box<MariaDb>),
}

impl Stage {
    pub(crate) fn embedded() -> Option<Self> {
        Some(Self::Embedded(tempfile::tempdir().unwrap()))
    }

    /// `None`, with a notice, where there is no MariaDB.
    pub(crate) fn mysql() -> Option<Self> {
        maria_db().map(|database| Self::MySql(Box::new(database)))
    }

    /// A server on this store.
    pub(crate) fn serve(&self) -> Server {
        match self {
            Self::Embedded(folder) => Server::start_events(&["--data", folder.path().to_str().unwrap()]),
            Self::MySql(database) => Server::start_events(&["--events-store", &database.url()]),
        }
    }

    /// A worker with these further flags. Leases are short, so that the events of a dead worker come back soon.
    pub(crate) fn work(&self, server: &Server, flags: &[&str]) -> Worker {
        Worker::start(&self.source(server), flags, "error", Stdio::inherit())
    }

    /// The same, with a log that the test reads: see [`Worker::begins_to_stop`].
    pub(crate) fn work_with_a_log(&self, server: &Server, flags: &[&str]) -> Worker {
        Worker::start(&self.source(server), flags, "spindle::worker=info", Stdio::piped())
    }

    fn source(&self, server: &Server) -> Vec<String> {
        match self {
            Self::Embedded(_) => {
                ["--connect".to_owned(), server.events_queue().to_owned(), "--lease=1".to_owned()].to_vec()
            }
            Self::MySql(database) => ["--store".to_owned(), database.url()].to_vec(),
        }
    }
}

/// `None`, with a notice, where there is no MariaDB. Installing one takes seconds of syncs, so those that run at a time
/// are copies of the same.
pub(crate) fn maria_db() -> Option<MariaDb> {
    static INSTALLED: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let (program, install) = (real_peer("mariadbd")?, real_peer("mariadb-install-db")?);
    let original = {
        let mut known = INSTALLED.lock();
        let original = known.upgrade().unwrap_or_else(|| Arc::new(installed(install)));
        *known = Arc::downgrade(&original);
        original
    };
    let copy = tempfile::tempdir().unwrap();
    let mut command = Command::new("cp");
    // Most of a new database is zeros, and takes no room in the copy.
    command.args(["-a", "--sparse=always"]).arg(original.path().join("data")).arg(copy.path());
    assert!(command.status().unwrap().success());
    Some(MariaDb::start(program, copy, Some(original)))
}

/// A running `spindle worker`. Killed when dropped, by its own process id.
pub(crate) struct Worker {
    process: Guarded,
    /// The text after "ready".
    output: BufReader<ChildStdout>,
    log: Option<BufReader<ChildStderr>>,
}

impl Worker {
    pub(crate) fn start(source: &[String], flags: &[&str], filter: &str, log: Stdio) -> Self {
        let mut command = Command::new(SPINDLE);
        command.arg("worker").args(source).args(flags).env("RUST_LOG", filter);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let log = child.stderr.take().map(BufReader::new);
        Self { process: Guarded(child), output, log }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
    }

    /// Sends it the signal to stop, and waits until it has logged that it stops.
    pub(crate) fn begins_to_stop(&mut self) {
        self.signal(Signal::TERM);
        let log = self.log.as_mut().expect("a worker with a log");
        assert!(log.lines().any(|line| line.unwrap().contains("stopping")), "it ended without a word");
    }

    /// Its exit status and its output, once it has ended.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let printed = std::io::read_to_string(&mut self.output).unwrap();
        (self.process.0.wait().unwrap(), printed)
    }

    /// Waits for a worker that was killed.
    pub(crate) fn wait_for_the_end(mut self) -> ExitStatus {
        self.process.0.wait().unwrap()
    }

    /// Stops it as a service manager would. Returns how many values it has stored.
    pub(crate) fn stop(self) -> u64 {
        self.end().0
    }

    /// Stops it. Returns how many values it has stored, and how many it has not, as far as it knows.
    pub(crate) fn end(self) -> (u64, u64) {
        self.signal(Signal::TERM);
        let (status, printed) = self.wait();
        assert!(status.success(), "{status}: {printed}");
        let number =
            |name: &str| printed.split(", ").find_map(|part| part.strip_prefix(name)).unwrap().parse().unwrap();
        (number("stored "), number("lost "))
    }
}

pub(crate) fn client(server: &Server) -> EventsClient {
    EventsClient::new(address(server))
}

pub(crate) fn address(server: &Server) -> SocketAddr {
    server.events().parse().unwrap()
}

/// All events: as many as the server counts, since ids have no gaps.
pub(crate) fn all(client: &mut EventsClient) -> Vec<Event> {
    let count = client.count().unwrap();
    assert_eq!(client.find(count + 1).unwrap(), None, "there are {count}");
    assert_eq!(client.find(0).unwrap(), None);
    (1..=count)
        .map(|id| client.find(id).unwrap().unwrap_or_else(|| panic!("event {id} of {count} is missing")))
        .collect()
}

/// Creates this many events that wait for workers.
pub(crate) fn defer(client: &mut EventsClient, count: u64) {
    for _ in 0..count {
        client.defer().unwrap();
    }
}

/// Waits until an event has its value.
pub(crate) fn value_of(client: &mut EventsClient, id: u64) -> String {
    loop {
        if let Some(value) = client.find(id).unwrap().unwrap().value {
            return value;
        }
    }
}

/// A script that workers run. Its argument is an id.
pub(crate) fn script(folder: &std::path::Path, name: &str, lines: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a test over both stores, the second where there is a MariaDB.
macro_rules! over_both {
    ($($(#[$note:meta])* $name:ident)*) => {
        mod embedded {
            $(#[test] $(#[$note])* fn $name() { super::$name($crate::stage::Stage::embedded()); })*
        }
        mod mysql {
            $(#[test] $(#[$note])* fn $name() { super::$name($crate::stage::Stage::mysql()); })*
        }
    };
}
pub(crate) use over_both;
