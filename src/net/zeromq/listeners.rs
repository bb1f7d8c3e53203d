//! Accepts clients as long as there is room for them.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;

use super::listen::BoundListener;
use super::protocol::Arrival;
use crate::clock::Now;
use crate::descriptors::{ConnectionDescriptor, ServiceShare};
use crate::limits::{ACCEPT_BURST, ACCEPT_PAUSE};
use crate::log::WarningPace;
use crate::net::sockets::{is_readable, timespec};

/// Names the wake signal to epoll. No connection has this slot.
pub(crate) const WAKE_SIGNAL: u64 = u64::MAX;
/// Names the listeners to epoll.
pub(crate) const LISTENERS: u64 = u64::MAX - 1;
/// Names a further descriptor of the frontend to epoll.
pub(crate) const SOURCE: u64 = u64::MAX - 2;

/// The shortest time that `epoll_wait` counts.
const EPOLL_TICK: Duration = Duration::from_millis(1);

/// Waits until a descriptor is ready or the timeout ends. Returns as many events as `room` holds. Timeouts of a
/// millisecond and more are rounded up to whole ones.
///
/// # Panics
/// If the system cannot wait.
pub(crate) fn wait<'r>(
    epoll: &OwnedFd,
    room: &'r mut [MaybeUninit<epoll::Event>],
    timeout: Option<Duration>,
) -> &'r [epoll::Event] {
    let short = timeout.filter(|timeout| !timeout.is_zero() && *timeout < EPOLL_TICK);
    if short.is_some_and(|short| !is_ready_within(epoll, short)) {
        return &[];
    }
    let timeout = short.map(|_| Duration::ZERO).or(timeout);
    match epoll::wait(epoll, room, timeout.map(timespec).as_ref()) {
        Ok((events, _)) => events,
        Err(Errno::INTR) => &[],
        Err(error) => panic!("waiting for connections: {error}"),
    }
}

/// Whether a descriptor of `epoll` is ready before the timeout ends. It may be shorter than epoll counts: poll(2), to
/// which an epoll is a descriptor like others, counts nanoseconds.
fn is_ready_within(epoll: &OwnedFd, timeout: Duration) -> bool {
    let mut one = [PollFd::new(epoll, PollFlags::IN)];
    match poll(&mut one, Some(&timespec(timeout))) {
        Ok(ready) => ready > 0,
        Err(Errno::INTR) => false,
        Err(error) => panic!("waiting for connections: {error}"),
    }
}

/// Why accepting is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// As many connections as may be are open.
    Connections,
    /// The error that the system returned, or would return for the next connection.
    System(Errno),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections => write!(f, "there are as many as there may be: connect less"),
            Self::System(error) => write!(f, "{error}: raise the limit of open files, or connect less"),
        }
    }
}

/// The listening sockets of one thread, for one service.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<BoundListener>,
    /// The descriptors of the service. None without a listener.
    share: Option<ServiceShare>,
    /// Accepting is paused until then, because there was no room for a client that waits.
    again_at: Option<Now>,
    /// Paces the warning that there is no room.
    pause_warnings: WarningPace,
}

impl Listeners {
    /// Registers a listener with `epoll`.
    pub(crate) fn add(&mut self, epoll: &OwnedFd, listener: BoundListener) -> Result<(), Errno> {
        epoll::add(epoll, &listener, epoll::EventData::new_u64(LISTENERS), epoll::EventFlags::IN)?;
        self.listeners.push(listener);
        self.share.get_or_insert_with(ServiceShare::register);
        Ok(())
    }

    /// Stops listening.
    pub(crate) fn close(&mut self) {
        self.listeners.clear();
        self.again_at = None;
    }

    /// When the pause of accepting ends. None: no client waits for room.
    pub(crate) fn again_at(&self) -> Option<Now> {
        self.again_at
    }

    /// Resumes accepting, if the pause is over.
    pub(crate) fn reopen(&mut self, epoll: &OwnedFd, now: Now) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.resume(epoll);
        }
    }

    /// Resumes accepting, because there may be room.
    pub(crate) fn resume(&mut self, epoll: &OwnedFd) {
        if self.again_at.take().is_some() {
            self.listen(epoll, epoll::EventFlags::IN);
        }
    }

    fn listen(&self, epoll: &OwnedFd, flags: epoll::EventFlags) {
        for listener in &self.listeners {
            let changed = epoll::modify(epoll, listener, epoll::EventData::new_u64(LISTENERS), flags);
            changed.expect("the listener was added");
        }
    }

    /// Accepts waiting clients: a burst at most, and no more than there is room for.
    pub(crate) fn admit(&mut self, epoll: &OwnedFd, now: Now, room: usize) -> Vec<Arrival> {
        let mut came = Vec::new();
        self.accept(epoll, now, |arrival| {
            came.extend(arrival);
            came.len() < room
        });
        came
    }

    /// Accepts waiting clients, a burst at most. `enter(None)` asks whether there is room for another connection,
    /// `enter(Some)` takes it.
    pub(crate) fn accept(&mut self, epoll: &OwnedFd, now: Now, enter: impl FnMut(Option<Arrival>) -> bool) {
        if let Err(obstacle) = self.try_accept(enter) {
            self.pause(epoll, obstacle, now);
        }
    }

    fn try_accept(&self, mut enter: impl FnMut(Option<Arrival>) -> bool) -> Result<(), Obstacle> {
        let Some(share) = &self.share else { return Ok(()) };
        for listener in &self.listeners {
            for _ in 0..ACCEPT_BURST {
                let admitted = if enter(None) {
                    share.admit(listener, || listener.accept()).map_err(Obstacle::System)
                } else {
                    Err(Obstacle::Connections)
                };
                match admitted {
                    Ok(Some((descriptor, place))) => {
                        let descriptor = ConnectionDescriptor::new(descriptor, place);
                        if let Some(arrival) = listener.arrival(descriptor) {
                            let _room = enter(Some(arrival));
                        }
                    }
                    Err(obstacle) if is_readable(listener) => return Err(obstacle),
                    Ok(None) | Err(_) => break,
                }
            }
        }
        Ok(())
    }

    /// Clients wait in the system's backlog meanwhile.
    fn pause(&mut self, epoll: &OwnedFd, obstacle: Obstacle, now: Now) {
        if self.pause_warnings.is_time(now) {
            tracing::warn!("further connections wait, or take the places of idle ones: {obstacle}");
        }
        self.again_at = Some(now.after(ACCEPT_PAUSE));
        self.listen(epoll, epoll::EventFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_that_is_ready_ends_a_wait_of_any_length() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (mut far, near) = UnixStream::pair().unwrap();
        epoll::add(&epoll, &near, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let micros = [0, 50, 999, 1_000, 1_500].map(|micros| Some(Duration::from_micros(micros)));
        let mut room = [MaybeUninit::uninit(); 4];
        for timeout in micros {
            assert!(wait(&epoll, &mut room, timeout).is_empty(), "{timeout:?}");
        }
        far.write_all(b"x").unwrap();
        for timeout in micros.into_iter().chain([None]) {
            let seen = wait(&epoll, &mut room, timeout).iter().map(|event| event.data.u64()).collect::<Vec<_>>();
            assert_eq!(seen, [7], "{timeout:?}");
        }
    }

    /// The server said that too many files were open when it had as many connections as it may.
    #[test]
    fn too_many_connections_are_not_too_many_files() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut listeners = Listeners::default();
        listeners.add(&epoll, BoundListener::bind("tcp://127.0.0.1:*").unwrap()).unwrap();
        assert_eq!([true, false].map(|room| listeners.try_accept(|_| room)), [Ok(()), Ok(())], "nobody has come");
        let endpoint = listeners.listeners.first().unwrap().endpoint().trim_start_matches("tcp://").to_owned();
        let _client = TcpStream::connect(endpoint).unwrap();
        assert_eq!(listeners.try_accept(|_| false), Err(Obstacle::Connections));
        let said = [Obstacle::Connections, Obstacle::System(Errno::MFILE)].map(|obstacle| obstacle.to_string());
        assert!(!said[0].contains("file") && said[1].contains("file"), "{said:?}");
        listeners.accept(&epoll, Now::from_millis(1), |_| false);
        assert!(listeners.again_at().is_some(), "it is tried again");
    }

    /// Listeners with one endpoint, and this number of clients that have connected to it.
    fn with_clients(folder: &tempfile::TempDir, clients: usize) -> (OwnedFd, Listeners, Vec<UnixStream>) {
        let path = format!("{}/socket", folder.path().display());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut listeners = Listeners::default();
        listeners.add(&epoll, BoundListener::bind(&format!("ipc://{path}")).unwrap()).unwrap();
        let clients = (0..clients).map(|_| UnixStream::connect(&path).unwrap()).collect();
        (epoll, listeners, clients)
    }

    #[test]
    fn no_more_are_admitted_than_there_is_room_for() {
        let folder = tempfile::tempdir().unwrap();
        let (epoll, mut listeners, _clients) = with_clients(&folder, 5);
        let mut admitted = |room| listeners.admit(&epoll, Now::from_millis(1), room).len();
        assert_eq!([0, 1, 2, 4, 9].map(&mut admitted), [0, 1, 2, 2, 0]);
    }

    #[test]
    fn a_listener_is_not_reported_during_the_pause() {
        let folder = tempfile::tempdir().unwrap();
        let (epoll, mut listeners, _clients) = with_clients(&folder, 1);
        let reported = || {
            let mut room = [const { MaybeUninit::uninit() }; 4];
            wait(&epoll, &mut room, Some(Duration::ZERO)).len()
        };
        assert_eq!(reported(), 1);
        let now = Now::from_millis(1);
        assert_eq!(listeners.admit(&epoll, now, 0).len(), 0);
        let end = now.after(ACCEPT_PAUSE);
        assert_eq!((reported(), listeners.again_at()), (0, Some(end)));
        listeners.reopen(&epoll, Now::from_nanos(end.nanos() - 1));
        assert_eq!((reported(), listeners.again_at()), (0, Some(end)), "it is not over");
        listeners.reopen(&epoll, end);
        assert_eq!((reported(), listeners.again_at()), (1, None));
        assert_eq!(listeners.admit(&epoll, end, 2).len(), 1);
    }
}
