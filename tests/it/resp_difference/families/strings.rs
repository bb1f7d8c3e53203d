//! Commands on values: strings and numbers.

use super::{Command, Maker};

/// GET, SET and their older forms.
pub(crate) fn strings(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(12) {
        0..=2 => Command::new(&["GET"]).with(maker.key()),
        3..=6 => return set(maker),
        7 => Command::new(&["SETNX"]).with(maker.key()).with(maker.value()),
        8 => Command::new(&["GETSET"]).with(maker.key()).with(maker.value()),
        9 => Command::new(&["GETDEL"]).with(maker.key()),
        10 => Command::new(&["STRLEN"]).with(maker.key()),
        _ => Command::new(&["APPEND"]).with(maker.key()).with(maker.value()),
    };
    vec![command]
}

/// SET with options in any order, contradictions too.
fn set(maker: &mut Maker) -> Vec<Command> {
    let key = maker.key();
    let mut command = Command::new(&["SET"]).with(key.clone()).with(maker.value());
    let mut may_be_past = false;
    if maker.rng.one_in(2) {
        for _ in 0..maker.rng.below(4) {
            let option = maker.word(&["EX", "PX", "EXAT", "PXAT", "KEEPTTL", "NX", "XX", "GET", "get", "nx", "FOO"]);
            command = command.with(option);
            match option {
                "EX" => command = command.with(maker.seconds()),
                "PX" => command = command.with(maker.millis()),
                "EXAT" if maker.stores_expired => command = command.with(maker.at_seconds()),
                "PXAT" if maker.stores_expired => command = command.with(maker.at_millis()),
                "EXAT" => command = command.with(maker.future_seconds()),
                "PXAT" => command = command.with(maker.future_millis()),
                _ => {}
            }
            may_be_past |= option.ends_with("AT");
        }
    }
    // Redis keeps an element whose deadline has passed until some command meets it.
    let meets = may_be_past.then(|| Command::new(&["EXISTS"]).with(key));
    [command].into_iter().chain(meets).collect()
}

/// Strings with a time: SETEX, PSETEX, GETEX.
pub(crate) fn timed_strings(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(4) {
        0 => Command::new(&["SETEX"]).with(maker.key()).with(maker.seconds()).with(maker.value()),
        1 => Command::new(&["PSETEX"]).with(maker.key()).with(maker.millis()).with(maker.value()),
        _ => {
            let mut command = Command::new(&["GETEX"]).with(maker.key());
            for _ in 0..maker.rng.below(3) {
                let option = maker.word(&["EX", "PX", "EXAT", "PXAT", "PERSIST", "persist", "FOO"]);
                command = command.with(option);
                match option {
                    "EX" => command = command.with(maker.seconds()),
                    "PX" => command = command.with(maker.millis()),
                    "EXAT" => command = command.with(maker.at_seconds()),
                    "PXAT" => command = command.with(maker.at_millis()),
                    _ => {}
                }
            }
            command
        }
    };
    vec![command]
}

/// Several keys at once: MGET, MSET, MSETNX.
pub(crate) fn several(maker: &mut Maker) -> Vec<Command> {
    let name = maker.word(&["MGET", "MSET", "MSET", "MSETNX"]);
    let mut command = Command::new(&[name]);
    for _ in 0..maker.rng.below(6) {
        command = command.with(maker.key());
        if name != "MGET" {
            command = command.with(maker.value());
        }
    }
    vec![command]
}

/// Parts of a string: GETRANGE, SUBSTR, SETRANGE.
pub(crate) fn ranges(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(3) {
        0 => Command::new(&["GETRANGE"]).with(maker.key()).with(maker.integer()).with(maker.integer()),
        1 => Command::new(&["SUBSTR"]).with(maker.key()).with(maker.integer()).with(maker.integer()),
        _ => {
            let offsets =
                ["0", "1", "5", "100", "1000", "5000", "-1", "16777216", "536870911", "9223372036854775807", "abc"];
            let offset = maker.word(&offsets);
            Command::new(&["SETRANGE"]).with(maker.key()).with(offset).with(maker.value())
        }
    };
    vec![command]
}

/// Counters: INCR and its kin.
pub(crate) fn counters(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(6) {
        0 => Command::new(&["INCR"]).with(maker.key()),
        1 => Command::new(&["DECR"]).with(maker.key()),
        2 => Command::new(&["INCRBY"]).with(maker.key()).with(maker.integer()),
        3 => Command::new(&["DECRBY"]).with(maker.key()).with(maker.integer()),
        4 => Command::new(&["SET"]).with(maker.key()).with(maker.integer()),
        _ => Command::new(&["INCRBY"]).with(maker.key()).with("1"),
    };
    vec![command]
}

/// INCRBYFLOAT.
pub(crate) fn floats(maker: &mut Maker) -> Vec<Command> {
    let key = maker.key();
    let set = Command::new(&["SET"]).with(key.clone()).with(maker.float());
    let add = Command::new(&["INCRBYFLOAT"]).with(key).with(maker.float());
    if maker.rng.one_in(3) { vec![set, add] } else { vec![add] }
}
