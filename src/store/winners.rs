//! The last record of each key, found from the newest segment to the oldest.
//!
//! ```text
//! newest segment ─► each record: its key is new ─► it is the winner, or the key is removed
//!                                └─ its key is known: the record is dead
//! ```
//! A dead record takes no memory. A removed key takes sixteen bytes while the log is read: two hashes with secret keys,
//! so that clients cannot make keys that share them.
//!
//! The winners are in the order of their keys. Keys are numbers that grow, so a log is nearly read in that order, and
//! neighbours are in the cache. In a hash table each would be far from the one before.
//!
//! This module reads nothing.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet, btree_map};
use std::ops::Deref;

use ahash::RandomState;

use super::fault::{Fault, planted};
use super::format::Space;
use super::record::Value;
use super::segment::Place;

/// Bytes of a key that needs no allocation.
const SHORT: usize = 14;

/// The key of a winner.
#[derive(Clone, Debug)]
pub struct WinnerKey(KeyBytes);

#[derive(Clone, Debug)]
enum KeyBytes {
    /// The length, and the bytes.
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl From<&[u8]> for WinnerKey {
    fn from(key: &[u8]) -> Self {
        let mut bytes = [0; SHORT];
        match (u8::try_from(key.len()), bytes.get_mut(..key.len())) {
            (Ok(length), Some(short)) => {
                short.copy_from_slice(key);
                Self(KeyBytes::Short(length, bytes))
            }
            _ => Self(KeyBytes::Long(key.into())),
        }
    }
}

impl Deref for WinnerKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or(bytes),
            KeyBytes::Long(key) => key,
        }
    }
}

impl Borrow<[u8]> for WinnerKey {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for WinnerKey {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for WinnerKey {}

impl PartialOrd for WinnerKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WinnerKey {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

/// The last record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Winner {
    /// Its place.
    pub place: Place,
    /// Its body, unless it is a value or set aside.
    pub body: Option<Value>,
}

/// The last record of each key.
#[derive(Debug, Default)]
pub struct Winners {
    spaces: [BTreeMap<WinnerKey, Winner>; 3],
    removed: RemovedKeys,
}

/// Keys that a later record has removed.
#[derive(Debug, Default)]
struct RemovedKeys {
    hashes: HashSet<(u64, u64), RandomState>,
    secrets: [RandomState; 2],
}

impl RemovedKeys {
    fn hash(&self, space: Space, key: &[u8]) -> (u64, u64) {
        let [first, second] = &self.secrets;
        (first.hash_one((space, key)), second.hash_one((space, key)))
    }
}

impl Winners {
    /// The records of a space, in the order of their keys.
    pub fn take(&mut self, space: Space) -> impl ExactSizeIterator<Item = (WinnerKey, Winner)> + use<> {
        std::mem::take(self.of_mut(space)).into_iter()
    }

    /// The number of records in all spaces.
    pub(super) fn len(&self) -> usize {
        self.spaces.iter().map(BTreeMap::len).sum()
    }

    fn of_mut(&mut self, space: Space) -> &mut BTreeMap<WinnerKey, Winner> {
        let [meta, tasks, values] = &mut self.spaces;
        match space {
            Space::Meta => meta,
            Space::Tasks => tasks,
            Space::Values => values,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Space, &[u8], &Winner)> {
        let all = Space::ALL.into_iter().zip(&self.spaces);
        all.flat_map(|(space, records)| records.iter().map(move |(key, winner)| (space, &**key, winner)))
    }

    /// The records in segments below this one, in the order of their places.
    pub(super) fn below(&self, segment: u32) -> Vec<(Space, Box<[u8]>, Winner)> {
        let old = self.iter().filter(|(_, _, winner)| winner.place.segment < segment);
        let mut old: Vec<_> = old.map(|(space, key, winner)| (space, key.into(), winner.clone())).collect();
        old.sort_by(|one, other| {
            let order = |(space, key, winner): &(Space, Box<[u8]>, Winner)| {
                (winner.place.segment, winner.place.offset, *space, key.clone())
            };
            order(one).cmp(&order(other))
        });
        old
    }

    /// Takes a record that comes before all records that were taken so far.
    pub(super) fn earlier(&mut self, space: Space, key: &[u8], place: Option<Place>, body: Option<Value>) {
        let is_removed = !self.removed.hashes.is_empty() && {
            let hash = self.removed.hash(space, key);
            self.removed.hashes.contains(&hash)
        };
        if is_removed {
            return;
        }
        match (self.of_mut(space).entry(WinnerKey::from(key)), place) {
            (btree_map::Entry::Occupied(_), _) => {}
            (btree_map::Entry::Vacant(_), Some(place)) if place.is_set_aside() && planted(Fault::SetAsideForgotten) => {
            }
            (btree_map::Entry::Vacant(free), Some(place)) => drop(free.insert(Winner { place, body })),
            (btree_map::Entry::Vacant(_), None) => {
                let hash = self.removed.hash(space, key);
                self.removed.hashes.insert(hash);
            }
        }
    }

    /// All records were read: the removed keys are no longer needed.
    pub(super) fn forget_removed(&mut self) {
        self.removed = RemovedKeys::default();
    }

    /// Takes a record that comes after all records that were taken so far.
    pub(super) fn later(&mut self, space: Space, key: &[u8], place: Option<Place>, body: Option<Value>) {
        match place {
            Some(place) => drop(self.of_mut(space).insert(WinnerKey::from(key), Winner { place, body })),
            None => drop(self.of_mut(space).remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_removal_hides_all_earlier_records_of_its_key_in_its_space() {
        let mut winners = Winners::default();
        let place = Some(Place::new(1, 512, 1, 7));
        winners.earlier(Space::Tasks, b"a", None, None);
        winners.earlier(Space::Tasks, b"a", place, None);
        winners.earlier(Space::Values, b"a", place, None);
        winners.forget_removed();
        assert_eq!((winners.take(Space::Tasks).count(), winners.take(Space::Values).count()), (0, 1));
    }
}
