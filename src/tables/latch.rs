//! The latch of a name: while a session holds it, no other session sees or changes an element of the table.
//!
//! This file has the words that sessions read and write without a lock. `latches.rs` has the order of those who wait.
//!
//! ```text
//! another session                                the session that takes a latch
//! begin:   word := odd                           latch: filter, then the bit of the edition
//!          fence (SeqCst), that of the pin       drain: fence (SeqCst)
//!          each request: loads the edition              which words are odd?
//! end:     word := even                          until each of them has changed: goes on with other work
//! ```
//!
//! # Races
//!
//! - **A batch begins while a latch is set.** If the batch's fence comes first, the drain finds its word odd, and waits
//!   for its end. If the drain's fence comes first, each request of the batch loads the bit, and is refused as `Busy`.
//!   If both see each other, the batch ends soon, since a refused request does not wait in it.
//! - **A batch ends, and its session begins another one.** The word has changed, so the drain does not wait for the later
//!   batch. That one began after the drain's fence, and loads the bit.
//! - **A latch ends while a request looks.** The bit or the filter shows the end (Acquire), and the request sees all
//!   changes of the holder. If the request has loaded the bit, it asks again under the lock of `latches.rs`.
//! - **A latch of another name.** A request that finds the bit, and its name not latched, continues. If its name is
//!   latched afterwards, the drain waits for the batch of this request.
//! - **A name gets another table.** The latch is of the name, so it outlasts the life of a table. The bit and the count of
//!   the edition are changed apart from each other, each by one addition, so none of the two overwrites the other.
//!
//! The expiry thread looks at the latch of each element's table before it commits an expiry, in a batch of its own. The
//! compactor moves entries under a latch: a CAS fails, and is tried again. The reaper works in tables that have no name,
//! or another life.

use std::sync::Arc;

use crossbeam::utils::CachePadded;

use super::sync::{AtomicU64, Ordering, fence};

/// In the edition: a name is being added or removed.
const CHANGING: u64 = 1;
/// In the edition: some name is latched.
const LATCHED: u64 = 2;
/// One change of a name, in the edition.
const STEP: u64 = 4;

/// The edition of the catalog.
///
/// ```text
/// changes of names:62 │ some name is latched:1 │ a name is being changed:1
/// ```
pub(super) struct Edition(CachePadded<AtomicU64>);

impl Edition {
    pub(super) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(0)))
    }

    #[inline]
    pub(super) fn load(&self) -> u64 {
        // Acquire: pairs with the Releases in `end_change` and `unlatch`, and with the AcqRel in `latch`.
        self.0.load(Ordering::Acquire)
    }

    /// Whether no name is latched or being changed.
    #[inline]
    pub(super) fn is_plain(edition: u64) -> bool {
        edition.is_multiple_of(STEP)
    }

    /// Whether some name is latched.
    #[inline]
    pub(super) fn is_latched(edition: u64) -> bool {
        edition & LATCHED != 0
    }

    /// A name is about to be changed. One thread at a time does so.
    pub(super) fn begin_change(&self) {
        // Acquire: the change cannot be made before this. Release: pairs with the Acquire in `load`.
        self.0.fetch_add(CHANGING, Ordering::AcqRel);
    }

    /// The name is changed. A thread that loads this edition looks the name up, and finds it changed.
    pub(super) fn end_change(&self) {
        // Release: pairs with the Acquire in `load`.
        self.0.fetch_add(STEP - CHANGING, Ordering::Release);
    }

    /// Some name is latched. The caller fences before it looks at the words.
    pub(super) fn latch(&self) {
        // Release: pairs with the Acquire in `load`, after which the filter is read. Acquire: the drain comes after this.
        self.0.fetch_or(LATCHED, Ordering::AcqRel);
    }

    /// No name is latched.
    pub(super) fn unlatch(&self) {
        // Release: pairs with the Acquire in `load`. A session that loads this sees the changes of the holder.
        self.0.fetch_and(!LATCHED, Ordering::Release);
    }
}

/// The word of a session: whether it is in a batch. Only this session writes it, in a line of its own.
pub(super) struct BatchWord(CachePadded<AtomicU64>);

impl BatchWord {
    pub(super) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(0)))
    }

    /// Session: a batch begins. `count` is odd, and above all earlier ones. The caller pins afterwards, which fences.
    #[inline]
    pub(super) fn begin(&self, count: u64) {
        debug_assert!(!count.is_multiple_of(2), "a batch that has begun");
        // The fence of the pin pairs with the fence in `Drain::new`. Release: pairs with the Acquire in `load`. Whoever waits
        // for the end of an earlier batch, and finds this one, sees the changes of the earlier one.
        self.0.store(count, Ordering::Release);
    }

    /// Session: the batch is over, and looks at no element any more. `count` is even.
    #[inline]
    pub(super) fn end(&self, count: u64) {
        // Release: pairs with the Acquire in `load`. Whoever waited for the end sees the changes of the batch.
        self.0.store(count, Ordering::Release);
    }

    fn load(&self) -> u64 {
        // Acquire: pairs with the Release in `end`.
        self.0.load(Ordering::Acquire)
    }
}

/// The batches of other sessions that had begun when a latch was set, as far as they are not over.
pub(super) struct Drain(Vec<BegunBatch>);

struct BegunBatch {
    word: Arc<BatchWord>,
    count: u64,
}

impl Drain {
    /// Finds the batches of these sessions that have begun. The latch is set.
    pub(super) fn new<'w>(words: impl Iterator<Item = &'w Arc<BatchWord>>) -> Self {
        // SeqCst fence: pairs with the fence of a pin, between `BatchWord::begin` and the load of the edition.
        fence(Ordering::SeqCst);
        let begun = words.map(|word| BegunBatch { word: Arc::clone(word), count: word.load() });
        Self(begun.filter(|batch| !batch.count.is_multiple_of(2)).collect())
    }

    /// Whether all of them are over. It stays so.
    pub(super) fn is_over(&mut self) -> bool {
        self.0.retain(|batch| batch.word.load() == batch.count);
        self.0.is_empty()
    }
}
