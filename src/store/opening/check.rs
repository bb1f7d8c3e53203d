//! Checks a folder that no process uses, and changes nothing in it.
//!
//! ```text
//! lock (by the caller) ─► all heads, tables and bodies ─► summaries against their segments ─► report
//! ```
//! A value whose bytes have changed is no damage: the log opens without a repair, and sets the one record aside when it
//! reads it. If the record is dead, no reader ever does.
//!
//! This module repairs nothing.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use super::cut::CutOff;
use super::effects::{EffectOwner, read_effects, take_behind};
use super::history::{HistoryReader, Purpose, ReadHistory, read};
use super::winners::Winners;
use crate::store::errors::Error;
use crate::store::folder::Folder;
use crate::store::format::LogKind;
use crate::store::metrics::OpeningShape;
use crate::store::notes::backup_end;
use crate::store::record::record_bytes;
use crate::store::segment::{OpenFiles, Place, Segment};
use crate::store::summary::{ReadSummary, Summary, SummaryRecord, read_file, summary_name};

/// What a folder has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Segments in use.
    pub segments: u64,
    /// Batches in them.
    pub batches: u64,
    /// Batches behind the last one that is known to be on disk. They are whole.
    pub behind: u64,
    /// Records in the batches up to that one.
    pub records: u64,
    /// Records that are the last of their keys.
    pub live: u64,
    /// Records whose bytes were lost earlier.
    pub set_aside: u64,
    /// Bytes of the segments up to their ends.
    pub bytes: u64,
    /// Bytes of the live records.
    pub live_bytes: u64,
}

impl CheckCounts {
    /// Records that are not the last of their keys.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.records - self.live
    }
}

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What the folder has.
    pub counts: CheckCounts,
    /// Whether the folder is a backup that was not opened yet.
    pub is_backup: bool,
    /// What an opening leaves out behind the end. That is no damage: it was not acknowledged as stored.
    pub cut: Vec<CutOff>,
    /// All damage, by name. Without any the folder can be opened.
    pub damages: Vec<String>,
    /// Damage that costs nothing, by name. The folder can be opened.
    pub harmless: Vec<String>,
    /// The values of live records whose bytes have changed, by name.
    pub lost_values: Vec<String>,
    /// The values of dead records whose bytes have changed.
    pub dead_values: u64,
}

/// Reads all of the log in a folder. The caller has locked it ([`crate::store::RealFolder::lock_to_read`]).
///
/// # Errors
/// [`Error`] if the folder cannot be read, or holds no log of this format. Damage is no error: the report names it.
pub fn check(folder: &Arc<dyn Folder>) -> Result<CheckReport, Error> {
    let files = OpenFiles::new(Arc::clone(folder), LogKind::States, 1);
    let backup = backup_end(&**folder, true)?;
    let mut winners = Winners::default();
    let mut counts = CheckCounts::default();
    let mut history =
        read(&files, Purpose::Check, backup.unwrap_or(0), &mut |SummaryRecord { space, key, place, .. }| {
            counts.records += 1;
            winners.earlier(space, key, place, None)
        })?;
    winners.finish();
    let report = report_of(&mut history, backup);
    counts = CheckCounts { records: counts.records, ..report.counts };
    let rotten: HashSet<Place> = history.damage.rotten.iter().map(|(place, _)| *place).collect();
    let mut lost: HashSet<Place> = HashSet::new();
    winners.each(|_, key, place| {
        counts.live += 1;
        counts.set_aside += u64::from(place.is_set_aside());
        counts.live_bytes += record_bytes(key.len(), u64::from(place.length));
        lost.extend(rotten.get(&place));
    });
    let (lost, dead): (Vec<_>, Vec<_>) = history.damage.rotten.into_iter().partition(|(place, _)| lost.contains(place));
    let lost_values = lost.into_iter().map(|(_, name)| name).collect();
    Ok(CheckReport { counts, lost_values, dead_values: dead.len() as u64, ..report })
}

/// As [`check`], for a log of effects. The owner takes its records, and knows which count.
///
/// # Errors
/// As [`check`].
pub fn check_effects(folder: &Arc<dyn Folder>, owner: &Arc<dyn EffectOwner>) -> Result<CheckReport, Error> {
    let files = OpenFiles::new(Arc::clone(folder), LogKind::Effects, 1);
    let backup = backup_end(&**folder, true)?;
    let mut history = read_effects(&files, Purpose::Check, backup.unwrap_or(0), 1, owner)?;
    take_behind(&history, &**owner);
    let (live, live_bytes) = owner.live();
    let report = report_of(&mut history, backup);
    Ok(CheckReport { counts: CheckCounts { live, live_bytes, ..report.counts }, ..report })
}

/// What is reported of any log.
fn report_of(history: &mut ReadHistory, backup: Option<u64>) -> CheckReport {
    let mut damages = std::mem::take(&mut history.damage.lost);
    if backup == Some(0) {
        damages.insert(0, "the note of the backup".to_owned());
    }
    let OpeningShape { segments, batches, behind, .. } = history.shape;
    let bytes = history.segments.iter().map(|at| at.end).sum();
    CheckReport {
        counts: CheckCounts { segments, batches, behind, bytes, ..CheckCounts::default() },
        is_backup: backup.is_some(),
        cut: std::mem::take(&mut history.cut),
        damages,
        harmless: std::mem::take(&mut history.damage.harmless),
        ..CheckReport::default()
    }
}

impl HistoryReader<'_> {
    /// Compares the summary in the folder with the records of the segment. A segment may have none, or one that opening
    /// ignores, since it continues behind the last batch known synced.
    pub(in crate::store) fn check_summary(&self, segment: &Arc<Segment>, sums: &Summary, history: &mut ReadHistory) {
        let name = summary_name(segment.head.number);
        let bytes = match read_file(&*self.files.folder, &name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return history.damage.lost.push(format!("{name} cannot be read: {error}")),
            Ok(bytes) => bytes,
        };
        match ReadSummary::of(&*self.files.folder, &segment.head, Vec::new()) {
            None => history.damage.lost.push(format!("{name} is no summary of its segment")),
            Some(summary) if !sums.has_range_of(&summary.head) => {}
            Some(_) if bytes == sums.encode(&segment.head) => {}
            Some(_) => history.damage.lost.push(format!("{name} does not say what its segment holds")),
        }
    }
}
