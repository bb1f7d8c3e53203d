//! The field of a TTL.
//!
//! ```text
//! 8 bytes    0 0 0 0 s s s s            seconds, big-endian, as a client writes them
//!            s s s s 0 0 0 0            seconds, little-endian, as a server also reads them
//! 9 bytes    1 m m m m m m m m          milliseconds below 2^42, big-endian
//! ```
//! A client writes 9 bytes only for a time that 8 bytes do not hold, since older servers know no others.

use super::{Reason, number};
use crate::clock::Ttl;

/// The first byte of the field with milliseconds.
const MILLIS: u8 = 1;

/// Decodes the field.
///
/// # Errors
/// `BadTtl` for a field of another length or first byte, or for a time beyond the limit.
#[inline]
pub(super) fn decode_ttl(frame: &[u8]) -> Result<Ttl, Reason> {
    match *frame {
        // Below 2^32 one half is zero, and that half shows the byte order. Both halves zero is 0 in either order.
        [0, 0, 0, 0, a, b, c, d] => Ok(Ttl::from_secs(u32::from_be_bytes([a, b, c, d]))),
        [a, b, c, d, 0, 0, 0, 0] => Ok(Ttl::from_secs(u32::from_le_bytes([a, b, c, d]))),
        [MILLIS, ref millis @ ..] => number(millis).and_then(Ttl::from_millis).ok_or(Reason::BadTtl),
        _ => Err(Reason::BadTtl),
    }
}

/// An encoded field.
#[derive(Clone, Copy, Debug)]
pub struct TtlField {
    /// In the last 9 bytes: the first one of them and the number.
    bytes: [u8; 9],
    /// The first byte belongs to the field.
    has_millis: bool,
}

impl TtlField {
    /// Encodes a TTL: as 8 bytes if it is whole seconds below 2^32.
    #[must_use]
    pub const fn new(ttl: Ttl) -> Self {
        let (number, has_millis) = match ttl.whole_secs() {
            Some(seconds) => (seconds as u64, false),
            None => (ttl.millis(), true),
        };
        let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
        Self { bytes: [MILLIS, a, b, c, d, e, f, g, h], has_millis }
    }

    /// The bytes of the field.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        let [_, seconds @ ..] = &self.bytes;
        if self.has_millis { &self.bytes } else { seconds }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::TTL_MILLIS_MAX;

    fn millis(frame: &[u8]) -> Result<u64, Reason> {
        decode_ttl(frame).map(Ttl::millis)
    }

    #[test]
    fn seconds_are_read_in_either_byte_order() {
        for (frame, seconds) in [
            ([0, 0, 0, 0, 0, 0, 0, 60], 60),
            ([60, 0, 0, 0, 0, 0, 0, 0], 60),
            ([0, 0, 0, 0, 1, 2, 3, 4], 0x0102_0304),
            ([4, 3, 2, 1, 0, 0, 0, 0], 0x0102_0304),
            ([0, 0, 0, 0, 255, 255, 255, 255], u32::MAX),
            ([255, 255, 255, 255, 0, 0, 0, 0], u32::MAX),
            ([0; 8], 0),
            // 2^32 in one order is 2^24 in the other. So no number of 2^32 or above that fits both halves is lost.
            ([0, 0, 0, 1, 0, 0, 0, 0], 1 << 24),
            // A first byte of 1 says something only before eight others.
            ([1, 0, 0, 0, 0, 0, 0, 0], 1),
        ] {
            assert_eq!(decode_ttl(&frame), Ok(Ttl::from_secs(seconds)), "{frame:?}");
        }
    }

    #[test]
    fn nine_bytes_are_milliseconds_below_2_to_the_42() {
        assert_eq!(millis(&[1, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(0));
        assert_eq!(millis(&[1, 0, 0, 0, 0, 0, 0, 0, 1]), Ok(1));
        assert_eq!(millis(&[1, 0, 0, 0, 0, 0, 0, 5, 220]), Ok(1_500));
        assert_eq!(millis(&[1, 0, 0, 3, 255, 255, 255, 255, 255]), Ok(TTL_MILLIS_MAX));
        for bad in [
            [1, 0, 0, 4, 0, 0, 0, 0, 0],
            [1, 255, 255, 255, 255, 255, 255, 255, 255],
            // There is no second byte order for milliseconds.
            [1, 220, 5, 0, 0, 0, 0, 0, 0],
            [0; 9],
            [0, 0, 0, 0, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, 0, 0, 0, 1],
            [255, 0, 0, 0, 0, 0, 0, 0, 1],
        ] {
            assert_eq!(millis(&bad), Err(Reason::BadTtl), "{bad:?}");
        }
    }

    #[test]
    fn any_other_field_is_bad() {
        for bad in [&[0, 0, 0, 1, 0, 0, 0, 1][..], &[1, 0, 0, 0, 1, 0, 0, 0], &[255; 8], b""] {
            assert_eq!(millis(bad), Err(Reason::BadTtl), "{bad:?}");
        }
        for length in (0..=40).filter(|length| ![8, 9].contains(length)) {
            assert_eq!(millis(&vec![0; length]), Err(Reason::BadTtl), "{length} bytes");
            assert_eq!(millis(&vec![1; length]), Err(Reason::BadTtl), "{length} bytes");
        }
    }

    #[test]
    fn whole_seconds_go_as_older_servers_read_them() {
        let field = |ttl: Option<Ttl>| ttl.map(|ttl| TtlField::new(ttl).bytes().to_vec());
        assert_eq!(field(Some(Ttl::from_secs(u32::MAX))), Some(vec![0, 0, 0, 0, 255, 255, 255, 255]));
        assert_eq!(field(Ttl::from_millis(2_000)), Some(vec![0, 0, 0, 0, 0, 0, 0, 2]));
        assert_eq!(field(Some(Ttl::NONE)), Some(vec![0; 8]));
        assert_eq!(field(Ttl::from_millis(1_500)), Some(vec![1, 0, 0, 0, 0, 0, 0, 5, 220]));
        assert_eq!(field(Ttl::from_millis(1_000 << 32)), Some(vec![1, 0, 0, 3, 232, 0, 0, 0, 0]), "2^32 seconds");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(millis in 0..=TTL_MILLIS_MAX, seconds: u32) {
            for ttl in [Ttl::from_millis(millis).unwrap_or(Ttl::NONE), Ttl::from_secs(seconds)] {
                prop_assert_eq!(decode_ttl(TtlField::new(ttl).bytes()), Ok(ttl));
            }
        }
    }
}
