//! The events of keys: their names, and the tables that a subscription can match.
//!
//! ```text
//! __keyspace@TABLE__:KEY      the message is the event
//! __keyevent@TABLE__:EVENT    the message is the key
//! ```
//! This module sends nothing.

use super::glob::{literal_prefix, may_begin};
use crate::feed::Cause;
use crate::limits::TABLE_NAME_BYTES_MAX;
use crate::services::tables::change_mail::{MailedChange, SelectedTables};
use crate::tables::AudienceKind;

/// What the channels begin with. No client may publish there.
pub(super) const RESERVED: &[u8] = b"__key";
const KEYSPACE: &[u8] = b"__keyspace@";
const KEYEVENT: &[u8] = b"__keyevent@";
const BEHIND_TABLE: &[u8] = b"__:";
const EXPIRED: &str = "expired";

/// The event of a cause. `None`: FLUSHDB has none, as in Redis.
const fn event_of(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::Set | Cause::CompareAndSwap => "set",
        Cause::Touch => "expire",
        Cause::Delete => "del",
        Cause::Expire => EXPIRED,
        Cause::DeleteWithTable => return None,
        Cause::Increment => "incrby",
        Cause::Evict => "evicted",
        Cause::Restore => "restore",
        Cause::Append => "append",
        Cause::Persist => "persist",
        Cause::SetRange => "setrange",
        Cause::IncrementByFloat => "incrbyfloat",
        Cause::RenameFrom => "rename_from",
        Cause::RenameTo => "rename_to",
        Cause::CopyTo => "copy_to",
    })
}

/// The events of a change, in their order.
pub(super) fn events_of(change: &MailedChange<'_>) -> impl Iterator<Item = &'static str> {
    event_of(change.cause).into_iter().chain(change.sets_deadline.then_some("expire"))
}

/// Writes the two channels of an event, that of the key and that of the event.
pub(super) fn write_channels(change: &MailedChange<'_>, event: &str, channels: &mut [Vec<u8>; 2]) {
    for (channel, (beginning, end)) in channels.iter_mut().zip([(KEYSPACE, change.key), (KEYEVENT, event.as_bytes())]) {
        channel.clear();
        [beginning, change.table, BEHIND_TABLE, end].iter().for_each(|part| channel.extend_from_slice(part));
    }
}

/// The tables whose events a subscription to this channel can match.
pub(super) fn selected_by_channel(channel: &[u8]) -> Option<SelectedTables> {
    let (tables, kind) = if let Some(rest) = channel.strip_prefix(KEYSPACE) {
        (tables_in(rest), AudienceKind::Changes)
    } else {
        // No event has the bytes behind a table, so the last ones are behind the table.
        let rest = channel.strip_prefix(KEYEVENT)?;
        let at = rest.windows(BEHIND_TABLE.len()).rposition(|bytes| bytes == BEHIND_TABLE)?;
        let (table, event) = (rest.get(..at)?, rest.get(at + BEHIND_TABLE.len()..)?);
        let is_event = Cause::ALL.into_iter().filter_map(event_of).any(|known| known.as_bytes() == event);
        (is_event.then_some(table).and_then(topic_of).into_iter().collect(), kind_of(event == EXPIRED.as_bytes()))
    };
    (!tables.is_empty()).then_some(SelectedTables { topics: tables, kind })
}

/// The tables whose events a subscription to this pattern can match.
pub(super) fn selected_by_pattern(pattern: &[u8]) -> Option<SelectedTables> {
    let literal = literal_prefix(pattern);
    if literal.len() == pattern.len() {
        return selected_by_channel(pattern);
    }
    let [of_keys, of_events] = [KEYSPACE, KEYEVENT].map(|beginning| may_begin(pattern, beginning));
    if !of_keys && !of_events {
        return None;
    }
    // Behind a class without an end, the rest of the pattern belongs to the class.
    let ends_with_expired = pattern.ends_with(b"__:expired") && !pattern.contains(&b'[');
    let topics = match literal.strip_prefix(KEYSPACE).or_else(|| literal.strip_prefix(KEYEVENT)) {
        None => vec![Box::default()],
        Some(rest) => {
            let mut topics = tables_in(rest);
            // Those whose names go on behind the beginning of the pattern.
            if rest.len() <= TABLE_NAME_BYTES_MAX && !rest.contains(&0) {
                topics.push(rest.into());
            }
            topics
        }
    };
    (!topics.is_empty()).then_some(SelectedTables { topics, kind: kind_of(!of_keys && ends_with_expired) })
}

/// Of expiries alone, SETs need not be announced.
fn kind_of(is_expired: bool) -> AudienceKind {
    if is_expired { AudienceKind::Ends } else { AudienceKind::Changes }
}

/// Each table that such bytes can name, whose own name may have the bytes that are behind a table.
fn tables_in(rest: &[u8]) -> Vec<Box<[u8]>> {
    let ends = rest.windows(BEHIND_TABLE.len()).enumerate().filter(|(_, bytes)| *bytes == BEHIND_TABLE);
    ends.filter_map(|(at, _)| topic_of(rest.get(..at)?)).collect()
}

/// The topic of the table of this name, if there can be one.
fn topic_of(name: &[u8]) -> Option<Box<[u8]>> {
    let is_name = (1..=TABLE_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
    is_name.then(|| [name, b"\0"].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(pattern: &str) -> Option<(Vec<String>, AudienceKind)> {
        let shown = |topic: &[u8]| String::from_utf8_lossy(topic).replace('\0', "/");
        let tables = selected_by_pattern(pattern.as_bytes())?;
        Some((tables.topics.iter().map(|topic| shown(topic)).collect(), tables.kind))
    }

    #[test]
    fn a_channel_selects_the_tables_that_it_can_name() {
        use AudienceKind::{Changes, Ends};
        for (channel, expected) in [
            ("__keyspace@0__:a", Some((vec!["0/"], Changes))),
            ("__keyspace@a__:b__:c", Some((vec!["a/", "a__:b/"], Changes))),
            ("__keyevent@0__:set", Some((vec!["0/"], Changes))),
            ("__keyevent@0__:expired", Some((vec!["0/"], Ends))),
            ("__keyevent@a__:b__:expired", Some((vec!["a__:b/"], Ends))),
            ("__keyevent@0__:lpush", None),
            ("__keyspace@__:a", None),
            ("__keyspace@0", None),
            ("news", None),
        ] {
            let expected = expected.map(|(topics, kind)| (topics.into_iter().map(str::to_owned).collect(), kind));
            assert_eq!(selected(channel), expected, "{channel}");
        }
    }

    #[test]
    fn a_pattern_selects_all_tables_that_it_can_match() {
        use AudienceKind::{Changes, Ends};
        for (pattern, expected) in [
            ("*", Some((vec![""], Changes))),
            ("?_key*", Some((vec![""], Changes))),
            ("__key*__:*", Some((vec![""], Changes))),
            ("__keyspace@0__:*", Some((vec!["0/", "0__:"], Changes))),
            ("__keyspace@eu-*", Some((vec!["eu-"], Changes))),
            ("__keyevent@*__:expired", Some((vec![""], Ends))),
            ("__keyevent@*__:expire*", Some((vec![""], Changes))),
            ("__keyevent@*[__:expired", Some((vec![""], Changes))),
            ("__key*__:expired", Some((vec![""], Changes))),
            ("[a-f]*", None),
            ("?ello", None),
            ("news.*", None),
            ("__keyspace", None),
        ] {
            let expected = expected.map(|(topics, kind)| (topics.into_iter().map(str::to_owned).collect(), kind));
            assert_eq!(selected(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn a_value_with_a_deadline_is_two_events() {
        let change =
            |cause, sets_deadline| MailedChange { table: b"7", key: b"k", cause, sets_deadline, is_in_order: true };
        let events = |cause, sets_deadline| events_of(&change(cause, sets_deadline)).collect::<Vec<_>>();
        assert_eq!(events(Cause::Set, true), ["set", "expire"]);
        assert_eq!(events(Cause::Set, false), ["set"]);
        assert!(events(Cause::DeleteWithTable, false).is_empty());
        let mut channels = [const { Vec::new() }; 2];
        write_channels(&change(Cause::Delete, false), "del", &mut channels);
        assert_eq!(channels, [b"__keyspace@7__:k".to_vec(), b"__keyevent@7__:del".to_vec()]);
    }
}
