//! The reasons why a store is unusable, each with a sentence that says what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::failure::{Failure, failure};
use super::format::FORMAT;

/// The reason why the store is unusable.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one, or choose another --data", .0.display())]
    InUse(PathBuf),
    /// The path is a file, or lies below one.
    #[error("{} is no folder: choose a folder for --data, which is made if it is not there", .0.display())]
    NoFolder(PathBuf),
    /// The folder is to be read, and is not there.
    #[error("{} is not there: name a folder that a server has written", .0.display())]
    Missing(PathBuf),
    /// The folder is to be read, and holds no store.
    #[error("{} holds no store: {found}; name the --data of a server, or a backup", folder.display())]
    NoStore {
        /// The path of the folder.
        folder: PathBuf,
        /// What it holds.
        found: String,
    },
    /// The folder is to be written, and the server finds it read-only when it starts.
    #[error(
        "{}: the file system is read-only for the server: make it writable, or copy the folder to one that is; if systemd runs the server, its unit lets it write to /var/lib/spindle alone; if nobody has made it read-only, look at the kernel's log",
        .0.display()
    )]
    NotWritable(PathBuf),
    /// The store was written by another version.
    #[error(
        "{} has format {found}, this server reads format {FORMAT}: use the version that wrote it, or choose another --data",
        folder.display()
    )]
    Version {
        /// The folder of the store.
        folder: PathBuf,
        /// Its format.
        found: u32,
    },
    /// A later version has written records that this one does not know.
    #[error(
        "{}: {segment} has records of a later version: nothing was changed; use the version that wrote it, or choose another --data",
        folder.display()
    )]
    Unknown {
        /// The folder of the store.
        folder: PathBuf,
        /// The name of the file.
        segment: String,
    },
    /// The log is of tables where one of tasks is to be, or of tasks where one of tables is to be.
    #[error(
        "{}: {segment} is of another log: nothing was changed; tasks are in --data itself, and tables in the folder `tables` there",
        folder.display()
    )]
    OtherKind {
        /// The folder of the store.
        folder: PathBuf,
        /// The name of the file.
        segment: String,
    },
    /// A log stands where the server found none at its start.
    #[error("{} came while the server ran: nothing was changed; start the server again to load it, or take it away", .0.display())]
    CameLater(PathBuf),
    /// The log has more lives of tables than there are numbers.
    #[error("{} has records of more tables than a server can number, those that were deleted included: begin with an older backup", .0.display())]
    TooManyTables(PathBuf),
    /// The folder was written by a version without this log.
    #[error(
        "{} holds tasks of a version before the log: nothing was changed; work them off with the version that wrote it, or choose another --data",
        .0.display()
    )]
    Earlier(PathBuf),
    /// A segment belongs to another store.
    #[error("{}: {segment} belongs to another store: nothing was changed; take it out of the folder", folder.display())]
    Foreign {
        /// The folder of the store.
        folder: PathBuf,
        /// The name of the file.
        segment: String,
    },
    /// A backup was interrupted while this folder was written.
    #[error("{} is a backup that was interrupted: nothing was changed; make it again, or use another one", .0.display())]
    Unfinished(PathBuf),
    /// A backup is to be written where files are.
    #[error("{} has files: choose an empty folder for the backup", .0.display())]
    NotEmpty(PathBuf),
    /// A backup cannot be written to this folder.
    #[error("{}: {why}: choose an empty folder for the backup, or one that is not there", folder.display())]
    NoTarget {
        /// The folder of the backup.
        folder: PathBuf,
        /// The reason.
        why: String,
    },
    /// The device of a backup is full.
    #[error("no space is left for the backup in {}: make room there, or choose another folder; the server keeps running", .0.display())]
    BackupFull(PathBuf),
    /// A backup has ended because the log needs the segments that it held.
    #[error(
        "the device of {} is full, and the server needs the space that the backup to {} held: its files are removed; make room on the device, then make it again",
        from.display(),
        to.display()
    )]
    BackupGaveWay {
        /// The folder of the store.
        from: PathBuf,
        /// The folder of the backup.
        to: PathBuf,
    },
    /// The server may not write to the folder of a backup.
    #[error(
        "{}: the server finds this folder read-only: if systemd runs it, its unit lets it write to /var/lib/spindle alone; `systemctl edit spindle`, with ReadWritePaths={} under [Service], allows it from the next start on, which empties the tables: until then choose a folder in /var/lib/spindle",
        .0.display(),
        .0.display()
    )]
    BackupReadOnly(PathBuf),
    /// No client waits for a backup any more.
    #[error("the backup to {} was cancelled: its files are removed", .0.display())]
    Cancelled(PathBuf),
    /// The server ends while a backup is written.
    #[error("{}: the server ends and leaves the backup unfinished: make it again, to the same folder or another", .0.display())]
    Left(PathBuf),
    /// The store cannot have written these bytes.
    #[error(
        "{} is damaged ({what}): nothing was changed; restore a backup, or start with --repair to continue without what is lost (finished tasks may return)",
        folder.display()
    )]
    Damaged {
        /// The folder of the store.
        folder: PathBuf,
        /// The damaged part.
        what: String,
    },
    /// One body is not what was written.
    #[error("{}: the bytes at {offset} of {segment} have changed since they were written: look at the device", folder.display())]
    Rotten {
        /// The folder of the store.
        folder: PathBuf,
        /// The name of the file.
        segment: String,
        /// The offset of the body.
        offset: u32,
    },
    /// The bytes of this record were lost earlier.
    #[error("{}: the bytes of this record are lost, and it was set aside: write it again or remove it", .0.display())]
    SetAside(PathBuf),
    /// A batch, a key or a body exceeds the bounds of the format. Nothing was written, and the log takes more.
    #[error("a {what} of {given} bytes is too large: it has at most {most}")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its bytes.
        given: u64,
        /// The most bytes.
        most: u64,
    },
    /// No segment can be laid out for a batch. Nothing of it was written, and the log takes more.
    #[error("no space is left for another segment in {}: make room; nothing was lost, and the server keeps running", .0.display())]
    NoRoom(PathBuf),
    /// A repair would not find room.
    #[error("{}: a repair needs {needed} bytes for what is left, beside the old files, and {free} are free: make room and start again; nothing was changed", folder.display())]
    NoRepairRoom {
        /// The folder of the store.
        folder: PathBuf,
        /// The bytes that it needs.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// The device is full.
    #[error("no space is left for {}: make room and start again; nothing that was acknowledged is lost", .0.display())]
    Full(PathBuf),
    /// The process has no descriptor left.
    #[error("{}: too many open files: raise the limit (ulimit -n), or lower the number of connections", .0.display())]
    Descriptors(PathBuf),
    /// The process may not write to the folder.
    #[error("{}: permission denied: the user of the server must own the folder and may write to it", .0.display())]
    Denied(PathBuf),
    /// The file system takes no changes.
    #[error("{}: the file system is read-only: look at the kernel's log, make it writable and start again; nothing that was acknowledged is lost", .0.display())]
    ReadOnly(PathBuf),
    /// The folder, or a file of it, is gone since the store was opened.
    #[error(
        "{}: the folder, or a file in it, was moved or removed while the server ran: put it back as it was and start again, or restore a backup; with files that were removed, what was acknowledged in them is lost",
        .0.display()
    )]
    Gone(PathBuf),
    /// The device reports an error.
    #[error("{}: the device reports an error ({why}): look at the kernel's log; nothing that was acknowledged is lost", folder.display())]
    Device {
        /// The folder of the store.
        folder: PathBuf,
        /// The system's message.
        why: String,
    },
    /// Bytes cannot be read at present. They are still there.
    #[error("{}: {segment} cannot be read at present ({why}): look at the kernel's log; nothing is lost, and it is read again", folder.display())]
    Unread {
        /// The folder of the store.
        folder: PathBuf,
        /// The name of the file.
        segment: String,
        /// The system's message.
        why: String,
    },
    /// The system reports another error.
    #[error("{}: {why}: look at the system's log and start again", folder.display())]
    Failed {
        /// The folder of the store.
        folder: PathBuf,
        /// The system's message.
        why: String,
    },
}

impl Error {
    /// Names an error of the system.
    pub(super) fn of(folder: &Path, error: &io::Error) -> Self {
        let folder = folder.to_owned();
        match failure(error) {
            Failure::Full => Self::Full(folder),
            Failure::Denied => Self::Denied(folder),
            Failure::ReadOnly => Self::ReadOnly(folder),
            Failure::Descriptors => Self::Descriptors(folder),
            Failure::Device => Self::Device { folder, why: error.to_string() },
            Failure::Memory | Failure::Other => Self::Failed { folder, why: error.to_string() },
        }
    }

    /// Names an error of the system that has come after the store was opened: all its files were there.
    pub(super) fn of_open_store(folder: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Gone(folder.to_owned()),
            _ => Self::of(folder, error),
        }
    }

    /// Names an error of reading a segment of an open store. It says nothing about the bytes.
    pub(super) fn of_reading(folder: &Path, segment: String, error: &io::Error) -> Self {
        match Self::of_open_store(folder, error) {
            gone @ Self::Gone { .. } => gone,
            _ => Self::Unread { folder: folder.to_owned(), segment, why: error.to_string() },
        }
    }

    /// Whether the bytes of one record are lost: they are not those that were written.
    #[must_use]
    pub fn loses_one_value(&self) -> bool {
        matches!(self, Self::Rotten { .. } | Self::SetAside { .. })
    }

    /// Whether the same bytes may be read later: only a checksum is a loss.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unread { .. })
    }

    /// Whether a log takes more after this error: nothing was written.
    #[must_use]
    pub fn leaves_the_log(&self) -> bool {
        matches!(self, Self::NoRoom { .. } | Self::TooLarge { .. } | Self::Unread { .. })
    }
}
