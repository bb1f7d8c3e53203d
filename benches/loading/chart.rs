//! Charts of latencies, as SVG: panels with the same latency axis, and one curve for each side.
//!
//! ```text
//! title                          title
//! 10 ms │            ╭── redis   10 ms │             ╭── redis
//!  1 ms │      ╭─────╯            1 ms │     ╭───────╯
//! 100 µs│──────╯      ── spindle 100 µs│─────╯       ── spindle     names stand at the ends of their curves
//!       50 %  90 %  99 %               50 %  90 %  99 %
//! ```
//! The latency axis is logarithmic and spans all curves of all panels, so that panels can be compared by eye. Curves
//! differ in lightness and in their dashes too, for print and for eyes that do not distinguish the colours. The colours
//! are those of Okabe and Ito, "Color Universal Design", 2008.
//!
//! This module measures nothing, and opens no file.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    ChartBuilder, Color, DashedLineSeries, DrawingArea, IntoDrawingArea, IntoLogRange, LineSeries, PathElement,
    RGBColor, SVGBackend, ShapeStyle, Text, WHITE,
};
use plotters::style::IntoFont;

/// Colours of the curves, from dark to light in turn, and the lengths of dash and gap. No gap: a whole line.
const STYLES: [(RGBColor, i32, i32); 6] = [
    (RGBColor(0, 114, 178), 1, 0),
    (RGBColor(213, 94, 0), 9, 4),
    (RGBColor(0, 0, 0), 2, 3),
    (RGBColor(0, 158, 115), 14, 5),
    (RGBColor(204, 121, 167), 5, 2),
    (RGBColor(230, 159, 0), 1, 0),
];
/// Width of a panel, its height, and the room at its right for the names, in points.
const PANEL: (u32, u32) = (620, 420);
const NAMES_WIDTH: u32 = 150;
/// Height of a name.
const NAME_HEIGHT: i32 = 15;
/// The end of a percentile axis, in nines: 99.999 %.
const NINES_MAX: f64 = 5.0;

/// The horizontal axis of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HorizontalAxis {
    /// Percentiles as nines: 1 is 90 %, 2 is 99 %. See [`nines`].
    Percentile,
    /// Seconds from the beginning.
    Seconds,
}

/// One side of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// Its name, which stands at its end.
    pub(crate) name: String,
    /// Places on the horizontal axis, and latencies in nanoseconds.
    pub(crate) points: Vec<(f64, f64)>,
    /// The number of its style. Curves of one side have the same number in all panels.
    pub(crate) style: usize,
    /// Width of the line, in points.
    pub(crate) width: u32,
}

/// One set of axes.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// The heading.
    pub(crate) title: String,
    /// The horizontal axis.
    pub(crate) axis: HorizontalAxis,
    /// The curves.
    pub(crate) curves: Vec<Curve>,
}

/// A failure of the drawing library.
pub(crate) type ChartError = Box<dyn std::error::Error>;

/// The place of a percentile on its axis: 90 is 1, 99 is 2, 99.9 is 3.
#[allow(dead_code, reason = "for the bench `compare`, which has percentiles and no histogram")]
pub(crate) fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

/// A time in nanoseconds for people, with at most three digits: `850 ns`, `10 ms`, `1.5 s`.
pub(crate) fn human_nanos(nanos: f64) -> String {
    let (amount, unit) = match nanos {
        ..1e3 => (nanos, "ns"),
        ..1e6 => (nanos / 1e3, "µs"),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = if amount < 9.95 { 1 } else { 0 };
    let text = format!("{amount:.digits$}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Draws the panels beside and below each other, `columns` in a row. Returns the text of the SVG.
///
/// # Errors
/// The failure of the drawing library.
pub(crate) fn draw(panels: &[Panel], columns: usize) -> Result<String, ChartError> {
    let columns = columns.clamp(1, panels.len().max(1));
    let rows = panels.len().div_ceil(columns);
    let size = |panels: usize, points: u32| u32::try_from(panels).unwrap_or(u32::MAX).saturating_mul(points);
    let mut text = String::new();
    {
        let area =
            SVGBackend::with_string(&mut text, (size(columns, PANEL.0), size(rows, PANEL.1))).into_drawing_area();
        area.fill(&WHITE)?;
        let range = latencies(panels);
        for (panel, area) in panels.iter().zip(area.split_evenly((rows, columns))) {
            paint(&area, panel, range.clone())?;
        }
        area.present()?;
    }
    Ok(text)
}

/// The span of all latencies, with some room.
fn latencies(panels: &[Panel]) -> Range<f64> {
    let all = || panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points).map(|(_, y)| *y);
    let highest = all().fold(1_000.0, f64::max);
    let lowest = all().fold(highest, f64::min).max(1.0);
    lowest / 1.3..highest * 1.3
}

/// A percentile axis with its usual marks, or one of seconds.
struct Places {
    range: Range<f64>,
    axis: HorizontalAxis,
}

/// Marks of a percentile axis.
const PERCENTILES: [(f64, &str); 6] = [
    (std::f64::consts::LOG10_2, "50 %"),
    (1.0, "90 %"),
    (2.0, "99 %"),
    (3.0, "99.9 %"),
    (4.0, "99.99 %"),
    (5.0, "99.999 %"),
];

impl Places {
    fn of(panel: &Panel) -> Self {
        let last = panel.curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x).fold(0.0, f64::max);
        let end = match panel.axis {
            // Logarithms of round percentiles are not round.
            HorizontalAxis::Percentile => (last - 1e-9).ceil().clamp(1.0, NINES_MAX),
            HorizontalAxis::Seconds => last.max(1.0),
        };
        Self { range: 0.0..end, axis: panel.axis }
    }
}

impl Ranged for Places {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.axis {
            HorizontalAxis::Percentile => {
                PERCENTILES.iter().map(|(nines, _)| *nines).filter(|nines| *nines <= self.range.end).collect()
            }
            HorizontalAxis::Seconds => RangedCoordf64::from(self.range.clone()).key_points(hint.max_num_points()),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Places {
    fn format_ext(&self, value: &f64) -> String {
        let mark = PERCENTILES.iter().find(|(nines, _)| (nines - value).abs() < 1e-9);
        match (self.axis, mark) {
            (HorizontalAxis::Percentile, Some((_, name))) => (*name).to_owned(),
            _ => format!("{value}"),
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn paint(area: &Area<'_>, panel: &Panel, range: Range<f64>) -> Result<(), ChartError> {
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 20))
        .margin(12)
        .margin_right(NAMES_WIDTH)
        .x_label_area_size(42)
        .y_label_area_size(72)
        .build_cartesian_2d(Places::of(panel), range.log_scale())?;
    let description = match panel.axis {
        HorizontalAxis::Percentile => "percentile",
        HorizontalAxis::Seconds => "seconds",
    };
    let faint = RGBColor(225, 225, 225);
    chart
        .configure_mesh()
        .x_desc(description)
        .y_desc("latency")
        .y_labels(8)
        .y_label_formatter(&|nanos| human_nanos(*nanos))
        .bold_line_style(faint)
        .light_line_style(WHITE)
        .label_style(("sans-serif", 16))
        .draw()?;
    let mut ends = Vec::new();
    for curve in &panel.curves {
        let (color, dash, gap) = STYLES.get(curve.style % STYLES.len()).copied().unwrap_or((RGBColor(0, 0, 0), 1, 0));
        let style = ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: curve.width };
        let points = || curve.points.iter().copied();
        if gap == 0 {
            chart.draw_series(LineSeries::new(points(), style))?;
        } else {
            chart.draw_series(DashedLineSeries::new(points(), dash, gap, style))?;
        }
        if let Some(last) = curve.points.last() {
            ends.push((chart.backend_coord(last), curve, color));
        }
    }
    let (left, top) = area.get_base_pixel();
    let ends: Vec<_> = ends.into_iter().map(|((x, y), curve, color)| ((x - left, y - top), curve, color)).collect();
    name_curves(area, ends)
}

/// Writes the names beside the ends of their curves, moved apart where they would meet.
fn name_curves(area: &Area<'_>, mut ends: Vec<((i32, i32), &Curve, RGBColor)>) -> Result<(), ChartError> {
    ends.sort_by_key(|((_, y), ..)| *y);
    let mut heights: Vec<i32> = ends.iter().map(|((_, y), ..)| *y).collect();
    spread(&mut heights, i32::try_from(PANEL.1).unwrap_or(i32::MAX) - 3 * NAME_HEIGHT);
    let column = i32::try_from(PANEL.0 - NAMES_WIDTH).unwrap_or(i32::MAX) + 14;
    for (((x, y), curve, color), height) in ends.into_iter().zip(heights) {
        area.draw(&PathElement::new([(x + 2, y), (column - 4, height)], color.mix(0.5).stroke_width(1)))?;
        let font = ("sans-serif", 16).into_font().color(&color);
        area.draw(&Text::new(curve.name.clone(), (column, height - NAME_HEIGHT / 2), font))?;
    }
    Ok(())
}

/// Moves heights, sorted from the top, apart until each has the room of a name, and the last is not below `bottom`.
fn spread(heights: &mut [i32], bottom: i32) {
    let mut least = NAME_HEIGHT;
    for height in &mut *heights {
        *height = (*height).max(least);
        least = *height + NAME_HEIGHT;
    }
    let mut most = bottom;
    for height in heights.iter_mut().rev() {
        *height = (*height).min(most);
        most = *height - NAME_HEIGHT;
    }
}

#[cfg(test)]
#[allow(dead_code, unused_imports, reason = "a bench has no harness: `tests/it` runs these tests")]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_for_people() {
        for (nanos, text) in [
            (0.0, "0 ns"),
            (850.0, "850 ns"),
            (1_000.0, "1 µs"),
            (1_500.0, "1.5 µs"),
            (10_000_000.0, "10 ms"),
            (99_600.0, "100 µs"),
            (1_500_000_000.0, "1.5 s"),
            (120_000_000_000.0, "120 s"),
        ] {
            assert_eq!(human_nanos(nanos), text);
        }
    }

    #[test]
    fn percentiles_are_nines() {
        for (percentile, expected) in [(0.0, 0.0), (90.0, 1.0), (99.0, 2.0), (99.9, 3.0)] {
            assert!((nines(percentile) - expected).abs() < 1e-9, "{percentile}");
        }
    }

    #[test]
    fn names_are_moved_apart_and_stay_within_the_panel() {
        let spread_to = |heights: &[i32]| {
            let mut heights = heights.to_vec();
            spread(&mut heights, 100);
            heights
        };
        assert_eq!(spread_to(&[50, 50, 50]), [50, 65, 80]);
        assert_eq!(spread_to(&[-5, 95, 99]), [15, 85, 100]);
        assert_eq!(spread_to(&[30, 70]), [30, 70]);
    }

    fn panel(title: &str, axis: HorizontalAxis, names: &[&str], scale: f64) -> Panel {
        let curve = |(style, name): (usize, &&str)| Curve {
            name: (*name).to_owned(),
            points: [50.0, 90.0, 99.0, 99.9].map(|at| (nines(at), scale * (1.0 + at) * 1_000.0)).to_vec(),
            style,
            width: 2,
        };
        Panel { title: title.to_owned(), axis, curves: names.iter().enumerate().map(curve).collect() }
    }

    #[test]
    fn every_panel_has_its_title_its_names_and_the_same_latency_axis() {
        let panels = [
            panel("slow", HorizontalAxis::Percentile, &["spindle", "redis"], 100.0),
            panel("fast", HorizontalAxis::Percentile, &["spindle", "redis"], 1.0),
        ];
        let svg = draw(&panels, 2).unwrap();
        let texts = |what: &str| svg.lines().filter(|line| line.trim() == what).count();
        assert_eq!((texts("slow"), texts("fast"), texts("spindle"), texts("redis")), (1, 1, 2, 2), "{svg}");
        assert_eq!((texts("99.9 %"), texts("50 %"), texts("99.99 %")), (2, 2, 0), "{svg}");
        assert_eq!(texts("100 µs"), 2, "both axes span all curves: {svg}");
        assert!(svg.contains("1240"), "two panels stand side by side");
    }

    #[test]
    fn what_was_not_measured_is_an_empty_panel() {
        for axis in [HorizontalAxis::Percentile, HorizontalAxis::Seconds] {
            let svg = draw(&[panel("nothing", axis, &[], 1.0)], 1).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("nothing"));
        }
        let curve = Curve { name: "empty".to_owned(), points: Vec::new(), style: 0, width: 1 };
        let panel = Panel { title: "t".to_owned(), axis: HorizontalAxis::Seconds, curves: vec![curve] };
        assert!(draw(&[panel], 3).is_ok());
    }
}
