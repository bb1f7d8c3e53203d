//! Entries in the order of their keys, at most [`CHUNK_ENTRIES`] of them. Keys and values stand apart, without gaps.
//!
//! This module knows no other chunk.

/// The most entries of a chunk. A power of two, because its vectors double.
pub(super) const CHUNK_ENTRIES: usize = 64;

/// Some entries.
#[derive(Debug)]
pub(super) struct MapChunk<K, V> {
    keys: Vec<K>,
    /// The value of each key, at the same index.
    values: Vec<V>,
}

impl<K, V> Default for MapChunk<K, V> {
    fn default() -> Self {
        Self { keys: Vec::new(), values: Vec::new() }
    }
}

impl<K, V> MapChunk<K, V> {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.len() >= CHUNK_ENTRIES
    }

    pub(super) fn first(&self) -> Option<&K> {
        self.keys.first()
    }

    pub(super) fn last(&self) -> Option<&K> {
        self.keys.last()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V> {
        self.keys.iter().zip(&self.values)
    }

    pub(super) fn map<W>(self, value: &mut impl FnMut(K, V) -> W) -> MapChunk<K, W>
    where
        K: Copy,
    {
        // Not collected: that would reuse memory of the old size.
        let mut values = Vec::with_capacity(self.values.len());
        values.extend(self.keys.iter().zip(self.values).map(|(key, old)| value(*key, old)));
        MapChunk { keys: self.keys, values }
    }

    /// The value at an index.
    pub(super) fn value_mut(&mut self, index: usize) -> Option<&mut V> {
        self.values.get_mut(index)
    }

    /// Replaces the value at an index. Returns the old one.
    pub(super) fn replace(&mut self, index: usize, value: V) -> Option<V> {
        self.values.get_mut(index).map(|old| std::mem::replace(old, value))
    }

    pub(super) fn insert(&mut self, index: usize, key: K, value: V) {
        self.keys.insert(index, key);
        self.values.insert(index, value);
    }

    /// Takes the entries of a chunk whose keys come behind.
    pub(super) fn append(&mut self, behind: Self) {
        self.keys.extend(behind.keys);
        self.values.extend(behind.values);
    }
}

impl<K: Copy + Ord, V> MapChunk<K, V> {
    /// The first entry whose key is this one or above it.
    pub(super) fn first_from(&self, from: &K) -> Option<(&K, &V)> {
        let (Ok(index) | Err(index)) = self.search(from);
        self.keys.get(index).zip(self.values.get(index))
    }

    pub(super) fn one(key: K, value: V) -> Self {
        let mut chunk = Self::default();
        chunk.insert(0, key, value);
        chunk
    }

    /// The index of a key, or the one at which it would be.
    pub(super) fn search(&self, key: &K) -> Result<usize, usize> {
        match self.keys.last() {
            // Most keys come in their order.
            Some(last) if last < key => Err(self.keys.len()),
            _ => self.keys.binary_search(key),
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(self.search(key).ok()?)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let index = self.search(key).ok()?;
        self.values.get_mut(index)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        // The first key leaves most often.
        let index = if self.first() == Some(key) { 0 } else { self.search(key).ok()? };
        self.keys.remove(index);
        let value = self.values.remove(index);
        if self.keys.len() * 4 <= self.keys.capacity() {
            self.keys.shrink_to(self.keys.len() * 2);
            self.values.shrink_to(self.values.len() * 2);
        }
        Some(value)
    }

    /// Inserts an entry into a full chunk, and splits it. Returns the upper half with its first key.
    pub(super) fn split_with(&mut self, index: usize, key: K, value: V) -> Option<(K, Self)> {
        const HALF: usize = CHUNK_ENTRIES / 2;
        let mut upper = Self { keys: self.keys.split_off(HALF), values: self.values.split_off(HALF) };
        // Both halves get room for what comes next, and no more.
        self.keys.shrink_to_fit();
        self.values.shrink_to_fit();
        match index.checked_sub(HALF) {
            Some(index) => upper.insert(index, key, value),
            None => self.insert(index, key, value),
        }
        upper.first().copied().map(|low| (low, upper))
    }
}
