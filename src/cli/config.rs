//! Settings of `spindle serve` and where each comes from: a flag, the environment, the file of `--config`, or the
//! default.
//!
//! ```text
//! SPINDLE_… ──────► environment ┐
//!                               ├► Settings ─► the default of each flag ─┐
//! --config FILE ──► file ───────┘   (environment over file)              ├► clap ─► ServeFlags
//! argv ──────────────────────────────────────────────────────────────────┘
//! ```
//! Each setting is checked alone by the flag's own parser, so that an error can say where the value stands. This module
//! shows no value of a setting in an error.

mod environment;
mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use tracing_subscriber::filter::LevelFilter;

use super::CommandError;
use super::conventions::in_plain_words;
use super::log::{LEVEL_FLAG, level};

/// The flag that names the file. It cannot stand in the file.
const CONFIG: &str = "config";
/// The commands that take the flags of a server, by their words.
const COMMANDS: [&[&str]; 2] = [&["serve"], &["config", "show"]];
/// Flags of these commands that are no settings of a server.
const NO_SETTINGS: [&str; 3] = [CONFIG, "help", "json"];

/// The source of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettingOrigin {
    /// A flag.
    Flag,
    /// An environment variable.
    Variable(String),
    /// A line of the file.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The program.
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Variable(name) => f.write_str(name),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The values of a flag, as they would be typed, and their source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    values: Vec<String>,
    origin: SettingOrigin,
}

/// The settings below the flags that were typed, by the names of their flags, without dashes at the front.
#[derive(Debug, Default)]
pub(super) struct Settings {
    by_flag: BTreeMap<String, Setting>,
    /// Settings whose flags were typed.
    typed: BTreeSet<String>,
    /// The file, and the declarations of the flags that are its keys.
    file: Option<(PathBuf, Command)>,
}

impl Settings {
    /// The source of a setting.
    pub(super) fn origin(&self, flag: &str) -> SettingOrigin {
        let below = || self.by_flag.get(flag).map_or(SettingOrigin::Default, |setting| setting.origin.clone());
        if self.typed.contains(flag) { SettingOrigin::Flag } else { below() }
    }

    /// Whether a flag or a variable has made a setting, which then holds as long as the process.
    pub(super) fn is_fixed(&self, flag: &str) -> bool {
        matches!(self.origin(flag), SettingOrigin::Flag | SettingOrigin::Variable(_))
    }

    /// The level of the log in the file as it is at this time. `None` without a file.
    ///
    /// # Errors
    /// [`CommandError`] if any setting in the file is wrong.
    pub(super) fn level_again(&self) -> Option<Result<Option<LevelFilter>, CommandError>> {
        let (path, declared) = self.file.as_ref()?;
        Some(file::read(path, declared).map(|settings| {
            let values = settings.get(LEVEL_FLAG).map_or(&[][..], |setting| &setting.values);
            values.first().and_then(|value| level(value).ok())
        }))
    }
}

/// Parses the arguments with all other settings under them. `command` makes the declarations.
///
/// # Errors
/// [`ParseError::Usage`] if clap refuses the arguments, [`ParseError::Setting`] if another setting is wrong.
pub(super) fn parse(command: impl Fn() -> Command, typed: &[OsString]) -> Result<(ArgMatches, Settings), ParseError> {
    let matches = command().try_get_matches_from(typed).map_err(ParseError::Usage)?;
    let (words, flags) = innermost(&matches);
    let Some(words) = COMMANDS.into_iter().find(|known| *known == words) else {
        return Ok((matches, Settings::default()));
    };
    let mut built = command();
    built.build();
    let declared = words.iter().try_fold(&built, |command, word| command.find_subcommand(word));
    let declared = declared.unwrap_or(&built);
    let settings = settings(declared, flags).map_err(ParseError::Setting)?;
    let matches = under(command(), words, &settings).try_get_matches_from(typed).map_err(ParseError::Usage)?;
    Ok((matches, settings))
}

/// The settings below the flags that were typed.
fn settings(declared: &Command, flags: &ArgMatches) -> Result<Settings, CommandError> {
    let lookup = |name: &str| std::env::var_os(name);
    let is_typed = |arg: &Arg| flags.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let environment = environment::read(declared, &lookup, &is_typed)?;
    let typed = flags.get_one::<PathBuf>(CONFIG).cloned();
    let path = typed.or_else(|| environment::value(CONFIG, &lookup).map(PathBuf::from));
    let mut by_flag = path.as_ref().map_or(Ok(BTreeMap::new()), |path| file::read(path, declared))?;
    by_flag.extend(environment);
    let typed = settings_of(declared).filter(|(_, arg)| is_typed(arg)).map(|(flag, _)| flag.to_owned()).collect();
    Ok(Settings { by_flag, typed, file: path.map(|path| (path, declared.clone())) })
}

/// Why the arguments with their settings are refused.
#[derive(Debug)]
pub(super) enum ParseError {
    /// By clap, which also counts a request for help.
    Usage(clap::Error),
    /// A setting of the environment or of the file is wrong.
    Setting(CommandError),
}

/// The words of the innermost command, and its matches.
pub(super) fn innermost(matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let (mut words, mut innermost) = (Vec::new(), matches);
    while let Some((word, matches)) = innermost.subcommand() {
        words.push(word);
        innermost = matches;
    }
    (words, innermost)
}

/// Whether a server with these arguments logs in JSON.
pub(super) fn log_is_json(matches: &ArgMatches) -> bool {
    let form = innermost(matches).1.try_get_raw("log").ok().flatten();
    form.is_some_and(|mut form| form.any(|form| form == "json"))
}

/// The declarations, with the settings as defaults of the flags of this command.
fn under(command: Command, words: &[&str], settings: &Settings) -> Command {
    match words {
        [] => command.mut_args(|arg| match arg.get_long().and_then(|flag| settings.by_flag.get(flag)) {
            Some(setting) => arg.default_values(setting.values.clone()),
            None => arg,
        }),
        [word, rest @ ..] => command.mut_subcommand(word, |inner| under(inner, rest, settings)),
    }
}

/// The flags of a command that are settings, with their names.
pub(super) fn settings_of(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let flags = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    flags.filter(|(flag, _)| !NO_SETTINGS.contains(flag))
}

/// Whether the flag is on or off and takes no value.
pub(super) fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether the flag may be given several times.
pub(super) fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// Whether the flag has a value to take if none is typed.
fn is_optional(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.min_values() == 0 && count.max_values() > 0)
}

/// Checks a value with the parser of its flag.
///
/// # Errors
/// The mistake in the value.
fn check(arg: &Arg, flag: &str, value: &str) -> Result<String, String> {
    if is_switch(arg) {
        let known = matches!(value, "true" | "false");
        return if known { Ok(value.to_owned()) } else { Err("it is no truth value".to_owned()) };
    }
    as_typed(arg, flag, &format!("--{flag}={value}"))
}

/// The value that a flag has if it stands alone.
///
/// # Errors
/// The mistake.
fn alone(arg: &Arg, flag: &str) -> Result<String, String> {
    as_typed(arg, flag, &format!("--{flag}"))
}

fn as_typed(arg: &Arg, flag: &str, typed: &str) -> Result<String, String> {
    let command = Command::new(CONFIG).no_binary_name(true).disable_help_flag(true).arg(arg.clone());
    let matches = command.try_get_matches_from([typed]).map_err(|error| {
        use std::error::Error as _;
        error.source().map_or_else(|| "it is refused".to_owned(), |error| in_plain_words(&error.to_string()))
    })?;
    let id = arg.get_id().as_str();
    let raw = matches.get_raw(id).and_then(|mut values| values.next());
    raw.and_then(|value| value.to_str()).map(str::to_owned).ok_or_else(|| format!("--{flag} takes no value"))
}

/// What may stand in place of a wrong value.
fn shape(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default().first().map_or("VALUE", |name| name.as_str());
    if is_switch(arg) {
        return "true or false".to_owned();
    }
    let further = match () {
        () if is_list(arg) => ", or an array of such strings",
        () if is_optional(arg) => ", or true or false",
        () => " or a number",
    };
    format!("{names} as a string{further}")
}

/// The flag that a mistyped name resembles most: clap's own guess.
fn guess(command: &Command, name: &str) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let known = settings_of(command).map(|(_, arg)| arg.clone());
    let only = Command::new(CONFIG).no_binary_name(true).disable_help_flag(true).args(known);
    let error = only.try_get_matches_from([format!("--{}", name.replace('_', "-"))]).err()?;
    match (error.kind(), error.get(ContextKind::SuggestedArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => Some(flag.trim_start_matches('-').to_owned()),
        // The name is right but for its underscores, and only its value is missing.
        _ => settings_of(command).map(|(flag, _)| flag.to_owned()).find(|flag| *flag == name.replace('_', "-")),
    }
}

/// The declarations of the flags of `serve`.
#[cfg(test)]
fn declared() -> Command {
    let mut command = <super::Arguments as clap::CommandFactory>::command();
    command.build();
    command.find_subcommand("serve").cloned().unwrap_or(command)
}
