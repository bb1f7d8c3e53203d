//! One round: a server, its control clients, its attackers, its end, and the check after it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spindle::clients::rust::events::EventsClient;
use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::AddMode;

use super::connections::{PATIENCE, half_open, idle, stalled, storm, trickle};
use super::control::{Redis, Tables, health};
use super::durable::{Events, Jobs, Tasks};
use super::leaving::{gone, heartbeats, pings};
use super::logins::{Doors, User, add_users, guess};
use super::peers::{frames, greetings, keep_busy, requests, subscriptions};
use super::report::Outcome;
use super::samples::{LARGE, LARGE_BYTES, TABLE, Target};
use super::siege::Siege;
use super::zmtp::{Client, message};
use super::{Face, Way};
use crate::harness::{self, Server};
use crate::lock::Mutex;
use crate::resp_client::RespClient;
use crate::seeded_rng::SeededRng;

/// Long jobs that wait for clients that never read.
const LARGE_JOBS: usize = 32;
/// Threads of an attack that has a round of its own.
const THREADS: usize = 2;

/// The target of an attack, and its kind.
pub(super) struct Round {
    pub(super) face: Face,
    pub(super) ways: Vec<Way>,
    pub(super) lasting: Duration,
    pub(super) seed: u64,
}

/// The control clients' knowledge about durable data.
#[derive(Default)]
struct Books {
    tasks: Mutex<Tasks>,
    jobs: Mutex<Jobs>,
    events: Mutex<Events>,
}

/// A server with everything on, and bounds that an attack can reach.
fn start(face: Face, data: &Path, users: &[&str]) -> Server {
    let frontend = if face == Face::Native { "native" } else { "queue" };
    let any = "tcp://127.0.0.1:*";
    let data = data.to_str().unwrap();
    Server::start(
        &[
            &["--frontend", frontend, "--workers", "2", "--max-value", "128K", "--max-memory", "256M"][..],
            &["--client-bytes-max", "4M", "--publish-hwm", "20000", "--max-tables", "1000"],
            &["--tasks", any, "--terminate", "deny", "--jobs", "0", "--events", "127.0.0.1:0", "--events-queue", any],
            &["--resp", "127.0.0.1:0", "--lockstep", any, "--data", data, "--admin", "127.0.0.1:0"],
            users,
        ]
        .concat(),
    )
}

fn address(endpoint: &str) -> SocketAddr {
    endpoint.strip_prefix("tcp://").unwrap_or(endpoint).parse().unwrap()
}

impl Round {
    pub(super) fn fight(&self) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        let flags = if self.has_users() {
            add_users(&users);
            vec!["--users", users.to_str().unwrap()]
        } else {
            Vec::new()
        };
        let server = start(self.face, folder.path(), &flags);
        let books = Books::default();
        let mut rng = SeededRng(self.seed);
        let siege = Siege::lasting(self.lasting);
        let (peak_mib, status, ending) = self.besiege(server, &mut rng, (&siege, &books));
        let server = start(self.face, folder.path(), &[]);
        books.tasks.lock().check(server.tasks(), &siege, self.face != Face::Tasks);
        books.jobs.lock().check(server.jobs(), &siege);
        books.events.lock().check(address(server.events()), &siege);
        server.stop();
        Outcome {
            attack: self.name(),
            sent: siege.sent.load(Ordering::Relaxed),
            asked: siege.asked.load(Ordering::Relaxed),
            wrong: siege.wrong.load(Ordering::Relaxed),
            longest_gap: siege.longest_gap(),
            peak_mib,
            status,
            ending,
            seed: self.seed,
            reported: siege.reported(),
        }
    }

    fn has_users(&self) -> bool {
        self.ways.iter().any(|way| way.needs_users())
    }

    /// Runs attackers and control clients at once, then ends the server. Returns the peak of memory in MiB, the status,
    /// and the length of the end.
    fn besiege(
        &self,
        server: Server,
        rng: &mut SeededRng,
        (siege, books): (&Siege, &Books),
    ) -> (u64, Option<ExitStatus>, Duration) {
        std::thread::scope(|scope| {
            let admin = server.admin().to_owned();
            if self.has_users() {
                let mut user = User::begin(Doors::of(&server));
                scope.spawn(move || siege.keep_asking("logins", || user.step(siege)));
            } else {
                lay_out(&server);
                let kv = address(server.kv()).to_string();
                let tables = Tables::begin(&kv, server.publish(), SeededRng(rng.next()));
                control(scope, &server, tables, siege, books);
            }
            scope.spawn(move || siege.keep_asking("health", || health(&admin, siege)));
            self.spawn_attackers(scope, &server, rng, siege);
            siege.wait_for_end();
            let peak = peak_mib_of(&server);
            let signalled = Instant::now();
            server.signal(Signal::TERM);
            let status = server.comes_to_its_end(&harness::PATIENCE).then(|| server.wait().0);
            siege.end();
            (peak, status, signalled.elapsed())
        })
    }

    fn spawn_attackers<'s>(
        &self,
        scope: &'s std::thread::Scope<'s, '_>,
        server: &Server,
        rng: &mut SeededRng,
        siege: &'s Siege,
    ) {
        for way in &self.ways {
            for _ in 0..if self.ways.len() == 1 { THREADS } else { 1 } {
                let (way, target, doors) = (*way, self.target(server), Doors::of(server));
                let rng = SeededRng(rng.next());
                scope.spawn(move || attack(way, (&target, &doors), siege, rng));
            }
        }
        if self.face == Face::Publish {
            let kv = address(server.kv()).to_string();
            scope.spawn(move || keep_busy(&kv, siege));
        }
    }

    fn target(&self, server: &Server) -> Target {
        let endpoint = match self.face {
            Face::Queue | Face::Native => server.kv(),
            Face::Publish => server.publish(),
            Face::Lockstep => server.lockstep(),
            Face::Resp => server.resp(),
            Face::Tasks => server.tasks(),
            Face::Events => server.events(),
            Face::Jobs => server.jobs(),
            Face::Admin => server.admin(),
        };
        Target { face: self.face, address: address(endpoint) }
    }

    fn name(&self) -> String {
        match self.ways[..] {
            [way] => format!("{:?}: {way:?}", self.face),
            _ => format!("{:?}: {} ways at once", self.face, self.ways.len()),
        }
    }
}

fn attack(way: Way, (target, doors): (&Target, &Doors), siege: &Siege, rng: SeededRng) {
    match way {
        Way::Greetings => greetings(target, siege, rng),
        Way::Frames => frames(target, siege, rng),
        Way::Requests => requests(target, siege, rng),
        Way::Connects => storm(target, siege, rng),
        Way::Stalled => stalled(target, siege, rng),
        Way::Trickle => trickle(target, siege, rng),
        Way::HalfOpen => half_open(target, siege, rng),
        Way::Idle => idle(target, siege),
        Way::Subscriptions => subscriptions(target, siege, rng),
        Way::Pings => pings(target, siege, rng),
        Way::Heartbeats => heartbeats(target, siege, rng),
        Way::Gone => gone(target, siege, rng),
        Way::Guesses | Way::LockOut => guess(doors, way == Way::LockOut, siege, rng),
    }
}

/// Puts long values where attackers ask for them.
fn lay_out(server: &Server) {
    let long = vec![b'l'; LARGE_BYTES];
    let mut client = Client::meet(&address(server.kv()).to_string(), b"DEALER").unwrap();
    for request in [&[&[0], TABLE][..], &[&[2], TABLE, LARGE, &long]] {
        client.send(&message(request)).unwrap();
        assert_eq!(client.receive().unwrap(), [[1]]);
    }
    let mut redis = RespClient::connect(server.resp());
    assert_eq!(redis.call(&[b"SET", LARGE, &long]), b"+OK\r\n");
    TasksClient::connect(server.tasks()).unwrap().add(LARGE, &long, AddMode::Tail).unwrap();
    let jobs = JobsClient::new(server.jobs());
    for _ in 0..LARGE_JOBS {
        jobs.add(LARGE, &long).unwrap();
    }
}

/// Makes a client of each protocol keep asking.
fn control<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    server: &Server,
    mut tables: Tables,
    siege: &'s Siege,
    books: &'s Books,
) {
    let mut tasks = TasksClient::connect(server.tasks()).unwrap();
    tasks.set_timeout(PATIENCE);
    let mut jobs = JobsClient::new(server.jobs());
    jobs.set_timeout(PATIENCE);
    let mut events = EventsClient::new(address(server.events()));
    let mut redis = Redis::begin(server);
    scope.spawn(move || siege.keep_asking("redis", || redis.step(siege)));
    scope.spawn(move || siege.keep_asking("tables", || tables.step(siege)));
    scope.spawn(move || siege.keep_asking("tasks", || books.tasks.lock().step(&mut tasks, siege)));
    scope.spawn(move || siege.keep_asking("jobs", || books.jobs.lock().step(&jobs, siege)));
    scope.spawn(move || siege.keep_asking("events", || books.events.lock().step(&mut events, siege)));
}

/// The most bytes that the server has had resident until now.
fn peak_mib_of(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero()));
    let kib = |status: String| {
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    // The status shows a server that has ended by itself.
    status.ok().and_then(kib).map_or(0, |kib| kib >> 10)
}
