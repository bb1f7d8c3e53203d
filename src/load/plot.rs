//! The plot, one SVG: the percentiles of each phase, and below them the latency over time.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoLogRange, LineSeries, Palette, Palette99,
    PathElement, SVGBackend, SeriesLabelPosition, WHITE,
};

use super::record::{LatencyHistogram, Second};
use super::{Error, Plan};

const SIZE: (u32, u32) = (1_000, 900);
/// The end of the percentile axis, in nines: 99.999 %.
const NINES_MAX: f64 = 5.0;
/// Points of the percentile curve.
const POINTS: u32 = 250;

/// The measurements of a phase that are drawn.
pub(super) struct PlottedPhase {
    pub(super) rate: Option<f64>,
    pub(super) seconds: Vec<Second>,
    pub(super) latencies: LatencyHistogram,
}

impl PlottedPhase {
    fn name(&self, plan: &Plan) -> String {
        self.rate.map_or_else(|| format!("depth {}", plan.depth), |rate| format!("{rate}/s"))
    }

    /// Nines and microseconds, as far as the number of replies reaches.
    fn percentiles(&self) -> Vec<(f64, f64)> {
        #[expect(clippy::cast_precision_loss, reason = "a logarithm for the eye")]
        let most = (self.latencies.len().max(1) as f64).log10().min(NINES_MAX);
        let nines = (0..=POINTS).map(|point| most * f64::from(point) / f64::from(POINTS));
        nines.map(|nines| (nines, micros(self.latencies.value_at_quantile(1.0 - 10_f64.powf(-nines))))).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a length for the eye")]
fn micros(nanos: u64) -> f64 {
    (nanos as f64 / 1_000.0).max(0.1)
}

/// Draws the phases into a file.
///
/// # Errors
/// [`Error::File`].
pub(super) fn draw(path: &Path, plan: &Plan, courses: &[PlottedPhase]) -> Result<(), Error> {
    let failed = |why: String| Error::File { path: path.display().to_string(), why };
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        paint(&area, plan, courses).map_err(|error| failed(error.to_string()))?;
    }
    std::fs::write(path, text).map_err(|error| failed(error.to_string()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type PlotResult = Result<(), Box<dyn std::error::Error>>;

fn paint(area: &Area<'_>, plan: &Plan, courses: &[PlottedPhase]) -> PlotResult {
    area.fill(&WHITE)?;
    let (upper, lower) = area.split_vertically(SIZE.1 / 2);
    let highest = courses.iter().map(|course| micros(course.latencies.max())).fold(1.0, f64::max) * 1.2;
    let lowest = courses.iter().map(|course| micros(course.latencies.min())).fold(highest, f64::min) / 1.2;
    paint_percentiles(&upper, plan, courses, lowest..highest)?;
    paint_time(&lower, plan, courses, lowest..highest)?;
    area.present()?;
    Ok(())
}

fn paint_percentiles(
    area: &Area<'_>,
    plan: &Plan,
    courses: &[PlottedPhase],
    range: std::ops::Range<f64>,
) -> PlotResult {
    let mut chart = ChartBuilder::on(area)
        .caption(format!("latency of {} by percentile", plan.work.mix), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..NINES_MAX, range.log_scale())?;
    let percent = |nines: &f64| format!("{:.3} %", 100.0 * (1.0 - 10_f64.powf(-nines)));
    chart.configure_mesh().x_labels(6).x_desc("percentile").y_desc("µs").x_label_formatter(&percent).draw()?;
    for (number, course) in courses.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let series = chart.draw_series(LineSeries::new(course.percentiles(), color.stroke_width(2)))?;
        series.label(course.name(plan)).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    Ok(())
}

fn paint_time(area: &Area<'_>, plan: &Plan, courses: &[PlottedPhase], range: std::ops::Range<f64>) -> PlotResult {
    let last = courses.iter().filter_map(|course| course.seconds.last()).map(|second| second.at).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("p50 (thin), p99 (thick) of each second", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..last, range.log_scale())?;
    chart.configure_mesh().x_desc("seconds").y_desc("µs").draw()?;
    for (number, course) in courses.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let points = |of: fn(&Second) -> u64| course.seconds.iter().map(move |second| (second.at, micros(of(second))));
        chart.draw_series(LineSeries::new(points(|second| second.p50), color.stroke_width(1)))?;
        let series = chart.draw_series(LineSeries::new(points(|second| second.p99), color.stroke_width(3)))?;
        series.label(course.name(plan)).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    Ok(())
}
