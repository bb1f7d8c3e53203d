//! The last record of each key, found from the newest segment to the oldest.
//!
//! ```text
//! newest segment ─► each record: its key is new ─► it is the winner, or the key is removed
//!                                └─ its key is known: the record is dead
//! ```
//! A dead record takes no memory. A removed key takes sixteen bytes while the log is read: two hashes with secret keys,
//! so that clients cannot make keys that share them.
//!
//! This module reads nothing.

use std::collections::{HashMap, HashSet};

use ahash::RandomState;

use super::fault::{Fault, planted};
use super::format::Space;
use super::record::Value;
use super::segment::Place;

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
    spaces: [HashMap<Box<[u8]>, Winner, RandomState>; 3],
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
    /// The records of a space, in no order.
    pub fn take(&mut self, space: Space) -> impl Iterator<Item = (Box<[u8]>, Winner)> + use<> {
        std::mem::take(self.of_mut(space)).into_iter()
    }

    /// The number of records in all spaces.
    pub(super) fn len(&self) -> usize {
        self.spaces.iter().map(HashMap::len).sum()
    }

    fn of_mut(&mut self, space: Space) -> &mut HashMap<Box<[u8]>, Winner, RandomState> {
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
    pub(super) fn earlier(&mut self, space: Space, key: Box<[u8]>, place: Option<Place>, body: Option<Value>) {
        if self.of_mut(space).contains_key(&key) {
            return;
        }
        let hash = self.removed.hash(space, &key);
        if self.removed.hashes.contains(&hash) {
            return;
        }
        match place {
            Some(place) if place.is_set_aside() && planted(Fault::SetAsideForgotten) => {}
            Some(place) => drop(self.of_mut(space).insert(key, Winner { place, body })),
            None => drop(self.removed.hashes.insert(hash)),
        }
    }

    /// All records were read: the removed keys are no longer needed.
    pub(super) fn forget_removed(&mut self) {
        self.removed = RemovedKeys::default();
    }

    /// Takes a record that comes after all records that were taken so far.
    pub(super) fn later(&mut self, space: Space, key: Box<[u8]>, place: Option<Place>, body: Option<Value>) {
        match place {
            Some(place) => drop(self.of_mut(space).insert(key, Winner { place, body })),
            None => drop(self.of_mut(space).remove(&key)),
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
        winners.earlier(Space::Tasks, b"a"[..].into(), None, None);
        winners.earlier(Space::Tasks, b"a"[..].into(), place, None);
        winners.earlier(Space::Values, b"a"[..].into(), place, None);
        winners.forget_removed();
        assert_eq!((winners.take(Space::Tasks).count(), winners.take(Space::Values).count()), (0, 1));
    }
}
