//! Durations as typed: a number, in the unit that the flag says, or with a unit of its own.
//!
//! ```text
//! 10s  1.5s  500us  200ms  2m  12h  30d
//! ```

use std::time::Duration;

use crate::limits::STATEMENT_SECONDS;

/// The unit of a number without one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BareUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
}

impl BareUnit {
    fn word(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Millis => "ms",
            Self::Micros => "us",
        }
    }

    fn nanos(self) -> u128 {
        match self {
            Self::Seconds => 1_000_000_000,
            Self::Millis => 1_000_000,
            Self::Micros => 1_000,
        }
    }
}

/// Parses a duration, which may have a fraction of up to nine digits.
pub(crate) fn duration(typed: &str, bare: BareUnit) -> Option<Duration> {
    let nanos = nanos(typed, bare)?;
    Some(Duration::new(u64::try_from(nanos / 1_000_000_000).ok()?, u32::try_from(nanos % 1_000_000_000).ok()?))
}

/// Parses a whole number of this unit from `least` to `most`.
pub(crate) fn whole(
    bare: BareUnit,
    least: u64,
    most: u64,
    otherwise: &'static str,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |typed| {
        let nanos = nanos(typed, bare).filter(|nanos| nanos % bare.nanos() == 0);
        let number = nanos.and_then(|nanos| u64::try_from(nanos / bare.nanos()).ok());
        let unit = bare.word();
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| format!("{otherwise}, {least} to {most}, or with a unit as in {least}{unit} or 10m"))
    }
}

/// Parses the seconds that a statement of a database may take.
pub(crate) fn statement_seconds() -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    let (least, most) = (*STATEMENT_SECONDS.start(), *STATEMENT_SECONDS.end());
    whole(BareUnit::Seconds, least, most, "a statement may take whole seconds")
}

fn nanos(typed: &str, bare: BareUnit) -> Option<u128> {
    let end = typed.find(|character: char| !matches!(character, '0'..='9' | '.')).unwrap_or(typed.len());
    let (number, unit) = typed.split_at(end);
    let unit: u128 = match if unit.is_empty() { bare.word() } else { unit } {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let parts = u128::from(format!("{fraction:0<9}").parse::<u64>().ok().filter(|_| fraction.len() <= 9)?);
    u128::from(whole.parse::<u64>().ok()?).checked_mul(unit)?.checked_add(parts * unit / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_unit_of_its_flag_or_one_of_its_own() {
        for (typed, bare, micros) in [
            ("10", BareUnit::Seconds, 10_000_000),
            ("0.3", BareUnit::Seconds, 300_000),
            ("10", BareUnit::Millis, 10_000),
            ("10", BareUnit::Micros, 10),
            ("10s", BareUnit::Millis, 10_000_000),
            ("1.5s", BareUnit::Micros, 1_500_000),
            ("1500ms", BareUnit::Seconds, 1_500_000),
            ("2m", BareUnit::Seconds, 120_000_000),
            ("1d", BareUnit::Millis, 86_400_000_000),
        ] {
            assert_eq!(duration(typed, bare), Some(Duration::from_micros(micros)), "{typed}");
        }
        for bad in ["", "s", "-1", "+1", "1e3", ".5", "1.2.3", "1 s", "1w", "inf", "nan", "1.0000000001s"] {
            assert_eq!(duration(bad, BareUnit::Seconds), None, "{bad}");
        }
    }

    #[test]
    fn a_whole_number_has_bounds() {
        let parse = whole(BareUnit::Seconds, 1, 100, "a time is a whole number of seconds");
        assert_eq!((parse("1"), parse("1m"), parse("2000ms")), (Ok(1), Ok(60), Ok(2)));
        for bad in ["0", "101", "2m", "1.5", "1500ms", "soon"] {
            assert!(parse(bad).is_err_and(|why| why.contains("1 to 100")), "{bad}");
        }
        let most = whole(BareUnit::Millis, 0, u64::MAX, "a time");
        assert_eq!(most("18446744073709551615"), Ok(u64::MAX));
    }
}
