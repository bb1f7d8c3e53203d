//! The kinds of the system's errors that the store distinguishes.
//!
//! This module decides nothing.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

/// The kinds of errors of the system that the store distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// ENOSPC, EDQUOT: no space is left.
    Full,
    /// EACCES, EPERM: this process may not.
    Denied,
    /// EROFS: the file system takes no changes.
    ReadOnly,
    /// EMFILE, ENFILE: no descriptor is left.
    Descriptors,
    /// ENOMEM: the system has no memory for it.
    Memory,
    /// EIO: the device cannot.
    Device,
    /// All others.
    Other,
}

impl Failure {
    /// Whether the same read may succeed later.
    pub(super) fn may_pass(self) -> bool {
        matches!(self, Self::Descriptors | Self::Memory | Self::Device)
    }
}

/// The kind of an error of the system.
pub(super) fn failure(error: &io::Error) -> Failure {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Failure::Full,
        ErrorKind::PermissionDenied => Failure::Denied,
        ErrorKind::ReadOnlyFilesystem => Failure::ReadOnly,
        ErrorKind::OutOfMemory => Failure::Memory,
        _ if is(Errno::MFILE) || is(Errno::NFILE) => Failure::Descriptors,
        _ if is(Errno::IO) => Failure::Device,
        _ => Failure::Other,
    }
}

/// Whether the device cannot return these bytes. After patient reads the opening leaves the bytes out, if the operator
/// wants it.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof || failure(error) == Failure::Device
}

/// The errors that tests let calls fail with, by their numbers.
#[cfg(test)]
pub(super) mod errnos {
    use rustix::io::Errno;

    pub(in crate::store) const EIO: i32 = Errno::IO.raw_os_error();
    pub(in crate::store) const ENOMEM: i32 = Errno::NOMEM.raw_os_error();
    pub(in crate::store) const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
    pub(in crate::store) const EMFILE: i32 = Errno::MFILE.raw_os_error();
    pub(in crate::store) const EACCES: i32 = Errno::ACCESS.raw_os_error();
    pub(in crate::store) const EROFS: i32 = Errno::ROFS.raw_os_error();
}
