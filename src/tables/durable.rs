//! Durable tables: their changes go into a log, an epoch at a time.
//!
//! ```text
//! worker: CAS ─► record, into its own buffer of the open epoch            always: the answer waits for the epoch
//! log:    close ─► take all buffers ─► one batch, with copies in front ─► sync ─► answers, announcements
//! ```
//! `epochs` has the order of epochs and effects, `records` the bytes, `writer` a session's buffers, `log` the thread that
//! writes, `answers` the epoch for which an answer waits. The log itself is in `store`.

pub(super) mod altering;
pub(super) mod answers;
pub(super) mod check;
mod company;
pub(super) mod disk;
pub(super) mod epochs;
pub(super) mod judge;
pub(super) mod limits;
pub(super) mod loaded;
pub(super) mod log;
pub(super) mod lost;
pub(super) mod marks;
pub(super) mod opening;
mod pace;
pub(super) mod records;
mod remembered;
pub(super) mod reports;
pub(super) mod room;
pub(super) mod state;
pub(super) mod tables;
pub(super) mod writer;
pub(super) mod writer_records;
