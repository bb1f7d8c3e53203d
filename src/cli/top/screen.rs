//! A frame of `spindle top`: the head, the verbs, tables beside queues, and slow requests. This module asks no server.
//!
//! What does not fit is left out as a whole (`columns`): the parts share the lines, and each table leaves out columns.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Clear, Paragraph};
use serde_json::Value;

use super::columns::{Column, bold, fair_lines, flow, table};
use super::document::{list, number, whole, word};
use super::model::{Model, connections};
use super::queues::queues;
use crate::cli::flags::operand::shown;
use crate::cli::numbers::{bytes, clock_time, count, counted, micros, rate, seconds};

/// Lines of the tables and queues, with their titles.
const MIDDLE_LINES: usize = 12;
/// Lines of what is dead, with their titles.
const DEAD_LINES: usize = 9;
/// Lines of the slow requests, with their titles.
const SLOW_LINES: usize = 12;
/// Columns from which tables and queues stand side by side.
const PAIR_WIDTH: u16 = 80;
/// The keys.
const HELP: &str = "s      sort by rate, count, p99 or name\n?      show or hide the keys\nq      quit\n\
                    up down  choose a queue of tasks or jobs\nk      kick what is dead in it\n\
                    p r    pause it, resume it\nx x    purge what is dead in it\n\
                    min    of the last minute, as p99 min; all: since the start";
/// Lines of the help.
const HELP_LINES: u16 = 8;

/// Draws a frame.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let head = head(model, frame.area().width);
    let head_lines = u16::try_from(head.len()).unwrap_or(u16::MAX).saturating_add(1);
    let [top, rest] = Layout::vertical([Constraint::Length(head_lines), Constraint::Fill(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    let lines = |rows: usize, most: usize| u16::try_from((rows + 1).min(most)).unwrap_or(u16::MAX);
    let tables = lines(list(&model.stats, "tables").len(), MIDDLE_LINES);
    let queue_lines = lines(queues(&model.stats).len(), MIDDLE_LINES);
    let (verbs, slow) = (lines(model.verbs.len(), usize::MAX), lines(list(&model.slow, "requests").len(), SLOW_LINES));
    let is_pair = rest.width >= PAIR_WIDTH;
    let dead = (!model.dead.is_empty()).then(|| lines(model.dead.len(), DEAD_LINES));
    let middle = if is_pair { vec![tables.max(queue_lines)] } else { vec![tables, queue_lines] };
    let wanted: Vec<u16> = [verbs].into_iter().chain(middle).chain(dead).chain([slow]).collect();
    // An empty line stands between two parts.
    let gaps = wanted.iter().skip(1).map(|_| 1).sum();
    let given = fair_lines(rest.height.saturating_sub(gaps), &wanted);
    let parts = Layout::vertical(given.into_iter().map(Constraint::Length)).spacing(1).split(rest);
    let mut parts = parts.iter().copied();
    let mut next = || parts.next().unwrap_or_default();
    draw_verbs(frame, next(), model);
    let middle = next();
    let [left, right] =
        if is_pair { Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(middle) } else { [middle, next()] };
    draw_tables(frame, left, &model.stats);
    draw_queues(frame, right, model);
    if dead.is_some() {
        draw_dead(frame, next(), &model.dead);
    }
    draw_slow(frame, next(), &model.slow);
    if model.is_help {
        let place = frame.area().intersection(Rect::new(0, head_lines, 60, HELP_LINES));
        frame.render_widget(Clear, place);
        frame.render_widget(Paragraph::new(HELP), place);
    }
}

/// The lines of the head. Each item of them stands whole in a line, unless it is wider than all lines.
fn head(model: &Model, width: u16) -> Vec<Line<'static>> {
    let stats = &model.stats;
    let memory = stats.get("memory").unwrap_or(&Value::Null);
    let elements = list(stats, "tables").iter().map(|table| whole(table, "elements")).sum();
    let timers = stats.get("expiry").map_or(0, |expiry| whole(expiry, "pending"));
    let state = model.missed.as_deref().unwrap_or("live");
    let mut first = vec![format!("Spindle {}", word(stats, "version")), model.address.clone(), state.to_owned()];
    first.extend(model.cursor.said.as_ref().map(|said| shown(said.as_bytes())));
    let second = [
        format!("up {}", seconds(stats.get("uptime_seconds"))),
        format!("{} requests/s", rate(model.rate)),
        format!("memory {} of {}", bytes(memory.get("tables_bytes")), bytes(memory.get("tables_bytes_max"))),
        format!("resident {}", bytes(memory.get("resident_bytes"))),
    ];
    let tables = counted(list(stats, "tables").len() as u64, "table");
    let third = [
        format!("{} in {tables}", counted(elements, "element")),
        counted(timers, "timer"),
        counted(connections(stats), "connection"),
        format!("s: sorted by {}", model.sort.name()),
        "?: help".to_owned(),
        "q: quit".to_owned(),
    ];
    let first = flow(&first, "  ", width).into_iter().map(|line| Line::styled(line, bold()));
    let others = [flow(&second, "   ", width), flow(&third, "   ", width)].concat();
    first.chain(others.into_iter().map(Line::from)).collect()
}

fn draw_verbs(frame: &mut Frame<'_>, place: Rect, model: &Model) {
    let verbs = &model.verbs;
    let columns = vec![
        Column::name("protocol", 0, verbs.iter().map(|row| row.protocol.clone())),
        Column::name("verb", 0, verbs.iter().map(|row| row.verb.clone())),
        Column::number("a second", 1, verbs.iter().map(|row| rate(row.rate))),
        Column::number("in all", 4, verbs.iter().map(|row| count(row.requests))),
        Column::number("refused", 7, verbs.iter().map(|row| count(row.refused))),
        Column::number("p50 min", 3, verbs.iter().map(|row| micros(Some(&row.recent.p50)))),
        Column::number("p99 min", 2, verbs.iter().map(|row| micros(Some(&row.recent.p99)))),
        Column::number("p50 all", 6, verbs.iter().map(|row| micros(Some(&row.whole.p50)))),
        Column::number("p99 all", 5, verbs.iter().map(|row| micros(Some(&row.whole.p99)))),
    ];
    table(frame, place, columns, "No request has come since the start.");
}

fn draw_tables(frame: &mut Frame<'_>, place: Rect, stats: &Value) {
    let mut tables: Vec<&Value> = list(stats, "tables").iter().collect();
    tables.sort_by(|one, other| number(other, "bytes").total_cmp(&number(one, "bytes")));
    tables.truncate(MIDDLE_LINES);
    let columns = vec![
        Column::name("table", 0, tables.iter().map(|table| shown(word(table, "name").as_bytes()))),
        Column::number("elements", 2, tables.iter().map(|table| count(whole(table, "elements")))),
        Column::number("memory", 1, tables.iter().map(|table| bytes(table.get("bytes")))),
    ];
    table(frame, place, columns, "There is no table.");
}

fn draw_queues(frame: &mut Frame<'_>, place: Rect, model: &Model) {
    let all = queues(&model.stats);
    let chosen = |queue: &Value| model.cursor.chosen.as_deref() == Some(word(queue, "name"));
    // The chosen one is among the lines.
    let skipped = all.iter().position(chosen).map_or(0, |at| at.saturating_sub(MIDDLE_LINES - 2));
    let queues = || all.iter().skip(skipped).take(MIDDLE_LINES);
    let name = |queue: &Value| {
        let name = shown(word(queue, "name").as_bytes());
        if chosen(queue) { format!("> {name}") } else { name }
    };
    let number = |title, rank, figure: &'static str| {
        Column::number(title, rank, queues().map(move |queue| count(whole(queue, figure))))
    };
    let columns = vec![
        Column::name("queue", 0, queues().map(name)),
        number("ready", 1, "ready"),
        number("delayed", 4, "delayed"),
        number("lent", 2, "leased"),
        number("dead", 2, "dead"),
        number("groups", 5, "groups"),
        Column::number("oldest", 3, queues().map(|queue| seconds(queue.get("oldest_ready_seconds")))),
    ];
    table(frame, place, columns, "There is no queue.");
}

fn draw_dead(frame: &mut Frame<'_>, place: Rect, dead: &[Value]) {
    let text = |name: &'static str| {
        dead.iter().map(move |task| {
            let text = word(task, name);
            if text.starts_with("0x") { text.to_owned() } else { shown(text.as_bytes()) }
        })
    };
    let age = dead.iter().map(|task| seconds(Some(&(number(task, "age_ms") / 1e3).into())));
    let named = dead.iter().map(|task| if task.get("id").is_some() { "id" } else { "key" });
    let names = named.zip(dead).map(|(name, task)| shown(word(task, name).as_bytes()));
    let columns = vec![
        Column::name("dead of", 0, text("queue")),
        Column::name("key", 1, names),
        Column::number("tries", 3, dead.iter().map(|task| count(whole(task, "tries")))),
        Column::name("group", 5, text("group")),
        Column::number("for", 4, age),
        Column::name("reason", 2, text("reason")),
    ];
    table(frame, place, columns, "Nothing is dead.");
}

fn draw_slow(frame: &mut Frame<'_>, place: Rect, slow: &Value) {
    let requests = || list(slow, "requests").iter().take(SLOW_LINES);
    let time = |name: &'static str| requests().map(move |request| micros(request.get(name)));
    let named = |name: &'static str| requests().map(move |request| shown(word(request, name).as_bytes()));
    let verbs = requests().map(|request| format!("{} {}", word(request, "protocol"), word(request, "verb")));
    let columns = vec![
        Column::number("slow at", 0, requests().map(|request| clock_time(whole(request, "unix_millis")))),
        Column::number("took", 0, time("micros")),
        Column::number("queue", 3, time("queue_micros")),
        Column::number("execution", 4, time("execution_micros")),
        Column::number("write", 6, time("write_micros")),
        Column::name("verb", 1, verbs),
        Column::name("table", 2, named("table")),
        Column::name("client", 5, named("client")),
    ];
    let bound = micros(slow.get("threshold_micros"));
    table(frame, place, columns, &format!("No request took longer than {bound}."));
}
