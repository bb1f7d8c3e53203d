//! Replies on their way to clients, some of whom do not read and some of whom are gone.
//!
//! ```text
//! send ─► its pipe has room ─► sent
//!     ├─► full ─► held, tried again, up to a bound of bytes ─► above it the client is cut off
//!     └─► nobody of that name ─► thrown away; a lease in it comes back to whoever called
//! ```
//! A client that is cut off is not served until it connects again: it would take later answers for those that it has missed.
//!
//! What is not here: what replies say, and what becomes of a lease.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

use crate::limits::{FRAME_OVERHEAD_BYTES, HELD_BYTES_MAX};
use crate::protocols::sockets::{Addressed, Frame, Link, Mark, Socket};

/// How routing ids that libzmq has made begin; nobody else's may.
const MADE_BY_LIBZMQ: u8 = 0;

/// What a reply hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) token: u64,
    pub(super) key: Box<[u8]>,
}

/// Where a reply goes.
pub(super) struct Address {
    /// The routing id.
    id: Frame,
    /// The frames that were between it and the request.
    envelope: Vec<Frame>,
    /// The connection that asked, of a client with an id of its own: another connection may take that over.
    link: Option<Link>,
}

impl Address {
    /// Of a request that came from `id` in this envelope, and of which `frame` is a frame.
    pub(super) fn of(id: Frame, envelope: Vec<Frame>, frame: Frame) -> Self {
        let own = id.first() != Some(&MADE_BY_LIBZMQ);
        Self { id, envelope, link: own.then(|| Link::of(frame)) }
    }
}

/// A reply, with its lease if it hands one out.
pub(super) struct Letter {
    pub(super) address: Address,
    pub(super) reply: Frame,
    pub(super) lease: Option<Lease>,
}

impl Letter {
    fn bytes(&self) -> u64 {
        let frames = self.address.envelope.len() as u64 + 1;
        let bytes: usize = self.address.envelope.iter().map(|frame| frame.len()).sum();
        frames * FRAME_OVERHEAD_BYTES + (bytes + self.reply.len()) as u64
    }
}

/// What waits for a client to read.
struct Held {
    letters: VecDeque<Letter>,
    bytes: u64,
    /// Its connection, when that began.
    link: Link,
    cut: bool,
}

/// The socket, and what cannot be sent yet.
pub(super) struct Post {
    router: Socket,
    held: HashMap<Box<[u8]>, Held, RandomState>,
    /// Of all that is held.
    bytes: u64,
    /// What may be held for one client.
    bytes_max: u64,
}

/// Whether a letter has come where it should.
enum Sent {
    Yes,
    NotYet(Letter),
    Never(Letter),
}

impl Post {
    pub(super) fn new(router: Socket, bytes_max: u64) -> Self {
        Self { router, held: HashMap::default(), bytes: 0, bytes_max }
    }

    pub(super) fn router(&self) -> &Socket {
        &self.router
    }

    /// Whether anything is to be tried again.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether the client of the message with this first frame is cut off.
    pub(super) fn is_cut(&mut self, id: &Frame) -> bool {
        let Some(held) = self.held.get(&**id).filter(|held| held.cut) else { return false };
        let same = held.link.mark() == Mark::of(id);
        if !same {
            self.held.remove(&**id);
        }
        same
    }

    /// Sends a letter, or holds it. Leases of what reaches nobody are added to `lost`.
    pub(super) fn send(&mut self, mut letter: Letter, lost: &mut Vec<Lease>) {
        if let Some(held) = self.held.get_mut(&*letter.address.id) {
            if held.cut {
                lost.extend(letter.lease);
            } else {
                let id = std::mem::take(&mut letter.address.id);
                self.hold(id, letter, lost);
            }
            return;
        }
        let id = std::mem::take(&mut letter.address.id);
        match self.try_send(&id, letter) {
            Sent::Yes => {}
            Sent::NotYet(letter) => self.hold(id, letter, lost),
            Sent::Never(letter) => lost.extend(letter.lease),
        }
    }

    /// Sends what has become possible.
    pub(super) fn retry(&mut self, lost: &mut Vec<Lease>) {
        let ids: Vec<Box<[u8]>> = self.held.keys().cloned().collect();
        for id in ids {
            self.retry_one(&id, lost);
        }
    }

    fn retry_one(&mut self, id: &[u8], lost: &mut Vec<Lease>) {
        let Some(mut held) = self.held.remove(id) else { return };
        self.bytes -= held.bytes;
        while let Some(letter) = held.letters.pop_front() {
            held.bytes -= letter.bytes();
            match self.try_send(id, letter) {
                Sent::Yes => {}
                Sent::NotYet(letter) => {
                    held.bytes += letter.bytes();
                    held.letters.push_front(letter);
                    break;
                }
                Sent::Never(letter) => lost.extend(letter.lease),
            }
        }
        if !held.letters.is_empty() || (held.cut && held.link.is_open()) {
            self.bytes += held.bytes;
            self.held.insert(id.into(), held);
        }
    }

    fn try_send(&self, id: &[u8], mut letter: Letter) -> Sent {
        if letter.address.link.as_ref().is_some_and(|link| !link.is_open()) {
            return Sent::Never(letter);
        }
        match self.router.address(id) {
            Addressed::Full => Sent::NotYet(letter),
            Addressed::Unknown => Sent::Never(letter),
            Addressed::Ready => {
                self.router.send_all(letter.address.envelope.iter_mut().chain([&mut letter.reply]));
                Sent::Yes
            }
        }
    }

    fn hold(&mut self, id: Frame, letter: Letter, lost: &mut Vec<Lease>) {
        let bytes = letter.bytes();
        let full = self.bytes + bytes > HELD_BYTES_MAX;
        let held = self.held.entry((*id).into()).or_insert_with(|| Held {
            letters: VecDeque::new(),
            bytes: 0,
            link: Link::of(id),
            cut: false,
        });
        held.bytes += bytes;
        held.letters.push_back(letter);
        self.bytes += bytes;
        if full || held.bytes > self.bytes_max {
            held.cut = true;
            self.bytes -= held.bytes;
            held.bytes = 0;
            lost.extend(held.letters.drain(..).filter_map(|letter| letter.lease));
        }
    }
}
