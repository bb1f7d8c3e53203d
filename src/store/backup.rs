//! Backups: a copy of a running log, as it is at one sync.
//!
//! ```text
//! writer:       Log::backup: sync, hold all segments
//! any thread:   Backup::copy_to: the note `backup.unfinished` ─► sync ─► closed segments and summaries linked, or
//!               copied and verified; the newest copied up to the sync ─► files and folder synced ─► the note becomes
//!               `backup` ─► sync
//!               before each piece of a copy, and each segment: BackupTurn ─► continue, or end
//! ```
//! A closed segment is never written to, so a link is as good as a copy. (Blocks behind its end may be given back. They
//! hold nothing.) The writer continues meanwhile: segments that are held stay.
//!
//! A folder with the note `backup.unfinished` is never opened. The note `backup` says which batch is the last one, so a
//! backup whose files are not all there is damaged. When a log is opened in a backup, its marks jump: newer ones were
//! given out after the backup. The note goes when that is synced.
//!
//! [`Backup::write_to`] removes a backup that fails or is cancelled: its links would keep the space of segments that
//! the log has long removed. Only the end of the process leaves an unfinished one, since it waits for nothing. The next
//! backup to the same folder replaces it.
//!
//! Where space is short, and the reserve of the log is used in part, nothing is linked: links keep the segments that are
//! to be cleaned. A backup by copies continues until the log needs the segments that it holds.
//!
//! A copy is compared with its checksums, see `backup/segment_copy.rs`. What is damaged, or cannot be read, is named in
//! the report, and all else is in the backup. A link is not read.

mod segment_copy;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{RealFolder, TargetFolder};
use super::errors::Error;
use super::fault::{Fault, planted};
use super::folder::{Folder, remove_if_there};
use super::interface::{BackupReport, BackupTurn, StoreBackup};
use super::log::Log;
use super::notes::{self, BACKUP, UNFINISHED};
use super::segment::{NEW, Segment, name_of, number_of};
use super::summary::{SUM, summary_name};
use segment_copy::{copy_bytes, verify};

/// The segments of a log at one sync. They stay as long as this does.
#[derive(Debug)]
pub struct Backup {
    pub(super) folder: Arc<dyn Folder>,
    /// The oldest first. The log writes to the last one.
    pub(super) segments: Vec<HeldSegment>,
    /// The number of the last batch.
    pub(super) last: u64,
    /// Whether the log can do without the segments for as long as they have links.
    pub(super) may_link: bool,
    /// Whether the log needs the segments. Written by the log.
    pub(super) gives_way: Arc<AtomicBool>,
}

/// A segment of a backup.
#[derive(Debug)]
pub(super) struct HeldSegment {
    pub(super) segment: Arc<Segment>,
    /// The offset behind its last batch.
    pub(super) end: u64,
    /// The number of that batch.
    pub(super) last: u64,
}

impl Log {
    /// Syncs, and holds all segments for a backup. The writer continues; [`Backup::copy_to`] runs in any thread.
    ///
    /// # Errors
    /// As [`Log::sync`].
    pub fn backup(&mut self) -> Result<Backup, Error> {
        self.sync()?;
        let last_of_all = self.heads.numbers.synced;
        let pairs = self.segments.iter().zip(self.segments.iter().skip(1));
        let last = pairs.map(|(at, next)| self.heads.gaps.end_of(at.number(), next.segment.head.first) - 1);
        let held = self.segments.iter().zip(last.chain([last_of_all]));
        let segments = held.map(|(at, last)| HeldSegment { segment: Arc::clone(&at.segment), end: at.end, last });
        let segments = segments.collect();
        let may_link = !(self.is_space_short() && self.chores.lacks_blocks());
        if may_link {
            self.segments.linked();
        }
        let (folder, gives_way) = (Arc::clone(&self.disk.files.folder), Arc::clone(&self.disk.backup_gives_way));
        Ok(Backup { folder, segments, last: last_of_all, may_link, gives_way })
    }

    /// A segment was begun. Has a backup end if the log cannot do without what it holds.
    pub(super) fn look_at_backup(&mut self) {
        let gives_way = self.is_space_short() && self.chores.is_nearly_used_up();
        // Relaxed: it publishes no other data.
        self.disk.backup_gives_way.store(gives_way, Ordering::Relaxed);
    }
}

impl Backup {
    /// Writes the backup to an empty folder, or to one with a backup that was interrupted. It is durable and whole when
    /// this returns. `turn` is asked before each piece of the work.
    ///
    /// # Errors
    /// [`Error`] of either folder. [`Error::BackupGaveWay`] if the log needs the segments. [`Error::NotEmpty`] if the
    /// folder has other files. [`Error::Cancelled`] or [`Error::Left`] if `turn` says so. The folder has the note
    /// `backup.unfinished` then, unless nothing was written.
    pub fn copy_to(&self, to: &Arc<dyn Folder>, turn: &mut dyn FnMut() -> BackupTurn) -> Result<BackupReport, Error> {
        let explain = |error: io::Error| Error::of(to.path(), &error);
        empty(&**to)?;
        notes::leave(&**to, UNFINISHED, |_| Ok([self.last])).map_err(explain)?;
        if planted(Fault::BackupNamedEarly) {
            to.rename(UNFINISHED, BACKUP).and_then(|()| to.sync()).map_err(explain)?;
        }
        let mut report = BackupReport { segments: self.segments.len() as u64, ..BackupReport::default() };
        let Some((newest, closed)) = self.segments.split_last() else {
            return Err(Error::Failed { folder: to.path().to_owned(), why: "the log has no segment".to_owned() });
        };
        let mut copy = Copy { backup: self, to, turn, report: &mut report };
        for held in closed {
            copy.take_closed(held)?;
        }
        copy.copy_segment(newest)?;
        to.sync().map_err(explain)?;
        if !planted(Fault::BackupNamedEarly) {
            to.rename(UNFINISHED, BACKUP).and_then(|()| to.sync()).map_err(explain)?;
        }
        Ok(report)
    }

    /// Returns an error if the backup ends here.
    fn check_turn(&self, turn: &mut dyn FnMut() -> BackupTurn, to: &dyn Folder) -> Result<(), Error> {
        match turn() {
            // Relaxed: it publishes no other data.
            BackupTurn::Continue if self.gives_way.load(Ordering::Relaxed) => {
                Err(Error::BackupGaveWay { from: self.folder.path().to_owned(), to: to.path().to_owned() })
            }
            BackupTurn::Continue => Ok(()),
            BackupTurn::Cancel => Err(Error::Cancelled(to.path().to_owned())),
            BackupTurn::Leave => Err(Error::Left(to.path().to_owned())),
        }
    }

    /// As [`Backup::copy_to`], and removes a backup that fails or is cancelled.
    pub(super) fn copy_or_discard(
        &self,
        to: &Arc<dyn Folder>,
        turn: &mut dyn FnMut() -> BackupTurn,
    ) -> Result<BackupReport, Error> {
        let written = self.copy_to(to, turn);
        if written.as_ref().is_err_and(|error| !matches!(error, Error::Left { .. } | Error::NotEmpty { .. })) {
            // What cannot be removed stays, with its note.
            let _stays = discard(&**to);
        }
        written
    }
}

impl StoreBackup for Backup {
    fn write_to(&self, to: &Path, turn: &mut dyn FnMut() -> BackupTurn) -> Result<BackupReport, Error> {
        let locked = RealFolder::lock_for_backup(to, self.folder.path(), is_of_a_backup);
        let TargetFolder { folder, is_made } = locked.map_err(|error| of_target(error, to))?;
        let folder = Arc::new(folder);
        let shared: Arc<dyn Folder> = Arc::<RealFolder>::clone(&folder);
        let written = self.copy_or_discard(&shared, turn);
        if written.is_err() && folder.list().is_ok_and(|names| names.is_empty()) {
            // What cannot be removed is an empty folder.
            let _stays = folder.unlock(is_made);
        }
        written.map_err(|error| of_target(error, to))
    }
}

/// Has an error of the backup's folder speak of the backup. The server and its own folder are well.
fn of_target(error: Error, to: &Path) -> Error {
    match error {
        Error::Full(folder) if folder == to => Error::BackupFull(folder),
        Error::ReadOnly(folder) | Error::NotWritable(folder) if folder == to => Error::BackupReadOnly(folder),
        Error::Failed { folder, why } if folder == to => Error::NoTarget { folder, why },
        Error::NoFolder(folder) if folder == to => Error::NoTarget { folder, why: "no folder".to_owned() },
        error => error,
    }
}

/// A backup that is being written.
struct Copy<'a> {
    backup: &'a Backup,
    to: &'a Arc<dyn Folder>,
    turn: &'a mut dyn FnMut() -> BackupTurn,
    report: &'a mut BackupReport,
}

impl Copy<'_> {
    /// Links a closed segment and its summary, or copies the segment.
    fn take_closed(&mut self, held: &HeldSegment) -> Result<(), Error> {
        self.backup.check_turn(self.turn, &**self.to)?;
        let (from, number) = (self.backup.folder.path(), held.segment.head.number);
        // Another file system, or one without links. The copy reports all other errors.
        if !self.backup.may_link || self.to.link(&name_of(number), from).is_err() {
            return self.copy_segment(held);
        }
        self.report.linked += 1;
        // Without a summary, opening reads the segment.
        if self.to.link(&summary_name(number), from).is_ok() {
            self.report.linked += 1;
        }
        Ok(())
    }

    /// Copies a segment up to its end, and verifies the copy. The rest of the file is zeros.
    fn copy_segment(&mut self, held: &HeldSegment) -> Result<(), Error> {
        let (to, from) = (&**self.to, &*self.backup.folder);
        let explain = |error: io::Error| Error::of(to.path(), &error);
        let head = &held.segment.head;
        let copy = to.create(&name_of(head.number)).map_err(explain)?;
        let turn = &mut || self.backup.check_turn(self.turn, to);
        copy_bytes(held, from, to, &*copy, turn, self.report)?;
        copy.set_size(head.size).map_err(explain)?;
        // Before the sync most bytes are still in memory.
        verify(held, self.to, self.report)?;
        copy.sync().map_err(explain)?;
        self.report.copied += 1;
        self.report.bytes += held.end;
        Ok(())
    }
}

/// Whether a file of this name can be part of a backup.
fn is_of_a_log(name: &str) -> bool {
    number_of(name).is_some() || name.ends_with(SUM) || name.ends_with(NEW)
}

/// Whether a folder with these names is empty, or holds nothing but a backup that was interrupted.
fn is_of_a_backup(names: &[String]) -> bool {
    names.is_empty()
        || names.iter().any(|name| name.starts_with(UNFINISHED))
            && names.iter().all(|name| name == UNFINISHED || is_of_a_log(name))
}

/// Refuses a folder with files. Those of an interrupted backup are removed.
fn empty(to: &dyn Folder) -> Result<(), Error> {
    let explain = |error: io::Error| Error::of(to.path(), &error);
    let names = to.list().map_err(explain)?;
    if !is_of_a_backup(&names) {
        return Err(Error::NotEmpty(to.path().to_owned()));
    }
    // No file of the interrupted backup may come back beside those of this one.
    remove_files(to, &names).map_err(explain)
}

fn remove_files(to: &dyn Folder, names: &[String]) -> io::Result<()> {
    names.iter().filter(|name| is_of_a_log(name)).try_for_each(|name| to.remove(name))?;
    if names.is_empty() { Ok(()) } else { to.sync() }
}

/// Removes a backup that has failed, its note last.
fn discard(to: &dyn Folder) -> io::Result<()> {
    // The last step may have failed after the note got its name.
    if to.list()?.iter().any(|name| name == BACKUP) {
        to.rename(BACKUP, UNFINISHED)?;
        to.sync()?;
    }
    if planted(Fault::BackupNoteRemovedEarly) {
        remove_if_there(to, UNFINISHED)?;
    }
    remove_files(to, &to.list()?)?;
    remove_if_there(to, UNFINISHED)?;
    to.sync()
}
