//! A command that produces an event's value. Its last argument is the id, and the first line that it prints is the
//! value.
//!
//! ```text
//! sh -c 'CMD "$@"' sh ID ─► first line; the rest is discarded ─► exit 0 ─► value checked
//!                        └─► too slow, or the event's lease is lost ─► killed (`running`)
//! ```
//! This module does not store the value; see `queue.rs` and `database.rs`.

use std::time::Duration;

use super::running::{CommandEnd, CommandStart, KeptLine, OutputLine, RunningCommand};
use crate::limits::EVENT_VALUE_CHARS_MAX;
use crate::services::events::wire::is_value;

/// Bytes of the line that are kept: two more than the longest value has in UTF-8, so that a longer line is refused.
const LINE_BYTES_MAX: usize = 4 * EVENT_VALUE_CHARS_MAX + 2;

/// The command that is run for each event.
#[derive(Clone, Debug)]
pub struct EventCommand {
    /// A command for the shell. The id is appended.
    pub text: String,
    /// The longest time it may take.
    pub limit: Duration,
}

impl EventCommand {
    /// Returns the value of an event, or why there is none. Calls `beat` before the command starts, and then each time
    /// that it has returned. `None`: the event is lost.
    pub(super) fn run(&self, id: u64, mut beat: impl FnMut() -> Option<Duration>) -> Result<String, String> {
        let lost = || "the event is another's meanwhile".to_owned();
        let first = beat().ok_or_else(lost)?;
        let start = CommandStart {
            text: format!("{} \"$@\"", self.text),
            arguments: vec![id.to_string()],
            variables: Vec::new(),
            input: &[],
            line: KeptLine::first(LINE_BYTES_MAX),
        };
        let mut running =
            RunningCommand::start(start).map_err(|error| format!("the command cannot be run: {error}"))?;
        match running.watch(Some(self.limit), first, beat) {
            Ok(CommandEnd::Status(status)) if status.success() => {}
            Ok(CommandEnd::Status(status)) => return Err(format!("the command has ended with {status}")),
            Ok(CommandEnd::TooLong) => {
                return Err(format!("the command has taken longer than {} s", self.limit.as_secs_f64()));
            }
            Ok(CommandEnd::Lost) => return Err(lost()),
            Err(error) => return Err(format!("the command cannot be watched: {error}")),
        }
        match running.into_line() {
            KeptLine::First(line) | KeptLine::Last { begun: line, .. } => value_of(&line),
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn run(text: &str) -> Result<String, String> {
        EventCommand { text: text.to_owned(), limit: LONG }.run(7, || Some(LONG))
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
        assert!(slow.run(7, || Some(LONG)).unwrap_err().contains("longer than 0.02 s"));
        let lost = EventCommand { text: "sleep 600; echo".to_owned(), limit: LONG };
        let mut beats = vec![Duration::from_millis(5)];
        assert!(lost.run(7, || beats.pop()).unwrap_err().contains("another's"));
    }
}
