//! Patterns of channels, found by the channels that they match.
//!
//! ```text
//! news.*, news.?   ─► group `news.`        ─► parts of some dozens of patterns
//! *.created        ─► group of no bytes
//! channel news.a   ─► for each length of a group: does the channel begin with that group? ─► walk the patterns of the group
//! ```
//! A channel is compared with the patterns of the groups with which it begins. A group is the literal beginning of its
//! patterns, so a pattern of a usual shape is compared with the channels that it matches, and with few others.
//!
//! A walk may be done in portions. It sees the patterns as they were when it began: a change meanwhile copies one part.
//! This module knows no subscriber.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ahash::RandomState;

use super::glob::{GlobProgress, literal_prefix};

/// Patterns that a part has when its group gets another one, on average.
const PART_PATTERNS: usize = 64;
/// Groups with more bytes have a multiple of [`GROUP_BYTES_STEP`], so that a channel begins with few groups.
const GROUP_BYTES_EXACT: usize = 256;
const GROUP_BYTES_STEP: usize = 64;
/// What a pattern costs before its first byte is compared, in steps.
const PATTERN_STEPS: usize = 64;

/// Patterns, in their order.
type Part<V> = Vec<(Box<[u8]>, V)>;

/// The patterns that begin with the same bytes.
#[derive(Debug)]
struct Group<V> {
    /// By the hashes of the patterns. When the group grows, one part after the other is split, and when it shrinks, they
    /// are joined in the reverse order (linear hashing).
    parts: Vec<Arc<Part<V>>>,
    patterns: usize,
    /// Bytes of the patterns.
    bytes: usize,
}

/// Patterns with a value each.
#[derive(Debug)]
pub(super) struct PatternIndex<V> {
    groups: HashMap<Box<[u8]>, Group<V>, RandomState>,
    /// How many groups have so many bytes.
    lengths: BTreeMap<usize, usize>,
    patterns: usize,
}

/// The patterns with which a channel is compared, as far as it was not.
#[derive(Debug)]
pub(super) struct PatternWalk<V> {
    /// The last one is compared first.
    parts: Vec<Arc<Part<V>>>,
    /// The next pattern of that part.
    next: usize,
    /// How far its comparison has come.
    progress: GlobProgress,
    /// It matches, and what was found is not dealt with.
    is_found: bool,
    /// Memory of the patterns, in bytes.
    bytes: usize,
}

/// The group of a pattern.
fn group_of(pattern: &[u8]) -> &[u8] {
    let prefix = literal_prefix(pattern);
    let bytes = if prefix.len() <= GROUP_BYTES_EXACT {
        prefix.len()
    } else {
        prefix.len() / GROUP_BYTES_STEP * GROUP_BYTES_STEP
    };
    prefix.get(..bytes).unwrap_or_default()
}

/// Which of so many parts has a pattern with this hash.
fn part_of(hash: u64, parts: usize) -> usize {
    let part = usize::try_from(hash & (parts.next_power_of_two() as u64 - 1)).unwrap_or(0);
    if part < parts { part } else { split_for(part) }
}

/// The part that is split when this one is added.
fn split_for(added: usize) -> usize {
    added & ((added + 1).next_power_of_two() / 2 - 1)
}

impl<V: Clone> Group<V> {
    /// Gives the group one part more if its parts are large, and one less if they are small.
    fn fit(&mut self, hasher: &RandomState) {
        if self.patterns > self.parts.len() * PART_PATTERNS {
            self.split(hasher);
        } else if self.patterns < self.parts.len() * PART_PATTERNS / 4 {
            self.join();
        }
    }

    fn split(&mut self, hasher: &RandomState) {
        let added = self.parts.len();
        self.parts.push(Arc::default());
        let Some(split) = self.parts.get_mut(split_for(added)) else { return };
        let patterns = std::mem::take(Arc::make_mut(split));
        let (moved, kept) =
            patterns.into_iter().partition(|(pattern, _)| part_of(hasher.hash_one(pattern), added + 1) == added);
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

impl<V> Default for PatternIndex<V> {
    fn default() -> Self {
        Self { groups: HashMap::default(), lengths: BTreeMap::new(), patterns: 0 }
    }
}

impl<V: Clone> PatternIndex<V> {
    /// How many patterns there are.
    pub(super) fn len(&self) -> usize {
        self.patterns
    }

    /// Changes the value of a pattern, which is `new` if there is none. `change` returns whether the pattern stays.
    pub(super) fn change(&mut self, pattern: &[u8], new: impl FnOnce() -> V, change: impl FnOnce(&mut V) -> bool) {
        let name = group_of(pattern);
        let Self { groups, lengths, patterns } = self;
        let hasher = groups.hasher().clone();
        if !groups.contains_key(name) {
            groups.insert(name.into(), Group { parts: vec![Arc::default()], patterns: 0, bytes: 0 });
            *lengths.entry(name.len()).or_default() += 1;
        }
        let Some(group) = groups.get_mut(name) else { return };
        let part = part_of(hasher.hash_one(pattern), group.parts.len());
        let Some(part) = group.parts.get_mut(part).map(Arc::make_mut) else { return };
        let place = part.binary_search_by(|(other, _)| (**other).cmp(pattern));
        let is_new = place.is_err();
        let place = place.unwrap_or_else(|place| place);
        if is_new {
            part.insert(place, (pattern.into(), new()));
        }
        let stays = part.get_mut(place).is_some_and(|(_, value)| change(value));
        if !stays {
            part.remove(place);
        }
        let by = isize::from(is_new && stays) - isize::from(!is_new && !stays);
        group.patterns = group.patterns.saturating_add_signed(by);
        group.bytes = group.bytes.saturating_add_signed(by * pattern.len().cast_signed());
        *patterns = patterns.saturating_add_signed(by);
        if group.patterns == 0 {
            groups.remove(name);
            if let Some(count) = lengths.get_mut(&name.len()) {
                *count -= 1;
            }
            lengths.retain(|_, count| *count > 0);
        } else {
            group.fit(&hasher);
        }
    }

    /// Begins to compare a channel.
    pub(super) fn walk(&self, channel: &[u8]) -> PatternWalk<V> {
        let beginnings = self.lengths.keys().map_while(|bytes| channel.get(..*bytes));
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for group in beginnings.filter_map(|beginning| self.groups.get(beginning)) {
            parts.extend(group.parts.iter().map(Arc::clone));
            bytes += group.bytes + group.patterns * size_of::<(Box<[u8]>, V)>();
        }
        PatternWalk { parts, next: 0, progress: GlobProgress::default(), is_found: false, bytes }
    }
}

impl<V> PatternWalk<V> {
    /// Compares the channel with further patterns, while there are steps, and counts these down. `found` is called with
    /// each pattern that matches, and may take steps too. If it returns `false`, the next call begins with that pattern.
    /// Returns whether all is done.
    pub(super) fn advance(
        &mut self,
        channel: &[u8],
        steps: &mut usize,
        mut found: impl FnMut(&[u8], &V, &mut usize) -> bool,
    ) -> bool {
        while let Some(part) = self.parts.last() {
            while let Some((pattern, value)) = part.get(self.next) {
                if !self.is_found {
                    let Some(is_match) = self.progress.advance(pattern, channel, steps) else { return false };
                    *steps = steps.saturating_sub(PATTERN_STEPS);
                    (self.progress, self.is_found) = (GlobProgress::default(), is_match);
                }
                if self.is_found && !found(pattern, value, steps) {
                    return false;
                }
                (self.next, self.is_found) = (self.next + 1, false);
            }
            self.next = 0;
            self.parts.pop();
        }
        true
    }

    /// Memory of the patterns, in bytes: they stay until it is done, also if nobody subscribes to them any more.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::collections::BTreeSet;

    use super::super::glob::is_match;
    use super::*;
    use crate::seeded_rng::SeededRng;

    fn add(index: &mut PatternIndex<usize>, pattern: &[u8]) {
        index.change(
            pattern,
            || 0,
            |count| {
                *count += 1;
                true
            },
        );
    }

    fn remove(index: &mut PatternIndex<usize>, pattern: &[u8]) {
        index.change(
            pattern,
            || 0,
            |count| {
                *count = count.saturating_sub(1);
                *count > 0
            },
        );
    }

    /// The patterns that a walk has left, when it is done in portions of so many steps.
    fn found(walk: &mut PatternWalk<usize>, channel: &[u8], portion: usize) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        let mut is_second = false;
        while !walk.advance(channel, &mut { portion }, |pattern, _, _| {
            is_second = !is_second;
            assert_eq!(found.insert(pattern.to_vec()), is_second, "each pattern is found once, and then again");
            !is_second
        }) {}
        found
    }

    /// Few letters, so that patterns have groups in common, and match.
    fn pattern(rng: &mut SeededRng) -> Vec<u8> {
        (0..rng.below(8)).map(|_| rng.pick(b"aaabb*?[]\\")).collect()
    }

    #[test]
    fn a_walk_finds_what_matched_when_it_began() {
        let mut rng = SeededRng(5);
        let (mut index, mut all) = (PatternIndex::default(), BTreeMap::<Vec<u8>, usize>::new());
        for round in 0..1_000_u64 {
            for _ in 0..rng.below(20) {
                let pattern = pattern(&mut rng);
                // It grows, and then it shrinks.
                if rng.below(1_000) > round {
                    add(&mut index, &pattern);
                    *all.entry(pattern).or_default() += 1;
                } else if let Some((pattern, _)) = all.range(pattern..).next() {
                    let pattern = pattern.clone();
                    remove(&mut index, &pattern);
                    let count = all.get_mut(&pattern).unwrap();
                    *count -= 1;
                    all.retain(|_, count| *count > 0);
                }
            }
            assert_eq!(index.len(), all.len());
            let channel: Vec<u8> = (0..rng.below(7)).map(|_| rng.pick(b"aab")).collect();
            let due: BTreeSet<Vec<u8>> = all.keys().filter(|pattern| is_match(pattern, &channel)).cloned().collect();
            let mut walk = index.walk(&channel);
            add(&mut index, b"a*");
            let other = all.keys().next().cloned();
            other.iter().for_each(|pattern| remove(&mut index, pattern));
            assert_eq!(found(&mut walk, &channel, 1 + usize::try_from(round % 5).unwrap()), due, "{channel:?}");
            remove(&mut index, b"a*");
            other.iter().for_each(|pattern| add(&mut index, pattern));
        }
        all.into_iter().for_each(|(pattern, count)| (0..count).for_each(|_| remove(&mut index, &pattern)));
        assert_eq!((index.len(), index.groups.len(), index.lengths.len()), (0, 0, 0));
    }

    /// The steps that a channel takes, and how many patterns match it.
    fn cost(index: &PatternIndex<usize>, channel: &[u8]) -> (usize, usize) {
        let (mut steps, mut count) = (usize::MAX, 0);
        assert!(index.walk(channel).advance(channel, &mut steps, |_, _, _| {
            count += 1;
            true
        }));
        (usize::MAX - steps, count)
    }

    /// A publisher was kept busy for as long as there were patterns.
    #[test]
    fn a_channel_is_not_compared_with_patterns_of_usual_shapes_that_do_not_match_it() {
        let mut index = PatternIndex::default();
        for number in 0..20_000 {
            add(&mut index, format!("__keyspace@0__:user:{number}:*").as_bytes());
            add(&mut index, format!("news.{number}.*").as_bytes());
        }
        add(&mut index, b"*");
        let beginning = format!("__keyspace@0__:{}", "a".repeat(1_000));
        (0..100).for_each(|number| add(&mut index, format!("{}{number}*", beginning).as_bytes()));
        for (channel, matching) in
            [("__keyspace@0__:user:123:name", 2), ("news.7.today", 2), ("other", 1), ("__keyevent@0__:set", 1)]
        {
            let (steps, count) = cost(&index, channel.as_bytes());
            assert_eq!(count, matching, "{channel}");
            assert!(steps < 1_000, "{channel}: {steps}");
        }
        assert_eq!(cost(&index, format!("{beginning}7").as_bytes()).1, 2);
        let parts: Vec<usize> = index.groups.values().map(|group| group.parts.len()).collect();
        assert!(parts.iter().all(|parts| *parts <= 2), "few patterns are in one part");
    }

    #[test]
    fn a_group_of_many_patterns_has_small_parts_and_all_of_them_are_found() {
        let mut index = PatternIndex::default();
        (0..10_000).for_each(|number| add(&mut index, format!("a*{number}").as_bytes()));
        let longest = index.groups.values().flat_map(|group| &group.parts).map(|part| part.len()).max();
        assert!(longest.unwrap() < 8 * PART_PATTERNS, "{longest:?}");
        assert_eq!(cost(&index, b"a1234").1, 4, "4, 34, 234 and 1234");
        let bytes = index.walk(b"a").bytes();
        assert!(bytes > 10_000 * "a*1234".len());
        (10..10_000).for_each(|number| remove(&mut index, format!("a*{number}").as_bytes()));
        assert!(index.groups.values().all(|group| group.parts.len() == 1), "the parts are joined");
        assert!(index.walk(b"a").bytes() < bytes / 900);
        assert_eq!(cost(&index, b"a1234").1, 1);
    }
}
