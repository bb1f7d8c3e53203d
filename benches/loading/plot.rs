//! The plot of a run, an SVG or a PNG: the percentiles of each phase, and below them the latency over time.

use std::fs::{File, remove_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use spindle::load::{LatencyHistogram, PhaseReport, Plan, Second};

use super::chart::{Curve, HorizontalAxis, Panel, draw as draw_chart};

/// The end of the percentile curve, in nines: 99.999 %.
const NINES_MAX: f64 = 5.0;
/// Points of the percentile curve.
const POINTS: u32 = 250;
/// Width of a curve, and of the p50 beside its p99, in points.
const WIDTH: u32 = 2;
const WIDTH_OF_P50: u32 = 1;
/// The program that makes a PNG of an SVG.
const CONVERTER: &str = "rsvg-convert";

/// Checks that a plot can be written, and leaves the place as it is.
///
/// # Errors
/// The mistake in the path.
pub(super) fn file(typed: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(typed);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => {}
        Some("png") if Command::new(CONVERTER).arg("--version").output().is_ok() => {}
        Some("png") => {
            return Err(format!("a PNG needs {CONVERTER} (Debian: librsvg2-bin): install it, or name it FILE.svg"));
        }
        _ => return Err("a plot is an SVG or a PNG: name it FILE.svg or FILE.png".to_owned()),
    }
    let is_new = !path.exists();
    File::options().append(true).create(true).open(&path).map_err(|error| format!("cannot write it: {error}"))?;
    if is_new {
        remove_file(&path).map_err(|error| format!("cannot write it: {error}"))?;
    }
    Ok(path)
}

/// The name of a phase.
fn name(plan: &Plan, phase: &PhaseReport) -> String {
    phase.asked.map_or_else(|| format!("depth {}", plan.depth), human_rate)
}

/// Nines and nanoseconds, as far as the number of replies reaches.
fn percentiles(latencies: &LatencyHistogram) -> Vec<(f64, f64)> {
    #[allow(clippy::cast_precision_loss, reason = "a logarithm for the eye")]
    let most = (latencies.len().max(1) as f64).log10().min(NINES_MAX);
    let nines = (0..=POINTS).map(|point| most * f64::from(point) / f64::from(POINTS));
    nines.map(|nines| (nines, length(latencies.value_at_quantile(1.0 - 10_f64.powf(-nines))))).collect()
}

/// Seconds and nanoseconds.
fn course(phase: &PhaseReport, of: fn(&Second) -> u64) -> Vec<(f64, f64)> {
    phase.course.iter().map(|second| (second.at, length(of(second)))).collect()
}

#[allow(clippy::cast_precision_loss, reason = "a length for the eye")]
fn length(nanos: u64) -> f64 {
    nanos.max(1) as f64
}

/// A rate for people: `800/s`, `10k/s`, `1.5M/s`.
fn human_rate(rate: f64) -> String {
    match rate {
        ..1e3 => format!("{rate}/s"),
        ..1e6 => format!("{}k/s", rate / 1e3),
        _ => format!("{}M/s", rate / 1e6),
    }
}

/// Draws the phases into a file.
///
/// # Errors
/// The file cannot be written.
pub(super) fn draw(path: &Path, plan: &Plan, phases: &[PhaseReport]) -> Result<(), String> {
    let failed = |why: String| format!("cannot write {}: {why}", path.display());
    let text = draw_chart(&panels(plan, phases), 1).map_err(|error| failed(error.to_string()))?;
    if path.extension().is_some_and(|extension| extension == "png") {
        return convert(path, &text).map_err(failed);
    }
    std::fs::write(path, text).map_err(|error| failed(error.to_string()))
}

/// Makes a PNG of an SVG.
fn convert(path: &Path, svg: &str) -> Result<(), String> {
    let mut converter = Command::new(CONVERTER);
    converter.arg("--output").arg(path).stdin(Stdio::piped());
    let mut child = converter.spawn().map_err(|error| error.to_string())?;
    // A converter that has failed reads no more, and its status says so.
    let _unread = child.stdin.take().map(|mut input| input.write_all(svg.as_bytes()));
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{CONVERTER} ends with {status}")) }
}

fn panels(plan: &Plan, phases: &[PhaseReport]) -> [Panel; 2] {
    let numbered = || phases.iter().enumerate();
    let percentiles = numbered().map(|(style, phase)| Curve {
        name: name(plan, phase),
        points: percentiles(&phase.latencies),
        style,
        width: WIDTH,
    });
    let course = numbered().flat_map(|(style, phase)| {
        let curve = |percentile: &str, of, width| Curve {
            name: format!("{} {percentile}", name(plan, phase)),
            points: course(phase, of),
            style,
            width,
        };
        [curve("p50", |second| second.p50, WIDTH_OF_P50), curve("p99", |second| second.p99, WIDTH)]
    });
    [
        Panel {
            title: format!("latency of {} by percentile", plan.work.mix),
            axis: HorizontalAxis::Percentile,
            curves: percentiles.collect(),
        },
        Panel {
            title: "latency of each second: p50 thin, p99 thick".to_owned(),
            axis: HorizontalAxis::Seconds,
            curves: course.collect(),
        },
    ]
}

#[cfg(test)]
#[allow(dead_code, unused_imports, reason = "a bench has no harness: `tests/it` runs these tests")]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_for_people() {
        assert_eq!([800.0, 10_000.0, 2_500.0, 1_500_000.0].map(human_rate), ["800/s", "10k/s", "2.5k/s", "1.5M/s"]);
    }
}
