//! A MariaDB for one test: Debian's server on a data folder, a socket and a port of its own.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use tempfile::TempDir;

/// Pause before a starting server is asked again whether it is up.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The user and the databases of a test.
const SETUP: &str = "CREATE DATABASE IF NOT EXISTS events;
CREATE USER IF NOT EXISTS spindle@'127.0.0.1' IDENTIFIED BY 'secret';
GRANT ALL ON events.* TO spindle@'127.0.0.1';
";

/// A running MariaDB. Killed when dropped, by its own process id.
pub(crate) struct MariaDb {
    folder: TempDir,
    /// The folder that `folder` is a copy of, kept for further copies.
    _original: Option<Arc<TempDir>>,
    program: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl MariaDb {
    /// Starts `program` on the data in a folder that [`installed`] has made, or on a copy of it.
    pub(crate) fn start(program: PathBuf, folder: TempDir, original: Option<Arc<TempDir>>) -> Self {
        std::fs::File::create(folder.path().join("setup.sql")).unwrap().write_all(SETUP.as_bytes()).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut database = Self { folder, _original: original, program, port, child: None };
        database.start_again();
        database
    }

    /// The argument for `--events-store`.
    pub(crate) fn url(&self) -> String {
        format!("mysql://spindle:secret@127.0.0.1:{}/events", self.port)
    }

    /// Ends it as a power failure would.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts it on its data on disk, and waits until it answers.
    pub(crate) fn start_again(&mut self) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let mut command = Command::new(&self.program);
        command.arg("--no-defaults").args(as_whom()).args(["--skip-name-resolve", "--bind-address=127.0.0.1"]);
        command.arg(format!("--datadir={}", path("data"))).arg(format!("--socket={}", path("socket")));
        command.arg(format!("--pid-file={}", path("pid"))).arg(format!("--port={}", self.port));
        command.env("TMPDIR", self.folder.path());
        command.arg(format!("--init-file={}", path("setup.sql"))).arg(format!("--log-error={}", path("log")));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        self.child = Some(child);
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        while TcpStream::connect(address).is_err() {
            let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&GLANCE)).unwrap_or(0);
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert_eq!(ended, 0, "MariaDB has ended: {}", log());
        }
    }

    /// A client of its own, which may stay open.
    pub(crate) fn session(&self) -> Command {
        let mut command = Command::new("mariadb");
        let socket = self.folder.path().join("socket");
        command.args(["--no-defaults", "-uroot", "-N", "-B", "-n", "-S", socket.to_str().unwrap(), "events"]);
        command
    }

    /// The result of these statements, without a head.
    pub(crate) fn ask(&self, statements: &str) -> String {
        let Output { status, stdout, stderr } =
            self.session().args(["-e", statements]).stdin(Stdio::null()).output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().trim_end().to_owned()
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// A folder with the data of an empty server in it, as the program `install` makes them.
pub(crate) fn installed(install: PathBuf) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(install);
    command.arg("--no-defaults").arg(format!("--datadir={}", folder.path().join("data").display())).args(as_whom());
    command.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
    // Two servers that share a folder for temporary tables get in each other's way.
    command.env("TMPDIR", folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// It does not run as root without this flag.
fn as_whom() -> Option<&'static str> {
    geteuid().is_root().then_some("--user=root")
}
