//! The real server as a process, and the real peers that talk to it.
//!
//! Each test gets a server of its own on ports that the system picks. Nothing here sleeps: a server is ready when it
//! prints so, and gone when it has been waited for.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// The program under test.
pub(crate) const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
/// Set by `tests/run`. A missing peer is then a failure and not a notice.
pub(crate) const REAL_PEERS: &str = "SPINDLE_REAL_PEERS";
/// Frontend of servers whose flags name none. Set by `native.rs`.
pub(crate) const FRONTEND: &str = "SPINDLE_FRONTEND";
/// The frontends of the tables that read their clients by Spindle's own ZMTP.
pub(crate) const FRONTENDS: [&str; 2] = ["queue", "native"];
/// Endpoint that makes the system pick a port.
const ANY_PORT: &str = "tcp://127.0.0.1:*";

/// How long a server may take to end: much longer than sockets linger.
pub(crate) const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A running `spindle serve`. Killed when dropped, by its own process id.
pub(crate) struct Server {
    child: Child,
    /// Kept open, so that the server can still print.
    output: BufReader<ChildStdout>,
    /// What it listens at, by the first words of its lines, in the order of its flags.
    endpoints: HashMap<String, Vec<String>>,
    /// Where it keeps its data, if its flags do not say where.
    data: Option<tempfile::TempDir>,
}

/// The flags of services that keep something on disk.
const KEEPERS: [&str; 5] = ["--tasks", "--jobs", "--beanstalk", "--events", "--durability"];

impl Server {
    /// Starts a server on ports of its own, with these further flags, and waits until it is ready.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_as(&["--kv", ANY_PORT, "--publish", ANY_PORT], flags)
    }

    /// Starts a server that serves only tasks, on a port of its own, with these further flags.
    pub(crate) fn start_tasks(data: &Path, flags: &[&str]) -> Self {
        let data = data.to_str().expect("the folder has a name");
        Self::start_as(&["--kv", "off", "--publish", "off", "--tasks", ANY_PORT, "--data", data], flags)
    }

    /// Starts a server that serves only jobs, on a port of its own, with these further flags.
    pub(crate) fn start_jobs(data: &Path, flags: &[&str]) -> Self {
        let data = data.to_str().expect("the folder has a name");
        Self::start_as(&["--kv", "off", "--publish", "off", "--jobs", "0", "--data", data], flags)
    }

    /// Starts a server that serves only events, on ports of its own, with these further flags.
    pub(crate) fn start_events(flags: &[&str]) -> Self {
        let events = ["--events", "127.0.0.1:0", "--events-queue", ANY_PORT];
        Self::start_as(&[&["--kv", "off", "--publish", "off"][..], &events].concat(), flags)
    }

    /// Starts a server with these further flags in the control group of this folder, and waits until it is ready.
    pub(crate) fn start_in_group(group: &str, flags: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", group, SPINDLE]);
        Self::run(&mut shell, &["--kv", ANY_PORT, "--publish", ANY_PORT], flags)
    }

    /// As [`Server::start`], with its log in a file.
    pub(crate) fn start_logging(log: &Path, flags: &[&str]) -> Self {
        let log = fs::File::create(log).expect("the log can be made");
        Self::run(Command::new(SPINDLE).stderr(log), &["--kv", ANY_PORT, "--publish", "off"], flags)
    }

    /// Starts a server with exactly these flags, and waits until it is ready.
    pub(crate) fn start_exactly(flags: &[&str]) -> Self {
        Self::start_as(&[], flags)
    }

    /// As [`Server::start_exactly`], for a server that may have this many files open.
    pub(crate) fn start_with_files(files: u64, flags: &[&str]) -> Self {
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        Self::run(Command::new("sh").args(["-c", &limited, SPINDLE]), &[], flags)
    }

    fn start_as(endpoints: &[&str], flags: &[&str]) -> Self {
        Self::run(&mut Command::new(SPINDLE), endpoints, flags)
    }

    fn run(command: &mut Command, endpoints: &[&str], flags: &[&str]) -> Self {
        let frontend = std::env::var(FRONTEND).ok().filter(|_| !flags.contains(&"--frontend"));
        // Laying out large segments takes many servers at once longer than their tests.
        let segments = (!flags.contains(&"--segment-size")).then_some(["--segment-size", "4M"]);
        let has = |flag| endpoints.contains(&flag) || flags.contains(&flag);
        let data = (KEEPERS.into_iter().any(has) && !has("--data")).then(|| tempfile::tempdir().expect("it is made"));
        let mut server = Self::start_by(
            command
                .arg("serve")
                .env("RUST_LOG", "warn")
                .args(segments.iter().flatten())
                .args(endpoints)
                .args(frontend.iter().flat_map(|frontend| ["--frontend", frontend]))
                .args(data.iter().flat_map(|data| ["--data".as_ref(), data.path().as_os_str()]))
                .args(flags),
        );
        server.data = data;
        server
    }

    /// Starts a server by a whole command, and waits until it is ready.
    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the server starts");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut server = Self { child, output, endpoints: HashMap::new(), data: None };
        server.read_until_ready();
        server
    }

    /// Takes the endpoints from lines such as `kv tcp://127.0.0.1:5555` until the line `ready`.
    fn read_until_ready(&mut self) {
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).expect("output is text");
            assert!(bytes > 0, "the server ended before it was ready");
            let line = line.trim();
            if line == "ready" {
                return;
            }
            let mut words = line.split_whitespace().map(str::to_owned);
            if let (Some(service), Some(endpoint)) = (words.next(), words.next()) {
                self.endpoints.entry(service).or_default().push(endpoint);
            }
        }
    }

    /// All endpoints of a service.
    fn all_of(&self, service: &str) -> &[String] {
        self.endpoints.get(service).map(Vec::as_slice).unwrap_or_default()
    }

    /// The endpoint of a service that has started.
    fn endpoint(&self, service: &str) -> &str {
        self.all_of(service).last().unwrap_or_else(|| panic!("the server has no {service}"))
    }

    /// The endpoint for requests: the first of `--kv`.
    pub(crate) fn kv(&self) -> &str {
        self.kv_all().first().expect("the server serves kv")
    }

    /// All endpoints for requests, in the order of `--kv`.
    pub(crate) fn kv_all(&self) -> &[String] {
        self.all_of("kv")
    }

    /// The endpoint of notifications.
    pub(crate) fn publish(&self) -> &str {
        self.endpoint("publish")
    }

    /// The endpoint of the feed.
    pub(crate) fn feed(&self) -> &str {
        self.endpoint("feed")
    }

    /// The endpoint for requests in the lock-step dialect.
    pub(crate) fn lockstep(&self) -> &str {
        self.endpoint("lockstep")
    }

    /// The endpoint of notifications in the lock-step dialect.
    pub(crate) fn lockstep_publish(&self) -> &str {
        self.endpoint("lockstep-publish")
    }

    /// The endpoint of tasks.
    pub(crate) fn tasks(&self) -> &str {
        self.endpoint("tasks")
    }

    /// The address of jobs.
    pub(crate) fn jobs(&self) -> &str {
        self.endpoint("jobs")
    }

    /// The address of beanstalkd's protocol: the first of `--beanstalk`.
    pub(crate) fn beanstalk(&self) -> &str {
        self.beanstalk_all().next().expect("the server serves beanstalkd's protocol")
    }

    /// All addresses of beanstalkd's protocol, in the order of `--beanstalk`.
    pub(crate) fn beanstalk_all(&self) -> impl Iterator<Item = &str> {
        self.all_of("beanstalk").iter().map(String::as_str)
    }

    /// The address for Redis clients: the first of `--resp`.
    pub(crate) fn resp(&self) -> &str {
        self.resp_all().next().expect("the server serves Redis clients")
    }

    /// All addresses for Redis clients, in the order of `--resp`.
    pub(crate) fn resp_all(&self) -> impl Iterator<Item = &str> {
        self.all_of("resp").iter().map(|endpoint| endpoint.trim_start_matches("tcp://"))
    }

    /// The text of STATS.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let output = spindle(&["stats", "--json", "--connect", self.kv()]);
        serde_json::from_slice(&output.stdout).expect("STATS are JSON")
    }

    /// The address of events.
    pub(crate) fn events(&self) -> &str {
        self.endpoint("events")
    }

    /// The endpoint where workers find pending events.
    pub(crate) fn events_queue(&self) -> &str {
        self.endpoint("events-queue")
    }

    /// The address of what an operator sees.
    pub(crate) fn admin(&self) -> &str {
        self.admin_or_none().expect("the server shows itself to an operator")
    }

    /// The address of what an operator sees, if it is on.
    pub(crate) fn admin_or_none(&self) -> Option<&str> {
        self.all_of("admin").last().map(String::as_str)
    }

    /// The process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to this server alone.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the server is there");
    }

    /// Has calls of the system fail until the result is dropped: "pread64:error=EIO", those of these numbers, of this file or
    /// of all. Such a call does nothing.
    pub(crate) fn fail_calls(&self, strace: &Path, fault: &str, when: &str, file: Option<&Path>) -> Guarded {
        let pid = self.pid().as_raw_nonzero().to_string();
        let mut command = Command::new(strace);
        command.args(["-f", "-o", "/dev/null", "-p", &pid, "-e", &format!("inject={fault}:when={when}")]);
        if let Some(file) = file {
            command.arg("-P").arg(file);
        }
        let child = Guarded(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let is_traced = || {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap_or_default();
            tasks.map(|task| status(task.unwrap())).all(|text| !text.contains("TracerPid:\t0"))
        };
        while !is_traced() {
            std::thread::yield_now();
        }
        child
    }

    /// Waits for the end, at most this long. Returns whether it came.
    pub(crate) fn comes_to_its_end(&self, time: &Timespec) -> bool {
        let process = pidfd_open(self.pid(), PidfdFlags::empty()).expect("the server can be watched");
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(time)) == Ok(1)
    }

    /// Waits for the end, and returns the exit status and the output after "ready". It is a failure if the server does
    /// not end.
    pub(crate) fn wait(self) -> (ExitStatus, String) {
        self.wait_for_at_most(&PATIENCE)
    }

    /// As above, for a server that must have ended by then.
    pub(crate) fn wait_for_at_most(mut self, time: &Timespec) -> (ExitStatus, String) {
        assert!(self.comes_to_its_end(time), "the server is still there after {} s", time.tv_sec);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("output is text");
        let status = self.child.wait().expect("the server can be waited for");
        (status, rest)
    }

    /// Asks the server to end as a service manager would, and expects it to end well.
    pub(crate) fn stop(self) {
        self.signal(Signal::TERM);
        let (status, _) = self.wait();
        assert!(status.success(), "the server ended with {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the server has already ended, which is also fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is killed when dropped, by its own process id.
pub(crate) struct Guarded(pub(crate) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail if it has already ended, which is also fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `spindle` with these arguments to its end.
pub(crate) fn spindle(arguments: &[&str]) -> Output {
    Command::new(SPINDLE).args(arguments).stdin(Stdio::null()).output().expect("spindle runs")
}

/// Runs `spindle` with these arguments and this standard input to its end.
pub(crate) fn spindle_reads(arguments: &[&str], input: &[u8]) -> Output {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(input).expect("it takes the input");
    file.rewind().expect("it is read from its beginning");
    Command::new(SPINDLE).args(arguments).stdin(file).output().expect("spindle runs")
}

/// Runs a script of this directory under the Python that has pyzmq, and expects it to end well. Without such a Python
/// it prints a notice and does nothing, unless real peers are demanded. Returns whether it has run.
pub(crate) fn run_python(script: &str, arguments: &[&str]) -> bool {
    let Some(python) = python_with_pyzmq() else {
        return false;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(script);
    let output =
        Command::new(python).arg("-B").arg(&script).args(arguments).stdin(Stdio::null()).output().expect("Python runs");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} {arguments:?}: {}", script.display(), output.status);
    true
}

/// The Python that has pyzmq. Without it this prints a notice, unless real peers are demanded.
pub(crate) fn python_with_pyzmq() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python");
    is_made(&python).then_some(python)
}

/// Whether a file is there that `tests/run` makes or installs. Without it this prints a notice, and the caller does
/// nothing, unless real peers are demanded.
pub(crate) fn is_made(path: &Path) -> bool {
    let is_there = path.exists();
    if !is_there {
        assert!(std::env::var_os(REAL_PEERS).is_none(), "{REAL_PEERS} is set, and there is no {}", path.display());
        eprintln!("skipped: {} is missing; tests/run makes it", path.display());
    }
    is_there
}

/// A program of another project. Without it this prints a notice, and the caller does nothing, unless real peers are
/// demanded.
pub(crate) fn real_peer(program: &str) -> Option<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs servers outside a user's path.
    let found = std::env::split_paths(&places)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|place| place.join(program))
        .find(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os(REAL_PEERS).is_none(), "{REAL_PEERS} is set, and there is no {program}");
        eprintln!("skipped: {program} is missing; tests/run installs it");
    }
    found
}

/// A number from the environment.
pub(crate) fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// A port at which nothing listens, and which the system gives to no other process by itself: it lies below those that
/// Linux gives out. So a server that starts again finds it free.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    let begin = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    let ports = std::iter::repeat_with(|| {
        // Relaxed: the number only has to be another one each time.
        FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.take(usize::from(COUNT)).find(is_free).expect("one of ten thousand ports is free")
}
