//! Cleaning: what counts in a segment is copied, so that its space comes back.
//!
//! ```text
//! choice ─► a segment ─► position: its next records ─► copies: the live ones, at the front of the next batch
//! ```
//! This module writes nothing; see `log.rs`.

mod choice;
pub(in crate::store) mod copies;
pub(in crate::store) mod position;
