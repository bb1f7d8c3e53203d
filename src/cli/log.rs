//! The filter and the format of the log: warnings and errors, or the filter in `RUST_LOG`.
//!
//! This module does not write lines, and does not handle lines that cannot be written, see `log`.

use std::ffi::OsStr;
use std::str::FromStr;

use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use super::CommandError;
use crate::log::{Lines, may_have_colours, writer};
use crate::threads;

/// The environment variable of the filter.
const VARIABLE: &str = "RUST_LOG";

/// The crates of this program that log. A directive without a level that begins with another word is a misspelt level.
const TARGETS: [&str; 4] = ["spindle", "sqlx", "sqlx_core", "sqlx_mysql"];

/// Begins to log to standard error.
///
/// # Errors
/// [`CommandError::Usage`] if `RUST_LOG` is malformed, [`CommandError::Failed`] if the system starts no more threads.
pub(super) fn begin() -> Result<(), CommandError> {
    let filter = filter(std::env::var_os(VARIABLE).as_deref().unwrap_or_default())?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(may_have_colours());
    // Otherwise the subscriber reports a line that cannot be written on standard error, and panics since that fails
    // too.
    let log = log.log_internal_errors(false).with_writer(|| Lines);
    // This fails only in a program that has set up its own log before. That log stays in use.
    let _kept = log.try_init();
    if let Some(write) = writer() {
        // The thread ends with the process.
        threads::spawn("log", None, write)
            .map_err(|error| CommandError::Failed(format!("the system makes no more threads: {error}")))?;
    }
    Ok(())
}

/// Parses the filter. An empty text means warnings and errors.
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
}
