//! The Debian package: built by `cargo deb` from `Cargo.toml`, installed, run as its unit runs it, and removed.
//!
//! It changes the system it runs on, so it needs root, and a system that has no such package yet.

use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use spindle::protocols::kv::client::Client;

use crate::harness::{SPINDLE, Server, real_peer};

const INSTALLED: &str = "/usr/bin/spindle";
const DATA: &str = "/var/lib/spindle";
/// Where `tests/run` installs `cargo deb`.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin");

/// Takes the package away again, whatever happens between.
struct Purged;

impl Drop for Purged {
    fn drop(&mut self) {
        let purged = run(Command::new("dpkg").args(["--purge", "spindle"]));
        assert!(std::thread::panicking() || purged.status.success(), "{purged:?}");
        // The package keeps the data of its service. These are the test's.
        let _none = std::fs::remove_dir_all(DATA);
    }
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn done(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Builds the package around the program of these tests, whose build is long done.
fn build(folder: &Path) -> std::path::PathBuf {
    let release = folder.join("release");
    std::fs::create_dir(&release).unwrap();
    std::fs::copy(SPINDLE, release.join("spindle")).unwrap();
    let package = folder.join("spindle.deb");
    let path = format!("{TOOLS}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO"));
    command.args(["deb", "--no-build", "--no-strip", "--fast", "--output"]).arg(&package);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", folder).env("PATH", path);
    done(&mut command);
    package
}

/// The value of a key of the unit.
fn of_unit(unit: &str, key: &str) -> String {
    let value = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("the unit has no {key}")).to_owned()
}

/// The numbers of the user and the group that the package has made.
fn ids(name: &str) -> (u32, u32) {
    let line = done(Command::new("getent").args(["passwd", name]));
    let mut numbers = line.split(':').skip(2).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_package_is_built_installed_run_and_removed() {
    let cargo_deb = format!("{TOOLS}/cargo-deb");
    let tools = ["dpkg", "getent", "systemd-sysusers", &cargo_deb].map(real_peer);
    if tools.iter().any(Option::is_none) || !rustix::process::geteuid().is_root() || Path::new(INSTALLED).exists() {
        return println!("skipped: it needs root, dpkg, systemd-sysusers, and a system without the package");
    }
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let purged = Purged;
    done(Command::new("dpkg").arg("--install").arg(&package));

    // As systemd does: the user, the folder of the state, the command.
    let unit = std::fs::read_to_string("/lib/systemd/system/spindle.service").unwrap();
    assert_eq!((of_unit(&unit, "Type"), of_unit(&unit, "StateDirectory")), ("notify".to_owned(), "spindle".to_owned()));
    let (user, group) = ids(&of_unit(&unit, "User"));
    std::fs::create_dir(DATA).unwrap();
    chown(DATA, Some(user), Some(group)).unwrap();
    let words = of_unit(&unit, "ExecStart");
    let mut words = words.split_whitespace();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    for path in [folder.path(), &socket] {
        chown(path, Some(user), Some(group)).unwrap();
    }
    let mut command = Command::new(words.next().unwrap());
    command.args(words).uid(user).gid(group).current_dir(of_unit(&unit, "WorkingDirectory"));
    command.env("NOTIFY_SOCKET", &socket).env("SPINDLE_TASKS", "tcp://127.0.0.1:*");
    command.env("SPINDLE_KV", "tcp://127.0.0.1:*").env("SPINDLE_PUBLISH", "off");
    let server = Server::start_by(&mut command);
    let mut message = [0; 64];
    let length = manager.recv(&mut message).unwrap();
    assert_eq!(message[..length].trim_ascii(), b"READY=1");
    Client::connect(server.kv()).unwrap().ping().unwrap();
    assert!(Path::new(DATA).join("data").is_dir(), "the settings of the package name the folder of the data");
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());

    drop(purged);
    for gone in [INSTALLED, "/etc/spindle/spindle.toml", "/lib/systemd/system/spindle.service"] {
        assert!(!Path::new(gone).exists(), "{gone}");
    }
}
