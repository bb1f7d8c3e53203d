//! Channels: subscriptions, messages, and questions about both.

use super::{Command, Maker};

/// The channels of all programs.
const CHANNELS: [&str; 6] =
    ["news", "key:1", "a", "b\r\n", "", "long-long-long-long-long-long-long-long-long-long-name"];

/// SUBSCRIBE, PSUBSCRIBE and their ends.
pub(crate) fn subscriptions(maker: &mut Maker) -> Vec<Command> {
    let name = maker.word(&["SUBSCRIBE", "SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE"]);
    let mut command = Command::new(&[name]);
    let least = u64::from(!name.contains("UNSUB"));
    for _ in 0..least + maker.rng.below(3) {
        command = command.with(if name.starts_with('P') { maker.pattern() } else { maker.word(&CHANNELS) });
    }
    vec![command]
}

/// Subscriptions to the events of keys.
pub(crate) fn key_events(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(4) {
        0 => Command::new(&["SUBSCRIBE", "__keyspace@0__:a"]),
        1 => Command::new(&["SUBSCRIBE", "__keyevent@0__:set", "__keyevent@0__:expired"]),
        _ => {
            let patterns = ["__key*__:*", "__keyspace@*__:*", "__keyevent@0__:*", "__keyevent@*__:expire*"];
            Command::new(&["PSUBSCRIBE"]).with(maker.word(&patterns))
        }
    };
    vec![command]
}

/// PUBLISH and PUBSUB.
pub(crate) fn publish(maker: &mut Maker) -> Vec<Command> {
    let command = match maker.rng.below(10) {
        0..=5 => Command::new(&["PUBLISH"]).with(maker.word(&CHANNELS)).with(maker.value()),
        6 => {
            let command = Command::new(&["PUBSUB", "CHANNELS"]);
            if maker.rng.one_in(2) { command.with(maker.pattern()) } else { command }
        }
        7 => Command::new(&["PUBSUB", "NUMSUB"]).with(maker.word(&CHANNELS)).with(maker.word(&CHANNELS)),
        8 => Command::new(&["PUBSUB", "NUMPAT"]),
        _ => Command::new(&["PUBSUB", maker.word(&["FOO", "NUMSUB", "channels"])]),
    };
    vec![command]
}

/// A subscription that a transaction makes.
pub(crate) fn in_a_transaction(maker: &mut Maker) -> Vec<Command> {
    let mut commands = vec![Command::new(&["MULTI"])];
    commands.extend(subscriptions(maker).into_iter().map(|command| {
        // The end of all subscriptions has no order.
        if command.arguments.len() == 1 { command.with("news") } else { command }
    }));
    // The confirmations push further replies out of the reply to EXEC: these need no rule.
    commands.extend(publish(maker).into_iter().filter(|command| !command.has(1, "CHANNELS")));
    commands.push(Command::new(&["EXEC"]));
    commands
}
