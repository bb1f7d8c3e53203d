//! The differences on purpose: a table in Markdown, with a rule for each row.
//!
//! ```text
//! | name | what Redis does | what Spindle does | rule |
//! |---|---|---|---|
//! | … | … | … | `skip CLIENT ID` |
//! ```
//! | rule | meaning |
//! |---|---|
//! | `skip COMMAND` | the reply is not compared |
//! | `error COMMAND: PREFIX` | the other server may answer with an error that begins so, and the round ends |
//! | `replace COMMAND: REDIS => OTHER` | the replies may be these, and the round continues |
//! | `end COMMAND: REDIS => OTHER` | the replies may be these, and the round ends |
//! | `apart COMMAND` | no program meets it: whether the replies differ is a matter of time |
//! | `near COMMAND` | the replies may be numbers that differ by less than a part in 10^15 of them or of the last argument, and the round ends |
//!
//! COMMAND is the name of a command and its first arguments, in any case, and `*` is any argument. REDIS and OTHER are
//! replies as reports print them, and `*` in them is any text. A round ends where the servers may hold different data
//! from there on. MESSAGES is the command of all messages that a connection received in a step, and
//! UNKNOWN the command of replies whose command is not clear. In a cell, `\|` is a bar.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command::Command;
use super::reply::Value;

/// How far numbers may differ that are near, as a part of the largest one. A small sum of large numbers has their
/// rounding.
const NEAR: f64 = 1e-15;

/// The titles of the table.
const TITLES: [&str; 4] = ["name", "what redis does", "what spindle does", "rule"];

#[derive(Debug, PartialEq, Eq)]
enum Form {
    Skip,
    Apart,
    Near,
    Error { prefix: String },
    Replace { redis: String, other: String, is_end: bool },
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Rule {
    name: String,
    words: Vec<String>,
    form: Form,
    /// How many replies it explained. Written by all workers.
    matched: AtomicU64,
}

/// What two different replies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Same,
    /// Different on purpose. The round ends.
    Ends,
    Different,
}

/// All rows.
#[derive(Debug, Default)]
pub(crate) struct Known {
    rules: Vec<Rule>,
}

impl Known {
    /// The rules of a page.
    ///
    /// # Errors
    ///
    /// Names the row whose rule has no known form, or the page if it has no such table.
    pub(crate) fn read(page: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        let mut is_inside = false;
        let mut has_table = false;
        for line in page.lines().map(str::trim) {
            let cells = cells(line);
            let is_title =
                cells.iter().map(|cell| cell.to_lowercase()).eq(TITLES.iter().map(|title| (*title).to_owned()));
            is_inside = is_title || is_inside && !cells.is_empty();
            has_table |= is_title;
            let is_line = cells.iter().all(|cell| cell.trim_matches(['-', ':']).is_empty());
            if is_inside && !is_title && !is_line {
                rules.push(rule(&cells).ok_or_else(|| format!("no rule in this row: {line}"))?);
            }
        }
        if has_table { Ok(Self { rules }) } else { Err(format!("the page has no table {TITLES:?}")) }
    }

    /// Whether the replies to this command are not compared.
    pub(crate) fn skips(&self, command: &Command) -> bool {
        self.rules.iter().any(|rule| rule.form == Form::Skip && rule.is_of(command) && rule.count())
    }

    /// What two different replies to this command are.
    pub(crate) fn explain(&self, command: &Command, redis: &Value, other: &Value) -> Verdict {
        let found = self.rules.iter().find(|rule| rule.is_of(command) && rule.explains(command, redis, other));
        let Some(rule) = found else { return Verdict::Different };
        rule.count();
        if matches!(rule.form, Form::Replace { is_end: false, .. }) { Verdict::Same } else { Verdict::Ends }
    }

    /// The names of the rules that explained no reply.
    pub(crate) fn stale(&self) -> Vec<&str> {
        // Relaxed: the workers have been joined.
        let rules = self.rules.iter().filter(|rule| rule.form != Form::Apart);
        let rules = rules.filter(|rule| rule.matched.load(Ordering::Relaxed) == 0);
        rules.map(|rule| rule.name.as_str()).collect()
    }
}

/// Each rule with the number of replies that it explained.
impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in self.rules.iter().filter(|rule| rule.form != Form::Apart) {
            let matched = rule.matched.load(Ordering::Relaxed);
            let note = if matched == 0 { " (stale: it explained nothing)" } else { "" };
            writeln!(f, "{matched:>10}  {}{note}", rule.name)?;
        }
        Ok(())
    }
}

impl Rule {
    fn is_of(&self, command: &Command) -> bool {
        self.words
            .iter()
            .enumerate()
            .all(|(place, word)| if word == "*" { command.arguments.len() > place } else { command.has(place, word) })
    }

    fn explains(&self, command: &Command, redis: &Value, other: &Value) -> bool {
        match &self.form {
            Form::Skip | Form::Apart => false,
            Form::Near => number_of(redis).zip(number_of(other)).is_some_and(|(redis, other)| {
                let summand = command.arguments.last().and_then(|last| number_in(last)).unwrap_or(0.0);
                let largest = redis.abs().max(other.abs()).max(summand.abs());
                redis == other || (redis - other).abs() <= largest * NEAR
            }),
            Form::Error { prefix } => {
                other.is_error() && other.bytes().is_some_and(|text| text.starts_with(prefix.as_bytes()))
            }
            Form::Replace { redis: from, other: to, .. } => {
                matches(from, &redis.to_string()) && matches(to, &other.to_string())
            }
        }
    }

    /// Counts a match. Returns true.
    fn count(&self) -> bool {
        // Relaxed: it is read after the workers have been joined.
        self.matched.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// The cells of a row. None for a line that is no row.
fn cells(line: &str) -> Vec<String> {
    let Some(inside) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else { return Vec::new() };
    inside.replace("\\|", "\0").split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

fn rule(cells: &[String]) -> Option<Rule> {
    let [name, _, _, rule] = cells else { return None };
    let (kind, rest) = rule.trim_matches('`').split_once(' ')?;
    let (command, rest) = rest.split_once(": ").map_or((rest, None), |(command, rest)| (command, Some(rest)));
    let form = match (kind, rest) {
        ("skip", None) => Form::Skip,
        ("apart", None) => Form::Apart,
        ("near", None) => Form::Near,
        ("error", Some(prefix)) => Form::Error { prefix: prefix.to_owned() },
        ("replace" | "end", Some(rest)) => {
            let (redis, other) = rest.split_once(" => ")?;
            Form::Replace { redis: redis.to_owned(), other: other.to_owned(), is_end: kind == "end" }
        }
        _ => return None,
    };
    let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    (!words.is_empty()).then(|| Rule { name: name.clone(), words, form, matched: AtomicU64::new(0) })
}

/// The number that a reply is.
fn number_of(value: &Value) -> Option<f64> {
    number_in(value.bytes()?)
}

fn number_in(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether a text is this pattern, in which `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((last, middle)) = parts.split_last() else { return true };
    for part in middle {
        let Some((_, behind)) = text.split_once(part) else { return false };
        text = behind;
    }
    text.ends_with(last)
}

#[test]
fn each_form_of_a_rule_is_read_and_counted() {
    let page = "# Page\n\n| name | what Redis does | what Spindle does | rule |\n|---|---|---|---|\n\
        | id | its own | its own | `skip CLIENT ID` |\n\
        | far | takes it | refuses | `error SET: ERR invalid expire` |\n\
        | version | 7.0 | 7.4 | `replace ECHO: \"7.0*\" => \"7.4*\"` |\n\
        | sum | rounds | does not | `near INCRBYFLOAT` |\n\
        | late | sees it later | sees it now | `apart SET` |\n\
        | absent | aborts | does not | `end EXEC: (nil array) => *` |\n\nEnd.\n";
    let known = Known::read(page).unwrap();
    let line = |kind, text: &str| Value::Line { kind, text: text.as_bytes().to_vec() };
    let bulk = |text: &str| Value::Bulk { kind: b'$', bytes: text.as_bytes().to_vec() };
    assert!(known.skips(&Command::new(&["client", "id"])));
    assert!(!known.skips(&Command::new(&["CLIENT"])));
    let explain = |name: &str, redis: &Value, other: &Value| known.explain(&Command::new(&[name]), redis, other);
    assert_eq!(explain("ECHO", &bulk("7.0.15"), &bulk("7.4.0")), Verdict::Same);
    assert_eq!(explain("ECHO", &bulk("7.0.15"), &bulk("8")), Verdict::Different);
    assert_eq!(explain("EXEC", &Value::Null { kind: b'*' }, &line(b'+', "x")), Verdict::Ends);
    let sum = |number: &str| {
        let command = Command::new(&["INCRBYFLOAT", "a", number]);
        known.explain(&command, &bulk("31.74899999995250255"), &bulk("31.749"))
    };
    assert_eq!((sum("2147483647"), sum("1")), (Verdict::Ends, Verdict::Different));
    assert_eq!(known.stale(), ["far"]);
    assert_eq!(explain("SET", &line(b'+', "OK"), &line(b'-', "ERR invalid expire time")), Verdict::Ends);
    assert!(known.stale().is_empty());
}

#[test]
fn a_row_without_a_rule_and_a_page_without_a_table_are_errors() {
    let head = "| name | what Redis does | what Spindle does | rule |\n|---|---|---|---|\n";
    assert!(Known::read(&format!("{head}| a | b | c | ignore SET |\n")).unwrap_err().contains("ignore SET"));
    assert!(Known::read("# Page\n").is_err());
}
