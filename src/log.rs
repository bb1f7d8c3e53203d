//! Standard error: where the operator reads what the server has to say.
//!
//! A line that cannot be written (the disk is full, the reader has gone, standard error is `/dev/full`) is dropped and counted. The
//! thread that had something to say goes on: it never fails, panics or ends for a line.
//!
//! What is not here: which lines are written, and how they look (`cli`).

use std::io::{self, IsTerminal, Write};

use crate::clock::Now;
use crate::limits::WARNING_PAUSE;
use crate::stats::SharedCounter;

/// Lines that could not be written. Added to by any thread that writes a line; read by STATS.
static DROPPED: SharedCounter = SharedCounter::new();

/// Lines that could not be written since the process began.
#[must_use]
pub fn dropped() -> u64 {
    DROPPED.get()
}

/// Whether lines may have colours: on a terminal whose user has not said otherwise (<https://no-color.org>).
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
    Lines(io::stderr()).tell(format!("spindle: {line}\n").as_bytes());
}

/// Keeps a warning that a client can cause from being written each time: once in [`WARNING_PAUSE`] is often enough.
///
/// ```
/// # use spindle::{clock::Now, log::Pace};
/// let mut pace = Pace::default();
/// assert!(pace.is_time(Now::from_millis(0)));
/// assert!(!pace.is_time(Now::from_millis(9_999)));
/// assert!(pace.is_time(Now::from_millis(10_000)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace(Option<Now>);

impl Pace {
    /// Whether the warning may be written `now`, which then counts as done.
    pub fn is_time(&mut self, now: Now) -> bool {
        let is_time = self.0.is_none_or(|last| last.after(WARNING_PAUSE) <= now);
        if is_time {
            self.0 = Some(now);
        }
        is_time
    }
}

/// A writer of whole lines that takes everything, whether it can be written or not.
///
/// ```
/// use std::io::Write;
///
/// assert!(spindle::log::Lines(std::io::stderr()).write_all(b"a line\n").is_ok());
/// ```
#[derive(Debug)]
pub struct Lines<W>(pub W);

impl<W: Write> Lines<W> {
    fn tell(&mut self, line: &[u8]) {
        if self.0.write_all(line).and_then(|()| self.0.flush()).is_err() {
            DROPPED.add(1);
        }
    }
}

impl<W: Write> Write for Lines<W> {
    /// Takes `bytes`, which are one line or several.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tell(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// Takes so many bytes, as a disk that becomes full.
    struct Filling(usize);

    impl Write for Filling {
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
        let mut lines = Lines(Filling(12));
        for line in ["whole\n", "cut off\n", "lost\n"] {
            lines.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(dropped() - before, 2);
    }
}
