//! The last record of each key, found from the newest segment to the oldest.
//!
//! ```text
//! newest segment ─► each record: its key is new ─► it is the winner, or the key is removed
//!                                └─ its key is known: the record is dead
//! ```
//! A dead record takes no memory. A removed key takes sixteen bytes while the log is read: two hashes with secret keys,
//! so that clients cannot make keys that share them.
//!
//! The places of tasks and of their values are in one table, which the owner of the log takes over. Their keys are
//! numbers that grow, so each segment is nearly read in their order.
//!
//! This module reads nothing.

use std::collections::{BTreeMap, HashSet, btree_map};

use ahash::RandomState;

use super::bodies::{BodyAt, BodyBlocks, FoundBodies};
use crate::chunked_map::{ChunkFiller, ChunkedMap};
use crate::store::errors::Error;
use crate::store::fault::{Fault, planted};
use crate::store::format::Space;
use crate::store::interface::TaskKey;
use crate::store::log::Log;
use crate::store::places::{TaskId, TaskPlaces};
use crate::store::record::{Body, RecordBatch, Value};
use crate::store::segment::Place;

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
    /// Records of [`Space::Meta`], and those whose keys have not the length of a task's key.
    others: BTreeMap<(Space, Box<[u8]>), Winner>,
    /// While the log is read.
    filled: ChunkFiller<TaskId, FoundTask>,
    /// Then.
    tasks: ChunkedMap<TaskId, FoundTask>,
    bodies: BodyBlocks,
    removed: RemovedKeys,
}

/// The last records of a task and of its value.
#[derive(Clone, Copy, Debug, Default)]
struct FoundTask {
    places: TaskPlaces,
    /// The body of the task, unless it is set aside.
    body: Option<BodyAt>,
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

    fn has(&self, space: Space, key: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.hash(space, key))
    }
}

/// The key as that of a task, if it is one.
fn task_id(space: Space, key: &[u8]) -> Option<TaskId> {
    if space == Space::Meta { None } else { TaskId::of(key) }
}

impl Winners {
    /// Writes a batch of records, and takes them.
    pub(super) fn write_and_take(&mut self, log: &mut Log, batch: RecordBatch) -> Result<(), Error> {
        let places = log.append(&batch)?;
        for (record, place) in batch.records.into_iter().zip(places) {
            let body = match record.body {
                Body::Bytes(ref body) if record.space != Space::Values => Some(&**body),
                Body::Bytes(_) | Body::Removed | Body::SetAside => None,
            };
            self.later(record.space, &record.key, place, body);
        }
        Ok(())
    }

    /// The other records of a space: all of [`Space::Meta`], and those whose keys have not the length of a task's key.
    pub(in crate::store) fn take_others(&mut self, space: Space) -> Vec<(Box<[u8]>, Winner)> {
        let of_space = self.others.extract_if(.., |(of, _), _| *of == space);
        of_space.map(|((_, key), winner)| (key, winner)).collect()
    }

    /// The places of all tasks and values, and the bodies of the tasks.
    pub(in crate::store) fn take_tasks(&mut self) -> (ChunkedMap<TaskId, TaskPlaces>, FoundBodies) {
        let tasks = std::mem::take(&mut self.tasks);
        let mut found = Vec::with_capacity(tasks.iter().filter(|(_, task)| task.body.is_some()).count());
        let places = tasks.map(|id, FoundTask { places, body }| {
            found.extend(body.map(|body| (id, body)));
            places
        });
        (places, FoundBodies { found, blocks: std::mem::take(&mut self.bodies) })
    }

    /// The records of a space, in the order of their keys.
    #[cfg(test)]
    pub(in crate::store) fn all(&self, space: Space) -> BTreeMap<Box<[u8]>, Winner> {
        let others = self.others.iter().filter(|((of, _), _)| *of == space);
        let others = others.map(|((_, key), winner)| (key.clone(), winner.clone()));
        let tasks = self.tasks().filter(|(of, ..)| *of == space);
        let tasks = tasks.map(|(space, key, place)| (Box::from(key), self.winner(space, &key, place)));
        others.chain(tasks).collect()
    }

    /// The records of tasks and values.
    fn tasks(&self) -> impl Iterator<Item = (Space, TaskKey, Place)> {
        self.tasks.iter().flat_map(|(id, task)| {
            let of = |space| task.places.get(space).map(|place| (space, TaskKey::from(*id), place));
            of(Space::Tasks).into_iter().chain(of(Space::Values))
        })
    }

    /// The record of a task or value at this place.
    fn winner(&self, space: Space, key: &TaskKey, place: Place) -> Winner {
        let task = self.tasks.get(&TaskId::from(*key)).filter(|_| space == Space::Tasks);
        let body = task.and_then(|task| task.body).map(|at| Value::from(self.bodies.get(at)));
        Winner { place, body }
    }

    /// The number of records in all spaces, after the log was read.
    pub(in crate::store) fn len(&self) -> usize {
        self.others.len() + self.tasks().count()
    }

    /// Calls `each` with the place of each record, after the log was read.
    pub(in crate::store) fn each(&self, mut each: impl FnMut(Space, &[u8], Place)) {
        self.others.iter().for_each(|((space, key), winner)| each(*space, key, winner.place));
        self.tasks().for_each(|(space, key, place)| each(space, &key, place));
    }

    /// The records in segments below this one, in the order of their places.
    pub(in crate::store) fn below(&self, segment: u32) -> Vec<(Space, Box<[u8]>, Winner)> {
        let others = self.others.iter().map(|((space, key), winner)| (*space, key.clone(), winner.clone()));
        let tasks = self.tasks().filter(|(_, _, place)| place.segment < segment);
        let tasks = tasks.map(|(space, key, place)| (space, Box::from(key), self.winner(space, &key, place)));
        let mut old: Vec<_> = others.filter(|(_, _, winner)| winner.place.segment < segment).chain(tasks).collect();
        old.sort_by(|one, other| {
            let order = |(space, key, winner): &(Space, Box<[u8]>, Winner)| {
                (winner.place.segment, winner.place.offset, *space, key.clone())
            };
            order(one).cmp(&order(other))
        });
        old
    }

    /// Takes a record that comes before all records that were taken so far. Returns whether it is the last of a removed key.
    pub(in crate::store) fn earlier(
        &mut self,
        space: Space,
        key: &[u8],
        place: Option<Place>,
        body: Option<&[u8]>,
    ) -> bool {
        if self.removed.has(space, key) {
            return false;
        }
        let is_forgotten = place.is_some_and(|place| place.is_set_aside()) && planted(Fault::SetAsideForgotten);
        match (task_id(space, key), place) {
            (Some(id), Some(place)) if !is_forgotten => self.earlier_of_task(space, id, place, body),
            (None, Some(place)) if !is_forgotten => {
                if let btree_map::Entry::Vacant(free) = self.others.entry((space, key.into())) {
                    free.insert(Winner { place, body: body.map(Value::from) });
                }
            }
            (_, Some(_)) => {}
            (id, None) => {
                let is_known = match id {
                    Some(id) => self.filled.get(&id).is_some_and(|task| task.places.get(space).is_some()),
                    None => self.others.contains_key(&(space, key.into())),
                };
                if !is_known {
                    let hash = self.removed.hash(space, key);
                    self.removed.hashes.insert(hash);
                }
                return !is_known;
            }
        }
        false
    }

    fn earlier_of_task(&mut self, space: Space, id: TaskId, place: Place, body: Option<&[u8]>) {
        let task = self.filled.get_or_insert(id);
        if task.places.get(space).is_some() {
            return;
        }
        task.places.set(space, Some(place));
        if space == Space::Tasks {
            task.body = body.map(|body| self.bodies.add(body));
        }
    }

    /// All records were read: the removed keys are no longer needed.
    pub(in crate::store) fn finish(&mut self) {
        self.removed = RemovedKeys::default();
        self.tasks = std::mem::take(&mut self.filled).finish();
    }

    /// Takes a record that comes after all records that were taken so far.
    pub(in crate::store) fn later(&mut self, space: Space, key: &[u8], place: Option<Place>, body: Option<&[u8]>) {
        let Some(id) = task_id(space, key) else {
            match place {
                Some(place) => {
                    self.others.insert((space, key.into()), Winner { place, body: body.map(Value::from) });
                }
                None => drop(self.others.remove(&(space, key.into()))),
            }
            return;
        };
        let mut task = self.tasks.get(&id).copied().unwrap_or_default();
        task.places.set(space, place);
        if space == Space::Tasks {
            task.body.take().into_iter().for_each(|old| self.bodies.release(old));
            task.body = body.map(|body| self.bodies.add(body));
        }
        match task.places.is_empty() {
            true => self.tasks.remove(&id),
            false => self.tasks.insert(id, task),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_removal_hides_all_earlier_records_of_its_key_in_its_space() {
        for key in [&b"a"[..], &[7; 12]] {
            let mut winners = Winners::default();
            let place = Some(Place::new(1, 512, 1, 7));
            winners.earlier(Space::Tasks, key, None, None);
            winners.earlier(Space::Tasks, key, place, Some(b"dead"));
            winners.earlier(Space::Values, key, place, None);
            winners.finish();
            assert_eq!((winners.all(Space::Tasks).len(), winners.all(Space::Values).len()), (0, 1));
            assert_eq!(winners.len(), 1);
        }
    }

    #[test]
    fn the_last_record_of_a_task_wins_with_its_body() {
        let (key, [old, new]) = ([7; 12], [1, 2].map(|segment| Place::new(segment, 512, 1, 7)));
        let mut winners = Winners::default();
        winners.earlier(Space::Tasks, &key, Some(new), Some(b"new"));
        winners.earlier(Space::Tasks, &key, Some(old), Some(b"old"));
        winners.earlier(Space::Tasks, &key, None, None);
        winners.finish();
        let body = |winners: &Winners| winners.all(Space::Tasks).into_values().next().map(|winner| winner.body);
        assert_eq!(body(&winners), Some(Some(Value::from(&b"new"[..]))));
        winners.later(Space::Tasks, &key, Some(new), Some(b"newer"));
        assert_eq!(body(&winners), Some(Some(Value::from(&b"newer"[..]))));
        winners.later(Space::Tasks, &key, Some(Place::of_set_aside(3, 512)), None);
        assert_eq!(body(&winners), Some(None));
        winners.later(Space::Tasks, &key, None, None);
        assert_eq!((winners.len(), body(&winners)), (0, None));
        winners.later(Space::Tasks, &key, Some(new), Some(b"again"));
        let (places, bodies) = winners.take_tasks();
        assert_eq!(places.get(&TaskId::from(key)).and_then(|places| places.get(Space::Tasks)), Some(new));
        bodies.consume(|of, body| assert_eq!((*of, body), (key, &b"again"[..])));
    }
}
