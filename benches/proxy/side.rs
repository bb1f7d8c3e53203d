//! A side of the comparison, as a process of its own, and what its threads cost.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough to count in hundredths of a second.
const QUIET_MOMENT: Duration = Duration::from_millis(100);

/// A process that answers requests. It is killed when this is dropped.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    child: Child,
    pub(crate) endpoint: String,
}

impl Side {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut side = Self { name, child, endpoint: String::new() };
        side.read_until_ready();
        side
    }

    fn read_until_ready(&mut self) {
        for line in BufReader::new(self.child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(given) = line.strip_prefix("kv ") {
                given.clone_into(&mut self.endpoint);
            }
            if line == "ready" {
                return;
            }
        }
        panic!("{} ended before it was ready", self.name);
    }

    /// Nanoseconds that each of its threads has run.
    pub(crate) fn usage(&self) -> Usage {
        usage_of(&self.child.id().to_string())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Nanoseconds that threads have run, by their name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage(BTreeMap<String, u64>);

/// Of the process with this directory in `/proc`. Its first thread goes by the name `main`.
pub(crate) fn usage_of(process: &str) -> Usage {
    let process = fs::canonicalize(format!("/proc/{process}")).unwrap();
    let mut usage = BTreeMap::new();
    for task in fs::read_dir(process.join("task")).unwrap() {
        let task = task.unwrap().path();
        let is_first = task.file_name() == process.file_name();
        let name = if is_first { "main".to_owned() } else { fs::read_to_string(task.join("comm")).unwrap() };
        let schedstat = fs::read_to_string(task.join("schedstat")).unwrap();
        let nanos: u64 = schedstat.split_whitespace().next().unwrap().parse().unwrap();
        *usage.entry(name.trim().to_owned()).or_default() += nanos;
    }
    Usage(usage)
}

impl Usage {
    /// Adds what was used between two looks, and says how much that was.
    pub(crate) fn add(&mut self, before: &Self, after: &Self) -> u64 {
        for (name, nanos) in &after.0 {
            let used = nanos - before.0.get(name).unwrap_or(&0);
            *self.0.entry(name.clone()).or_default() += used;
        }
        after.total() - before.total()
    }

    /// Of all threads.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// For a request, of each thread that took at least a hundredth of all.
    pub(crate) fn per_request(&self, requests: u64) -> String {
        let least = self.total() / 100;
        let threads = self.0.iter().filter(|(_, nanos)| **nanos >= least);
        let threads: Vec<_> = threads.map(|(name, nanos)| format!("{name} {}", nanos / requests)).collect();
        threads.join(" + ")
    }
}

/// What all processors of the machine had done at a moment, in nanoseconds.
pub(crate) struct Machine {
    busy: u64,
    idle: u64,
}

impl Machine {
    /// From the first line of proc_stat(5), in hundredths of a second: user, nice, system, idle, waiting, two kinds of
    /// interrupts, stolen.
    pub(crate) fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let fields = stat.lines().next().unwrap().split_whitespace().skip(1).take(8);
        let nanos: Vec<u64> = fields.map(|ticks| ticks.parse::<u64>().unwrap() * 10_000_000).collect();
        let idle = nanos[3] + nanos[4];
        Self { busy: nanos.iter().sum::<u64>() - idle, idle }
    }

    /// Waits, but no longer than this, for a moment in which others take less than a tenth of the machine.
    pub(crate) fn wait_for_quiet(patience: Duration) {
        let start = Instant::now();
        while start.elapsed() < patience {
            let before = Self::now();
            thread::sleep(QUIET_MOMENT);
            if before.percent_of_others(0) < 10 {
                return;
            }
        }
    }

    /// Of the machine since then: what was busy beside these nanoseconds.
    pub(crate) fn percent_of_others(&self, own: u64) -> u64 {
        let now = Self::now();
        let (busy, idle) = (now.busy - self.busy, now.idle - self.idle);
        100 * busy.saturating_sub(own) / (busy + idle).max(1)
    }
}
