//! Times to live as typed.
//!
//! ```text
//! 60      60s      seconds
//! 1500ms           milliseconds
//! 15m  12h  30d    minutes, hours, days
//! 0                no time to live
//! ```

use clap::builder::{StringValueParser, TypedValueParser};

use super::duration::{BareUnit, duration};
use crate::clock::Ttl;

/// The error for a text that is no time to live.
const EXPECTED: &str =
    "a time to live is a whole number of seconds, or of ms, s, m, h or d as in 1500ms; at most 139 years";

/// Parses a time to live. Zero is "none".
pub(crate) fn time_to_live() -> impl TypedValueParser<Value = Ttl> {
    StringValueParser::new().try_map(|typed| parse(&typed).ok_or(EXPECTED))
}

/// Parses a time to live that is not zero.
pub(crate) fn some_time_to_live() -> impl TypedValueParser<Value = Ttl> {
    StringValueParser::new().try_map(|typed| parse(&typed).filter(|ttl| *ttl != Ttl::NONE).ok_or(EXPECTED))
}

fn parse(typed: &str) -> Option<Ttl> {
    // Whole numbers, of milliseconds at least.
    let time = duration(typed, BareUnit::Seconds).filter(|_| !typed.contains(['.', 'u']))?;
    Ttl::from_millis(u64::try_from(time.as_millis()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(typed: &str) -> Option<u64> {
        parse(typed).map(Ttl::millis)
    }

    #[test]
    fn a_number_is_seconds_and_a_unit_says_otherwise() {
        for (typed, expected) in [
            ("0", 0),
            ("60", 60_000),
            ("4294967295", 4_294_967_295_000),
            ("1500ms", 1_500),
            ("2s", 2_000),
            ("15m", 900_000),
            ("12h", 43_200_000),
            ("30d", 2_592_000_000),
            ("4398046511103ms", (1 << 42) - 1),
        ] {
            assert_eq!(millis(typed), Some(expected), "{typed}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for typed in
            ["", "ms", "-1", "+1", "1.5", "1.5s", "1 s", "1S", "1w", "1sm", "4398046511104ms", "4398046512", "ä"]
        {
            assert_eq!(millis(typed), None, "{typed}");
        }
        assert_eq!(millis("18446744073709551615d"), None);
        assert_eq!(millis("18446744073709551616"), None);
    }
}
