//! Fills a [`ChunkedMap`] from several places in turn, each in the order of the keys or against it.
//!
//! ```text
//! chunks   0 … 63 │       │ 300 … 363          current   64 … 90 ◄─ most keys come next to the one before
//! ```
//! The chunk of the last key is kept in the hand, so that a neighbour of it is found without a search of the others.
//! A run of keys in front of the others fills its chunks as a run behind them does.
//!
//! This module removes no entry.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::ChunkedMap;
use super::chunk::{CHUNK_ENTRIES, MapChunk};

/// A map that is being filled.
#[derive(Debug)]
pub(crate) struct ChunkFiller<K, V> {
    /// The other chunks, by their first keys.
    chunks: BTreeMap<K, MapChunk<K, V>>,
    current: MapChunk<K, V>,
    /// The keys from the first one up to the second one belong to `current`. `None`: no other chunk is there.
    low: Option<K>,
    high: Option<K>,
}

impl<K, V> Default for ChunkFiller<K, V> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), current: MapChunk::default(), low: None, high: None }
    }
}

impl<K: Copy + Ord, V> ChunkFiller<K, V> {
    /// The filled map.
    pub(crate) fn finish(mut self) -> ChunkedMap<K, V> {
        self.put_back();
        ChunkedMap::of(self.chunks)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match self.is_in_current(key) {
            true => self.current.get(key),
            false => self.chunks.range(..=key).next_back()?.1.get(key),
        }
    }

    fn is_in_current(&self, key: &K) -> bool {
        self.low.is_none_or(|low| low <= *key) && self.high.is_none_or(|high| *key < high)
    }

    /// The place of a key in a chunk that is not the current one.
    fn find_apart(&self, key: &K) -> Option<(K, usize)> {
        let (low, chunk) = self.chunks.range(..=key).next_back()?;
        chunk.search(key).ok().map(|index| (*low, index))
    }

    fn put_back(&mut self) {
        let current = std::mem::take(&mut self.current);
        if let Some(&first) = current.first() {
            self.chunks.insert(first, current);
        }
    }

    /// Makes the chunk of this key the current one.
    fn turn_to(&mut self, key: &K) {
        self.put_back();
        let low = self.chunks.range(..=key).next_back().or_else(|| self.chunks.first_key_value()).map(|(low, _)| *low);
        let Some(low) = low else { return };
        self.current = self.chunks.remove(&low).unwrap_or_default();
        // The first chunk also takes the keys below its own.
        self.low = self.chunks.range(..low).next_back().map(|_| low);
        self.high = self.chunks.range((Bound::Excluded(low), Bound::Unbounded)).next().map(|(high, _)| *high);
    }
}

impl<K: Copy + Ord, V: Default> ChunkFiller<K, V> {
    /// The value of a key, which is added if it is not there.
    pub(crate) fn get_or_insert(&mut self, key: K) -> &mut V {
        if !self.is_in_current(&key) {
            // A key that is there already may be one of many that come in no order.
            if let Some((low, index)) = self.find_apart(&key) {
                let value = self.chunks.get_mut(&low).and_then(|chunk| chunk.value_mut(index));
                return value.expect("it was just found");
            }
            self.turn_to(&key);
        }
        let index = match self.current.search(&key) {
            Ok(index) => index,
            Err(index) => self.insert(index, key),
        };
        self.current.value_mut(index).expect("it is there, or was just added")
    }

    /// Adds a key to the current chunk, at this index. Returns the index at which it is then.
    fn insert(&mut self, index: usize, key: K) -> usize {
        if !self.current.is_full() {
            self.current.insert(index, key, V::default());
            return index;
        }
        match index {
            CHUNK_ENTRIES => {
                self.put_back();
                self.low = Some(key);
            }
            0 => {
                self.high = self.current.first().copied();
                self.put_back();
            }
            _ => return self.split(index, key),
        }
        self.current = MapChunk::one(key, V::default());
        0
    }

    fn split(&mut self, index: usize, key: K) -> usize {
        let upper = self.current.split_with(index, key, V::default());
        if let Some((low, upper)) = upper {
            let lower = std::mem::replace(&mut self.current, upper);
            match key < low {
                // The key is in the lower half.
                true => {
                    let upper = std::mem::replace(&mut self.current, lower);
                    self.chunks.insert(low, upper);
                    self.high = Some(low);
                }
                false => {
                    if let Some(&first) = lower.first() {
                        self.chunks.insert(first, lower);
                    }
                    self.low = Some(low);
                }
            }
        }
        self.current.search(&key).unwrap_or_default()
    }
}
