//! The names by which the requests of tables are timed. This module reads no clock.

use super::wire::Command;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "kv";
/// The value for no command.
pub(super) const NO_VERB: usize = Command::COUNT;

/// The name of the verb with this number.
pub(crate) fn verb_name(verb: usize) -> &'static str {
    Command::ALL.get(verb).map_or("none", |command| command.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_the_name_of_its_number() {
        for command in Command::ALL {
            assert_eq!(verb_name(usize::from(command.code())), command.name());
        }
        assert_eq!(verb_name(NO_VERB), "none");
    }
}
