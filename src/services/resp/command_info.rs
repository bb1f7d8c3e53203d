//! What is known of a command before it is carried out, and how it is found by its name.
//!
//! This module does not carry a command out, and does not know the list of them.

use std::collections::HashMap;

use ahash::RandomState;

use super::arguments::Arguments;
use crate::resp3::integer;

/// What is known of a command before it is carried out, as a set of bits.
pub(super) mod flag {
    pub(in super::super) const READONLY: u32 = 1;
    pub(in super::super) const WRITE: u32 = 1 << 1;
    pub(in super::super) const DENYOOM: u32 = 1 << 2;
    pub(in super::super) const FAST: u32 = 1 << 3;
    pub(in super::super) const NOSCRIPT: u32 = 1 << 4;
    pub(in super::super) const LOADING: u32 = 1 << 5;
    pub(in super::super) const STALE: u32 = 1 << 6;
    pub(in super::super) const NO_AUTH: u32 = 1 << 7;
    pub(in super::super) const ALLOW_BUSY: u32 = 1 << 8;
    pub(in super::super) const ADMIN: u32 = 1 << 9;
    pub(in super::super) const NO_MULTI: u32 = 1 << 10;
    pub(in super::super) const NO_ASYNC_LOADING: u32 = 1 << 11;
    pub(in super::super) const DANGEROUS: u32 = 1 << 12;
    pub(in super::super) const KEYSPACE: u32 = 1 << 13;
    /// What the client chooses by it is shown to others.
    pub(in super::super) const SHOWN: u32 = 1 << 14;
    /// The command has subcommands. Others see them, and what the client chooses by them.
    pub(in super::super) const SUBCOMMANDS: u32 = SHOWN | 1 << 15;
    pub(in super::super) const SKIP_MONITOR: u32 = 1 << 16;
    pub(in super::super) const NO_MANDATORY_KEYS: u32 = 1 << 17;
    pub(in super::super) const MOVABLEKEYS: u32 = 1 << 18;
    pub(in super::super) const PUBSUB: u32 = 1 << 20;
    /// It may change elements, and COMMAND does not call it a write.
    pub(in super::super) const MAY_WRITE: u32 = 1 << 19;
    pub(in super::super) const SKIP_SLOWLOG: u32 = 1 << 21;

    /// The flags that COMMAND names.
    pub(in super::super) const NAMES: [(u32, &str); 17] = [
        (WRITE, "write"),
        (READONLY, "readonly"),
        (DENYOOM, "denyoom"),
        (ADMIN, "admin"),
        (PUBSUB, "pubsub"),
        (NOSCRIPT, "noscript"),
        (LOADING, "loading"),
        (STALE, "stale"),
        (FAST, "fast"),
        (NO_AUTH, "no_auth"),
        (NO_ASYNC_LOADING, "no_async_loading"),
        (NO_MULTI, "no_multi"),
        (SKIP_SLOWLOG, "skip_slowlog"),
        (ALLOW_BUSY, "allow_busy"),
        (SKIP_MONITOR, "skip_monitor"),
        (NO_MANDATORY_KEYS, "no_mandatory_keys"),
        (MOVABLEKEYS, "movablekeys"),
    ];
}

/// Where the keys are among the arguments: the first, the last (negative: from the end), and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyPlaces {
    pub(super) first: i8,
    pub(super) last: i8,
    pub(super) step: i8,
    /// The argument that counts the keys, which follow it. 0: there is none, and the places are fixed.
    pub(super) count_at: u8,
}

pub(super) const NO_KEYS: KeyPlaces = KeyPlaces::fixed(0, 0, 0);
pub(super) const ONE_KEY: KeyPlaces = KeyPlaces::fixed(1, 1, 1);
pub(super) const TWO_KEYS: KeyPlaces = KeyPlaces::fixed(1, 2, 1);
pub(super) const ALL_KEYS: KeyPlaces = KeyPlaces::fixed(1, -1, 1);
pub(super) const EVERY_SECOND: KeyPlaces = KeyPlaces::fixed(1, -1, 2);
/// So many keys as the second argument says.
pub(super) const COUNTED: KeyPlaces = KeyPlaces { count_at: 2, ..NO_KEYS };

impl KeyPlaces {
    const fn fixed(first: i8, last: i8, step: i8) -> Self {
        Self { first, last, step, count_at: 0 }
    }

    /// The keys among the arguments.
    pub(super) fn keys<'b>(self, arguments: Arguments<'b>) -> impl Iterator<Item = &'b [u8]> {
        self.counted_keys(arguments).iter().copied().chain(self.fixed_keys(arguments))
    }

    /// The keys that an argument counts. None if it counts more than there are.
    fn counted_keys<'b>(self, arguments: Arguments<'b>) -> &'b [&'b [u8]] {
        let at = usize::from(self.count_at);
        let count = arguments.behind(at).first().filter(|_| at > 0).and_then(|count| integer(count));
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
        arguments.behind(at + 1).get(..count).unwrap_or_default()
    }

    fn fixed_keys<'b>(self, arguments: Arguments<'b>) -> impl Iterator<Item = &'b [u8]> {
        let places = match (usize::try_from(self.first), usize::try_from(self.step)) {
            (Ok(first @ 1..), Ok(step @ 1..)) => {
                let last = if self.last < 0 { usize::MAX } else { self.last.unsigned_abs().into() };
                Some((first, last, step))
            }
            _ => None,
        };
        places.into_iter().flat_map(move |(first, last, step)| {
            arguments.behind(first).iter().take(last.saturating_sub(first).saturating_add(1)).step_by(step).copied()
        })
    }
}

/// The group of a command, as COMMAND DOCS names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    String,
    Generic,
    Server,
    Connection,
    Pubsub,
    Cluster,
    Scripting,
    Transactions,
}

impl Group {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Generic => "generic",
            Self::Server => "server",
            Self::Connection => "connection",
            Self::Pubsub => "pubsub",
            Self::Cluster => "cluster",
            Self::Scripting => "scripting",
            Self::Transactions => "transactions",
        }
    }

    /// The category of ACL that it is. Empty: none.
    pub(super) const fn category(self) -> &'static str {
        match self {
            Self::String => "@string",
            Self::Connection => "@connection",
            Self::Scripting => "@scripting",
            Self::Pubsub => "@pubsub",
            Self::Transactions => "@transaction",
            Self::Generic | Self::Server | Self::Cluster => "",
        }
    }
}

/// What is known of a command before it is carried out.
pub(super) struct CommandInfo {
    /// In small letters.
    pub(super) name: &'static str,
    /// The number of arguments with the name. Negative: at least so many.
    pub(super) arity: i8,
    pub(super) flags: u32,
    pub(super) keys: KeyPlaces,
    pub(super) group: Group,
    /// The version of Redis that first had it.
    pub(super) since: &'static str,
    pub(super) summary: &'static str,
}

impl CommandInfo {
    /// Whether it has one of these flags.
    pub(super) fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Whether the server keeps something for the client until another command.
    pub(super) fn keeps(&self) -> bool {
        matches!(self.name, "watch" | "subscribe" | "psubscribe")
    }

    /// Whether others see its second word.
    pub(super) fn has_subcommands(&self) -> bool {
        self.flags & flag::SUBCOMMANDS == flag::SUBCOMMANDS
    }

    /// Whether it may have so many arguments, its name included.
    pub(super) fn takes(&self, arguments: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { arguments >= least } else { arguments == least }
    }
}

/// The longest name of a command, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 16;

/// All commands, in the order of their numbers.
pub(super) struct CommandIndex {
    pub(super) all: Vec<&'static CommandInfo>,
    /// The numbers, by names in small letters.
    numbers: HashMap<&'static [u8], usize, RandomState>,
}

impl CommandIndex {
    /// The index of these commands.
    pub(super) fn new(commands: impl Iterator<Item = &'static CommandInfo>) -> Self {
        let all: Vec<_> = commands.collect();
        let numbers = all.iter().enumerate().map(|(number, info)| (info.name.as_bytes(), number)).collect();
        Self { all, numbers }
    }

    /// The number of a command, whatever the size of its letters.
    pub(super) fn number(&self, name: &[u8]) -> Option<usize> {
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        self.numbers.get(&*small).copied()
    }

    /// The command of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<&'static CommandInfo> {
        self.all.get(self.number(name)?).copied()
    }
}
