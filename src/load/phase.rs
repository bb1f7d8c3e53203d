//! The course of a run: it opens the connections, stores the keys, and runs one phase after the other with reports
//! meanwhile.
//!
//! Each phase has threads of its own, which take the connections over and give them back.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::connection::LoadConnection;
use super::dialect::Protocol;
use super::driver::{Driver, DriverConfig, Pacing, Time};
use super::log::IntervalLog;
use super::record::{IntervalCounts, PhaseReport, Recorder, Second};
use super::source::RequestSource;
use super::{Error, Plan};
use crate::clock::{Clock, Now};
use crate::threads;

/// Period of the progress reports.
const TICK: Duration = Duration::from_millis(100);
/// Requests that a connection has outstanding while keys are stored.
const FILLING_DEPTH: usize = 64;

/// Receives the progress of a run.
pub trait Observer {
    /// A part of the run begins, and is expected to take `steps` steps.
    fn begins(&mut self, what: &str, steps: u64);
    /// `step` steps are done.
    fn reaches(&mut self, step: u64);
    /// One more second has been measured.
    fn second(&mut self, second: &Second);
    /// A phase is over.
    fn ends(&mut self, report: &PhaseReport);
}

/// Carries the plan out. Returns the reports of its phases, in order. Once `stop` is set it sends no more requests, and
/// returns the reports of what was measured until then.
///
/// # Errors
/// [`Error`].
pub fn run(plan: &Plan, observer: &mut dyn Observer, stop: &Arc<AtomicBool>) -> Result<Vec<PhaseReport>, Error> {
    plan.server.protocol.knows(plan.work.mix.verbs())?;
    let clock = Clock::start();
    let mut crew = LoadThreads::gather(plan, clock)?;
    if plan.prefill {
        crew = fill(plan, crew, observer, stop)?;
    }
    let mut log = plan.hdr.as_deref().map(IntervalLog::create).transpose()?;
    let rates: Vec<Option<f64>> =
        if plan.rates.is_empty() { vec![None] } else { plan.rates.iter().copied().map(Some).collect() };
    let mut reports = Vec::new();
    for rate in rates {
        // Relaxed, here and below: the flag publishes no other data.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (log, measured, total) = (log.as_mut(), plan.duration, IntervalCounts::new());
        let mut phase = Phase { plan, clock, rate, log, seconds: Vec::new(), total, stop, measured };
        crew = phase.run(crew, observer)?;
        let course = phase.seconds;
        let report = PhaseReport { course, ..PhaseReport::of(&phase.total, rate, phase.measured.as_secs_f64()) };
        observer.ends(&report);
        reports.push(report);
    }
    Ok(reports)
}

/// The drivers of the threads, and their recorders.
struct LoadThreads {
    drivers: Vec<Driver>,
    recorders: Vec<Arc<Recorder>>,
}

impl LoadThreads {
    /// Opens the connections, spread evenly over the threads, and creates the table.
    fn gather(plan: &Plan, clock: Clock) -> Result<Self, Error> {
        let mut connections = Vec::with_capacity(plan.connections);
        for _ in 0..plan.connections {
            connections.push(LoadConnection::open(&plan.server)?);
        }
        if let (Protocol::Kv, Some(first)) = (plan.server.protocol, connections.first_mut()) {
            first.create_table(&plan.server.table)?;
        }
        let mut crew = Self { drivers: Vec::new(), recorders: Vec::new() };
        let threads = plan.threads.clamp(1, plan.connections.max(1));
        for thread in (1..=threads).rev() {
            let share = connections.split_off(connections.len() - connections.len() / thread);
            let recorder = Arc::new(Recorder::new());
            crew.drivers.push(Driver::new(plan, clock, share, Arc::clone(&recorder))?);
            crew.recorders.push(recorder);
        }
        Ok(crew)
    }

    fn take(&self) -> IntervalCounts {
        let mut all = IntervalCounts::new();
        self.recorders.iter().for_each(|recorder| all.add(&recorder.take()));
        all
    }

    /// Runs each driver with its order in a thread of its own, and calls `tick` meanwhile.
    fn work(
        mut self,
        orders: impl Fn(usize) -> DriverConfig,
        mut tick: impl FnMut(&Self) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let (sender, receiver) = channel();
        let count = self.drivers.len();
        for (number, driver) in self.drivers.drain(..).enumerate() {
            start(number, driver, orders(number), sender.clone())?;
        }
        drop(sender);
        let mut drivers: Vec<(usize, Driver)> = Vec::with_capacity(count);
        while drivers.len() < count {
            if let Some((number, driver)) = returned(&receiver)? {
                drivers.push((number, driver));
            }
            tick(&self)?;
        }
        drivers.sort_unstable_by_key(|(number, _)| *number);
        self.drivers = drivers.into_iter().map(|(_, driver)| driver).collect();
        Ok(self)
    }
}

type PhaseOutcome = Result<(usize, Driver), Error>;

fn start(number: usize, mut driver: Driver, order: DriverConfig, sender: Sender<PhaseOutcome>) -> Result<(), Error> {
    let work = move || {
        let done = driver.run(order);
        // The receiver is gone if another thread has failed.
        let _gone = sender.send(done.map(|()| (number, driver)));
    };
    let started = threads::spawn(&format!("load-{number}"), None, work);
    started.map(drop).map_err(|error| Error::System { what: "a thread", error })
}

/// A driver that has come back within a tick, if any.
fn returned(receiver: &Receiver<PhaseOutcome>) -> Result<Option<(usize, Driver)>, Error> {
    match receiver.recv_timeout(TICK) {
        Ok(outcome) => outcome.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => unreachable!("a thread that panics ends the process"),
    }
}

/// Stores every key once.
fn fill(
    plan: &Plan,
    crew: LoadThreads,
    observer: &mut dyn Observer,
    stop: &Arc<AtomicBool>,
) -> Result<LoadThreads, Error> {
    let threads = u32::try_from(crew.drivers.len()).unwrap_or(1);
    observer.begins("storing keys", u64::from(plan.work.keys));
    let keys = plan.work.keys;
    let order = |number: usize| DriverConfig {
        source: RequestSource::filling(&plan.work, share(keys, u32::try_from(number).unwrap_or(0), threads)),
        pace: Pacing::Closed,
        time: Time { warm_up: Duration::ZERO, measured: None },
        depth: FILLING_DEPTH,
        stop: Arc::clone(stop),
    };
    let mut stored = IntervalCounts::new();
    let crew = crew.work(order, |crew| {
        stored.add(&crew.take());
        observer.reaches(stored.answers());
        Ok(())
    })?;
    stored.add(&crew.take());
    match stored.reasons().first() {
        Some((reason, count)) => Err(Error::Refused {
            address: plan.server.address.clone(),
            why: format!("{count} of {keys} keys could not be stored: {reason}"),
        }),
        None => Ok(crew),
    }
}

/// The part of the keys that thread `number` of `threads` stores.
fn share(keys: u32, number: u32, threads: u32) -> Range<u32> {
    let edge = |number: u32| u32::try_from(u64::from(keys) * u64::from(number) / u64::from(threads)).unwrap_or(keys);
    edge(number)..edge(number + 1)
}

fn seconds_between(first: Now, second: Now) -> f64 {
    first.time_until(second).as_secs_f64()
}

/// A running phase.
struct Phase<'p> {
    plan: &'p Plan,
    clock: Clock,
    rate: Option<f64>,
    log: Option<&'p mut IntervalLog>,
    seconds: Vec<Second>,
    total: IntervalCounts,
    /// Set when the run is to end.
    stop: &'p Arc<AtomicBool>,
    /// How long the phase is measured: less than planned if the run ends early.
    measured: Duration,
}

impl Phase<'_> {
    fn run(&mut self, crew: LoadThreads, observer: &mut dyn Observer) -> Result<LoadThreads, Error> {
        let (plan, rate, clock) = (self.plan, self.rate, self.clock);
        let whole = plan.warm_up + plan.duration;
        observer.begins(&title(rate, plan.depth), u64::try_from(whole.as_millis()).unwrap_or(u64::MAX));
        let threads = crew.drivers.len();
        let order = |number| DriverConfig {
            source: RequestSource::mixed(&plan.work, number),
            pace: pace(rate, number, threads),
            time: Time { warm_up: plan.warm_up, measured: Some(plan.duration) },
            depth: plan.depth,
            stop: Arc::clone(self.stop),
        };
        let start = clock.now();
        let warm = start.after(plan.warm_up);
        let mut taken_until = warm;
        let crew = crew.work(order, |crew| {
            let now = clock.now();
            observer.reaches(start.nanos_until(now) / 1_000_000);
            if seconds_between(taken_until, now.max(taken_until)) >= 1.0 {
                self.take(crew, warm, taken_until, now, observer)?;
                taken_until = now;
            }
            Ok(())
        })?;
        let end = clock.now();
        self.take(&crew, warm, taken_until, end, observer)?;
        if self.stop.load(Ordering::Relaxed) {
            self.measured = warm.time_until(end.max(warm)).min(plan.duration);
        }
        Ok(crew)
    }

    /// Takes the counts since `since`.
    fn take(
        &mut self,
        crew: &LoadThreads,
        warm: Now,
        since: Now,
        now: Now,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let counts = crew.take();
        let length = seconds_between(since, now.max(since));
        if let Some(log) = &mut self.log {
            log.write(&counts, length)?;
        }
        self.total.add(&counts);
        // A short rest at the end of a phase is no second of its own.
        if length >= 0.5 {
            let second = Second::of(&counts, seconds_between(warm, now.max(warm)), length);
            observer.second(&second);
            self.seconds.push(second);
        }
        Ok(())
    }
}

/// The title of a phase.
fn title(rate: Option<f64>, depth: usize) -> String {
    match rate {
        None => format!("closed loop, depth {depth}"),
        Some(rate) => format!("open loop, {rate} requests/s"),
    }
}

/// The pace of one thread. Threads share the rate, and their requests are due in turn.
#[expect(clippy::cast_precision_loss, reason = "numbers of threads")]
fn pace(rate: Option<f64>, number: usize, threads: usize) -> Pacing {
    match rate {
        None => Pacing::Closed,
        Some(rate) => {
            let interval = 1e9 * threads as f64 / rate;
            Pacing::Open { interval, first: interval * number as f64 / threads as f64 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_keys_without_gaps() {
        for (keys, threads) in [(10, 3), (1, 4), (u32::MAX, 7)] {
            let mut next = 0;
            for number in 0..threads {
                let share = share(keys, number, threads);
                assert_eq!(share.start, next);
                next = share.end;
            }
            assert_eq!(next, keys);
        }
    }
}
