//! The Debian package: built by `cargo deb` from `Cargo.toml`, installed, run as its unit runs it, and removed.
//!
//! It changes the system it runs on, so it needs root, and a system that has no such package yet. The calls that the
//! unit lets through are compared with those that a server makes.

use std::collections::BTreeSet;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spindle::clients::rust::tables::Client;

use crate::harness::{SPINDLE, Server, real_peer, spindle};

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

/// Builds the package of this version around the program of these tests, whose build is long done.
fn build(folder: &Path, version: &str) -> std::path::PathBuf {
    let release = folder.join("release");
    std::fs::create_dir_all(&release).unwrap();
    std::fs::copy(SPINDLE, release.join("spindle")).unwrap();
    done(Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/server/package/pages")).arg(&release));
    let package = folder.join(format!("spindle-{version}.deb"));
    let path = format!("{TOOLS}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO"));
    command.args(["deb", "--no-build", "--no-strip", "--fast", "--deb-version", version, "--output"]).arg(&package);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", folder).env("PATH", path);
    done(&mut command);
    package
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Links led from the pages to the folders of the source, which no package had.
#[test]
fn the_package_has_pages_of_the_manual_completions_and_links_that_work() {
    let cargo_deb = format!("{TOOLS}/cargo-deb");
    if ["dpkg-deb", &cargo_deb].map(real_peer).iter().any(Option::is_none) {
        return println!("skipped: it needs dpkg-deb and cargo-deb");
    }
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("extracted");
    done(Command::new("dpkg-deb").arg("--extract").arg(build(folder.path(), "0.1.0")).arg(&to));
    for file in [
        "usr/share/man/man1/spindle.1",
        "usr/share/man/man1/spindle-task-lend.1",
        "usr/share/bash-completion/completions/spindle",
        "usr/share/zsh/vendor-completions/_spindle",
        "usr/share/fish/vendor_completions.d/spindle.fish",
        "etc/needrestart/conf.d/spindle.conf",
    ] {
        // Some versions of cargo-deb compress the pages of the manual.
        let there = [file.to_owned(), format!("{file}.gz")].into_iter().find_map(|file| to.join(file).metadata().ok());
        assert!(there.is_some_and(|there| there.len() > 100), "{file}");
    }
    let docs = files(&to.join("usr/share/doc/spindle"));
    let pages = docs.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            assert!(page.with_file_name(target).exists(), "{}: {target}", page.display());
            links += 1;
        }
    }
    assert!(links > 50, "{links}");
    let unit = files(&to).into_iter().find(|path| path.ends_with("spindle.service")).unwrap();
    let unit = std::fs::read_to_string(unit).unwrap();
    let page = of_unit(&unit, "Documentation").split_once("file:///").unwrap().1.to_owned();
    assert!(to.join(&page).exists(), "{page}");
}

/// What a command printed.
fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// systemd finds no fault with the installed unit, and little that it could still be kept from.
fn verify_unit(unit: &Path) {
    let Some(analyze) = real_peer("systemd-analyze") else { return };
    let verified = run(Command::new(&analyze).args(["verify", "--man=no", "--recursive-errors=no"]).arg(unit));
    assert!(verified.status.success() && !said(&verified).contains("spindle"), "{}", said(&verified));
    // 10 is a service without any bound, and 100 ten times that.
    let security = run(Command::new(&analyze).args(["security", "--offline=true", "--threshold=25"]).arg(unit));
    assert!(security.status.success(), "{}", said(&security));
}

/// The system calls of these sets of systemd, and of all sets within them.
fn calls_of(analyze: &Path, sets: &[String]) -> BTreeSet<String> {
    let (mut calls, mut left, mut seen) = (BTreeSet::new(), sets.to_vec(), BTreeSet::new());
    while let Some(set) = left.pop() {
        if !set.starts_with('@') {
            calls.insert(set);
        } else if seen.insert(set.clone()) {
            let listed = done(Command::new(analyze).args(["syscall-filter", "--no-pager", &set]));
            let names = listed.lines().filter_map(|line| line.strip_prefix("    ")).map(str::trim);
            left.extend(names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned));
        }
    }
    calls
}

/// A server that makes a call which its unit forbids fails in some way that only an installed one shows.
#[test]
fn the_unit_lets_through_all_calls_of_a_server_with_all_services() {
    let (Some(analyze), Some(strace)) = (real_peer("systemd-analyze"), real_peer("strace")) else { return };
    let unit = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/server/package/spindle.service"));
    let unit = unit.unwrap();
    let filters = unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let (denied, allowed): (Vec<&str>, Vec<&str>) = filters.partition(|filter| filter.starts_with('~'));
    let sets = |filters: Vec<&str>| {
        let words = filters.iter().flat_map(|filter| filter.trim_start_matches('~').split_whitespace());
        calls_of(&analyze, &words.map(str::to_owned).collect::<Vec<_>>())
    };
    let (allowed, denied) = (sets(allowed), sets(denied));
    assert!(allowed.contains("epoll_wait") && denied.contains("chroot"), "the sets are read");
    for frontend in ["proxy", "native"] {
        let folder = tempfile::tempdir().unwrap();
        let (log, data) = (folder.path().join("calls"), folder.path().join("data"));
        let any = "tcp://127.0.0.1:*";
        let mut command = Command::new(&strace);
        command.args(["-f", "-qq", "-o"]).arg(&log).args([SPINDLE, "serve", "--frontend", frontend]);
        command.args(["--kv", any, "--kv", "tcp://lo:*", "--publish", any, "--feed", any, "--tasks", any]);
        command.args([
            "--jobs",
            "0",
            "--events",
            "127.0.0.1:0",
            "--events-queue",
            any,
            "--admin",
            "0",
            "--pin",
            "auto",
        ]);
        let server = Server::start_by(command.args(["--segment-size", "4M", "--data"]).arg(&data));
        crate::admin::fill(&server);
        assert_eq!(crate::admin::get(server.admin(), "/ready").0, 200);
        crate::stage::client(&server).create().unwrap();
        let to = folder.path().join("backup");
        let backup = spindle(&["backup", to.to_str().unwrap(), "--data", data.to_str().unwrap()]);
        assert!(backup.status.success(), "{}", said(&backup));
        // strace passes no signal on: its child is the server.
        let children = format!("/proc/{0}/task/{0}/children", server.pid().as_raw_nonzero());
        let child: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(child).unwrap(), Signal::TERM).unwrap();
        assert!(server.wait().0.success());
        let calls = std::fs::read_to_string(&log).unwrap();
        let names = calls.lines().filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('));
        let names: BTreeSet<&str> = names.map(|(name, _)| name).filter(|name| !name.contains(['<', ' '])).collect();
        let forbidden: Vec<_> =
            names.iter().filter(|name| denied.contains(**name) || !allowed.contains(**name)).collect();
        assert!(names.len() > 40 && forbidden.is_empty(), "{forbidden:?} of {names:?}");
    }
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
    let [package, newer] = ["0.1.0", "0.1.1"].map(|version| build(folder.path(), version));
    let purged = Purged;
    let install = |package: &Path| run(Command::new("dpkg").arg("--install").arg(package));
    let first = install(&package);
    assert!(first.status.success() && !said(&first).contains("restart"), "{}", said(&first));
    verify_unit(Path::new("/lib/systemd/system/spindle.service"));

    // As systemd does: the user, the folder of the state, the command.
    let unit = std::fs::read_to_string("/lib/systemd/system/spindle.service").unwrap();
    assert_eq!((of_unit(&unit, "Type"), of_unit(&unit, "StateDirectory")), ("notify".to_owned(), "spindle".to_owned()));
    assert_eq!(of_unit(&unit, "LimitCORE"), "0");
    assert!(of_unit(&unit, "RestrictAddressFamilies").contains("AF_NETLINK"), "for tcp://eth0:5555");
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
    // An upgrade leaves the server that runs, and says what to do.
    let second = install(&newer);
    assert!(second.status.success(), "{}", said(&second));
    assert!(said(&second).contains("stays at version 0.1.0") && said(&second).contains("systemctl restart spindle"));
    let scripts = ["prerm", "postinst"].map(|name| format!("/var/lib/dpkg/info/spindle.{name}"));
    for script in scripts.iter().map(|script| std::fs::read_to_string(script).unwrap()) {
        assert!(!script.contains("restart 'spindle") && !script.contains("restart spindle.service"), "{script}");
        let stops = script.lines().filter(|line| line.contains("deb-systemd-invoke stop"));
        assert_eq!(stops.count(), usize::from(script.contains("\"$1\" = remove")), "only a removal stops it: {script}");
    }
    Client::connect(server.kv()).unwrap().ping().unwrap();
    assert!(Path::new(DATA).join("data").is_dir(), "the settings of the package name the folder of the data");
    server.signal(Signal::TERM);
    assert!(server.wait().0.success());

    drop(purged);
    for gone in [INSTALLED, "/etc/spindle/spindle.toml", "/lib/systemd/system/spindle.service"] {
        assert!(!Path::new(gone).exists(), "{gone}");
    }
}
