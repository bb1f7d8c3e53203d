//! Slots beside servers that lose an answer, are silent, or make the slot wait.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::lease::{self, Failure, HeldLease, Lender};
use super::*;
use crate::clock::Clock;

/// A job of two bytes, on its first try, as a WAIT is answered.
const JOB: &str = "00000000000000000007 2 1 hi";

/// A server of jobs that does what a test wants: `reply` has the answer to a verb that comes for the n-th time, from 0 on.
/// An empty answer is a connection that is closed without one. From the second WAIT on there is no job.
struct JobServer {
    address: String,
    /// The lines of the requests.
    lines: Receiver<String>,
    thread: JoinHandle<()>,
}

impl JobServer {
    fn start(reply: fn(&str, usize) -> &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, (sender, lines)) = (listener.local_addr().unwrap().to_string(), channel());
        let thread = thread::spawn(move || {
            let mut verbs: Vec<String> = Vec::new();
            loop {
                let mut input = BufReader::new(listener.accept().unwrap().0);
                let mut line = String::new();
                input.read_line(&mut line).unwrap();
                let verb = line.split_whitespace().next().unwrap().to_owned();
                let before = verbs.iter().filter(|other| **other == verb).count();
                sender.send(line).unwrap();
                match (verb.as_str(), before) {
                    ("END", _) => return,
                    ("WAIT", 1..) => drop(input.read_to_end(&mut Vec::new())),
                    _ => input.get_mut().write_all(reply(&verb, before).as_bytes()).unwrap(),
                }
                verbs.push(verb);
            }
        });
        Self { address, lines, thread }
    }

    /// Works on the job with this command, until the server has had this verb so often. Returns the totals, and the verbs of
    /// all requests but the first, which is that of a worker that starts.
    fn work(self, command: &str, last: &str, times: usize) -> (WorkerTotals, Vec<String>) {
        self.work_for(Duration::from_secs(600), command, last, times)
    }

    /// The same with leases of this length.
    fn work_for(self, lease: Duration, command: &str, last: &str, times: usize) -> (WorkerTotals, Vec<String>) {
        let client = JobsClient::new(&self.address);
        let running = start_work(WorkConfig {
            source: WorkSource::Jobs { client, queue: b"mail".to_vec() },
            command: WorkCommand { text: command.to_owned(), limit: None },
            slots: 1,
            lease,
        });
        let running = running.unwrap();
        let mut lines: Vec<String> = Vec::new();
        while lines.iter().filter(|line| line.starts_with(last)).count() < times {
            lines.push(self.lines.recv().unwrap());
        }
        let totals = running.stop();
        TcpStream::connect(&self.address).unwrap().write_all(b"END\n").unwrap();
        self.thread.join().unwrap();
        lines.extend(self.lines.try_iter());
        let verbs = lines.iter().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
        (totals, verbs.filter(|verb| verb != "END").collect())
    }
}

/// A job was failed twice: the server had carried out the first NACK, and another worker had the job by the second.
#[test]
fn a_nack_whose_answer_is_lost_is_not_repeated() {
    let server = JobServer::start(|verb, before| match (verb, before) {
        ("WAIT", _) => JOB,
        ("NACK", 0) => "",
        _ => "OK",
    });
    let (totals, verbs) = server.work("exit 1", "WAIT", 2);
    assert_eq!(verbs, ["WAIT", "TOUCH", "NACK", "WAIT"]);
    assert_eq!(totals, WorkerTotals { lost: 1, ..WorkerTotals::default() });
}

#[test]
fn an_ack_whose_answer_is_lost_is_repeated() {
    let server = JobServer::start(|verb, before| match (verb, before) {
        ("WAIT", _) => JOB,
        // The first one is that of a worker that starts.
        ("ACK", 1 | 2) => "",
        _ => "OK",
    });
    let (totals, verbs) = server.work("true", "WAIT", 2);
    assert_eq!(verbs, ["WAIT", "TOUCH", "ACK", "ACK", "ACK", "WAIT"]);
    assert_eq!(totals, WorkerTotals { stored: 1, ..WorkerTotals::default() });
}

/// The slot dropped it, so that it stayed leased, and a try was gone.
#[test]
fn a_job_whose_lease_could_not_be_extended_is_done() {
    let server = JobServer::start(|verb, before| match (verb, before) {
        ("WAIT", _) => JOB,
        ("TOUCH", 0) => "",
        _ => "OK",
    });
    let (totals, verbs) = server.work("read x; [ \"$x\" = hi ]", "WAIT", 2);
    assert_eq!(verbs.get(..2).unwrap(), ["WAIT", "TOUCH"]);
    assert_eq!(verbs.iter().filter(|verb| *verb == "ACK").count(), 1, "{verbs:?}");
    assert_eq!(totals, WorkerTotals { stored: 1, ..WorkerTotals::default() });
}

#[test]
fn a_job_whose_lease_is_another_s_when_it_comes_is_not_begun() {
    let server = JobServer::start(|verb, _| match verb {
        "WAIT" => JOB,
        _ => "NO",
    });
    let (totals, verbs) = server.work("true", "WAIT", 2);
    assert_eq!(verbs, ["WAIT", "TOUCH", "WAIT"]);
    assert_eq!(totals, WorkerTotals { lost: 1, ..WorkerTotals::default() });
}

/// Another worker has the job by then, and the protocol has no token.
#[test]
fn a_job_whose_lease_is_lost_while_its_command_runs_is_not_failed() {
    let server = JobServer::start(|verb, before| match (verb, before) {
        ("WAIT", _) => JOB,
        ("TOUCH", 1..) => "NO",
        _ => "OK",
    });
    let (totals, verbs) = server.work_for(Duration::from_secs(3), "sleep 600", "WAIT", 2);
    assert!(verbs.iter().all(|verb| ["WAIT", "TOUCH"].contains(&&verb[..])), "{verbs:?}");
    assert_eq!(totals, WorkerTotals { lost: 1, ..WorkerTotals::default() });
}

/// A NACK counts as a try, so a host that could start no process buried about one job a second.
#[test]
fn a_job_whose_command_cannot_be_started_is_left_alone() {
    let server = JobServer::start(|verb, _| if verb == "WAIT" { JOB } else { "OK" });
    let (totals, verbs) = server.work("a command with \0", "TOUCH", 1);
    assert_eq!(verbs, ["WAIT", "TOUCH"]);
    assert_eq!(totals, WorkerTotals { given_back: 1, ..WorkerTotals::default() });
}

/// A server of leases in a time of its own.
struct FakeLender {
    now: &'static AtomicU64,
    length: u64,
    /// Milliseconds that a request travels, and its answer.
    travels: u64,
    is_silent: bool,
    extended: u32,
    /// When another may have the lease.
    ends: u64,
}

impl FakeLender {
    fn pass(&self, millis: u64) -> u64 {
        // Relaxed: one thread.
        self.now.fetch_add(millis, Ordering::Relaxed) + millis
    }
}

impl Lender for FakeLender {
    type Lent = ();
    type End<'e> = ();
    type Error = &'static str;

    const IS_LENT_FOR_LENGTH: bool = true;

    fn lend(&mut self, _over: BorrowedFd<'_>) -> Result<Option<()>, Self::Error> {
        Err("nothing is lent")
    }

    fn extend(&mut self, _lent: &(), left: Duration) -> Result<bool, Self::Error> {
        self.extended += 1;
        if self.is_silent {
            // It accepts, and neither shakes hands nor answers: each wait lasts as long as it may.
            self.pass(3 * lease::millis(lease::patience(left)));
            return Err("silent");
        }
        self.ends = self.pass(self.travels) + self.length;
        self.pass(self.travels);
        Ok(true)
    }

    fn end(&mut self, _lent: &(), _end: (), _left: Duration) -> Result<bool, Self::Error> {
        Ok(true)
    }

    fn failure(_error: &Self::Error, _end: ()) -> Failure {
        Failure::Away
    }
}

fn control() -> SlotControl {
    let wake_signal = WakeSignal::new().unwrap();
    SlotControl { stopper: Stopper::new(&wake_signal), wake_signal, jitter: Jitter::default() }
}

/// Holds a lease of `length` milliseconds that began `begun` after the question, whose answer came at `received`. The server
/// extends it so often, and is silent then. Returns when the lease is given up, when it ends, and the requests for more.
fn held(length: u64, begun: u64, received: u64, extensions: u32) -> (u64, u64, u32) {
    let now: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(1_000)));
    let (control, clock, travels) = (control(), Clock::fake(now), length / 50);
    let mut lender = FakeLender { now, length, travels, is_silent: false, extended: 0, ends: 1_000 + begun + length };
    let asked = clock.now();
    lender.pass(received);
    let mut held = HeldLease::begin((), &control, &mut lender, clock, asked, Duration::from_millis(length));
    loop {
        held.lender_mut().is_silent = held.lender().extended >= extensions;
        let Some(next) = held.beat() else { break };
        held.lender().pass(u64::try_from(next.as_nanos().div_ceil(1_000_000)).unwrap());
    }
    let given_up = held.lender().pass(0);
    (given_up, held.lender().ends, held.lender().extended)
}

/// Its `until` counted from the answer, and its last beat waited for the answer beyond it.
#[test]
fn a_silent_server_has_a_lease_given_up_before_another_can_have_it() {
    for length in [1_000, 30_000] {
        for (begun, received) in [(0, 0), (0, length / 4), (length / 4, length / 4)] {
            for extensions in [0, 1, 7] {
                let (given_up, ends, _) = held(length, begun, received, extensions);
                let seen = format!("{length}: begun at {begun}, received at {received}, extended {extensions} times");
                assert!(given_up < ends, "{seen}: {given_up}, {ends}");
                assert!(ends - given_up < length * 2 / 5, "{seen}: {given_up} is too early for {ends}");
            }
        }
    }
}

/// The server had made it wait, or the answer was on its way for long.
#[test]
fn a_lease_whose_begin_is_unknown_is_extended_at_once_and_counts_from_then() {
    for (begun, received) in [(59_900, 60_000), (0, 29_000), (0, 20_000)] {
        let (given_up, ends, _) = held(30_000, begun, received, 1);
        assert!(given_up < ends, "begun at {begun}, received at {received}: {given_up}, {ends}");
        assert!((1_000 + received + 29_900..1_000 + received + 30_001).contains(&given_up), "{given_up}");
    }
}

#[test]
fn a_lease_that_came_at_once_is_not_extended_before_its_time() {
    let now: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(5)));
    let (control, clock) = (control(), Clock::fake(now));
    let mut lender = FakeLender { now, length: 900, travels: 0, is_silent: false, extended: 0, ends: 905 };
    let asked = clock.now();
    lender.pass(10);
    let mut held = HeldLease::begin((), &control, &mut lender, clock, asked, Duration::from_millis(900));
    assert_eq!(held.beat(), Some(Duration::from_millis(290)));
    assert_eq!(held.lender().extended, 0);
    held.lender().pass(290);
    assert_eq!(held.beat(), Some(Duration::from_millis(300)));
    assert_eq!(held.lender().extended, 1);
}
