//! The places of a task's record and of its value, in 32 bytes, and their key as a number.
//!
//! This module reads nothing.

use std::cmp::Ordering;

use super::format::Space;
use super::interface::TaskKey;
use super::segment::Place;

/// The key of a task. It has the order of the bytes, and is compared as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskId([u32; 3]);

impl TaskId {
    fn number(self) -> u128 {
        let [high, middle, low] = self.0;
        u128::from(high) << 64 | u128::from(middle) << 32 | u128::from(low)
    }

    /// The key of a record, if it has the length of a task's key.
    pub(super) fn of(key: &[u8]) -> Option<Self> {
        TaskKey::try_from(key).ok().map(Self::from)
    }
}

impl PartialOrd for TaskId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TaskId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl From<TaskKey> for TaskId {
    fn from([a, b, c, d, e, f, g, h, i, j, k, l]: TaskKey) -> Self {
        Self([[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_be_bytes))
    }
}

impl From<TaskId> for TaskKey {
    fn from(TaskId(words): TaskId) -> Self {
        let [[a, b, c, d], [e, f, g, h], [i, j, k, l]] = words.map(u32::to_be_bytes);
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }
}

/// No segment has the number 0.
const NOWHERE: Place = Place { segment: 0, offset: 0, length: 0, checksum: 0 };

/// The places of a task's record and of its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPlaces {
    task: Place,
    value: Place,
}

impl Default for TaskPlaces {
    fn default() -> Self {
        Self { task: NOWHERE, value: NOWHERE }
    }
}

impl TaskPlaces {
    fn of(&self, space: Space) -> &Place {
        if space == Space::Values { &self.value } else { &self.task }
    }

    pub(super) fn get(&self, space: Space) -> Option<Place> {
        Some(*self.of(space)).filter(|place| *place != NOWHERE)
    }

    /// Notes a new place, or that there is none. Returns the old one.
    pub(super) fn set(&mut self, space: Space, place: Option<Place>) -> Option<Place> {
        let old = self.get(space);
        debug_assert!(place.is_none_or(|place| place.segment > 0), "segments are numbered from 1");
        let now = place.unwrap_or(NOWHERE);
        if space == Space::Values {
            self.value = now
        } else {
            self.task = now
        }
        old
    }

    pub(super) fn is_empty(&self) -> bool {
        (self.task, self.value) == (NOWHERE, NOWHERE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_their_bytes() {
        let keys: Vec<TaskKey> = (0..12)
            .flat_map(|at| {
                [1, 2, 255].map(|byte| {
                    let mut key = [7; 12];
                    if let Some(of_key) = key.get_mut(at) {
                        *of_key = byte;
                    }
                    key
                })
            })
            .collect();
        for one in &keys {
            assert_eq!(TaskKey::from(TaskId::from(*one)), *one);
            for other in &keys {
                assert_eq!(TaskId::from(*one).cmp(&TaskId::from(*other)), one.cmp(other));
            }
        }
    }
}
