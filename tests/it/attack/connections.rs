//! Attackers that need no wrong byte: connections that come and go, stop halfway, trickle, or never read.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};

use super::samples::Target;
use super::siege::Siege;
use crate::seeded_rng::SeededRng;

/// How long a due answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How often an attacker checks whether the server is gone.
const LOOK: Duration = Duration::from_millis(50);
/// How long an attacker waits for room to write, or for bytes to read.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// How long an attacker tries to connect.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Connections of a storm, at most.
const STORM_MAX: u64 = 20_000;
/// Half-open connections of one thread.
const HALF_OPEN: usize = 300;
/// Idle connections of one thread: more than an endpoint over HTTP takes.
const IDLE: usize = 8_400;
/// Connections that trickle at once.
const TRICKLING: usize = 100;
/// Connections that never read.
const STALLED: usize = 16;
/// Bytes that such a connection sends, at most.
const STALLED_BYTES_MAX: usize = 8 << 20;

/// A connection of an attacker. It waits for nothing longer than a moment.
pub(super) struct Line(TcpStream);

impl Line {
    pub(super) fn open(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Self(stream))
    }

    /// Sends these bytes. Returns how many of them there was room for.
    pub(super) fn write(&self, bytes: &[u8]) -> Option<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match (&self.0).write(&bytes[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.wait(PollFlags::OUT) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(written),
                Err(_) => return None,
            }
        }
        Some(written)
    }

    /// Sends all of it, in pieces of random length.
    pub(super) fn write_in_pieces(&self, bytes: &[u8], rng: &mut SeededRng) -> bool {
        let cut = if rng.one_in(4) { rng.index(bytes.len() + 1) } else { bytes.len() };
        let (first, rest) = bytes.split_at(cut);
        self.write(first) == Some(first.len()) && self.write(rest) == Some(rest.len())
    }

    /// The bytes that have come, up to a bound. `None`: the server has closed the connection, and no bytes are left.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 64 << 10];
        match (&self.0).read(&mut bytes) {
            Ok(0) => None,
            Ok(count) => {
                bytes.truncate(count);
                Some(bytes)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// Waits a moment for more.
    pub(super) fn wait_to_read(&self) -> bool {
        self.wait(PollFlags::IN)
    }

    fn wait(&self, what: PollFlags) -> bool {
        matches!(poll(&mut [PollFd::new(&self.0, what)], Some(&MOMENT)), Ok(1))
    }

    /// Closes it, or resets it.
    pub(super) fn leave(self, reset: bool) {
        if reset {
            // It fails if the connection is gone, which is also fine.
            let _gone = set_socket_linger(&self.0, Some(Duration::ZERO));
        }
    }
}

/// What a server says to these bytes until it closes the connection.
pub(super) fn answer_to(address: &str, bytes: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Connections that come, say a part of a client's conversation, and go.
pub(super) fn storm(target: &Target, siege: &Siege, mut rng: SeededRng) {
    for _ in 0..STORM_MAX {
        if siege.is_over() {
            return;
        }
        let Some(line) = Line::open(target.address) else { continue };
        siege.count(1);
        let talk = target.talk(&mut rng);
        let some = rng.index(talk.len());
        let cut = rng.pick(&[0, talk.len(), some]);
        let _gone = line.write(&talk[..cut]);
        if rng.one_in(4) {
            line.wait_to_read();
        }
        // Resets leave no trace. A connection closed at this end keeps its port for a minute.
        line.leave(rng.index(8) != 0);
    }
    siege.rest(PATIENCE);
}

/// Conversations that stop at any byte, and stay there until the server is gone.
pub(super) fn half_open(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let mut held = Vec::new();
    while !siege.is_over() && held.len() < HALF_OPEN {
        let Some(line) = Line::open(target.address) else { continue };
        siege.count(1);
        let talk = target.talk(&mut rng);
        let _gone = line.write(&talk[..rng.index(talk.len())]);
        held.push(line);
    }
    while !siege.rest(LOOK) {}
}

/// Connections without a request. One that the server closes is made anew.
pub(super) fn idle(target: &Target, siege: &Siege) {
    let mut held: Vec<Line> = Vec::new();
    let mut at = 0;
    while !siege.is_over() {
        if held.len() < IDLE
            && let Some(line) = Line::open(target.address)
        {
            siege.count(1);
            held.push(line);
            continue;
        }
        at = (at + 1) % held.len().max(1);
        if held.get(at).is_some_and(|line| line.read().is_none()) {
            held.swap_remove(at);
        }
        if at == 0 {
            siege.rest(LOOK);
        }
    }
}

/// Many conversations at once, each of which continues by a byte when its turn comes.
pub(super) fn trickle(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let mut lines: Vec<Option<(Line, Vec<u8>, usize)>> = (0..TRICKLING).map(|_| None).collect();
    while !siege.is_over() {
        for place in &mut lines {
            let Some((line, talk, at)) = place else {
                *place = Line::open(target.address).map(|line| (line, target.talk(&mut rng), 0));
                siege.count(usize::from(place.is_some()));
                continue;
            };
            let sent = line.write(&talk[*at..=*at]);
            *at += 1;
            if sent.is_none() || line.read().is_none() {
                *place = None;
            } else if *at == talk.len() {
                siege.count(1);
                (*talk, *at) = (target.request(&mut rng), 0);
            }
        }
        siege.rest(Duration::from_millis(1));
    }
}

/// Clients that ask for long answers, or for all notifications, and never read.
pub(super) fn stalled(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let mut held: Vec<(Line, usize)> = Vec::new();
    while !siege.is_over() && held.len() < STALLED {
        let Some(line) = Line::open(target.address) else { continue };
        siege.count(1);
        set_socket_recv_buffer_size(&line.0, 4_096).unwrap();
        let _gone = line.write(&target.hello(&mut rng));
        held.push((line, 0));
    }
    let (thirst, again) = target.thirst();
    while !siege.is_over() {
        let mut wrote = false;
        for (line, written) in held.iter_mut().filter(|(_, written)| *written < STALLED_BYTES_MAX) {
            // A part of a request would make the rest nonsense: such a connection is done.
            *written = match line.write(&thirst) {
                Some(count) if again && count == thirst.len() => *written + count,
                _ => STALLED_BYTES_MAX,
            };
            wrote = true;
            siege.count(1);
        }
        if !wrote {
            siege.rest(LOOK);
        }
    }
}
