//! Amounts of memory as typed: bytes, with K, M, G or T for 1024 and its powers, or a share of the available memory. The
//! units may be written out, as in 2GB or 2GiB, in any case.

use std::fmt;

use clap::builder::{StringValueParser, TypedValueParser};

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// Hundredths of the memory that the process may take.
    Percent(u64),
}

impl Amount {
    /// The amount in bytes, if `available_bytes` are available.
    pub(crate) fn of(self, available_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let bytes = u128::from(available_bytes) * u128::from(percent) / 100;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Parses `1073741824`, `1G` or `80%`.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn amount(typed: &str) -> Result<Amount, String> {
    let Some(percent) = typed.strip_suffix('%') else {
        return bytes(typed).and_then(at_least_one).map(Amount::Bytes);
    };
    match percent.parse() {
        Ok(percent @ 1..=100) => Ok(Amount::Percent(percent)),
        _ => Err("a share is 1% to 100%".to_owned()),
    }
}

/// Parses a number of bytes in a range.
pub(crate) fn bytes_within(least: u64, most: u64) -> impl TypedValueParser<Value = u64> {
    StringValueParser::new().try_map(move |typed| match bytes(&typed)? {
        bytes if (least..=most).contains(&bytes) => Ok(bytes),
        _ => Err(format!("{least} to {most} bytes")),
    })
}

/// The digits at the beginning of a text, and the rest.
fn number_and_unit(typed: &str) -> (&str, &str) {
    typed.split_at(typed.find(|character: char| !character.is_ascii_digit()).unwrap_or(typed.len()))
}

/// Parses a number of bytes.
///
/// # Errors
/// The mistake in the text.
pub(crate) fn bytes(typed: &str) -> Result<u64, String> {
    let (digits, unit) = number_and_unit(typed);
    let shift = match &*unit.to_ascii_lowercase() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let number = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    number.ok_or_else(|| "bytes are a number, with K, M, G or T at its end if you like, as in 2G or 2GB".to_owned())
}

fn at_least_one(bytes: u64) -> Result<u64, String> {
    if bytes == 0 {
        return Err("it must be at least 1 byte".to_owned());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_have_a_unit() {
        assert_eq!(amount("1"), Ok(Amount::Bytes(1)));
        assert_eq!(amount("3k"), Ok(Amount::Bytes(3 << 10)));
        assert_eq!(amount("3M"), Ok(Amount::Bytes(3 << 20)));
        assert_eq!(amount("16G"), Ok(Amount::Bytes(16 << 30)));
        for typed in ["2GB", "2gb", "2GiB", "2048MB", "2147483648B"] {
            assert_eq!(amount(typed), Ok(Amount::Bytes(2 << 30)), "{typed}");
        }
        assert_eq!(amount("1TB"), Ok(Amount::Bytes(1 << 40)));
    }

    #[test]
    fn a_share_is_of_what_there_is() {
        assert_eq!(amount("80%"), Ok(Amount::Percent(80)));
        assert_eq!(Amount::Percent(80).of(1_000), 800);
        assert_eq!(Amount::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Amount::Bytes(7).of(1_000), 7);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["", "0", "-1", "+1", "K", "1P", "1 G", "1GBs", "1.5G", "0%", "101%", "%", "20000000000G", "Ω"] {
            assert!(amount(bad).is_err(), "{bad}");
        }
    }
}
