//! The state that all connections share, and the figures of the service.
//!
//! This module does not know the exchange with one client (`conversation`).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::command::Verb;
use super::reply::{ConnectionSums, LogFigures, ServerFigures};
use super::room::CountedRooms;
use super::session::{Roles, SessionBounds};
use super::tubes::{TubeUse, Tubes};
use crate::clock::{Clock, Now};
use crate::net::sockets::ListenAddress;
use crate::net::tcp::ClientStream;
use crate::security::Users;
use crate::services::jobs::context::ServiceEnds;
use crate::services::jobs::responder::JobResponder;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::{SlowLog, SlowRequest, Stages};
use crate::tasks::Family;

/// The bytes of the longest body, unless a flag says otherwise.
pub const BODY_BYTES_DEFAULT: u32 = 65_535;

/// Where clients connect.
#[derive(Clone, Debug)]
pub struct BeanstalkListening {
    /// The address to listen at.
    pub address: ListenAddress,
    /// The user that every client of this address is. `None`: each names its own, where users are named.
    pub user: Option<String>,
}

/// The configuration of the frontend.
#[derive(Clone, Debug)]
pub struct BeanstalkConfig {
    /// At least one.
    pub listening: Vec<BeanstalkListening>,
    /// The length of leases of jobs that have none of their own, in milliseconds.
    pub lease: u64,
    /// The bytes of the longest body.
    pub job_bytes_max: u32,
    /// The bytes of a segment of the log, for the figures.
    pub segment_bytes: u64,
    /// Whether jobs are refused.
    pub drain: DrainSwitch,
}

/// Whether jobs are refused, until the server ends. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct DrainSwitch(Arc<AtomicBool>);

impl DrainSwitch {
    /// From now on jobs are refused.
    pub fn drain(&self) {
        // Relaxed: it publishes no data.
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        // Relaxed: as above.
        self.0.load(Ordering::Relaxed)
    }
}

/// A command that was read, for the figures.
pub(super) struct TimedCommand {
    pub(super) verb: Verb,
    pub(super) tube: Rc<[u8]>,
    /// When its last byte was read.
    pub(super) arrived: Now,
}

/// Connections by what they have done.
#[derive(Default)]
struct RoleCounts {
    producers: Cell<u64>,
    workers: Cell<u64>,
    waiting: Cell<u64>,
}

/// The state that all connections share.
pub(super) struct BeanstalkContext {
    pub(super) responder: Rc<JobResponder>,
    pub(super) family: Family,
    pub(super) settings: BeanstalkConfig,
    pub(super) users: Option<Users>,
    pub(super) clock: Clock,
    pub(super) rooms: CountedRooms,
    pub(super) tubes: Tubes,
    /// The tube that is there without a job or a client.
    pub(super) _default: TubeUse,
    pub(super) ends: ServiceEnds,
    pub(super) metrics: Arc<ServiceMetrics>,
    pub(super) slow: Arc<SlowLog>,
    pub(super) life: ServiceLife,
}

/// What is counted in this life of the server.
pub(super) struct ServiceLife {
    id: u64,
    holders: Cell<u64>,
    roles: RoleCounts,
    start_wall_millis: u64,
}

impl ServiceLife {
    pub(super) fn begin(clock: Clock) -> Self {
        let start_wall_millis = clock.start_wall_millis();
        let id = ahash::RandomState::new().hash_one(start_wall_millis);
        Self { id, holders: Cell::new(0), roles: RoleCounts::default(), start_wall_millis }
    }
}

/// A connection waits for a job, until this is dropped.
pub(super) struct Waiting<'s>(&'s Cell<u64>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl BeanstalkContext {
    /// The number of the file of the log that is being written.
    pub(super) fn newest_file(&self) -> u64 {
        self.responder.tasks().metrics().store().space.newest
    }

    /// The token of the next connection.
    pub(super) fn next_holder(&self) -> u64 {
        let number = self.life.holders.get();
        self.life.holders.set(number + 1);
        Family::holder(number)
    }

    /// What holds for the next command.
    pub(super) fn bounds(&self) -> SessionBounds {
        SessionBounds {
            job_bytes_max: self.settings.job_bytes_max,
            lease: self.settings.lease,
            is_draining: self.is_draining(),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.settings.drain.is_on() || self.ends.closing.is_given()
    }

    /// The tube of a queue.
    pub(super) fn tube_name<'n>(&self, queue: &'n [u8]) -> &'n [u8] {
        queue.strip_prefix(self.family.prefix()).unwrap_or(queue)
    }

    // -------------------------------------------------------------------------------------------------------- figures

    /// A session has put or reserved something.
    pub(super) fn note_roles(&self, before: Roles, now: Roles) {
        let RoleCounts { producers, workers, .. } = &self.life.roles;
        producers.set(producers.get() + u64::from(now.is_producer && !before.is_producer));
        workers.set(workers.get() + u64::from(now.is_worker && !before.is_worker));
    }

    /// A session is over.
    pub(super) fn leave(&self, roles: Roles) {
        let RoleCounts { producers, workers, .. } = &self.life.roles;
        producers.set(producers.get() - u64::from(roles.is_producer));
        workers.set(workers.get() - u64::from(roles.is_worker));
    }

    /// A connection waits from now on.
    pub(super) fn waits(&self) -> Waiting<'_> {
        let waiting = &self.life.roles.waiting;
        waiting.set(waiting.get() + 1);
        Waiting(waiting)
    }

    /// A command was read.
    pub(super) fn count(&self, verb: Verb) {
        self.metrics.count(verb.number(), verb == Verb::None);
    }

    pub(super) fn count_in(&self, bytes: usize) {
        self.metrics.bytes_in.set(self.metrics.bytes_in.get() + bytes as u64);
    }

    /// The system has the answers to these commands, so many bytes.
    pub(super) fn count_out(&self, bytes: usize, commands: &mut Vec<TimedCommand>, stream: &ClientStream) {
        self.metrics.bytes_out.set(self.metrics.bytes_out.get() + bytes as u64);
        let now = self.clock.now();
        for TimedCommand { verb, tube, arrived } in commands.drain(..) {
            let nanos = arrived.nanos_until(now);
            self.metrics.record(verb.number(), None, nanos);
            if self.slow.is_slow(nanos) {
                self.slow.add(self.slow_request(verb, &tube, now, nanos, stream));
            }
        }
    }

    fn slow_request(&self, verb: Verb, tube: &Rc<[u8]>, now: Now, nanos: u64, stream: &ClientStream) -> SlowRequest {
        SlowRequest {
            unix_millis: self.life.start_wall_millis + now.millis(),
            nanos,
            stages: Stages { queue: None, execution: None, write: None },
            client: stream.name(),
            protocol: self.metrics.protocol,
            verb: verb.word(),
            table: (**tube).into(),
            request_bytes: 0,
            reply_bytes: 0,
        }
    }

    /// The figures of the server, but for those of the jobs.
    pub(super) fn figures(&self) -> ServerFigures {
        let RoleCounts { producers, workers, waiting } = &self.life.roles;
        let mut commands = [0; Verb::LISTED];
        for (count, verb) in commands.iter_mut().zip(self.metrics.verbs.iter()) {
            *count = verb.requests.get();
        }
        let log = self.responder.tasks().metrics().store();
        let system = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        ServerFigures {
            jobs: Default::default(),
            commands,
            connections: ConnectionSums {
                now: self.metrics.connections.get(),
                producers: producers.get(),
                workers: workers.get(),
                waiting: waiting.get(),
                ever: self.metrics.accepted.get(),
            },
            log: LogFigures {
                oldest: log.space.oldest,
                current: log.space.newest,
                written: log.counters.batches,
                migrated: log.counters.copies,
                segment_bytes: self.settings.segment_bytes,
            },
            job_bytes_max: self.settings.job_bytes_max,
            uptime: self.clock.now().millis() / 1_000,
            cpu: cpu_micros().unwrap_or_default(),
            is_draining: self.is_draining(),
            id: self.life.id,
            host: text(system.nodename()),
            os: text(system.version()),
            platform: text(system.machine()),
        }
    }
}

/// The microseconds of this process in its own code and in the system: `utime` and `stime` of `/proc/self/stat` (proc(5)),
/// which are in hundredths of a second.
fn cpu_micros() -> Option<[u64; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, behind_name) = stat.rsplit_once(") ")?;
    let mut fields = behind_name.split(' ').skip(11);
    let mut micros = || fields.next()?.parse::<u64>().ok().map(|ticks| ticks * 10_000);
    Some([micros()?, micros()?])
}
