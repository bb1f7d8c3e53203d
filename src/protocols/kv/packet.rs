//! How a message goes from the queue to a worker: in as few frames as it can, since each frame between two threads costs
//! both of them as much as a look-up of an element that is in the cache.
//!
//! ```text
//! packed       one frame of up to 33 bytes:   length (1) │ bytes │ length (1) │ bytes │ 255 │ …      up to 8 frames
//!              then each frame for which 255 stands
//! as it came   empty frame │ frame │ frame …
//! ```
//! libzmq keeps up to 33 bytes in the message itself; what is longer would be allocated by one thread and freed by another.
//! Longer frames are moved as they are, without copying.
//!
//! Nothing else knows of it: a client's frames go in, and the same frames come out.

use crate::protocols::sockets::{Frame, INLINE_BYTES_MAX, Socket};

/// Frames that are packed at most: an UPDATE with a TTL, and an envelope of three.
pub(super) const PACKED_MAX: usize = 8;
/// Stands for a frame that comes by itself.
const APART: u8 = 255;

/// Packs messages and sends them.
#[derive(Default)]
pub(super) struct Packer {
    /// Used again for each message.
    packet: Vec<u8>,
}

impl Packer {
    /// Sends a message.
    pub(super) fn send(&mut self, socket: &Socket, frames: &mut [Frame]) {
        if frames.len() > PACKED_MAX {
            socket.send_bytes(&[], true);
            return socket.send_all(frames.iter_mut());
        }
        let apart = self.pack(frames);
        socket.send_bytes(&self.packet, apart != 0);
        let those = frames.iter_mut().enumerate().filter(|(number, _)| apart >> number & 1 == 1);
        socket.send_all(those.map(|(_, frame)| frame));
    }

    /// Packs what fits; a bit for each frame that does not.
    fn pack(&mut self, frames: &[Frame]) -> u32 {
        self.packet.clear();
        let mut apart = 0;
        for (number, frame) in frames.iter().enumerate() {
            // Each frame that follows takes a byte at least.
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

/// The frames of a packed message, which are put into `places`; `apart` are those that came by themselves.
pub(super) fn unpack<'p, 'b>(
    mut packet: &'b [u8],
    apart: &'b [Frame],
    places: &'p mut [&'b [u8]; PACKED_MAX],
) -> &'p [&'b [u8]] {
    let mut apart = apart.iter();
    let mut count = 0;
    for place in places.iter_mut() {
        let Some((length, rest)) = packet.split_first() else { break };
        (*place, packet) = if *length == APART {
            (&**apart.next().expect("the queue sends what it leaves out"), rest)
        } else {
            rest.split_at_checked(usize::from(*length)).expect("the queue packs whole frames")
        };
        count += 1;
    }
    places.get(..count).unwrap_or_default()
}

const _: () = assert!(INLINE_BYTES_MAX < APART as usize);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;
    use crate::protocols::sockets::Context;

    /// What a worker makes of a message.
    fn through(frames: &[&[u8]]) -> (usize, Vec<Vec<u8>>) {
        let context = Context::new(1);
        let mut queue = context.dealer().unwrap();
        queue.bind("inproc://packet").unwrap();
        let worker = context.dealer().unwrap();
        worker.connect_within("inproc://packet");
        let mut message: Vec<Frame> = frames.iter().map(|frame| Frame::from(*frame)).collect();
        Packer::default().send(&queue, &mut message);
        let mut came = vec![Frame::new()];
        worker.receive_waiting(&mut came[0]);
        while came.last().unwrap().more() {
            came.push(Frame::new());
            worker.receive_rest(came.last_mut().unwrap());
        }
        let mut places = [&[][..]; PACKED_MAX];
        let (first, rest) = came.split_first().unwrap();
        let heard = if first.is_empty() && !rest.is_empty() {
            rest.iter().map(|frame| frame.to_vec()).collect()
        } else {
            unpack(first, rest, &mut places).iter().map(|frame| frame.to_vec()).collect()
        };
        (came.len(), heard)
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let [key, value, long] = [&[7; 16][..], &[8; 64], &[9; 1_000]];
        for (frames, between) in [
            (vec![&b"\x05"[..]], 1),
            (vec![b"", b"\x04", b"table", key], 1),
            (vec![b"\x02", b"table", key, value], 2),
            (vec![b"\x02", b"table", key, value, &[0; 8]], 3),
            (vec![&[1; 32]], 1),
            (vec![&[1; 33]], 2),
            (vec![long; 8], 9),
            (vec![&b"x"[..]; 8], 1),
            (vec![&b"x"[..]; 9], 10),
            (vec![b""; 8], 1),
            (vec![b""], 1),
        ] {
            assert_eq!(through(&frames), (between, frames.iter().map(|frame| frame.to_vec()).collect()));
        }
    }
}
