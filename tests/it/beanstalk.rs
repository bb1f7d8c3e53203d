//! beanstalkd's protocol: what waits, what is held, what outlives its connection and its server, and who may do what.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::crash::SMALL_SEGMENT;
use crate::harness::{
    Guarded, Server, free_port, is_made, number_of, python_with_pyzmq, real_peer, run_python, spindle, spindle_reads,
};
use crate::jobs::{ask, folder};

/// A test waits so long for an answer that has to come.
const LONG: Duration = Duration::from_secs(60);

/// A connection that waits for each answer.
pub(crate) struct Beanstalk(BufReader<TcpStream>);

impl Beanstalk {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = match address.strip_prefix("unix:") {
            // Its calls are those of every stream.
            Some(path) => OwnedFd::from(UnixStream::connect(path).unwrap()).into(),
            None => TcpStream::connect(address).unwrap(),
        };
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// The next answer: its line, and its body behind a colon.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        if self.0.read_line(&mut line).unwrap() == 0 {
            return "closed".to_owned();
        }
        let line = line.strip_suffix("\r\n").unwrap().to_owned();
        let words: Vec<&str> = line.split(' ').collect();
        if !matches!(words[0], "OK" | "RESERVED" | "FOUND") {
            return line;
        }
        let mut body = vec![0; words.last().unwrap().parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut body).unwrap();
        format!("{line}: {}", String::from_utf8_lossy(body.strip_suffix(b"\r\n").unwrap()))
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.answer()
    }

    /// Puts a job that is ready, with a ttr of so many seconds. Returns its id.
    fn put(&mut self, ttr: u32, data: &str) -> u64 {
        let answer = self.ask(&format!("put 9 0 {ttr} {}\r\n{data}", data.len()));
        answer.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
    }

    /// The value of a field of figures.
    fn field(&mut self, line: &str, name: &str) -> String {
        let figures = self.ask(line);
        let value = figures.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("{figures}")).to_owned()
    }

    /// Waits until a field of figures has this value.
    fn awaits(&mut self, line: &str, name: &str, value: &str) {
        while self.field(line, name) != value {
            std::thread::yield_now();
        }
    }
}

fn start(data: &Path, flags: &[&str]) -> Server {
    let data = data.to_str().unwrap();
    let all = [&["--kv", "off", "--publish", "off", "--beanstalk", "127.0.0.1:0", "--data", data], flags].concat();
    Server::start_exactly(&all)
}

#[test]
fn whoever_waits_gets_the_next_job_and_first_come_is_first_served() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    let connect = || Beanstalk::connect(server.beanstalk());
    let (mut first, mut second, mut other) = (connect(), connect(), connect());
    first.send("reserve\r\n");
    other.awaits("stats", "current-waiting", "1");
    second.send("watch mail\r\nreserve\r\n");
    assert_eq!(second.answer(), "WATCHING 2");
    other.awaits("stats", "current-waiting", "2");
    assert_eq!(other.field("stats-tube mail", "current-waiting"), "1");
    let id = other.put(100, "a");
    assert_eq!(first.answer(), format!("RESERVED {id} 1: a"));
    assert_eq!(other.ask("use mail"), "USING mail");
    let id = other.put(100, "b");
    assert_eq!(second.answer(), format!("RESERVED {id} 1: b"));
    assert_eq!(other.ask(&format!("delete {id}")), "NOT_FOUND", "another connection holds it");
    assert_eq!(second.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(second.ask("reserve-with-timeout 1"), "TIMED_OUT");
    // A client that has closed its half waits for nothing, and has the answers to what it has asked.
    first.send("stats-tube none\r\nreserve\r\n");
    first.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert_eq!(["", ""].map(|_| first.answer()), ["NOT_FOUND", "TIMED_OUT"]);
    assert_eq!(first.answer(), "closed");
    server.stop();
}

#[test]
fn the_most_urgent_job_of_all_watched_tubes_comes_first_and_then_the_oldest() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    let mut client = Beanstalk::connect(server.beanstalk());
    let puts = [("a", 5, "1"), ("b", 5, "2"), ("a", 7, "3"), ("b", 3, "4"), ("c", 0, "unwatched"), ("a", 3, "5")];
    for (tube, class, data) in puts {
        client.send(format!("use {tube}\r\nput {class} 0 100 {}\r\n{data}\r\n", data.len()));
        assert!(client.answer() == format!("USING {tube}") && client.answer().starts_with("INSERTED "));
    }
    client.send("watch b\r\nwatch a\r\nignore default\r\n".to_owned() + &"reserve-with-timeout 0\r\n".repeat(6));
    let answers: Vec<String> = (0..9).map(|_| client.answer()).collect();
    let order: Vec<&str> = answers.iter().filter_map(|answer| answer.split_once(": ")).map(|job| job.1).collect();
    assert_eq!((order, &*answers[8]), (vec!["4", "5", "1", "2", "3"], "TIMED_OUT"));
    server.stop();
}

#[test]
fn a_reservation_ends_with_its_connection_or_its_time_and_the_job_is_back() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    let connect = || Beanstalk::connect(server.beanstalk());
    let (mut worker, mut other) = (connect(), connect());
    let id = other.put(100, "a");
    let line = format!("stats-job {id}");
    assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 1: a"));
    assert_eq!((other.field(&line, "state"), other.field(&line, "reserves")), ("reserved".into(), "1".into()));
    drop(worker);
    other.awaits(&line, "state", "ready");
    let counts = ["reserves", "releases", "timeouts"].map(|name| other.field(&line, name));
    assert_eq!(counts, ["1", "0", "0"], "a job that was sent has had a try");
    // In the last second of a reservation nobody waits.
    let short = other.put(2, "b");
    let mut worker = connect();
    assert_eq!(worker.ask("reserve-job 999999"), "NOT_FOUND");
    assert_eq!(worker.ask(&format!("reserve-job {short}")), format!("RESERVED {short} 1: b"));
    assert_eq!(worker.ask("ignore default"), "NOT_IGNORED");
    assert_eq!((worker.ask("watch none"), worker.ask("ignore default")), ("WATCHING 2".into(), "WATCHING 1".into()));
    assert_eq!(worker.ask("reserve"), "DEADLINE_SOON");
    assert_eq!(worker.ask("reserve-with-timeout 0"), "DEADLINE_SOON");
    assert_eq!(worker.ask(&format!("touch {short}")), "TOUCHED");
    assert_eq!(worker.ask("reserve-with-timeout 0"), "TIMED_OUT");
    let line = format!("stats-job {short}");
    other.awaits(&line, "state", "ready");
    assert_eq!((other.field(&line, "timeouts"), other.field("stats", "job-timeouts")), ("1".into(), "1".into()));
    for command in ["touch", "delete", "release", "bury"] {
        let rest =
            ["", " 1", " 1 0"][["touch", "bury", "release"].iter().position(|word| *word == command).unwrap_or(0)];
        let expected = if command == "delete" { "DELETED" } else { "NOT_FOUND" };
        let id = if command == "delete" { id } else { short };
        assert_eq!(worker.ask(&format!("{command} {id}{rest}")), expected, "it is held no more");
    }
    server.stop();
}

#[test]
fn a_job_that_has_failed_too_often_is_buried_and_no_crash_counts() {
    let folder = folder();
    let mut server = start(folder.path(), &["--tries", "2"]);
    let id = Beanstalk::connect(server.beanstalk()).put(100, "a");
    let line = format!("stats-job {id}");
    for _ in 0..3 {
        let mut worker = Beanstalk::connect(server.beanstalk());
        assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 1: a"));
        server.signal(Signal::KILL);
        server.wait();
        server = start(folder.path(), &["--tries", "2"]);
        let mut client = Beanstalk::connect(server.beanstalk());
        assert_eq!((client.field(&line, "state"), client.field(&line, "reserves")), ("ready".into(), "0".into()));
    }
    let mut worker = Beanstalk::connect(server.beanstalk());
    assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 1: a"));
    assert_eq!(worker.ask(&format!("release {id} 4 0")), "RELEASED");
    assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 1: a"));
    assert_eq!(worker.ask(&format!("release {id} 4 0")), "BURIED");
    server.signal(Signal::KILL);
    server.wait();
    let server = start(folder.path(), &["--tries", "2"]);
    let mut worker = Beanstalk::connect(server.beanstalk());
    let counts = ["state", "pri", "reserves", "releases", "buries", "kicks"].map(|name| worker.field(&line, name));
    assert_eq!(counts, ["buried", "4", "2", "2", "1", "0"]);
    assert_eq!((worker.ask("kick 5"), worker.field(&line, "kicks")), ("KICKED 1".into(), "1".into()));
    assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 1: a"));
    assert_eq!(worker.ask(&format!("release {id} 4 0")), "RELEASED", "it begins anew");
    server.stop();
}

#[test]
fn a_tube_is_the_queue_of_the_other_protocol_and_who_holds_a_job_is_one() {
    let folder = folder();
    let server = start(folder.path(), &["--jobs", "127.0.0.1:0"]);
    let mut client = Beanstalk::connect(server.beanstalk());
    let id = ask(&server, "ADD mail 2 ab");
    let number: u64 = id.parse().unwrap();
    assert_eq!(client.ask(&format!("peek {number}")), format!("FOUND {number} 2: ab"));
    let line = format!("stats-job {number}");
    assert_eq!(["pri", "ttr", "tube"].map(|name| client.field(&line, name)), ["65536", "300", "mail"]);
    assert_eq!(ask(&server, "GET mail"), format!("{id} 2 ab"));
    for command in ["delete {}", "touch {}", "release {} 1 0", "bury {} 1", "reserve-job {}", "kick-job {}"] {
        assert_eq!(client.ask(&command.replace("{}", &number.to_string())), "NOT_FOUND", "{command}");
    }
    assert_eq!(ask(&server, format!("NACK mail {id}")), "OK");
    assert_eq!(client.ask("watch mail"), "WATCHING 2");
    assert_eq!(client.ask("reserve"), format!("RESERVED {number} 2: ab"));
    assert_eq!((ask(&server, "GET mail"), ask(&server, format!("IN mail {id}"))), ("NONE".into(), "YES".into()));
    // ACK finishes a job, whoever holds it.
    assert_eq!(ask(&server, format!("ACK mail {id}")), "OK");
    assert_eq!(client.ask(&format!("delete {number}")), "NOT_FOUND");
    // The other protocol has names that are none of a tube.
    ask(&server, "ADD a,b 1 x");
    assert_eq!(client.ask("list-tubes"), "OK 21: ---\n- default\n- mail\n");
    server.stop();
}

#[test]
fn jobs_of_all_lengths_come_back_and_too_long_ones_are_skipped() {
    let folder = folder();
    let server = start(folder.path(), &["--beanstalk-job-max", "1000000"]);
    let mut client = Beanstalk::connect(server.beanstalk());
    for length in [0, 1, 2_047, 2_048, 65_534, 65_535, 65_536, 1_000_000] {
        let data = "x".repeat(length);
        let id = client.put(100, &data);
        assert!(client.ask("reserve") == format!("RESERVED {id} {length}: {data}"), "{length}");
        assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    }
    client.send(format!("put 1 0 1 1000001\r\n{}\r\nlist-tube-used\r\n", "y".repeat(1_000_001)));
    assert_eq!((client.answer(), client.answer()), ("JOB_TOO_BIG".into(), "USING default".into()));
    // Many at once, in one write: their answers come in their order.
    let put = format!("put 1 0 100 10000\r\n{}\r\n", "z".repeat(10_000));
    let mut ids = Vec::new();
    for _ in 0..3 {
        client.send(put.repeat(40));
        ids.extend((0..40).map(|_| client.answer()[9..].parse::<u64>().unwrap()));
    }
    assert!(ids.is_sorted() && ids.len() == 120);
    assert_eq!(client.field("stats", "current-jobs-ready"), "120");
    server.stop();
}

/// A waiting reserve of a connection that was gone before the answers in front of it were sent took a job for nobody.
#[test]
fn a_reserve_ends_with_its_connection_wherever_it_is() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    let mut client = Beanstalk::connect(server.beanstalk());
    assert_eq!(client.ask("use x"), "USING x");
    let behind = "use y\r\n".repeat(2_000);
    for attempt in 0..100 {
        let mut gone = Beanstalk::connect(server.beanstalk());
        gone.send("use x\r\nwatch x\r\nreserve\r\n");
        match attempt % 4 {
            // The client does not even take leave.
            0 | 1 => rustix::net::sockopt::set_socket_linger(gone.0.get_ref(), Some(Duration::ZERO)).unwrap(),
            2 => gone.send(&behind),
            _ => {}
        }
    }
    client.awaits("stats", "current-connections", "1");
    assert_eq!(client.field("stats", "current-waiting"), "0");
    let ids: Vec<_> = (0..100).map(|_| client.put(1_000, "a")).collect();
    assert_eq!(client.field("stats-tube x", "current-jobs-reserved"), "0");
    assert_eq!(client.ask("watch x"), "WATCHING 2");
    for id in ids {
        assert_eq!(client.ask("reserve-with-timeout 0"), format!("RESERVED {id} 1: a"));
    }
    server.stop();
}

#[test]
fn the_figures_name_the_files_of_the_log() {
    let folder = folder();
    let server = start(folder.path(), &["--segment-size", SMALL_SEGMENT]);
    let mut client = Beanstalk::connect(server.beanstalk());
    let body = "x".repeat(10_000);
    let first = client.put(100, &body);
    let number = |text: String| text.parse::<u64>().unwrap();
    let newest = |client: &mut Beanstalk| number(client.field("stats", "binlog-current-index"));
    let (begun, mut last) = (newest(&mut client), first);
    while newest(&mut client) < begun + 3 {
        last = client.put(100, &body);
    }
    let files = [first, last].map(|id| number(client.field(&format!("stats-job {id}"), "file")));
    assert_eq!(files, [begun, begun + 3]);
    let oldest = number(client.field("stats", "binlog-oldest-index"));
    assert!((1..=begun).contains(&oldest), "{oldest}");
    server.stop();
    // A file keeps its number, until its jobs are copied into another one.
    let server = start(folder.path(), &["--segment-size", SMALL_SEGMENT]);
    let mut client = Beanstalk::connect(server.beanstalk());
    let [oldest, newest] =
        ["oldest", "current"].map(|which| number(client.field("stats", &format!("binlog-{which}-index"))));
    for id in [first, last] {
        let file = number(client.field(&format!("stats-job {id}"), "file"));
        assert!((oldest..=newest).contains(&file), "{oldest} {file} {newest}");
    }
    server.stop();
}

#[test]
fn a_server_that_drains_or_is_full_takes_no_job_and_does_all_else() {
    let folder = folder();
    let server = start(folder.path(), &["--max-tasks", "1"]);
    let mut client = Beanstalk::connect(server.beanstalk());
    let id = client.put(100, "a");
    assert_eq!(client.ask("put 1 0 1 1\r\nb"), "OUT_OF_MEMORY");
    assert_eq!(client.field("stats", "draining"), "false");
    server.signal(Signal::USR1);
    client.awaits("stats", "draining", "true");
    assert_eq!(client.ask("put 1 0 1 1\r\nb"), "DRAINING");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1: a"));
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    // The one that waits does not hold up the end of the server.
    client.send("reserve\r\n");
    server.stop();
    assert_eq!(client.answer(), "closed");
}

#[test]
fn a_user_sees_its_tubes_and_no_others() {
    let folder = folder();
    let users = folder.path().join("users.toml");
    for (name, grants) in [("ada", "jobs-write=mail"), ("eve", "jobs-read=mail")] {
        let (grant, prefix) = grants.split_once('=').unwrap();
        let flag = format!("--{grant}");
        let arguments = ["user", "add", "--users", users.to_str().unwrap(), name, &flag, prefix, "--password-stdin"];
        let added = spindle_reads(&arguments, format!("{name}-secret\n").as_bytes());
        assert!(added.status.success(), "{added:?}");
    }
    let flags = ["--users", users.to_str().unwrap(), "--beanstalk", "127.0.0.1:0,user=eve"];
    let data = folder.path().join("data");
    let server = start(&data, &flags);
    let addresses: Vec<&str> = server.beanstalk_all().collect();
    let mut ada = Beanstalk::connect(addresses[0]);
    assert_eq!(ada.ask("put 1 0 100 1\r\na"), "NOT_AUTHENTICATED");
    assert_eq!(ada.ask("auth ada wrong"), "NOT_AUTHENTICATED");
    assert_eq!(ada.ask("auth ada ada-secret"), "AUTHENTICATED");
    assert_eq!(ada.ask("put 1 0 100 1\r\na"), "NOT_ALLOWED", "it uses the tube default");
    assert_eq!(ada.ask("reserve"), "NOT_ALLOWED");
    assert_eq!((ada.ask("use mail"), ada.ask("watch mail")), ("USING mail".into(), "WATCHING 2".into()));
    let id = ada.put(100, "a");
    assert_eq!(ada.ask("list-tubes"), "OK 11: ---\n- mail\n");
    // All clients of the other address are eve, who reads and takes nothing.
    let mut eve = Beanstalk::connect(addresses[1]);
    assert_eq!(eve.ask(&format!("peek {id}")), format!("FOUND {id} 1: a"));
    for command in ["delete {}", "reserve-job {}", "kick-job {}"] {
        assert_eq!(eve.ask(&command.replace("{}", &id.to_string())), "NOT_FOUND", "{command}");
    }
    assert_eq!((eve.ask("use mail"), eve.ask("put 1 0 1 1\r\nb")), ("USING mail".into(), "NOT_ALLOWED".into()));
    assert_eq!(eve.ask("kick 1"), "NOT_ALLOWED");
    assert_eq!(eve.ask("stats-tube default"), "NOT_FOUND");
    assert_eq!(ada.ask("reserve"), format!("RESERVED {id} 1: a"));
    assert_eq!(ada.ask(&format!("delete {id}")), "DELETED");
    // The connections of a user that has changed end, and a listener's next ones are the user as it is now.
    let edit = ["user", "edit", "--users", users.to_str().unwrap(), "eve", "--jobs-write", "mail"];
    assert!(spindle(&edit).status.success());
    eve.send("");
    while eve.ask("list-tube-used") != "closed" {}
    let mut eve = Beanstalk::connect(addresses[1]);
    assert_eq!(eve.ask("use mail"), "USING mail");
    let id = eve.put(100, "b");
    assert_eq!(eve.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(ada.ask("list-tube-used"), "USING mail");
    server.stop();
}

#[test]
fn a_path_is_listened_at_and_is_taken_over_from_a_killed_server() {
    let folder = folder();
    let path = folder.path().join("socket");
    let users = folder.path().join("users.toml");
    let arguments = ["user", "add", "--users", users.to_str().unwrap(), "ada", "--jobs-write", "", "--password-stdin"];
    assert!(spindle_reads(&arguments, b"secret\n").status.success());
    let [plain, bound] = ["", ",user=ada"].map(|user| format!("unix:{}{user}", path.display()));
    let flags = |listener: &str| ["--users", users.to_str().unwrap(), "--beanstalk", listener].map(str::to_owned);
    let start = |listener: &str| {
        let flags = flags(listener);
        start(&folder.path().join("data"), &flags.each_ref().map(String::as_str))
    };
    let server = start(&bound);
    let local = server.beanstalk_all().nth(1).unwrap();
    assert_eq!(local, plain);
    let (mut local, mut remote) = (Beanstalk::connect(local), Beanstalk::connect(server.beanstalk()));
    let id = local.put(100, "a");
    assert_eq!(remote.ask("peek 1"), "NOT_AUTHENTICATED");
    // Whole bursts, and a job as long as may be.
    let long = "x".repeat(65_535);
    local.send(format!("put 1 0 100 65535\r\n{long}\r\nreserve\r\n"));
    assert_eq!(local.answer(), format!("INSERTED {}", id + 1));
    assert_eq!(local.answer(), format!("RESERVED {} 65535: {long}", id + 1));
    drop(local);
    drop(server);
    assert!(path.exists(), "it was killed");
    let server = start(&plain);
    let mut local = Beanstalk::connect(server.beanstalk_all().nth(1).unwrap());
    assert_eq!(local.ask("stats"), "NOT_AUTHENTICATED");
    assert_eq!(local.ask("auth ada secret"), "AUTHENTICATED");
    assert_eq!(local.ask(&format!("peek {id}")), format!("FOUND {id} 1: a"));
    server.stop();
    assert!(!path.exists());
    assert_eq!(local.answer(), "closed");
    std::fs::write(&path, "a letter").unwrap();
    for (listener, why) in [(plain, "there is a file of that name"), ("unix:".to_owned(), "the path of the socket")] {
        let refused = spindle(&["serve", "--kv", "off", "--publish", "off", "--beanstalk", &listener]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
}

/// Debian's beanstalkd.
struct Oracle {
    _process: Guarded,
    address: String,
}

impl Oracle {
    fn start() -> Option<Self> {
        let program = real_peer("beanstalkd")?;
        let port = free_port().to_string();
        let mut command = Command::new(program);
        let process = command.args(["-l", "127.0.0.1", "-p", &port]).stdin(Stdio::null()).spawn().unwrap();
        let address = format!("127.0.0.1:{port}");
        while TcpStream::connect(&address).is_err() {
            std::thread::yield_now();
        }
        Some(Self { _process: Guarded(process), address })
    }
}

/// Random commands have the same replies from Debian's beanstalkd.
#[test]
fn every_reply_is_that_of_beanstalkd() {
    let rounds = number_of("SPINDLE_BEANSTALK_ROUNDS").unwrap_or(2);
    let first = number_of("SPINDLE_BEANSTALK_SEED").unwrap_or(1);
    for seed in first..first + rounds {
        let Some(oracle) = Oracle::start() else { return };
        let folder = folder();
        let server = start(folder.path(), &[]);
        let arguments = [server.beanstalk(), &oracle.address, &seed.to_string(), "1500"];
        run_python("beanstalk_difference.py", &arguments);
        server.stop();
    }
}

/// What a chapter of a client prints.
fn chapter(address: &str, program: &Path, script: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut command = Command::new(program);
    command.arg(root.join("tests/it/peers").join(script)).args([host, port]).stdin(Stdio::null());
    let output = command.env("NODE_PATH", root.join("target/node/node_modules")).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// greenstalk, pystalk, jackd, fivebeans, Beaneater and Pheanstalk.
#[test]
fn clients_of_other_projects_work_as_they_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let has_modules = is_made(&root.join("target/node/node_modules/jackd"))
        && is_made(Path::new("/usr/share/php/Pheanstalk/autoload.php"));
    let programs = [
        (python_with_pyzmq(), "beanstalk_python.py"),
        (real_peer("node").filter(|_| has_modules), "beanstalk_node.cjs"),
        (real_peer("ruby"), "beanstalk.rb"),
        (real_peer("php").filter(|_| has_modules), "beanstalk.php"),
    ];
    for (program, script) in programs {
        let (Some(program), Some(oracle)) = (program, Oracle::start()) else { continue };
        let folder = folder();
        let server = start(folder.path(), &[]);
        let [ours, theirs] = [server.beanstalk(), &oracle.address].map(|address| chapter(address, &program, script));
        assert!(ours == theirs && ours.lines().count() > 10, "{script}:\n{ours}\nand from beanstalkd:\n{theirs}");
        server.stop();
    }
}
