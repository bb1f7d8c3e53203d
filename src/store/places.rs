//! The places of a task's record and of its value, in 32 bytes.
//!
//! This module reads nothing.

use super::format::Space;
use super::segment::Place;

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
