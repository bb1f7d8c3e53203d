//! A reply on its way from a worker to the proxy, in as few frames as possible.
//!
//! ```text
//! one frame                  as it is
//! several, few bytes         one frame that has them encoded: the client's connection sends its bytes as they are
//! several, many bytes        each frame as it is
//! ```
//! Each frame passes two pipes, and costs its threads more than a copy of some hundred bytes. With LIST_TABLES, SCAN and
//! CHANGES a reply has thousands of frames, and no other client is answered while they pass: such a reply is encoded
//! whatever its bytes are.

use crate::protocols::sockets::{Frame, Socket};
use crate::zmtp::{Part, encode_frame};

/// Bytes up to which any reply is encoded.
const ENCODED_BYTES_MAX: usize = 2_048;
/// Bytes of memory that are kept for the next reply.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Collects a reply's frames, and sends them.
#[derive(Default)]
pub(super) struct ReplyWriter {
    encoded: Vec<u8>,
    /// Frames of this reply have been sent.
    is_begun: bool,
}

impl ReplyWriter {
    /// Sends a frame of a reply, or keeps it until the next. `more`: others follow. `is_long`: it is one of the replies
    /// with many frames.
    #[inline]
    pub(super) fn write(&mut self, socket: &Socket, is_long: bool, frame: &[u8], more: bool) {
        if self.is_begun || self.encoded.is_empty() && !more {
            self.is_begun = more;
            return socket.send_bytes(frame, more);
        }
        if !is_long && self.encoded.len() + frame.len() > ENCODED_BYTES_MAX {
            self.send_kept(socket);
            self.is_begun = more;
            return socket.send_bytes(frame, more);
        }
        encode_frame(&mut self.encoded, frame, more);
        if !more {
            socket.send(&mut Frame::encoded(&self.encoded), false);
            self.encoded.clear();
            if self.encoded.capacity() > KEPT_BYTES_MAX {
                self.encoded = Vec::new();
            }
        }
    }

    /// Sends the frames that were kept, each by itself.
    fn send_kept(&mut self, socket: &Socket) {
        let mut rest = &self.encoded[..];
        while let Ok(Some((Part::Frame { body, more }, end))) = Part::decode(rest, u64::MAX) {
            socket.send_bytes(body, more);
            rest = rest.get(end..).unwrap_or_default();
        }
        self.encoded.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;
    use crate::protocols::sockets::SocketContext;

    /// Sends replies through the writer. Returns for each the frames that the proxy receives, and those that the client
    /// does.
    fn through(replies: &[(bool, Vec<Vec<u8>>)]) -> Vec<(usize, Vec<Vec<u8>>)> {
        let context = SocketContext::new(1);
        let mut proxy = context.dealer().unwrap();
        proxy.bind("inproc://replies").unwrap();
        let worker = context.dealer().unwrap();
        worker.connect_within("inproc://replies");
        let mut writer = ReplyWriter::default();
        for (is_long, frames) in replies {
            for (number, frame) in frames.iter().enumerate() {
                writer.write(&worker, *is_long, frame, number + 1 < frames.len());
            }
        }
        let mut frame = Frame::new();
        let received = replies.iter().map(|_| {
            let (mut count, mut came) = (0, Vec::new());
            loop {
                proxy.receive_waiting(&mut frame);
                count += 1;
                let (more, mut rest) = (frame.more(), &*frame);
                if !frame.is_encoded() {
                    came.push(rest.to_vec());
                    rest = b"";
                }
                while let Some((Part::Frame { body, .. }, end)) = Part::decode(rest, u64::MAX).unwrap() {
                    came.push(body.to_vec());
                    rest = &rest[end..];
                }
                if !more {
                    return (count, came);
                }
            }
        });
        received.collect()
    }

    #[test]
    fn a_reply_of_few_bytes_is_one_frame_and_others_go_as_they_are() {
        let (status, number, long) = (vec![1], vec![7; 8], vec![8; ENCODED_BYTES_MAX]);
        let envelope = vec![b"worker-9".to_vec(), vec![], status.clone()];
        let mut chatty = vec![vec![9; 100]; 30];
        chatty.push(status.clone());
        let replies = [
            (false, vec![status.clone()], 1),
            (false, vec![status.clone(), number.clone(), number.clone()], 1),
            (false, vec![status.clone(), long.clone()], 2),
            (false, vec![status.clone()], 1),
            (false, vec![status.clone(), vec![]], 1),
            (false, envelope.clone(), 1),
            (false, [&envelope[..], &[long.clone(), number.clone()]].concat(), 5),
            (false, chatty, 31),
            (true, vec![status.clone(), long.clone(), long.clone()], 1),
            (true, vec![vec![0]], 1),
            (true, vec![vec![7; 300]; 1_000], 1),
            (false, vec![status, number], 1),
        ];
        let expected: Vec<_> = replies.iter().map(|(_, frames, count)| (*count, frames.clone())).collect();
        let sent: Vec<_> = replies.into_iter().map(|(is_long, frames, _)| (is_long, frames)).collect();
        assert_eq!(through(&sent), expected);
    }
}
