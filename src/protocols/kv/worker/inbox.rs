//! The inbox of a worker: the messages of a batch, received and not yet answered.

use std::ops::Range;
use std::time::Duration;

use crate::limits::{BATCH_FRAMES_MAX, BATCH_MAX};
use crate::protocols::sockets::{Frame, Socket};

/// Frames for which an inbox keeps its memory: those of about a hundred requests, more than one turn of a busy worker.
const INBOX_KEEPS: usize = 512;
/// Bytes that a frame of an inbox may keep: keys and small values. All frames together keep 1 MiB at most.
const FRAME_KEEPS: usize = 2048;

/// The messages of a batch, one after the other.
pub(super) struct BatchInbox {
    /// Frames to receive into. The first ones, up to the last end, hold the messages.
    frames: Vec<Frame>,
    /// The index in `frames` at which each message ends.
    ends: Vec<usize>,
}

impl BatchInbox {
    pub(super) fn new() -> Self {
        Self { frames: Vec::with_capacity(INBOX_KEEPS), ends: Vec::with_capacity(BATCH_MAX) }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn frames_used(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn range(&self, number: usize) -> Range<usize> {
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before));
        start.copied().unwrap_or(0)..*self.ends.get(number).expect("the number is below the length")
    }

    /// The frames of a message.
    pub(super) fn message(&self, number: usize) -> &[Frame] {
        self.frames.get(self.range(number)).expect("the number is below the length")
    }

    /// Waits at most `patience` for a message, and receives it.
    pub(super) fn wait(&mut self, socket: &Socket, patience: Duration) {
        if socket.receive_within(self.frame_at(0), patience) {
            self.take_rest(socket);
        }
    }

    /// Receives the messages that are there, up to the bounds of a batch.
    pub(super) fn fill(&mut self, socket: &Socket) {
        while self.len() < BATCH_MAX && self.frames_used() < BATCH_FRAMES_MAX {
            let next = self.frames_used();
            if !socket.receive(self.frame_at(next)) {
                break;
            }
            self.take_rest(socket);
        }
    }

    /// Moves the frames of a message out.
    pub(super) fn take(&mut self, number: usize) -> Vec<Frame> {
        let range = self.range(number);
        let frames = self.frames.get_mut(range).expect("the number is below the length");
        frames.iter_mut().map(std::mem::take).collect()
    }

    /// Receives the rest of a message whose first frame is received.
    fn take_rest(&mut self, socket: &Socket) {
        let mut last = self.frames_used();
        while self.frame_at(last).more() {
            last += 1;
            socket.receive_rest(self.frame_at(last));
        }
        self.ends.push(last + 1);
    }

    /// The frame at this index, which is at most the number of frames that exist.
    fn frame_at(&mut self, number: usize) -> &mut Frame {
        if number == self.frames.len() {
            self.frames.push(Frame::new());
        }
        self.frames.get_mut(number).expect("frames are used one after the other")
    }

    /// Clears the inbox for the next batch. A worker that waits keeps no large memory of its last batch.
    pub(super) fn clear(&mut self) {
        self.frames.truncate(INBOX_KEEPS);
        self.frames.shrink_to(INBOX_KEEPS);
        for frame in self.frames.iter_mut().filter(|frame| frame.len() > FRAME_KEEPS) {
            *frame = Frame::new();
        }
        self.ends.clear();
    }
}
