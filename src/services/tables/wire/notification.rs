//! The three frames that a subscriber receives for each change.
//!
//! ```text
//! table   as CREATE_TABLE gave it, its NUL included     │ kind: 0 UPDATED, 1 DELETED │ key
//! ```
//! Subscriptions match the beginning of the first frame: `users\0` matches one table, `users` also matches `users2`.

use std::ops::Deref;

use super::Malformed;

/// The kind of change of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NotificationKind {
    /// It was added or replaced.
    Updated = 0,
    /// It was deleted, expired, or was removed with its table.
    Deleted = 1,
}

/// One change of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification<'m> {
    /// The table, exactly as CREATE_TABLE gave it.
    pub table: &'m [u8],
    /// The kind of change.
    pub kind: NotificationKind,
    /// The key of the element.
    pub key: &'m [u8],
}

impl<'m> Notification<'m> {
    /// Hands the frames to `sink`.
    #[inline]
    pub fn encode(&self, mut sink: impl FnMut(&[u8], bool)) {
        sink(self.table, true);
        sink(&[self.kind as u8], true);
        sink(self.key, false);
    }

    /// Reads the frames of one message.
    ///
    /// # Errors
    /// [`Malformed`] if these are not three frames, or the second is no kind.
    pub fn decode<F: Deref<Target = [u8]>>(message: &'m [F]) -> Result<Self, Malformed> {
        let [table, kind, key] = message else {
            return Err(Malformed { rule: "a notification has 3 frames", given: message.len() });
        };
        Ok(Self { table, kind: kind_of(kind)?, key })
    }
}

fn kind_of(frame: &[u8]) -> Result<NotificationKind, Malformed> {
    match *frame {
        [0] => Ok(NotificationKind::Updated),
        [1] => Ok(NotificationKind::Deleted),
        [other] => Err(Malformed { rule: "a kind is 0 or 1", given: usize::from(other) }),
        _ => Err(Malformed { rule: "a kind has 1 byte", given: frame.len() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use proptest::prelude::*;

    use super::*;
    use crate::services::tables::wire::fuzz::EncodedFrames;

    #[test]
    fn the_frames_are_those_of_the_specification() {
        let mut frames = EncodedFrames::default();
        let change = Notification { table: b"users\0", kind: NotificationKind::Deleted, key: b"" };
        change.encode(frames.sink());
        assert_eq!(frames.slices(), [&b"users\0"[..], b"\x01", b""]);
    }

    #[test]
    fn other_frames_are_malformed() {
        let short: [&[u8]; 2] = [b"users", b"\x00"];
        assert_eq!(Notification::decode(&short).unwrap_err().given, 2);
        let kind: [&[u8]; 3] = [b"users", b"\x02", b"key"];
        assert_eq!(Notification::decode(&kind).unwrap_err().given, 2);
        let wide: [&[u8]; 3] = [b"users", b"\x00\x00\x00", b"key"];
        assert_eq!(Notification::decode(&wide).unwrap_err().given, 3);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(table: Vec<u8>, deleted: bool, key: Vec<u8>) {
            let kind = if deleted { NotificationKind::Deleted } else { NotificationKind::Updated };
            let change = Notification { table: &table, kind, key: &key };
            let mut frames = EncodedFrames::default();
            change.encode(frames.sink());
            let slices = frames.slices();
            prop_assert_eq!(Notification::decode(&slices), Ok(change));
        }
    }
}
