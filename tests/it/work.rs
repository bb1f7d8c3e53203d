//! `spindle task work` and `spindle job work`: commands that succeed, fail, hang, print megabytes, fork, are killed, and
//! outlive their leases, on a real server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use crate::admin::awaited;
use crate::harness::{Guarded, PATIENCE, SPINDLE, Server, free_port, spindle, spindle_reads};
use crate::tls::Folder;

/// What a worker works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Task,
    Job,
}

const KINDS: [Kind; 2] = [Kind::Task, Kind::Job];

/// The status of a command that asks for a queue which is not there.
const NO_SUCH_QUEUE: i32 = 3;

/// A server with a queue `mail` of tasks and one of jobs, a folder for what the commands leave, and the kind in use.
struct Yard {
    server: Server,
    folder: tempfile::TempDir,
    kind: Kind,
    port: u16,
}

impl Yard {
    fn new(kind: Kind) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        Self { server: Self::serve(kind, folder.path(), port), folder, kind, port }
    }

    fn serve(kind: Kind, folder: &Path, port: u16) -> Server {
        let data = folder.join("data");
        match kind {
            Kind::Task => {
                let endpoint = format!("tcp://127.0.0.1:{port}");
                Server::start_exactly(&[
                    "--kv",
                    "off",
                    "--publish",
                    "off",
                    "--tasks",
                    &endpoint,
                    "--admin",
                    "0",
                    "--data",
                    data.to_str().unwrap(),
                ])
            }
            Kind::Job => {
                let address = format!("127.0.0.1:{port}");
                Server::start_exactly(&[
                    "--kv",
                    "off",
                    "--publish",
                    "off",
                    "--jobs",
                    &address,
                    "--admin",
                    "0",
                    "--data",
                    data.to_str().unwrap(),
                ])
            }
        }
    }

    fn word(&self) -> &'static str {
        if self.kind == Kind::Task { "task" } else { "job" }
    }

    fn at(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Adds work with this value.
    fn add(&self, key: &str, value: &[u8], options: &[&str]) {
        let at = self.at();
        let own: &[&str] = match self.kind {
            Kind::Task => &["task", "add", key, "-", "--queue", "mail"],
            Kind::Job => &["job", "add", "mail", "-"],
        };
        let added = spindle_reads(&[own, options, &["--connect", &at]].concat(), value);
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }

    /// What the queue has in this state.
    fn peek(&self, state: &str) -> Vec<Value> {
        let (word, at) = (self.word(), self.at());
        let to: [&str; 2] = if self.kind == Kind::Task { ["--connect", &at] } else { ["--admin", self.server.admin()] };
        let page = spindle(&[&[word, "peek", "mail", "--state", state, "--json"], &to[..]].concat());
        assert!(page.status.success(), "{}", String::from_utf8_lossy(&page.stderr));
        String::from_utf8(page.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the queue has nothing more. One answer has the figures of all states: between several answers a task
    /// can go from a state that is not read yet to one that is.
    fn await_gone(&self) {
        let (word, at) = (self.word(), self.at());
        let to: [&str; 2] = if self.kind == Kind::Task { ["--connect", &at] } else { ["--admin", self.server.admin()] };
        awaited("an empty queue", || {
            let page = spindle(&[&[word, "stats", "mail", "--json"], &to[..]].concat());
            if page.status.code() == Some(NO_SUCH_QUEUE) {
                return Some(());
            }
            assert!(page.status.success(), "{}", String::from_utf8_lossy(&page.stderr));
            let figures: Value = serde_json::from_slice(&page.stdout).unwrap();
            ["ready", "delayed", "leased", "dead"].iter().all(|state| figures[state] == 0).then_some(())
        });
    }

    /// Waits until something is dead. Returns its tries and the reason.
    fn await_dead(&self) -> (u64, String) {
        let dead = awaited("a dead one", || self.peek("dead").into_iter().next());
        (dead["tries"].as_u64().unwrap(), dead["reason"].as_str().unwrap().to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The content of a file, once it is there with a whole line.
    fn await_line(&self, name: &str) -> String {
        awaited(name, || fs::read_to_string(self.path(name)).ok().filter(|text| text.ends_with('\n')))
    }

    /// Waits until the process whose number is in this file is gone.
    fn await_death(&self, name: &str) {
        let pid = self.await_line(name);
        awaited("the end of a process", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            // A process that has ended may wait for its parent.
            let is_gone = stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')));
            is_gone.then_some(())
        });
    }

    /// Starts a worker whose commands run in the folder.
    fn work(&self, command: &str, flags: &[&str]) -> Worker {
        let output = self.path("output");
        let file = File::create(&output).unwrap();
        let queue: &[&str] = if self.kind == Kind::Task { &["--queue", "none", "--queue", "mail"] } else { &["mail"] };
        let child = Command::new(SPINDLE)
            .args([self.word(), "work", "--connect", &self.at(), "--command", command])
            .args(queue)
            .args(flags)
            .current_dir(self.folder.path())
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(file)
            .spawn()
            .unwrap();
        let worker = Worker { child: Guarded(child), output };
        awaited("ready", || worker.printed().starts_with("ready\n").then_some(()));
        worker
    }
}

/// A worker that runs. Killed when dropped.
struct Worker {
    child: Guarded,
    output: PathBuf,
}

impl Worker {
    fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap()).into_owned()
    }

    fn signal(&self) {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM).unwrap();
    }

    /// Asks the worker to end, and returns its last line.
    fn stop(self) -> String {
        self.signal();
        self.wait()
    }

    fn wait(mut self) -> String {
        let process = pidfd_open(Pid::from_child(&self.child.0), PidfdFlags::empty()).unwrap();
        assert_eq!(
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&PATIENCE)),
            Ok(1),
            "the worker does not end"
        );
        assert!(self.child.0.wait().unwrap().success());
        self.printed().lines().last().unwrap().to_owned()
    }
}

#[test]
fn a_command_gets_the_value_and_what_it_is_and_status_0_is_done() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        let value: Vec<u8> = (0..900_000_u32).map(|number| u8::try_from(number % 256).unwrap()).collect();
        yard.add("page-1", &value, &[]);
        let named = if kind == Kind::Task { "$SPINDLE_WORK_KEY" } else { "$SPINDLE_WORK_ID" };
        let command =
            format!("cat > value; echo \"$SPINDLE_WORK_QUEUE {named} $SPINDLE_WORK_TRIES\" > named; echo to be seen");
        let worker = yard.work(&command, &[]);
        yard.await_gone();
        assert!(fs::read(yard.path("value")).unwrap() == value, "{kind:?}");
        let named = yard.await_line("named");
        match kind {
            Kind::Task => assert_eq!(named, "mail page-1 1\n"),
            Kind::Job => assert!(named.starts_with("mail 0000000000") && named.ends_with(" 1\n"), "{named}"),
        }
        assert!(worker.printed().contains("to be seen\n"));
        yard.add("page-2", b"", &[]);
        yard.await_gone();
        assert_eq!(fs::read(yard.path("value")).unwrap(), b"", "{kind:?}");
        assert_eq!(worker.stop(), "done 2, given back 0, lost 0");
        yard.server.stop();
    }
}

#[test]
fn a_command_that_fails_or_is_killed_gives_the_work_back_with_its_last_line() {
    for kind in KINDS {
        for (command, reason) in [
            ("echo first >&2; echo 'no such host' >&2; echo >&2; exit 3", "no such host"),
            ("exit 3", "the command has ended with exit status: 3"),
            ("kill -9 $$", "the command has ended with signal: 9 (SIGKILL)"),
            ("no-such-program 2>/dev/null", "the command has ended with exit status: 127"),
        ] {
            let yard = Yard::new(kind);
            yard.add("k", b"v", &["--tries", "2"]);
            let worker = yard.work(command, &[]);
            assert_eq!(yard.await_dead(), (2, reason.to_owned()), "{kind:?}");
            assert_eq!(worker.stop(), "done 0, given back 2, lost 0");
            yard.server.stop();
        }
    }
}

#[test]
fn a_command_that_hangs_is_killed_with_all_that_it_has_started() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        yard.add("k", b"v", &["--tries", "1"]);
        let worker = yard.work("sleep 600 & echo $! > pid; wait", &["--command-timeout", "300ms"]);
        assert_eq!(yard.await_dead(), (1, "the command has taken longer than 0.3 s".to_owned()), "{kind:?}");
        yard.await_death("pid");
        assert_eq!(worker.stop(), "done 0, given back 1, lost 0");
        yard.server.stop();
    }
}

#[test]
fn a_command_that_prints_megabytes_or_reads_nothing_is_not_held_up() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        yard.add("k", &[b'x'; 1_000_000], &["--tries", "1"]);
        let command = "head -c 20000000 /dev/zero; yes error | head -c 20000001 >&2; printf '\\nthe end' >&2; exit 1";
        let worker = yard.work(command, &[]);
        assert_eq!(yard.await_dead(), (1, "the end".to_owned()), "{kind:?}");
        assert_eq!(worker.stop().trim_start_matches('\0'), "done 0, given back 1, lost 0");
        let yard_of_long_line = Yard::new(kind);
        yard_of_long_line.add("k", b"v", &["--tries", "1"]);
        let worker = yard_of_long_line.work("head -c 3000000 /dev/zero | tr '\\0' e >&2; exit 1", &[]);
        assert_eq!(yard_of_long_line.await_dead(), (1, "e".repeat(256)), "{kind:?}");
        drop(worker);
        yard.server.stop();
    }
}

/// What it has started holds standard error open.
#[test]
fn a_command_that_forks_and_ends_is_done_and_what_it_has_started_is_killed() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        yard.add("k", b"v", &[]);
        let worker = yard.work("sleep 600 & echo $! > pid", &[]);
        yard.await_death("pid");
        yard.await_gone();
        assert_eq!(worker.stop(), "done 1, given back 0, lost 0", "{kind:?}");
        yard.server.stop();
    }
}

#[test]
fn a_command_that_outlives_its_lease_keeps_it() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        // A job has a shorter lease of its own than that of the worker.
        yard.add("k", b"v", if kind == Kind::Job { &["--lease", "700ms"] } else { &[] });
        let worker = yard.work("sleep 2.5; echo $SPINDLE_WORK_TRIES >> tries", &["--lease", "1"]);
        yard.await_gone();
        assert_eq!(yard.await_line("tries"), "1\n", "it was lent once: {kind:?}");
        assert_eq!(worker.stop(), "done 1, given back 0, lost 0");
        yard.server.stop();
    }
}

#[test]
fn a_command_whose_lease_is_lost_is_killed_with_its_group() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        yard.add("k", b"v", &[]);
        let worker = yard.work("sleep 600 & echo $! > pid; wait", &["--lease", "1"]);
        yard.await_line("pid");
        let (at, lent) = (yard.at(), yard.peek("lent"));
        let gone = match kind {
            Kind::Task => spindle(&["task", "remove", "k", "--queue", "mail", "--connect", &at]),
            Kind::Job => spindle(&["job", "done", "mail", lent[0]["id"].as_str().unwrap(), "--connect", &at]),
        };
        assert!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
        yard.await_death("pid");
        assert_eq!(worker.stop(), "done 0, given back 0, lost 1", "{kind:?}");
        yard.server.stop();
    }
}

#[test]
fn a_command_is_killed_when_the_server_is_away_for_its_lease_and_the_next_try_is_done() {
    for kind in KINDS {
        let mut yard = Yard::new(kind);
        yard.add("k", b"v", &[]);
        let command = "[ $SPINDLE_WORK_TRIES != 1 ] || { sleep 600 & echo $! > pid; wait; }";
        let worker = yard.work(command, &["--lease", "2"]);
        yard.await_line("pid");
        yard.server.signal(Signal::KILL);
        assert!(yard.server.comes_to_its_end(&PATIENCE));
        yard.await_death("pid");
        yard.server = Yard::serve(kind, yard.folder.path(), yard.port);
        yard.await_gone();
        assert_eq!(worker.stop(), "done 1, given back 0, lost 1", "{kind:?}");
        yard.server.stop();
    }
}

#[test]
fn a_worker_that_is_stopped_finishes_its_command_and_takes_no_more() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        let waiting = yard.work("true", &["--slots", "3"]);
        assert_eq!(waiting.stop(), "done 0, given back 0, lost 0", "{kind:?}");
        yard.add("first", b"v", &[]);
        let worker = yard.work("echo > begun; until [ -e go ]; do sleep 0.01; done", &["--json"]);
        yard.await_line("begun");
        yard.add("second", b"v", &[]);
        worker.signal();
        File::create(yard.path("go")).unwrap();
        assert_eq!(worker.wait(), "{\"done\":1,\"given_back\":0,\"lost\":0}");
        let [second] = &yard.peek("ready")[..] else { panic!("one is left") };
        assert_eq!(second["tries"], 0, "{kind:?}");
        yard.server.stop();
    }
}

#[test]
fn as_many_commands_run_at_once_as_there_are_slots() {
    for kind in KINDS {
        let yard = Yard::new(kind);
        ["a", "b", "c"].iter().for_each(|key| yard.add(key, b"v", &[]));
        fs::create_dir(yard.path("here")).unwrap();
        // Each waits for the others.
        let command = "touch here/$$; until [ $(ls here | wc -l) = 3 ]; do sleep 0.01; done";
        let worker = yard.work(command, &["--slots", "3"]);
        yard.await_gone();
        assert_eq!(worker.stop(), "done 3, given back 0, lost 0", "{kind:?}");
        yard.server.stop();
    }
}

/// A worker that waits over TLS ends at once, too.
#[test]
fn jobs_are_worked_on_over_tls_by_a_user() {
    let folder = Folder::new();
    let server = folder.start();
    let port = |address: &str| address.rsplit_once(':').unwrap().1.to_owned();
    let certificate = folder.path("certificate");
    let (jobs, admin) =
        (format!("tls://localhost:{}", port(server.jobs())), format!("https://localhost:{}", port(server.admin())));
    let command = |arguments: &[&str]| {
        let mut command = Command::new(SPINDLE);
        command.args(arguments).args(["--user", "root", "--tls-ca", certificate.to_str().unwrap()]);
        command.env("SPINDLE_PASSWORD", "heron").stdin(Stdio::null());
        command
    };
    let output = folder.path("output");
    let child = command(&["job", "work", "mail", "--command", "cat", "--connect", &jobs])
        .stdout(File::create(&output).unwrap())
        .spawn()
        .unwrap();
    let worker = Worker { child: Guarded(child), output };
    awaited("ready", || worker.printed().starts_with("ready\n").then_some(()));
    assert!(command(&["job", "add", "mail", "to ada", "--connect", &jobs]).status().unwrap().success());
    awaited("the work", || worker.printed().contains("to ada").then_some(()));
    awaited("the end of the job", || {
        // The queue is listed as long as the worker waits in it.
        let list = command(&["job", "list", "--json", "--admin", &admin]).output().unwrap();
        assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
        let queue: Value = serde_json::from_slice(&list.stdout).ok()?;
        (queue["leased"] == 0 && queue["ready"] == 0).then_some(())
    });
    assert!(worker.stop().ends_with("done 1, given back 0, lost 0"));
    server.stop();
}

#[test]
fn a_worker_that_may_not_ends_with_the_status_of_a_denial() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (users, password) = (inside("users"), inside("password"));
    fs::write(&password, "heron").unwrap();
    let add =
        ["user", "add", "eve", "--users", &users, "--password-stdin", "--tasks-read", "mail", "--jobs-read", "mail"];
    assert!(spindle_reads(&add, b"heron").status.success());
    let server = Server::start_tasks(&folder.path().join("data"), &["--jobs", "0", "--users", &users]);
    for command in [
        &["task", "work", "--queue", "mail", "--connect", server.tasks()][..],
        &["job", "work", "mail", "--connect", server.jobs()],
    ] {
        let login = ["--command", "true", "--user", "eve", "--password-file", &password];
        let output = spindle(&[command, &login].concat());
        assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    }
    server.stop();
}

#[test]
fn a_worker_without_a_server_says_so() {
    let at = free_port().to_string();
    for (command, why) in [
        (&["task", "work", "--command", "true"][..], "no answer"),
        (&["job", "work", "mail", "--command", "true"], "is a server with --jobs running there?"),
    ] {
        let output = spindle(&[command, &["--connect", &at]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(why), "{said}");
    }
    let no_command = spindle(&["task", "work"]);
    assert_eq!(no_command.status.code(), Some(2));
}
