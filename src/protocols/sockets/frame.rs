//! One frame of a message, as libzmq keeps it.
//!
//! The binding's own type is made anew for each received frame and closed after each sent one. That cost a seventh of
//! the time that the proxy of `kv` spends on a request. This type is received into again and again.

use std::ffi::CStr;
use std::ops::Deref;
use std::{fmt, slice};

use zmq_sys::{
    zmq_msg_close, zmq_msg_data, zmq_msg_gets, zmq_msg_init, zmq_msg_init_size, zmq_msg_more, zmq_msg_size, zmq_msg_t,
};

#[expect(unsafe_code, reason = "the binding does not know the function")]
unsafe extern "C" {
    /// Marks a frame that holds the frames of a whole message (`.cargo/libzmq`).
    fn spindle_mark_encoded(message: *mut zmq_msg_t);
    /// Whether a frame is marked so. The call only reads.
    fn spindle_is_encoded(message: *const zmq_msg_t) -> bool;
}

/// Bytes that lie in a frame itself (`max_vsm_size` of libzmq).
pub const INLINE_BYTES_MAX: usize = 33;

/// One frame. Up to 33 bytes lie in it, longer bodies on the heap. Moving or sending a frame copies neither.
pub struct Frame(zmq_msg_t);

impl Frame {
    /// An empty frame.
    #[must_use]
    #[expect(unsafe_code, reason = "see the head of the file")]
    pub fn new() -> Self {
        let mut message = zmq_msg_t::default();
        // SAFETY: `message` is a live local of the type that the call fills.
        let status = unsafe { zmq_msg_init(&raw mut message) };
        debug_assert_eq!(status, 0, "zmq_msg_init cannot fail");
        Self(message)
    }

    /// The last frames of a message as one frame: `frames` has them encoded as in ZMTP 2.0 and later, and libzmq sends
    /// these bytes as they are. Only for sockets whose peers are other processes, and pipes on the way to them.
    ///
    /// # Panics
    /// If no memory is left.
    #[must_use]
    #[expect(unsafe_code, reason = "see the head of the file")]
    pub fn encoded(frames: &[u8]) -> Self {
        let mut frame = Self::from(frames);
        // SAFETY: the frame is initialised, and the call writes one integer of it.
        unsafe { spindle_mark_encoded(frame.as_raw()) };
        frame
    }

    /// Whether it was made by [`Frame::encoded`]: the heads of its frames are among its bytes.
    #[must_use]
    #[inline]
    #[expect(unsafe_code, reason = "see the head of the file")]
    pub fn is_encoded(&self) -> bool {
        // SAFETY: as in `more`.
        unsafe { spindle_is_encoded(&raw const self.0) }
    }

    /// Whether another frame of the same message follows. For a received frame.
    #[must_use]
    #[inline]
    #[expect(unsafe_code, reason = "see the head of the file")]
    pub fn more(&self) -> bool {
        // SAFETY: a frame is initialised as long as it lives, and the call only reads it.
        unsafe { zmq_msg_more(&raw const self.0) != 0 }
    }

    /// How many bytes it has.
    #[must_use]
    #[inline]
    #[expect(unsafe_code, reason = "see the head of the file")]
    pub fn len(&self) -> usize {
        // SAFETY: as in `more`.
        unsafe { zmq_msg_size(&raw const self.0) }
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A property of the connection that the frame came from, if libzmq knows that connection.
    #[expect(unsafe_code, reason = "see the head of the file")]
    pub(crate) fn property(&self, name: &CStr) -> Option<&CStr> {
        // SAFETY: as in `more`. `name` ends with NUL. The returned text belongs to the connection's properties, which
        // the frame keeps alive until it is closed or received into. Neither can happen while it is borrowed.
        unsafe {
            let text = zmq_msg_gets(&raw const self.0, name.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text))
        }
    }

    /// For calls that receive into it or send it. They must leave it initialised.
    #[inline]
    pub(super) fn as_raw(&mut self) -> *mut zmq_msg_t {
        &raw mut self.0
    }
}

impl Default for Frame {
    fn default() -> Self {
        Self::new()
    }
}

impl From<&[u8]> for Frame {
    #[expect(unsafe_code, reason = "see the head of the file")]
    fn from(bytes: &[u8]) -> Self {
        let mut message = zmq_msg_t::default();
        // SAFETY: `message` is a live local of the type that the call fills. The assertion checks that it has. Then the
        // frame has room for exactly the copied bytes, and that room is new, so source and destination do not overlap.
        unsafe {
            let status = zmq_msg_init_size(&raw mut message, bytes.len());
            assert_eq!(status, 0, "out of memory");
            let place = zmq_msg_data(&raw mut message);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len());
        }
        Self(message)
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    #[expect(unsafe_code, reason = "see the head of the file")]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `more`. zmq_msg_data takes a mutable pointer, and changes nothing. The bytes are the frame's
        // and stay where they are while it is borrowed, since only `as_raw` gives them away.
        unsafe {
            let message = &raw const self.0;
            slice::from_raw_parts(zmq_msg_data(message.cast_mut()).cast(), zmq_msg_size(message))
        }
    }
}

impl Drop for Frame {
    #[expect(unsafe_code, reason = "see the head of the file")]
    fn drop(&mut self) {
        // SAFETY: the frame was initialised when it was made, and this is its last use.
        let status = unsafe { zmq_msg_close(&raw mut self.0) };
        debug_assert_eq!(status, 0, "a frame that is initialised can be closed");
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_what_it_was_made_of() {
        for bytes in [vec![], vec![1], vec![7; 33], vec![9; 34], vec![3; 1 << 20]] {
            let frame = Frame::from(&bytes[..]);
            assert_eq!((&*frame, frame.len(), frame.is_empty()), (&bytes[..], bytes.len(), bytes.is_empty()));
            assert!(!frame.is_encoded() && Frame::encoded(&bytes).is_encoded());
            let moved = Box::new(frame);
            assert_eq!(**moved, bytes[..]);
        }
    }

    #[test]
    fn an_empty_frame_knows_nothing() {
        let frame = Frame::new();
        assert!(frame.is_empty() && !frame.more());
        assert_eq!(frame.property(c"Peer-Address"), None);
    }
}
