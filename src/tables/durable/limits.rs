//! The bounds of what durable tables record.

/// Bytes of the records that a session may have in one epoch. A write that finds no room waits for the log.
pub(in crate::tables) const EFFECTS_BYTES_MAX: usize = 16 << 20;
/// With more bytes than that a session has the log close the epoch before the interval is over. So its buffer stays in the
/// processor's cache, and it seldom waits for room.
pub(in crate::tables) const EFFECTS_BYTES_EARLY: usize = 1 << 20;
const _: () = assert!(EFFECTS_BYTES_EARLY < EFFECTS_BYTES_LARGE);
/// Behind so many bytes a larger record, or a transaction, still finds room. Its size is bounded by the longest value, and
/// by [`TRANSACTION_EFFECTS_MAX`].
pub(in crate::tables) const EFFECTS_BYTES_LARGE: usize = EFFECTS_BYTES_MAX / 4;
/// Bytes of the records of one transaction: they are in memory until its epoch is on disk.
pub(in crate::tables) const TRANSACTION_EFFECTS_MAX: usize = 4 * EFFECTS_BYTES_MAX;
/// Bytes that all sessions together may store in one epoch. An epoch is one batch, which has less than 4 GiB, and is in
/// memory twice while the log writes it.
pub(in crate::tables) const EPOCH_BYTES_MAX: u64 = 1 << 30;
const _: () = assert!((TRANSACTION_EFFECTS_MAX + EFFECTS_BYTES_LARGE) as u64 <= EPOCH_BYTES_MAX / 4);
/// The lives of tables that the last record of a clean end names: 40 bytes each, which are in memory twice. With
/// more of them the next start is as one after a crash.
pub(in crate::tables) const ENDED_LIVES_MAX: usize = 4 << 20;
const _: () = assert!(40 * ENDED_LIVES_MAX as u64 <= EPOCH_BYTES_MAX / 4);
/// Bytes of the removals in one epoch while the disk is full: with heads and copies they fit into the smallest segment.
pub(in crate::tables) const FULL_EPOCH_BYTES_MAX: u64 = 16 << 10;
