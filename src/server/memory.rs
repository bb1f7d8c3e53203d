//! The memory that this process may take: that of the host, or less if a control group limits it.
//!
//! Limits are read as cgroups(7) describes its two versions. Version 2 has `memory.max`, and `memory.high`, above which
//! the system slows a process down. Version 1 has `memory.limit_in_bytes`. They are read for the group of the process
//! and for its ancestors.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::limits::{HELD_BYTES_MAX, JOB_ROOM_BYTES, JOB_ROOM_BYTES_MIN, MEMORY_SLACK_BYTES, REPLY_BYTES_MAX};
use crate::net::budget::{Budget, held_by};
use crate::tables::Tables;

/// Divisor of the memory that the tables leave. The rest of the process may grow by the quotient before it counts
/// against the tables' limit.
const SLACK_SHARE: u64 = 8;
/// Memory for each task that may be there, and for each queue.
const TASK_BYTES: u64 = 1 << 10;
const QUEUE_BYTES: u64 = 8 << 10;
/// At least this part of all memory counts as left by the tables, as a divisor.
const LEAST_LEFT: u64 = 16;

/// Returns a closure that says how much memory the clients take, and the history of the feed. The compactor takes it off
/// the memory of the process. So bytes that may have gone long ago are not counted. An exception are clients over
/// `ipc://` that always have some bytes to read: the system does not report how many they have read.
pub(super) fn of_clients(budgets: Vec<Arc<Budget>>, tables: Tables) -> impl Fn() -> u64 {
    move || {
        let history = tables.feed_metrics().map_or(0, |feed| feed.history_bytes);
        of_buffers(held_by(&budgets) + history)
    }
}

/// The memory of buffers that hold so many bytes. An allocator rounds a buffer up to its size class, and a page of it
/// holds a whole number of them: three of a mebibyte and a little more take 4 MiB.
fn of_buffers(held: u64) -> u64 {
    held.saturating_add(held / 3)
}

/// Turns transparent huge pages off. The system clears a huge page when it is first touched, and in a virtual machine
/// the host may first have to find the memory. That takes 5 ms, while a commit and all clients of the commit wait.
/// Small pages spread that time. Tables are faster with huge pages, so only a server with tasks calls this.
pub(super) fn avoid_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::warn!("huge pages stay in use ({error}): now and then an answer about tasks may take some ms longer");
    }
}

/// The memory that the process may have beyond the tables' memory budget, if the tables may take `max_memory`: a part
/// of the memory that is left then, at most [`MEMORY_SLACK_BYTES`].
pub(super) fn slack(max_memory: u64) -> u64 {
    (available_bytes().saturating_sub(max_memory) / SLACK_SHARE).min(MEMORY_SLACK_BYTES)
}

/// The bytes that each of `frontends` frontends may hold for its clients, if the tables may take `max_memory` of
/// `available` bytes. Together they get three quarters of the memory that is left. Each gets at most
/// [`HELD_BYTES_MAX`], or twice `client_bytes` if that is more.
pub(super) fn held_bytes_max(available: u64, max_memory: u64, frontends: u64, client_bytes: u64) -> u64 {
    let left = left_by_tables(available, max_memory);
    (left / 4 * 3 / frontends.max(1)).min(HELD_BYTES_MAX.max(client_bytes.saturating_mul(2)))
}

/// The bytes of the longest reply about tables: at most [`REPLY_BYTES_MAX`].
pub(super) fn reply_bytes_max(available: u64, max_memory: u64) -> usize {
    usize::try_from(left_by_tables(available, max_memory) / 4).unwrap_or(usize::MAX).min(REPLY_BYTES_MAX)
}

/// The bytes that larger requests for jobs may take together, and answers as many again: at most [`JOB_ROOM_BYTES`].
pub(super) fn job_room_bytes(available: u64, max_memory: u64) -> usize {
    let share = usize::try_from(left_by_tables(available, max_memory) / 8).unwrap_or(usize::MAX);
    share.clamp(JOB_ROOM_BYTES_MIN, JOB_ROOM_BYTES)
}

/// The most tasks where the operator sets no bound, and the most queues. With short keys they take about a third of the
/// `available` memory each, and the values of tasks are on disk.
pub(super) fn of_tasks(available: u64) -> (u64, usize) {
    (available / TASK_BYTES, usize::try_from(available / QUEUE_BYTES).unwrap_or(usize::MAX))
}

/// The bytes that the tables leave of `available` if they may take `max_memory`, or a little in any case.
fn left_by_tables(available: u64, max_memory: u64) -> u64 {
    available.saturating_sub(max_memory).max(available / LEAST_LEFT)
}

/// The anonymous resident memory of this process, files excluded: the line `RssAnon` of `/proc/self/status` (proc(5)).
pub(super) fn own_resident_bytes() -> Option<u64> {
    own_bytes(&fs::read_to_string("/proc/self/status").ok()?)
}

fn own_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// The bytes that this process may take.
#[must_use]
pub fn available_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    let host_bytes = host.totalram.saturating_mul(u64::from(host.mem_unit));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| limit(&fs::read_to_string(file).ok()?));
    limits.fold(host_bytes, u64::min)
}

/// The files that may limit a process. `groups` has one line for each hierarchy: `number:controllers:path`.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, names): (_, &[_]) = if controllers.is_empty() {
            ("/sys/fs/cgroup", &["memory.max", "memory.high"])
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
        } else {
            continue;
        };
        let group = Path::new(root).join(path.trim_start_matches('/'));
        let around = group.ancestors().take_while(|folder| folder.starts_with(root));
        files.extend(around.flat_map(|folder| names.iter().map(|name| folder.join(name))));
    }
    files
}

/// The content of such a file: bytes, or `max`.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(groups: &str) -> Vec<String> {
        limit_files(groups).iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn each_group_around_a_process_may_limit_it() {
        let second =
            ["a/memory.max", "a/memory.high", "memory.max", "memory.high"].map(|file| format!("/sys/fs/cgroup/{file}"));
        assert_eq!(files("0::/a\n"), second);
        let first = ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(files("5:cpu,cpuacct:/x\n4:memory:/a\n1:name=systemd:/\n"), first);
        assert!(files("nonsense").is_empty());
    }

    #[test]
    fn a_limit_is_a_number_or_there_is_none() {
        assert_eq!(limit("1048576\n"), Some(1 << 20));
        assert_eq!(limit("max\n"), None);
    }

    #[test]
    fn what_the_process_has_is_read_and_there_is_some() {
        assert_eq!(own_bytes("VmRSS:\t 9 kB\nRssAnon:\t   2048 kB\nRssFile:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(own_bytes("RssAnon: many\n"), None);
        assert!(own_resident_bytes().is_some_and(|bytes| bytes > 0));
        assert_eq!([of_buffers(0), of_buffers(3 << 20), of_buffers(u64::MAX)], [0, 4 << 20, u64::MAX]);
        assert!(slack(available_bytes()) == 0 && slack(0) <= MEMORY_SLACK_BYTES);
    }

    #[test]
    fn what_frontends_may_hold_fits_beside_the_tables() {
        const MEBIBYTE: u64 = 1 << 20;
        let held = |available: u64, tables: u64, client: u64| {
            held_bytes_max(available * MEBIBYTE, tables * MEBIBYTE, 2, client * MEBIBYTE) / MEBIBYTE
        };
        // A control group of 512 MiB. The tables have 80 % of it.
        assert_eq!(held(512, 410, 64), 38);
        assert_eq!(held(512, 512, 64), 12, "a little in any case");
        assert_eq!(held(64 << 10, 32 << 10, 64), 1 << 10);
        assert_eq!(held(64 << 10, 32 << 10, 2 << 10), 4 << 10, "two clients that may have more");
        for available in [100, 512, 4_096, 1 << 20] {
            assert!(2 * held(available, available / 5 * 4, 1 << 20) <= available / 5);
        }
    }

    /// A control group of 300 MB was full with 600,000 jobs, and the server was killed at each start from then on.
    #[test]
    fn tasks_and_queues_fit_into_the_memory() {
        for available in [300_000_000, 24 << 30] {
            let (tasks, queues) = of_tasks(available);
            // As measured with keys of 8 bytes: 360 bytes for each job, and 3 KiB for each queue.
            assert!(tasks * 360 + (queues as u64) * 3_072 < available / 4 * 3, "{tasks} {queues}");
            assert!(tasks * 4_096 > available, "no fewer than need be: {tasks}");
        }
    }

    /// A gigabyte of a reply, and half of one of jobs, were allowed where a control group has half of that.
    #[test]
    fn a_reply_and_the_room_for_jobs_fit_beside_the_tables() {
        const MEBIBYTE: u64 = 1 << 20;
        let bounds = |available: u64, tables: u64| {
            let (available, tables) = (available * MEBIBYTE, tables * MEBIBYTE);
            (reply_bytes_max(available, tables) >> 20, job_room_bytes(available, tables) >> 20)
        };
        assert_eq!(bounds(512, 410), (25, 12));
        assert_eq!(bounds(512, 512), (8, 4), "a little in any case");
        assert_eq!(bounds(64, 64), (1, 2), "the longest job fits");
        assert_eq!(bounds(64 << 10, 32 << 10), (1 << 10, 256), "no more than that");
        assert_eq!(reply_bytes_max(u64::MAX, 0), REPLY_BYTES_MAX);
    }

    #[test]
    fn there_is_memory() {
        let host = rustix::system::sysinfo();
        assert!((1..=host.totalram.saturating_mul(u64::from(host.mem_unit))).contains(&available_bytes()));
    }
}
