//! Places for what `spindle top` shows. A number is never cut: where a column has no room, it is left out as a whole.
//! Only names are cut, and end with an ellipsis then. This module knows nothing of a server.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

/// Columns of a name at least, unless all names are shorter.
const NAME_WIDTH_MIN: u16 = 8;
/// Columns between two columns.
const SPACING: u16 = 1;

/// A column of a table.
pub(super) struct Column {
    title: &'static str,
    /// Columns with the highest rank are left out first.
    rank: u8,
    is_name: bool,
    cells: Vec<String>,
}

impl Column {
    /// Names, at the left of their column.
    pub(super) fn name(title: &'static str, rank: u8, cells: impl Iterator<Item = String>) -> Self {
        Self { title, rank, is_name: true, cells: cells.collect() }
    }

    /// Numbers, at the right of their column.
    pub(super) fn number(title: &'static str, rank: u8, cells: impl Iterator<Item = String>) -> Self {
        Self { title, rank, is_name: false, cells: cells.collect() }
    }

    /// The width of its longest cell or title.
    fn width(&self) -> u16 {
        self.cells.iter().map(|cell| width(cell)).chain([width(self.title)]).max().unwrap_or(0)
    }

    /// The width below which it has no use.
    fn width_min(&self) -> u16 {
        if self.is_name { self.width().min(NAME_WIDTH_MIN) } else { self.width() }
    }

    fn line(&self, text: &str, columns: u16) -> Line<'static> {
        if self.is_name { Line::from(cut(text, columns)) } else { Line::from(text.to_owned()).right_aligned() }
    }
}

fn width(text: &str) -> u16 {
    u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX)
}

/// The text, or as much of it as fits in front of an ellipsis.
fn cut(text: &str, columns: u16) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        cut.push(letter);
        if width(&cut) >= columns {
            cut.pop();
            break;
        }
    }
    cut + "…"
}

/// Leaves out columns until the others fit, and gives each its width. Names share what numbers leave.
fn fit(mut columns: Vec<Column>, room: u16) -> Vec<(Column, u16)> {
    let gaps = |columns: &[Column]| columns.iter().skip(1).map(|_| SPACING).sum::<u16>();
    let least = |columns: &[Column]| columns.iter().map(Column::width_min).sum::<u16>() + gaps(columns);
    while columns.len() > 1 && least(&columns) > room {
        let last = (0..columns.len()).max_by_key(|&place| columns.get(place).map(|column| column.rank)).unwrap_or(0);
        columns.remove(last);
    }
    let mut left = room.saturating_sub(least(&columns));
    let fitted = columns.into_iter().map(|column| {
        let more = left.min(column.width() - column.width_min());
        left -= more;
        let columns = column.width_min() + more;
        (column, columns)
    });
    fitted.collect()
}

/// Draws a table, or what it says without a row.
pub(super) fn table(frame: &mut Frame<'_>, place: Rect, columns: Vec<Column>, empty: &str) {
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    if rows == 0 {
        return frame.render_widget(Paragraph::new(empty), place);
    }
    let fitted = fit(columns, place.width);
    // Of a single column that is wider than its place nothing is shown.
    let fitted: Vec<_> = fitted.into_iter().filter(|(_, columns)| *columns <= place.width).collect();
    let row = |number: usize| {
        let cell = |(column, columns): &(Column, u16)| {
            column.cells.get(number).map(|text| column.line(text, *columns)).unwrap_or_default()
        };
        Row::new(fitted.iter().map(cell))
    };
    let head = Row::new(fitted.iter().map(|(column, columns)| column.line(column.title, *columns))).style(bold());
    let widths = fitted.iter().map(|(_, columns)| Constraint::Length(*columns));
    let table = Table::new((0..rows).map(row), widths).header(head).column_spacing(SPACING);
    frame.render_widget(table, place);
}

/// Joins items to lines that are not wider than this. An item that is wider has a line of its own.
pub(super) fn flow(items: &[String], gap: &str, columns: u16) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if width(line) + width(gap) + width(item) <= columns => line.extend([gap, item]),
            _ => lines.push(item.clone()),
        }
    }
    lines
}

/// Shares the lines among parts that want so many. Each part gets what it wants, or as much as any other.
pub(super) fn fair_lines(lines: u16, wanted: &[u16]) -> Vec<u16> {
    let mut given = vec![0; wanted.len()];
    for _ in 0..lines {
        let short = given.iter_mut().zip(wanted).filter(|(given, wanted)| **given < **wanted);
        let Some((least, _)) = short.min_by_key(|(given, _)| **given) else { break };
        *least += 1;
    }
    given
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(room: u16) -> Vec<(&'static str, u16)> {
        let columns = vec![
            Column::name("verb", 0, ["COMPARE_AND_SWAP".to_owned()].into_iter()),
            Column::number("p50", 2, ["74.8 µs".to_owned()].into_iter()),
            Column::number("p99", 1, ["1.25 ms".to_owned()].into_iter()),
        ];
        fit(columns, room).into_iter().map(|(column, columns)| (column.title, columns)).collect()
    }

    #[test]
    fn a_number_has_its_width_or_is_left_out_and_a_name_is_cut() {
        assert_eq!(titles(100), [("verb", 16), ("p50", 7), ("p99", 7)]);
        assert_eq!(titles(30), [("verb", 14), ("p50", 7), ("p99", 7)]);
        assert_eq!(titles(23), [("verb", 15), ("p99", 7)]);
        assert_eq!(titles(15), [("verb", 15)]);
        assert_eq!(cut("COMPARE_AND_SWAP", 14), "COMPARE_AND_S…");
        assert_eq!((cut("GET", 3), cut("GET", 2)), ("GET".to_owned(), "G…".to_owned()));
    }

    #[test]
    fn lines_are_shared_and_items_stand_whole_in_a_line() {
        assert_eq!(fair_lines(20, &[9, 3, 12]), [9, 3, 8]);
        assert_eq!(fair_lines(40, &[9, 3, 12]), [9, 3, 12]);
        assert_eq!(fair_lines(0, &[9]), [0]);
        let items = ["up 3 s", "74.8 requests/s", "memory"].map(str::to_owned);
        assert_eq!(flow(&items, "  ", 24), ["up 3 s  74.8 requests/s", "memory"]);
        assert_eq!(flow(&items, "  ", 4).len(), 3);
    }
}
