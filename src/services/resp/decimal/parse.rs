//! Which texts are numbers, as Redis has it with C's `strtold`.
//!
//! ```text
//! text    = [sign] (infinity | decimal | "0x" hexadecimal)
//! decimal = digits ["." [digits]] [exponent] | "." digits [exponent]
//! exponent = "e" [sign] digits        infinity = "inf" | "infinity"        sign = "+" | "-"
//! ```
//! Letters may be large or small. No space may be anywhere, and `nan` is no number. A number is also refused if 80 bits
//! round it to infinity, or to zero though it is not zero. The hexadecimal numbers have a file of their own.

use super::AddError::NotAFloat;
use super::{AddError, Decimal, Number, count, hexadecimal};

/// The longest text that may be a number: Redis copies it into a buffer of 5 KiB with a zero at its end.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;

/// Exponents are read up to here. No text has so many digits that a greater exponent could matter.
const EXPONENT_MAX: i64 = 1_000_000;

/// The number that this text is.
pub(super) fn parse(text: &[u8]) -> Result<Number, AddError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(NotAFloat);
    }
    let (is_negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    if [&b"inf"[..], b"infinity"].iter().any(|name| unsigned.eq_ignore_ascii_case(name)) {
        return Ok(Number::Infinite);
    }
    let number = match unsigned {
        [b'0', b'x' | b'X', digits @ ..] => hexadecimal::parse(is_negative, digits),
        digits => decimal(is_negative, digits),
    };
    let in_range = number.filter(|number| !number.is_infinite() && !number.is_vanishing());
    in_range.map(Number::Finite).ok_or(NotAFloat)
}

/// A decimal number without its sign.
fn decimal(is_negative: bool, text: &[u8]) -> Option<Decimal> {
    let fields = Fields::of(text, |byte| matches!(byte, b'e' | b'E'))?;
    if !fields.digits().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Decimal::new(is_negative, fields.digits().collect(), count(fields.behind.len()) - fields.exponent))
}

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
