//! Backup and restore as `OPERATION.md` prints them, with the paths of the Debian package.
//!
//! ```text
//! page ─► blocks of `sh` ─► each line: systemctl ─► as the unit does; all others ─► sh
//! ```
//! The paths are the system's. So the test runs itself again where `/var/lib`, `/mnt` and the users are its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{AddMode, LendMode};

use crate::harness::{SPINDLE, Server, real_peer};

/// Set in the run that has its own folders.
const APART: &str = "SPINDLE_RESTORE_APART";
const TEST: &str = "restore::a_backup_and_a_copy_are_restored_as_the_page_says";
/// The number of the user and of its group.
const USER: u32 = 64_999;
const DATA: &str = "/var/lib/spindle/data";
/// Longer than any test: no lease expires.
const LEASE: u64 = 86_400_000;
/// A part of how far lend keys and ids jump.
const FAR: u64 = 1 << 43;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The blocks for a shell in this chapter of the page, line by line, without comments.
fn blocks(chapter: &str) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("src/OPERATION.md")).unwrap();
    let rest = page.split_once(&format!("\n## {chapter}\n")).unwrap().1;
    let text = rest.split_once("\n## ").map_or(rest, |(text, _)| text);
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let command = |line: &str| line.split('#').next().unwrap().trim().to_owned();
    blocks.map(|block| block.lines().map(command).filter(|line| !line.is_empty()).collect()).collect()
}

/// The service, as its unit runs it.
#[derive(Default)]
struct Service {
    server: Option<Server>,
    environment: Vec<(String, String)>,
}

impl Service {
    fn start(&mut self) {
        assert!(self.server.is_none(), "it runs");
        let unit = fs::read_to_string(root().join("src/server/package/spindle.service")).unwrap();
        let words = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let settings = root().join("src/server/package/spindle.toml");
        let words =
            words.replace("/usr/bin/spindle", SPINDLE).replace("/etc/spindle/spindle.toml", settings.to_str().unwrap());
        let mut command = Command::new("env");
        command.uid(USER).gid(USER);
        let ports =
            [("SPINDLE_TASKS", "tcp://127.0.0.1:*"), ("SPINDLE_JOBS", "0"), ("SPINDLE_KV", "tcp://127.0.0.1:*")];
        let set = ports.into_iter().chain([("SPINDLE_PUBLISH", "off")]).map(|(name, value)| format!("{name}={value}"));
        command.args(set).args(self.environment.iter().map(|(name, value)| format!("{name}={value}")));
        self.server = Some(Server::start_by(command.args(words.split_whitespace()).current_dir("/var/lib/spindle")));
    }

    fn stop(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.signal(Signal::TERM);
        server.wait();
    }

    /// Runs a line of the page.
    fn run(&mut self, line: &str) {
        println!("{line}");
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["systemctl", "start", "spindle"] => self.start(),
            ["systemctl", "stop", "spindle"] => self.stop(),
            ["systemctl", "set-environment", variable] => {
                let (name, value) = variable.split_once('=').unwrap();
                self.environment.push((name.to_owned(), value.to_owned()));
            }
            ["systemctl", "unset-environment", name] => self.environment.retain(|(set, _)| set != name),
            _ => {
                let output = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().unwrap();
                assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }

    /// Adds a task, lends one and adds a job. Returns the lend key and the id of the job.
    fn work(&self, key: &str) -> (u64, u64) {
        let server = self.server.as_ref().unwrap();
        let mut client = TasksClient::connect(server.tasks()).unwrap();
        client.add(key.as_bytes(), b"v", AddMode::Head).unwrap();
        let lent = client.lend(LEASE, LendMode::Poll).unwrap().unwrap();
        (lent.lend_key, JobsClient::new(server.jobs()).add(b"queue", b"data").unwrap().0)
    }

    fn has(&self, key: &str) -> bool {
        let server = self.server.as_ref().unwrap();
        TasksClient::connect(server.tasks()).unwrap().lookup(key.as_bytes()).unwrap().is_some()
    }
}

/// Runs the page. The user, the folders and the mounts are of this test alone.
fn run_page() {
    let script = "install -d -o spindle -m 0700 /var/lib/spindle /mnt/backups";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    let [backup, restore, copy, use_copy] = &blocks("Backup and restore")[..] else {
        panic!("the page has four blocks")
    };
    let mut service = Service::default();
    service.start();
    service.work("before");
    backup.iter().for_each(|line| service.run(line));
    let last = service.work("after");
    restore.iter().for_each(|line| service.run(line));
    assert!(service.has("before") && !service.has("after"), "it is the state of the backup");
    let (key, id) = service.work("restored");
    assert!(key > last.0 + FAR && id > last.1 + FAR, "{key}, {id} after {last:?}");
    fs::remove_dir_all("/var/lib/spindle/data.old").unwrap();
    copy.iter().for_each(|line| service.run(line));
    let last = service.work("later");
    use_copy.iter().for_each(|line| service.run(line));
    assert!(service.has("restored") && !service.has("later"), "it is the state of the copy");
    let (key, id) = service.work("copied");
    assert!(key > last.0 + FAR && id > last.1 + FAR, "{key}, {id} after {last:?}");
    service.stop();
    service.start();
    assert!(service.work("again").0 < key + FAR, "the next start does not jump");
    // The mistakes that the page once advised.
    let said = |arguments: &[&str]| {
        let output = Command::new(SPINDLE).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let no_server = said(&["backup", "/mnt/backups/tuesday", "--data", "/var/lib/spindle"]);
    assert!(no_server.contains(&format!("as {DATA}")), "{no_server}");
    let no_store = said(&["check", "/mnt/backups"]);
    assert!(no_store.contains("name one of those in it: cold, monday"), "{no_store}");
    service.stop();
}

#[test]
fn a_backup_and_a_copy_are_restored_as_the_page_says() {
    if std::env::var_os(APART).is_some() {
        return run_page();
    }
    if !rustix::process::geteuid().is_root() || real_peer("unshare").is_none() {
        return println!("skipped: it needs root and unshare");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("bin");
    fs::create_dir(&program).unwrap();
    symlink(SPINDLE, program.join("spindle")).unwrap();
    let users = [
        ("passwd", format!("spindle:x:{USER}:{USER}::/var/lib/spindle:/bin/sh")),
        ("group", format!("spindle:x:{USER}:")),
    ];
    for (name, line) in users {
        let own = fs::read_to_string(format!("/etc/{name}")).unwrap();
        let others: String =
            own.lines().filter(|line| !line.starts_with("spindle:")).map(|line| format!("{line}\n")).collect();
        fs::write(folder.path().join(name), format!("{others}{line}\n")).unwrap();
    }
    let script = "mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /mnt \
                  && mount --bind passwd /etc/passwd && mount --bind group /etc/group && exec \"$0\" \"$@\"";
    let path =
        std::env::join_paths([program].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture"]).env(APART, "1").env("PATH", path.unwrap());
    let output = command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
    let (text, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}{complaint}");
}
