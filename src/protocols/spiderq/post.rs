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
use std::sync::Arc;

use ahash::RandomState;

use crate::limits::{FRAME_OVERHEAD_BYTES, HELD_BYTES_MAX, LARGE_REPLY_BYTES};
use crate::protocols::sockets::{Addressed, Frame, Link, Mark, Meter, Parcel, Socket};

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
    id: Box<[u8]>,
    /// The frames that were between it and the request.
    envelope: Vec<Frame>,
    origin: Origin,
}

/// Which connection asked.
enum Origin {
    /// That of a client whose id libzmq has made: no other connection ever has it. The frame knows the connection.
    Only(Frame),
    /// One that is looked after: that of a client with an id of its own, which another connection may take over, or of one that
    /// waits.
    Watched(Arc<Link>),
}

impl Address {
    /// Of a request that came from `id` in this envelope. `waits`: it may be long until it is answered.
    pub(super) fn of(id: Frame, envelope: Vec<Frame>, waits: bool) -> Self {
        let made = id.first() == Some(&MADE_BY_LIBZMQ);
        let text = (*id).into();
        let origin = if made && !waits { Origin::Only(id) } else { Origin::Watched(Arc::new(Link::of(id))) };
        Self { id: text, envelope, origin }
    }

    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> u64 {
        let bytes: usize = self.envelope.iter().map(|frame| frame.len()).sum();
        (self.envelope.len() as u64 + 2) * FRAME_OVERHEAD_BYTES + (self.id.len() + bytes) as u64
    }

    /// Whether the connection that asked stands, as far as it is known.
    pub(super) fn is_open(&self) -> bool {
        match &self.origin {
            Origin::Only(_) => true,
            Origin::Watched(link) => link.is_open(),
        }
    }

    /// Its connection, which is looked after from then on.
    fn link(&mut self) -> Arc<Link> {
        let link = match &mut self.origin {
            Origin::Only(frame) => Arc::new(Link::of(std::mem::take(frame))),
            Origin::Watched(link) => Arc::clone(link),
        };
        self.origin = Origin::Watched(Arc::clone(&link));
        link
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
        self.address.bytes() + self.reply.len() as u64
    }

    fn parcel(&self) -> Parcel {
        let mut parcel = Parcel::default();
        self.address.envelope.iter().chain([&self.reply]).for_each(|frame| parcel.count(frame.len()));
        parcel
    }
}

/// What waits for a client to read.
struct Held {
    letters: VecDeque<Letter>,
    bytes: u64,
    /// The connection on which it was cut off, if it was.
    cut: Option<Arc<Link>>,
}

/// What a client has been sent since it was first sent something large. Pipes of libzmq count messages and not their bytes.
struct Flow {
    link: Arc<Link>,
    meter: Meter,
}

/// The socket, and what cannot be sent yet.
pub(super) struct Post {
    router: Socket,
    /// Of clients that were sent something large.
    flows: HashMap<Box<[u8]>, Flow, RandomState>,
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
        Self { router, flows: HashMap::default(), held: HashMap::default(), bytes: 0, bytes_max }
    }

    pub(super) fn router(&self) -> &Socket {
        &self.router
    }

    /// Whether anything is to be tried again.
    pub(super) fn holds(&self) -> bool {
        self.bytes > 0
    }

    /// Lets go of all that is held: leases in it are added to `lost`.
    pub(super) fn give_up(&mut self, lost: &mut Vec<Lease>) {
        for (_, held) in self.held.drain() {
            lost.extend(held.letters.into_iter().filter_map(|letter| letter.lease));
        }
        self.bytes = 0;
    }

    /// Whether the client of the message with this first frame is cut off.
    pub(super) fn is_cut(&mut self, id: &Frame) -> bool {
        let Some(cut) = self.held.get(&**id).and_then(|held| held.cut.as_ref()) else { return false };
        let same = cut.mark() == Mark::of(id);
        if !same {
            self.held.remove(&**id);
        }
        same
    }

    /// Sends a letter, or holds it. Leases of what reaches nobody are added to `lost`.
    pub(super) fn send(&mut self, letter: Letter, lost: &mut Vec<Lease>) {
        match self.held.get(&letter.address.id).map(|held| held.cut.is_some()) {
            Some(true) => lost.extend(letter.lease),
            Some(false) => self.hold(letter, lost),
            None => match self.try_send(letter) {
                Sent::Yes => {}
                Sent::NotYet(letter) => self.hold(letter, lost),
                Sent::Never(letter) => lost.extend(letter.lease),
            },
        }
    }

    /// Forgets connections that are gone.
    pub(super) fn sweep(&mut self) {
        self.flows.retain(|_, flow| flow.link.is_open());
        self.held.retain(|_, held| held.cut.as_ref().is_none_or(|link| link.is_open()));
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
            match self.try_send(letter) {
                Sent::Yes => {}
                Sent::NotYet(letter) => {
                    held.bytes += letter.bytes();
                    held.letters.push_front(letter);
                    break;
                }
                Sent::Never(letter) => lost.extend(letter.lease),
            }
        }
        if !held.letters.is_empty() || held.cut.is_some() {
            self.bytes += held.bytes;
            self.held.insert(id.into(), held);
        }
    }

    fn try_send(&mut self, mut letter: Letter) -> Sent {
        if !letter.address.is_open() {
            return Sent::Never(letter);
        }
        let bytes = letter.bytes();
        if bytes >= LARGE_REPLY_BYTES && !self.flows.contains_key(&letter.address.id) {
            let link = letter.address.link();
            self.flows.insert(letter.address.id.clone(), Flow { link, meter: Meter::new() });
        }
        let mut flow = if self.flows.is_empty() { None } else { self.flows.get_mut(&letter.address.id) };
        if bytes >= LARGE_REPLY_BYTES
            && let Some(Flow { link, meter }) = &mut flow
            && !meter.has_room(self.bytes_max, || link.progress())
        {
            return Sent::NotYet(letter);
        }
        match self.router.address(&letter.address.id) {
            Addressed::Full => Sent::NotYet(letter),
            Addressed::Unknown => Sent::Never(letter),
            Addressed::Ready => {
                if let Some(flow) = flow {
                    flow.meter.sent(letter.parcel());
                }
                self.router.send_all(letter.address.envelope.iter_mut().chain([&mut letter.reply]));
                Sent::Yes
            }
        }
    }

    /// Keeps a letter until its client reads; cuts off one for whom too much is kept.
    fn hold(&mut self, letter: Letter, lost: &mut Vec<Lease>) {
        let bytes = letter.bytes();
        let full = self.bytes + bytes > HELD_BYTES_MAX;
        let id = letter.address.id.clone();
        let held = self.held.entry(id).or_insert_with(|| Held { letters: VecDeque::new(), bytes: 0, cut: None });
        held.bytes += bytes;
        held.letters.push_back(letter);
        self.bytes += bytes;
        if full || held.bytes > self.bytes_max {
            self.bytes -= held.bytes;
            held.bytes = 0;
            for mut letter in held.letters.drain(..) {
                lost.extend(letter.lease.take());
                held.cut.get_or_insert_with(|| letter.address.link());
            }
        }
    }
}
