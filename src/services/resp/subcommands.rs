//! The subcommands of CLIENT, PUBSUB and others: their names and numbers of arguments, and the refusal of others.
//!
//! The handlers carry them out, and look at the rest of the arguments.

use super::answer::{Failure, refused, refused_with};
use super::arguments::{Arguments, lower, shown};
use super::limits::SHOWN_BYTES;

/// A subcommand, and the number of arguments with both names. Negative: at least so many.
struct Subcommand(&'static str, i8);

/// The commands with subcommands.
const WITH_SUBCOMMANDS: [(&str, &[Subcommand]); 11] = [
    ("acl", &[Subcommand("whoami", 2)]),
    (
        "client",
        &[
            Subcommand("getname", 2),
            Subcommand("getredir", 2),
            Subcommand("id", 2),
            Subcommand("info", 2),
            Subcommand("kill", -3),
            Subcommand("list", -2),
            Subcommand("no-evict", 3),
            Subcommand("no-touch", 3),
            Subcommand("reply", 3),
            Subcommand("setinfo", 4),
            Subcommand("setname", 3),
            Subcommand("tracking", -3),
            Subcommand("trackinginfo", 2),
        ],
    ),
    (
        "command",
        &[
            Subcommand("count", 2),
            Subcommand("docs", -2),
            Subcommand("getkeys", -4),
            Subcommand("info", -2),
            Subcommand("list", -2),
        ],
    ),
    ("config", &[Subcommand("get", -3), Subcommand("resetstat", 2), Subcommand("set", -4)]),
    ("latency", &[Subcommand("latest", 2), Subcommand("reset", -2)]),
    ("memory", &[Subcommand("usage", -3)]),
    ("module", &[Subcommand("list", 2)]),
    ("object", &[Subcommand("encoding", 3), Subcommand("refcount", 3)]),
    ("pubsub", &[Subcommand("channels", -2), Subcommand("numpat", 2), Subcommand("numsub", -2)]),
    (
        "script",
        &[
            Subcommand("exists", -3),
            Subcommand("flush", -2),
            Subcommand("help", 2),
            Subcommand("kill", 2),
            Subcommand("load", 3),
        ],
    ),
    ("slowlog", &[Subcommand("get", -2), Subcommand("len", 2), Subcommand("reset", 2)]),
];

/// The name of a command, with that of its subcommand.
///
/// # Errors
/// The refusal of a subcommand that is not there, or that has another number of arguments.
pub(super) fn full_name(command: &'static str, arguments: Arguments<'_>) -> Result<String, Failure> {
    let known = WITH_SUBCOMMANDS.iter().find(|(name, _)| *name == command);
    let ([verb, ..], Some((_, subcommands))) = (arguments.behind(1), known) else { return Ok(command.to_owned()) };
    let verb = lower(verb);
    let found = subcommands.iter().find(|Subcommand(name, _)| *name == verb);
    let Subcommand(name, arity) = found.ok_or_else(|| unknown_subcommand(arguments))?;
    let (count, least) = (arguments.0.len(), usize::from(arity.unsigned_abs()));
    let takes = if *arity < 0 { count >= least } else { count == least };
    if takes { Ok(format!("{command}|{name}")) } else { Err(wrong_number(command, name)) }
}

/// The refusal of a subcommand with too many or too few arguments.
pub(super) fn wrong_number(command: &str, verb: &str) -> Failure {
    refused(format!("ERR wrong number of arguments for '{command}|{verb}' command"))
}

/// The refusal of a subcommand that is not there.
pub(super) fn unknown_subcommand(arguments: Arguments<'_>) -> Failure {
    let verb = arguments.behind(1).first().map(|verb| shown(verb, SHOWN_BYTES)).unwrap_or_default();
    refused_with("ERR unknown subcommand '", verb, &format!("'. Try {} HELP.", arguments.name().to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subcommand_is_known_with_its_number_of_arguments() {
        let name = |arguments: &[&[u8]]| full_name("pubsub", Arguments(arguments));
        assert_eq!(name(&[b"PUBSUB", b"NumSub"]), Ok("pubsub|numsub".to_owned()));
        assert_eq!(name(&[b"PUBSUB", b"numpat", b"a"]), Err(wrong_number("pubsub", "numpat")));
        let unknown = refused("ERR unknown subcommand 'FOO'. Try PUBSUB HELP.");
        assert_eq!(name(&[b"pubsub", b"FOO"]), Err(unknown));
        let keys = full_name("command", Arguments(&[b"COMMAND", b"GETKEYS", b"GET"]));
        assert_eq!(keys, Err(wrong_number("command", "getkeys")), "a command with an argument at least");
        assert_eq!(full_name("get", Arguments(&[b"get", b"a"])), Ok("get".to_owned()));
        assert_eq!(full_name("command", Arguments(&[b"command"])), Ok("command".to_owned()));
    }
}
