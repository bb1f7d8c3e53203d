//! A map by name that can be walked in portions while others change it.
//!
//! ```text
//! names by their hashes:  part 0 │ part 1 │ … some dozens of names each
//! walk ─► shares the parts as they are: a change meanwhile copies one part
//! ```
//! This module does not know what the names are.

use std::sync::Arc;

use ahash::RandomState;

use super::glob::GlobProgress;

/// Names that a part has when the map gets another one, on average.
const PART_NAMES: usize = 64;
/// What a name costs before its first byte is compared, in steps.
const NAME_STEPS: usize = 64;

/// Names with a value each, in their order.
type Part<V> = Vec<(Box<[u8]>, V)>;

/// Names with a value each. All calls get the same hasher.
#[derive(Debug)]
pub(super) struct NameMap<V> {
    /// By the hashes of the names. When the map grows, one part after the other is split, and when it shrinks, they are
    /// joined in the reverse order (linear hashing).
    parts: Vec<Arc<Part<V>>>,
    names: usize,
    /// Bytes of the names.
    bytes: usize,
}

/// Names that are compared with a pattern, or patterns with a channel, as far as they were not.
#[derive(Debug)]
pub(super) struct NameWalk<V> {
    /// The last one is compared first.
    parts: Vec<Arc<Part<V>>>,
    /// The next name of that part.
    next: usize,
    /// How far its comparison has come.
    progress: GlobProgress,
    /// It matches, and what was found is not dealt with.
    is_found: bool,
    /// Memory of the names, in bytes.
    bytes: usize,
}

/// Which of so many parts has a name with this hash.
fn part_of(hash: u64, parts: usize) -> usize {
    let part = usize::try_from(hash & (parts.next_power_of_two() as u64 - 1)).unwrap_or(0);
    if part < parts { part } else { split_for(part) }
}

/// The part that is split when this one is added.
fn split_for(added: usize) -> usize {
    added & ((added + 1).next_power_of_two() / 2 - 1)
}

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        Self { parts: vec![Arc::default()], names: 0, bytes: 0 }
    }
}

impl<V: Clone> NameMap<V> {
    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.names
    }

    /// The value of a name.
    pub(super) fn get(&self, name: &[u8], hasher: &RandomState) -> Option<&V> {
        let part = self.parts.get(part_of(hasher.hash_one(name), self.parts.len()))?;
        let place = part.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        part.get(place).map(|(_, value)| value)
    }

    /// Changes the value of a name, which is `new` if there is none. `change` returns whether the name stays. Returns by how
    /// much the number of names changes.
    pub(super) fn change(
        &mut self,
        name: &[u8],
        hasher: &RandomState,
        new: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> bool,
    ) -> isize {
        let part = part_of(hasher.hash_one(name), self.parts.len());
        let Some(part) = self.parts.get_mut(part).map(Arc::make_mut) else { return 0 };
        let place = part.binary_search_by(|(other, _)| (**other).cmp(name));
        let is_new = place.is_err();
        let place = place.unwrap_or_else(|place| place);
        if is_new {
            part.insert(place, (name.into(), new()));
        }
        let stays = part.get_mut(place).is_some_and(|(_, value)| change(value));
        if !stays {
            part.remove(place);
        }
        let by = isize::from(is_new && stays) - isize::from(!is_new && !stays);
        self.names = self.names.saturating_add_signed(by);
        self.bytes = self.bytes.saturating_add_signed(by * name.len().cast_signed());
        self.fit(hasher);
        by
    }

    /// Gives the map one part more if its parts are large, and one less if they are small.
    fn fit(&mut self, hasher: &RandomState) {
        if self.names > self.parts.len() * PART_NAMES {
            self.split(hasher);
        } else if self.names < self.parts.len() * PART_NAMES / 4 {
            self.join();
        }
    }

    fn split(&mut self, hasher: &RandomState) {
        let added = self.parts.len();
        self.parts.push(Arc::default());
        let Some(split) = self.parts.get_mut(split_for(added)) else { return };
        let names = std::mem::take(Arc::make_mut(split));
        let (moved, kept) = names.into_iter().partition(|(name, _)| part_of(hasher.hash_one(name), added + 1) == added);
        *split = Arc::new(kept);
        if let Some(part) = self.parts.get_mut(added) {
            *part = Arc::new(moved);
        }
    }

    fn join(&mut self) {
        if self.parts.len() == 1 {
            return;
        }
        let Some(last) = self.parts.pop() else { return };
        let split = split_for(self.parts.len());
        let Some(part) = self.parts.get_mut(split).map(Arc::make_mut) else { return };
        part.extend(Arc::unwrap_or_clone(last));
        part.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    }
}

impl<V> NameWalk<V> {
    /// Begins to compare the names of these maps.
    pub(super) fn new<'m>(maps: impl Iterator<Item = &'m NameMap<V>>) -> Self
    where
        V: 'm,
    {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for map in maps {
            parts.extend(map.parts.iter().map(Arc::clone));
            bytes += map.bytes + map.names * size_of::<(Box<[u8]>, V)>();
        }
        Self { parts, next: 0, progress: GlobProgress::default(), is_found: false, bytes }
    }

    /// Compares further patterns with a channel, while there are steps, and counts these down. `found` is called with each
    /// pattern that matches, and may take steps too. If it returns `false`, the next call begins with that pattern. Returns
    /// whether all is done.
    pub(super) fn match_patterns(
        &mut self,
        channel: &[u8],
        steps: &mut usize,
        found: impl FnMut(&[u8], &V, &mut usize) -> bool,
    ) -> bool {
        self.advance(steps, |progress, pattern, steps| progress.advance(pattern, channel, steps), found)
    }

    /// As [`NameWalk::match_patterns`], for names that are compared with a pattern. `None`: all match.
    pub(super) fn match_names(
        &mut self,
        pattern: Option<&[u8]>,
        steps: &mut usize,
        found: impl FnMut(&[u8], &V, &mut usize) -> bool,
    ) -> bool {
        let compare = |progress: &mut GlobProgress, name: &[u8], steps: &mut usize| match pattern {
            Some(pattern) => progress.advance(pattern, name, steps),
            None => Some(true),
        };
        self.advance(steps, compare, found)
    }

    fn advance(
        &mut self,
        steps: &mut usize,
        compare: impl Fn(&mut GlobProgress, &[u8], &mut usize) -> Option<bool>,
        mut found: impl FnMut(&[u8], &V, &mut usize) -> bool,
    ) -> bool {
        while let Some(part) = self.parts.last() {
            while let Some((name, value)) = part.get(self.next) {
                if !self.is_found {
                    if *steps == 0 {
                        return false;
                    }
                    let Some(is_match) = compare(&mut self.progress, name, steps) else { return false };
                    *steps = steps.saturating_sub(NAME_STEPS);
                    (self.progress, self.is_found) = (GlobProgress::default(), is_match);
                }
                if self.is_found && !found(name, value, steps) {
                    return false;
                }
                (self.next, self.is_found) = (self.next + 1, false);
            }
            self.next = 0;
            self.parts.pop();
        }
        true
    }

    /// Memory of the names, in bytes: they stay until it is done, also if nobody has them any more.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_small_parts_and_a_walk_finds_all_names() {
        let (mut map, hasher) = (NameMap::default(), RandomState::new());
        let name = |number: usize| format!("a{number}").into_bytes();
        for number in 0..10_000 {
            let by = [(); 2].map(|()| {
                map.change(
                    &name(number),
                    &hasher,
                    || 0,
                    |count| {
                        *count += 1;
                        true
                    },
                )
            });
            assert_eq!(by, [1, 0]);
        }
        let longest = map.parts.iter().map(|part| part.len()).max();
        assert!(longest.is_some_and(|longest| longest < 8 * PART_NAMES), "{longest:?}");
        assert_eq!((map.get(b"a77", &hasher), map.get(b"a", &hasher)), (Some(&2), None));
        let mut walk = NameWalk::new([&map].into_iter());
        let bytes = walk.bytes();
        assert!(bytes > 10_000 * "a1234".len());
        for number in 10..10_000 {
            assert_eq!(map.change(&name(number), &hasher, || 0, |_| false), -1);
        }
        assert_eq!((map.len(), map.parts.len()), (10, 1), "the parts are joined");
        assert!(NameWalk::new([&map].into_iter()).bytes() < bytes / 900);
        let (mut found, mut portions) = (0, 1);
        while !walk.match_names(Some(b"a*7"), &mut 1_000, |_, _, _| {
            found += 1;
            true
        }) {
            portions += 1;
        }
        assert_eq!(found, 1_000, "it sees the names as they were");
        assert!(portions > 500, "{portions}");
    }
}
