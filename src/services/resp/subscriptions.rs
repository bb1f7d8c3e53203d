//! What a connection has subscribed to, and how far a command about that has come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::channels::SubscriptionKind;
use crate::services::tables::change_mail::ChangeSelection;

/// Bytes that a channel takes beside its name, here and where others find it.
const CHANNEL_BYTES: usize = 640;
/// The same of a pattern whose beginning no other pattern has: for channels of keys 1,305 were measured, for others 907.
const PATTERN_BYTES: usize = 1_400;

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
    /// The messages that it has not read.
    pub(super) unread: UnreadMessages,
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

impl SubscriptionStage {
    /// Whether no message is counted for this name any more.
    pub(super) fn has_withdrawn(&self, kind: SubscriptionKind, name: &[u8]) -> bool {
        matches!(self, Self::Withdrawn(names) if !names.is_empty() && names.contains(&(kind, name.into())))
    }
}

/// Groups of messages of which a connection keeps the ends.
const UNREAD_GROUPS: usize = 64;

/// How many messages the system has not taken, counted in groups.
#[derive(Debug, Default)]
pub(super) struct UnreadMessages {
    /// Where each group ends in the stream to the client.
    groups: VecDeque<u64>,
    /// Messages behind the last group.
    rest: usize,
}

impl UnreadMessages {
    /// Notes a message that ends there, when the system has taken so many bytes. Returns how many messages it has not taken,
    /// or fewer: less than one of `UNREAD_GROUPS` parts of `most` are not counted.
    pub(super) fn note(&mut self, sent: u64, end: u64, most: usize) -> usize {
        let of_group = most / UNREAD_GROUPS + 1;
        while self.groups.pop_front_if(|end| *end <= sent).is_some() {}
        self.rest += 1;
        if self.rest == of_group {
            self.groups.push_back(end);
            self.rest = 0;
        }
        // The system may have taken all messages of the first group but one, and some of the rest if there is no group.
        let Some(whole) = self.groups.len().checked_sub(1) else { return 0 };
        1 + whole * of_group + self.rest
    }
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

    /// Takes any name away.
    pub(super) fn pop(&mut self) -> Option<(SubscriptionKind, Box<[u8]>)> {
        let channel = self.channels.pop_first().map(|(name, _)| (SubscriptionKind::Channel, name));
        channel.or_else(|| Some((SubscriptionKind::Pattern, self.patterns.pop_first()?.0)))
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
        4 * self.bytes + self.channels.len() * CHANNEL_BYTES + self.patterns.len() * PATTERN_BYTES
    }

    /// Bytes of the names.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first number of messages, of ten bytes each, at which there are too many, if the system always leaves so many of
    /// these.
    fn refused_at(most: usize, left: u64) -> Option<u64> {
        let mut unread = UnreadMessages::default();
        (1..10_000_u64).find(|number| unread.note(number.saturating_sub(left) * 10 + 5, number * 10, most) > most)
    }

    #[test]
    fn all_names_count_as_memory_until_they_are_removed() {
        let mut subscriptions = Subscriptions::default();
        for (kind, name, bytes) in [(SubscriptionKind::Channel, "news", 656), (SubscriptionKind::Pattern, "n*", 2_064)]
        {
            assert!(subscriptions.add(kind, name.as_bytes(), None) && !subscriptions.add(kind, name.as_bytes(), None));
            assert_eq!(subscriptions.kept_bytes(), bytes);
        }
        assert!(subscriptions.remove(SubscriptionKind::Pattern, b"n*"));
        assert!(subscriptions.remove(SubscriptionKind::Channel, b"news"));
        assert_eq!(subscriptions.kept_bytes(), 0);
    }

    #[test]
    fn unread_messages_are_counted_until_there_are_too_many() {
        for most in [1, 2, 63, 64, 1_000] {
            let refused = refused_at(most, u64::MAX);
            let due = most as u64 + 1..=(most + most / UNREAD_GROUPS + 1) as u64;
            assert!(refused.is_some_and(|number| due.contains(&number)), "{most}: {refused:?}");
            assert_eq!(refused_at(most, most as u64), None, "{most}");
        }
        let mut unread = UnreadMessages::default();
        assert!((1..=1_000_000).all(|number| unread.note(0, number, 1_000_000) <= 1_000_000));
        assert!(unread.groups.len() <= UNREAD_GROUPS);
    }
}
