//! The oracle: a redis-server of Debian in a folder of its own, stopped by its process.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::link::{Address, Link};

/// The program.
const REDIS_SERVER: &str = "/usr/bin/redis-server";
/// The longest bulk string: Spindle's longest value too.
const BULK_BYTES_MAX: &str = "16777216";
/// How long a server may take to start.
const START: Duration = Duration::from_secs(60);

/// A server that runs, and where it listens. Dropping it stops the server.
pub(crate) struct Running {
    pub(crate) address: Address,
    /// The process and its folder. Never read: it is dropped.
    _process: Box<dyn Send>,
}

impl Running {
    /// A server at this address that ends when `process` is dropped.
    pub(crate) fn new(address: Address, process: Box<dyn Send>) -> Self {
        Self { address, _process: process }
    }
}

/// A process, killed when dropped, by its own id, and its folder, removed.
struct Process {
    child: Child,
    folder: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        let _removed_by_others = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts a redis-server on a Unix socket, without persistence, with events of
/// keys, and waits until it accepts a connection.
pub(crate) fn redis() -> Running {
    redis_without(&[])
}

/// As [`redis`], without these commands.
pub(crate) fn redis_without(commands: &[String]) -> Running {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("resp-difference-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let socket = folder.join("socket");
    let mut command = Command::new(REDIS_SERVER);
    command.current_dir(&folder).args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
    command.args(["--notify-keyspace-events", "AKE"]);
    for name in commands {
        command.args(["--rename-command", name, ""]);
    }
    command.args(["--proto-max-bulk-len", BULK_BYTES_MAX, "--unixsocket"]).arg(&socket);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("redis-server starts");
    let mut process = Process { child, folder };
    let address = Address::Unix(socket);
    let begin = Instant::now();
    while Link::open(&address).is_none() {
        let ended = process.child.try_wait().expect("it is our child");
        assert!(ended.is_none() && begin.elapsed() < START, "redis-server does not start: {ended:?}");
        std::thread::yield_now();
    }
    Running::new(address, Box::new(process))
}
