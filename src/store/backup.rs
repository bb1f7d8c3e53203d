//! Backups: a copy of a running log, as it is at one sync.
//!
//! ```text
//! writer:       Log::backup: sync, hold all segments
//! any thread:   Backup::copy_to: the note `backup.unfinished` ─► sync ─► closed segments and summaries linked, or
//!               copied; the newest copied up to the sync ─► files and folder synced ─► the note becomes `backup`
//!               ─► sync
//! ```
//! A closed segment is never written to, so a link is as good as a copy. (Blocks behind its end may be given back. They
//! hold nothing.) The writer goes on meanwhile: segments that are held stay.
//!
//! A folder with the note `backup.unfinished` is never opened. The note `backup` says which batch is the last one, so a
//! backup whose files are not all there is damaged. When a log is opened in a backup, its marks jump: newer ones were
//! given out after the backup. The note goes when that is synced.
//!
//! This module reads no records.

use std::io;
use std::sync::Arc;

use super::errors::Error;
use super::fault::{Fault, planted};
use super::folder::{Folder, LogFile, read_exact, write_all};
use super::format::{Fields, index, is_sealed, seal};
use super::log::Log;
use super::repair::remove_if_there;
use super::segment::{NEW, Segment, name_of, number_of};
use super::summary::{SUM, read_file, summary_name};

/// The name of the note of a whole backup.
const WHOLE: &str = "backup";
/// The name of the note while a backup is being written.
const UNFINISHED: &str = "backup.unfinished";
/// The bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// The segments of a log at one sync. They stay as long as this does.
#[derive(Debug)]
pub struct Backup {
    folder: Arc<dyn Folder>,
    /// The segments with their ends, the oldest first. The log writes to the last one.
    segments: Vec<(Arc<Segment>, u64)>,
    /// The number of the last batch.
    last: u64,
}

/// What a backup has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Its segments.
    pub segments: u64,
    /// Files that are links: they took no space.
    pub linked: u64,
    /// Files that were copied.
    pub copied: u64,
    /// Bytes that were copied.
    pub bytes: u64,
}

impl Log {
    /// Syncs, and holds all segments for a backup. The writer goes on; [`Backup::copy_to`] runs in any thread.
    ///
    /// # Errors
    /// As [`Log::sync`].
    pub fn backup(&mut self) -> Result<Backup, Error> {
        self.sync()?;
        let segments = self.segments.iter().map(|at| (Arc::clone(&at.segment), at.end)).collect();
        Ok(Backup { folder: Arc::clone(&self.files.folder), segments, last: self.synced })
    }
}

impl Backup {
    /// Writes the backup to an empty folder, or to one with a backup that was interrupted. It is durable and whole when
    /// this returns.
    ///
    /// # Errors
    /// [`Error`] of either folder. [`Error::NotEmpty`] if the folder has files of a log.
    pub fn copy_to(&self, to: &dyn Folder) -> Result<BackupReport, Error> {
        let explain = |error: io::Error| Error::of(to.path(), &error);
        empty(to)?;
        write_note(to, UNFINISHED, self.last).map_err(explain)?;
        if planted(Fault::BackupNamedEarly) {
            to.rename(UNFINISHED, WHOLE).and_then(|()| to.sync()).map_err(explain)?;
        }
        let mut report = BackupReport { segments: self.segments.len() as u64, ..BackupReport::default() };
        let Some(((newest, end), closed)) = self.segments.split_last() else {
            return Err(Error::Failed { folder: to.path().to_owned(), why: "the log has no segment".to_owned() });
        };
        for (segment, end) in closed {
            self.take_closed(segment, *end, to, &mut report)?;
        }
        self.copy_segment(newest, *end, to, &mut report)?;
        if !planted(Fault::BackupUnsynced) {
            to.sync().map_err(explain)?;
        }
        if !planted(Fault::BackupNamedEarly) {
            to.rename(UNFINISHED, WHOLE).and_then(|()| to.sync()).map_err(explain)?;
        }
        Ok(report)
    }

    /// Links a closed segment and its summary, or copies the segment.
    fn take_closed(
        &self,
        segment: &Arc<Segment>,
        end: u64,
        to: &dyn Folder,
        report: &mut BackupReport,
    ) -> Result<(), Error> {
        let number = segment.head.number;
        // Another file system, or one without links. The copy reports all other errors.
        if to.link(&name_of(number), self.folder.path()).is_err() {
            return self.copy_segment(segment, end, to, report);
        }
        report.linked += 1;
        // Without a summary, opening reads the segment.
        if to.link(&summary_name(number), self.folder.path()).is_ok() {
            report.linked += 1;
        }
        Ok(())
    }

    /// Copies a segment up to its end. The rest of the file is zeros.
    fn copy_segment(
        &self,
        segment: &Arc<Segment>,
        end: u64,
        to: &dyn Folder,
        report: &mut BackupReport,
    ) -> Result<(), Error> {
        let explain = |error: io::Error| Error::of(to.path(), &error);
        let from = segment.file().map_err(|error| Error::of(self.folder.path(), &error))?;
        let copy = to.create(&name_of(segment.head.number)).map_err(explain)?;
        let mut at = 0;
        while at < end {
            let bytes = self.read(&*from, at, COPY_BYTES.min(end - at))?;
            write_all(&*copy, &bytes, at).map_err(explain)?;
            at += bytes.len() as u64;
        }
        copy.set_size(segment.head.size).map_err(explain)?;
        if !planted(Fault::BackupUnsynced) {
            copy.sync().map_err(explain)?;
        }
        report.copied += 1;
        report.bytes += end;
        Ok(())
    }

    fn read(&self, from: &dyn LogFile, at: u64, length: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; index(length)];
        read_exact(from, &mut bytes, at).map_err(|error| Error::of(self.folder.path(), &error))?;
        Ok(bytes)
    }
}

/// Refuses a folder with files of a log. Those of an interrupted backup are removed.
fn empty(to: &dyn Folder) -> Result<(), Error> {
    let explain = |error: io::Error| Error::of(to.path(), &error);
    let names = to.list().map_err(explain)?;
    let is_ours = |name: &&String| number_of(name).is_some() || name.ends_with(SUM) || name.ends_with(NEW);
    let has_files = names.iter().any(|name| is_ours(&name) || name == WHOLE);
    if !names.iter().any(|name| name == UNFINISHED) {
        return if has_files { Err(Error::NotEmpty { folder: to.path().to_owned() }) } else { Ok(()) };
    }
    for name in names.iter().filter(is_ours) {
        to.remove(name).map_err(explain)?;
    }
    // No file of the interrupted backup may come back beside those of this one.
    to.sync().map_err(explain)
}

/// Writes a note. It and its name are durable when this returns.
fn write_note(folder: &dyn Folder, name: &str, last: u64) -> io::Result<()> {
    let file = folder.create(name)?;
    let mut bytes = last.to_le_bytes().to_vec();
    seal(&mut bytes, 0);
    write_all(&*file, &bytes, 0)?;
    file.sync()?;
    folder.sync()
}

/// A folder is a whole backup, and nothing was written to it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackupMark {
    /// The number of its last batch, 0 if the note is not right.
    pub(super) last: u64,
}

/// Whether the folder is a backup. With `goes_on`, a note that is damaged says nothing but this.
///
/// # Errors
/// [`Error::Unfinished`] if it is one that was interrupted. Another [`Error`] if the note cannot be read.
pub(super) fn mark_of(folder: &dyn Folder, goes_on: bool) -> Result<Option<BackupMark>, Error> {
    let read = |name| match read_file(folder, name) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::of(folder.path(), &error)),
    };
    if read(UNFINISHED)?.is_some() {
        return Err(Error::Unfinished { folder: folder.path().to_owned() });
    }
    let Some(bytes) = read(WHOLE)? else { return Ok(None) };
    match Fields(&bytes).u64().filter(|_| is_sealed(&bytes, bytes.len())) {
        Some(last) => Ok(Some(BackupMark { last })),
        None if goes_on => Ok(Some(BackupMark { last: 0 })),
        None => Err(Error::Damaged { folder: folder.path().to_owned(), what: WHOLE.to_owned() }),
    }
}

/// The folder is no backup any more: its marks have jumped, and that is synced.
pub(super) fn forget_mark(folder: &dyn Folder) -> io::Result<()> {
    remove_if_there(folder, WHOLE)?;
    folder.sync()
}
