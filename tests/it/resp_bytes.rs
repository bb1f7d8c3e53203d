//! Bytes of Redis clients that were changed on their way: their division into commands, and their replies.
//!
//! `SPINDLE_INPUTS` says how many, and `SPINDLE_SEED` is the first seed: `perf/fuzz` runs millions.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use spindle::messages::Messages;
use spindle::resp3::{CommandBounds, CommandCutter};

use crate::attack::mutation::mutate;
use crate::attack::samples::resp_bytes;
use crate::harness::{Server, real_peer};
use crate::resp_difference::link::Address;
use crate::resp_difference::oracle::{Running, redis, redis_without};
use crate::seeded_rng::SeededRng;
use crate::tampered::each_input;

/// The bounds of Spindle without flags.
const BOUNDS: CommandBounds = CommandBounds { argument_bytes: 16 << 20, bytes: 64 << 20, is_proven: true };
/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(20);
/// Inputs after which the servers begin with no data again.
const INPUTS_OF_A_ROUND: u64 = 100;

/// Some commands, of which some bytes are changed.
fn changed_commands(rng: &mut SeededRng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..=rng.index(4)).flat_map(|_| resp_bytes(rng)).collect();
    let other = resp_bytes(rng);
    mutate(rng, &mut bytes, &other);
    bytes
}

/// The commands that come out of these pieces, and the text of the fault behind them.
fn cut(pieces: &[&[u8]], bounds: &CommandBounds) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut cutter, mut messages) = (CommandCutter::default(), Messages::default());
    let (mut bytes, mut commands) = (Vec::new(), Vec::new());
    for piece in pieces {
        bytes.extend_from_slice(piece);
        let left = cutter.cut(&mut bytes, bounds, usize::MAX, &mut messages);
        commands.extend(messages.iter(&bytes).map(|command| command.frames().map(<[u8]>::to_vec).collect()));
        match left {
            Ok(left) => drop(bytes.drain(..left.rest)),
            Err(fault) => return (commands, Some(fault.to_string())),
        }
    }
    (commands, None)
}

#[test]
fn changed_commands_are_cut_alike_however_they_are_divided() {
    each_input("commands of Redis clients, cut", 50_000, |mut rng| {
        let bytes = changed_commands(&mut rng);
        let bounds = CommandBounds { is_proven: rng.one_in(2), ..BOUNDS };
        let whole = cut(&[&bytes], &bounds);
        let pieces: Vec<&[u8]> = bytes.chunks(rng.pick(&[1, 2, 3, 7, 100])).collect();
        assert_eq!(cut(&pieces, &bounds), whole, "{}", bytes.escape_ascii());
        !whole.0.is_empty()
    });
}

/// All that a server answers to these bytes, on a connection of their own.
fn answer(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close before it has all.
    let _closed_already = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        read => assert!(read.is_ok(), "{read:?}: {}", bytes.escape_ascii()),
    }
    answer
}

/// The names of the commands that a server has, without subcommands.
fn names(socket: &Path) -> BTreeSet<String> {
    let answer = String::from_utf8(answer(socket, b"COMMAND LIST\r\n")).unwrap();
    let is_name = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase()) && !line.contains('|');
    answer.lines().filter(is_name).map(str::to_owned).collect()
}

fn path_of(redis: &Running) -> &Path {
    let Address::Unix(path) = &redis.address else { unreachable!("the oracle has a Unix socket") };
    path
}

/// A greeting without what differs between two servers: their names, versions and numbers of connections.
fn without_names(answer: Vec<u8>) -> Vec<u8> {
    let greets = answer.windows(8).any(|part| part == b"$6\r\nserv");
    if greets { Vec::new() } else { answer }
}

#[test]
fn changed_commands_are_answered_as_by_redis() {
    if real_peer("redis-server").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let endpoint = format!("unix:{}", socket.display());
    let server = Server::start_exactly(&["--kv", "off", "--publish", "off", "--resp", &endpoint]);
    let all = names(path_of(&redis()));
    let own = names(&socket);
    let redis = redis_without(&all.difference(&own).cloned().collect::<Vec<_>>());
    let (oracle, mut number) = (path_of(&redis), 0);
    each_input("commands of Redis clients, answered", 3_000, |mut rng| {
        if number % INPUTS_OF_A_ROUND == 0 {
            assert_eq!(answer(&socket, b"FLUSHALL\r\n"), answer(oracle, b"FLUSHALL\r\n"));
        }
        number += 1;
        let mut bytes = changed_commands(&mut rng);
        // Redis looks for the end of a line up to a byte of 0, and waits for more.
        bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 1);
        let (own, due) = (without_names(answer(&socket, &bytes)), without_names(answer(oracle, &bytes)));
        let shown = |answer: &[u8]| answer.escape_ascii().to_string();
        assert_eq!(shown(&own), shown(&due), "{}", bytes.escape_ascii());
        own.first().is_some_and(|kind| *kind != b'-')
    });
    server.stop();
}
