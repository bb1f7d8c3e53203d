//! The form and the filter of the log: `--log`, and `--log-level` or `RUST_LOG`.
//!
//! ```text
//! --log-level as a flag or SPINDLE_LOG_LEVEL ─► RUST_LOG ─► log-level of the file ─► info       the first that is set
//!                                                           └ read again at SIGHUP
//! ```
//! A level is for the lines of this program. Its parts by others log warnings at most, unless `RUST_LOG` asks for more.
//!
//! This module does not write lines, and does not handle lines that cannot be written, see `log`.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use clap::Args;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use super::CommandError;
use super::flags::word::one_of;
use crate::log::{Lines, may_have_colours, writer};
use crate::threads;

/// The environment variable of the filter.
const VARIABLE: &str = "RUST_LOG";

/// The flag of the level.
pub(super) const LEVEL_FLAG: &str = "log-level";

/// The crates of this program that log. A directive without a level that begins with another word is a misspelt level.
const TARGETS: [&str; 4] = ["spindle", "sqlx", "sqlx_core", "sqlx_mysql"];

/// The levels, from none to all lines.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The level if none is named.
const LEVEL_DEFAULT: LevelFilter = LevelFilter::INFO;

/// The flags of the log, as typed.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct LogFlags {
    /// Form of the log on standard error: lines of text, or an object of JSON on each line
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = one_of(&FORMS, "it is text or json"))]
    log: LogForm,

    /// Least level that is logged: off, error, warn, info, debug or trace [default: as RUST_LOG says, else info]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    log_level: Option<LevelFilter>,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogForm {
    Text,
    Json,
}

/// The words of `--log`.
const FORMS: [(&str, LogForm); 2] = [("text", LogForm::Text), ("json", LogForm::Json)];

/// Parses a level.
///
/// # Errors
/// If there is no such level.
pub(super) fn level(typed: &str) -> Result<LevelFilter, String> {
    let known = LEVELS.contains(&typed).then(|| typed.parse().ok()).flatten();
    known.ok_or_else(|| format!("it is one of {}", LEVELS.join(", ")))
}

impl LogFlags {
    /// Lines of text at the default level, for commands without these flags.
    pub(super) const TEXT: Self = Self { log: LogForm::Text, log_level: None };
}

/// A log that has begun.
pub(super) struct RunningLog {
    /// Changes the filter.
    change: Box<dyn Fn(EnvFilter) + Send>,
    /// Whether the file names the level: no flag and no variable does.
    is_of_file: bool,
}

impl fmt::Debug for RunningLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningLog").field("is_of_file", &self.is_of_file).finish_non_exhaustive()
    }
}

/// Begins to log to standard error. `is_fixed`: the level of the flags is that of a flag or of a variable.
///
/// # Errors
/// [`CommandError::Usage`] if `RUST_LOG` is malformed, [`CommandError::Failed`] if the system starts no more threads.
pub(super) fn begin(flags: LogFlags, is_fixed: bool) -> Result<RunningLog, CommandError> {
    let variable = std::env::var_os(VARIABLE).unwrap_or_default();
    let change = subscribe(flags.log, chosen(flags.log_level, is_fixed, &variable)?);
    if let Some(write) = writer() {
        // The thread ends with the process.
        threads::spawn("log", None, write)
            .map_err(|error| CommandError::Failed(format!("the system makes no more threads: {error}")))?;
    }
    Ok(RunningLog { change, is_of_file: !is_fixed && variable.is_empty() })
}

impl RunningLog {
    /// Takes the level that `again` has read from the file, unless a flag or a variable names it.
    pub(super) fn reread(&self, again: impl FnOnce() -> Option<Result<Option<LevelFilter>, CommandError>>) {
        match again() {
            None => tracing::info!("SIGHUP: the log level stays as it is, without --config"),
            Some(Err(error)) => tracing::warn!("SIGHUP: the log level stays as it is: {}", error.sentence()),
            Some(Ok(_)) if !self.is_of_file => {
                tracing::info!("SIGHUP: the log level stays as it is: a flag or the environment has set it");
            }
            Some(Ok(level)) => {
                let level = level.unwrap_or(LEVEL_DEFAULT);
                (self.change)(from_level(level));
                tracing::info!("SIGHUP: the log level is {level}");
            }
        }
    }
}

/// Begins the log, and returns how to change its filter.
fn subscribe(form: LogForm, filter: EnvFilter) -> Box<dyn Fn(EnvFilter) + Send> {
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(may_have_colours());
    // Otherwise the subscriber reports a line that cannot be written on standard error, and panics since that fails
    // too.
    let log = log.log_internal_errors(false).with_writer(|| Lines);
    // To begin fails only in a program that has set up its own log before. That log stays in use, and the filter of the
    // other one is gone.
    match form {
        LogForm::Text => {
            let log = log.with_filter_reloading();
            let filter = log.reload_handle();
            let _kept = log.try_init();
            Box::new(move |new| drop(filter.reload(new)))
        }
        LogForm::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let filter = log.reload_handle();
            let _kept = log.try_init();
            Box::new(move |new| drop(filter.reload(new)))
        }
    }
}

/// The filter, by the order at the head of this page.
fn chosen(level: Option<LevelFilter>, is_fixed: bool, variable: &OsStr) -> Result<EnvFilter, CommandError> {
    if is_fixed || variable.is_empty() {
        return Ok(from_level(level.unwrap_or(LEVEL_DEFAULT)));
    }
    filter(variable)
}

/// The filter of a level.
fn from_level(level: LevelFilter) -> EnvFilter {
    let others = level.min(LevelFilter::WARN);
    EnvFilter::new(format!("{others},spindle={level}"))
}

/// Parses the filter of `RUST_LOG`.
fn filter(asked: &OsStr) -> Result<EnvFilter, CommandError> {
    let nonsense = |why: &str| {
        let asked = asked.to_string_lossy();
        let help = "write a level (off, error, warn, info, debug, trace), or TARGET=LEVEL, with commas between them";
        CommandError::Usage(format!("{VARIABLE} in the environment, '{asked}': {why}; {help}"))
    };
    let text = asked.to_str().ok_or_else(|| nonsense("it is no text"))?;
    if let Some(unknown) = text.split(',').map(str::trim).find(|directive| !is_known(directive)) {
        return Err(nonsense(&format!("'{unknown}' is no level and nothing here that logs")));
    }
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    builder.parse(text).map_err(|error| nonsense(&error.to_string()))
}

/// Whether a directive is a level, or names a crate of this program. It may still be malformed.
fn is_known(directive: &str) -> bool {
    let word = directive.split(['=', '[', ':']).next().unwrap_or_default();
    word.is_empty() || TARGETS.contains(&word) || (word == directive && LevelFilter::from_str(word).is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn levels_and_targets_are_understood() {
        for good in
            ["", "warn", "INFO", "off", "0", "spindle=debug", "spindle::server", "warn,sqlx=trace", "info, sqlx_core"]
        {
            assert!(filter(OsStr::new(good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_is_wrong_and_what_to_write() {
        for bad in ["wran", "spindle=loud", "=", "debug=", "info=warn", "sqlx=info,nonsense", "spindle==warn"] {
            let Err(CommandError::Usage(said)) = filter(OsStr::new(bad)) else { panic!("{bad}") };
            assert!(said.contains(bad) && said.contains("TARGET=LEVEL"), "{said}");
        }
    }

    #[test]
    fn a_level_is_a_word_and_a_form_too() {
        for word in LEVELS {
            assert_eq!(level(word).unwrap().to_string(), word);
        }
        for bad in ["", "0", "INFO", "loud", "spindle=debug"] {
            assert!(level(bad).is_err(), "{bad}");
        }
        let form = one_of(&FORMS, "there is none");
        assert!(form("text").is_ok() && form("json").is_ok() && form("xml").is_err());
    }

    #[test]
    fn a_flag_is_over_rust_log_and_that_over_the_file() {
        let (debug, rust_log) = (Some(LevelFilter::DEBUG), OsStr::new("error"));
        let text = |level, is_fixed, variable| chosen(level, is_fixed, variable).unwrap().to_string();
        let none = OsStr::new("");
        assert_eq!(text(debug, true, rust_log), text(debug, false, none));
        assert_eq!(text(debug, false, rust_log), "error");
        assert_eq!(text(None, false, rust_log), "error");
        assert_eq!(text(None, false, none), text(Some(LevelFilter::INFO), true, none));
    }

    #[test]
    fn parts_by_others_are_not_louder_than_warnings() {
        for (level, others) in [("trace", "warn"), ("warn", "warn"), ("error", "error"), ("off", "off")] {
            let filter = from_level(level.parse().unwrap()).to_string();
            assert!(filter.contains(&format!("spindle={level}")), "{filter}");
            assert!(filter.split(',').any(|directive| directive == others), "{filter}");
        }
    }
}
