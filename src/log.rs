//! Standard error: the log lines of the server.
//!
//! ```text
//! a thread ─► put ─► Backlog, bounded ─► the thread `log` ─► standard error
//!              └ full: dropped and counted   └ waits for a slow reader; no other thread does
//! ```
//! A line that cannot be written is dropped and counted. The disk may be full, the reader may have gone or not read, or
//! standard error may be `/dev/full`. The thread that logs continues: it never waits, fails, panics or ends because of a
//! line. A program without a thread `log` writes its lines itself.
//!
//! This module does not select or format lines. See `cli`.

mod backlog;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use backlog::Backlog;

use crate::clock::Now;
use crate::limits::{LOG_LAST_WORDS, WARNING_PAUSE};
use crate::stats::SharedCounter;

/// Lines that could not be written. Added to by any thread that writes a line, read by STATS.
static DROPPED: SharedCounter = SharedCounter::new();
/// Lines that the thread `log` is to write, once that thread exists.
static BACKLOG: Backlog = Backlog::new();

/// Lines that could not be written since the process began.
#[must_use]
pub fn dropped() -> u64 {
    DROPPED.get()
}

/// Whether lines may have colours: on a terminal whose user has not set NO_COLOR (<https://no-color.org>).
#[must_use]
pub fn may_have_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}

/// Writes one line.
///
/// ```
/// spindle::log::say("the disk is nearly full");
/// ```
pub fn say(line: &str) {
    say_line(&format!("spindle: {line}"));
}

/// Writes one line as it is, without the name of the program: for lines that programs read.
pub fn say_line(line: &str) {
    submit(format!("{line}\n").as_bytes());
}

/// The loop of the thread `log`. `None` if the process has no descriptor left for it. From now on other threads leave
/// their lines to it.
#[must_use]
pub fn writer() -> Option<impl FnOnce() + Send + 'static> {
    // A descriptor of its own: the loop would otherwise hold the lock of standard error against other threads.
    let mut out = File::from(io::stderr().as_fd().try_clone_to_owned().ok()?);
    BACKLOG.open();
    Some(move || BACKLOG.write_all(&mut |line| write(&mut out, line)))
}

/// Call this before the process ends. It waits until all lines are written, for [`LOG_LAST_WORDS`] at most.
pub fn finish() {
    BACKLOG.wait_until_written(LOG_LAST_WORDS);
}

/// Gives a line to the thread `log`, or writes it if there is no such thread.
fn submit(line: &[u8]) {
    match BACKLOG.put(line) {
        Some(true) => {}
        Some(false) => DROPPED.add(1),
        None => write(&mut io::stderr(), line),
    }
}

fn write(out: &mut impl Write, line: &[u8]) {
    if out.write_all(line).and_then(|()| out.flush()).is_err() {
        DROPPED.add(1);
    }
}

/// Limits a warning that a client can cause to once in [`WARNING_PAUSE`].
///
/// ```
/// # use spindle::{clock::Now, log::WarningPace};
/// let mut pace = WarningPace::default();
/// assert!(pace.is_time(Now::from_millis(0)));
/// assert!(!pace.is_time(Now::from_millis(9_999)));
/// assert!(pace.is_time(Now::from_millis(10_000)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WarningPace(Option<Now>);

impl WarningPace {
    /// Whether the warning may be written `now`. True counts as written.
    pub fn is_time(&mut self, now: Now) -> bool {
        let is_time = self.0.is_none_or(|last| last.after(WARNING_PAUSE) <= now);
        if is_time {
            self.0 = Some(now);
        }
        is_time
    }
}

/// A writer that accepts each whole line at once, whether or not it can be written.
///
/// ```
/// use std::io::Write;
///
/// assert!(spindle::log::Lines.write_all(b"a line\n").is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lines;

impl Write for Lines {
    /// Accepts `bytes`, which are one line or several.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        submit(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts this many bytes, like a disk that becomes full.
    struct FillingDisk(usize);

    impl Write for FillingDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_no_error() {
        let before = dropped();
        let mut out = FillingDisk(12);
        for line in ["whole\n", "cut off\n", "lost\n"] {
            write(&mut out, line.as_bytes());
        }
        assert_eq!(dropped() - before, 2);
    }
}
