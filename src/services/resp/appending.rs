//! What is on disk of the databases: `appendonly` and `appendfsync`, as CONFIG SET says it.
//!
//! This file changes no table.

use std::sync::atomic::{AtomicU8, Ordering};

use super::arguments::is;
use crate::tables::Durability;

/// The values of `appendonly`.
const APPENDONLY: [(&str, bool); 2] = [("yes", true), ("no", false)];
/// Those of `appendfsync`. What the system may keep for itself is on disk as soon as with `everysec`.
const APPENDFSYNC: [(&str, Durability); 3] =
    [("everysec", Durability::Soon), ("always", Durability::Always), ("no", Durability::Soon)];
/// Nothing was said: it is as the server says.
const UNSAID: u8 = u8::MAX;

/// What was said of both: a place in the values of each. Written by CONFIG SET.
pub(super) struct Appending {
    only: AtomicU8,
    fsync: AtomicU8,
}

/// A change of one or of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AppendingChange {
    pub(super) only: Option<u8>,
    pub(super) fsync: Option<u8>,
}

/// The place of a word in some values.
fn place_of<T>(word: &[u8], values: &[(&str, T)]) -> Option<u8> {
    let place = values.iter().position(|(name, _)| is(word, name))?;
    u8::try_from(place).ok()
}

impl AppendingChange {
    /// Takes one setting. Returns false if the value is none of it.
    pub(super) fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        let (setting, place) = match is(name, "appendonly") {
            true => (&mut self.only, place_of(value, &APPENDONLY)),
            false => (&mut self.fsync, place_of(value, &APPENDFSYNC)),
        };
        *setting = place;
        place.is_some()
    }
}

// Relaxed, all accesses: a table that is made beside a change has the one or the other durability.
impl Appending {
    pub(super) fn new() -> Self {
        Self { only: AtomicU8::new(UNSAID), fsync: AtomicU8::new(UNSAID) }
    }

    /// Both, with a change that is not made.
    fn with(&self, change: AppendingChange, server: Durability) -> (&'static str, &'static str) {
        let said = |said: Option<u8>, setting: &AtomicU8| said.unwrap_or_else(|| setting.load(Ordering::Relaxed));
        let only = APPENDONLY.get(usize::from(said(change.only, &self.only))).map(|(name, _)| *name);
        let fsync = APPENDFSYNC.get(usize::from(said(change.fsync, &self.fsync))).map(|(name, _)| *name);
        (
            only.unwrap_or(if server == Durability::None { "no" } else { "yes" }),
            fsync.unwrap_or(if server == Durability::Always { "always" } else { "everysec" }),
        )
    }

    /// `appendonly` and `appendfsync`. `server` is the durability of tables that do not say.
    pub(super) fn values(&self, server: Durability) -> (&'static str, &'static str) {
        self.with(AppendingChange::default(), server)
    }

    /// The durability of a database with a change that is not made.
    pub(super) fn durability_with(&self, change: AppendingChange, server: Durability) -> Durability {
        let (only, fsync) = self.with(change, server);
        let appends = APPENDFSYNC.into_iter().find(|(name, _)| *name == fsync);
        appends.filter(|_| only == "yes").map_or(Durability::None, |(_, durability)| durability)
    }

    /// The durability of a database that is made.
    pub(super) fn durability(&self, server: Durability) -> Durability {
        self.durability_with(AppendingChange::default(), server)
    }

    /// Makes a change.
    pub(super) fn set(&self, AppendingChange { only, fsync }: AppendingChange) {
        only.into_iter().for_each(|only| self.only.store(only, Ordering::Relaxed));
        fsync.into_iter().for_each(|fsync| self.fsync.store(fsync, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_as_the_server_says_until_a_client_says_it() {
        let appending = Appending::new();
        let both = |appending: &Appending, server| (appending.values(server), appending.durability(server));
        for (server, values) in [
            (Durability::None, ("no", "everysec")),
            (Durability::Soon, ("yes", "everysec")),
            (Durability::Always, ("yes", "always")),
        ] {
            assert_eq!(both(&appending, server), (values, server));
        }
        let mut change = AppendingChange::default();
        assert!(change.take(b"APPENDONLY", b"Yes") && change.take(b"appendfsync", b"ALWAYS"));
        assert_eq!(appending.durability_with(change, Durability::None), Durability::Always);
        assert_eq!(both(&appending, Durability::None).1, Durability::None, "it is not made yet");
        appending.set(change);
        assert_eq!(both(&appending, Durability::None), (("yes", "always"), Durability::Always));
        for (fsync, durability) in [("no", Durability::Soon), ("everysec", Durability::Soon)] {
            let mut change = AppendingChange::default();
            assert!(change.take(b"appendfsync", fsync.as_bytes()));
            appending.set(change);
            assert_eq!(both(&appending, Durability::None), (("yes", fsync), durability));
        }
        assert!(!change.take(b"appendonly", b"maybe") && !change.take(b"appendfsync", b"yes"));
        assert!(change.take(b"appendonly", b"no"));
        appending.set(AppendingChange { fsync: None, ..change });
        assert_eq!(both(&appending, Durability::Always), (("no", "everysec"), Durability::None));
    }
}
