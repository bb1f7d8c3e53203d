//! Counters: values that are decimal numbers in ASCII, and the addition to one.
//!
//! ```text
//! 0 │ -? [1-9] [0-9]*        within 64 bits and a sign
//! ```
//! A counter is an element like any other: GET reads its digits, and UPDATE may set them.

use itoa::Buffer;

use super::{Edit, ElementView, Ops};
use crate::feed::Cause;
use crate::tables::table::Table;
use crate::tables::{Addition, Deadline, Refusal};

/// The number that a value is, if it is one.
fn parse(value: &[u8]) -> Option<i64> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    match *digits {
        // A zero stands alone, and has no sign.
        [b'0', ..] => (value == b"0").then_some(0),
        [b'1'..=b'9', ..] => std::str::from_utf8(value).ok()?.parse().ok(),
        _ => None,
    }
}

impl Ops<'_> {
    /// Adds to a counter. An absent element counts as 0, and gets the addition's deadline. An element that exists keeps
    /// its own. Returns the sum and its version.
    pub(in crate::tables) fn increment(
        &mut self,
        table: &Table,
        key: &[u8],
        Addition { delta, deadline, value_max }: Addition,
    ) -> Result<(i64, u64), Refusal> {
        let (sum, version) = self.edit(table, key, |old| match sum(old, delta, value_max) {
            Ok(sum) => {
                let deadline = if old.is_none() { deadline } else { Deadline::KEEP };
                (Edit::Store { value: Digits::of(sum), deadline, cause: Cause::Increment }, Ok(sum))
            }
            Err(refusal) => (Edit::Keep, Err(refusal)),
        })?;
        Ok((sum?, version))
    }
}

/// The digits of a number.
struct Digits {
    bytes: [u8; DIGITS_MAX],
    count: usize,
}

/// The most digits of a number, and its sign.
const DIGITS_MAX: usize = 20;

impl Digits {
    fn of(number: i64) -> Self {
        let mut buffer = Buffer::new();
        let digits = buffer.format(number).as_bytes();
        let mut bytes = [0; DIGITS_MAX];
        bytes.iter_mut().zip(digits).for_each(|(place, digit)| *place = *digit);
        Self { bytes, count: digits.len() }
    }
}

impl AsRef<[u8]> for Digits {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.count).unwrap_or_default()
    }
}

/// The sum of a counter and `delta`, if it has at most so many bytes.
fn sum(old: Option<ElementView<'_>>, delta: i64, value_max: usize) -> Result<i64, Refusal> {
    let before = old.map_or(Some(0), |old| parse(old.value)).ok_or(Refusal::NotANumber)?;
    let sum = before.checked_add(delta).ok_or(Refusal::OutOfRange)?;
    if Digits::of(sum).count > value_max { Err(Refusal::ValueTooLong) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_has_one_spelling() {
        for (value, number) in [
            (&b"0"[..], 0),
            (b"7", 7),
            (b"-1", -1),
            (b"10", 10),
            (b"9223372036854775807", i64::MAX),
            (b"-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse(value), Some(number));
        }
        for value in [
            &b""[..],
            b"-",
            b"-0",
            b"+1",
            b"00",
            b"01",
            b"-01",
            b" 1",
            b"1 ",
            b"1\0",
            b"--1",
            b"1.0",
            b"1e3",
            b"0x1",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"100000000000000000000",
            b"\xd9\xa1",
            b"1\xff",
        ] {
            assert_eq!(parse(value), None, "{}", value.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn digits_are_parsed_as_the_number_that_they_are_of(number: i64) {
            prop_assert_eq!(parse(Buffer::new().format(number).as_bytes()), Some(number));
        }

        #[test]
        fn a_value_is_a_number_only_in_the_spelling_of_that_number(value in "-?[0-9 +]{0,21}") {
            if let Some(number) = parse(value.as_bytes()) {
                prop_assert_eq!(number.to_string(), value);
            }
        }
    }
}
