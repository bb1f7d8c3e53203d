//! Tests that go through all parts of this room.

mod fuzz;
