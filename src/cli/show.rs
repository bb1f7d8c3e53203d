//! Formats answers: lines for people, one line of JSON for machines.

use std::fmt::Write as _;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::CommandError;
use super::flags::operand::{Hex, name, shown, shown_at_length, steers};
use crate::services::tables::wire::TableLine;
use crate::tables::Durability;

/// The format of answers.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Format {
    /// Print JSON, one line for each answer; bytes that are no text become strings such as "0x00ff"
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) hex: Hex,
}

/// Whether a value is printed as it is.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Raw {
    /// Print the value as it is, byte for byte and without a line feed
    #[arg(long, conflicts_with_all = ["json", "hex"])]
    pub(super) raw: bool,
}

impl Format {
    #[cfg(test)]
    pub(super) const TEXT: Self = Self { json: false, hex: Hex::OFF };
    #[cfg(test)]
    pub(super) const JSON: Self = Self { json: true, hex: Hex::OFF };
    #[cfg(test)]
    pub(super) const HEX: Self = Self { json: false, hex: Hex::ON };

    /// The format of a command whose answers have no bytes.
    pub(super) const fn of(json: bool) -> Self {
        Self { json, hex: Hex::OFF }
    }

    /// Whether answers are JSON.
    pub(super) fn is_json(self) -> bool {
        self.json
    }

    /// Prints `text` or `json`, and flushes.
    ///
    /// # Errors
    /// [`CommandError::Output`]
    pub(super) fn print(self, out: &mut impl Write, text: &str, json: &Value) -> Result<(), CommandError> {
        self.print_all(out, std::iter::once(self.answer(|| text.to_owned(), || json.clone())))
    }

    /// Prints a value behind the lines of its head, or `json`, and flushes.
    ///
    /// # Errors
    /// [`CommandError::Output`]
    pub(super) fn print_value(
        self,
        out: &mut impl Write,
        Raw { raw }: Raw,
        head: &str,
        bytes: &[u8],
        json: impl FnOnce() -> Value,
    ) -> Result<(), CommandError> {
        if !raw {
            let text = || format!("{head}{}", value(bytes, self.hex));
            return self.print_all(out, std::iter::once(self.answer(text, json)));
        }
        out.write_all(head.as_bytes())?;
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// An answer as text, with its line feed, or as a line of JSON. It makes only the one that is printed.
    pub(super) fn answer(self, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) -> String {
        if self.json { json_line(&json()) + "\n" } else { text() }
    }

    /// Prints many answers, and flushes once.
    ///
    /// # Errors
    /// [`CommandError::Output`]
    pub(super) fn print_all(
        self,
        out: &mut impl Write,
        mut answers: impl Iterator<Item = String>,
    ) -> Result<(), CommandError> {
        answers.try_for_each(|answer| out.write_all(answer.as_bytes()))?;
        Ok(out.flush()?)
    }

    /// Prints that the command has succeeded.
    ///
    /// # Errors
    /// [`CommandError::Output`]
    pub(super) fn done(self, out: &mut impl Write) -> Result<(), CommandError> {
        self.print(out, "OK\n", &json!({ "ok": true }))
    }
}

/// JSON on one line, in which characters are escaped that steer a terminal.
pub(super) fn json_line(json: &Value) -> String {
    escaped(&json.to_string(), |character| format!("\\u{:04x}", u32::from(character)))
}

/// The text with another one in place of each character that steers a terminal.
pub(super) fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, character| {
        if steers(character) {
            escaped += &escape(character);
        } else {
            escaped.push(character);
        }
        escaped
    })
}

/// A value, with a line feed at its end.
pub(super) fn value(value: &[u8], hex: Hex) -> String {
    let mut text = if hex.is_on() { hex.shown(value) } else { shown_at_length(value) };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// A number of things.
pub(super) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// One line for each table.
///
/// ```text
///      3 elements  users
///      1 element   jobs
/// ```
/// If one of them is durable, what is on disk stands before each name.
pub(super) fn tables(tables: &[(Option<Durability>, TableLine)], hex: Hex) -> String {
    let width = tables.iter().map(|(_, table)| table.elements.to_string().len()).max().unwrap_or(0);
    let has_durable = tables.iter().any(|(durability, _)| durability.is_some_and(|kept| kept != Durability::None));
    let line = |(durability, table): &(Option<Durability>, TableLine)| {
        let things = if table.elements == 1 { "element " } else { "elements" };
        let kept = if has_durable { format!("{:6}  ", durability.map_or("", Durability::word)) } else { String::new() };
        format!("{:width$} {things}  {kept}{}\n", table.elements, hex.shown(name(&table.name)))
    };
    tables.iter().map(line).collect()
}

/// Rows in columns, under their titles. Of a column that is text, the cells stand at the left.
pub(super) fn columns(titles: &[(&str, bool)], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = titles.iter().map(|(title, _)| (*title).to_owned()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).zip(titles).map(|((cell, &width), (_, is_text))| {
            if *is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    [line(&head)].into_iter().chain(rows.iter().map(line)).collect()
}

/// Any JSON, one entry on each line, indented by depth.
///
/// ```text
/// uptime_seconds: 12
/// tables:
///   - name: users
///     elements: 3
/// ```
pub(super) fn outline(json: &Value) -> String {
    let mut text = String::new();
    match json {
        Value::Object(_) | Value::Array(_) => nested(&mut text, json, 0),
        scalar => text = format!("{}\n", plain(scalar)),
    }
    text
}

/// Writes the members of an object or array, each on lines of its own.
fn nested(text: &mut String, json: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                let _infallible = write!(text, "{indent}{name}:");
                member(text, value, depth);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| listed(text, value, depth)),
        _ => {}
    }
}

/// Writes the value behind `name:`.
fn member(text: &mut String, value: &Value, depth: usize) {
    if is_leaf(value) {
        let _infallible = writeln!(text, " {}", plain(value));
    } else {
        text.push('\n');
        nested(text, value, depth + 1);
    }
}

/// Writes one value of a list. Its first line has the dash.
fn listed(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    if is_leaf(value) {
        let _infallible = writeln!(text, "{indent}- {}", plain(value));
        return;
    }
    let mut lines = String::new();
    nested(&mut lines, value, depth + 1);
    let unindented = lines.get(indent.len() + 2..).unwrap_or_default();
    let _infallible = write!(text, "{indent}- {unindented}");
}

/// Whether a value fits on one line.
fn is_leaf(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => true,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => shown(text.as_bytes()),
        Value::Object(_) | Value::Array(_) => "none".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn json_is_one_line_and_text_is_as_it_is() {
        let printed = |json| {
            let mut out = Vec::new();
            Format::of(json).print(&mut out, "text\n", &json!({ "value": "a\nb" })).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(printed(true), "{\"value\":\"a\\nb\"}\n");
        assert_eq!(printed(false), "text\n");
    }

    #[test]
    fn json_escapes_what_steers_a_terminal() {
        let json = json!({ "value": "\u{202e}\u{9b}2J\u{7f}" });
        let line = json_line(&json);
        assert_eq!(line, "{\"value\":\"\\u202e\\u009b2J\\u007f\"}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json);
    }

    #[test]
    fn an_answer_is_made_in_the_format_that_is_printed_alone() {
        let text = Format::TEXT.answer(|| "text\n".to_owned(), || panic!("JSON was not asked for"));
        let json = Format::JSON.answer(|| panic!("text was not asked for"), || json!(1));
        assert_eq!((&*text, &*json), ("text\n", "1\n"));
    }

    #[test]
    fn a_value_ends_with_one_newline() {
        let text = |bytes| value(bytes, Hex::OFF);
        assert_eq!(text(b"ada"), "ada\n");
        assert_eq!(text(b"ada\n"), "ada\n");
        assert_eq!(text(b""), "\n");
        assert_eq!(text(b"\0"), "0x00\n");
        assert_eq!(value(b"ada\n", Hex::ON), "0x6164610a\n");
    }

    #[test]
    fn tables_stand_in_columns() {
        let line = |name: &[u8], elements| (Some(Durability::None), TableLine { name: Box::from(name), elements });
        let mut lines = [line(b"users\0", 12), line(b"jobs", 1), line(b"\xff", 3)];
        assert_eq!(tables(&lines, Hex::OFF), "12 elements  users\n 1 element   jobs\n 3 elements  0xff\n");
        lines[1].0 = Some(Durability::Always);
        let text = "12 elements  none    users\n 1 element   always  jobs\n 3 elements  none    0xff\n";
        assert_eq!(tables(&lines, Hex::OFF), text);
        assert_eq!(tables(&[], Hex::OFF), "");
    }

    #[test]
    fn an_outline_shows_any_json() {
        let json = json!({
            "uptime": 12,
            "workers": [{ "busy": 0.5, "cores": [1, 2] }, { "busy": 1, "cores": [] }],
            "tables": [],
            "memory": { "bytes": 7, "of": { "host": null } },
            "name": "a\nb",
        });
        let text = "memory:\n  bytes: 7\n  of:\n    host: none\nname: 0x610a62\ntables: none\nuptime: 12\nworkers:\n  \
                    - busy: 0.5\n    cores:\n      - 1\n      - 2\n  - busy: 1\n    cores: none\n";
        assert_eq!(outline(&json), text);
        assert_eq!(outline(&json!(3)), "3\n");
    }
}
