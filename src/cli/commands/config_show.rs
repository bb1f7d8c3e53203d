//! `spindle config show`: what a server with these flags would run with, and where each setting comes from.
//!
//! ```text
//! workers = 3  # flag
//! max-memory = "2G"  # SPINDLE_MAX_MEMORY
//! publish-hwm = 10  # spindle.toml:4
//! max-disk  …
//! ```
//! The lines are a file for `--config`. A password in a URL is left out.

use std::io::Write;

use clap::{Arg, ArgMatches, Args, Command, Subcommand};
use serde_json::{Map, Value, json};

use super::serve::ServeFlags;
use crate::cli::CommandError;
use crate::cli::config::{SettingOrigin, Settings, innermost, is_list, is_switch, settings_of};
use crate::cli::show::Format;

/// A command about the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the settings that a server would have, and where each comes from; takes the flags of `serve`
    Show(Box<ShowArguments>),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    // Before the flags of the server, whose last heading would hold it otherwise.
    /// Print one line of JSON: an object with the value and the source of each flag
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ServeFlags,
}

/// Prints the settings.
///
/// # Errors
/// [`CommandError::Output`]
pub(crate) fn run(
    command: &ConfigCommand,
    declared: &Command,
    matches: &ArgMatches,
    settings: &Settings,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let ConfigCommand::Show(arguments) = command;
    let (words, flags) = innermost(matches);
    let declared = words.iter().try_fold(declared, |command, word| command.find_subcommand(word));
    let (mut text, mut json) = (String::new(), Map::new());
    for (flag, arg) in declared.into_iter().flat_map(settings_of) {
        let origin = settings.origin(flag);
        let values = values(flags, arg);
        let secret = values.iter().any(|(_, is_whole)| !is_whole);
        let value = value(arg, &values.into_iter().map(|(value, _)| value).collect::<Vec<_>>());
        text.push_str(&line(flag, &value, &origin, secret));
        json.insert(flag.to_owned(), json!({ "value": value, "from": origin.to_string() }));
    }
    Format::of(arguments.json).print(out, &text, &Value::Object(json))
}

/// The values that hold, and whether each is whole, without a password left out.
fn values(flags: &ArgMatches, arg: &Arg) -> Vec<(String, bool)> {
    let raw = flags.get_raw(arg.get_id().as_str()).into_iter().flatten();
    let shown = raw.map(|value| without_password(&value.to_string_lossy()));
    if is_switch(arg) {
        return vec![(flags.get_flag(arg.get_id().as_str()).to_string(), true)];
    }
    shown.collect()
}

/// A URL without its password, and whether it had none. Other values stay as they are.
fn without_password(value: &str) -> (String, bool) {
    let parts = value.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?)));
    match parts.and_then(|(scheme, (user, rest))| Some((scheme, user.split_once(':')?.0, rest))) {
        Some((scheme, user, rest)) => (format!("{scheme}://{user}@{rest}"), false),
        None => (value.to_owned(), true),
    }
}

/// The setting as JSON: an array for a flag that may be given several times, and null for one that is not set.
fn value(arg: &Arg, values: &[String]) -> Value {
    let one = |value: &String| match value.parse::<i64>() {
        Ok(number) if number.to_string() == *value => json!(number),
        _ => json!(value),
    };
    match values {
        [only] if is_switch(arg) => json!(only == "true"),
        values if is_list(arg) => json!(values),
        [] => Value::Null,
        [value, ..] => one(value),
    }
}

/// A line of the file that has this setting.
fn line(flag: &str, value: &Value, origin: &SettingOrigin, secret: bool) -> String {
    let left_out = if secret { ", without its password" } else { "" };
    match value {
        Value::Null => format!("# {flag} is not set\n"),
        Value::Array(values) if values.is_empty() => format!("# {flag} is not set\n"),
        // Strings, arrays, numbers and truth values of JSON are those of TOML.
        value => format!("{flag} = {value}  # {origin}{left_out}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_left_out_wherever_the_url_has_it() {
        for (url, shown) in [
            ("mysql://u:secret@h/d", "mysql://u@h/d"),
            ("mysql://u:sec@ret@h:3306/d", "mysql://u@h:3306/d"),
            ("mysql://:secret@h/d", "mysql://@h/d"),
        ] {
            assert_eq!(without_password(url), (shown.to_owned(), false));
        }
        for whole in ["mysql://u@h:3306/d", "tcp://127.0.0.1:5555", "embedded", "a:b@c"] {
            assert_eq!(without_password(whole), (whole.to_owned(), true));
        }
    }
}
