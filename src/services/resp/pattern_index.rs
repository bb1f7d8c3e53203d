//! Patterns of channels, found by the channels that they match.
//!
//! ```text
//! news.*, news.?   ─► group `news.`        ─► a `NameMap`, which can be walked in portions
//! *.created        ─► group of no bytes
//! channel news.a   ─► for each length of a group: does the channel begin with that group? ─► walk the patterns of the group
//! ```
//! A channel is compared with the patterns of the groups with which it begins. A group is the literal beginning of its
//! patterns, so a pattern of a usual shape is compared with the channels that it matches, and with few others.
//!
//! This module knows no subscriber.

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;

use super::glob::literal_prefix;
use super::name_map::{NameMap, NameWalk};

/// Groups with more bytes have a multiple of [`GROUP_BYTES_STEP`], so that a channel begins with few groups.
const GROUP_BYTES_EXACT: usize = 256;
const GROUP_BYTES_STEP: usize = 64;

/// Patterns with a value each.
#[derive(Debug)]
pub(super) struct PatternIndex<V> {
    /// The patterns that begin with the same bytes.
    groups: HashMap<Box<[u8]>, NameMap<V>, RandomState>,
    /// How many groups have so many bytes.
    lengths: BTreeMap<usize, usize>,
    patterns: usize,
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
            groups.insert(name.into(), NameMap::default());
            *lengths.entry(name.len()).or_default() += 1;
        }
        let Some(group) = groups.get_mut(name) else { return };
        *patterns = patterns.saturating_add_signed(group.change(pattern, &hasher, new, change));
        if group.len() == 0 {
            groups.remove(name);
            if let Some(count) = lengths.get_mut(&name.len()) {
                *count -= 1;
            }
            lengths.retain(|_, count| *count > 0);
        }
    }

    /// Begins to compare a channel: with the patterns as they are now.
    pub(super) fn walk(&self, channel: &[u8]) -> NameWalk<V> {
        let beginnings = self.lengths.keys().map_while(|bytes| channel.get(..*bytes));
        NameWalk::new(beginnings.filter_map(|beginning| self.groups.get(beginning)))
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
    fn found(walk: &mut NameWalk<usize>, channel: &[u8], portion: usize) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        let mut is_second = false;
        while !walk.match_patterns(channel, &mut { portion }, |pattern, _, _| {
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
        assert!(index.walk(channel).match_patterns(channel, &mut steps, |_, _, _| {
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
    }
}
