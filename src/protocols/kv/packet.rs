//! How a message goes from the queue to a worker: a small one packed into one frame, since each frame between two threads
//! costs both of them as much as a look-up of an element that is in the cache.
//!
//! ```text
//! packed       one frame:     length (1) │ bytes │ length (1) │ bytes │ …      up to 8 frames of up to 255 bytes each
//! as it came   empty frame │ frame │ frame …
//! ```
//! Nothing else knows of it: a client's frames go in, and the same frames come out.

use crate::protocols::sockets::{Frame, Socket};

/// Frames that are packed at most: an UPDATE with a TTL, and an envelope of three.
pub(super) const PACKED_MAX: usize = 8;
/// Bytes of a frame that is packed, at most.
const BYTES_MAX: usize = u8::MAX as usize;

/// Packs messages and sends them.
#[derive(Default)]
pub(super) struct Packer {
    /// Used again for each message.
    packet: Vec<u8>,
}

impl Packer {
    /// Sends a message.
    pub(super) fn send(&mut self, socket: &Socket, frames: &mut [Frame]) {
        if self.pack(frames) {
            return socket.send_bytes(&self.packet, false);
        }
        socket.send_bytes(&[], true);
        let mut left = frames.len();
        for frame in frames {
            left -= 1;
            socket.send(frame, left > 0);
        }
    }

    /// Packs a message, if it is small.
    fn pack(&mut self, frames: &[Frame]) -> bool {
        self.packet.clear();
        if frames.len() > PACKED_MAX {
            return false;
        }
        for frame in frames {
            let Ok(length) = u8::try_from(frame.len()) else { return false };
            self.packet.push(length);
            self.packet.extend_from_slice(frame);
        }
        true
    }
}

/// The frames of a packed message, which are put into `places`.
pub(super) fn unpack<'p, 'b>(mut packet: &'b [u8], places: &'p mut [&'b [u8]; PACKED_MAX]) -> &'p [&'b [u8]] {
    let mut count = 0;
    for place in places.iter_mut() {
        let Some((length, rest)) = packet.split_first() else { break };
        (*place, packet) = rest.split_at_checked(usize::from(*length)).expect("the queue packs whole frames");
        count += 1;
    }
    places.get(..count).unwrap_or_default()
}

const _: () = assert!(BYTES_MAX == 255);

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
        let heard = match came.as_slice() {
            [packet] => unpack(packet, &mut places).iter().map(|frame| frame.to_vec()).collect(),
            [_, frames @ ..] => frames.iter().map(|frame| frame.to_vec()).collect(),
            [] => unreachable!(),
        };
        (came.len(), heard)
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let long = [7; 255];
        let too_long = [7; 256];
        for (frames, between) in [
            (vec![&b"\x05"[..]], 1),
            (vec![b"", b"\x04", b"t", b""], 1),
            (vec![&long; 8], 1),
            (vec![&long; 9], 10),
            (vec![&too_long], 2),
            (vec![b"\x02", b"t", b"k", &too_long], 5),
            (vec![b""], 1),
        ] {
            assert_eq!(through(&frames), (between, frames.iter().map(|frame| frame.to_vec()).collect()));
        }
    }
}
