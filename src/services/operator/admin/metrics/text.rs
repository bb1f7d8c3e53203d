//! The older text format of Prometheus, 0.0.4, made of OpenMetrics.
//!
//! ```text
//! OpenMetrics                       0.0.4
//! # TYPE x counter                  # TYPE x_total counter
//! # UNIT x_seconds seconds          –
//! # EOF                             –
//! ```
//! Samples are written the same in both. Source: "Exposition formats" of the Prometheus documentation.

use std::collections::HashSet;

/// The text in the older format.
pub(super) fn older(open_metrics: &str) -> String {
    let typed = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
    let counters: HashSet<&str> = typed.collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(name) => {
                text.push_str(&format!("# {kind} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::older;

    #[test]
    fn counters_have_their_suffix_in_all_lines_and_units_and_the_end_are_left_out() {
        let open = "# HELP a_bytes Bytes of a b.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"# EOF\"} 1\n\
                    # HELP b Bs.\n# TYPE b gauge\nb 2\n# EOF\n";
        let old = "# HELP a_bytes_total Bytes of a b.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# EOF\"} 1\n\
                   # HELP b Bs.\n# TYPE b gauge\nb 2\n";
        assert_eq!(older(open), old);
    }
}
