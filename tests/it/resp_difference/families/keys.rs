//! Commands on keys: their life, their names, their times, and all of them.

use super::super::dump::{Encoding, payload, sealed};
use super::{Command, Maker};

/// DEL, UNLINK, EXISTS, TYPE, TOUCH, OBJECT ENCODING.
pub(crate) fn keys(maker: &mut Maker) -> Vec<Command> {
    let name = maker.word(&["DEL", "UNLINK", "EXISTS", "EXISTS", "TYPE", "TOUCH", "OBJECT"]);
    let mut command = Command::new(&[name]);
    if name == "OBJECT" {
        command = command.with(maker.word(&["ENCODING", "encoding", "FOO"]));
    }
    let count = if matches!(name, "TYPE" | "OBJECT") { 1 } else { 1 + maker.rng.below(3) };
    for _ in 0..count {
        command = command.with(maker.key());
    }
    vec![command]
}

/// EXPIRE and its kin, PERSIST, and the questions about times.
pub(crate) fn times(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(10) {
        0..=3 => expire(maker),
        4 => Command::new(&["PERSIST"]).with(maker.key()),
        _ => Command::new(&[maker.word(&["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"])]).with(maker.key()),
    };
    vec![command]
}

fn expire(maker: &mut Maker) -> Command {
    let name = maker.word(&["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]);
    let count = if maker.rng.one_in(2) { 1 + maker.rng.below(2) } else { 0 };
    let options: Vec<&str> = (0..count).map(|_| maker.word(&["NX", "XX", "GT", "LT", "nx", "FOO"])).collect();
    let is_comparing = options.iter().any(|option| matches!(*option, "GT" | "LT"));
    let time = match name {
        "EXPIRE" if is_comparing => maker.distinct_seconds().to_string(),
        "PEXPIRE" if is_comparing => (1_000 * maker.distinct_seconds()).to_string(),
        "EXPIRE" => maker.seconds().to_owned(),
        "PEXPIRE" => maker.millis().to_owned(),
        "EXPIREAT" => maker.at_seconds().to_owned(),
        _ => maker.at_millis().to_owned(),
    };
    options.into_iter().fold(Command::new(&[name]).with(maker.key()).with(time), Command::with)
}

/// RENAME, RENAMENX, COPY.
pub(crate) fn names(maker: &mut Maker) -> Vec<Command> {
    let name = maker.word(&["RENAME", "RENAMENX", "COPY", "COPY"]);
    let mut command = Command::new(&[name]).with(maker.key()).with(maker.key());
    if name == "COPY" && maker.rng.one_in(2) {
        for _ in 0..=maker.rng.below(2) {
            let option = maker.word(&["REPLACE", "replace", "DB", "FOO"]);
            command = command.with(option);
            if option == "DB" {
                command = command.with(maker.word(&["0", "1", "9", "16", "-1", "abc"]));
            }
        }
    }
    vec![command]
}

/// All keys: KEYS, RANDOMKEY, DBSIZE, FLUSHDB, FLUSHALL, and SCAN with errors. Whole walks are steps of their own.
pub(crate) fn all_keys(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(16) {
        0..=5 => Command::new(&["KEYS"]).with(maker.pattern()),
        6 | 7 => Command::new(&["DBSIZE"]),
        8 => Command::new(&["RANDOMKEY"]),
        9 => flush(maker),
        _ => {
            let mut command = Command::new(&["SCAN"]).with(maker.word(&["0", "0", "abc", "-1", "", "1x"]));
            for _ in 0..maker.rng.below(3) {
                let option = maker.word(&["MATCH", "COUNT", "TYPE", "FOO"]);
                command = command.with(option).with(maker.word(&["10", "0", "-1", "abc", "*", "string", "list"]));
            }
            command
        }
    };
    vec![command]
}

fn flush(maker: &mut Maker) -> Command {
    let command = Command::new(&[maker.word(&["FLUSHDB", "FLUSHALL"])]);
    if maker.rng.one_in(2) { command.with(maker.word(&["SYNC", "ASYNC", "sync", "FOO", ""])) } else { command }
}

/// The arguments of a SCAN behind its cursor, for a walk to its end.
pub(crate) fn walk(maker: &mut Maker) -> Command {
    let mut command = Command::new(&["SCAN"]);
    if maker.rng.one_in(2) {
        command = command.with("MATCH").with(maker.pattern());
    }
    if maker.rng.one_in(2) {
        command = command.with("count").with(maker.word(&["1", "2", "5", "10", "1000"]));
    }
    if maker.rng.one_in(3) {
        command = command.with("TYPE").with(maker.word(&["string", "STRING", "list", "foo"]));
    }
    command
}

/// DUMP and RESTORE, of whole and of damaged payloads.
pub(crate) fn dumps(maker: &mut Maker) -> Vec<Command> {
    if maker.rng.one_in(3) {
        return vec![Command::new(&["DUMP"]).with(maker.key())];
    }
    let mut command = Command::new(&["RESTORE"]).with(maker.key());
    let is_absolute = maker.rng.one_in(3);
    let time = if is_absolute { maker.at_millis() } else { maker.word(&["0", "0", "100000", "-1", "abc", ""]) };
    command = command.with(time).with(some_payload(maker));
    // First: without ABSTTL a point in the past would be a short relative time.
    if is_absolute {
        command = command.with("ABSTTL");
    }
    if maker.rng.one_in(2) || is_absolute {
        command = command.with(maker.word(&["REPLACE", "replace"]));
    }
    if maker.rng.one_in(6) {
        command = command.with(maker.word(&["IDLETIME", "FREQ", "FOO"])).with(maker.word(&["1", "-1", "256", "abc"]));
    }
    vec![command]
}

/// The payload of a string, now and then with a changed byte or a string that ends too early.
pub(crate) fn some_payload(maker: &mut Maker) -> Vec<u8> {
    let string = if maker.rng.one_in(3) { maker.integer().into_bytes() } else { maker.value() };
    let encoding = maker.rng.pick(&[Encoding::Raw, Encoding::Integer, Encoding::Literals]);
    let mut payload = payload(&string, encoding);
    match maker.rng.below(8) {
        0 => {
            let place = maker.rng.index(payload.len());
            payload[place] ^= 1 << maker.rng.below(8);
        }
        1 if maker.rng.one_in(40) => return sealed(vec![0, 5, b'a']),
        _ => {}
    }
    payload
}
