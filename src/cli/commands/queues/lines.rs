//! Queues and tasks as lines for people, in columns. This module asks no server.

use serde_json::{Value, json};

use crate::cli::flags::operand::shown;
use crate::cli::numbers::{NONE, count, seconds};
use crate::cli::show::columns;

/// The titles of the queues, and whether each is text.
const QUEUES: [(&str, bool); 10] = [
    ("queue", true),
    ("ready", false),
    ("delayed", false),
    ("lent", false),
    ("dead", false),
    ("dropped", false),
    ("groups", false),
    ("waiting", false),
    ("oldest ready", false),
    ("pause", true),
];

/// The titles of the tasks, and whether each is text.
const TASKS: [(&str, bool); 9] = [
    ("", true),
    ("state", true),
    ("class", false),
    ("tries", false),
    ("group", true),
    ("age", false),
    ("changes in", false),
    ("value", true),
    ("reason", true),
];

/// A line for each queue, under their titles. Empty: there is none.
pub(super) fn of_queues(queues: &[Value]) -> String {
    let row = |queue: &Value| {
        let figures = ["ready", "delayed", "leased", "dead", "dropped", "groups", "waiting"];
        let figures = figures.map(|name| count(of(queue, name).as_u64().unwrap_or(0)));
        let pause = match (of(queue, "paused") == true, of(queue, "pause_left_ms")) {
            (false, _) => NONE.to_owned(),
            (true, Value::Null) => "until resumed".to_owned(),
            (true, left) => millis(left),
        };
        [word(queue, "name")].into_iter().chain(figures).chain([millis(of(queue, "oldest_ready_ms")), pause]).collect()
    };
    lines(&QUEUES, queues.iter().map(row).collect())
}

/// A line for each task, under their titles. Empty: there is none.
pub(super) fn of_tasks(tasks: &[Value]) -> String {
    let name = if tasks.first().is_some_and(|task| task.get("id").is_some()) { "id" } else { "key" };
    let row = |task: &Value| {
        let number = |name: &str| of(task, name).to_string();
        let (group, reason, first) = (word(task, "group"), word(task, "reason"), word(task, "first"));
        let value = format!("{} B: {first}", number("bytes"));
        let value = if first.is_empty() { format!("{} B", number("bytes")) } else { value };
        let or_none = |text: String| if text.is_empty() { NONE.to_owned() } else { text };
        let (age, left) = (millis(of(task, "age_ms")), millis(of(task, "left_ms")));
        let before = [word(task, name), word(task, "state"), number("class"), number("tries"), or_none(group)];
        before.into_iter().chain([age, left, value, or_none(reason)]).collect()
    };
    let [_, titles @ ..] = TASKS;
    let titles: Vec<_> = [(name, true)].into_iter().chain(titles).collect();
    lines(&titles, tasks.iter().map(row).collect())
}

fn lines(titles: &[(&'static str, bool)], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { String::new() } else { columns(titles, &rows) }
}

/// The text of a member, on one line. That of bytes is `0x…` already.
fn word(document: &Value, name: &str) -> String {
    let text = of(document, name).as_str().unwrap_or_default();
    if text.starts_with("0x") { text.to_owned() } else { shown(text.as_bytes()) }
}

/// A member, or nothing.
fn of<'d>(document: &'d Value, name: &str) -> &'d Value {
    document.get(name).unwrap_or(&Value::Null)
}

/// A time of so many milliseconds.
fn millis(value: &Value) -> String {
    seconds(value.as_f64().map(|millis| json!(millis / 1e3)).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_and_tasks_stand_in_columns() {
        let queue = json!({
            "name": "mail", "ready": 3, "delayed": 0, "leased": 12_345, "dead": 1, "dropped": 0, "groups": 2,
            "waiting": 0, "oldest_ready_ms": 61_000, "paused": true, "pause_left_ms": null,
        });
        let text = of_queues(&[queue]);
        assert!(text.starts_with("queue  ready  delayed    lent  dead"), "{text}");
        assert!(
            text.ends_with(
                "mail       3        0  12.3 k     1        0       2        0     1 min 1 s  until resumed\n"
            )
        );
        let task = json!({
            "id": "00000000000000000007", "state": "dead", "class": 9, "tries": 5, "group": "", "age_ms": 1_500,
            "left_ms": null, "reason": "no\nhost", "bytes": 70, "first": "to ada",
        });
        let text = of_tasks(&[task]);
        assert!(text.starts_with("id                    state  class  tries  group"), "{text}");
        let begin =
            "00000000000000000007  dead       9      5  –      1.5 s           –  70 B: to ada  0x6e6f0a686f7374";
        assert_eq!(text.lines().nth(1), Some(begin));
        assert_eq!((of_queues(&[]), of_tasks(&[])), (String::new(), String::new()));
    }
}
