//! A subscriber that takes little processor time: our ZMTP on a plain socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use spindle::zmtp::{Part, SocketType, encode_subscribe};

use crate::meet::meet;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

pub(crate) struct Listener {
    stream: TcpStream,
    bytes: Vec<u8>,
    read: usize,
    came: usize,
}

/// A notification of a key.
pub(crate) struct Notification<'b> {
    pub(crate) deleted: bool,
    pub(crate) key: &'b [u8],
}

impl Listener {
    /// Subscribes to everything.
    pub(crate) fn subscribe(address: &str) -> Self {
        let (mut stream, mut bytes) = meet(address, SocketType::Sub);
        let mut out = Vec::new();
        encode_subscribe(&mut out, b"");
        stream.write_all(&out).unwrap();
        let came = bytes.len();
        bytes.resize(2 * READ_BYTES, 0);
        Self { stream, bytes, read: 0, came }
    }

    /// How long [`Listener::receive`] waits for any notification.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// Waits for notifications and hands over all that have come. False: none has.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(Notification<'_>)) -> bool {
        if !self.fill() {
            return false;
        }
        while let Some((frames, length)) = self.message() {
            let [_, kind, key] = frames;
            each(Notification { deleted: kind == [1], key });
            self.read += length;
        }
        true
    }

    /// The first message, as table, kind and key, and its length.
    fn message(&self) -> Option<([&[u8]; 3], usize)> {
        let mut frames: [&[u8]; 3] = [&[]; 3];
        let mut taken = self.read;
        for place in &mut frames {
            let (part, length) = Part::decode(&self.bytes[taken..self.came], 1 << 20).unwrap()?;
            taken += length;
            let Part::Frame { body, .. } = part else { panic!("a publisher sends no commands: {part:?}") };
            *place = body;
        }
        Some((frames, taken - self.read))
    }

    fn fill(&mut self) -> bool {
        if self.read > 0 {
            self.bytes.copy_within(self.read..self.came, 0);
            self.came -= self.read;
            self.read = 0;
        }
        match self.stream.read(&mut self.bytes[self.came..]) {
            Ok(count) => {
                self.came += count;
                count > 0
            }
            Err(_) => false,
        }
    }
}
