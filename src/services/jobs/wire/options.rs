//! The options of a job that is added with ADDX.
//!
//! ```text
//! -                                                          none
//! delay=30s,tries=5,backoff=1s..10m,class=9,group=acme       any of them, each once
//! expires=2h,lease=90s,key=order-7
//! ```
//! A time is a whole number with a unit: ms, s, m, h or d.

use std::num::NonZeroU32;

use crate::tasks::{AddTerms, Backoff};

/// The longest time, in milliseconds: a hundred years.
const TIME_MAX: u64 = 100 * 365 * 86_400_000;
/// The longest name of a group, and the longest key.
const NAME_BYTES_MAX: usize = 255;

/// Reads options. `None`: they are malformed, or one of them is unknown or there twice.
#[must_use]
pub fn read_options(bytes: &[u8]) -> Option<AddTerms> {
    let mut terms = AddTerms::default();
    if bytes == b"-" {
        return Some(terms);
    }
    let mut seen: Vec<&[u8]> = Vec::new();
    for option in bytes.split(|byte| *byte == b',') {
        let at = option.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (option.get(..at)?, option.get(at + 1..)?);
        if seen.contains(&name) {
            return None;
        }
        seen.push(name);
        set(&mut terms, name, value)?;
    }
    Some(terms)
}

/// Sets an option. `None`: it is unknown, or its value malformed.
fn set(terms: &mut AddTerms, name: &[u8], value: &[u8]) -> Option<()> {
    match name {
        b"class" => terms.class = whole(value)?,
        b"delay" => terms.delay = read_time(value)?,
        b"expires" => terms.lifetime = Some(read_time(value).filter(|millis| *millis > 0)?),
        b"tries" => terms.tries = Some(NonZeroU32::new(whole(value)?)),
        b"backoff" => terms.backoff = Some(read_backoff(value)?),
        b"group" => terms.group = short(value)?,
        b"lease" => terms.lease = Some(read_time(value).filter(|millis| *millis > 0)?),
        b"key" => terms.unique = short(value)?,
        _ => return None,
    }
    Some(())
}

/// A name of 1 to 255 bytes. The protocol has split at white space and commas.
fn short(value: &[u8]) -> Option<Box<[u8]>> {
    ((1..=NAME_BYTES_MAX).contains(&value.len()) && !has_white_space(value)).then(|| value.into())
}

/// Reads a backoff, as in `1s..10m` or `10s`. `None`: it is malformed.
#[must_use]
pub fn read_backoff(value: &[u8]) -> Option<Backoff> {
    let text = std::str::from_utf8(value).ok()?;
    let (first, most) = text.split_once("..").unwrap_or((text, text));
    let millis = |text: &str| u32::try_from(read_time(text.as_bytes())?).ok();
    let (first, most) = (millis(first)?, millis(most)?);
    (first <= most).then_some(Backoff { first, most })
}

/// Reads a time, as in `30s`. Returns its milliseconds. `None`: it is malformed, or longer than a hundred years.
#[must_use]
pub fn read_time(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    let unit: u64 = match unit {
        b"ms" => 1,
        b"s" => 1_000,
        b"m" => 60_000,
        b"h" => 3_600_000,
        b"d" => 86_400_000,
        _ => return None,
    };
    let number: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    number.checked_mul(unit).filter(|millis| *millis <= TIME_MAX)
}

pub(super) fn has_white_space(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r'))
}

/// A whole number without a sign.
pub(super) fn whole(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_read() {
        let all = b"class=9,delay=30s,expires=2h,tries=5,backoff=1s..10m,group=acme,lease=90s,key=order-7";
        let expected = AddTerms {
            class: 9,
            delay: 30_000,
            lifetime: Some(7_200_000),
            tries: Some(NonZeroU32::new(5)),
            backoff: Some(Backoff { first: 1_000, most: 600_000 }),
            group: Box::from(&b"acme"[..]),
            lease: Some(90_000),
            unique: Box::from(&b"order-7"[..]),
        };
        assert_eq!(read_options(all), Some(expected));
        assert_eq!(read_options(b"-"), Some(AddTerms::default()));
        let same = Some(Backoff { first: 500, most: 500 });
        assert_eq!(read_options(b"backoff=500ms").map(|terms| terms.backoff), Some(same));
        assert_eq!(read_options(b"tries=0").map(|terms| terms.tries), Some(Some(None)));
        assert_eq!(read_options(b"delay=1d,key=a=b").map(|terms| terms.unique), Some(Box::from(&b"a=b"[..])));
    }

    #[test]
    fn anything_else_is_refused() {
        let wrong: [&[u8]; 22] = [
            b"",
            b",",
            b"delay",
            b"delay=",
            b"delay=5",
            b"delay=s",
            b"delay=5w",
            b"delay=-1s",
            b"delay=1.5s",
            b"delay=1s,",
            b"delay=1s,delay=1s",
            b"delay=36501d",
            b"delay=99999999999999999999d",
            b"tries=+5",
            b"tries=x",
            b"backoff=2s..1s",
            b"backoff=1s..",
            b"backoff=50d",
            b"group=",
            b"key=a\tb",
            b"lease=0s",
            b"colour=red",
        ];
        for options in wrong {
            assert_eq!(read_options(options), None, "{}", options.escape_ascii());
        }
        let long = [b"key=", &[b'k'; 256][..]].concat();
        assert_eq!(read_options(&long), None);
        assert!(read_options(long.strip_suffix(b"k").unwrap_or_default()).is_some());
    }
}
