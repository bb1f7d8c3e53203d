//! A side of a comparison, as a process of its own, the load on it, and the cost of both.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::CONNECTIONS;

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");

/// A process that answers requests. It is killed when this is dropped.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    /// The protocol that the load uses for it.
    pub(crate) protocol: &'static str,
    child: Child,
    pub(crate) endpoint: String,
    pub(crate) publish: String,
    pub(crate) feed: String,
    _folder: tempfile::TempDir,
}

impl Side {
    /// A Spindle server, with these further flags.
    pub(crate) fn spindle(flags: &[&str]) -> Self {
        let mut command = Command::new(SPINDLE);
        command.args(["serve", "--kv", "tcp://127.0.0.1:*"]).args(flags);
        Self::that_says_ready("spindle", command)
    }

    /// Ends it by a signal, and waits until it is gone.
    pub(crate) fn end(mut self) {
        self.signal(Signal::TERM);
        self.child.wait().unwrap();
    }

    /// A Spindle server for Redis clients, with these further flags.
    pub(crate) fn resp(flags: &[&str]) -> Self {
        let mut command = Command::new(SPINDLE);
        command.args(["serve", "--kv", "off", "--resp", "127.0.0.1:0"]).args(flags);
        let mut side = Self::that_says_ready("spindle", command);
        side.protocol = "redis";
        side
    }

    /// The server of before, whose program `SPINDLE_BEFORE` names, if it is there.
    pub(crate) fn before(flags: &[&str]) -> Option<Self> {
        let mut command = Command::new(std::env::var_os("SPINDLE_BEFORE")?);
        command.args(["serve", "--kv", "tcp://127.0.0.1:*"]).args(flags);
        Some(Self::that_says_ready("before", command))
    }

    /// An echo of this bench, with this many threads behind its queue.
    pub(crate) fn echo(workers: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["echo", &workers.to_string()]);
        Self::that_says_ready("echo", command)
    }

    /// One thread on an epoll that answers with constant bytes.
    pub(crate) fn naive() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["echo", "naive"]);
        Self::that_says_ready("naive", command)
    }

    fn that_says_ready(name: &'static str, mut command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A flag is over the environment.
        command.env("SPINDLE_DATA", folder.path());
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let empty = String::new();
        let mut side = Self {
            name,
            protocol: "kv",
            child,
            endpoint: empty.clone(),
            publish: empty.clone(),
            feed: empty,
            _folder: folder,
        };
        for line in output.lines() {
            let line = line.unwrap();
            match line.split_once(' ') {
                Some(("kv" | "resp", endpoint)) => endpoint.clone_into(&mut side.endpoint),
                Some(("publish", endpoint)) => endpoint.clone_into(&mut side.publish),
                Some(("feed", endpoint)) => endpoint.clone_into(&mut side.feed),
                _ if line == "ready" => return side,
                _ => {}
            }
        }
        panic!("{name} ended before it was ready");
    }

    /// Redis without its disk, if it is there.
    pub(crate) fn redis() -> Option<Self> {
        Self::that_listens("redis", "redis", "redis", |port, folder| {
            without_disk(&format!("--port {port} --bind 127.0.0.1 --dir {folder}"))
        })
    }

    /// Redis that evicts elements at this limit, in bytes, if it is there.
    pub(crate) fn redis_evicting(limit: usize) -> Option<Self> {
        Self::that_listens("redis", "redis", "redis", |port, folder| {
            let limit = format!("--maxmemory {limit} --maxmemory-policy allkeys-lru");
            without_disk(&format!("--port {port} --bind 127.0.0.1 --dir {folder} {limit}"))
        })
    }

    /// Redis with its append-only file, synced `always` or `everysec`, if it is there.
    pub(crate) fn redis_with_file(name: &'static str, program: &str, fsync: &'static str) -> Option<Self> {
        Self::that_listens(name, "redis", program, |port, folder| {
            let file = format!("--appendonly yes --appendfsync {fsync} --save");
            let mut words = words(&format!("--port {port} --bind 127.0.0.1 --dir {folder} {file}"));
            words.push(String::new());
            words
        })
    }

    /// Redis in this folder, with its append-only file, or with a snapshot at its end, if it is there.
    pub(crate) fn redis_in(folder: &Path, has_file: bool) -> Option<Self> {
        let file = if has_file { "--appendonly yes" } else { "--appendonly no --save 3600 1" };
        let side = Self::that_listens("redis", "redis", "redis", |port, _| {
            words(&format!("--port {port} --bind 127.0.0.1 --dir {} {file}", folder.display()))
        })?;
        // It accepts connections before it has loaded.
        let mut connection = TcpStream::connect(side.address()).unwrap();
        loop {
            connection.write_all(b"PING\r\n").unwrap();
            let mut reply = [0; 64];
            let length = connection.read(&mut reply).unwrap();
            if reply[..length].starts_with(b"+PONG") {
                return Some(side);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Valkey without its disk and with this many threads for its connections, if it is there.
    pub(crate) fn valkey(io_threads: usize) -> Option<Self> {
        let name = if io_threads == 1 { "valkey" } else { "valkey, I/O threads" };
        Self::that_listens(name, "redis", "valkey", |port, folder| {
            without_disk(&format!("--port {port} --bind 127.0.0.1 --dir {folder} --io-threads {io_threads}"))
        })
    }

    /// memcached with as much memory as it wants, if it is there.
    pub(crate) fn memcached() -> Option<Self> {
        Self::memcached_within(8 << 30)
    }

    /// memcached with so many bytes for its elements, to a MiB, if it is there.
    pub(crate) fn memcached_within(limit: usize) -> Option<Self> {
        Self::that_listens("memcached", "memcached", "memcached", |port, _| {
            words(&format!("-l 127.0.0.1 -p {port} -U 0 -u root -m {} -c 4096", limit >> 20))
        })
    }

    fn that_listens(
        name: &'static str,
        protocol: &'static str,
        program: &str,
        flags: impl Fn(&str, &str) -> Vec<String>,
    ) -> Option<Self> {
        let program = rivals().get(program)?;
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let flags = flags(&address.port().to_string(), &folder.path().display().to_string());
        let mut child = Command::new(program).args(flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        while TcpStream::connect(address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "{name} has ended");
        }
        let endpoint = format!("tcp://{address}");
        Some(Self { name, protocol, child, endpoint, publish: String::new(), feed: String::new(), _folder: folder })
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.strip_prefix("tcp://").unwrap()
    }

    /// Bytes of memory that it occupies.
    pub(crate) fn resident_bytes(&self) -> f64 {
        self.memory("VmRSS:")
    }

    /// The most that it has ever occupied.
    pub(crate) fn highest_bytes(&self) -> f64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, what: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
    }

    /// Runs the load of this bench against it, and returns the output.
    pub(crate) fn load(&self, flags: &[String]) -> Value {
        self.load_by(self.protocol, flags)
    }

    /// The same by another protocol than its own.
    pub(crate) fn load_by(&self, protocol: &str, flags: &[String]) -> Value {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["load", "--json", "--protocol", protocol, "--connect", &self.endpoint]);
        // Thousands of connections at once wait for the system's queue: a host sends them again after a second or three.
        command.args(["--timeout", "30"]);
        if !flags.iter().any(|flag| flag == "--connections") {
            command.args(["--connections", &CONNECTIONS.to_string()]);
        }
        let output = command.args(flags).output().unwrap();
        assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Stores this many keys with values of this size.
    pub(crate) fn fill(&self, keys: u32, value_bytes: usize) {
        let flags = format!("--prefill --keys {keys} --value-size {value_bytes} --seconds 0.1 --warm-up 0 --mix get=1");
        self.load(&words(&flags));
    }

    /// As [`Side::load`], with the cost of a request.
    pub(crate) fn measure(&self, flags: &str) -> Round {
        let before = (self.usage(), children_nanos());
        let results = self.load(&words(flags));
        let mut usage = Usage::default();
        usage.add(&before.0, &self.usage());
        let phase = &results["phases"][0];
        let all = &phase["verbs"]["all"];
        // The load also sends uncounted requests, in its warm-up: the server's own time is divided by all that it
        // answered.
        Round {
            rate: all["per_second"].as_f64().unwrap(),
            answers: all["answers"].as_u64().unwrap(),
            load_nanos: children_nanos() - before.1,
            usage,
            phase: phase.clone(),
        }
    }

    /// Nanoseconds that it has run: all of its threads together, and those of one name.
    pub(crate) fn nanos(&self, thread: &str) -> (u64, u64) {
        let usage = self.usage();
        (usage.total(), usage.0.get(thread).copied().unwrap_or(0))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn usage(&self) -> Usage {
        Usage::of(&self.child.id().to_string())
    }
}

/// Sides that take turns. All of them stand still but the one whose turn it is: a server may look for work for seconds
/// after its last request, as the I/O threads of Valkey do, and would take a core from the others.
pub(crate) struct Turns<'s>(&'s [Side]);

impl<'s> Turns<'s> {
    /// Stops all sides.
    pub(crate) fn among(sides: &'s [Side]) -> Self {
        sides.iter().for_each(|side| side.signal(Signal::STOP));
        Self(sides)
    }

    /// Lets the side with this number run meanwhile.
    pub(crate) fn give<T>(&self, number: usize, work: impl FnOnce(&Side) -> T) -> T {
        let side = &self.0[number];
        side.signal(Signal::CONT);
        // It still has to close the connections of its last turn.
        thread::sleep(Duration::from_millis(20));
        let outcome = work(side);
        side.signal(Signal::STOP);
        outcome
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|side| side.signal(Signal::CONT));
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.child.kill();
        self.child.wait().unwrap();
    }
}

/// The words of some flags of Redis or Valkey, and of those by which it writes nothing.
fn without_disk(flags: &str) -> Vec<String> {
    let mut words = words(&format!("{flags} --appendonly no --save"));
    words.push(String::new());
    words
}

/// The programs of the rivals that are there, by their names: see `perf/rivals`.
pub(crate) fn rivals() -> &'static BTreeMap<String, String> {
    static RIVALS: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    RIVALS.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/perf/rivals");
        let output = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().filter_map(|line| line.split_once(' ')).map(|(name, path)| (name.into(), path.into())).collect()
    })
}

/// The words of some flags.
pub(crate) fn words(flags: &str) -> Vec<String> {
    flags.split_whitespace().map(str::to_owned).collect()
}

/// One measurement.
pub(crate) struct Round {
    pub(crate) rate: f64,
    answers: u64,
    load_nanos: u64,
    usage: Usage,
    /// The load's report of its only phase.
    pub(crate) phase: Value,
}

impl Round {
    /// Nanoseconds of the processor for a request, in server and load. It includes the warm-up, if there is one.
    pub(crate) fn cost(&self) -> f64 {
        (self.usage.total() + self.load_nanos) as f64 / self.answers as f64
    }

    /// Of the load alone.
    pub(crate) fn load_cost(&self) -> f64 {
        self.load_nanos as f64 / self.answers as f64
    }

    /// For a request, of each thread that took at least a hundredth of all.
    pub(crate) fn threads(&self) -> String {
        self.usage.per_request(self.answers)
    }

    pub(crate) fn raw(&self, what: &str, side: &str) -> Value {
        json!({ "what": what, "side": side, "phase": self.phase, "load_nanos": self.load_nanos, "threads": self.threads() })
    }
}

/// Nanoseconds that threads have run, by their name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage(BTreeMap<String, u64>);

impl Usage {
    /// Of the process with this number. Its first thread has the name `main`.
    fn of(process: &str) -> Self {
        let mut usage = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let task = task.unwrap().path();
            let is_first = task.file_name().unwrap() == process;
            let name = if is_first { "main".to_owned() } else { fs::read_to_string(task.join("comm")).unwrap() };
            let schedstat = fs::read_to_string(task.join("schedstat")).unwrap();
            let nanos: u64 = schedstat.split_whitespace().next().unwrap().parse().unwrap();
            *usage.entry(name.trim().to_owned()).or_default() += nanos;
        }
        Self(usage)
    }

    /// Adds the time that was used between two looks.
    fn add(&mut self, before: &Self, after: &Self) {
        for (name, nanos) in &after.0 {
            *self.0.entry(name.clone()).or_default() += nanos - before.0.get(name).unwrap_or(&0);
        }
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn per_request(&self, requests: u64) -> String {
        let least = self.total() / 100;
        let threads = self.0.iter().filter(|(_, nanos)| **nanos >= least);
        let threads: Vec<_> = threads.map(|(name, nanos)| format!("{name} {}", nanos / requests)).collect();
        threads.join(" + ")
    }
}

/// Nanoseconds that waited-for children of this process have run, in steps of a hundredth of a second
/// (proc_pid_stat(5), cutime and cstime).
fn children_nanos() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split_whitespace().collect();
    let ticks = |place: usize| fields[place].parse::<u64>().unwrap();
    (ticks(13) + ticks(14)) * 10_000_000
}
