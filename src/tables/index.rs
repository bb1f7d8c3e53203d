//! The index of a table: from a key's hash to its slot. Built on flurry; the only file that names it.
//!
//! It stores no values and commits nothing: it says where a slot is, and lets slots in and out.
//!
//! # Layout
//!
//! A flurry entry costs about 130 bytes before anything is in it. So the map does not hold elements but **buckets** of
//! up to 14 slots, which brings the index down to about 25 bytes for each element. Buckets grow by extendible hashing:
//!
//! ```text
//! flurry: bucket number ──► Bucket { lock, depth, cells: [hash bits | pointer to slot; 14] }
//!
//! a bucket of depth d holds the keys whose hash ends in the d bits of its number
//! full:  bucket n, depth d   ──►   bucket n, depth d+1   and   bucket n + 2^d, depth d+1
//! ```
//! A look-up guesses the depth from the number of buckets, and walks towards the root while there is no such bucket.
//!
//! # Concurrency
//!
//! Reading takes no lock. Letting a slot in or out locks its one bucket. A split shows the moved slots in the new
//! bucket, then raises the depth, then clears the old cells; so a reader that misses a slot sees the raised depth and
//! looks again. Writers come to the new bucket only after that. Cells never move within a bucket.

use std::borrow::Borrow;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crossbeam::epoch::Guard;
use parking_lot::{Mutex, MutexGuard};

use super::slot::{SlotCell, SlotHandle, SlotRef, State};

/// Cells of a bucket: with flurry's header and the lock it fills 128 bytes.
pub(super) const CELLS: usize = 14;
/// A bucket's number is this many bits of the hash. 15 keys that share 32 bits do not happen by chance below 10^10.
const DEPTH_MAX: u8 = 32;
/// Elements of a bucket on average, between the splits: what `--expected-keys` is divided by.
const LOAD: usize = 9;

/// What the index takes for each element, in bytes: a flurry node (96), a bucket (128) and two bins (16), by the load.
pub(super) const INDEX_BYTES_PER_SLOT: usize = (96 + 128 + 16) / LOAD;

struct Bucket {
    lock: Mutex<()>,
    /// How many bits of the hash its keys share. Raised under the lock; read by everybody.
    depth: AtomicU8,
    /// The depth that it was made with. Never changes.
    birth: u8,
    /// Whether the bucket that it was split from has let go of its keys. Until then nobody writes here: the old cells
    /// still show what is in these. Set by the splitter; read by who has locked the bucket.
    ready: AtomicBool,
    cells: [SlotCell; CELLS],
}

impl Bucket {
    fn new(depth: u8, ready: bool) -> Self {
        Self {
            ready: AtomicBool::new(ready),
            lock: Mutex::new(()),
            depth: AtomicU8::new(depth),
            birth: depth,
            cells: std::array::from_fn(|_| SlotCell::empty()),
        }
    }

    fn depth(&self) -> u8 {
        // Acquire: pairs with the Release in `split`: who sees the new depth finds the new bucket.
        self.depth.load(Ordering::Acquire)
    }

    fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.cells.iter().find_map(|cell| cell.find(hash, key, guard))
    }
}

/// Bucket numbers are evenly spread already: they are their own hash.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("bucket numbers hash through write_u32");
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }
}

type Buckets = flurry::HashMap<u32, Bucket, BuildHasherDefault<NumberHasher>>;

/// What came of letting a slot in.
pub(super) enum Entered {
    /// The slot is in the index and committed.
    Created,
    /// The key has a slot that is not dead: use that one.
    Occupied,
    /// The caller's condition did not hold; nothing was done.
    Refused,
    /// 15 keys agree in 32 bits of their hash.
    Overfull,
}

/// From keys to slots. Hashes are the caller's, 64 well-mixed bits.
pub(super) struct Index {
    buckets: Buckets,
    /// How many buckets there are, for the guess of the depth. Written after a split; any value is safe.
    count: AtomicU32,
}

fn low_bits(hash: u64, depth: u8) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits are kept")]
    let number = (hash & ((1_u64 << depth) - 1)) as u32;
    number
}

impl Index {
    pub(super) fn new(expected_keys: usize) -> Self {
        let buckets = Buckets::with_capacity_and_hasher(expected_keys / LOAD, BuildHasherDefault::default());
        buckets.insert(0, Bucket::new(0, true), &buckets.guard());
        Self { buckets, count: AtomicU32::new(1) }
    }

    /// The depth at which most buckets are.
    fn likely_depth(&self) -> u8 {
        let count = u64::from(self.count.load(Ordering::Relaxed));
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm of 34 bits at most")]
        let depth = (count + count / 2).ilog2() as u8;
        depth.min(DEPTH_MAX)
    }

    /// The bucket of `hash`, and its number. Right at some moment of the call: the caller checks `covers` afterwards.
    fn bucket<'m>(&'m self, hash: u64, guard: &'m flurry::Guard<'_>) -> (u32, &'m Bucket) {
        let mut depth = self.likely_depth();
        loop {
            let (number, bucket) = self.nearest(low_bits(hash, depth), guard);
            let actual = bucket.depth();
            if low_bits(hash, actual) == number {
                return (number, bucket);
            }
            depth = actual;
        }
    }

    /// Bucket `number`, or the one that it would be split from.
    fn nearest<'m>(&'m self, mut number: u32, guard: &'m flurry::Guard<'_>) -> (u32, &'m Bucket) {
        loop {
            if let Some(bucket) = self.buckets.get(&number, guard) {
                return (number, bucket);
            }
            assert!(number != 0, "bucket 0 is made with the index and stays");
            number &= !(1 << number.ilog2());
        }
    }

    /// The slot of `key`, dead or alive.
    pub(super) fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        let map_guard = self.buckets.guard();
        loop {
            let (number, bucket) = self.bucket(hash, &map_guard);
            if let Some(slot) = bucket.find(hash, key, guard) {
                return Some(slot);
            }
            if low_bits(hash, bucket.depth()) == number {
                return None;
            }
        }
    }

    /// The bucket of `hash`, locked.
    fn lock<'m>(&'m self, hash: u64, guard: &'m flurry::Guard<'_>) -> (u32, &'m Bucket, MutexGuard<'m, ()>) {
        loop {
            let (number, bucket) = self.bucket(hash, guard);
            let locked = bucket.lock.lock();
            // Acquire: pairs with the Release in `split`.
            if !bucket.ready.load(Ordering::Acquire) {
                drop(locked);
                std::thread::yield_now();
            } else if low_bits(hash, bucket.depth()) == number {
                return (number, bucket, locked);
            }
        }
    }

    /// The slot of `key`, after everybody who was letting one in has finished.
    pub(super) fn find_settled<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        let map_guard = self.buckets.guard();
        let (_, bucket, _locked) = self.lock(hash, &map_guard);
        bucket.find(hash, key, guard)
    }

    /// Lets a slot for `key` in, made by `make` under the bucket's lock.
    ///
    /// `make` is given the version of the dead slot that it takes the place of, if there is one; `None` from it refuses.
    /// A slot that it made is visible, and with it its value committed, before the lock is released.
    pub(super) fn enter(
        &self,
        hash: u64,
        key: &[u8],
        guard: &Guard,
        rehash: &dyn Fn(&[u8]) -> u64,
        make: &mut dyn FnMut(Option<u64>) -> Option<SlotHandle>,
    ) -> Entered {
        let map_guard = self.buckets.guard();
        loop {
            let (number, bucket, _locked) = self.lock(hash, &map_guard);
            if let Some(cell) = bucket.cells.iter().find(|cell| cell.find(hash, key, guard).is_some()) {
                return Self::replace_dead(cell, hash, guard, make);
            }
            if let Some(cell) = bucket.cells.iter().find(|cell| cell.is_empty()) {
                let Some(slot) = make(None) else { return Entered::Refused };
                cell.put(hash, slot, guard);
                return Entered::Created;
            }
            if !self.split(number, bucket, guard, &map_guard, rehash) {
                return Entered::Overfull;
            }
        }
    }

    fn replace_dead(
        cell: &SlotCell,
        hash: u64,
        guard: &Guard,
        make: &mut dyn FnMut(Option<u64>) -> Option<SlotHandle>,
    ) -> Entered {
        let state = cell.get(guard).map(|slot| slot.load(guard).state());
        let Some(State::Dead(version)) = state else { return Entered::Occupied };
        let Some(slot) = make(Some(version)) else { return Entered::Refused };
        cell.put(hash, slot, guard);
        Entered::Created
    }

    /// Splits a full bucket whose lock is held. False if its keys agree in all bits that a bucket's number has.
    fn split(
        &self,
        number: u32,
        bucket: &Bucket,
        guard: &Guard,
        map_guard: &flurry::Guard<'_>,
        rehash: &dyn Fn(&[u8]) -> u64,
    ) -> bool {
        let depth = bucket.depth();
        if depth >= DEPTH_MAX {
            return false;
        }
        let child = Bucket::new(depth + 1, false);
        let mut places = child.cells.iter();
        let moved: Vec<&SlotCell> = bucket
            .cells
            .iter()
            .filter(|cell| cell.get(guard).is_some_and(|slot| rehash(slot.key()) >> depth & 1 == 1))
            .collect();
        for (cell, place) in moved.iter().zip(&mut places) {
            cell.copy_to(place);
        }
        self.buckets.insert(number | 1 << depth, child, map_guard);
        // Release: pairs with the Acquire of `depth`.
        bucket.depth.store(depth + 1, Ordering::Release);
        for cell in moved {
            cell.hand_over();
        }
        if let Some(child) = self.buckets.get(&(number | 1 << depth), map_guard) {
            // Release: pairs with the Acquire in `lock`. The old bucket's lock is held until after this.
            child.ready.store(true, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes `slot` out, if it still is where its key leads to.
    pub(super) fn leave(&self, hash: u64, slot: SlotRef<'_>, guard: &Guard) {
        let map_guard = self.buckets.guard();
        let (_, bucket, _locked) = self.lock(hash, &map_guard);
        let place =
            bucket.cells.iter().find(|cell| cell.get(guard).is_some_and(|here| here.address() == slot.address()));
        if let Some(cell) = place {
            cell.clear(guard);
        }
    }

    /// Visits the slots of bucket `number`, under its lock, and appends the buckets that were split from it.
    /// Starting with bucket 0, this reaches every slot of an index that nobody enters any more.
    pub(super) fn visit<'g>(
        &self,
        number: u32,
        guard: &'g Guard,
        children: &mut Vec<u32>,
        mut slot: impl FnMut(SlotRef<'g>),
    ) {
        let map_guard = self.buckets.guard();
        let Some(bucket) = self.buckets.get(&number, &map_guard) else { return };
        let _locked = bucket.lock.lock();
        children.extend((bucket.birth..bucket.depth()).map(|depth| number | 1 << depth));
        bucket.cells.iter().filter_map(|cell| cell.get(guard)).for_each(&mut slot);
    }

    /// Empties bucket `number`.
    pub(super) fn clear(&self, number: u32, guard: &Guard) {
        let map_guard = self.buckets.guard();
        let Some(bucket) = self.buckets.get(&number, &map_guard) else { return };
        let _locked = bucket.lock.lock();
        bucket.cells.iter().filter(|cell| !cell.is_empty()).for_each(|cell| cell.clear(guard));
    }
}

// ------------------------------------------------------------------------------------------------------------ names

/// From names to what they stand for, for readers that take no lock. Writers are few, and exclude each other.
pub(super) struct Names<V> {
    /// `None` stands only under [`NOBODY`], for a moment.
    map: flurry::HashMap<Name, Option<Arc<V>>, ahash::RandomState>,
}

/// A name that no table has: used to push garbage out.
const NOBODY: &[u8] = b"";

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name(Arc<[u8]>);

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl<V: Send + Sync + 'static> Names<V> {
    pub(super) fn new() -> Self {
        // The smallest batch: what is removed is let go of at once, not 120 removals later (see `remove`).
        let collector = seize::Collector::new().batch_size(1);
        Self { map: flurry::HashMap::with_hasher(ahash::RandomState::new()).with_collector(collector) }
    }

    /// Calls `look` with what the name stands for.
    pub(super) fn with<R>(&self, name: &[u8], look: impl FnOnce(&Arc<V>) -> R) -> Option<R> {
        let guard = self.map.guard();
        self.map.get(name, &guard).and_then(Option::as_ref).map(look)
    }

    pub(super) fn insert(&self, name: &[u8], value: Arc<V>) {
        let guard = self.map.guard();
        self.map.insert(Name(Arc::from(name)), Some(value), &guard);
    }

    /// Removes the name. What it stood for is let go of as soon as nobody looks at it any more.
    ///
    /// seize keeps a batch of garbage back until it is larger than the number of `threads` that ever came by; so others
    /// are added to it that nobody needs.
    pub(super) fn remove(&self, name: &[u8], threads: usize) {
        let guard = self.map.guard();
        self.map.remove(name, &guard);
        for _ in 0..=threads {
            self.map.insert(Name(Arc::from(NOBODY)), None, &guard);
            self.map.remove(NOBODY, &guard);
        }
        guard.flush();
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Everything, in no order.
    pub(super) fn values(&self) -> Vec<Arc<V>> {
        let guard = self.map.guard();
        self.map.values(&guard).flatten().map(Arc::clone).collect()
    }
}
