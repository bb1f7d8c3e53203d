//! Counters: values that are decimal numbers in ASCII, and the addition to one.
//!
//! ```text
//! 0 │ -? [1-9] [0-9]*        within 64 bits and a sign
//! ```
//! A counter is an element like any other: GET reads its digits, and UPDATE may set them.

use itoa::Buffer;

use super::{NotStored, Ops, Write};
use crate::feed::Cause;
use crate::tables::lookup::{Found, look};
use crate::tables::slot::EntryBox;
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
    ///
    /// The races are those of [`Ops::overwrite`] and [`Ops::create`]. If another thread comes first, this one computes
    /// the sum anew, from the value that it then finds.
    pub(in crate::tables) fn increment(
        &mut self,
        table: &Table,
        key: &[u8],
        Addition { delta, deadline, value_max }: Addition,
    ) -> Result<(i64, u64), Refusal> {
        loop {
            let found = look(table, key, self.place, self.guard, self.now);
            let old = match found {
                Found::Live { entry, .. } => Some(entry),
                Found::Absent { .. } | Found::NoSlot => None,
                Found::Overdue { slot, seen, .. } => {
                    self.expire(table, slot, seen)?;
                    continue;
                }
            };
            let before = old.map_or(Some(0), |old| parse(old.value())).ok_or(Refusal::NotANumber)?;
            let sum = before.checked_add(delta).ok_or(Refusal::OutOfRange)?;
            let mut buffer = Buffer::new();
            let digits = buffer.format(sum).as_bytes();
            if digits.len() > value_max {
                return Err(Refusal::ValueTooLong);
            }
            let deadline = if old.is_none() { deadline } else { Deadline::KEEP };
            let write = Write { cause: Cause::Increment, ..Write::update(key, digits, deadline) };
            let entry = EntryBox::new(write.value);
            let attempt = match found {
                Found::Live { slot, seen, .. } | Found::Overdue { slot, seen, .. } | Found::Absent { slot, seen } => {
                    self.overwrite(table, &write, entry, slot, seen, old)
                }
                Found::NoSlot => self.create(table, &write, entry),
            };
            match attempt {
                Ok(version) => return Ok((sum, version)),
                Err(NotStored::Refused(refusal)) => return Err(refusal),
                // The sum of the next attempt is another, perhaps of another length.
                Err(NotStored::Overtaken(_)) => {}
            }
        }
    }
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
