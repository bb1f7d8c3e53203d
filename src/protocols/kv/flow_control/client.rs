//! One client in flow control: its id, its standing, and the two lanes in which its messages wait.
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

/// Bytes of an id that the router chose: a zero and a big-endian integer that counts up. No client has such an id of
/// its own, because the router gives it another one (`.cargo/libzmq`).
const CHOSEN_BYTES: usize = 5;
/// Part of `client_bytes` that the replies on their way to a client may have: a quarter.
const REPLIES_SHARE: u64 = 4;
/// After this many replies the largest recent one counts for less: one large reply holds a client back for a moment
/// only.
const LEARN_EVERY: u32 = 64;
/// Frames for which an empty lane keeps its memory: those of a pipeline of a hundred requests.
const LANE_KEEPS: usize = 1024;

/// A routing id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::protocols::kv) enum RoutingId {
    /// Chosen by the router: its integer, and the bytes.
    Chosen(u32, [u8; CHOSEN_BYTES]),
    /// The client's own.
    Own(Box<[u8]>),
}

impl RoutingId {
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

    /// The bytes of the id, as the router expects them.
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

/// The classes that flow control counts clients in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientClass {
    /// It is in good standing and has nothing outstanding.
    Idle,
    /// It reads, and has more outstanding than it should: the router is to hold it back.
    Pressing,
    /// Neither idle nor pressing.
    Other,
}

/// A client in flow control.
pub(super) struct TrackedClient<F, L> {
    pub(super) id: RoutingId,
    pub(super) worker: usize,
    pub(super) connection: L,
    /// Messages sent over the connection and not yet read. Changed only by `pipes`, which keeps the sum over all
    /// clients.
    pub(super) in_flight: InFlightBytes,
    /// Set while the pipe holds more bytes than the client may have outstanding. The bytes that the client had read
    /// when its current stall began, and the time of that.
    pub(super) stands: Option<(u64, Now)>,
    pub(super) standing: ClientStanding,
    /// The class in which it was last counted.
    pub(super) class: ClientClass,
    /// It has replies that wait for its pipe.
    pub(super) stalled: bool,
    /// The router has been told to take no further message from it.
    pub(super) held_back: bool,
    /// Changes when replies to earlier requests no longer have a recipient.
    pub(super) epoch: u32,
    /// Bytes of its unanswered requests, wherever they are, and of its held replies.
    pub(super) bytes: u64,
    /// Frames of requests that are on their way to the worker or that the worker holds.
    pub(super) frames_asked: u32,
    /// `frames_asked` counts a request that is alone on its way: to the reporter, or of a page.
    pub(super) is_asked_alone: bool,
    /// It is in the list of clients whose next request waits for the reporter.
    pub(super) is_due: bool,
    /// The bound of `frames_asked`.
    window: u32,
    /// The largest recent reply, per frame of its request, in bytes.
    reply_bytes_per_frame: u64,
    /// Replies since the largest one last lost weight.
    replies: u32,
    /// Requests that wait for the window.
    pub(super) pending: MessageLane<F>,
    /// Replies that wait for the client's pipe.
    pub(super) backlog: MessageLane<F>,
}

impl<F, L> TrackedClient<F, L> {
    pub(super) fn new(id: RoutingId, worker: usize, connection: L, bounds: &Bounds) -> Self {
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
            is_asked_alone: false,
            is_due: false,
            window: window(reply_bytes_per_frame, bounds.client_bytes),
            reply_bytes_per_frame,
            replies: 0,
            pending: MessageLane::new(),
            backlog: MessageLane::new(),
        }
    }

    /// The client's class. It begins to press above `most` bytes, and ceases to press at half of that.
    #[inline]
    pub(super) fn class(&self, most: u64) -> ClientClass {
        let most = if self.class == ClientClass::Pressing { most / 2 } else { most };
        match self.standing {
            ClientStanding::Good if self.bytes == 0 => ClientClass::Idle,
            ClientStanding::Good if self.bytes > most && !self.stalled => ClientClass::Pressing,
            _ => ClientClass::Other,
        }
    }

    /// Whether the router's state is out of date: it has to hold the client back, or to let it go on.
    #[inline]
    pub(super) fn is_untold(&self) -> bool {
        self.held_back != (self.class == ClientClass::Pressing)
    }

    /// Whether the entry may be forgotten once the client's pipe is empty.
    pub(super) fn is_at_rest(&self) -> bool {
        self.class == ClientClass::Idle && !self.held_back
    }

    /// Bytes that are released only when the client reads: those in its pipe, and, while replies are held, all its
    /// others.
    pub(super) fn unread(&self) -> u64 {
        self.in_flight.bytes() + if self.stalled { self.bytes } else { 0 }
    }

    /// Whether a request of `frames` frames may go to its executor now. A single request always may.
    #[inline]
    pub(super) fn may_ask(&self, frames: u32, by: By) -> bool {
        let fits = self.frames_asked == 0
            || by == By::Worker && !self.is_asked_alone && self.frames_asked.saturating_add(frames) <= self.window;
        fits && self.backlog.is_empty()
    }

    /// Updates the expected reply size with a reply to a request of `asked` frames.
    #[inline]
    pub(super) fn learn(&mut self, asked: u32, bytes: u64, client_bytes: u64) {
        self.replies += 1;
        let expected = self.reply_bytes_per_frame * u64::from(asked);
        if bytes <= expected && self.replies < LEARN_EVERY {
            return;
        }
        let this = bytes / u64::from(asked).max(1);
        // The estimate falls by a quarter at a time, so a single small reply between large ones does not widen the
        // window much.
        self.reply_bytes_per_frame = this.max(self.reply_bytes_per_frame / 4 * 3);
        self.replies = 0;
        self.window = window(self.reply_bytes_per_frame, client_bytes);
    }
}

/// Frames that may be on their way when each makes a reply of this many bytes.
fn window(reply_bytes_per_frame: u64, client_bytes: u64) -> u32 {
    let frames = client_bytes / REPLIES_SHARE / reply_bytes_per_frame.max(1);
    u32::try_from(frames).map_or(WINDOW_FRAMES, |frames| frames.min(WINDOW_FRAMES))
}

/// What is known of a message that waits.
#[derive(Clone, Copy)]
pub(super) struct Parcel {
    /// The client's epoch when it came.
    pub(super) epoch: u32,
    /// Its executor.
    pub(super) by: By,
    /// The number of the user whose request it is: another connection, of another user, may come meanwhile.
    pub(super) login: u32,
}

/// Messages in the order in which they came.
pub(super) struct MessageLane<F> {
    frames: VecDeque<F>,
    parcels: VecDeque<(MessageSize, Parcel)>,
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
    pub(super) fn front(&self) -> Option<(MessageSize, Parcel)> {
        self.parcels.front().copied()
    }

    pub(super) fn push(&mut self, size: MessageSize, of: Parcel, frames: impl Iterator<Item = F>) {
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

    /// Drops all messages, and returns their bytes.
    pub(super) fn clear(&mut self) -> u64 {
        let bytes = self.parcels.iter().map(|(size, _)| size.bytes).sum();
        *self = Self::new();
        bytes
    }
}
