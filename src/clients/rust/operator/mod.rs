//! Clients of an operator: [`admin`] reads the metrics, [`control`] asks for a backup.
//!
//! They change no element and no task.

pub mod admin;
pub mod control;
