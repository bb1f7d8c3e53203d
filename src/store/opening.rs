//! Opens a log: reads its history, and continues it in a new segment.
//!
//! ```text
//! read history ─► winners: the last record of each key ─► new segment: one batch of what stood behind the last known
//! sync ─► sync ─► remove leftovers ─► ready
//! ```
//! A repair that has found damage goes another way to the same end, see `repair.rs`.
//!
//! A log never appends where it found an end. The batches behind the last known sync may or may not be on the device,
//! so their records are written again. The first number in the new segment is that after the last known sync, and names
//! the end for all later openings.
//!
//! After a repair with a loss, in a backup, and in a copy of a folder, newer marks may have been given out that are not
//! here. All marks then jump far beyond the known ones, before the log writes anything.

pub(super) mod absent;
mod batches;
pub(super) mod bodies;
pub(super) mod check;
pub(super) mod cut;
pub(super) mod earlier;
pub(super) mod effects;
mod files;
mod heads;
pub(super) mod history;
pub(super) mod missing;
mod origin;
mod repair;
pub(super) mod taker;
pub(super) mod winners;

use std::io;
use std::sync::Arc;

use super::encoding::batch_bytes;
use super::errors::Error;
use super::fault::{Fault, planted};
use super::folder::{Folder, remove_if_there};
use super::format::{LogKind, MARKS, Marks, SECTOR, SEGMENT_BYTES_MAX, Space, align};
use super::gaps::Gaps;
use super::log::chores::{Chore, ChoreMode, Chores};
use super::log::in_use::UsedSegments;
use super::log::{Beginning, Log, LogConfig};
use super::notes::{self, BACKUP, BEGUN, REPAIR, backup_end};
use super::record::{Body, Record, RecordBatch};
use super::segment::{OpenFiles, name_of};
use crate::clock::Clock;
use cut::CutOff;
use effects::{EffectOwner, EffectReader, read_newest};
use files::clear;
use history::{Purpose, ReadHistory, ReadRecord};
use origin::{FolderOrigin, note_origin, origin_of};
use repair::{check_room, keep_aside};
use taker::{EffectTaker, RecordTaker};
use winners::Winners;

/// How far the marks jump when newer ones may have been lost: the tokens, the ids, the numbers in removed queues, and
/// the version.
///
/// A server that hands out a million tokens in a second takes 200 days for 2^44. A client that keeps numbers as doubles
/// knows each up to 2^53, which are 512 jumps. Versions are nanoseconds since 1970 at first: those of a later start are
/// above them without a jump.
pub(in crate::store) const MARK_JUMPS: Marks = [1 << 44; MARKS];
/// The mark of a log of effects that is a time, which no server gives out: it does not jump.
pub(crate) const TIME_MARK: usize = 2;

/// How to open a log.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The configuration of the log.
    pub config: LogConfig,
    /// Whether damage is left out. Otherwise it is an error.
    pub repair: bool,
    /// Whether the folder is a copy of one that a server has used since.
    pub copied: bool,
    /// Where segments are laid out and removed.
    pub chores: ChoreMode,
}

/// An opened log and its records.
#[derive(Debug)]
pub struct Opened {
    /// The log, ready to write. Its [`super::LogMetrics::opening`] says how it was opened.
    pub log: Log,
    /// The last record of each key.
    pub winners: Winners,
    /// What a repair has left out.
    pub lost: Vec<String>,
    /// Damage that costs nothing.
    pub harmless: Vec<String>,
    /// Whether the folder was a backup.
    pub was_backup: bool,
    /// What else the operator should know.
    pub notes: Vec<String>,
}

/// Opens the log in a folder. A folder without a log gets one.
///
/// # Errors
/// [`Error`] if the folder cannot be read or written, or is damaged.
pub fn open(folder: &Arc<dyn Folder>, options: OpenOptions) -> Result<Opened, Error> {
    let mut winners = Winners::default();
    let opened = open_folder(folder, options, &mut winners)?;
    Ok(Opened { winners, ..opened })
}

/// Opens the log of effects in a folder, with so many threads. The owner takes all of its records.
///
/// # Errors
/// As [`open`].
pub fn open_effects(
    folder: &Arc<dyn Folder>,
    options: OpenOptions,
    owner: Arc<dyn EffectOwner>,
    readers: usize,
) -> Result<Opened, Error> {
    open_folder(folder, options, &mut EffectTaker { owner, readers })
}

/// Passes the records of the newest segment of a log of effects that has some.
///
/// # Errors
/// [`Error`] if the folder cannot be read, or is damaged.
pub(in crate::store) fn peek(
    folder: &Arc<dyn Folder>,
    options: OpenOptions,
    reader: &mut dyn EffectReader,
) -> Result<(), Error> {
    let OpenOptions { config, repair, .. } = options;
    let files = OpenFiles::new(Arc::clone(folder), config.kind, config.files);
    let purpose = if repair { Purpose::Repair } else { Purpose::Open };
    read_newest(&files, purpose, backup_end(&**folder, repair)?.unwrap_or(0), reader)
}

fn open_folder(folder: &Arc<dyn Folder>, options: OpenOptions, taker: &mut dyn RecordTaker) -> Result<Opened, Error> {
    read_and_begin(folder, options, taker).map_err(|error| match error {
        // There is no log yet that could take more.
        Error::NoRoom(folder) => Error::Full(folder),
        error => error,
    })
}

fn read_and_begin(
    folder: &Arc<dyn Folder>,
    options: OpenOptions,
    taker: &mut dyn RecordTaker,
) -> Result<Opened, Error> {
    let OpenOptions { config, repair, copied, chores } = options;
    let clock = Clock::start();
    let explain = |error: io::Error| Error::of(folder.path(), &error);
    let wanted_bytes = align(config.segment_bytes).clamp(2 * SECTOR, SEGMENT_BYTES_MAX);
    let files = OpenFiles::new(Arc::clone(folder), config.kind, config.files);
    let backup = backup_end(&**folder, repair)?;
    let replaced_before = notes::read(&**folder, REPAIR).map_err(explain)?.map(|[first]| first);
    let purpose = if repair { Purpose::Repair } else { Purpose::Open };
    let mut history = taker.read(&files, purpose, backup.unwrap_or(0))?;
    let mut lost = std::mem::take(&mut history.damage.lost);
    let rewrite = !lost.is_empty();
    let origin = origin_of(&**folder);
    let is_copy = copied && history.newest > 0;
    let jumps = rewrite || backup.is_some() || is_copy;
    if jumps && !planted(Fault::MarksNotJumped) {
        jump(&mut history.known.marks, config.kind);
    }
    let behind = batch_of(std::mem::take(&mut history.behind));
    let beginning = beginning(folder, &mut history, taker, rewrite, batch_bytes(&behind))?;
    let segment_bytes = history.files.size_with_room(&**folder, &beginning, wanted_bytes);
    history.summaries.retain(|(segment, _)| !beginning.dead.contains(&segment.head.number));
    if rewrite {
        let bytes = behind.records.iter().map(Record::bytes).sum::<u64>() + taker.bytes();
        check_room(&**folder, bytes, segment_bytes)?;
    }
    let kept = history.files.take_replaced(replaced_before, history.oldest);
    let chores = begin_chores(folder, &mut history, &beginning, segment_bytes, chores, rewrite).map_err(explain)?;
    if planted(Fault::BegunNotedEarly) {
        leave_begun(&**folder).map_err(explain)?;
    }
    let mut log = Log::begin(files, LogConfig { segment_bytes, ..config }, chores, beginning)?;
    // The states behind the last known sync come first: the copies of a repair are of the last states.
    taker.write(&mut log, behind)?;
    if rewrite {
        taker.write_all(&mut log, &history, &mut lost)?;
    }
    // From here on the end of the old segments is named, and known as synced.
    log.rest()?;
    taker.count_live(&mut log);
    if rewrite {
        keep_aside(&**folder, &history.files.names).map_err(explain)?;
    } else {
        clear(&**folder, &history.files.leftovers).map_err(explain)?;
        if replaced_before.is_some() {
            keep_aside(&**folder, &kept).map_err(explain)?;
        }
        log.free_ends();
        log.summarise(std::mem::take(&mut history.summaries));
    }
    leave_notes(&**folder, history.files.is_begun, !jumps && origin != FolderOrigin::Unknown, backup.is_some())
        .map_err(explain)?;
    let shape = super::OpeningShape { nanos: clock.now().nanos(), records: taker.records(), ..history.shape };
    log.opened(shape);
    let copy = origin.notice(is_copy, jumps).map(str::to_owned);
    let kept = (segment_bytes != wanted_bytes).then(|| size_notice(segment_bytes, wanted_bytes));
    let notes = history.cut.iter().map(cut_notice).chain(copy).chain(kept).collect();
    Ok(Opened {
        log,
        winners: Winners::default(),
        lost,
        harmless: history.damage.harmless,
        was_backup: backup.is_some(),
        notes,
    })
}

/// The work beside the log. Files that have the blocks of a segment become spares, and others make room.
fn begin_chores(
    folder: &Arc<dyn Folder>,
    history: &mut ReadHistory,
    beginning: &Beginning,
    segment_bytes: u64,
    mode: ChoreMode,
    rewrite: bool,
) -> io::Result<Chores> {
    // A repair keeps all segments.
    let (oldest, gaps) = if rewrite { (0, &Gaps::default()) } else { (history.known.oldest, &history.gaps) };
    let (again, next) = history.files.take_spares(&**folder, oldest, gaps, segment_bytes);
    if !rewrite && beginning.first_batch < segment_bytes {
        history.files.begin_again(beginning.segment);
    }
    history.files.make_room(&**folder, oldest..beginning.segment)?;
    let mut chores = Chores::new(Arc::clone(folder), segment_bytes, mode, next)?;
    chores.take_begun(&history.files.begun);
    again.into_iter().for_each(|name| chores.give(Chore::UseAgain { name }));
    Ok(chores)
}

/// Leaves the notes of a log that is open, and removes that of a backup.
fn leave_notes(folder: &dyn Folder, is_begun: bool, is_origin_noted: bool, was_backup: bool) -> io::Result<()> {
    if !is_begun {
        leave_begun(folder)?;
    }
    if !is_origin_noted {
        note_origin(folder)?;
    }
    if was_backup {
        remove_if_there(folder, BACKUP)?;
        folder.sync()?;
    }
    Ok(())
}

/// Leaves the note that the log has a segment. The log of an earlier version has none.
fn leave_begun(folder: &dyn Folder) -> io::Result<()> {
    notes::unless_full(folder.create(BEGUN).and_then(|_| folder.sync()))
}

fn size_notice(kept: u64, wanted: u64) -> String {
    format!(
        "segments keep their {kept} bytes: the device of --data has no room for those of {wanted} bytes (--segment-size); make room on it, and the next start changes them"
    )
}

fn cut_notice(cut: &CutOff) -> String {
    format!("{cut} are cut off: they are no whole batch, and no sync of them was acknowledged")
}

/// Raises all marks far beyond those that were lost.
fn jump(marks: &mut Marks, kind: LogKind) {
    let jumps = marks.iter_mut().zip(MARK_JUMPS).enumerate();
    jumps
        .filter(|(number, _)| kind != LogKind::Effects || *number != TIME_MARK)
        .for_each(|(_, (mark, jump))| *mark = mark.saturating_add(jump));
}

/// Changes what was read as the planted fault does.
fn plant_faults(history: &mut ReadHistory, winners: &mut Winners) {
    if planted(Fault::AppendBehindCut) {
        history.known.synced += history.shape.behind;
        for ReadRecord { space, key, place, body } in std::mem::take(&mut history.behind) {
            winners.later(space, &key, place, body.as_deref().filter(|_| space != Space::Values));
        }
    }
    if planted(Fault::MarksForgotten) {
        history.known.marks = Default::default();
    }
}

/// The batch of these records. Their bodies were read with them.
fn batch_of(records: Vec<ReadRecord>) -> RecordBatch {
    let records = records.into_iter().map(|ReadRecord { space, key, place, body }| {
        let body = match (place, body) {
            (None, _) => Body::Removed,
            (Some(_), Some(body)) => Body::Bytes(body),
            (Some(_), None) => Body::SetAside,
        };
        Record { space, key, body }
    });
    records.collect::<Vec<_>>().into()
}

/// The state with which the log continues.
fn beginning(
    folder: &Arc<dyn Folder>,
    history: &mut ReadHistory,
    taker: &dyn RecordTaker,
    rewrite: bool,
    first_batch: u64,
) -> Result<Beginning, Error> {
    let store = match history.store {
        Some(store) => store,
        None => folder.nonce().map_err(|error| Error::of(folder.path(), &error))?,
    };
    let Some(segment) = history.newest.checked_add(1) else {
        return Err(Error::Damaged { folder: folder.path().to_owned(), what: name_of(history.newest) });
    };
    let (dead, reserved) = if rewrite { (Vec::new(), 0) } else { taker.counted(history) };
    let segments = if rewrite { UsedSegments::default() } else { history.segments.drain(..).collect() };
    let keeps = (rewrite && !planted(Fault::RepairNamedEarly)).then_some(history.oldest);
    let gaps = history.gaps.clone();
    let (last, marks) = (history.known.synced, history.known.marks);
    Ok(Beginning { store, segments, gaps, last, marks, segment, keeps, first_batch, dead, reserved })
}
