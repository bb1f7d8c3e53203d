//! Commands on the connection, transactions, unknown commands, and bytes that are no command.

use super::strings::{counters, strings};
use super::{Command, Maker, keys};
use crate::resp_difference::command::Form;

/// SELECT.
pub(crate) fn select(maker: &mut Maker) -> Vec<Command> {
    vec![Command::new(&["SELECT"]).with(maker.word(&["0", "0", "0", "1", "9", "15", "16", "-1", "abc", "", "01"]))]
}

/// PING, ECHO.
pub(crate) fn pings(maker: &mut Maker) -> Vec<Command> {
    let command = Command::new(&[maker.word(&["PING", "ECHO"])]);
    let is_bare = command.has(0, "PING") && maker.rng.one_in(2);
    vec![if is_bare { command } else { command.with(maker.value()) }]
}

/// HELLO with each version, and its options.
pub(crate) fn hello(maker: &mut Maker) -> Vec<Command> {
    let mut command = Command::new(&["HELLO"]);
    if !maker.rng.one_in(4) {
        command = command.with(maker.word(&["2", "3", "3", "3", "1", "4", "abc", ""]));
        match maker.rng.below(6) {
            0 => command = command.with("SETNAME").with(maker.word(&["name", "with space", ""])),
            1 => command = command.with("AUTH").with(maker.word(&["default", "nobody"])).with("word"),
            2 => command = command.with(maker.word(&["FOO", "AUTH", "SETNAME"])),
            _ => {}
        }
    }
    vec![command]
}

/// CLIENT with its names and its id.
pub(crate) fn clients(maker: &mut Maker) -> Vec<Command> {
    let command = Command::new(&["CLIENT"]);
    let command = match maker.rng.below(10) {
        7..=9 => return vec![kills(maker)],
        0 | 1 => command.with(maker.word(&["GETNAME", "getname"])),
        2 | 3 => command.with("SETNAME").with(maker.word(&["name", "other", "", "with space", "new\nline", "ü"])),
        4 => command.with("ID"),
        5 => command.with(maker.word(&["FOO", "", "REPL"])),
        _ => command,
    };
    vec![command]
}

/// CLIENT KILL in all its forms. None selects a connection, also without some of its arguments.
fn kills(maker: &mut Maker) -> Command {
    const NOWHERE: &str = "1.2.3.4:5";
    let mut kill = Command::new(&["CLIENT", "KILL"]);
    if maker.rng.one_in(4) {
        return if maker.rng.one_in(2) { kill } else { kill.with(maker.word(&[NOWHERE, "x", ""])) };
    }
    for _ in 0..maker.rng.below(3) {
        kill = kill.with(maker.word(&["ID", "type", "ADDR", "laddr", "USER", "skipme", "foo"]));
        kill = kill.with(maker.word(&["0", "x", "999999999", NOWHERE, "pubsub"]));
    }
    if maker.rng.one_in(6) { kill.with("ID") } else { kill.with("ADDR").with(NOWHERE) }
}

/// CLIENT REPLY: some commands without replies, and replies again.
pub(crate) fn reply_modes(maker: &mut Maker) -> Vec<Command> {
    // In MULTI the mode would change in the middle of EXEC's reply.
    let mut commands = vec![Command::new(&["DISCARD"])];
    if maker.rng.one_in(2) {
        commands.push(Command::new(&["CLIENT", "REPLY", "SKIP"]));
        commands.extend(counters(maker));
    } else {
        commands.push(Command::new(&["CLIENT", "REPLY", "OFF"]));
        for _ in 0..maker.rng.below(4) {
            // Nothing that a server may refuse on purpose: the difference would stay unseen.
            commands.extend(counters(maker));
            commands.push(Command::new(&["SET"]).with(maker.key()).with(maker.value()));
        }
    }
    commands.push(Command::new(&["CLIENT", "REPLY", "ON"]));
    if maker.rng.one_in(8) {
        commands.push(Command::new(&["CLIENT", "REPLY", "FOO"]));
    }
    commands
}

/// RESET, QUIT, and bytes that make a server close.
pub(crate) fn closing(maker: &mut Maker) -> Vec<Command> {
    let raw = |bytes: &[u8]| Command { arguments: vec![bytes.to_vec()], form: Form::Raw };
    let command = match maker.rng.below(16) {
        0..=6 => Command::new(&["RESET"]),
        7 | 8 => Command::new(&["QUIT"]),
        9 => raw(b"*1\r\n$-5\r\n"),
        10 => raw(b"*abc\r\n"),
        11 => raw(b"GET \"a\r\n"),
        12 => raw(b"*2\r\n$3\r\nGET\r\n:1\r\n"),
        13 => raw(b"*1\r\n$99999999999\r\n"),
        14 => raw(b"GET 'a'b\r\n"),
        _ => raw(maker.rng.pick(&[&b"\r\n"[..], b"*0\r\n", b"*-1\r\n", b"  ping  \r\n", b"ping\n"])),
    };
    vec![command]
}

/// AUTH while no password is set.
pub(crate) fn auth(maker: &mut Maker) -> Vec<Command> {
    let command = Command::new(&["AUTH"]);
    let command = match maker.rng.below(4) {
        0 => command.with("word"),
        1 => command.with("nobody").with("word"),
        2 => command.with("default").with("word"),
        _ => command,
    };
    vec![command]
}

/// COMMAND, by the shape of its replies.
pub(crate) fn command_shapes(maker: &mut Maker) -> Vec<Command> {
    let command = Command::new(&["COMMAND"]);
    let command = match maker.rng.below(5) {
        0 => command.with("COUNT"),
        1 => command.with("INFO").with(maker.word(&["get", "SET", "mget", "foo", "del", "expire"])),
        2 => command.with("GETKEYS").with("GET").with(maker.key()),
        3 => command.with("GETKEYS").with("MSET").with(maker.key()).with("1").with(maker.key()).with("2"),
        _ => command.with(maker.word(&["FOO", "GETKEYS"])),
    };
    vec![command]
}

/// Names that no command has, with some arguments.
pub(crate) fn unknown(maker: &mut Maker) -> Vec<Command> {
    let name = match maker.rng.below(6) {
        0 => b"foo".to_vec(),
        1 => b"GETT".to_vec(),
        2 => vec![b'x'; 200],
        3 => Vec::new(),
        4 => b"new\r\nline\0".to_vec(),
        _ => b"'quoted'".to_vec(),
    };
    let mut command = Command { arguments: vec![name], form: Form::Array };
    for _ in 0..maker.rng.below(6) {
        command = command.with(maker.value());
    }
    vec![command]
}

/// WATCH and UNWATCH, and the ends of transactions where none began.
pub(crate) fn watches(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(8) {
        0..=4 => {
            let command = Command::new(&["WATCH"]).with(maker.key());
            if maker.rng.one_in(3) { command.with(maker.key()) } else { command }
        }
        5 => Command::new(&["UNWATCH"]),
        6 => Command::new(&["DISCARD"]),
        _ => Command::new(&["EXEC"]),
    };
    vec![command]
}

/// MULTI, some commands, and its end.
pub(crate) fn transaction(maker: &mut Maker) -> Vec<Command> {
    let mut commands = vec![Command::new(&["MULTI"])];
    for _ in 0..maker.rng.below(6) {
        commands.extend(inside(maker));
    }
    commands.push(Command::new(&[if maker.rng.one_in(6) { "DISCARD" } else { "EXEC" }]));
    commands
}

/// Commands for the inside of a transaction.
fn inside(maker: &mut Maker) -> Vec<Command> {
    match maker.rng.below(16) {
        0..=3 => strings(maker),
        4..=6 => counters(maker),
        7 => keys::times(maker),
        8 => keys::names(maker),
        9 => keys::keys(maker),
        10 => keys::all_keys(maker),
        11 => pings(maker),
        12 => select(maker),
        13 => super::channels::publish(maker),
        14 if maker.rng.one_in(3) => unknown(maker),
        14 => super::strings::several(maker),
        _ => watches(maker).into_iter().filter(|command| command.is_any(&["WATCH", "UNWATCH"])).collect(),
    }
}
