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
use super::fields::Fields;
use super::{AddError, Decimal, Number, count, hexadecimal};

/// The longest text that may be a number: Redis copies it into a buffer of 5 KiB with a zero at its end.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;

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
