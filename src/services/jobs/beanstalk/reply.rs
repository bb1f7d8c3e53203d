//! The answers of beanstalkd's protocol, and the figures in them.
//!
//! Figures are a dictionary or a list in YAML, with the fields of beanstalkd 1.12 in its order.
//!
//! This module sends nothing and counts nothing.

use std::io::Write;

use super::command::{LineFault, Verb};
use super::input::InputFault;
use super::tubes::{TubeFigures, TubePauses};
use crate::tasks::{JobState, ListedQueue, ShownJob};

pub(super) const BAD_FORMAT: &[u8] = b"BAD_FORMAT\r\n";
pub(super) const BURIED: &[u8] = b"BURIED\r\n";
pub(super) const DEADLINE_SOON: &[u8] = b"DEADLINE_SOON\r\n";
pub(super) const DELETED: &[u8] = b"DELETED\r\n";
pub(super) const DRAINING: &[u8] = b"DRAINING\r\n";
pub(super) const KICKED: &[u8] = b"KICKED\r\n";
pub(super) const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
pub(super) const NOT_IGNORED: &[u8] = b"NOT_IGNORED\r\n";
pub(super) const OUT_OF_MEMORY: &[u8] = b"OUT_OF_MEMORY\r\n";
pub(super) const PAUSED: &[u8] = b"PAUSED\r\n";
pub(super) const RELEASED: &[u8] = b"RELEASED\r\n";
pub(super) const TIMED_OUT: &[u8] = b"TIMED_OUT\r\n";
pub(super) const TOUCHED: &[u8] = b"TOUCHED\r\n";
/// Not of beanstalkd: the user may not do that.
pub(super) const NOT_ALLOWED: &[u8] = b"NOT_ALLOWED\r\n";
/// Not of beanstalkd: a user has to name itself first, or its name and password do not fit.
pub(super) const NOT_AUTHENTICATED: &[u8] = b"NOT_AUTHENTICATED\r\n";
/// Not of beanstalkd: too many passwords wait to be checked.
pub(super) const BUSY: &[u8] = b"BUSY\r\n";
/// Not of beanstalkd: the answer to `auth`.
pub(super) const AUTHENTICATED: &[u8] = b"AUTHENTICATED\r\n";

/// The answer to what is no command.
pub(super) fn of_fault(fault: InputFault) -> &'static [u8] {
    match fault {
        InputFault::Line(LineFault::Unknown) => b"UNKNOWN_COMMAND\r\n",
        InputFault::Line(LineFault::Malformed) | InputFault::PutLine => BAD_FORMAT,
        InputFault::TooBig => b"JOB_TOO_BIG\r\n",
        InputFault::NoEnd => b"EXPECTED_CRLF\r\n",
        InputFault::Refused => NOT_ALLOWED,
    }
}

/// A word and a number.
pub(super) fn numbered(word: &str, number: u64) -> Vec<u8> {
    format!("{word} {number}\r\n").into_bytes()
}

/// A word and the name of a tube.
pub(super) fn named(word: &str, name: &[u8]) -> Vec<u8> {
    [word.as_bytes(), b" ", name, b"\r\n"].concat()
}

/// A job with its body.
pub(super) fn job(word: &str, id: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 48);
    // A vector takes all that is written.
    let _written = write!(bytes, "{word} {id} {}\r\n", body.len());
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Figures.
fn figures(text: &[u8]) -> Vec<u8> {
    [format!("OK {}\r\n", text.len() + 4).as_bytes(), b"---\n", text, b"\r\n"].concat()
}

/// The names of tubes.
pub(super) fn list<'n>(names: impl IntoIterator<Item = &'n [u8]>) -> Vec<u8> {
    figures(&names.into_iter().map(|name| [b"- ", name, b"\n"].concat()).collect::<Vec<_>>().concat())
}

fn lines<'f>(fields: impl IntoIterator<Item = (&'f str, String)>) -> Vec<u8> {
    let lines = fields.into_iter().map(|(name, value)| format!("{name}: {value}\n"));
    figures(lines.collect::<String>().as_bytes())
}

/// What the server adds to what is known of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobPlace {
    /// The number of the file of the log that it stands in.
    pub(super) file: u64,
    /// The length of leases of jobs that have none of their own, in milliseconds.
    pub(super) lease: u64,
}

/// The figures of a job.
pub(super) fn stats_job(id: u64, tube: &[u8], job: &ShownJob, of_server: JobPlace) -> Vec<u8> {
    let state = match job.state {
        JobState::Ready => "ready",
        JobState::Delayed => "delayed",
        JobState::Reserved => "reserved",
        JobState::Buried => "buried",
    };
    lines([
        ("id", id.to_string()),
        ("tube", String::from_utf8_lossy(tube).into_owned()),
        ("state", state.to_owned()),
        ("pri", job.class.to_string()),
        ("age", (job.age / 1_000).to_string()),
        ("delay", job.delay.to_string()),
        ("ttr", (job.lease.unwrap_or(of_server.lease) / 1_000).to_string()),
        ("time-left", (job.left / 1_000).to_string()),
        ("file", of_server.file.to_string()),
        ("reserves", job.reserves.to_string()),
        ("timeouts", job.timeouts.to_string()),
        ("releases", job.releases.to_string()),
        ("buries", job.buries.to_string()),
        ("kicks", job.kicks.to_string()),
    ])
}

/// The figures of a tube: as a queue, if it is one, and as far as connections refer to it.
pub(super) fn stats_tube(name: &[u8], queue: Option<&ListedQueue>, tube: TubeFigures, pauses: TubePauses) -> Vec<u8> {
    let counts = queue.map(|queue| queue.counts).unwrap_or_default();
    let left = queue.and_then(|queue| queue.paused).unwrap_or(0) / 1_000;
    let pause = if left > 0 { u64::from(pauses.seconds).max(left) } else { 0 };
    lines([
        ("name", String::from_utf8_lossy(name).into_owned()),
        ("current-jobs-urgent", queue.map_or(0, |queue| queue.urgent).to_string()),
        ("current-jobs-ready", counts.ready.to_string()),
        ("current-jobs-reserved", counts.leased.to_string()),
        ("current-jobs-delayed", counts.delayed.to_string()),
        ("current-jobs-buried", (counts.dead + counts.unread).to_string()),
        ("total-jobs", counts.ever.added.to_string()),
        ("current-using", tube.used.to_string()),
        ("current-watching", tube.watched.to_string()),
        ("current-waiting", tube.waited.to_string()),
        ("cmd-delete", (counts.ever.done + counts.ever.removed).to_string()),
        ("cmd-pause-tube", pauses.count.to_string()),
        ("pause", pause.to_string()),
        ("pause-time-left", left.to_string()),
    ])
}

/// What `stats` says of all jobs, and of the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JobSums {
    pub(super) urgent: u64,
    pub(super) ready: u64,
    pub(super) reserved: u64,
    pub(super) delayed: u64,
    pub(super) buried: u64,
    pub(super) timeouts: u64,
    pub(super) total: u64,
    pub(super) tubes: u64,
}

/// What `stats` says of connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionSums {
    pub(super) now: u64,
    pub(super) producers: u64,
    pub(super) workers: u64,
    pub(super) waiting: u64,
    pub(super) ever: u64,
}

/// What `stats` says of the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogFigures {
    pub(super) oldest: u64,
    pub(super) current: u64,
    pub(super) written: u64,
    pub(super) migrated: u64,
    pub(super) segment_bytes: u64,
}

/// The figures of the server.
pub(super) struct ServerFigures {
    pub(super) jobs: JobSums,
    pub(super) commands: [u64; Verb::LISTED],
    pub(super) connections: ConnectionSums,
    pub(super) log: LogFigures,
    pub(super) job_bytes_max: u32,
    pub(super) uptime: u64,
    /// Microseconds of the process in its own code and in the system.
    pub(super) cpu: [u64; 2],
    pub(super) is_draining: bool,
    /// Of this life of the server.
    pub(super) id: u64,
    pub(super) host: String,
    pub(super) os: String,
    pub(super) platform: String,
}

/// The figures of the server.
pub(super) fn stats(figures: &ServerFigures) -> Vec<u8> {
    let ServerFigures { jobs, commands, connections, log, .. } = figures;
    let [user, system] = figures.cpu.map(|micros| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000));
    let of_jobs = [
        ("current-jobs-urgent", jobs.urgent),
        ("current-jobs-ready", jobs.ready),
        ("current-jobs-reserved", jobs.reserved),
        ("current-jobs-delayed", jobs.delayed),
        ("current-jobs-buried", jobs.buried),
    ];
    let of_connections = [
        ("job-timeouts", jobs.timeouts),
        ("total-jobs", jobs.total),
        ("max-job-size", u64::from(figures.job_bytes_max)),
        ("current-tubes", jobs.tubes),
        ("current-connections", connections.now),
        ("current-producers", connections.producers),
        ("current-workers", connections.workers),
        ("current-waiting", connections.waiting),
        ("total-connections", connections.ever),
        ("pid", u64::from(std::process::id())),
    ];
    let of_log = [
        ("uptime", figures.uptime),
        ("binlog-oldest-index", log.oldest),
        ("binlog-current-index", log.current),
        ("binlog-records-migrated", log.migrated),
        ("binlog-records-written", log.written),
        ("binlog-max-size", log.segment_bytes),
    ];
    let words: Vec<String> = Verb::ALL.iter().map(|verb| format!("cmd-{}", verb.word())).collect();
    let of_commands = words.iter().map(String::as_str).zip(commands.iter().copied());
    let number = |(name, number): (_, u64)| (name, number.to_string());
    let text = of_jobs.into_iter().chain(of_commands).chain(of_connections).map(number);
    let text = text.chain([
        ("version", format!("\"spindle {}\"", env!("CARGO_PKG_VERSION"))),
        ("rusage-utime", user),
        ("rusage-stime", system),
    ]);
    let text = text.chain(of_log.into_iter().map(number));
    lines(text.chain([
        ("draining", figures.is_draining.to_string()),
        ("id", format!("{:016x}", figures.id)),
        ("hostname", figures.host.clone()),
        ("os", figures.os.clone()),
        ("platform", figures.platform.clone()),
    ]))
}
