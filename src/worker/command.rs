//! A command that produces an event's value. Its last argument is the id, and the first line that it prints is the
//! value.
//!
//! ```text
//! sh -c 'CMD "$@"' sh ID ─► first line; the rest is discarded ─► exit 0 ─► value checked
//!                        └─► too slow, or the event's lease is lost ─► killed with all processes of its group
//! ```
//! This module does not store the value; see `queue.rs` and `database.rs`.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::clock::Clock;
use crate::limits::EVENT_VALUE_CHARS_MAX;
use crate::services::events::wire::is_value;
use crate::threads;

/// Bytes of the line that are kept: two more than the longest value has in UTF-8, so that a longer line is refused.
const LINE_BYTES_MAX: usize = 4 * EVENT_VALUE_CHARS_MAX + 2;
/// Reads of the command's output before its time is checked: a command that writes without end cannot outrun the check.
const READS_MAX: usize = 16;

/// The command that is run for each event.
#[derive(Clone, Debug)]
pub struct EventCommand {
    /// A command for the shell. The id is appended.
    pub text: String,
    /// The longest time it may take.
    pub limit: Duration,
}

impl EventCommand {
    /// Returns the value of an event, or why there is none. Calls `beat` every `interval`, which returns whether to go
    /// on.
    pub(super) fn run(&self, id: u64, interval: Duration, beat: impl FnMut() -> bool) -> Result<String, String> {
        let mut running =
            RunningCommand::start(&self.text, id).map_err(|error| format!("the command cannot be run: {error}"))?;
        let ended = running.watch(self.limit, interval, beat);
        let status = match ended {
            Ok(status) => status?,
            Err(error) => return Err(format!("the command cannot be watched: {error}")),
        };
        if !status.success() {
            return Err(format!("the command has ended with {status}"));
        }
        value_of(&running.line)
    }
}

/// The first line, if it is a valid value.
fn value_of(line: &OutputLine) -> Result<String, String> {
    let bytes = line.bytes.strip_suffix(b"\r").filter(|_| line.ended).unwrap_or(&line.bytes);
    match String::from_utf8(bytes.to_vec()) {
        Ok(_) if bytes.is_empty() && !line.ended => Err("the command has printed no line".to_owned()),
        Ok(text) if is_value(bytes) => Ok(text),
        Ok(_) => Err(format!("its value is longer than {EVENT_VALUE_CHARS_MAX} characters")),
        Err(_) if line.bytes.len() >= LINE_BYTES_MAX => {
            Err(format!("its value is longer than {EVENT_VALUE_CHARS_MAX} characters, or is not UTF-8"))
        }
        Err(_) => Err("its value is not UTF-8".to_owned()),
    }
}

/// The first line of the output, up to [`LINE_BYTES_MAX`] bytes.
#[derive(Debug, Default)]
struct OutputLine {
    bytes: Vec<u8>,
    ended: bool,
}

impl OutputLine {
    fn take(&mut self, printed: &[u8]) {
        if self.ended {
            return;
        }
        let mut parts = printed.splitn(2, |byte| *byte == b'\n');
        let room = LINE_BYTES_MAX - self.bytes.len();
        let part = parts.next().unwrap_or_default();
        self.bytes.extend(part.iter().take(room));
        self.ended = parts.next().is_some();
    }
}

/// A running command. Dropping it kills its process group.
struct RunningCommand {
    child: Child,
    /// `None` after the command has closed it.
    output: Option<ChildStdout>,
    line: OutputLine,
}

impl RunningCommand {
    fn start(text: &str, id: u64) -> io::Result<Self> {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("{text} \"$@\""), "sh", &id.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = threads::with_all_signals(&mut command).spawn()?;
        let output = child.stdout.take();
        if let Some(output) = &output {
            fcntl_setfl(output, fcntl_getfl(output)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { child, output, line: OutputLine::default() })
    }

    /// Reads the output until the command ends. The inner error says why it must be killed.
    fn watch(
        &mut self,
        limit: Duration,
        interval: Duration,
        mut beat: impl FnMut() -> bool,
    ) -> io::Result<Result<ExitStatus, String>> {
        let (clock, process) = (Clock::start(), pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?);
        let mut next_beat = interval;
        loop {
            let passed = Duration::from_nanos(clock.now().nanos());
            if passed >= limit {
                return Ok(Err(format!("the command has taken longer than {} s", limit.as_secs_f64())));
            }
            if passed >= next_beat {
                if !beat() {
                    return Ok(Err("the event is another's meanwhile".to_owned()));
                }
                next_beat = passed + interval;
            }
            let sleep = Timespec::try_from(limit.min(next_beat) - passed).map_err(io::Error::other)?;
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
                return self.child.wait().map(Ok);
            }
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn run(text: &str) -> Result<String, String> {
        EventCommand { text: text.to_owned(), limit: LONG }.run(7, LONG, || true)
    }

    #[test]
    fn the_first_line_is_the_value_and_the_id_is_the_last_argument() {
        assert_eq!(run("echo"), Ok("7".to_owned()));
        assert_eq!(run("printf 'a %s\\nb\\n'"), Ok("a 7".to_owned()));
        assert_eq!(run("printf 'no end' #"), Ok("no end".to_owned()));
        assert_eq!(run("echo #"), Ok(String::new()), "an empty line is one");
        assert_eq!(run("printf 'dos\\r\\n' #"), Ok("dos".to_owned()));
        assert_eq!(run("seq 100000 #"), Ok("1".to_owned()), "what follows is read and thrown away");
    }

    #[test]
    fn what_is_no_value_is_refused_and_why() {
        for (text, why) in [
            ("true", "no line"),
            ("exit 3 #", "exit status: 3"),
            ("echo x; false", "exit status: 1"),
            ("printf '\\377' #", "not UTF-8"),
            ("printf '%0256d'", "longer than 255"),
            ("yes | tr -d '\\n' | head -c 100000 #", "longer than 255"),
        ] {
            let refused = run(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_with_what_it_has_started() {
        let slow = EventCommand { text: "sleep 600; echo".to_owned(), limit: Duration::from_millis(20) };
        assert!(slow.run(7, LONG, || true).unwrap_err().contains("longer than 0.02 s"));
        let lost = EventCommand { text: "sleep 600; echo".to_owned(), limit: LONG };
        assert!(lost.run(7, Duration::from_millis(5), || false).unwrap_err().contains("another's"));
    }
}
