//! Finds the end of a request's envelope, where its body begins.
//!
//! ```text
//! REQ                            ""                 │ command …
//! DEALER with a delimiter        cookie… ""         │ command …
//! through ROUTER/DEALER hops     id… ""             │ command …
//! DEALER without a delimiter                        │ command …     first frame one byte, the next not empty
//! neither                                           │               a body without a command: BAD REQUEST
//! ```
//! The price of the cheapest form: a lone one-byte frame before an empty one is a cookie, never a command.

use std::ops::Deref;

/// A request's message, split in two.
#[derive(Debug)]
pub struct SplitMessage<'m, F> {
    /// The frames up to and including the first empty one, which are sent back before the reply. Empty if there is
    /// none.
    pub envelope: &'m [F],
    /// The frames from the command on. Empty for a message that has neither an envelope nor a command.
    pub body: &'m [F],
}

/// Splits a message into envelope and body. Either may be empty.
///
/// ```
/// use spindle::services::tables::wire::split;
///
/// let message: [&[u8]; 3] = [b"cookie", b"", b"\x05"];
/// let parts = split(&message);
/// assert_eq!(parts.envelope, [&b"cookie"[..], b""]);
/// assert_eq!(parts.body, [b"\x05"]);
/// ```
#[must_use]
pub fn split<F: Deref<Target = [u8]>>(message: &[F]) -> SplitMessage<'_, F> {
    let cut = if body_starts_at_once(message) {
        0
    } else {
        match message.iter().position(|frame| frame.is_empty()) {
            Some(delimiter) => delimiter + 1,
            None => {
                return SplitMessage { envelope: &[], body: &[] };
            }
        }
    };
    let (envelope, body) = message.split_at(cut);
    SplitMessage { envelope, body }
}

/// Whether there is no envelope: the first frame has one byte, and it is the only one or the next is not empty.
fn body_starts_at_once<F: Deref<Target = [u8]>>(message: &[F]) -> bool {
    match message {
        [only] => only.len() == 1,
        [first, second, ..] => first.len() == 1 && !second.is_empty(),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames in the envelope and in the body of a message.
    fn cut(message: &[&[u8]]) -> (usize, usize) {
        let parts = split(message);
        (parts.envelope.len(), parts.body.len())
    }

    #[test]
    fn a_request_socket_sends_one_empty_frame() {
        assert_eq!(cut(&[b"", b"\x05"]), (1, 1));
        assert_eq!(cut(&[b"", b"\x00", b"table"]), (1, 2));
    }

    #[test]
    fn cookies_and_hops_end_with_the_first_empty_frame() {
        assert_eq!(cut(&[b"cookie", b"", b"\x05"]), (2, 1));
        assert_eq!(cut(&[b"hop 2", b"hop 1", b"", b"\x04", b"t", b""]), (3, 3));
        assert_eq!(cut(&[b"cookie", b"", b"", b"\x05"]), (2, 2));
    }

    #[test]
    fn one_byte_before_something_is_a_command() {
        assert_eq!(cut(&[b"\x05"]), (0, 1));
        assert_eq!(cut(&[b"\x04", b"t", b"k"]), (0, 3));
        assert_eq!(cut(&[b"\x04", b"t", b""]), (0, 3));
    }

    #[test]
    fn one_byte_before_an_empty_frame_is_a_cookie() {
        assert_eq!(cut(&[b"c", b"", b"\x05"]), (2, 1));
        assert_eq!(cut(&[b"\x00", b""]), (2, 0));
    }

    #[test]
    fn an_envelope_may_be_all_there_is() {
        assert_eq!(cut(&[b""]), (1, 0));
        assert_eq!(cut(&[b"cookie", b""]), (2, 0));
    }

    #[test]
    fn a_message_with_neither_has_no_envelope_and_no_body() {
        assert_eq!(cut(&[]), (0, 0));
        assert_eq!(cut(&[b"ab"]), (0, 0));
        assert_eq!(cut(&[b"ab", b"\x05"]), (0, 0));
    }
}
