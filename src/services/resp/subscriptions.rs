//! What a connection has subscribed to, and how far a command about that has come.

use std::collections::{BTreeMap, BTreeSet};

use super::channels::SubscriptionKind;
use crate::services::tables::change_mail::ChangeSelection;

/// Bytes that a subscription takes beside its name.
const SUBSCRIPTION_BYTES: usize = 256;

/// The channels or the patterns of a connection. Those that can match the channel of a key have a selection.
pub(super) type SubscribedNames = BTreeMap<Box<[u8]>, Option<ChangeSelection>>;

/// The subscriptions of a connection.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    channels: SubscribedNames,
    patterns: SubscribedNames,
    /// Bytes of their names.
    bytes: usize,
    /// How far the present command has come.
    pub(super) stage: SubscriptionStage,
    /// Messages that its worker must have taken before the next command: those that were sent before.
    pub(super) messages_before: Option<u64>,
}

/// How far a command about subscriptions has come.
#[derive(Debug, Default)]
pub(super) enum SubscriptionStage {
    /// It has not begun.
    #[default]
    None,
    /// It waits until selections of this number have begun.
    Asked(u64, Vec<Option<ChangeSelection>>),
    /// The selections have begun, and all changes of before are delivered.
    Begun(Vec<Option<ChangeSelection>>),
    /// No message is counted for these any more. Messages that were counted are delivered first.
    Withdrawn(BTreeSet<(SubscriptionKind, Box<[u8]>)>),
}

impl Subscriptions {
    pub(super) fn names(&self, kind: SubscriptionKind) -> &SubscribedNames {
        match kind {
            SubscriptionKind::Channel => &self.channels,
            SubscriptionKind::Pattern => &self.patterns,
        }
    }

    fn names_mut(&mut self, kind: SubscriptionKind) -> &mut SubscribedNames {
        match kind {
            SubscriptionKind::Channel => &mut self.channels,
            SubscriptionKind::Pattern => &mut self.patterns,
        }
    }

    /// Adds a name. Returns whether it is new.
    pub(super) fn add(&mut self, kind: SubscriptionKind, name: &[u8], selection: Option<ChangeSelection>) -> bool {
        let names = self.names_mut(kind);
        if names.contains_key(name) {
            return false;
        }
        names.insert(name.into(), selection);
        self.bytes += name.len();
        true
    }

    /// Takes a name away. Returns whether it was there.
    pub(super) fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) -> bool {
        let is_gone = self.names_mut(kind).remove(name).is_some();
        if is_gone {
            self.bytes -= name.len();
        }
        is_gone
    }

    /// All names, of both kinds.
    pub(super) fn all(&self) -> impl Iterator<Item = (SubscriptionKind, &[u8])> {
        let channels = self.channels.keys().map(|name| (SubscriptionKind::Channel, &**name));
        channels.chain(self.patterns.keys().map(|name| (SubscriptionKind::Pattern, &**name)))
    }

    /// A selection of one of these names, if any has one.
    pub(super) fn selection<'n>(
        &self,
        mut names: impl Iterator<Item = (SubscriptionKind, &'n [u8])>,
    ) -> Option<&ChangeSelection> {
        names.find_map(|(kind, name)| self.names(kind).get(name)?.as_ref())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Memory that they take, here and where others find them, in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        4 * self.bytes + self.count() * SUBSCRIPTION_BYTES
    }

    /// Bytes of the names.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
