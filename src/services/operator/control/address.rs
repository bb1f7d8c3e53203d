//! Where the socket is. Its path may be longer than an address of a Unix socket.
//!
//! An address has 108 bytes with the NUL at its end. The socket of a folder with a longer path is reached through a
//! descriptor of the folder: `/proc/self/fd/N/control`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// The name of the socket in the folder.
const NAME: &str = "control";
/// The bytes of the longest path in an address.
const ADDRESS_BYTES_MAX: usize = 107;

/// The path of the socket, and the form of it that fits an address.
pub(crate) struct SocketAddress {
    pub(crate) path: PathBuf,
    /// Valid as long as this exists.
    pub(crate) short: PathBuf,
    _folder: Option<OwnedFd>,
}

impl SocketAddress {
    /// The address of the socket in a folder.
    ///
    /// # Errors
    /// The system's error if the path is long, and the folder cannot be opened.
    pub(crate) fn of(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
            return Ok(Self { short: path.clone(), path, _folder: None });
        }
        let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let short = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()));
        Ok(Self { path, short, _folder: Some(folder) })
    }
}
