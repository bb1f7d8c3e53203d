//! Numbers of a report for people: few digits, and units that fit. An unknown number is a dash.

use serde_json::Value;

/// Shown in place of a missing number.
pub(super) const NONE: &str = "–";
/// Seconds in an hour.
const HOUR: u64 = 3_600;
/// Seconds in a day.
const DAY: u64 = 24 * HOUR;

/// A time in microseconds.
pub(super) fn micros(value: Option<&Value>) -> String {
    let Some(value) = value.and_then(Value::as_f64) else { return NONE.to_owned() };
    scaled(value, 1_000.0, &["µs", "ms", "s"])
}

/// A number of bytes.
pub(super) fn bytes(value: Option<&Value>) -> String {
    let Some(value) = value.and_then(Value::as_f64) else { return NONE.to_owned() };
    if value < 1_024.0 { format!("{value} B") } else { binary(value) }
}

fn binary(mut value: f64) -> String {
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1_023.95 {
            break;
        }
        (value, unit) = (value / 1_024.0, next);
    }
    format!("{value:.1} {unit}")
}

/// A count.
pub(super) fn count(value: u64) -> String {
    if value < 10_000 { value.to_string() } else { scaled(value as f64, 1_000.0, &["", "k", "M", "G", "T"]) }
}

/// A count of things, of which one is named.
pub(super) fn counted(value: u64, thing: &str) -> String {
    if value == 1 { format!("1 {thing}") } else { format!("{} {thing}s", count(value)) }
}

/// Events in a second.
pub(super) fn rate(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) if value > 0.0 && value < 10.0 => format!("{value:.1}"),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is a small positive number"
        )]
        Some(value) => count(value.round() as u64),
    }
}

/// An age or an uptime in seconds.
pub(super) fn seconds(value: Option<&Value>) -> String {
    let Some(value) = value.and_then(Value::as_f64) else { return NONE.to_owned() };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age is a small positive number")]
    let whole = value as u64;
    match whole {
        0..10 => format!("{value:.1} s"),
        10..60 => format!("{whole} s"),
        60..HOUR => format!("{} min {} s", whole / 60, whole % 60),
        HOUR..DAY => format!("{} h {} min", whole / HOUR, whole % HOUR / 60),
        _ => format!("{} d {} h", whole / DAY, whole % DAY / HOUR),
    }
}

/// The time of day, in UTC, of so many milliseconds since 1970.
pub(super) fn clock_time(unix_millis: u64) -> String {
    let seconds = unix_millis / 1_000 % DAY;
    format!("{:02}:{:02}:{:02} UTC", seconds / HOUR, seconds % HOUR / 60, seconds % 60)
}

/// A number in the largest unit of which it is at least one, with about three digits. Each unit has `base` of the one
/// before.
fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let (mut unit, mut rest) = units.split_first().map_or(("", units), |(first, rest)| (*first, rest));
    while value >= base * 0.9995
        && let Some((next, others)) = rest.split_first()
    {
        (value, unit, rest) = (value / base, next, others);
    }
    let space = if unit.is_empty() { "" } else { " " };
    match value {
        0.0 => format!("0{space}{unit}"),
        value if value < 10.0 => format!("{value:.2}{space}{unit}"),
        value if value < 100.0 => format!("{value:.1}{space}{unit}"),
        value => format!("{value:.0}{space}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_have_few_digits_and_a_unit_that_fits() {
        let time = |value: f64| micros(Some(&json!(value)));
        assert_eq!(
            [0.0, 0.5, 12.34, 999.4, 999.9, 2_500_000.0].map(time),
            ["0 µs", "0.50 µs", "12.3 µs", "999 µs", "1.00 ms", "2.50 s"]
        );
        let size = |value: u64| bytes(Some(&json!(value)));
        assert_eq!([0, 1_023, 1_024, 1_048_575, 5 << 30].map(size), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "5.0 GiB"]);
        assert_eq!([0, 9_999, 10_000, 1_234_567].map(count), ["0", "9999", "10.0 k", "1.23 M"]);
        assert_eq!([0, 1, 12_345].map(|value| counted(value, "table")), ["0 tables", "1 table", "12.3 k tables"]);
        assert_eq!([None, Some(0.0), Some(0.25), Some(12_345.6)].map(rate), ["–", "0", "0.2", "12.3 k"]);
        let age = |value: f64| seconds(Some(&json!(value)));
        assert_eq!(
            [1.25, 59.9, 61.0, 3_700.0, 90_000.0].map(age),
            ["1.2 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]
        );
        assert_eq!(micros(Some(&Value::Null)), NONE);
        assert_eq!(clock_time(86_399_000), "23:59:59 UTC");
    }
}
