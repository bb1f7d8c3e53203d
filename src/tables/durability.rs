//! What is on disk of a table, and how far ALTER_TABLE has come.
//!
//! ```text
//! in memory ── begin ──► coming: changes are recorded, and a walk copies what is there ── recorded ──► durable
//!     ▲                    │                                                                             │
//!     └────── leave ───────┴─────────────────────────────────────────────────────────────────────────────┘
//! ```
//! An opening knows the table from the record behind the walk on. Each way leads through the latch of the name, so no
//! operation sees two states, and through the lock of the catalog.
//!
//! This file records nothing.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::lock::{Mutex, MutexGuard};

/// What is on disk of a table, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing.
    #[default]
    None = 0,
    /// A state that clients could have seen at one moment, a second ago at most.
    Soon = 1,
    /// All that was answered, seen or announced.
    Always = 2,
}

impl Durability {
    /// The durability with this number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|durability| *durability as u8 == number)
    }

    /// All of them, by their numbers.
    pub const ALL: [Self; 3] = [Self::None, Self::Soon, Self::Always];

    /// Its word in flags and in STATS.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Soon => "soon",
            Self::Always => "always",
        }
    }
}

/// In `epoch`: the table has no record that an opening would find.
const NO_EPOCH: u64 = u64::MAX;
/// In `walked`: there is nothing left to be copied.
const WALKED: u64 = u64::MAX;

/// The durability of a table. Written under the latch of the name and the lock of the catalog, but for `walked`.
pub(super) struct TableDurability {
    /// A [`Durability`]: what holds of changes. That of a table which is coming is `Soon`.
    kind: AtomicU8,
    /// A [`Durability`]: what CREATE_TABLE or ALTER_TABLE has said last.
    said: AtomicU8,
    /// The life of the table in its records. 0: it was never recorded.
    incarnation: AtomicU64,
    /// The number of its last record.
    record: AtomicU64,
    /// The epoch of that record, 0 if it is on disk.
    epoch: AtomicU64,
    /// The last epoch with a record of the table or of its elements, while all of it is always on disk. Raised by writers.
    changed: AtomicU64,
    /// Elements at positions below are copied. Written by the session that walks.
    walked: AtomicU64,
    walk: Mutex<()>,
}

// Relaxed, all accesses: the latch orders them with the batches of all sessions. The log finds the number and the
// incarnation behind the lock of its tables.
impl TableDurability {
    /// Of a new table with this generation.
    pub(super) fn new(durability: Durability, generation: u64) -> Self {
        let incarnation = if durability == Durability::None { 0 } else { generation };
        Self {
            kind: AtomicU8::new(durability as u8),
            said: AtomicU8::new(durability as u8),
            incarnation: AtomicU64::new(incarnation),
            record: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            walked: AtomicU64::new(WALKED),
            walk: Mutex::new(()),
        }
    }

    /// Whether changes are recorded.
    #[inline]
    pub(super) fn is_recorded(&self) -> bool {
        self.kind.load(Ordering::Relaxed) != Durability::None as u8
    }

    /// Whether an answer waits until what it shows is on disk.
    #[inline]
    pub(super) fn is_always(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == Durability::Always as u8
    }

    /// The last epoch with a record of the table or of its elements, for a thread that has seen the changes: the word of an
    /// element, or the catalog, has shown it too.
    pub(super) fn last_epoch(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Writer: this epoch, in which the caller is, has a record of it. Called before the CAS, or before others see the table.
    pub(super) fn raise_epoch(&self, epoch: u64) {
        // A load alone leaves the line to other writers of the epoch.
        if self.last_epoch() < epoch {
            self.changed.fetch_max(epoch, Ordering::Relaxed);
        }
    }

    /// What holds of changes.
    pub(super) fn kind(&self) -> Durability {
        Durability::of_number(self.kind.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// What was said last. It holds when the record of the table is on disk.
    pub(super) fn said(&self) -> Durability {
        Durability::of_number(self.said.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// The life of the table in its records.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Relaxed)
    }

    /// The number of its last record.
    pub(super) fn record(&self) -> u64 {
        self.record.load(Ordering::Relaxed)
    }

    /// The epoch of its last record, 0 if that is on disk.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether changes are recorded, and an opening would not know the table.
    pub(super) fn is_coming(&self) -> bool {
        self.epoch() == NO_EPOCH
    }

    /// The position up to which elements are copied. `None`: all are.
    pub(super) fn walked(&self) -> Option<u64> {
        Some(self.walked.load(Ordering::Relaxed)).filter(|walked| *walked != WALKED)
    }

    /// The session walks. `None`: another one does.
    pub(super) fn begin_to_walk(&self) -> Option<MutexGuard<'_, ()>> {
        self.walk.try_lock()
    }

    /// Walker: all elements below this position are copied, or about to be. `None`: all elements of the table are.
    pub(super) fn set_walked(&self, position: Option<u64>) {
        self.walked.store(position.unwrap_or(WALKED), Ordering::Relaxed);
    }

    /// Whether the bytes of the element at this position are among those that count.
    #[inline]
    pub(super) fn counts(&self, position: impl FnOnce() -> u64) -> bool {
        self.walked().is_none_or(|walked| position() < walked)
    }

    /// Changes are recorded from now on, in this life.
    pub(super) fn begin(&self, said: Durability, incarnation: u64) {
        self.set_walked(Some(0));
        self.epoch.store(NO_EPOCH, Ordering::Relaxed);
        self.record.store(0, Ordering::Relaxed);
        self.incarnation.store(incarnation, Ordering::Relaxed);
        self.said.store(said as u8, Ordering::Relaxed);
        self.kind.store(Durability::Soon as u8, Ordering::Relaxed);
    }

    /// While the table is coming: it becomes something else.
    pub(super) fn say(&self, said: Durability) {
        self.said.store(said as u8, Ordering::Relaxed);
    }

    /// The table has a record of this number in this epoch, from which an opening knows it.
    pub(super) fn note_record(&self, said: Durability, number: u64, epoch: u64) {
        self.record.store(number, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.say(said);
        self.kind.store(said as u8, Ordering::Relaxed);
    }

    /// The table was read from the log: this life, with a last record of this number.
    pub(super) fn load(&self, said: Durability, incarnation: u64, number: u64) {
        self.incarnation.store(incarnation, Ordering::Relaxed);
        self.note_record(said, number, 0);
    }

    /// Nothing is recorded any more.
    pub(super) fn leave(&self) {
        self.epoch.store(0, Ordering::Relaxed);
        self.set_walked(None);
        self.say(Durability::None);
        self.kind.store(Durability::None as u8, Ordering::Relaxed);
    }
}
