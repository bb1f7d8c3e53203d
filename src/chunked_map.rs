//! An ordered map whose entries stand in chunks: for keys that mostly come in their order.
//!
//! ```text
//! chunks   first key ─► 0 … 63 │ 64 … 127 │ …         last   128 … 150 ◄─ a new key behind all others
//! ```
//! A chunk that is full stays full when the next key comes behind it. So keys that come in their order fill all chunks,
//! and an entry takes little more than its key and its value. The nodes of a B-tree would be half empty, because each
//! is split before the keys of its second half come. A map of few entries is one chunk.
//!
//! [`ChunkFiller`] fills a map that is read later, also from several places in turn.
//!
//! This module knows nothing of its keys but their order.

mod chunk;
mod filler;

use std::collections::BTreeMap;
use std::ops::Bound;

use chunk::{CHUNK_ENTRIES, MapChunk};
pub(crate) use filler::ChunkFiller;

/// Chunks with fewer entries than this are joined with a neighbour, if both together have at most twice as many.
const JOINED: usize = CHUNK_ENTRIES / 4;

/// An ordered map.
#[derive(Debug)]
pub(crate) struct ChunkedMap<K, V> {
    /// By a key that is not above those of the chunk, and above those of the chunk before.
    chunks: BTreeMap<K, MapChunk<K, V>>,
    /// The chunk behind all others. Empty only if the map is.
    last: MapChunk<K, V>,
}

impl<K, V> Default for ChunkedMap<K, V> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), last: MapChunk::default() }
    }
}

impl<K: Copy + Ord, V> ChunkedMap<K, V> {
    /// The map of these chunks. Each stands under its first key.
    fn of(mut chunks: BTreeMap<K, MapChunk<K, V>>) -> Self {
        let last = chunks.pop_last().map(|(_, last)| last).unwrap_or_default();
        Self { chunks, last }
    }

    /// The entry with the smallest key.
    pub(crate) fn first_key_value(&self) -> Option<(&K, &V)> {
        let first = self.chunks.first_key_value().map_or(&self.last, |(_, chunk)| chunk);
        first.iter().next()
    }

    /// All entries, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.values().chain([&self.last]).flat_map(MapChunk::iter)
    }

    /// The map with other values. Asks for them in the order of the keys, and frees the old ones chunk by chunk.
    pub(crate) fn map<W>(self, mut value: impl FnMut(K, V) -> W) -> ChunkedMap<K, W> {
        let chunks = self.chunks.into_iter().map(|(low, chunk)| (low, chunk.map(&mut value)));
        ChunkedMap { chunks: chunks.collect(), last: self.last.map(&mut value) }
    }

    /// The first entry whose key is this one or above it.
    pub(crate) fn first_from(&self, from: &K) -> Option<(&K, &V)> {
        let here = self.chunk_of(from).and_then(|chunk| chunk.first_from(from));
        let next = || self.chunks.range((Bound::Excluded(from), Bound::Unbounded)).next()?.1.iter().next();
        here.or_else(next).or_else(|| self.last.iter().next().filter(|(key, _)| *key >= from))
    }

    /// The number of entries whose keys are not above this one. It looks at their chunks, and at the entries of the last
    /// one alone.
    pub(crate) fn count_to(&self, to: &K) -> usize {
        let mut count = 0;
        for chunk in self.chunks.values().chain([&self.last]) {
            if chunk.last().is_none_or(|last| last > to) {
                return count + chunk.iter().take_while(|(key, _)| *key <= to).count();
            }
            count += chunk.len();
        }
        count
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.chunk_of(key)?.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self.is_in_last(key) {
            true => self.last.get_mut(key),
            false => self.chunks.range_mut(..=key).next_back()?.1.get_mut(key),
        }
    }

    /// Adds or replaces an entry. Returns its old value.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.is_in_last(&key) {
            return self.insert_in_last(key, value);
        }
        self.insert_in_chunk(key, value)
    }

    /// Removes an entry. Returns its value.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        match self.is_in_last(key) {
            true => self.remove_in_last(key),
            false => self.remove_in_chunk(key),
        }
    }

    fn is_in_last(&self, key: &K) -> bool {
        self.chunks.is_empty() || self.last.first().is_some_and(|first| first <= key)
    }

    /// The chunk that has the key, if the map has it.
    fn chunk_of(&self, key: &K) -> Option<&MapChunk<K, V>> {
        match self.is_in_last(key) {
            true => Some(&self.last),
            false => Some(self.chunks.range(..=key).next_back()?.1),
        }
    }

    fn insert_in_chunk(&mut self, key: K, value: V) -> Option<V> {
        let Some((_, chunk)) = self.chunks.range_mut(..=key).next_back() else {
            // Below all others: the first chunk stands under this key from now on.
            let (low, mut first) = self.chunks.pop_first()?;
            if first.is_full() {
                self.chunks.insert(low, first);
                first = MapChunk::default();
            }
            first.insert(0, key, value);
            self.chunks.insert(key, first);
            return None;
        };
        match chunk.search(&key) {
            Ok(index) => return chunk.replace(index, value),
            Err(index) if !chunk.is_full() => chunk.insert(index, key, value),
            Err(CHUNK_ENTRIES) => drop(self.chunks.insert(key, MapChunk::one(key, value))),
            Err(index) => {
                let (low, upper) = chunk.split_with(index, key, value)?;
                self.chunks.insert(low, upper);
            }
        }
        None
    }

    fn insert_in_last(&mut self, key: K, value: V) -> Option<V> {
        match self.last.search(&key) {
            Ok(index) => return self.last.replace(index, value),
            Err(index) if !self.last.is_full() => self.last.insert(index, key, value),
            Err(0) => drop(self.chunks.insert(key, MapChunk::one(key, value))),
            Err(index) => {
                let (_, upper) = match index {
                    CHUNK_ENTRIES => (key, MapChunk::one(key, value)),
                    _ => self.last.split_with(index, key, value)?,
                };
                let lower = std::mem::replace(&mut self.last, upper);
                self.chunks.insert(*lower.first()?, lower);
            }
        }
        None
    }

    fn remove_in_last(&mut self, key: &K) -> Option<V> {
        let value = self.last.remove(key)?;
        if self.last.is_empty() {
            self.last = self.chunks.pop_last().map(|(_, last)| last).unwrap_or_default();
        }
        Some(value)
    }

    fn remove_in_chunk(&mut self, key: &K) -> Option<V> {
        let (&low, chunk) = self.chunks.range_mut(..=key).next_back()?;
        let value = chunk.remove(key)?;
        match chunk.len() {
            0 => drop(self.chunks.remove(&low)),
            few if few < JOINED => self.join(low, few),
            _ => {}
        }
        Some(value)
    }

    /// Joins a chunk that has become small with a small neighbour.
    fn join(&mut self, low: K, len: usize) {
        let fits = |&(_, other): &(&K, &MapChunk<K, V>)| len + other.len() <= 2 * JOINED;
        let next = self.chunks.range((Bound::Excluded(low), Bound::Unbounded)).next().filter(fits);
        let before = || self.chunks.range(..low).next_back().filter(fits);
        let Some((into, from)) =
            next.map(|(next, _)| (low, *next)).or_else(|| before().map(|(before, _)| (*before, low)))
        else {
            return;
        };
        if let Some(taken) = self.chunks.remove(&from)
            && let Some(chunk) = self.chunks.get_mut(&into)
        {
            chunk.append(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Both = (ChunkedMap<u32, u32>, BTreeMap<u32, u32>);

    fn check((map, model): &Both) {
        assert!(map.iter().eq(model), "{map:?}");
        assert_eq!(map.first_key_value(), model.first_key_value());
        for from in model.keys().flat_map(|key| [key.saturating_sub(1), *key, key + 1]).chain([0, u32::MAX]) {
            assert_eq!(map.first_from(&from), model.range(from..).next(), "{from}");
            assert_eq!(map.count_to(&from), model.range(..=from).count(), "{from}");
        }
        assert!(map.chunks.values().all(|chunk| !chunk.is_empty()));
        assert!(!map.last.is_empty() || map.chunks.is_empty());
        assert!(map.chunks.iter().all(|(low, chunk)| chunk.first().is_some_and(|first| low <= first)));
    }

    fn change((map, model): &mut Both, key: u32, value: Option<u32>) {
        assert_eq!((map.get(&key), map.contains_key(&key)), (model.get(&key), model.contains_key(&key)));
        match value {
            Some(value) => assert_eq!(map.insert(key, value), model.insert(key, value)),
            None => assert_eq!(map.remove(&key), model.remove(&key)),
        }
        assert_eq!(map.get_mut(&key), model.get_mut(&key));
    }

    /// Runs of keys, up or down, that are inserted or removed.
    fn runs() -> impl Strategy<Value = Vec<(u32, u32, i64, bool)>> {
        let step = prop_oneof![Just(1), Just(-1), Just(7), Just(-3)];
        proptest::collection::vec((0..600_u32, 1..200_u32, step, any::<bool>()), 1..24)
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map(runs in runs()) {
            let mut both = Both::default();
            for (start, length, step, is_inserted) in runs {
                for index in 0..i64::from(length) {
                    let Ok(key) = u32::try_from(i64::from(start) + step * index) else { break };
                    change(&mut both, key, is_inserted.then_some(key ^ length));
                }
                check(&both);
            }
            let mapped = both.0.map(|key, value| (key, value));
            prop_assert!(mapped.iter().map(|(_, (key, value))| (key, value)).eq(&both.1));
            prop_assert!(mapped.iter().all(|(key, value)| mapped.get(key) == Some(value)));
        }

        #[test]
        fn a_filler_makes_the_same_map(runs in runs()) {
            let mut filler = ChunkFiller::default();
            let mut both = Both::default();
            for (start, length, step, _) in runs {
                for index in 0..i64::from(length) {
                    let Ok(key) = u32::try_from(i64::from(start) + step * index) else { break };
                    prop_assert_eq!(filler.get(&key), both.1.get(&key));
                    *filler.get_or_insert(key) = length;
                    both.1.insert(key, length);
                }
            }
            both.0 = filler.finish();
            check(&both);
            for key in (0..2_000).step_by(3) {
                change(&mut both, key, (key % 2 == 0).then_some(key));
            }
            check(&both);
        }
    }

    #[test]
    fn keys_that_come_in_their_order_fill_all_chunks() {
        let mut map = ChunkedMap::default();
        (0..10_000).for_each(|key| assert!(map.insert(key, ()).is_none()));
        assert!(map.chunks.values().all(MapChunk::is_full));
        // Those that leave from the front leave no chunk behind.
        (0..9_990).for_each(|key| assert!(map.remove(&key).is_some()));
        assert!(map.chunks.is_empty() && map.last.len() == 10);
    }

    #[test]
    fn chunks_that_become_small_are_joined() {
        let mut map = ChunkedMap::default();
        (0..64_000).for_each(|key| assert!(map.insert(key, ()).is_none()));
        (0..64_000).filter(|key| key % 64 != 0).for_each(|key| assert!(map.remove(&key).is_some()));
        assert_eq!(map.iter().count(), 1_000);
        assert!(map.chunks.len() < 100, "{}", map.chunks.len());
    }
}
