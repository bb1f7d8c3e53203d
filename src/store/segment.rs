//! The files of the log: their names, how one is laid out, and reading from them.
//!
//! A segment is laid out as `N.new`: zeros, synced. A cleaned segment is renamed to `N.new` and used again, with its old
//! bytes. When its turn comes it gets its head, is synced and renamed, and the folder is synced. Later syncs then change no
//! metadata.
//! Readers hold a segment by its [`Arc`]. The log removes its file when no reader is left.
//!
//! This module does not interpret batches.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::errors::Error;
use super::failure::{Failure, failure};
use super::folder::{Folder, LogFile, read_exact, write_all};
use super::format::LogKind;
use super::format::{Kind, SegmentHead, checksum};
use super::gaps::Gaps;
use super::record::{Body, Value};
use super::table::RecordHead;

/// The ending of a segment's name.
const LOG: &str = ".log";
/// The ending of the name of a file that is being laid out.
pub(super) const NEW: &str = ".new";
/// The ending that a repair adds to the name of a segment that it has replaced.
pub(super) const BAD: &str = ".bad";
/// The bytes that laying out writes at a time.
const ZEROS: usize = 1 << 20;

/// A segment.
pub(super) struct Segment {
    pub(super) head: SegmentHead,
    files: Arc<OpenFiles>,
    file: Mutex<Option<Arc<dyn LogFile>>>,
}

/// A segment and the descriptor that writes it. A later descriptor would not learn of an error of its write-back.
pub(super) type StartedSegment = (Arc<Segment>, Arc<dyn LogFile>);

/// The open files of a log. There are at most `most` of them, and one more for each segment that is being written.
#[derive(Debug)]
pub(super) struct OpenFiles {
    pub(super) folder: Arc<dyn Folder>,
    pub(super) kind: LogKind,
    most: usize,
    open: Mutex<VecDeque<Weak<Segment>>>,
}

impl OpenFiles {
    pub(super) fn new(folder: Arc<dyn Folder>, kind: LogKind, most: usize) -> Arc<Self> {
        Arc::new(Self { folder, kind, most: most.max(1), open: Mutex::default() })
    }

    /// Notes that a segment has its file open, and closes the file that has been open for longest.
    fn note(&self, segment: &Arc<Segment>) {
        let mut open = self.open.lock();
        open.retain(|other| other.strong_count() > 0);
        open.push_back(Arc::downgrade(segment));
        let closed = (open.len() > self.most).then(|| open.pop_front()).flatten();
        drop(open);
        if let Some(closed) = closed.and_then(|closed| closed.upgrade()) {
            *closed.file.lock() = None;
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("number", &self.head.number).finish_non_exhaustive()
    }
}

/// The name of a segment's file.
pub(super) fn name_of(number: u32) -> String {
    format!("{number:010}{LOG}")
}

/// The number in the name of a segment's file.
pub(super) fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(LOG)?;
    (digits.len() == 10).then(|| digits.parse().ok()).flatten()
}

impl Segment {
    pub(super) fn new(files: &Arc<OpenFiles>, head: SegmentHead) -> Arc<Self> {
        Arc::new(Self { head, files: Arc::clone(files), file: Mutex::new(None) })
    }

    /// The kind of its log.
    pub(super) fn kind(&self) -> LogKind {
        self.files.kind
    }

    /// Makes a spare file the next segment. The segment and its name are durable when this returns. `frees` gives blocks
    /// back if there is none for the name, and says whether it did.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(
        files: &Arc<OpenFiles>,
        head: SegmentHead,
        gaps: &Gaps,
        spare: &SpareFile,
        frees: &mut dyn FnMut() -> bool,
    ) -> io::Result<StartedSegment> {
        let folder = &*files.folder;
        write_all(&*spare.file, &head.encode(&gaps.encode()), 0)?;
        spare.file.sync()?;
        let mut renamed = folder.rename(&spare.name, &name_of(head.number));
        while renamed.as_ref().is_err_and(|error| failure(error) == Failure::Full) && frees() {
            // What fails then says less than the first error.
            renamed = folder.rename(&spare.name, &name_of(head.number)).or(renamed);
        }
        renamed?;
        folder.sync()?;
        let segment = Self::new(files, head);
        *segment.file.lock() = Some(Arc::clone(&spare.file));
        files.note(&segment);
        Ok((segment, Arc::clone(&spare.file)))
    }

    /// Its file, opened if it is closed.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn file(self: &Arc<Self>) -> io::Result<Arc<dyn LogFile>> {
        if let Some(file) = &*self.file.lock() {
            return Ok(Arc::clone(file));
        }
        let file = self.files.folder.open(&name_of(self.head.number))?;
        *self.file.lock() = Some(Arc::clone(&file));
        self.files.note(self);
        Ok(file)
    }

    /// Reads `length` bytes at `offset`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn read(self: &Arc<Self>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        read_exact(&*self.file()?, &mut bytes, offset)?;
        Ok(bytes)
    }

    /// Reads `length` bytes at `offset`. `None`: the file is shorter.
    ///
    /// # Errors
    /// [`Error`] if they cannot be read at present.
    pub(super) fn read_if_there(self: &Arc<Self>, offset: u64, length: usize) -> Result<Option<Vec<u8>>, Error> {
        match self.read(offset, length) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(Error::of_reading(self.files.folder.path(), name_of(self.head.number), &error)),
        }
    }
}

/// A file that is laid out for a segment and has no head yet.
#[derive(Debug)]
pub(super) struct SpareFile {
    pub(super) name: String,
    pub(super) file: Arc<dyn LogFile>,
    /// Its length in bytes.
    pub(super) size: u64,
}

/// The name of the file that is laid out with this number.
pub(super) fn spare_name(number: u64) -> String {
    format!("{number}{NEW}")
}

/// Lays out a file of `size` zeros.
///
/// # Errors
/// The system's error. The file is removed then.
pub(super) fn lay_out(folder: &dyn Folder, name: &str, size: u64) -> io::Result<SpareFile> {
    let filled = folder.create(name).and_then(|file| fill_with_zeros(&*file, size).map(|()| file));
    filled.map(|file| SpareFile { name: name.to_owned(), file, size }).inspect_err(|_| {
        // Opening removes what stays.
        let _stays = folder.remove(name);
    })
}

/// A file that can be a segment of this size as it is: with all blocks, and under a single name.
pub(super) fn whole(file: io::Result<Arc<dyn LogFile>>, size: u64) -> Option<Arc<dyn LogFile>> {
    let is_whole =
        |file: &dyn LogFile| io::Result::Ok(file.size()? == size && file.allocated()? >= size && file.names()? == 1);
    file.ok().filter(|file| is_whole(&**file).unwrap_or(false))
}

fn fill_with_zeros(file: &dyn LogFile, size: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS.min(usize::try_from(size).unwrap_or(ZEROS))];
    let mut at = 0;
    while at < size {
        let part = zeros.len().min(usize::try_from(size - at).unwrap_or(ZEROS));
        write_all(file, zeros.get(..part).unwrap_or_default(), at)?;
        at += part as u64;
    }
    file.sync()
}

/// The longest value that is copied by a thread that has other things to do.
const READ_NOW_MAX: usize = 128 << 10;
/// The checksum in the place of a record that is set aside. No body without bytes has it.
const SET_ASIDE: u32 = u32::MAX;

/// Where the body of a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The number of its segment.
    pub segment: u32,
    /// Its offset in the segment, in bytes.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
    /// The lower half of its checksum.
    pub checksum: u32,
}

impl Place {
    /// The place of a body. Segments are too small for a larger offset.
    pub(super) fn new(segment: u32, offset: u64, length: u32, checksum: u32) -> Self {
        debug_assert!(u32::try_from(offset).is_ok(), "a segment has less than 4 GiB");
        Self { segment, offset: u32::try_from(offset).unwrap_or(u32::MAX), length, checksum }
    }

    /// The place of a record that is set aside.
    pub(super) fn of_set_aside(segment: u32, offset: u64) -> Self {
        Self::new(segment, offset, 0, SET_ASIDE)
    }

    /// The place of a record whose first body stands at this offset. `None`: it removes its key.
    pub(super) fn of_record(record: &RecordHead<'_>, segment: u32, offset: u64) -> Option<Self> {
        let body = record.bodies.first();
        match record.kind {
            Kind::Bytes => Some(Self::new(segment, offset, body.length, short(body.checksum))),
            Kind::SetAside => Some(Self::of_set_aside(segment, offset)),
            Kind::Removed => None,
        }
    }

    /// Whether the record here is set aside: it has no bytes.
    #[must_use]
    pub fn is_set_aside(&self) -> bool {
        (self.length, self.checksum) == (0, SET_ASIDE)
    }

    /// Whether `bytes` are the body at this place.
    pub(super) fn is_of(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == u64::from(self.length) && short(checksum(bytes)) == self.checksum
    }
}

/// The half of a checksum that a [`Place`] keeps.
pub(super) fn short(checksum: u64) -> u32 {
    let [a, b, c, d, ..] = checksum.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A body that can be read from another thread. The file of its segment stays as long as this does.
#[derive(Clone, Debug)]
pub struct StoredValue {
    pub(super) segment: Arc<Segment>,
    pub(super) place: Place,
}

impl StoredValue {
    /// Reads the body.
    ///
    /// # Errors
    /// [`Error::Rotten`] if the bytes are not those that were written. [`Error::SetAside`] if they were lost earlier.
    /// [`Error::Unread`] if they cannot be read at present.
    pub fn read(&self) -> Result<Value, Error> {
        let folder = self.segment.files.folder.path();
        if self.place.is_set_aside() {
            return Err(Error::SetAside(folder.to_owned()));
        }
        let Place { segment, offset, length, .. } = self.place;
        match self.segment.read_if_there(u64::from(offset), length as usize)? {
            Some(bytes) if self.place.is_of(&bytes) => Ok(Value::from(bytes)),
            _ => Err(Error::Rotten { folder: folder.to_owned(), segment: name_of(segment), offset }),
        }
    }

    /// Reads the first bytes of the body, at most so many, and does not check them.
    ///
    /// # Errors
    /// As [`StoredValue::read`].
    pub(super) fn begin(&self, most: usize) -> Result<Value, Error> {
        if self.place.is_set_aside() || self.place.length as usize <= most {
            return self.read();
        }
        let bytes = self.segment.read_if_there(u64::from(self.place.offset), most)?;
        Ok(Value::from(bytes.unwrap_or_default()))
    }

    /// Reads the body if it is small and in memory. `None`: it may take time.
    pub(super) fn read_now(&self) -> Option<Result<Value, Error>> {
        let Place { offset, length, .. } = self.place;
        if self.place.is_set_aside() {
            return Some(self.read());
        }
        if length as usize > READ_NOW_MAX {
            return None;
        }
        let file = self.segment.file.lock().clone()?;
        let mut bytes = vec![0; length as usize];
        let read = file.read_cached(&mut bytes, u64::from(offset)).is_ok_and(|read| read == Some(bytes.len()));
        // Anything else is for the readers to find out.
        (read && self.place.is_of(&bytes)).then(|| Ok(Value::from(bytes)))
    }

    /// The body, or that its bytes are lost. Any other error says nothing about them.
    pub(super) fn read_body(&self) -> Result<Body, Error> {
        match self.read() {
            Ok(value) => Ok(Body::Bytes(value)),
            Err(error) if error.loses_one_value() => Ok(Body::SetAside),
            Err(error) => Err(error),
        }
    }
}

impl PartialEq for StoredValue {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for StoredValue {}
