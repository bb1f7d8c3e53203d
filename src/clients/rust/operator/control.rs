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
use crate::store::{BackupReport, TABLES_FOLDER, folders_with_logs};

/// Why a request has no good reply, sorted by the action that the caller can take.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no such folder: name another one.
    #[error("{} is not there: name the --data of the running server", .0.display())]
    Missing(PathBuf),
    /// No server with a store runs on the folder.
    #[error(
        "no server keeps tasks, jobs, events or durable tables in {}: name the --data of the running server{}; the folder of a server that does not run can be copied as it is",
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

/// A backup of one store of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// What the store keeps, in the plural.
    pub what: &'static str,
    /// The folder of the backup.
    pub folder: PathBuf,
    /// The wall clock when the store was as the backup is, in milliseconds since 1970.
    pub moment: u64,
    /// What was written.
    pub report: BackupReport,
}

/// Asks the server whose stores are in `data` to write a backup of each to `to`, an absolute path. Returns when they are
/// durable. Each is of one moment. That of durable tables is in the folder `tables` there, as it is in `data`.
///
/// # Errors
/// [`Error`]: there is no whole backup. What is there of one is to be removed.
pub fn backup(data: &Path, to: &Path) -> Result<Vec<BackedUp>, Error> {
    let stores = [("tasks, jobs and events", None), ("tables", Some(TABLES_FOLDER))];
    let mut done = Vec::new();
    for (what, within) in stores {
        let below = |folder: &Path| within.map_or_else(|| folder.to_owned(), |within| folder.join(within));
        let folder = below(to);
        match ask(&below(data), &folder) {
            Ok((moment, report)) => done.push(BackedUp { what, folder, moment, report }),
            // The server may keep the other one alone.
            Err(Error::NoServer(_)) => {}
            Err(Error::Missing(_)) if within.is_some() => {}
            Err(error) => return Err(error),
        }
    }
    if done.is_empty() { Err(Error::NoServer(data.to_owned())) } else { Ok(done) }
}

/// Has the server whose store is in `data` write a backup of it.
fn ask(data: &Path, to: &Path) -> Result<(u64, BackupReport), Error> {
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
        Some(Reply::Done { moment, report }) => Ok((moment, report)),
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
