//! A command of the shell that runs under a lease, with a line of its output.
//!
//! ```text
//! sh -c 'CMD' in a process group of its own ─► read until it ends ─► status, and a line of its output
//!     │  standard input: a file in memory        └─► too slow, or the lease is lost ─► killed with all of its group
//!     └─ a beat, again and again: is the lease still held?
//! ```
//! The line is the first one of standard output, or the last one of standard error. The rest of that stream is read and
//! thrown away, so a command that prints without end is not held up. Whatever the command has started in its group is
//! killed when it ends.
//!
//! This module does not know what the command is for.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::clock::Clock;
use crate::threads;

/// Reads of the command's output before its time is checked: a command that writes without end cannot outrun the check.
/// All that a pipe holds when the command ends.
const READS_MAX: usize = 16;

/// What a command is started with.
pub(super) struct CommandStart<'c> {
    /// A command for the shell.
    pub(super) text: String,
    /// Its further arguments.
    pub(super) arguments: Vec<String>,
    /// Further variables.
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// Its standard input.
    pub(super) input: &'c [u8],
    /// The line that is kept.
    pub(super) line: KeptLine,
}

/// How the watch of a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// By itself.
    Status(ExitStatus),
    /// It takes too long.
    TooLong,
    /// Its lease is lost.
    Lost,
}

/// A line of output.
#[derive(Debug)]
pub(super) enum KeptLine {
    /// The first one of standard output, up to so many bytes.
    First(OutputLine),
    /// The last line of standard error, up to so many bytes. Blank ones do not count.
    Last {
        /// The line that has begun.
        begun: OutputLine,
        /// The line before.
        last: Vec<u8>,
    },
}

/// A line, as far as it has come.
#[derive(Debug)]
pub(super) struct OutputLine {
    pub(super) bytes: Vec<u8>,
    pub(super) ended: bool,
    most: usize,
}

impl OutputLine {
    fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), ended: false, most }
    }

    /// Takes bytes up to the end of the line. Returns those behind it, if it has ended.
    fn take<'p>(&mut self, printed: &'p [u8]) -> Option<&'p [u8]> {
        let end = printed.iter().position(|byte| *byte == b'\n');
        let (part, rest) = printed.split_at(end.unwrap_or(printed.len()));
        let room = self.most - self.bytes.len();
        self.bytes.extend(part.iter().take(room));
        self.ended = end.is_some();
        rest.get(1..)
    }
}

impl KeptLine {
    /// The first line of standard output.
    pub(super) fn first(most: usize) -> Self {
        Self::First(OutputLine::new(most))
    }

    /// The last line of standard error.
    pub(super) fn last(most: usize) -> Self {
        Self::Last { begun: OutputLine::new(most), last: Vec::new() }
    }

    fn take(&mut self, mut printed: &[u8]) {
        match self {
            Self::First(line) if line.ended => {}
            Self::First(line) => drop(line.take(printed)),
            Self::Last { begun, last } => {
                while let Some(rest) = begun.take(printed) {
                    let ended = std::mem::replace(begun, OutputLine::new(begun.most)).bytes;
                    if !ended.trim_ascii().is_empty() {
                        *last = ended;
                    }
                    printed = rest;
                }
            }
        }
    }

    /// The bytes of the line.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::First(line) => line.bytes,
            Self::Last { begun, .. } if !begun.bytes.trim_ascii().is_empty() => begun.bytes,
            Self::Last { last, .. } => last,
        }
    }
}

/// A running command. Dropping it kills its process group.
pub(super) struct RunningCommand {
    child: Child,
    /// `None` after the command has closed it.
    output: Option<File>,
    line: KeptLine,
}

impl RunningCommand {
    /// Starts a command.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn start(start: CommandStart<'_>) -> io::Result<Self> {
        let CommandStart { text, arguments, variables, input, line } = start;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &text, "sh"]).args(arguments).envs(variables).process_group(0).stdin(input_of(input)?);
        match line {
            KeptLine::First(_) => command.stdout(Stdio::piped()),
            KeptLine::Last { .. } => command.stderr(Stdio::piped()),
        };
        let mut child = threads::with_all_signals(&mut command).spawn()?;
        let output = child.stdout.take().map(OwnedFd::from).or(child.stderr.take().map(OwnedFd::from));
        // From here on an error ends the command.
        let running = Self { child, output: output.map(File::from), line };
        if let Some(output) = &running.output {
            fcntl_setfl(output, fcntl_getfl(output)? | OFlags::NONBLOCK)?;
        }
        Ok(running)
    }

    /// Reads the output until the command ends, takes longer than `limit`, or `beat` returns `None`. It is called after
    /// `first`, and then after each time that it returns.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn watch(
        &mut self,
        limit: Option<Duration>,
        first: Duration,
        mut beat: impl FnMut() -> Option<Duration>,
    ) -> io::Result<CommandEnd> {
        let (clock, process) = (Clock::start(), pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?);
        let since_start = || Duration::from_nanos(clock.now().nanos());
        let mut next_beat = first;
        loop {
            let mut passed = since_start();
            if limit.is_some_and(|limit| passed >= limit) {
                return Ok(CommandEnd::TooLong);
            }
            if passed >= next_beat {
                let Some(next) = beat() else { return Ok(CommandEnd::Lost) };
                // A beat takes its time, if the server is silent.
                passed = since_start();
                next_beat = passed.saturating_add(next);
            }
            let until = limit.map_or(next_beat, |limit| limit.min(next_beat));
            let sleep = Timespec::try_from(until.saturating_sub(passed)).map_err(io::Error::other)?;
            let mut polled = vec![PollFd::new(&process, PollFlags::IN)];
            polled.extend(self.output.as_ref().map(|output| PollFd::new(output, PollFlags::IN)));
            match poll(&mut polled, Some(&sleep)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ended = polled.first().is_some_and(|process| !process.revents().is_empty());
            drop(polled);
            self.read()?;
            if ended {
                return self.child.wait().map(CommandEnd::Status);
            }
        }
    }

    /// The line that was kept.
    pub(super) fn into_line(mut self) -> KeptLine {
        std::mem::replace(&mut self.line, KeptLine::first(0))
    }

    /// Reads the available output. If the command prints faster than this reads, it returns after [`READS_MAX`] reads,
    /// so that the time is checked meanwhile.
    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4_096];
        for _ in 0..READS_MAX {
            let Some(output) = &mut self.output else { break };
            match output.read(&mut bytes) {
                Ok(0) => self.output = None,
                Ok(length) => self.line.take(bytes.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // An error means that no process of the group is left.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Standard input with these bytes. It is a file in memory, so a command that does not read it holds nobody up.
fn input_of(bytes: &[u8]) -> io::Result<Stdio> {
    if bytes.is_empty() {
        return Ok(Stdio::null());
    }
    let mut file = File::from(memfd_create("spindle-input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(printed: &[&[u8]]) -> Vec<u8> {
        let mut line = KeptLine::last(9);
        printed.iter().for_each(|printed| line.take(printed));
        line.into_bytes()
    }

    #[test]
    fn the_last_line_is_the_last_that_is_not_blank() {
        assert_eq!(last(&[b"one\ntw", b"o\n"]), b"two");
        assert_eq!(last(&[b"one\ntwo\n\n \r\n"]), b"two");
        assert_eq!(last(&[b"one\ntwo"]), b"two", "without an end");
        assert_eq!(last(&[b"one\n", b"", b"  "]), b"one");
        assert_eq!(last(&[b"", b"\n"]), b"");
        assert_eq!(last(&[b"0123456789", b"abc\n"]), b"012345678", "its first bytes");
    }
}
