//! Lines that wait for the thread that writes them: a bounded number.
//!
//! Only that thread waits for a slow reader. This module does not know the content of a line, or its destination.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::LOG_BYTES_MAX;
use crate::lock::{Condvar, Mutex, MutexGuard};

/// WaitingLines on their way to the writing thread.
#[derive(Debug)]
pub(super) struct Backlog {
    lines: Mutex<WaitingLines>,
    /// Notified when a line was added.
    came: Condvar,
    /// Notified when all lines are written.
    written: Condvar,
}

/// Locked to add or take a line, never while a line is being written.
#[derive(Debug)]
struct WaitingLines {
    waiting: VecDeque<Box<[u8]>>,
    /// Bytes of the waiting lines, and of the line that is being written.
    bytes: usize,
    /// The writing thread runs, or will run.
    is_open: bool,
}

impl Backlog {
    pub(super) const fn new() -> Self {
        let lines = WaitingLines { waiting: VecDeque::new(), bytes: 0, is_open: false };
        Self { lines: Mutex::new(lines), came: Condvar::new(), written: Condvar::new() }
    }

    /// Makes lines wait here from now on: a thread will write them.
    pub(super) fn open(&self) {
        self.lines().is_open = true;
    }

    /// Adds a line. `Some(false)`: there is no room for it. `None`: there is no thread to write it.
    pub(super) fn put(&self, line: &[u8]) -> Option<bool> {
        let mut lines = self.lines();
        if !lines.is_open {
            return None;
        }
        if lines.bytes + line.len() > LOG_BYTES_MAX {
            return Some(false);
        }
        lines.bytes += line.len();
        lines.waiting.push_back(line.into());
        drop(lines);
        self.came.notify_one();
        Some(true)
    }

    /// The loop of the writing thread: hands each line to `write`, in order.
    pub(super) fn write_all(&self, write: &mut dyn FnMut(&[u8])) -> ! {
        loop {
            self.write_next(write);
        }
    }

    /// Waits for a line, and hands it to `write`.
    fn write_next(&self, write: &mut dyn FnMut(&[u8])) {
        let mut lines = self.lines();
        self.came.wait_while(&mut lines, |lines| lines.waiting.is_empty());
        let Some(line) = lines.waiting.pop_front() else { return };
        drop(lines);
        write(&line);
        let mut lines = self.lines();
        lines.bytes -= line.len();
        if lines.bytes == 0 {
            self.written.notify_all();
        }
    }

    /// Waits until all lines are written, for `most` at most. Returns whether they are.
    pub(super) fn wait_until_written(&self, most: Duration) -> bool {
        let mut lines = self.lines();
        self.written.wait_while_for(&mut lines, |lines| lines.bytes > 0, most);
        lines.bytes == 0
    }

    fn lines(&self) -> MutexGuard<'_, WaitingLines> {
        self.lines.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_in_their_order_and_those_beyond_the_room_are_refused() {
        let backlog = Backlog::new();
        assert_eq!(backlog.put(b"early"), None, "nobody writes");
        backlog.open();
        let long = vec![b'x'; LOG_BYTES_MAX - 4];
        assert_eq!(
            [backlog.put(&long), backlog.put(b"five."), backlog.put(b"four")],
            [Some(true), Some(false), Some(true)]
        );
        assert!(!backlog.wait_until_written(Duration::ZERO));
        let mut written = Vec::new();
        // A line keeps its room until it is written.
        backlog.write_next(&mut |line| {
            written.push(line.len());
            assert_eq!(backlog.put(b"."), Some(false));
        });
        assert_eq!(backlog.put(b"."), Some(true));
        assert!(!backlog.wait_until_written(Duration::ZERO));
        (0..2).for_each(|_| backlog.write_next(&mut |line| written.push(line.len())));
        assert_eq!(written, [long.len(), 4, 1]);
        assert!(backlog.wait_until_written(Duration::ZERO));
    }

    #[test]
    fn a_wait_for_the_end_returns_when_the_last_line_is_written() {
        let backlog = Backlog::new();
        backlog.open();
        assert_eq!(backlog.put(b"last words"), Some(true));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| backlog.wait_until_written(Duration::MAX));
            backlog.write_next(&mut |_| {});
            assert!(waiting.join().is_ok_and(|written| written));
        });
    }
}
