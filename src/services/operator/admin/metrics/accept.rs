//! The header `Accept`: types with their weights. This module does not choose the format.
//!
//! Source: RFC 9110, "HTTP Semantics", sections 12.4.2 and 12.5.1.

/// The weight of a type or range, from 0 (not acceptable) to 1. `None`: the client does not name it. A range names none
/// of its types. If a type stands there more than once, as with several versions, its largest weight counts.
pub(super) fn quality(accept: &str, wanted: &str) -> Option<f64> {
    let weights = accept.split(',').filter_map(|element| {
        let mut parts = element.split(';').map(str::trim);
        parts.next().filter(|named| named.eq_ignore_ascii_case(wanted)).map(|_| weight(parts))
    });
    weights.reduce(f64::max)
}

/// The weight among the parameters of a type. A type without a weight has 1, and a weight outside 0 to 1 counts as 0.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a str>) -> f64 {
    let weight = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let valid = |value: &str| value.parse().ok().filter(|weight| (0.0..=1.0).contains(weight));
    weight.map_or(1.0, |value| valid(value).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::quality;

    #[test]
    fn a_type_has_its_largest_weight_and_a_range_names_no_type() {
        let of = |accept| quality(accept, "text/plain");
        assert_eq!(of("text/plain"), Some(1.0));
        assert_eq!(of("a/b;q=0.9, Text/Plain ; version=0.0.4 ; Q=0.25"), Some(0.25));
        assert_eq!(of("text/plain;version=1;q=0.5,text/plain;version=2;q=0.75"), Some(0.75));
        assert_eq!(of("text/plain;q=0"), Some(0.0));
        for wrong in ["text/plain;q=", "text/plain;q=x", "text/plain;q=2", "text/plain;q=-1", "text/plain;q=NaN"] {
            assert_eq!(of(wrong), Some(0.0), "{wrong}");
        }
        for other in ["", "*/*", "text/*", "text/plainer", "x-text/plain;q=1"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
