//! The feed on the command line: its endpoint, and its changes as lines and as JSON.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::FEED_ENDPOINT;
use crate::cli::flags::endpoint::{Connect, connection};
use crate::cli::flags::operand::Hex;
use crate::cli::show::Format;
use crate::clock::Now;
use crate::feed::{Cause, FeedContent, FeedPosition};
use crate::services::tables::wire::FeedEvent;

/// The endpoint of the feed.
#[derive(Debug, Args)]
pub(crate) struct Feed {
    /// Endpoint at which the server publishes its feed (`spindle serve --feed`)
    #[arg(long, value_name = "ENDPOINT", env = "SPINDLE_CONNECT_FEED", default_value = FEED_ENDPOINT, value_parser = connection)]
    pub(crate) feed: String,
}

/// The two endpoints of a server with a feed.
#[derive(Debug, Args)]
pub(crate) struct FeedServer {
    #[command(flatten)]
    pub(crate) server: Connect,
    #[command(flatten)]
    pub(crate) feed: Feed,
}

/// A change to print.
pub(crate) struct ShownChange<'c> {
    /// The table, if the command shows more than one.
    pub(crate) table: Option<&'c [u8]>,
    /// `None`: a scan has found it.
    pub(crate) cause: Option<Cause>,
    pub(crate) key: &'c [u8],
    /// `None`: the element is gone.
    pub(crate) value: Option<&'c [u8]>,
    /// 0: it is not known.
    pub(crate) version: u64,
    pub(crate) deadline_millis: Option<u64>,
}

impl ShownChange<'_> {
    fn kind(&self) -> &'static str {
        match (self.cause, self.value) {
            (None, Some(_)) => "FOUND",
            (None, None) => "GONE",
            (Some(Cause::Set), _) => "UPDATED",
            (Some(Cause::Touch), _) => "TOUCHED",
            (Some(Cause::Delete), _) => "DELETED",
            (Some(Cause::Expire), _) => "EXPIRED",
            (Some(Cause::DeleteWithTable), _) => "DROPPED",
            (Some(Cause::CompareAndSwap), _) => "SWAPPED",
            (Some(Cause::Increment), _) => "INCREMENTED",
            (Some(Cause::Evict), _) => "EVICTED",
            (Some(Cause::Restore), _) => "RESTORED",
            (Some(Cause::Append), _) => "APPENDED",
            (Some(Cause::Persist), _) => "PERSISTED",
            (Some(Cause::SetRange), _) => "RANGE_SET",
            (Some(Cause::IncrementByFloat), _) => "INCREMENTED_BY_FLOAT",
            (Some(Cause::RenameFrom), _) => "RENAMED_FROM",
            (Some(Cause::RenameTo), _) => "RENAMED_TO",
            (Some(Cause::CopyTo), _) => "COPIED_TO",
        }
    }

    /// One line, or one object.
    pub(crate) fn line(&self, format: Format) -> String {
        format.answer(|| self.text(format.hex), || self.json(format.hex))
    }

    fn text(&self, hex: Hex) -> String {
        let Self { table, key, value, version, deadline_millis, .. } = *self;
        let mut words = vec![self.kind().to_owned()];
        words.extend(table.map(|table| hex.shown(table)));
        words.push(hex.shown(key));
        words.extend(value.map(|value| hex.shown(value)));
        if version > 0 {
            words.push(format!("version {version}"));
        }
        words.extend(deadline_millis.map(|millis| format!("deadline {millis}")));
        words.join(" ") + "\n"
    }

    fn json(&self, hex: Hex) -> Value {
        let Self { table, key, value, version, deadline_millis, .. } = *self;
        let mut json = json!({ "kind": self.kind(), "key": hex.shown_in_json(key) });
        let fields = [
            ("table", table.map(|table| json!(hex.shown_in_json(table)))),
            ("value", value.map(|value| json!(hex.shown_in_json(value)))),
            ("version", (version > 0).then(|| json!(version))),
            ("deadline_millis", deadline_millis.map(|millis| json!(millis))),
        ];
        if let Value::Object(members) = &mut json {
            members.extend(fields.into_iter().filter_map(|(name, field)| Some((name.to_owned(), field?))));
        }
        json
    }
}

/// How long a topic with a server may be silent: its idle bookmarks come more often.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Whether a topic has been silent for so long that its endpoint may be wrong, or the server out of reach. At a wrong
/// endpoint another publisher accepts the connection and never sends a message of the topic.
#[derive(Debug)]
pub(crate) struct Silence {
    /// The last message, or the beginning.
    since: Now,
    is_reported: bool,
}

impl Silence {
    pub(crate) const fn begin(now: Now) -> Self {
        Self { since: now, is_reported: false }
    }

    /// Reports it on standard error, once in each silence. `received`: a message has come since the last call.
    pub(crate) fn report(&mut self, received: bool, now: Now, endpoint: &str) {
        if self.is_too_long(received, now) {
            let seconds = SILENCE_MAX.as_secs();
            eprintln!(
                "nothing received from {endpoint} for {seconds} s: is it the endpoint of --feed, and the server well?"
            );
        }
    }

    fn is_too_long(&mut self, received: bool, now: Now) -> bool {
        if received {
            *self = Self::begin(now);
        }
        let is_too_long = !self.is_reported && now >= self.since.after(SILENCE_MAX);
        self.is_reported |= is_too_long;
        is_too_long
    }
}

/// The sequences that come next, of the lives of the tables that are watched, so that a gap is seen.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    tables: HashMap<Vec<u8>, BTreeMap<u64, u64>>,
}

impl Sequences {
    /// Returns how many changes were missed before this message. Those before the first message of a table are not.
    pub(crate) fn missed(&mut self, event: &FeedEvent<'_>) -> u64 {
        let FeedPosition { incarnation, sequence, .. } = event.message.position;
        if !self.tables.contains_key(event.table) {
            self.tables.insert(event.table.to_vec(), BTreeMap::new());
        }
        let Some(lives) = self.tables.get_mut(event.table) else { return 0 };
        // A life begins with 1, and its beginning was not missed if an older one is known.
        let begins_here = lives.range(..incarnation).next().is_some();
        let expected = lives.get(&incarnation).copied().unwrap_or(if begins_here { 1 } else { sequence });
        let changes = match &event.message.content {
            FeedContent::Changes(changes) => changes.len() as u64,
            FeedContent::Bookmark { .. } | FeedContent::Dropped => 0,
        };
        lives.insert(incarnation, expected.max(sequence + changes));
        if let FeedContent::Dropped = event.message.content {
            lives.remove(&incarnation);
            if lives.is_empty() {
                self.tables.remove(event.table);
            }
        }
        sequence.saturating_sub(expected)
    }
}

/// A position, as JSON.
pub(crate) fn position(kind: &str, at: FeedPosition) -> Value {
    json!({ "kind": kind, "epoch": at.epoch, "incarnation": at.incarnation, "sequence": at.sequence })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::feed::{FeedChange, FeedMessage, encode_changes};

    #[test]
    fn a_change_has_what_is_known_of_it() {
        let (table, key, value) = (Some(&b"users"[..]), &b"ada"[..], Some(&b"a\nb"[..]));
        let set = ShownChange { table, cause: Some(Cause::Set), key, value, version: 7, deadline_millis: Some(9) };
        assert_eq!(set.text(Hex::OFF), "UPDATED users ada 0x610a62 version 7 deadline 9\n");
        let expected = json!({
            "kind": "UPDATED", "table": "users", "key": "ada", "value": "a\nb", "version": 7, "deadline_millis": 9,
        });
        assert_eq!(set.json(Hex::OFF), expected);
        let gone = ShownChange { table: None, cause: None, key, value: None, version: 0, deadline_millis: None };
        assert_eq!(
            (&*gone.text(Hex::OFF), gone.json(Hex::OFF)),
            ("GONE ada\n", json!({ "kind": "GONE", "key": "ada" }))
        );
    }

    #[test]
    fn a_silence_is_reported_once_and_each_message_ends_it() {
        let at = Now::from_millis;
        let mut silence = Silence::begin(at(0));
        assert!(!silence.is_too_long(false, at(14_999)));
        assert!(silence.is_too_long(false, at(15_000)));
        assert!(!silence.is_too_long(false, at(60_000)), "once");
        assert!(!silence.is_too_long(true, at(60_000)));
        assert!(silence.is_too_long(false, at(75_000)));
    }

    #[test]
    fn a_sequence_that_jumps_shows_the_changes_that_were_missed() {
        let mut sequences = Sequences::default();
        let mut missed = |incarnation, sequence, content| {
            let message = FeedMessage { position: FeedPosition { epoch: 1, incarnation, sequence }, content };
            sequences.missed(&FeedEvent { table: b"t", message })
        };
        let bookmark = FeedContent::Bookmark { elements: 0, digest: 0, durable: 0 };
        assert_eq!(missed(3, 40, bookmark), 0, "the first message");
        assert_eq!(missed(3, 40, bookmark), 0);
        assert_eq!(missed(3, 45, bookmark), 5);
        assert_eq!(missed(4, 3, bookmark), 2, "the beginning of the next life");
        assert_eq!(missed(3, 46, FeedContent::Dropped), 1, "the end of the last one");
        assert_eq!(missed(4, 3, bookmark), 0);
        let mut payload = Vec::new();
        let changes = [b"a", b"b"].map(|key| FeedChange {
            cause: Cause::Delete,
            version: 1,
            deadline_millis: None,
            key,
            value: b"",
        });
        encode_changes(FeedPosition { epoch: 1, incarnation: 4, sequence: 3 }, &changes, &mut payload);
        let message = FeedMessage::decode(&payload).unwrap();
        assert_eq!(missed(4, 3, message.content), 0);
        assert_eq!(missed(4, 5, bookmark), 0, "two changes came");
    }
}
