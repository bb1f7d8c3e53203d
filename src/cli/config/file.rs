//! Settings in the file of `--config`: TOML whose keys are the names of the flags.
//!
//! ```text
//! kv = ["tcp://127.0.0.1:5555", "ipc:///run/spindle/kv"]   a flag that may be given several times
//! max-memory = "2G"                                        --max-memory 2G
//! workers = 4                                              a number may stand without quotes
//! tasks = true                                             --tasks; false: off
//! repair = false
//! ```
//! Every key and value is checked, also those that a flag or the environment overrides.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::{Arg, Command};
use toml::de::{DeTable, DeValue};

use super::super::CommandError;
use super::super::flags::endpoint::OFF;
use super::{Setting, SettingOrigin, alone, check, guess, is_list, is_optional, is_switch, settings_of, shape};

/// The longest file, in bytes: some hundred times the length of all settings. A longer one is another file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the file.
///
/// # Errors
/// [`CommandError::Usage`] that names the file, the line and the key.
pub(super) fn read(path: &Path, command: &Command) -> Result<BTreeMap<String, Setting>, CommandError> {
    let text = text(path).map_err(|why| CommandError::Usage(format!("--config {}: {why}", path.display())))?;
    settings(path, &text, command).map_err(CommandError::Usage)
}

fn text(path: &Path) -> Result<String, String> {
    let unreadable = |error| format!("it cannot be read: {error}");
    let mut bytes = Vec::new();
    File::open(path).map_err(unreadable)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

fn settings(path: &Path, text: &str, command: &Command) -> Result<BTreeMap<String, Setting>, String> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let place = |at: usize| format!("{}:{}", path.display(), line(at));
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        format!("{}: this is no TOML: {}", place(at), error.message())
    })?;
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut settings = BTreeMap::new();
    for (key, value) in entries {
        let (name, at) = (&**key.get_ref(), key.span().start);
        let Some((flag, arg)) = settings_of(command).find(|(flag, _)| *flag == name) else {
            return Err(format!("{}: {}", place(at), unknown(command, name)));
        };
        let wrong = |why: String| format!("{}: {flag}: {why}; it takes {}", place(at), shape(arg));
        let values = values(arg, flag, value.get_ref()).map_err(wrong)?;
        let origin = SettingOrigin::File { path: path.to_owned(), line: line(at) };
        settings.insert(flag.to_owned(), Setting { values, origin });
    }
    Ok(settings)
}

fn unknown(command: &Command, name: &str) -> String {
    match guess(command, name) {
        Some(flag) => format!("there is no key {name:?}: did you mean {flag}?"),
        None => format!("there is no key {name:?}: the keys are the flags of `spindle serve`"),
    }
}

/// The values of a flag, as they would be typed.
fn values(arg: &Arg, flag: &str, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Array(values) if is_list(arg) && !values.is_empty() => {
            values.iter().map(|value| scalar(arg, flag, value.get_ref())).collect()
        }
        DeValue::Array(values) if is_list(arg) && values.is_empty() => Err("the array is empty".to_owned()),
        value => scalar(arg, flag, value).map(|value| vec![value]),
    }
}

fn scalar(arg: &Arg, flag: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::Boolean(is_on) if is_switch(arg) => Ok(is_on.to_string()),
        DeValue::Boolean(true) if is_optional(arg) => alone(arg, flag),
        DeValue::Boolean(false) if is_optional(arg) => check(arg, flag, OFF),
        DeValue::String(text) if !is_switch(arg) => check(arg, flag, text),
        DeValue::Integer(number) if !is_switch(arg) => check(arg, flag, &decimal(number.as_str(), number.radix())),
        DeValue::Float(number) if !is_switch(arg) => check(arg, flag, number.as_str()),
        other => Err(format!("it is {}", kind(other))),
    }
}

/// The number in decimal. A number that no flag can have stays as it is.
fn decimal(digits: &str, radix: u32) -> String {
    let number = if radix == 10 { None } else { u64::from_str_radix(digits, radix).ok() };
    number.map_or_else(|| digits.to_owned(), |number| number.to_string())
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::super::declared;
    use super::*;

    fn found(text: &str) -> Result<BTreeMap<String, Setting>, String> {
        settings(Path::new("spindle.toml"), text, &declared())
    }

    #[track_caller]
    fn values(text: &str, flag: &str) -> Vec<String> {
        found(text).unwrap().remove(flag).unwrap().values
    }

    #[track_caller]
    fn refused(text: &str, about: &[&str]) {
        let why = found(text).unwrap_err();
        for about in about {
            assert!(why.contains(about), "{text}: {why}");
        }
    }

    #[test]
    fn values_are_those_of_the_flags() {
        assert_eq!(values("workers = 3", "workers"), ["3"]);
        assert_eq!(values("max-value = 0x1_000", "max-value"), ["4096"]);
        assert_eq!(values("spiderq-version = 1.4", "spiderq-version"), ["1.4"]);
        assert_eq!(values("max-memory = '2G'", "max-memory"), ["2G"]);
        assert_eq!(values("kv = ['tcp://h:1', 'ipc:///a']", "kv"), ["tcp://h:1", "ipc:///a"]);
        assert_eq!(values("kv = 'off'", "kv"), ["off"]);
        assert_eq!(values("repair = true", "repair"), ["true"]);
        assert_eq!(values("tasks = true", "tasks"), ["tcp://127.0.0.1:5557"]);
        assert_eq!(values("jobs = false", "jobs"), ["off"]);
        assert_eq!(values("jobs = 81", "jobs"), ["81"]);
    }

    #[test]
    fn a_setting_knows_its_line() {
        let setting = found("# one\n\nworkers = 3\n").unwrap().remove("workers").unwrap();
        assert_eq!(setting.origin.to_string(), "spindle.toml:3");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_most_similar_one() {
        refused("workers = 1\nworkres = 3", &["spindle.toml:2", "\"workres\"", "did you mean workers?"]);
        refused("max_memory = '2G'", &["did you mean max-memory?"]);
        refused("repare = true", &["did you mean repair?"]);
        refused("config = 'other.toml'", &["\"config\""]);
        refused("help = true", &["\"help\""]);
        refused("[tables]\nmax = 3", &["\"tables\""]);
        refused("'' = 3", &["keys are the flags"]);
    }

    #[test]
    fn a_wrong_value_names_the_file_the_line_the_key_and_what_it_takes() {
        refused("\nworkers = 'many'", &["spindle.toml:2: workers: ", "it takes THREADS as a string or a number"]);
        refused("workers = 0", &["1..=1024"]);
        refused("workers = [1]", &["it is an array"]);
        refused("workers = true", &["it is a truth value"]);
        refused("repair = 'yes'", &["it is a string", "true or false"]);
        refused("data = 1979-05-27", &["it is a date"]);
        refused("kv = []", &["the array is empty"]);
        refused("kv = [true]", &["it is a truth value", "an array of such strings"]);
        refused("tasks = [true]", &["it is an array", "or true or false"]);
        refused("publish = { a = 1 }", &["it is a table"]);
    }

    #[test]
    fn a_file_that_is_no_toml_is_refused_with_the_line() {
        refused("workers = 3\nworkers = 4", &["spindle.toml:2", "this is no TOML"]);
        refused("workers", &["spindle.toml:1"]);
    }

    #[test]
    fn no_error_shows_a_password() {
        let why = found("events-store = 'mysql://u:secret@h:x/d'").unwrap_err();
        assert!(!why.contains("secret"), "{why}");
    }

    #[test]
    fn a_file_that_cannot_be_read_or_is_too_long_is_refused() {
        assert!(text(Path::new("/nowhere/at/all")).unwrap_err().contains("No such file"));
        assert!(text(Path::new("/dev/zero")).unwrap_err().contains("more than"));
    }
}
