//! The file of a socket that listens at a path.
//!
//! ```text
//! nothing there, or a socket at which nobody listens ──► bind: the file is this server's ──► drop: it is removed
//! a server listens at it, or it is no socket           ─► refused, and the file stays
//! ```
//! A server that is killed leaves its file. Its socket refuses connections, and the next server replaces it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};

use super::endpoint::{BindError, bind_error};

/// Why an address cannot be listened at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenError {
    /// A file that is no socket is there.
    NoSocket,
    /// The error of the system. `ADDRINUSE` if somebody listens there.
    System(Errno),
}

impl ListenError {
    /// The sentence about this endpoint.
    pub(crate) fn about(self, endpoint: &str) -> BindError {
        match self {
            Self::NoSocket => BindError::NoSocket { endpoint: endpoint.to_owned() },
            Self::System(errno) => bind_error(endpoint, errno.raw_os_error()),
        }
    }
}

impl From<Errno> for ListenError {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

/// The file of a bound socket. Dropping it removes the file, unless another one has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The file system and the number of the file in it, as they were after the bind.
    id: (u64, u64),
}

impl SocketFile {
    /// Binds a socket to a path, where it replaces the file of a server that was killed.
    pub(super) fn bind(descriptor: &OwnedFd, path: &str) -> Result<Self, ListenError> {
        let address = SocketAddrUnix::new(path)?;
        let path = PathBuf::from(path);
        if let Some(there) = find(&path)? {
            if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
                return Err(ListenError::NoSocket);
            }
            if is_in_use(&address)? {
                return Err(Errno::ADDRINUSE.into());
            }
            remove(&path)?;
        }
        bind(descriptor, &address)?;
        let id = find(&path)?.as_ref().map(id_of).ok_or(Errno::NOENT)?;
        Ok(Self { path, id })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Ok(Some(there)) = find(&self.path)
            && id_of(&there) == self.id
        {
            // It fails if the folder has become read-only. The next server finds a file that it may replace.
            let _stays = remove(&self.path);
        }
    }
}

fn find(path: &Path) -> Result<Option<Stat>, Errno> {
    match lstat(path) {
        Ok(there) => Ok(Some(there)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn id_of(there: &Stat) -> (u64, u64) {
    (there.st_dev, there.st_ino)
}

fn remove(path: &Path) -> Result<(), Errno> {
    match unlink(path) {
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether somebody has bound this address. A socket whose process has ended refuses connections.
fn is_in_use(address: &SocketAddrUnix) -> Result<bool, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, address) {
        // No room for another connection, or a socket of another kind: somebody is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::fs;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    fn bind_at(path: &Path) -> Result<SocketFile, ListenError> {
        let descriptor = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        SocketFile::bind(&descriptor, path.to_str().unwrap())
    }

    #[test]
    fn a_file_is_removed_at_the_end_and_that_of_a_killed_server_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let file = bind_at(&path).unwrap();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn whatever_has_taken_the_place_of_the_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let file = bind_at(&path).unwrap();
        fs::rename(&path, folder.path().join("aside")).unwrap();
        fs::write(&path, "a letter").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&path, &link] {
            assert_eq!(bind_at(path).err(), Some(ListenError::NoSocket));
            assert_eq!(fs::read_to_string(path).unwrap(), "a letter");
        }
    }

    #[test]
    fn a_socket_that_somebody_has_bound_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let in_use = Some(ListenError::System(Errno::ADDRINUSE));
        let path = folder.path().join("datagram");
        let _datagram = UnixDatagram::bind(&path).unwrap();
        assert_eq!(bind_at(&path).err(), in_use);
        let path = folder.path().join("stream");
        let descriptor = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let _file = SocketFile::bind(&descriptor, path.to_str().unwrap()).unwrap();
        rustix::net::listen(&descriptor, 0).unwrap();
        // The second finds no room in the backlog of a server that does not accept.
        let _waiting = UnixStream::connect(&path).unwrap();
        for _ in 0..2 {
            assert_eq!(bind_at(&path).err(), in_use);
        }
    }
}
