//! Numbers as Lua 5.1 has them in the scripts of Redis: read from arguments, written as arguments, and returned.

/// The number that a text is, as `tonumber` reads it. A NUL ends the text.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = str::from_utf8(text).ok()?.trim_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let absolute = match unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        Some("") => return None,
        Some(digits) => digits.chars().try_fold(0.0, |sum, digit| Some(sum * 16.0 + f64::from(digit.to_digit(16)?)))?,
        None if unsigned.starts_with(['-', '+']) => return None,
        None => unsigned.parse::<f64>().ok()?,
    };
    Some(if is_negative { -absolute } else { absolute })
}

/// The text of a number that a script passes to a command: `%.17g` of C.
pub(super) fn text(number: f64) -> String {
    const DIGITS: i32 = 17;
    if !number.is_finite() {
        let name = if number.is_nan() { "nan" } else { "inf" };
        return format!("{}{name}", if number.is_sign_negative() { "-" } else { "" });
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let without_zeros = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    match usize::try_from(DIGITS - 1 - exponent) {
        Ok(places) if exponent >= -4 => without_zeros(&format!("{number:.places$}")),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
        }
    }
}

/// The integer that a script returns as this number: what is behind the point is cut off.
#[allow(clippy::cast_possible_truncation, reason = "checked, and cut off as in C")]
pub(super) fn integer(number: f64) -> i64 {
    const END: f64 = 9_223_372_036_854_775_808.0;
    // C on x86 returns the least integer for all others.
    if (-END..END).contains(&number) { number as i64 } else { i64::MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_the_numbers_that_tonumber_reads() {
        for (text, value) in [
            ("10", 10.0),
            (" -1.5e2\n", -150.0),
            ("0x1F", 31.0),
            ("-0X10", -16.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("+7", 7.0),
            ("10\0a", 10.0),
            ("inf", f64::INFINITY),
        ] {
            assert_eq!(number(text.as_bytes()), Some(value), "{text:?}");
        }
        for text in ["", " ", "a", "1a", "1e", "0x", "0xg", "--1", "+-1", "-+1", "1 2", "\0", "."] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_become_texts_of_seventeen_digits() {
        for (value, written) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (60_000.0, "60000"),
            (1.5, "1.5"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1_234e15, "1.234e+18"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(text(value), written);
        }
    }

    #[test]
    fn numbers_are_returned_without_what_is_behind_the_point() {
        assert_eq!([1.9, -1.9, 1e30, -1e30, f64::NAN].map(integer), [1, -1, i64::MIN, i64::MIN, i64::MIN]);
    }
}
