//! Whole numbers as typed: versions, and numbers to add.

use clap::builder::{StringValueParser, TypedValueParser};

use super::duration::{self, BareUnit};

/// Parses the version of an element.
pub(crate) fn version() -> impl TypedValueParser<Value = u64> {
    whole("a version is a whole number, 0 for an element that must be absent")
}

/// Parses a number to add.
pub(crate) fn delta() -> impl TypedValueParser<Value = i64> {
    whole("the number to add is a whole number, -9223372036854775808 to 9223372036854775807")
}

/// Parses the key of a lease.
pub(crate) fn lend_key() -> impl TypedValueParser<Value = u64> {
    whole("a lend key is a whole number, as `lend` printed it")
}

/// Parses a time in milliseconds, or with a unit.
pub(crate) fn millis() -> impl TypedValueParser<Value = u64> {
    duration::whole(BareUnit::Millis, 0, u64::MAX, "a time is a whole number of milliseconds")
}

/// Parses a whole number. Any other text is refused with the sentence.
fn whole<T: std::str::FromStr + Clone + Send + Sync + 'static>(
    sentence: &'static str,
) -> impl TypedValueParser<Value = T> {
    StringValueParser::new().try_map(move |typed| typed.parse().map_err(|_| sentence))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::flags::time_to_live::time_to_live;
    use crate::clock::Ttl;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[arg(value_parser = delta(), allow_negative_numbers = true)]
        delta: i64,
        #[arg(long, value_parser = time_to_live(), allow_negative_numbers = true)]
        ttl: Option<Ttl>,
        #[arg(long, value_parser = version(), allow_negative_numbers = true)]
        version: Option<u64>,
    }

    fn parsed(typed: &[&str]) -> Result<(i64, Option<Ttl>, Option<u64>), String> {
        let arguments = Arguments::try_parse_from([&["incr"], typed].concat()).map_err(|error| error.to_string())?;
        Ok((arguments.delta, arguments.ttl, arguments.version))
    }

    #[test]
    fn numbers_to_their_ends_are_taken() {
        assert_eq!(parsed(&["-5"]), Ok((-5, None, None)));
        let ends = ["-9223372036854775808", "--ttl", "4294967295", "--version", "18446744073709551615"];
        assert_eq!(parsed(&ends), Ok((i64::MIN, Some(Ttl::from_secs(u32::MAX)), Some(u64::MAX))));
    }

    #[test]
    fn anything_else_is_refused_with_what_is_expected() {
        for (typed, sentence) in [
            (&["abc"][..], "the number to add is a whole number"),
            (&["1.5"], "the number to add is a whole number"),
            (&["9223372036854775808"], "the number to add is a whole number"),
            (&["1", "--ttl", "-1"], "a time to live is a whole number of seconds, or of ms"),
            (&["1", "--ttl", "1w"], "a time to live is a whole number of seconds, or of ms"),
            (&["1", "--version", "-1"], "a version is a whole number"),
        ] {
            let refused = parsed(typed);
            assert!(refused.as_ref().is_err_and(|why| why.contains(sentence)), "{typed:?}: {refused:?}");
        }
    }
}
