//! Commands about the connection itself: who the client is, its table, its version of the protocol.

use super::clients;
use crate::resp3::RespVersion;
use crate::security::Denied;
use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, refused, refused_with};
use crate::services::resp::arguments::{Arguments, is, lower, number, shown};
use crate::services::resp::call::{Call, present};
use crate::services::resp::client::{Login, ReplyMode, database_of};
use crate::services::resp::handle::channels;
use crate::services::resp::limits::{CLIENT_NAME_BYTES_MAX, REDIS_VERSION};
use crate::services::resp::subcommands::{unknown_subcommand, wrong_number};
use crate::zmtp::Claim;

/// The user of those who give a password alone, and of all where no users are named.
const DEFAULT_USER: &str = "default";

pub(in super::super) fn ping<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    match arguments.behind(1) {
        [] if call.client.is_restricted() => Ok(pong(b"")),
        [text] if call.client.is_restricted() => Ok(pong(text)),
        [] => Ok(Reply::Simple("PONG")),
        [text] => Ok(Reply::bulk(*text)),
        _ => Err(refused("ERR wrong number of arguments for 'ping' command")),
    }
}

/// The reply to PING of a client that may take a plain one for a message.
fn pong(text: &[u8]) -> Reply<'_> {
    Reply::Array(vec![Reply::string("pong"), Reply::bulk(text)])
}

pub(in super::super) fn echo<'b>(_: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [text] = arguments.exactly()?;
    Ok(Reply::bulk(text))
}

pub(in super::super) fn quit<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    channels::catch_up(call)?;
    call.client.ends = true;
    Ok(OK)
}

/// A browser sends this line of HTTP to whoever listens. No reply tempts it to go on.
pub(in super::super) fn http<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    call.client.ends = true;
    Ok(Reply::Nothing)
}

pub(in super::super) fn reset<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    channels::leave(call)?;
    call.client.reset();
    Ok(Reply::Simple("RESET"))
}

pub(in super::super) fn select<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [name] = arguments.exactly()?;
    if database_of(name).is_none() && present(call.batch.count(name))?.is_none() {
        return Err(refused(match i32::try_from(number(name)?) {
            Ok(_) => "ERR DB index is out of range",
            Err(_) => "ERR value is out of range, value must between -2147483648 and 2147483647",
        }));
    }
    call.client.table = name.into();
    Ok(OK)
}

pub(in super::super) fn auth<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let (name, password) = match *arguments.behind(1) {
        [password] if !call.context.has_users => {
            let _ = password;
            return Err(refused(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        [password] => (DEFAULT_USER.as_bytes(), password),
        [name, password] => (name, password),
        _ => return Err(SYNTAX),
    };
    prove(call, name, password)?;
    Ok(OK)
}

/// Has the password of a user checked. The command comes again when that is done.
fn prove(call: &mut Call<'_, '_>, name: &[u8], password: &[u8]) -> Result<(), Failure> {
    const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";
    if !call.context.has_users {
        return if name == DEFAULT_USER.as_bytes() { Ok(()) } else { Err(refused(WRONG)) };
    }
    match std::mem::take(&mut call.client.login) {
        Login::Decided(Ok(())) => Ok(()),
        Login::Decided(Err(Denied::Busy)) => Err(refused("ERR too many passwords are being checked: try again later")),
        Login::Decided(Err(_)) => Err(refused(WRONG)),
        Login::None | Login::Claimed(_) | Login::Checked => {
            let claim = Claim::Plain { name: name.into(), password: password.into() };
            call.client.login = Login::Claimed(claim);
            Err(Failure::Claims)
        }
    }
}

pub(in super::super) fn hello<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let (version, mut options) = match arguments.behind(1) {
        [] => (call.client.version, &[][..]),
        [version, options @ ..] => (version_of(version)?, options),
    };
    let (mut login, mut name) = (None, None);
    while let Some((option, rest)) = options.split_first() {
        options = match rest {
            [user, password, rest @ ..] if is(option, "auth") => {
                login = Some((*user, *password));
                rest
            }
            [given, rest @ ..] if is(option, "setname") => {
                name = Some(checked_name(given)?);
                rest
            }
            _ => {
                return Err(refused_with("ERR Syntax error in HELLO option '", shown(option, usize::MAX), "'"));
            }
        };
    }
    if let Some((user, password)) = login {
        prove(call, user, password)?;
    } else if call.context.has_users && call.client.user.is_none() {
        return Err(refused(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
             <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    channels::catch_up(call)?;
    let client = &mut *call.client;
    if let Some(name) = name {
        client.names.name = name.to_vec();
    }
    client.version = version;
    let number = if version == RespVersion::Three { 3 } else { 2 };
    let id = i64::try_from(client.place.card.id).unwrap_or(i64::MAX);
    let map = Reply::Map(vec![
        Reply::string("server"),
        Reply::string("redis"),
        Reply::string("version"),
        Reply::string(REDIS_VERSION),
        Reply::string("proto"),
        Reply::Integer(number),
        Reply::string("id"),
        Reply::Integer(id),
        Reply::string("mode"),
        Reply::string("standalone"),
        Reply::string("role"),
        Reply::string("master"),
        Reply::string("modules"),
        Reply::Array(Vec::new()),
    ]);
    Ok(Reply::In(version, Box::new(map)))
}

fn version_of(argument: &[u8]) -> Result<RespVersion, Failure> {
    match number(argument) {
        Err(_) => Err(refused("ERR Protocol version is not an integer or out of range")),
        Ok(2) => Ok(RespVersion::Two),
        Ok(3) => Ok(RespVersion::Three),
        Ok(_) => Err(refused("NOPROTO unsupported protocol version")),
    }
}

/// A name without spaces and ends of lines.
fn checked_name(name: &[u8]) -> Result<&[u8], Failure> {
    check_length(name)?;
    let is_plain = name.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if is_plain {
        Ok(name)
    } else {
        Err(refused("ERR Client names cannot contain spaces, newlines or special characters."))
    }
}

/// Refuses a name that is too long to be kept for each connection.
fn check_length(name: &[u8]) -> Result<(), Failure> {
    if name.len() > CLIENT_NAME_BYTES_MAX {
        return Err(refused(format!("ERR a client has names of at most {CLIENT_NAME_BYTES_MAX} bytes")));
    }
    Ok(())
}

pub(in super::super) fn client<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([verb], rest) = arguments.split()?;
    let verb = lower(verb);
    let client = &mut *call.client;
    match (&*verb, rest) {
        ("id", []) => Ok(Reply::Integer(i64::try_from(client.place.card.id).unwrap_or(i64::MAX))),
        ("info", []) => clients::info(call),
        ("list", filter) => clients::list(call, filter),
        ("kill", selection) => clients::kill(call, selection),
        ("getname", []) => {
            let name = client.names.name.clone();
            Ok(if name.is_empty() { Reply::Null } else { Reply::bulk(name) })
        }
        ("setname", [name]) => {
            client.names.name = checked_name(name)?.to_vec();
            Ok(OK)
        }
        ("setinfo", [field, value]) => set_info(call, field, value),
        ("reply", [mode]) => reply_mode(call, mode),
        ("no-evict" | "no-touch", [choice]) if is(choice, "on") || is(choice, "off") => Ok(OK),
        ("no-evict" | "no-touch", [_]) => Err(SYNTAX),
        ("tracking", [choice, ..]) if is(choice, "off") => Ok(OK),
        ("tracking", [choice, ..]) if is(choice, "on") => {
            Err(refused("ERR tracking is not there: subscribe to the keyspace events in its place"))
        }
        ("tracking", [_, ..]) => Err(SYNTAX),
        ("getredir", []) => Ok(Reply::Integer(-1)),
        ("trackinginfo", []) => Ok(Reply::Map(vec![
            Reply::string("flags"),
            Reply::Set(vec![Reply::string("off")]),
            Reply::string("redirect"),
            Reply::Integer(-1),
            Reply::string("prefixes"),
            Reply::Array(Vec::new()),
        ])),
        (known, _) if CLIENT_VERBS.contains(&known) => Err(wrong_number("client", known)),
        _ => Err(unknown_subcommand(arguments)),
    }
}

const CLIENT_VERBS: [&str; 11] = [
    "id",
    "info",
    "getname",
    "setname",
    "setinfo",
    "reply",
    "no-evict",
    "no-touch",
    "tracking",
    "getredir",
    "trackinginfo",
];

fn set_info<'b>(call: &'b mut Call<'_, '_>, field: &[u8], value: &'b [u8]) -> Answer<'b> {
    let names = &mut call.client.names;
    let (place, what) = match &*lower(field) {
        "lib-name" => (&mut names.library, "lib-name"),
        "lib-ver" => (&mut names.library_version, "lib-ver"),
        _ => {
            return Err(refused_with("ERR Unrecognized option '", shown(field, usize::MAX), "'"));
        }
    };
    if !value.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(refused(format!("ERR {what} cannot contain spaces, newlines or special characters.")));
    }
    check_length(value)?;
    *place = value.to_vec();
    Ok(OK)
}

fn reply_mode<'b>(call: &'b mut Call<'_, '_>, mode: &[u8]) -> Answer<'b> {
    let replies = &mut call.client.replies;
    *replies = match &*lower(mode) {
        "on" => ReplyMode::On,
        "off" => ReplyMode::Off,
        "skip" if *replies == ReplyMode::Off => return Ok(Reply::Nothing),
        "skip" => ReplyMode::SkipNext,
        _ => return Err(SYNTAX),
    };
    Ok(OK)
}
