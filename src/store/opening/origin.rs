//! The note of where a log is. In a folder that was copied it is the note of another place.
//!
//! ```text
//! origin    inode:u64 birth:u64 checksum:u64       of this file itself; birth in nanoseconds since 1970, 0: not known
//!
//! opening:  no note ─► one is left               the note is of this file ─► it is the log's own
//!           the note is of another file ─► the folder is a copy: the operator gets a notice, until it is announced
//! ```
//! A file keeps both numbers when its folder is moved on its file system, when the device or the host gets another name,
//! and in an image of the whole disk. A program that copies files makes other ones. Some file systems give a file another
//! inode each time they are mounted. So a log is never refused for its note.
//!
//! This module raises no mark.

use std::io;

use crate::store::folder::{FileIdentity, Folder};
use crate::store::notes::{self, ORIGIN};

/// Where a log comes from, as its note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum FolderOrigin {
    /// There is no note that can be read.
    Unknown,
    /// The log was begun here, or was announced as a copy.
    Here,
    /// The log was copied from another folder.
    Elsewhere,
}

/// Said of a copy.
const ANNOUNCED: &str =
    "--copied: lend keys and ids continue far above those in this copy; leave the flag out from the next start on";
/// Said of a folder that seems to be one.
const NOT_ANNOUNCED: &str = "this folder is a copy of another one: if a server has used the other one since, both give out the same lend keys and ids; stop this server, and start it once with --copied";

impl FolderOrigin {
    /// The notice to the operator about the folder. `is_copy`: it was announced as one. `jumps`: the marks have jumped.
    pub(in crate::store) fn notice(self, is_copy: bool, jumps: bool) -> Option<&'static str> {
        match self {
            _ if is_copy => Some(ANNOUNCED),
            Self::Elsewhere if !jumps => Some(NOT_ANNOUNCED),
            Self::Unknown | Self::Here | Self::Elsewhere => None,
        }
    }
}

/// Reads the note.
pub(in crate::store) fn origin_of(folder: &dyn Folder) -> FolderOrigin {
    match (notes::read(folder, ORIGIN), folder.identity(ORIGIN)) {
        (Ok(Some([inode, birth])), Ok(found)) if inode > 0 || birth > 0 => {
            let is_here = if birth > 0 && found.birth > 0 { birth == found.birth } else { inode == found.inode };
            if is_here { FolderOrigin::Here } else { FolderOrigin::Elsewhere }
        }
        _ => FolderOrigin::Unknown,
    }
}

/// Notes that the log is here.
///
/// # Errors
/// The system's error, except for want of space: the next opening leaves the note then.
pub(in crate::store) fn note_origin(folder: &dyn Folder) -> io::Result<()> {
    let identity = |new: &str| folder.identity(new).map(|FileIdentity { inode, birth }| [inode, birth]);
    notes::unless_full(notes::leave(folder, ORIGIN, identity))
}
