//! The families of commands: one function each, so that a server can get them step by step.
//!
//! A family makes a few commands that belong together. It knows no replies, and nothing of the steps around it.

use super::command::Command;
use super::maker::Maker;

mod channels;
mod connection;
mod keys;
mod scripts;
mod strings;

pub(crate) use keys::{some_payload, walk};
pub(crate) use scripts::returned_time;

/// What the commands of a family do to their connection, so that a program knows where they may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// One reply for each command.
    None,
    /// Turns replies off for a while, changes the protocol, or closes: never between MULTI and EXEC.
    Connection,
    /// Subscribes.
    Subscribes,
    /// Begins or ends MULTI.
    Transaction,
}

/// A family.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// How often it is chosen, beside the others.
    pub(crate) weight: u64,
    pub(crate) effect: Effect,
    pub(crate) make: fn(&mut Maker) -> Vec<Command>,
}

const fn family(name: &'static str, weight: u64, make: fn(&mut Maker) -> Vec<Command>) -> Family {
    Family { name, weight, effect: Effect::None, make }
}

impl Family {
    const fn that(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }
}

/// The family whose replies may be more than its commands.
pub(crate) const CHANNELS_IN_TRANSACTIONS: &str = "channels_in_transactions";
/// Not functions of commands but kinds of steps, with their names as families.
pub(crate) const LAPSES: &str = "lapses";
pub(crate) const WALKS: &str = "walks";
pub(crate) const EXCHANGES: &str = "exchanges";
pub(crate) const OPEN_TRANSACTIONS: &str = "open_transactions";
pub(crate) const STEPS: [&str; 4] = [LAPSES, WALKS, EXCHANGES, OPEN_TRANSACTIONS];

/// All families.
pub(crate) const FAMILIES: &[Family] = &[
    family("strings", 24, strings::strings),
    family("timed_strings", 6, strings::timed_strings),
    family("several", 6, strings::several),
    family("ranges", 6, strings::ranges),
    family("counters", 10, strings::counters),
    family("floats", 4, strings::floats),
    family("keys", 10, keys::keys),
    family("times", 12, keys::times),
    family("names", 6, keys::names),
    family("all_keys", 4, keys::all_keys),
    family("dumps", 4, keys::dumps),
    family("scripts", 8, scripts::scripts),
    family("select", 1, connection::select),
    family("pings", 3, connection::pings),
    family("hello", 1, connection::hello).that(Effect::Connection),
    family("clients", 2, connection::clients),
    family("reply_modes", 1, connection::reply_modes).that(Effect::Connection),
    family("closing", 1, connection::closing).that(Effect::Connection),
    family("auth", 1, connection::auth),
    family("command_shapes", 1, connection::command_shapes),
    family("unknown", 2, connection::unknown),
    family("watches", 4, connection::watches),
    family("transactions", 4, connection::transaction).that(Effect::Transaction),
    family("channels", 3, channels::subscriptions).that(Effect::Subscribes),
    family("key_events", 1, channels::key_events).that(Effect::Subscribes),
    family("publish", 5, channels::publish),
    family(CHANNELS_IN_TRANSACTIONS, 1, channels::in_a_transaction).that(Effect::Subscribes),
];
