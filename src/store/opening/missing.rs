//! Segments that are gone from the folder: what else is there shows that they were.
//!
//! ```text
//! first start:  the first segment ─► its name is durable ─► the note `begun` ─► its name is durable ─► ready
//! opening:      the note and no segment                       all segments are gone
//!               a summary, and no segment with a higher number the newest segment is gone
//! ```
//! A log has at least one segment from the end of its first start on. So a folder with the note, or with a summary, has
//! lost its segments if it has none. A folder without both is one whose first start was interrupted, or an empty one.
//!
//! A segment gets its summary when the name of the next segment is durable. The next segment stays until a later
//! segment is durable. A segment that is missing between two others is found in `history.rs`, unless the head of a
//! later one names it as gone.
//!
//! This module does not read segments.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::fault::{Fault, planted};
use crate::store::gaps::Gaps;
use crate::store::notes::BEGUN;
use crate::store::segment::{BAD, Segment, name_of, number_of};
use crate::store::summary::SUM;

/// A file with the name of a segment.
pub(in crate::store) enum FoundFile {
    Segment(Arc<Segment>),
    /// It is cleaned, and was about to become a later segment: its head is of that segment, and names its number as a gap.
    Cleaned,
    /// It cannot be read as one. The text says why.
    Damaged(String),
}

/// The gaps that the heads of these segments name. A head of another store says nothing.
pub(in crate::store) fn named_gaps(all: &BTreeMap<u32, FoundFile>, named: &BTreeMap<u32, Gaps>) -> Gaps {
    let mut gaps = Gaps::default();
    let of_ours =
        named.iter().filter(|(number, _)| matches!(all.get(number), Some(FoundFile::Segment(_) | FoundFile::Cleaned)));
    of_ours.for_each(|(_, named)| gaps.merge(named));
    gaps
}

/// The number of the last batch of each segment, by the segment after it or the gap. `None`: it is the newest one.
pub(in crate::store) fn limits(found: &[Arc<Segment>], gaps: &Gaps) -> Vec<Option<u64>> {
    let ends = found.iter().zip(found.iter().skip(1));
    let none = Gaps::default();
    let gaps = if planted(Fault::GapEndIgnored) { &none } else { gaps };
    let ends = ends.map(|(segment, next)| Some(gaps.end_of(segment.head.number, next.head.first) - 1));
    ends.chain([None]).take(found.len()).collect()
}

/// The damage that the names in a folder show: its newest segments are gone. `None`: they show none.
pub(in crate::store) fn newest_missing(names: &[String]) -> Option<String> {
    let newest = names.iter().filter_map(|name| number_of(name)).max();
    let summed = names.iter().filter_map(|name| name.strip_suffix(SUM)?.parse::<u32>().ok()).max();
    let is_begun = || names.iter().any(|name| name == BEGUN || name.ends_with(BAD));
    match (newest, summed) {
        (None, summed) if summed.is_some() || is_begun() => Some("all its segments are missing".to_owned()),
        (Some(newest), Some(summed)) if summed >= newest => {
            Some(format!("{} is missing", name_of(newest.saturating_add(1))))
        }
        _ => None,
    }
}
