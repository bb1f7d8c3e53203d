//! Settings in the environment: `SPINDLE_` and the name of the flag in capitals, with `_` for `-`.
//!
//! A variable that is empty counts as not set. Other variables that begin with `SPINDLE_` are ignored: a cluster may
//! set some for a service of that name.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Arg, Command};

use super::super::CommandError;
use super::super::flags::endpoint::OFF;
use super::{Setting, SettingOrigin, alone, check, is_optional, is_switch, settings_of, shape};

/// Looks up an environment variable.
type Lookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// The environment variable of a flag.
pub(super) fn variable(flag: &str) -> String {
    format!("SPINDLE_{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// The value of a flag's variable, if it is set.
pub(super) fn value(flag: &str, lookup: &Lookup<'_>) -> Option<OsString> {
    lookup(&variable(flag)).filter(|value| !value.is_empty())
}

/// Reads the variables of all flags that were not typed.
///
/// # Errors
/// [`CommandError::Usage`] that names the variable.
pub(super) fn read(
    command: &Command,
    lookup: &Lookup<'_>,
    is_typed: &dyn Fn(&Arg) -> bool,
) -> Result<BTreeMap<String, Setting>, CommandError> {
    let mut settings = BTreeMap::new();
    for (flag, arg) in settings_of(command).filter(|(_, arg)| !is_typed(arg)) {
        let Some(value) = value(flag, lookup) else { continue };
        let name = variable(flag);
        let wrong =
            |why: &str| CommandError::Usage(format!("{name} in the environment: {why}; it takes {}", shape(arg)));
        let value = value.to_str().ok_or_else(|| wrong("it is no text"))?;
        let value = match value {
            "1" if is_switch(arg) => "true",
            "0" if is_switch(arg) => "false",
            other => other,
        };
        let value = match value {
            "true" if is_optional(arg) => alone(arg, flag),
            "false" if is_optional(arg) => check(arg, flag, OFF),
            other => check(arg, flag, other),
        };
        let value = value.map_err(|why| wrong(&why))?;
        let origin = SettingOrigin::Variable(name);
        settings.insert(flag.to_owned(), Setting { values: vec![value], origin });
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::super::declared;
    use super::*;

    fn found(variables: &[(&str, &str)], typed: &str) -> Result<Vec<(String, Vec<String>)>, String> {
        let lookup = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let settings = read(&declared(), &lookup, &|arg| arg.get_long() == Some(typed));
        match settings {
            Ok(settings) => Ok(settings.into_iter().map(|(flag, setting)| (flag, setting.values)).collect()),
            Err(CommandError::Usage(why)) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn pair(flag: &str, value: &str) -> (String, Vec<String>) {
        (flag.to_owned(), vec![value.to_owned()])
    }

    #[test]
    fn each_flag_has_a_variable() {
        let variables = [("SPINDLE_MAX_MEMORY", "2G"), ("SPINDLE_REPAIR", "1"), ("SPINDLE_KV", "tcp://h:1")];
        let expected = vec![pair("kv", "tcp://h:1"), pair("max-memory", "2G"), pair("repair", "true")];
        assert_eq!(found(&variables, ""), Ok(expected));
    }

    /// They are so in a file.
    #[test]
    fn a_flag_whose_value_may_be_left_out_is_on_or_off() {
        let variables = [("SPINDLE_TASKS", "true"), ("SPINDLE_JOBS", "true"), ("SPINDLE_ADMIN", "false")];
        let expected =
            vec![pair("admin", "off"), pair("jobs", "127.0.0.1:8080"), pair("tasks", "tcp://127.0.0.1:5557")];
        assert_eq!(found(&variables, ""), Ok(expected));
        assert_eq!(found(&[("SPINDLE_JOBS", "1")], ""), Ok(vec![pair("jobs", "1")]), "a port");
        assert!(found(&[("SPINDLE_KV", "true")], "").is_err());
    }

    #[test]
    fn a_variable_that_is_empty_or_overridden_or_no_flags_is_passed_over() {
        assert_eq!(found(&[("SPINDLE_WORKERS", ""), ("SPINDLE_PORT", "tcp://10.0.0.1:1")], ""), Ok(Vec::new()));
        assert_eq!(found(&[("SPINDLE_WORKERS", "many")], "workers"), Ok(Vec::new()));
    }

    #[test]
    fn a_wrong_value_names_its_variable_and_what_it_takes() {
        let why = found(&[("SPINDLE_WORKERS", "many")], "").unwrap_err();
        assert!(why.contains("SPINDLE_WORKERS in the environment") && why.contains("THREADS"), "{why}");
        let why = found(&[("SPINDLE_REPAIR", "yes")], "").unwrap_err();
        assert!(why.contains("true or false"), "{why}");
    }
}
