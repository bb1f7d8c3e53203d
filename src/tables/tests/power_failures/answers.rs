//! What clients were answered of tables that are always on disk, and whether a restart keeps it.
//!
//! Requests are carried out one at a time, so each life has one order. A failure loses the end of this order. An answer
//! that a client has received by then must hold without the lost end. It is checked if its request comes behind the state
//! that the restart has found. A request before that state is a part of the order.

use std::collections::BTreeMap;

use super::super::durable::Element;
use super::State;
use super::clients::TABLES;
use crate::feed::PublishedMessage;
use crate::tables::{AnnouncedChange, ChangeSink, Durability};

/// What an answer shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The name has no table.
    NoTable,
    /// It has one.
    Table,
    /// It has one without this key.
    Absent,
    /// It has one with this element.
    Present(Element),
    /// ALTER_TABLE has given the table this durability.
    Durable(Durability),
}

impl View {
    /// Whether it agrees with what a restart has found at this time of the log's clock.
    fn agrees(&self, durability: Durability, element: Option<&Element>, time: u64) -> bool {
        let is_there = durability != Durability::None;
        match self {
            Self::NoTable => !is_there,
            Self::Table => is_there,
            Self::Absent => is_there && element.is_none_or(|element| !element.is_alive(time)),
            Self::Present(shown) => is_there && (element == Some(shown) || !shown.is_alive(time + 1)),
            Self::Durable(said) => durability >= *said,
        }
    }
}

/// An answer to a request of this table and key.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) table: usize,
    pub(super) key: Vec<u8>,
    pub(super) view: View,
    /// The epoch that was open.
    pub(super) epoch: u64,
    /// The epoch for which it waits.
    pub(super) awaited: Option<u64>,
}

/// The answers of a life.
#[derive(Default)]
pub(super) struct Answers {
    /// Those that may be behind the state that a restart finds.
    all: Vec<Answer>,
    /// Whether the table of each name is always on disk, or was when it was deleted.
    are_always: [bool; TABLES.len()],
    /// The epochs of changes that are not announced, by table, key and version.
    changes: BTreeMap<(usize, Vec<u8>, u64), u64>,
    /// The last epoch on disk.
    synced: u64,
    /// How many were checked, and how many announcements.
    pub(super) checked: usize,
    pub(super) announced: usize,
}

impl Answers {
    pub(super) fn note(&mut self, answer: Answer) {
        self.all.push(answer);
    }

    /// The name has a table that is always on disk, another one, or none. Returns the same, or what the last one was.
    pub(super) fn note_table(&mut self, table: usize, is_always: Option<bool>) -> bool {
        if is_always == Some(false) {
            // Its changes are announced at once.
            self.changes.retain(|(other, ..), _| *other != table);
        }
        let known = &mut self.are_always[table];
        *known = is_always.unwrap_or(*known);
        *known
    }

    /// A table that is always on disk has a change with this version, of this epoch.
    pub(super) fn note_change(&mut self, table: usize, key: &[u8], version: u64, epoch: u64) {
        self.changes.insert((table, key.to_vec(), version), epoch);
    }

    /// All epochs up to this one are on disk.
    pub(super) fn note_synced(&mut self, synced: u64) {
        self.synced = synced;
        // A restart finds the end of this epoch at least.
        self.all.retain(|answer| answer.epoch > synced);
    }

    /// The server has ended. A restart has found the state at the end of `epoch`, at this time of the log's clock.
    pub(super) fn check(&mut self, epoch: u64, found: &State, time: u64, seed: u64) {
        let synced = self.synced;
        for Answer { table, key, view, epoch: carried_out, awaited } in std::mem::take(&mut self.all) {
            if carried_out <= epoch || awaited.is_some_and(|awaited| awaited > synced) {
                continue;
            }
            self.checked += 1;
            let name = TABLES[table].0.escape_ascii().to_string();
            let durability = found.tables.get(&name).copied().unwrap_or_default();
            let element = found.elements.get(&(TABLES[table].0.to_vec(), key.clone()));
            assert!(
                view.agrees(durability, element, time),
                "seed {seed}: an answer in epoch {carried_out} has shown {view:?} of {name} {}, and {synced} was synced: \
                 after epoch {epoch} a restart has found {durability:?}, {element:?}",
                key.escape_ascii(),
            );
        }
        (self.are_always, self.synced) = ([false; TABLES.len()], 0);
        self.changes.clear();
    }
}

impl ChangeSink for Answers {
    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        let table = TABLES.iter().position(|(name, _)| *name == change.table).unwrap();
        let Some(epoch) = self.changes.remove(&(table, change.key.to_vec(), change.version())) else { return };
        let (name, key, synced) = (change.table.escape_ascii(), change.key.escape_ascii(), self.synced);
        let (cause, version) = (change.cause, change.version());
        assert!(
            epoch <= synced,
            "{cause:?} of {name} {key}, version {version}, epoch {epoch} is announced, and {synced} is on disk"
        );
        self.announced += 1;
    }

    fn publish(&mut self, _: &PublishedMessage) {}
}
