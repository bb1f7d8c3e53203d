//! The conventions of all commands, beyond the declarations of each.

use std::env;
use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

/// The declarations with what holds for each flag: a negative number is a wrong value and not an unknown flag, and a
/// variable that is empty counts as not set.
pub(super) fn teach(command: Command) -> Command {
    // A group of commands without one of them is a mistake, which a line says, and no wish for help.
    let is_group = command.has_subcommands();
    let command = if is_group { command.arg_required_else_help(false) } else { command };
    command.mut_args(taught).mut_subcommands(teach)
}

fn taught(arg: Arg) -> Arg {
    let is_empty = arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
    let arg = if is_empty { arg.env(Resettable::Reset) } else { arg };
    if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg }
}

/// The text with the name of the variable in place of each flag that has its value from there. `command` is built, and
/// has been taught.
pub(super) fn with_variables(text: String, command: &Command, typed: &[OsString]) -> String {
    let innermost = typed
        .iter()
        .fold(command, |command, word| word.to_str().and_then(|word| command.find_subcommand(word)).unwrap_or(command));
    let is_typed = |flag: &str| {
        let flags = typed.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str()?.strip_prefix("--"));
        flags.map(|word| word.split_once('=').map_or(word, |(name, _)| name)).any(|name| name == flag)
    };
    let set = |variable: &&OsStr| env::var_os(variable).is_some();
    innermost.get_arguments().fold(text, |text, arg| match (arg.get_long(), arg.get_env().filter(set)) {
        (Some(flag), Some(variable)) if !is_typed(flag) => {
            text.replace(&format!("'{arg}'"), &variable.to_string_lossy())
        }
        _ => text,
    })
}

/// The text with the words of a person in place of those of Rust's parser of numbers.
pub(super) fn in_plain_words(text: &str) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("invalid digit found in string", "it is no whole number"),
        ("cannot parse integer from empty string", "it is no whole number"),
        ("number too large to fit in target type", "it is too large"),
        ("number too small to fit in target type", "it is too small"),
        ("invalid float literal", "it is no number"),
    ];
    WORDS.into_iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// What the user may have intended, with a space at its end. Empty: clap has no guess.
pub(super) fn advice(error: &Error) -> String {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    match kinds.into_iter().find_map(|kind| error.get(kind)) {
        Some(ContextValue::String(word)) => format!("did you mean {word}? "),
        // The best guess is the last.
        Some(ContextValue::Strings(words)) => {
            words.last().map_or_else(String::new, |word| format!("did you mean {word}? "))
        }
        _ if error.kind() == ErrorKind::UnknownArgument && is_negative(error) => {
            "no time here is negative; write -- before the operands if it is one of them; ".to_owned()
        }
        _ if error.kind() == ErrorKind::UnknownArgument && is_operand(error) => {
            "write -- before the operands if it is one of them; ".to_owned()
        }
        _ => String::new(),
    }
}

/// Whether the unknown flag may be an operand that begins with a dash.
fn is_operand(error: &Error) -> bool {
    let flag = error.get(ContextKind::InvalidArg);
    matches!(flag, Some(ContextValue::String(flag)) if flag.starts_with('-') && !flag.starts_with("--"))
}

/// Whether the unknown flag begins like a negative number.
fn is_negative(error: &Error) -> bool {
    let flag = error.get(ContextKind::InvalidArg);
    let rest = if let Some(ContextValue::String(flag)) = flag { flag.strip_prefix('-') } else { None };
    rest.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// A wrong variable was reported as its flag, which the user had not typed.
    #[test]
    fn a_wrong_value_is_reported_under_the_name_by_which_it_was_given() {
        // Cargo sets the variable to a version.
        let flag = Arg::new("n").long("n").env("CARGO_PKG_VERSION").value_parser(clap::value_parser!(u8));
        let mut command = teach(Command::new("c").subcommand(Command::new("of").arg(flag)));
        command.build();
        let mut complaint = |typed: &[&str]| {
            let typed: Vec<OsString> = typed.iter().map(OsString::from).collect();
            let error = command.try_get_matches_from_mut(&typed).unwrap_err();
            with_variables(error.to_string(), &command, &typed)
        };
        let said = complaint(&["c", "of"]);
        assert!(said.contains("for CARGO_PKG_VERSION") && !said.contains("--n <"), "{said}");
        for typed in [&["c", "of", "--n", "x"][..], &["c", "of", "--n=x"]] {
            let said = complaint(typed);
            assert!(said.contains("for '--n <n>'") && !said.contains("CARGO_PKG"), "{said}");
        }
    }

    /// An empty variable was a wrong value, though a server passes it over.
    #[test]
    fn a_variable_that_is_empty_counts_as_not_set() {
        // Cargo sets some variables that are empty for a package without the field.
        let command = |variable: &'static str| Command::new("c").arg(Arg::new("a").long("a").env(variable));
        let declared =
            |variable| teach(command(variable)).get_arguments().next().is_some_and(|arg| arg.get_env().is_some());
        assert_eq!(env::var_os("CARGO_PKG_VERSION_PRE"), Some("".into()));
        assert!(!declared("CARGO_PKG_VERSION_PRE") && declared("CARGO_PKG_VERSION"));
    }
}
