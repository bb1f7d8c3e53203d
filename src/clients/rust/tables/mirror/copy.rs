//! The copy of a table: what is known of each key, and the rules by which it is merged.
//!
//! ```text
//!                        row of a scan                       change of the feed
//! key not known          taken; ahead as it is marked        taken
//! known, same round      the highest version wins            the highest version wins; not ahead from its version on
//! known, older round     taken; ahead as it is marked        taken; if it is older than what is known: kept, ahead
//! known, not trusted     taken; ahead as it is marked        taken
//! ```
//! A *round* is one scan of the table, and the changes that have come since it began. A key that the round has not
//! confirmed is swept away when its scan is over. A key that was last confirmed before another epoch, or before a wrong
//! digest, is not trusted: anything outranks it. Deletions are remembered until the copy is exact, because a row that
//! was read before a deletion may come after it.
//!
//! A key is *ahead* while the copy has a version of it that the feed has not published yet.
//!
//! This module knows no sequence and asks no server.

use std::sync::Arc;

use ahash::HashMap;

use super::event::MirrorChange;
use crate::feed::{Cause, Digest, FeedChange};
use crate::services::tables::wire::{MirrorRow, RowMark};

/// Bytes that an entry takes beside its key and value: in the map, and the heads of two counted allocations.
const ENTRY_BYTES: u64 = 120;

/// What is known of a key.
#[derive(Debug)]
struct Known {
    /// `None`: the key is deleted, and the deletion is remembered.
    value: Option<Arc<[u8]>>,
    version: u64,
    deadline_millis: Option<u64>,
    /// The last round that has confirmed it.
    round: u32,
    /// The feed has not published this version yet. It counts in the present round only.
    is_ahead: bool,
}

/// An element of a mirror's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorElement<'c> {
    /// The value.
    pub value: &'c [u8],
    /// The version, which grows with each change.
    pub version: u64,
    /// The deadline, in milliseconds since 1970. The element is there until the mirror says otherwise.
    pub deadline_millis: Option<u64>,
}

/// What a row or a change says of a key.
struct News<'n> {
    key: &'n [u8],
    version: u64,
    /// `None`: it is deleted.
    value: Option<&'n [u8]>,
    deadline_millis: Option<u64>,
    /// The feed has not published this version. Always false for a change.
    is_ahead: bool,
    /// `None`: from a scan.
    cause: Option<Cause>,
}

/// The copy. It is exact only if its owner says so.
#[derive(Debug, Default)]
pub(super) struct TableCopy {
    known: HashMap<Arc<[u8]>, Known>,
    /// The elements with a value.
    digest: Digest,
    bytes: u64,
    /// Keys of the present round that are ahead.
    ahead: usize,
    round: u32,
    /// The first round that is trusted.
    trusted: u32,
    /// Keys of rounds that are not trusted.
    untrusted: usize,
}

impl TableCopy {
    /// The digest over the elements of the copy, and their number.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// Keys with a version that the feed has not published yet.
    pub(super) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Whether all that is known is trusted. Otherwise an equal digest proves nothing, because a version represents a
    /// value only within one epoch.
    pub(super) fn is_trusted(&self) -> bool {
        self.untrusted == 0
    }

    /// The present round.
    pub(super) fn round(&self) -> u32 {
        self.round
    }

    /// Roughly the bytes that the copy takes, with the remembered deletions.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The element of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<MirrorElement<'_>> {
        self.known.get(key).and_then(Known::element)
    }

    /// All elements, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], MirrorElement<'_>)> {
        self.known.iter().filter_map(|(key, known)| Some((&**key, known.element()?)))
    }

    /// Begins a round. With `distrust`, all that is known is outranked by what comes.
    pub(super) fn begin_round(&mut self, distrust: bool) {
        self.round += 1;
        self.ahead = 0;
        if distrust {
            self.trusted = self.round;
            self.untrusted = self.known.len();
        }
    }

    /// Merges a row of the present round's scan.
    pub(super) fn merge_row(&mut self, row: &MirrorRow<'_>) -> Option<MirrorChange> {
        self.merge(&News {
            key: row.key,
            version: row.version,
            value: (row.mark != RowMark::Deleted).then_some(row.value),
            deadline_millis: row.deadline_millis,
            is_ahead: row.mark != RowMark::Published,
            cause: None,
        })
    }

    /// Merges a change of the feed. Without `remember`, a deletion leaves nothing behind.
    pub(super) fn merge_change(&mut self, change: &FeedChange<'_>, remember: bool) -> Option<MirrorChange> {
        if !remember && !change.cause.is_live() {
            return self.remove(change);
        }
        self.merge(&News {
            key: change.key,
            version: change.version,
            value: change.cause.is_live().then_some(change.value),
            deadline_millis: change.deadline_millis,
            is_ahead: false,
            cause: Some(change.cause),
        })
    }

    fn merge(&mut self, news: &News<'_>) -> Option<MirrorChange> {
        let Some(known) = self.known.get_mut(news.key) else { return self.insert(news) };
        let is_present = known.round == self.round;
        let was_ahead = is_present && known.is_ahead;
        let is_untrusted = known.round < self.trusted;
        let outranks = is_untrusted || news.version > known.version;
        self.untrusted -= usize::from(is_untrusted);
        let is_row = news.cause.is_none();
        known.round = self.round;
        if !outranks && news.version < known.version && (is_present || !is_row) {
            // The change was on its way while an earlier round read a later version, which is still to be published.
            known.is_ahead = was_ahead || !is_present;
            self.ahead += usize::from(known.is_ahead && !was_ahead);
            return None;
        }
        known.is_ahead = match (outranks, is_row) {
            // The same version again: the change of a row, or the row of a change.
            (false, true) if is_present => was_ahead,
            _ => news.is_ahead,
        };
        self.ahead = self.ahead + usize::from(known.is_ahead) - usize::from(was_ahead);
        if !outranks && news.version == known.version {
            return None;
        }
        let was_live = known.value.is_some();
        if let Some(old) = &known.value {
            self.digest.remove(news.key, known.version);
            self.bytes -= old.len() as u64;
        }
        known.value = news.value.map(Arc::from);
        (known.version, known.deadline_millis) = (news.version, news.deadline_millis);
        if let Some(value) = &known.value {
            self.digest.add(news.key, known.version);
            self.bytes += value.len() as u64;
        }
        let value = known.value.clone();
        if !was_live && value.is_none() {
            return None;
        }
        let (key, _) = self.known.get_key_value(news.key)?;
        Some(news.event(Arc::clone(key), value))
    }

    fn insert(&mut self, news: &News<'_>) -> Option<MirrorChange> {
        let key: Arc<[u8]> = Arc::from(news.key);
        let value: Option<Arc<[u8]>> = news.value.map(Arc::from);
        self.bytes += ENTRY_BYTES + key.len() as u64 + value.as_ref().map_or(0, |value| value.len() as u64);
        self.ahead += usize::from(news.is_ahead);
        if value.is_some() {
            self.digest.add(&key, news.version);
        }
        let known = Known {
            value: value.clone(),
            version: news.version,
            deadline_millis: news.deadline_millis,
            round: self.round,
            is_ahead: news.is_ahead,
        };
        self.known.insert(Arc::clone(&key), known);
        value.is_some().then(|| news.event(key, value))
    }

    /// Removes an element by a deletion that is not older.
    fn remove(&mut self, change: &FeedChange<'_>) -> Option<MirrorChange> {
        if self.known.get(change.key)?.version > change.version {
            return None;
        }
        let (key, known) = self.known.remove_entry(change.key)?;
        self.forget(&key, &known);
        let FeedChange { version, cause, .. } = *change;
        known.value.is_some().then_some(MirrorChange {
            key,
            value: None,
            version,
            deadline_millis: None,
            cause: Some(cause),
        })
    }

    /// The bytes, the digest and the count of an entry that has left the map.
    fn forget(&mut self, key: &[u8], known: &Known) {
        let value_bytes = known.value.as_ref().map_or(0, |value| value.len() as u64);
        self.bytes -= ENTRY_BYTES + key.len() as u64 + value_bytes;
        self.ahead -= usize::from(known.round == self.round && known.is_ahead);
        self.untrusted -= usize::from(known.round < self.trusted);
        if known.value.is_some() {
            self.digest.remove(key, known.version);
        }
    }

    /// The scan of this round is over: removes what the round has not confirmed. Returns the elements among it.
    pub(super) fn sweep(&mut self) -> Vec<MirrorChange> {
        let round = self.round;
        self.take(None, |known| known.round != round)
    }

    /// The copy is exact: forgets the deletions, and nothing is ahead any more.
    pub(super) fn settle(&mut self) {
        if self.ahead > 0 {
            self.known.values_mut().for_each(|known| known.is_ahead = false);
            self.ahead = 0;
        }
        if self.known.len() as u64 > self.digest.elements {
            self.take(None, |known| known.value.is_none());
        }
    }

    /// The table is gone: removes all.
    pub(super) fn clear(&mut self) -> Vec<MirrorChange> {
        self.take(Some(Cause::DeleteWithTable), |_| true)
    }

    fn take(&mut self, cause: Option<Cause>, mut taken: impl FnMut(&Known) -> bool) -> Vec<MirrorChange> {
        let mut known = std::mem::take(&mut self.known);
        let mut gone = Vec::new();
        for (key, entry) in known.extract_if(|_, entry| taken(entry)) {
            self.forget(&key, &entry);
            if entry.value.is_some() {
                gone.push(MirrorChange { key, value: None, version: 0, deadline_millis: None, cause });
            }
        }
        self.known = known;
        gone
    }
}

impl Known {
    fn element(&self) -> Option<MirrorElement<'_>> {
        let Self { version, deadline_millis, .. } = *self;
        self.value.as_deref().map(|value| MirrorElement { value, version, deadline_millis })
    }
}

impl News<'_> {
    fn event(&self, key: Arc<[u8]>, value: Option<Arc<[u8]>>) -> MirrorChange {
        let Self { version, deadline_millis, cause, .. } = *self;
        MirrorChange { key, value, version, deadline_millis, cause }
    }
}
