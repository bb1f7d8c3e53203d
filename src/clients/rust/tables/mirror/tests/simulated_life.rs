//! One life of the simulated table: its slots, and the changes that it has announced.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, VecDeque};

use super::planted::Planted;
use crate::feed::{Cause, Digest, DueChange, FeedChange, FeedLog, FeedPosition, PresentState, encode_changes};

/// The name of the table.
pub(crate) const TABLE: &[u8] = b"t";

/// A value with its deadline.
pub(crate) type Stored = (Vec<u8>, Option<u64>);

/// The elements of a table, each with its version.
pub(crate) type State = BTreeMap<u8, (u64, Stored)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) version: u64,
    pub(crate) stored: Option<Stored>,
    /// The version that was announced last.
    pub(crate) announced: u64,
    /// Changes whose turn has not come, oldest first.
    pub(crate) pending: VecDeque<Pending>,
    /// No other slot has this number.
    pub(crate) number: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) version: u64,
    pub(crate) cause: Cause,
    /// The element had a value before.
    pub(crate) replaces_value: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct OwnedChange {
    pub(crate) cause: Cause,
    pub(crate) version: u64,
    pub(crate) key: u8,
    pub(crate) stored: Option<Stored>,
}

#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) slots: BTreeMap<u8, Slot>,
    /// The sequence of the next change.
    pub(crate) next: u64,
    pub(crate) announced: State,
    pub(crate) digest: Digest,
    /// The messages that are kept: the first sequence, the sequence behind the last, the payload.
    pub(crate) history: VecDeque<(u64, u64, Vec<u8>)>,
    /// Changes that were announced and not published.
    pub(crate) collected: Vec<OwnedChange>,
}

impl Slot {
    /// Gives a change its turn in the server's own feed.
    pub(crate) fn announce_own(&self, own: &mut FeedLog, incarnation: u64, key: u8, pending: Pending) {
        let Pending { version, cause, replaces_value } = pending;
        let present = PresentState {
            version: self.version,
            value: self.stored.as_ref().map(|(value, _)| &value[..]),
            deadline_millis: self.stored.as_ref().and_then(|(_, deadline)| *deadline),
        };
        let (table, element, cause) = (TABLE, self.number, Some(cause));
        let replaced = replaces_value.then(|| version - 1);
        let change = DueChange { incarnation, table, element, key: &[key], version, cause, replaced, present };
        own.publish(&change, |_| None);
    }
}

impl Life {
    /// Announces a state: it is in the digest, has a sequence, and waits for its message.
    pub(crate) fn announce(&mut self, change: OwnedChange, planted: Option<Planted>, acted: &mut u32) {
        let key = change.key;
        if let Some((version, _)) = self.announced.remove(&key) {
            if planted == Some(Planted::ExpiryNotInDigest) && change.cause == Cause::Expire {
                *acted += 1;
            } else {
                self.digest.remove(&[key], version);
            }
        }
        if let Some(stored) = &change.stored {
            self.digest.add(&[key], change.version);
            self.announced.insert(key, (change.version, stored.clone()));
        }
        if planted == Some(Planted::ChangeUnnumbered) && change.version.is_multiple_of(7) {
            *acted += 1;
            return;
        }
        self.next += 1;
        self.collected.push(change.clone());
        if planted == Some(Planted::ChangeRepeated) && change.version.is_multiple_of(5) {
            *acted += 1;
            self.next += 1;
            self.collected.push(change);
        }
    }

    /// The message of what was collected, and its first sequence.
    pub(crate) fn message(
        &mut self,
        position: impl Fn(u64) -> FeedPosition,
        planted: Option<Planted>,
        acted: &mut u32,
    ) -> Option<(u64, Vec<u8>)> {
        let mut collected = std::mem::take(&mut self.collected);
        let first = self.next - collected.len() as u64;
        match planted {
            Some(Planted::ChangeLost) if collected.len() > 1 && first.is_multiple_of(3) => {
                *acted += 1;
                collected.pop();
            }
            Some(Planted::ChangeDoubled) if !collected.is_empty() && first.is_multiple_of(3) => {
                *acted += 1;
                collected.insert(0, collected[0].clone());
            }
            Some(Planted::ChangesSwapped) if collected.len() > 1 => {
                *acted += 1;
                collected.reverse();
            }
            _ => {}
        }
        let keys: Vec<[u8; 1]> = collected.iter().map(|change| [change.key]).collect();
        let changes: Vec<FeedChange<'_>> = collected
            .iter()
            .zip(&keys)
            .map(|(change, key)| FeedChange {
                cause: change.cause,
                version: change.version,
                deadline_millis: change.stored.as_ref().and_then(|(_, deadline)| *deadline),
                key,
                value: change.stored.as_ref().map_or(&[], |(value, _)| value),
            })
            .collect();
        if changes.is_empty() {
            return None;
        }
        let mut payload = Vec::new();
        encode_changes(position(first), &changes, &mut payload);
        Some((first, payload))
    }
}
