//! The parts of a number as a text has them, whatever its digits are.

/// Exponents are read up to here. No text has so many digits that a greater exponent could matter.
const EXPONENT_MAX: i64 = 1_000_000;

/// The parts of a number: digits before and behind the point, and the exponent.
pub(super) struct Fields<'t> {
    before: &'t [u8],
    pub(super) behind: &'t [u8],
    pub(super) exponent: i64,
}

impl<'t> Fields<'t> {
    /// The parts of this text, with any bytes as digits. There is a digit at least, and an exponent has one too.
    pub(super) fn of(text: &'t [u8], is_mark: impl Fn(u8) -> bool) -> Option<Self> {
        let (mantissa, exponent) = match split_at_byte(text, is_mark) {
            Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
            None => (text, 0),
        };
        let (before, behind) = split_at_byte(mantissa, |byte| byte == b'.').unwrap_or((mantissa, &[]));
        let has_digit = !before.is_empty() || !behind.is_empty();
        has_digit.then_some(Self { before, behind, exponent })
    }

    /// The digits before and behind the point.
    pub(super) fn digits(&self) -> impl Iterator<Item = u8> {
        self.before.iter().chain(self.behind).copied()
    }
}

/// What stands before and behind the first byte of a kind.
fn split_at_byte(text: &[u8], is_kind: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| is_kind(byte))?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// An exponent, cut to what can matter.
fn read_exponent(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] | digits => (1, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let exponent = digits.iter().try_fold(0, |read: i64, &digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        Some((read * 10 + digit).min(EXPONENT_MAX))
    })?;
    Some(sign * exponent)
}
