//! A message goes from the proxy to a worker in as few frames as possible, because each frame between two threads costs
//! both of them as much as a look-up of an element that is in the cache.
//!
//! ```text
//! packed       one frame of up to 33 bytes:  sender │ length (1) │ bytes │ length (1) │ bytes │ 255 │ …
//!              for up to 8 frames, then each frame for which 255 stands
//! unpacked     sender │ frame │ frame …
//! the end      empty frame
//! sender       tag (2), and where users are named login (4)
//! ```
//! The tag says which client sent the message. The worker uses it only to keep the requests of one client in order. The
//! login is the number of its user ([`Logins`](crate::security::Logins)).
//!
//! libzmq keeps up to 33 bytes in the message itself. One thread would allocate a longer message and another one would
//! free it. Longer frames are moved as they are, without copying.
//!
//! Only this module knows the packed form: a client's frames go in, and the same frames come out.
//!
//! A reply goes back unpacked. It belongs to the oldest message that has neither been answered nor deferred. A worker
//! also sends notices, which are messages of one frame. A reply of one frame is its status, 0 or 1, so no notice looks
//! like a reply:
//!
//! ```text
//! deferred     2                  the oldest message is answered later; deferrals have the numbers 0, 1 …
//! late         3 │ number (8)     the reply that follows is to the message that was deferred under this number
//! ```

use crate::byte_reader::ByteReader;
use crate::protocols::sockets::{Frame, INLINE_BYTES_MAX, Socket};
use crate::security::NO_LOGIN;

/// The most frames that are packed: an UPDATE with a TTL, and an envelope of three.
pub(super) const PACKED_MAX: usize = 8;
/// Stands for a frame that is sent by itself.
const APART: u8 = 255;
/// The first byte of [`DeferralNotice::Deferred`].
const DEFERRED: u8 = 2;
/// The first byte of [`DeferralNotice::Late`].
const LATE: u8 = 3;

/// The client of a message, for its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    /// Tells it from other clients.
    pub(super) tag: u16,
    /// The number of its user, or 0 where users are not named.
    pub(super) login: u32,
}

/// Packs messages and sends them.
pub(super) struct MessageWriter {
    /// Users are named.
    has_users: bool,
    /// Reused for each message.
    packet: Vec<u8>,
}

impl MessageWriter {
    pub(super) fn new(has_users: bool) -> Self {
        Self { has_users, packet: Vec::new() }
    }

    /// Sends a message of this client.
    pub(super) fn send(&mut self, socket: &Socket, sender: Sender, frames: &mut [Frame]) {
        self.packet.clear();
        self.packet.extend_from_slice(&sender.tag.to_be_bytes());
        if self.has_users {
            self.packet.extend_from_slice(&sender.login.to_be_bytes());
        }
        if frames.len() > PACKED_MAX {
            socket.send_bytes(&self.packet, true);
            return socket.send_all(frames.iter_mut());
        }
        let apart = self.pack(frames);
        socket.send_bytes(&self.packet, apart != 0);
        let those = frames.iter_mut().enumerate().filter(|(number, _)| apart >> number & 1 == 1);
        socket.send_all(those.map(|(_, frame)| frame));
    }

    /// Packs the frames that fit. Returns a bit for each frame that does not.
    fn pack(&mut self, frames: &[Frame]) -> u32 {
        let mut apart = 0;
        for (number, frame) in frames.iter().enumerate() {
            // Each frame that follows takes at least one byte.
            let room = INLINE_BYTES_MAX.saturating_sub(self.packet.len() + frames.len() - number);
            match u8::try_from(frame.len()) {
                Ok(length) if frame.len() <= room => {
                    self.packet.push(length);
                    self.packet.extend_from_slice(frame);
                }
                _ => {
                    self.packet.push(APART);
                    apart |= 1 << number;
                }
            }
        }
        apart
    }
}

/// A message as a worker receives it.
pub(super) enum ReceivedMessage<'b> {
    /// The sender and the packet, which [`unpack`] combines with the frames that were sent by themselves.
    Packed(Sender, &'b [u8], &'b [Frame]),
    /// The sender and the frames.
    AsItCame(Sender, &'b [Frame]),
}

impl<'b> ReceivedMessage<'b> {
    /// Reads the frames of a message.
    ///
    /// # Panics
    /// If the message is the empty frame that means the end.
    #[inline]
    pub(super) fn read(frames: &'b [Frame], has_users: bool) -> Self {
        let (first, rest) = frames.split_first().expect("a message has a frame");
        let mut fields = ByteReader::new(first);
        let tag = fields.u16_be().expect("the queue sends a tag first");
        let login = if has_users { fields.u32_be().expect("the queue sends a login second") } else { NO_LOGIN };
        let sender = Sender { tag, login };
        if fields.is_empty() { Self::AsItCame(sender, rest) } else { Self::Packed(sender, fields.rest(), rest) }
    }
}

/// A worker's notice about a message that it answers out of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeferralNotice {
    /// The oldest message is answered later.
    Deferred,
    /// The reply that follows is to the message that was deferred under this number.
    Late(u64),
}

impl DeferralNotice {
    /// Sends the notice to the proxy.
    pub(super) fn send(self, socket: &Socket) {
        match self {
            Self::Deferred => socket.send_bytes(&[DEFERRED], false),
            Self::Late(number) => {
                let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
                socket.send_bytes(&[LATE, a, b, c, d, e, f, g, h], false);
            }
        }
    }

    /// Reads the first frame of a worker's message. `None`: the message is a reply.
    #[inline]
    pub(super) fn read(frame: &Frame) -> Option<Self> {
        if frame.more() {
            return None;
        }
        match **frame {
            [DEFERRED] => Some(Self::Deferred),
            [LATE, ref number @ ..] => number.try_into().ok().map(u64::from_be_bytes).map(Self::Late),
            _ => None,
        }
    }
}

/// Puts the frames of a packed message into `frames`. `apart` are the frames that were sent by themselves.
pub(super) fn unpack<'p, 'b>(
    packet: &'b [u8],
    apart: &'b [Frame],
    frames: &'p mut [&'b [u8]; PACKED_MAX],
) -> &'p [&'b [u8]] {
    let (mut fields, mut apart) = (ByteReader::new(packet), apart.iter());
    let mut count = 0;
    for frame in frames.iter_mut() {
        let Some(length) = fields.byte() else { break };
        *frame = if length == APART {
            apart.next().expect("the queue sends what it leaves out")
        } else {
            fields.take(usize::from(length)).expect("the queue packs whole frames")
        };
        count += 1;
    }
    frames.get(..count).unwrap_or_default()
}

const _: () = assert!(INLINE_BYTES_MAX < APART as usize);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;
    use crate::protocols::sockets::SocketContext;

    /// Sends a message through the writer and the reader. Returns its number of frames in between, and the frames that
    /// came.
    fn through(frames: &[&[u8]], login: Option<u32>) -> (usize, Vec<Vec<u8>>) {
        let context = SocketContext::new(1);
        let mut queue = context.dealer().unwrap();
        queue.bind("inproc://packet").unwrap();
        let worker = context.dealer().unwrap();
        worker.connect_within("inproc://packet");
        let mut message: Vec<Frame> = frames.iter().map(|frame| Frame::from(*frame)).collect();
        let (has_users, sender) = (login.is_some(), Sender { tag: 0xabcd, login: login.unwrap_or(NO_LOGIN) });
        MessageWriter::new(has_users).send(&queue, sender, &mut message);
        let mut came = vec![Frame::new()];
        worker.receive_waiting(&mut came[0]);
        while came.last().unwrap().more() {
            came.push(Frame::new());
            worker.receive_rest(came.last_mut().unwrap());
        }
        let mut places = [&[][..]; PACKED_MAX];
        let (from, heard) = match ReceivedMessage::read(&came, has_users) {
            ReceivedMessage::AsItCame(from, frames) => (from, frames.iter().map(|frame| frame.to_vec()).collect()),
            ReceivedMessage::Packed(from, packet, apart) => {
                (from, unpack(packet, apart, &mut places).iter().map(|frame| frame.to_vec()).collect())
            }
        };
        assert_eq!(from, sender);
        (came.len(), heard)
    }

    #[test]
    fn what_is_said_aside_is_no_reply() {
        for aside in [DeferralNotice::Deferred, DeferralNotice::Late(0), DeferralNotice::Late(u64::MAX)] {
            let context = SocketContext::new(1);
            let mut queue = context.dealer().unwrap();
            queue.bind("inproc://aside").unwrap();
            let worker = context.dealer().unwrap();
            worker.connect_within("inproc://aside");
            aside.send(&worker);
            let mut frame = Frame::new();
            queue.receive_waiting(&mut frame);
            assert_eq!(DeferralNotice::read(&frame), Some(aside));
            // The same bytes as the first frame of an envelope.
            worker.send_bytes(&frame, true);
            worker.send_bytes(b"", true);
            worker.send_bytes(&[1], false);
            queue.receive_waiting(&mut frame);
            assert_eq!(DeferralNotice::read(&frame), None);
        }
        assert_eq!(DeferralNotice::read(&Frame::from(&[1][..])), None);
        assert_eq!(DeferralNotice::read(&Frame::from(&[0][..])), None);
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let [key, value, long] = [&[7; 16][..], &[8; 64], &[9; 1_000]];
        for (frames, between) in [
            (vec![&b"\x05"[..]], 1),
            (vec![b"", b"\x04", b"table", key], 1),
            (vec![b"\x02", b"table", key, value], 2),
            (vec![b"\x02", b"table", key, value, &[0; 8]], 3),
            (vec![&[1; 30]], 1),
            (vec![&[1; 31]], 2),
            (vec![long; 8], 9),
            (vec![&b"x"[..]; 8], 1),
            (vec![&b"x"[..]; 9], 10),
            (vec![b""; 8], 1),
            (vec![b""], 1),
        ] {
            let frames_in: Vec<Vec<u8>> = frames.iter().map(|frame| frame.to_vec()).collect();
            assert_eq!(through(&frames, None), (between, frames_in.clone()));
            for login in [1, 0x0102_0304, u32::MAX] {
                assert_eq!(through(&frames, Some(login)).1, frames_in);
            }
        }
    }
}
