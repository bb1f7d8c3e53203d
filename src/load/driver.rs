//! The loop of one thread: it sends requests, waits, reads replies, and records their latencies.
//!
//! ```text
//! turn:  send ─► flush ─► sleep until a reply comes or a request is due ─► read ─► record ─► (closed: send again)
//! ```

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::connection::{LoadConnection, OutstandingRequest};
use super::dialect::{Payloads, ReplyKind};
use super::record::{IntervalCounts, Recorder};
use super::source::{RequestKind, RequestSource};
use super::{Error, Plan, Workload};
use crate::clock::Clock;

/// How long a server may send no reply at all. Servers that pause for a snapshot or a sync take less.
const PATIENCE: Duration = Duration::from_secs(10);
/// Events that one wait returns at most: one system call for as many connections as are usually ready together.
const EVENTS: usize = 256;
/// The timer's number among the connections.
const TIMER: u64 = u64::MAX;

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pacing {
    /// As soon as there is room.
    Closed,
    /// One request for each interval.
    Open {
        /// Nanoseconds between two requests.
        interval: f64,
        /// The time at which the first request is due, in nanoseconds after the start.
        first: f64,
    },
}

/// How long requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    /// The time before the measurement.
    pub(super) warm_up: Duration,
    /// The time of the measurement, after the warm-up. Without it, the run ends with its source.
    pub(super) measured: Option<Duration>,
}

/// The configuration of one run of a driver.
pub(super) struct DriverConfig {
    pub(super) source: RequestSource,
    pub(super) pace: Pacing,
    pub(super) time: Time,
    /// Most requests that each connection may have outstanding.
    pub(super) depth: usize,
    /// Set when no more requests are to be sent.
    pub(super) stop: Arc<AtomicBool>,
}

/// The connections of one thread, and the state to drive them.
pub(super) struct Driver {
    address: String,
    work: Workload,
    /// Most requests that each connection may have outstanding in the current run.
    depth: usize,
    clock: Clock,
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<LoadConnection>,
    words: Payloads,
    /// The version of each key that was seen last. Empty without a CAS in the mix.
    versions: Vec<u64>,
    recorder: Arc<Recorder>,
    /// The connection at which the next search for room begins.
    next_connection: usize,
    outstanding: usize,
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |error| Error::System { what, error: io::Error::from(error) }
}

impl Driver {
    /// Takes the connections over.
    ///
    /// # Errors
    /// [`Error::System`] if there is no descriptor left.
    pub(super) fn new(
        plan: &Plan,
        clock: Clock,
        connections: Vec<LoadConnection>,
        recorder: Arc<Recorder>,
    ) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(system("a timer"))?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN).map_err(system("epoll"))?;
        for (number, connection) in (0..).zip(&connections) {
            epoll::add(&epoll, connection, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
                .map_err(system("epoll"))?;
        }
        let swaps = plan.work.mix.verbs().any(|verb| verb == RequestKind::Cas);
        Ok(Self {
            address: plan.server.address.clone(),
            work: plan.work.clone(),
            depth: 0,
            clock,
            epoll,
            timer,
            connections,
            words: Payloads::new(&plan.work),
            versions: vec![0; if swaps { plan.work.keys as usize } else { 0 }],
            recorder,
            next_connection: 0,
            outstanding: 0,
        })
    }

    /// Sends the requests of the source until it ends, the time is over or it is stopped, and waits for the replies. Requests that are
    /// due in the warm-up are not recorded.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Silent`].
    pub(super) fn run(&mut self, order: DriverConfig) -> Result<(), Error> {
        let DriverConfig { mut source, pace, time, depth, stop } = order;
        self.depth = depth;
        let start = self.clock.now().nanos();
        let warm = start + nanos(time.warm_up);
        let end = time.measured.map_or(u64::MAX, |measured| warm + nanos(measured));
        let mut schedule = Schedule::new(pace, start);
        let mut received = start;
        let mut ready = Vec::with_capacity(EVENTS);
        let mut dry = false;
        loop {
            let now = self.clock.now().nanos();
            // Relaxed: the flag publishes no other data.
            let asking = now < end && !dry && !stop.load(Ordering::Relaxed);
            if asking {
                dry = !self.ask(&mut source, &mut schedule, now, warm)?;
            } else if self.outstanding == 0 {
                return Ok(());
            }
            if self.outstanding > 0 && now - received > nanos(PATIENCE) {
                return Err(Error::Silent { address: self.address.clone(), seconds: PATIENCE.as_secs() });
            }
            let wake = if asking { schedule.wake(end, self.has_room()) } else { now + nanos(PATIENCE) };
            if self.sleep(&mut ready, now, wake.min(now + nanos(Duration::from_secs(1))))? || self.outstanding == 0 {
                received = self.clock.now().nanos();
            }
            self.receive(&ready, warm..end)?;
        }
    }

    /// Sends the due requests. False: the source has no more.
    fn ask(&mut self, source: &mut RequestSource, schedule: &mut Schedule, now: u64, warm: u64) -> Result<bool, Error> {
        let mut asked = Vec::new();
        let mut behind = 0;
        let more = loop {
            let Some(due) = schedule.due(now) else { break true };
            let Some(number) = self.roomy() else { break true };
            let Some(ask) = source.next() else { break false };
            behind = behind.max(now - due);
            let expected = self.versions.get(ask.key as usize).copied().unwrap_or(0);
            if let Some(connection) = self.connections.get_mut(number) {
                connection.ask(ask, due, &self.work, &mut self.words, expected);
            }
            self.outstanding += 1;
            schedule.sent();
            if asked.last() != Some(&number) {
                asked.push(number);
            }
        };
        for number in asked {
            self.flush(number)?;
        }
        if behind > 0 && now >= warm {
            self.recorder.lock().sent_behind(behind);
        }
        Ok(more)
    }

    fn has_room(&self) -> bool {
        self.outstanding < self.depth * self.connections.len()
    }

    /// The next connection in turn with room for a request.
    fn roomy(&mut self) -> Option<usize> {
        let count = self.connections.len();
        let turn = (self.next_connection..count).chain(0..self.next_connection);
        let mut candidates = turn.take(if self.has_room() { count } else { 0 });
        let connections = &self.connections;
        let found =
            candidates.find(|number| connections.get(*number).is_some_and(|one| one.outstanding() < self.depth))?;
        self.next_connection = (found + 1) % count;
        Some(found)
    }

    fn flush(&mut self, number: usize) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(number) else { return Ok(()) };
        if let Some(is_blocked) = connection.flush()? {
            let wanted =
                if is_blocked { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(number as u64);
            epoll::modify(&self.epoll, &*connection, data, wanted).map_err(system("epoll"))?;
        }
        Ok(())
    }

    /// Sleeps until a connection has an event, or until `wake`. Returns whether one has.
    fn sleep(&mut self, ready: &mut Vec<usize>, now: u64, wake: u64) -> Result<bool, Error> {
        ready.clear();
        let wait = wake.saturating_sub(now);
        if wait > 0 {
            let value = timespec(wait);
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).map_err(system("a timer"))?;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        match epoll::wait(&self.epoll, &mut events, (wait == 0).then_some(&zero)) {
            Ok((events, _)) => ready.extend(
                events
                    .iter()
                    .filter(|event| event.data.u64() != TIMER)
                    .filter_map(|event| usize::try_from(event.data.u64()).ok()),
            ),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("epoll")(error)),
        }
        Ok(!ready.is_empty())
    }

    /// Reads the replies that have come, records them, and flushes the bytes written meanwhile.
    fn receive(&mut self, ready: &[usize], measured: Range<u64>) -> Result<(), Error> {
        if ready.is_empty() {
            return Ok(());
        }
        for number in ready {
            if let Some(connection) = self.connections.get_mut(*number) {
                connection.receive()?;
            }
        }
        let now = self.clock.now().nanos();
        let recorder = Arc::clone(&self.recorder);
        let mut counts = recorder.lock();
        for number in ready {
            let Some(connection) = self.connections.get_mut(*number) else { continue };
            let (outstanding, versions) = (&mut self.outstanding, &mut self.versions);
            connection.answers(|waiting, outcome| {
                *outstanding -= 1;
                if waiting.due >= measured.start {
                    note(&mut counts, waiting, outcome, now, now > measured.end);
                }
                learn(versions, waiting, outcome);
            })?;
        }
        drop(counts);
        for number in ready {
            self.flush(*number)?;
        }
        Ok(())
    }
}

fn note(counts: &mut IntervalCounts, waiting: OutstandingRequest, outcome: ReplyKind<'_>, now: u64, late: bool) {
    counts.answered(waiting.verb, now.saturating_sub(waiting.due));
    if late {
        counts.came_late();
    }
    if let ReplyKind::Refused(reason, _) = outcome {
        counts.refused(reason);
    }
}

/// Remembers the version of a key.
fn learn(versions: &mut [u64], waiting: OutstandingRequest, outcome: ReplyKind<'_>) {
    let (ReplyKind::Version(version) | ReplyKind::Refused(_, Some(version))) = outcome else { return };
    if let Some(slot) = versions.get_mut(waiting.key as usize) {
        *slot = version;
    }
}

/// The times at which requests are due.
struct Schedule {
    pace: Pacing,
    start: u64,
    sent: u64,
}

impl Schedule {
    fn new(pace: Pacing, start: u64) -> Self {
        Self { pace, start, sent: 0 }
    }

    /// When the next request is due, or was due.
    fn next(&self, now: u64) -> u64 {
        match self.pace {
            Pacing::Closed => now,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "nanoseconds of hours keep 53 bits"
            )]
            Pacing::Open { interval, first } => self.start + (first + interval * self.sent as f64) as u64,
        }
    }

    /// When the next request was due, if it was.
    fn due(&self, now: u64) -> Option<u64> {
        Some(self.next(now)).filter(|due| *due <= now)
    }

    fn sent(&mut self) {
        self.sent += 1;
    }

    /// When to wake up if no event comes.
    fn wake(&self, end: u64, has_room: bool) -> u64 {
        match self.pace {
            Pacing::Open { .. } if has_room => self.next(0).min(end),
            _ => end,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn timespec(nanos: u64) -> Timespec {
    const NANOS: u64 = 1_000_000_000;
    Timespec {
        tv_sec: i64::try_from(nanos / NANOS).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % NANOS).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_keeps_its_times_however_late_it_is() {
        let mut schedule = Schedule::new(Pacing::Open { interval: 100.5, first: 10.0 }, 1_000);
        assert_eq!(schedule.due(1_009), None);
        let mut dues = Vec::new();
        while let Some(due) = schedule.due(1_500) {
            dues.push(due);
            schedule.sent();
        }
        assert_eq!(dues, [1_010, 1_110, 1_211, 1_311, 1_412]);
        assert_eq!(schedule.wake(u64::MAX, true), 1_512);
        assert_eq!(schedule.wake(1_510, true), 1_510);
        assert_eq!(schedule.wake(9_999, false), 9_999, "without room only an answer helps");
    }

    #[test]
    fn a_closed_loop_is_always_due() {
        let schedule = Schedule::new(Pacing::Closed, 5);
        assert_eq!(schedule.due(77), Some(77));
        assert_eq!(schedule.wake(100, true), 100);
    }
}
