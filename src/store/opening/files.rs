//! The files of a folder beside the segments that count: some become spares, others are begun again or go.
//!
//! This module reads no batch.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use super::missing::FoundFile;
use crate::store::fault::{Fault, planted};
use crate::store::folder::{Folder, remove_if_there};
use crate::store::gaps::Gaps;
use crate::store::log::Beginning;
use crate::store::log::admission::{RESERVE_SEGMENTS, spares_for};
use crate::store::notes::BEGUN;
use crate::store::segment::{NEW, name_of, number_of, whole};
use crate::store::summary::{SUM, summary_name};

/// The names of the files.
#[derive(Debug, Default)]
pub(in crate::store) struct FolderFiles {
    /// All segments in the folder.
    pub(in crate::store) names: Vec<String>,
    /// Whether the folder has the note that the log has had a segment.
    pub(in crate::store) is_begun: bool,
    /// Cleaned segments with the head of the next one. No other head may name their gaps.
    pub(in crate::store) begun: Vec<String>,
    /// The files that no batch needs any more.
    pub(in crate::store) leftovers: Vec<String>,
    /// The number of the newest file with the name of a segment.
    pub(in crate::store) highest: u32,
}

impl FolderFiles {
    /// Those of a folder with these names, in which these segments were found.
    pub(super) fn of(names: Vec<String>, found: &BTreeMap<u32, FoundFile>) -> Self {
        let is_begun = names.iter().any(|name| name == BEGUN);
        let (segments, others) = names.into_iter().partition::<Vec<_>, _>(|name| number_of(name).is_some());
        let is_leftover = |name: &String| {
            let summed = name.strip_suffix(SUM).and_then(|digits| digits.parse::<u32>().ok());
            name.ends_with(NEW) || summed.is_some_and(|number| !found.contains_key(&number))
        };
        let leftovers = others.into_iter().filter(is_leftover).collect();
        Self { names: segments, is_begun, begun: Vec::new(), leftovers, highest: 0 }
    }

    /// The size of the segments to come. Where there is no room for the reserve in segments of the wanted size, the
    /// spares keep theirs, if a segment has it: what is given back may be taken by others.
    pub(super) fn size_with_room(&self, folder: &dyn Folder, beginning: &Beginning, wanted: u64) -> u64 {
        let needed = (spares_for(beginning.reserved, wanted) as u64 + RESERVE_SEGMENTS) * wanted;
        if folder.space().is_ok_and(|space| space.free >= needed) {
            return wanted;
        }
        let spares = || self.leftovers.iter().filter(|name| name.ends_with(NEW));
        let count = |size: u64| spares().filter(|name| whole(folder.open(name), size).is_some()).count();
        let sizes: BTreeSet<u64> = beginning.segments.iter().map(|at| at.segment.head.size).collect();
        match sizes.into_iter().max_by_key(|size| count(*size)) {
            Some(size) if count(size) > 0 && count(wanted) == 0 => size,
            _ => wanted,
        }
    }

    /// A next segment that was begun and has no batch is begun again.
    pub(super) fn begin_again(&mut self, next: u32) {
        if self.begun.is_empty() && !planted(Fault::SyncedHeadRemoved) {
            self.begun.extend(self.leftovers.extract_if(.., |name| *name == name_of(next)));
        }
    }

    /// Takes out the files that a repair has replaced, if its new segments, from `first` on, count.
    pub(super) fn take_replaced(&mut self, first: Option<u64>, oldest: u32) -> Vec<String> {
        let Some(first) = first.filter(|first| u64::from(oldest) >= *first) else { return Vec::new() };
        let is_replaced = |name: &mut String| number_of(name).is_some_and(|number| u64::from(number) < first);
        self.leftovers.extract_if(.., is_replaced).collect()
    }

    /// Takes out the files that have the blocks of a segment and are no longer one: the spares of an earlier process, and
    /// cleaned segments. What is given back to a file system that is full may be taken by others. Returns their names,
    /// and a number that is in the name of no spare.
    pub(super) fn take_spares(
        &mut self,
        folder: &dyn Folder,
        oldest: u32,
        gaps: &Gaps,
        segment_bytes: u64,
    ) -> (Vec<String>, u64) {
        let number = |name: &str| name.strip_suffix(NEW).and_then(|digits| digits.parse::<u64>().ok());
        let next = self.leftovers.iter().filter_map(|name| number(name)).max().map_or(0, |number| number + 1);
        let is_spare = |name: &str| {
            number(name).is_some() || number_of(name).is_some_and(|number| number < oldest || gaps.contains(number))
        };
        let has_blocks = |name: &str| whole(folder.open(name), segment_bytes).is_some();
        (self.leftovers.extract_if(.., |name| is_spare(name) && has_blocks(name)).collect(), next)
    }

    /// Removes the files that are laid out in part, or whose segments are outside of this range. They would stand in the
    /// way of the next segments, or a batch that is known synced says that none needs them.
    ///
    /// The segment after the range may be there without a batch. Its head says that all batches before it are synced,
    /// so it stays until the next segment takes its name.
    pub(super) fn make_room(&mut self, folder: &dyn Folder, needed: Range<u32>) -> io::Result<()> {
        if !planted(Fault::SyncedHeadRemoved) {
            self.leftovers.retain(|name| number_of(name) != Some(needed.end));
        }
        let goes_now = |name: &mut String| number_of(name).is_none_or(|number| !needed.contains(&number));
        let now: Vec<_> = self.leftovers.extract_if(.., goes_now).collect();
        clear(folder, &now)?;
        if now.is_empty() { Ok(()) } else { folder.sync() }
    }
}

/// Removes files that no batch needs, with their summaries. The batches that say so are on disk.
pub(super) fn clear(folder: &dyn Folder, names: &[String]) -> io::Result<()> {
    for name in names {
        if let Some(number) = number_of(name) {
            remove_if_there(folder, &summary_name(number))?;
        }
        remove_if_there(folder, name)?;
    }
    Ok(())
}
