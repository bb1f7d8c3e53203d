//! A frame of `spindle top`: the head, the verbs, tables beside queues, and slow requests. This module asks no server.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table};
use serde_json::Value;

use super::model::{Model, list, number, whole, word};
use crate::cli::figures::{bytes, clock_time, count, counted, micros, rate, seconds};
use crate::cli::flags::operand::shown;

/// Lines of the head, with an empty one.
const HEAD_LINES: u16 = 4;
/// Lines of the tables and queues, with their titles and an empty one.
const MIDDLE_LINES: u16 = 12;
/// Lines of the slow requests, with their titles.
const SLOW_LINES: u16 = 12;
/// The keys.
const HELP: &str = "s      sort by rate, count, p99 or name\n?      show or hide the keys\nq      quit";

/// Draws a frame.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let parts = [Constraint::Length(HEAD_LINES), Constraint::Min(4), Constraint::Length(MIDDLE_LINES)];
    let [head, verbs, middle, slow] =
        Layout::vertical([parts[0], parts[1], parts[2], Constraint::Length(SLOW_LINES)]).areas(frame.area());
    draw_head(frame, head, model);
    draw_verbs(frame, verbs, model);
    let [tables, queues] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(middle);
    draw_tables(frame, tables, &model.stats);
    draw_queues(frame, queues, &model.stats);
    draw_slow(frame, slow, &model.slow);
    if model.is_help {
        let place = frame.area().intersection(Rect::new(0, HEAD_LINES, 60, 4));
        frame.render_widget(Clear, place);
        frame.render_widget(Paragraph::new(HELP), place);
    }
}

fn draw_head(frame: &mut Frame<'_>, place: Rect, model: &Model) {
    let stats = &model.stats;
    let memory = stats.get("memory").unwrap_or(&Value::Null);
    let elements = list(stats, "tables").iter().map(|table| whole(table, "elements")).sum();
    let timers = stats.get("expiry").map_or(0, |expiry| whole(expiry, "pending"));
    let connections = stats.get("clients").map_or(0, |clients| whole(clients, "known"))
        + stats.get("lockstep").map_or(0, |lockstep| whole(lockstep, "connections"))
        + list(stats, "services").iter().map(|service| whole(service, "connections")).sum::<u64>();
    let state = model.missed.as_deref().unwrap_or("live");
    let lines = vec![
        Line::styled(format!("Spindle {}  {}  {state}", word(stats, "version"), model.address), bold()),
        Line::from(format!(
            "up {}   {} requests/s   memory {} of {}   resident {}",
            seconds(stats.get("uptime_seconds")),
            rate(model.rate),
            bytes(memory.get("tables_bytes")),
            bytes(memory.get("tables_bytes_max")),
            bytes(memory.get("resident_bytes")),
        )),
        Line::from(format!(
            "{} in {}   {}   {}   s: sorted by {}   ?: help   q: quit",
            counted(elements, "element"),
            counted(list(stats, "tables").len() as u64, "table"),
            counted(timers, "timer"),
            counted(connections, "connection"),
            model.sort.name(),
        )),
    ];
    frame.render_widget(Paragraph::new(lines), place);
}

fn draw_verbs(frame: &mut Frame<'_>, place: Rect, model: &Model) {
    let rows = model.verbs.iter().map(|row| {
        let figures =
            [rate(row.rate), count(row.requests), count(row.refused), micros(Some(&row.p50)), micros(Some(&row.p99))];
        row_of([row.protocol.clone(), row.verb.clone()], figures)
    });
    let titles = titles(["protocol", "verb"], ["a second", "in all", "refused", "p50", "p99"]);
    let widths = [12, 20, 10, 10, 10, 10, 10].map(Constraint::Length);
    table(frame, place, titles, rows.collect(), &widths, "No request has come since the start.");
}

fn draw_tables(frame: &mut Frame<'_>, place: Rect, stats: &Value) {
    let mut tables: Vec<&Value> = list(stats, "tables").iter().collect();
    tables.sort_by(|one, other| number(other, "bytes").total_cmp(&number(one, "bytes")));
    let rows = tables.into_iter().take(usize::from(MIDDLE_LINES)).map(|table| {
        row_of([shown(word(table, "name").as_bytes())], [count(whole(table, "elements")), bytes(table.get("bytes"))])
    });
    let widths = [Constraint::Fill(1), Constraint::Length(10), Constraint::Length(10)];
    let titles = titles(["table"], ["elements", "memory"]);
    table(frame, place, titles, rows.collect(), &widths, "There is no table.");
}

fn draw_queues(frame: &mut Frame<'_>, place: Rect, stats: &Value) {
    let queues = stats.get("tasks").map_or(&[][..], |tasks| list(tasks, "queues"));
    let rows = queues.iter().take(usize::from(MIDDLE_LINES)).map(|queue| {
        let age = seconds(queue.get("oldest_ready_seconds"));
        let figures = [count(whole(queue, "ready")), count(whole(queue, "leased")), age];
        row_of([shown(word(queue, "name").as_bytes())], figures)
    });
    let widths = [Constraint::Fill(1), Constraint::Length(8), Constraint::Length(8), Constraint::Length(12)];
    let titles = titles(["queue"], ["ready", "lent", "oldest"]);
    table(frame, place, titles, rows.collect(), &widths, "There is no queue.");
}

fn draw_slow(frame: &mut Frame<'_>, place: Rect, slow: &Value) {
    let rows = list(slow, "requests").iter().take(usize::from(SLOW_LINES)).map(|request| {
        let of = |name| micros(request.get(name));
        let words = [
            clock_time(whole(request, "unix_millis")),
            of("micros"),
            of("queue_micros"),
            of("execution_micros"),
            of("write_micros"),
            format!("{} {}", word(request, "protocol"), word(request, "verb")),
            shown(word(request, "table").as_bytes()),
            shown(word(request, "client").as_bytes()),
        ];
        Row::new(words)
    });
    let head = Row::new(["slow at", "took", "queue", "execution", "write", "verb", "table", "client"]).style(bold());
    let widths = [12, 9, 9, 9, 9].map(Constraint::Length);
    let widths: Vec<Constraint> = widths.into_iter().chain([Constraint::Fill(1); 3]).collect();
    let bound = micros(slow.get("threshold_micros"));
    table(frame, place, head, rows.collect(), &widths, &format!("No request took longer than {bound}."));
}

fn table(frame: &mut Frame<'_>, place: Rect, head: Row<'_>, rows: Vec<Row<'_>>, widths: &[Constraint], empty: &str) {
    if rows.is_empty() {
        return frame.render_widget(Paragraph::new(empty), place);
    }
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(1), place);
}

/// A row: names at the left, and figures at the right of their columns.
fn row_of<const N: usize, const M: usize>(names: [String; N], figures: [String; M]) -> Row<'static> {
    let figures = figures.into_iter().map(|figure| {
        let line = Line::from(figure).right_aligned();
        Cell::from(line)
    });
    Row::new(names.into_iter().map(Cell::from).chain(figures))
}

fn titles<const N: usize, const M: usize>(names: [&str; N], figures: [&str; M]) -> Row<'static> {
    row_of(names.map(str::to_owned), figures.map(str::to_owned)).style(bold())
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}
