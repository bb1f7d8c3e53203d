//! The server's end: a thread that waits for a client, writes its backup, and replies.
//!
//! ```text
//! wait ─► accept ─► read the request ─► the backup ─► write it ─► reply ─► wait
//!                                                          │ before each piece:
//!                                                          │ further clients are refused
//!                                                          │ the client has hung up: cancelled and removed
//!                                                          └ the server ends: left unfinished, at once
//! ```
//! This module does not copy files, and commits nothing.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use super::address::SocketAddress;
use super::wire::{Decoded, Reply, Request};
use crate::clock::{Clock, TimeLimit, wall_millis};
use crate::limits::{ACCEPT_PAUSE, CONTROL_BACKLOG, CONTROL_FIRST_BYTE_TIME, CONTROL_REQUEST_TIME};
use crate::log::WarningPace;
use crate::net::sockets::{Stopper, WakeSignal, timespec};
use crate::store::{BackupTurn, Error, StoreBackup};

/// Permissions of the socket: its owner may connect, no other user may.
const SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The reply to a client while another is served.
const BUSY: &str = "another backup is being written: wait until it is whole, and ask again";

/// Takes a backup of a store, as it is by now. `None`: the store has failed.
pub type BackupSource = Box<dyn Fn() -> Result<Option<Box<dyn StoreBackup>>, Error> + Send>;

/// The socket in the folder of a store. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlListener {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlListener {
    /// Makes the socket in this folder, which the caller has locked. One that was left there is replaced.
    ///
    /// # Errors
    /// The system's error, such as that of a file system without sockets.
    pub fn bind(folder: &Path) -> io::Result<Self> {
        let SocketAddress { path, short, .. } = &SocketAddress::of(folder)?;
        match fs::symlink_metadata(path) {
            Ok(left) if left.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => return Err(io::Error::new(ErrorKind::AlreadyExists, format!("{} is no socket", path.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The name gets the permissions that the socket has when it is bound.
        fchmod(&socket, SOCKET_MODE)?;
        bind(&socket, &SocketAddrUnix::new(short)?)?;
        let bound = Self { listener: UnixListener::from(socket), path: path.clone() };
        listen(&bound.listener, CONTROL_BACKLOG)?;
        Ok(bound)
    }

    /// Serves backups of a store.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn serve(self, source: BackupSource) -> io::Result<Control> {
        let wake_signal = WakeSignal::new()?;
        let stopper = Stopper::new(&wake_signal);
        let front =
            ControlFrontend { socket: self, source, wake_signal, stopper: stopper.clone(), clock: Clock::start() };
        Ok(Control { front, stopper })
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        // The next server replaces one that stays.
        let _stays = fs::remove_file(&self.path);
    }
}

/// The frontend, ready to run.
pub struct Control {
    /// To be run in the thread `control`.
    pub front: ControlFrontend,
    /// Stops the frontend.
    pub stopper: Stopper,
}

/// Serves one client after the other.
pub struct ControlFrontend {
    socket: ControlListener,
    source: BackupSource,
    /// Raised by `stopper`.
    wake_signal: WakeSignal,
    stopper: Stopper,
    clock: Clock,
}

impl ControlFrontend {
    /// Runs the thread's loop. Returns when the stopper says so. A backup that is being written is left unfinished.
    ///
    /// # Errors
    /// [`Error`] if the sync of a backup fails. The store takes no more changes then.
    pub fn run(self) -> Result<(), Error> {
        let mut warnings = WarningPace::default();
        while !self.stopper.is_stopping() {
            self.wait(Some(self.socket.listener.as_fd()), None);
            match self.accept() {
                Ok(Some(client)) => self.serve(&client)?,
                Ok(None) => {}
                Err(error) => {
                    if warnings.is_time(self.clock.now()) {
                        tracing::warn!("a request for a backup cannot be accepted: {error}");
                    }
                    self.wait(None, Some(ACCEPT_PAUSE));
                }
            }
        }
        Ok(())
    }

    /// Waits for the stopper, for this descriptor to be readable, or for the time.
    fn wait(&self, other: Option<BorrowedFd<'_>>, time: Option<Duration>) {
        let mut polled = vec![PollFd::new(&self.wake_signal, PollFlags::IN)];
        polled.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        match poll(&mut polled, time.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting for requests of the operator: {error}"),
        }
        if polled.first().is_some_and(|wake_signal| !wake_signal.revents().is_empty()) {
            self.wake_signal.clear();
        }
    }

    /// Accepts a client, if one waits.
    fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.listener.accept() {
            Ok((client, _)) => {
                client.set_nonblocking(true)?;
                Ok(Some(client))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn serve(&self, client: &UnixStream) -> Result<(), Error> {
        let reply = match self.read(client) {
            Some(Decoded::Whole(Request::Backup(to))) => self.back_up(client, &to)?,
            Some(_) => Reply::Refused("the server does not know this request: is it of another version?".to_owned()),
            None => return Ok(()),
        };
        send(client, &reply);
        Ok(())
    }

    /// Reads a request. `None`: the client has hung up, is too slow, or the server ends.
    fn read(&self, mut client: &UnixStream) -> Option<Decoded> {
        let began = self.clock.now();
        let (mut bytes, mut piece) = (Vec::new(), [0; 512]);
        loop {
            match client.read(&mut piece) {
                Ok(0) => return None,
                Ok(length) => bytes.extend_from_slice(piece.get(..length)?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let now = self.clock.now();
                    let time = if bytes.is_empty() { CONTROL_FIRST_BYTE_TIME } else { CONTROL_REQUEST_TIME };
                    let limit = TimeLimit::begin(began, time);
                    if limit.is_over(now) || self.stopper.is_stopping() {
                        return None;
                    }
                    self.wait(Some(client.as_fd()), Some(limit.left(now)));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            match Request::decode(&bytes) {
                Decoded::Short => {}
                decoded => return Some(decoded),
            }
        }
    }

    /// Writes a backup for a client.
    fn back_up(&self, client: &UnixStream, to: &Path) -> Result<Reply, Error> {
        let Some(backup) = (self.source)()? else {
            return Ok(Reply::Refused("the store has failed, and takes nothing more".to_owned()));
        };
        let moment = wall_millis();
        let turn = &mut || {
            self.refuse_others();
            match (self.stopper.is_stopping(), has_hung_up(client)) {
                (true, _) => BackupTurn::Leave,
                (false, true) => BackupTurn::Cancel,
                (false, false) => BackupTurn::Continue,
            }
        };
        Ok(match backup.write_to(to, turn) {
            Ok(report) => {
                match report.lost {
                    0 => tracing::info!("a backup is whole: {}", to.display()),
                    lost => tracing::warn!("a backup lacks {lost} parts that are damaged: {}", to.display()),
                }
                Reply::Done { moment, report }
            }
            Err(error) => {
                tracing::info!("no backup: {error}");
                Reply::Refused(error.to_string())
            }
        })
    }

    /// Refuses the clients that wait while another is served. What cannot be accepted waits for its turn.
    fn refuse_others(&self) {
        while let Ok(Some(client)) = self.accept() {
            send(&client, &Reply::Refused(BUSY.to_owned()));
        }
    }
}

/// Sends a reply. The system has room for it. A client that is gone misses nothing.
fn send(mut client: &UnixStream, reply: &Reply) {
    let _gone = client.write_all(&reply.encode());
}

/// Whether the client has closed its end.
pub(crate) fn has_hung_up(client: &UnixStream) -> bool {
    let mut polled = [PollFd::new(client, PollFlags::RDHUP)];
    poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|count| count > 0)
}
