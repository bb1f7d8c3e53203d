//! One client in the account: its id, its standing, and the two lanes in which its messages wait.
//!
//! ```text
//! Good ──over its bound──► Cut ──connection found gone──► CutAndGone ──found gone again──► forgotten
//!  ▲                        │                                 │
//!  └──another connection────┴─────────────────────────────────┘
//! ```

use std::collections::{VecDeque, vec_deque};

use super::{Bounds, By, MessageSize};
use crate::clock::Now;
use crate::limits::WINDOW_FRAMES;
use crate::protocols::sockets::InFlightBytes;

/// Bytes of an id that the router chose: a zero and a big-endian integer that counts up. No client has such an id of its own: the
/// router gives it another (`.cargo/libzmq`).
const CHOSEN_BYTES: usize = 5;
/// Part of `client_bytes` that the replies on their way to a client may have: a quarter.
const REPLIES_SHARE: u64 = 4;
/// After so many replies the largest of them counts for less.
const LEARN_EVERY: u32 = 64;
/// Frames for which a lane that was empty keeps its memory.
const LANE_KEEPS: usize = 1024;

/// A routing id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::protocols::kv) enum Id {
    /// Chosen by the router: its integer, and the bytes.
    Chosen(u32, [u8; CHOSEN_BYTES]),
    /// The client's own.
    Own(Box<[u8]>),
}

impl Id {
    /// From the frame that the router puts before each message.
    pub(in crate::protocols::kv) fn of(bytes: &[u8]) -> Self {
        match (Self::chosen(bytes), bytes.try_into()) {
            (Some(number), Ok(array)) => Self::Chosen(number, array),
            _ => Self::Own(bytes.into()),
        }
    }

    /// The integer of an id that the router chose.
    #[inline]
    pub(super) fn chosen(bytes: &[u8]) -> Option<u32> {
        match *bytes {
            [0, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
            _ => None,
        }
    }

    /// As the router wants it.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Chosen(_, bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}

/// Where a client stands with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientStanding {
    /// It is served.
    Good,
    /// It is cut off.
    Cut,
    /// It is cut off, and its connection was found gone.
    CutAndGone,
}

/// What the account counts a client among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientClass {
    /// It is in good standing and has nothing outstanding.
    Idle,
    /// It reads, and has more outstanding than it should: it is to be held back.
    Pressing,
    /// Neither.
    Other,
}

/// A client in the account.
pub(super) struct TrackedClient<F, L> {
    pub(super) id: Id,
    pub(super) worker: usize,
    pub(super) connection: L,
    /// What was sent over the connection. Only `pipes` changes it: its bytes are in the sum of all.
    pub(super) in_flight: InFlightBytes,
    /// What it had read when it was first seen to have more in its pipe than it may have outstanding, and when that was.
    pub(super) stands: Option<(u64, Now)>,
    pub(super) standing: ClientStanding,
    /// What it was last counted among.
    pub(super) class: ClientClass,
    /// It has replies that wait for its pipe.
    pub(super) stalled: bool,
    /// The router has been told to take nothing more from it.
    pub(super) held_back: bool,
    /// Changes when replies to what was asked before are for nobody.
    pub(super) epoch: u32,
    /// Requests not answered, wherever they are, and replies held.
    pub(super) bytes: u64,
    /// Frames of requests on their way to the worker or in its hands.
    pub(super) frames_asked: u32,
    /// They are those of a request to the reporter.
    pub(super) is_reported_to: bool,
    /// It is among those whose next request waits for the reporter.
    pub(super) is_due: bool,
    /// What `frames_asked` may be.
    window: u32,
    /// The largest reply of late, per frame of its request, in bytes.
    reply_bytes_per_frame: u64,
    /// Replies since the largest one counted for less.
    replies: u32,
    /// Requests that wait for the window.
    pub(super) pending: MessageLane<F>,
    /// Replies that wait for the client's pipe.
    pub(super) backlog: MessageLane<F>,
}

impl<F, L> TrackedClient<F, L> {
    pub(super) fn new(id: Id, worker: usize, connection: L, bounds: &Bounds) -> Self {
        let reply_bytes_per_frame = bounds.reply_bytes_per_frame;
        Self {
            id,
            worker,
            connection,
            in_flight: InFlightBytes::new(),
            stands: None,
            standing: ClientStanding::Good,
            class: ClientClass::Idle,
            stalled: false,
            held_back: false,
            epoch: 0,
            bytes: 0,
            frames_asked: 0,
            is_reported_to: false,
            is_due: false,
            window: window(reply_bytes_per_frame, bounds.client_bytes),
            reply_bytes_per_frame,
            replies: 0,
            pending: MessageLane::new(),
            backlog: MessageLane::new(),
        }
    }

    /// What it is among, if above `most` bytes it begins to press, and with half of that ceases to.
    #[inline]
    pub(super) fn class(&self, most: u64) -> ClientClass {
        let most = if self.class == ClientClass::Pressing { most / 2 } else { most };
        match self.standing {
            ClientStanding::Good if self.bytes == 0 => ClientClass::Idle,
            ClientStanding::Good if self.bytes > most && !self.stalled => ClientClass::Pressing,
            _ => ClientClass::Other,
        }
    }

    /// Whether the router has to be told that it is held back, or no longer.
    #[inline]
    pub(super) fn is_untold(&self) -> bool {
        self.held_back != (self.class == ClientClass::Pressing)
    }

    /// Whether nothing of it need be known when it comes again, once its pipe is empty.
    pub(super) fn is_at_rest(&self) -> bool {
        self.class == ClientClass::Idle && !self.held_back
    }

    /// Bytes that it has to read before they are let go of, or before anything else of it is.
    pub(super) fn unread(&self) -> u64 {
        self.in_flight.bytes() + if self.stalled { self.bytes } else { 0 }
    }

    /// Whether a request of so many frames may go to who carries it out now. One at a time always may.
    #[inline]
    pub(super) fn may_ask(&self, frames: u32, by: By) -> bool {
        let fits = self.frames_asked == 0
            || by == By::Worker && !self.is_reported_to && self.frames_asked.saturating_add(frames) <= self.window;
        fits && self.backlog.is_empty()
    }

    /// Takes note of a reply to a request of `asked` frames.
    #[inline]
    pub(super) fn learn(&mut self, asked: u32, bytes: u64, client_bytes: u64) {
        self.replies += 1;
        let expected = self.reply_bytes_per_frame * u64::from(asked);
        if bytes <= expected && self.replies < LEARN_EVERY {
            return;
        }
        let this = bytes / u64::from(asked).max(1);
        // Down by a quarter at a time: a single small reply between large ones opens no gate.
        self.reply_bytes_per_frame = this.max(self.reply_bytes_per_frame / 4 * 3);
        self.replies = 0;
        self.window = window(self.reply_bytes_per_frame, client_bytes);
    }
}

/// Frames that may be on their way when each makes a reply of so many bytes.
fn window(reply_bytes_per_frame: u64, client_bytes: u64) -> u32 {
    let frames = client_bytes / REPLIES_SHARE / reply_bytes_per_frame.max(1);
    u32::try_from(frames).map_or(WINDOW_FRAMES, |frames| frames.min(WINDOW_FRAMES))
}

/// Messages in the order in which they came.
pub(super) struct MessageLane<F> {
    frames: VecDeque<F>,
    /// Of each message its size, the client's epoch when it came, and who carries it out.
    parcels: VecDeque<(MessageSize, (u32, By))>,
}

impl<F> MessageLane<F> {
    const fn new() -> Self {
        Self { frames: VecDeque::new(), parcels: VecDeque::new() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    pub(super) fn is_last(&self) -> bool {
        self.parcels.len() == 1
    }

    /// The oldest message.
    pub(super) fn front(&self) -> Option<(MessageSize, (u32, By))> {
        self.parcels.front().copied()
    }

    pub(super) fn push(&mut self, size: MessageSize, of: (u32, By), frames: impl Iterator<Item = F>) {
        if self.is_empty() {
            self.frames.shrink_to(LANE_KEEPS);
            self.parcels.shrink_to(LANE_KEEPS);
        }
        let before = self.frames.len();
        self.frames.extend(frames);
        assert_eq!(self.frames.len() - before, size.frames as usize, "a parcel knows its frames");
        self.parcels.push_back((size, of));
    }

    /// Takes the oldest message out.
    pub(super) fn pop(&mut self) -> Option<vec_deque::Drain<'_, F>> {
        let (size, _) = self.parcels.pop_front()?;
        Some(self.frames.drain(..size.frames as usize))
    }

    /// Drops all messages, and says how many bytes that were.
    pub(super) fn clear(&mut self) -> u64 {
        let bytes = self.parcels.iter().map(|(size, _)| size.bytes).sum();
        *self = Self::new();
        bytes
    }
}
