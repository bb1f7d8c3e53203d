//! What an operator sees and asks for.
//!
//! ```text
//! admin     over HTTP: health, metrics, the slow log, a live page
//! control   over a Unix socket in the folder of the store: a backup
//! ```
//! This room changes no element and no task.

pub mod admin;
pub mod control;
