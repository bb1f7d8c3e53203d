//! How a command ends: its exit status, and the line or the object that says why it has failed.
//!
//! ```text
//! CommandError ─► ExitStatus
//!              └► standard error: "spindle: SENTENCE", or with --json {"error":SENTENCE,"kind":KIND,"status":N}
//! ```
//! Standard output has answers alone, also with `--json`: no reader of a pipe takes an error for an answer.

use std::io;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::show::{escaped, json_line};
use crate::log;

/// The exit status of the program. A script may rely on these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ExitStatus {
    /// The command is done, or help was asked for.
    Done = 0,
    /// The command has failed.
    Failed = 1,
    /// The arguments are wrong.
    Usage = 2,
    /// The table, the element, the task or its lease is not there.
    NotFound = 3,
    /// The element has another version.
    VersionMismatch = 4,
    /// The user may not do this.
    Denied = 5,
    /// The table, the task, the user or the file of a key is there already.
    AlreadyThere = 6,
}

impl ExitStatus {
    /// All of them, in their order.
    const ALL: [Self; 7] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::VersionMismatch,
        Self::Denied,
        Self::AlreadyThere,
    ];

    /// The word in JSON.
    fn kind(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::VersionMismatch => "version_mismatch",
            Self::Denied => "denied",
            Self::AlreadyThere => "already_there",
        }
    }

    /// The meaning, for the help.
    fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Usage => "bad usage",
            Self::NotFound => "not found: the table, the key, the task, its lease, the job, or an empty queue",
            Self::VersionMismatch => "the element has another version",
            Self::Denied => "permission denied",
            Self::AlreadyThere => "already there: the table, the task, the user or the file",
        }
    }

    /// The table at the end of the help.
    pub(super) fn help() -> String {
        let lines = Self::ALL.map(|status| format!("\n  {}  {}", status as u8, status.meaning()));
        format!("Exit status:{}", lines.concat())
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status as u8)
    }
}

/// Why a command has failed.
#[derive(Debug)]
pub enum CommandError {
    /// The arguments are wrong.
    Usage(String),
    /// The command could not be carried out.
    Failed(String),
    /// The table, the element, the task or its lease is not there.
    NotFound(String),
    /// The table, the task, the user or the file of a key is there already.
    AlreadyThere(String),
    /// The element has another version than the given one.
    VersionMismatch {
        /// The sentence.
        what: String,
        /// The version of the element; 0 if it is absent.
        current: u64,
    },
    /// The server refuses this user, or denies it permission.
    Denied(String),
    /// Standard output takes no more bytes.
    Output(io::Error),
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl CommandError {
    /// The exit status of the program.
    fn status(&self) -> ExitStatus {
        match self {
            Self::Failed(_) | Self::Output(_) => ExitStatus::Failed,
            Self::Usage(_) => ExitStatus::Usage,
            Self::NotFound(_) => ExitStatus::NotFound,
            Self::AlreadyThere(_) => ExitStatus::AlreadyThere,
            Self::VersionMismatch { .. } => ExitStatus::VersionMismatch,
            Self::Denied(_) => ExitStatus::Denied,
        }
    }

    /// One line that names the error and the remedy.
    #[must_use]
    pub fn sentence(&self) -> String {
        let text = match self {
            Self::Usage(what)
            | Self::Failed(what)
            | Self::NotFound(what)
            | Self::AlreadyThere(what)
            | Self::Denied(what)
            | Self::VersionMismatch { what, .. } => what,
            Self::Output(error) => &format!("cannot write to standard output: {error}"),
        };
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        escaped(&words, |character| character.escape_unicode().to_string())
    }

    /// The object of an error.
    fn json(&self) -> Value {
        let status = self.status();
        let mut json = json!({ "error": self.sentence(), "kind": status.kind(), "status": status as u8 });
        if let (Self::VersionMismatch { current, .. }, Value::Object(members)) = (self, &mut json) {
            members.insert("current_version".to_owned(), json!(current));
        }
        json
    }

    /// Reports on standard error why the command has failed.
    pub(super) fn report(&self, is_json: bool) -> ExitStatus {
        // If standard error is closed, the exit status still says so. A reader that has gone, such as `head`, has what it
        // wanted.
        if matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            return self.status();
        }
        if is_json {
            log::say_line(&json_line(&self.json()));
        } else {
            log::say(&self.sentence());
        }
        self.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_status() {
        let mismatch = CommandError::VersionMismatch { what: "version\nmismatch".to_owned(), current: 7 };
        let rows = [
            (CommandError::Failed(String::new()), 1, "failed"),
            (CommandError::Output(io::ErrorKind::BrokenPipe.into()), 1, "failed"),
            (CommandError::Usage(String::new()), 2, "usage"),
            (CommandError::NotFound(String::new()), 3, "not_found"),
            (mismatch, 4, "version_mismatch"),
            (CommandError::Denied(String::new()), 5, "denied"),
            (CommandError::AlreadyThere(String::new()), 6, "already_there"),
        ];
        for (error, status, kind) in rows {
            let json = error.json();
            let reported = (json.get("status"), json.get("kind"));
            assert_eq!((error.status() as u8, reported), (status, (Some(&json!(status)), Some(&json!(kind)))));
        }
    }

    #[test]
    fn an_object_has_the_sentence_on_one_line_and_the_version() {
        let mismatch = CommandError::VersionMismatch { what: "another\n  version".to_owned(), current: 7 };
        let expected =
            "{\"current_version\":7,\"error\":\"another version\",\"kind\":\"version_mismatch\",\"status\":4}";
        assert_eq!(mismatch.json().to_string(), expected);
    }

    #[test]
    fn what_a_line_quotes_does_not_steer_the_terminal() {
        let error = CommandError::Failed("no \x1b[2J and no \u{202e}".to_owned());
        assert_eq!(error.sentence(), "no \\u{1b}[2J and no \\u{202e}");
    }

    #[test]
    fn the_help_lists_every_status_at_its_number() {
        for (number, status) in ExitStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, number);
            assert!(ExitStatus::help().contains(&format!("  {number}  {}", status.meaning())));
        }
    }
}
