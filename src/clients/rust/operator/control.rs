//! A blocking client: one method for each request, one connection for each call.
//!
//! The client waits for its reply as long as the server works. If the client ends, the server cancels its work.

#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::limits::CONTROL_REPLY_BYTES_MAX;
use crate::services::operator::control::address::SocketAddress;
use crate::services::operator::control::wire::{Reply, Request};
use crate::store::{BackupReport, folders_with_logs};

/// Why a request has no good reply, sorted by the action that the caller can take.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no such folder: name another one.
    #[error("{} is not there: name the --data of the running server", .0.display())]
    Missing(PathBuf),
    /// No server with a store runs on the folder.
    #[error(
        "no server keeps tasks, jobs or events in {}: name the --data of the running server{}; the folder of a server that does not run can be copied as it is",
        .0.display(),
        in_it(.0)
    )]
    NoServer(PathBuf),
    /// This user may not ask the server.
    #[error("{}: permission denied: ask as the user of the server", .0.display())]
    Denied(PathBuf),
    /// The server cannot be asked for another reason.
    #[error("the server of {} cannot be asked ({source})", folder.display())]
    Unreachable {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The server has not done it, and says why.
    #[error("{0}")]
    Refused(String),
    /// The server ended before it replied.
    #[error("the server of {} ended before it replied: there is no whole backup", .0.display())]
    NoReply(PathBuf),
    /// The reply is none of this protocol.
    #[error("the server of {} does not speak this protocol: is it of another version?", .0.display())]
    Malformed(PathBuf),
}

/// The folders in this one that have a store, as a part of a sentence.
fn in_it(folder: &Path) -> String {
    match &folders_with_logs(folder)[..] {
        [] => String::new(),
        [first, ..] => format!(", as {}", folder.join(first).display()),
    }
}

/// Asks the server whose store is in `data` to write a backup to `to`, an absolute path. Returns when it is durable.
///
/// # Errors
/// [`Error`]: there is no whole backup.
pub fn backup(data: &Path, to: &Path) -> Result<BackupReport, Error> {
    let mut connection = connect(data)?;
    // A server that is busy replies at once, and may close the connection before the request.
    let _refused = connection.write_all(&Request::Backup(to.to_owned()).encode());
    let mut bytes = Vec::new();
    // The end of a connection whose request was not read is an error, behind the reply.
    let _reset = connection.take(CONTROL_REPLY_BYTES_MAX).read_to_end(&mut bytes);
    let folder = || data.to_owned();
    if bytes.is_empty() {
        return Err(Error::NoReply(folder()));
    }
    match Reply::decode(&bytes) {
        Some(Reply::Done(report)) => Ok(report),
        Some(Reply::Refused(why)) => Err(Error::Refused(why)),
        None => Err(Error::Malformed(folder())),
    }
}

fn connect(data: &Path) -> Result<UnixStream, Error> {
    let folder = || data.to_owned();
    let explain = |source: io::Error| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::NoServer(folder()),
        ErrorKind::PermissionDenied => Error::Denied(folder()),
        _ => Error::Unreachable { folder: folder(), source },
    };
    match std::fs::metadata(data) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::Missing(folder())),
        _ => {}
    }
    let address = SocketAddress::of(data).map_err(explain)?;
    UnixStream::connect(&address.short).map_err(explain)
}
