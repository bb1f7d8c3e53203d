//! `spindle top`: what a server does, in a terminal, again and again.
//!
//! ```text
//! --admin: /stats, /slow ─► model: rates since the document before ─► screen: a frame ─► terminal, or standard output
//!                                        keys ─► sort, help, quit ─┘
//! ```
//! Without a terminal, or with `--once`, it prints one frame as plain text. Of a terminal, all settings are as before
//! when it ends, also by a signal or a panic.

mod columns;
mod document;
mod model;
mod queues;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Size;

use super::CommandError;
use super::commands::slow::{AdminServer, document};
use super::commands::watch::stop_on_signals;
use crate::clients::rust::operator::admin::AdminClient;
use crate::clock::{Clock, Now};
use model::{Model, Sort};
use queues::KeyChange;
use screen::draw;

/// The time from one look at the server to the next. Rates are of this time.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest wait for a key: a signal is seen after it.
const GLANCE: Duration = Duration::from_millis(100);
/// The size of a frame without a terminal. All rows that a person reads at once have a place.
const PLAIN_SIZE: Size = Size::new(120, 60);

#[derive(Debug, Args)]
pub(super) struct TopArguments {
    #[command(flatten)]
    server: AdminServer,
    /// Print one frame, of a second, and end; this is so without a terminal too
    #[arg(long)]
    once: bool,
    /// Order of the verbs: rate, count, p99 or name; the key s changes it
    #[arg(long, value_name = "ORDER", default_value = "rate", value_parser = Sort::parse)]
    sort: Sort,
}

/// Shows the server until `q`, Ctrl-C or a signal.
///
/// # Errors
/// [`CommandError`] if the server does not answer at first, or the terminal cannot be used.
pub(super) fn run(arguments: &TopArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let client = arguments.server.client()?;
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    let mut model = Model::new(client.address(), arguments.sort);
    look(&client, &mut model)?;
    if arguments.once || !io::stdout().is_terminal() {
        std::thread::park_timeout(PERIOD);
        look(&client, &mut model)?;
        out.write_all(plain(&model, PLAIN_SIZE).as_bytes())?;
        return Ok(());
    }
    let mut terminal = ratatui::try_init().map_err(CommandError::Output)?;
    let shown = show(&mut terminal, &client, &mut model, &stop);
    ratatui::restore();
    Ok(shown?)
}

/// Reads the documents of the server.
fn look(client: &AdminClient, model: &mut Model) -> Result<(), CommandError> {
    let stats = document(client, "/stats")?;
    model.dead = queues::dead(client, &stats);
    model.update(&stats, &document(client, "/slow")?);
    Ok(())
}

/// Draws a frame each second and after each key, until a key or a signal ends it.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    client: &AdminClient,
    model: &mut Model,
    stop: &AtomicBool,
) -> io::Result<()> {
    let clock = Clock::start();
    let mut next: Now = clock.now().after(PERIOD);
    // Relaxed: the flag publishes no other data.
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw(frame, model))?;
        if event::poll(clock.now().time_until(next).min(GLANCE))?
            && let Event::Key(key) = event::read()?
        {
            match effect(key, model) {
                Effect::End => return Ok(()),
                Effect::Nothing => {}
                Effect::Change(change) => {
                    model.cursor.said = Some(change.make(client));
                    // What it has changed is looked at soon, and rates need some time.
                    next = next.min(clock.now().after(GLANCE));
                }
            }
        }
        if next <= clock.now() {
            // A server that is away may come back.
            if let Err(error) = look(client, model) {
                model.miss(&error.sentence());
            }
            next = clock.now().after(PERIOD);
        }
    }
    Ok(())
}

/// What the command does about a key.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    End,
    Change(KeyChange),
}

/// Handles a key.
fn effect(key: KeyEvent, model: &mut Model) -> Effect {
    if key.kind != KeyEventKind::Press {
        return Effect::Nothing;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Effect::End,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Effect::End,
        KeyCode::Char('s') => model.sort_next(),
        KeyCode::Char('?' | 'h') => model.toggle_help(),
        KeyCode::Down | KeyCode::Up => model.cursor.step(&model.stats, key.code == KeyCode::Down),
        KeyCode::Char(key) => return model.cursor.change(key).map_or(Effect::Nothing, Effect::Change),
        _ => {}
    }
    Effect::Nothing
}

/// A frame of so many columns and lines, as text.
fn plain(model: &Model, Size { width, height }: Size) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap_or_else(|never| match never {});
    terminal.draw(|frame| draw(frame, model)).unwrap_or_else(|never| match never {});
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned());
    let mut lines: Vec<String> = lines.collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use serde_json::{Value, json};

    use super::*;

    fn stats(uptime: f64, gets: u64) -> Value {
        let times = |p50: f64, p99: f64| json!({ "samples": 3, "p50": p50, "p99": p99 });
        let none = json!({ "samples": 0, "p50": null, "p99": null });
        json!({
            "version": "1.2.3", "uptime_seconds": uptime,
            "commands": {
                "GET": { "requests": gets, "errors": { "KEY NOT FOUND": 2 }, "end_to_end_micros": times(20.0, 40.0) },
                "UPDATE": { "requests": 500, "errors": {}, "end_to_end_micros": times(30.0, 9_000.0) },
                "TOUCH": { "requests": 1, "errors": {}, "end_to_end_micros": none },
                "SCAN": { "requests": 0, "errors": {}, "end_to_end_micros": none },
            },
            "tables": [{ "name": "small", "elements": 1, "bytes": 100 }, { "name": "large", "elements": 5, "bytes": 4_096 }],
            "expiry": { "pending": 7 }, "clients": { "known": 3 },
            "memory": { "tables_bytes": 4_196, "tables_bytes_max": 1_048_576, "excess_bytes": 0, "resident_bytes": 2_048 },
            "lockstep": null,
            "last_minute": [{ "protocol": "kv", "verb": "GET", "end_to_end_micros": times(74.8, 1_250.0) }],
            "tasks": { "families": [], "queues": [{ "name": "mail", "ready": 4, "leased": 2, "oldest_ready_seconds": 61.0 }] },
            "services": [{ "protocol": "jobs", "connections": 1, "verbs": [
                { "verb": "ADD", "requests": 9, "refused": 0, "end_to_end_micros": times(500.0, 700.0) },
            ] }],
        })
    }

    fn slow() -> Value {
        json!({ "threshold_micros": 10_000.0, "seen": 1, "requests": [{
            "unix_millis": 0, "micros": 12_000.0, "queue_micros": 11_000.0, "execution_micros": 900.0,
            "write_micros": 100.0, "protocol": "kv", "verb": "SCAN", "table": "large", "client": "10.0.0.1:9",
        }] })
    }

    fn model() -> Model {
        let mut model = Model::new("127.0.0.1:8082", Sort::Rate);
        model.update(&stats(10.0, 1_000), &slow());
        model.update(&stats(12.0, 3_000), &slow());
        model
    }

    fn verbs(text: &str) -> Vec<&str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("kv ").or_else(|| line.strip_prefix("jobs ")));
        lines.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "SCAN").collect()
    }

    #[test]
    fn a_frame_shows_rates_tables_queues_and_slow_requests() {
        let text = plain(&model(), PLAIN_SIZE);
        let line =
            |begin: &str| text.lines().find(|line| line.contains(begin)).unwrap_or_else(|| panic!("{begin}: {text}"));
        assert!(line("Spindle 1.2.3").contains("127.0.0.1:8082"), "{text}");
        assert!(line("GET").contains("1000") && line("GET").contains("20.0 µs"), "{text}");
        assert!(line("GET").contains("74.8 µs") && line("GET").contains("1.25 ms"), "the last minute too: {text}");
        assert!(line("TOUCH").contains("–"), "no sample is no latency: {text}");
        assert!(text.find("large").unwrap() < text.find("small").unwrap(), "the largest first: {text}");
        assert!(line("mail").contains("1 min 1 s"), "{text}");
        assert!(line("10.0.0.1:9").contains("12.0 ms"), "{text}");
    }

    #[test]
    fn the_key_s_sorts_and_the_question_mark_helps() {
        let mut model = model();
        let key = |code| KeyEvent::new(KeyCode::Char(code), KeyModifiers::NONE);
        assert_eq!(verbs(&plain(&model, PLAIN_SIZE)), ["GET", "UPDATE", "ADD", "TOUCH"]);
        assert_eq!(effect(key('s'), &mut model), Effect::Nothing);
        assert_eq!(effect(key('s'), &mut model), Effect::Nothing);
        assert_eq!(verbs(&plain(&model, PLAIN_SIZE)), ["UPDATE", "ADD", "GET", "TOUCH"], "by p99");
        assert_eq!(effect(key('?'), &mut model), Effect::Nothing);
        assert!(plain(&model, PLAIN_SIZE).contains("q      quit"));
        assert_eq!(effect(key('q'), &mut model), Effect::End);
        assert_eq!(effect(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &mut model), Effect::End);
    }

    #[test]
    fn what_is_dead_stands_with_its_reason_and_the_chosen_queue_is_marked() {
        let mut model = model();
        assert!(!plain(&model, PLAIN_SIZE).contains("dead of"));
        model.dead = vec![json!({
            "queue": "jobs/mail", "id": "00000000000000000007", "tries": 5, "group": "acme", "age_ms": 61_000,
            "reason": "no such\nhost",
        })];
        let down = KeyEvent::new(KeyCode::Down, KeyModifiers::NONE);
        assert_eq!(effect(down, &mut model), Effect::Nothing);
        let text = plain(&model, PLAIN_SIZE);
        let line =
            |begin: &str| text.lines().find(|line| line.contains(begin)).unwrap_or_else(|| panic!("{begin}: {text}"));
        assert!(line("00000000000000000007").contains("1 min 1 s"), "{text}");
        assert!(line("00000000000000000007").contains("0x6e6f20737563680a686f7374"), "{text}");
        assert!(line("> mail").contains("61.0") || line("> mail").contains("1 min 1 s"), "{text}");
        let kick = KeyEvent::new(KeyCode::Char('k'), KeyModifiers::NONE);
        assert_eq!(effect(kick, &mut model), Effect::Nothing, "it is a queue of neither");
        assert!(plain(&model, PLAIN_SIZE).contains("mail is no queue of tasks or jobs"));
    }

    #[test]
    fn a_server_that_is_away_is_said_so_and_after_a_restart_rates_begin_again() {
        let mut model = model();
        model.miss("no answer");
        assert!(plain(&model, PLAIN_SIZE).contains("no answer"));
        model.update(&stats(1.0, 5), &slow());
        let text = plain(&model, PLAIN_SIZE);
        assert!(!text.contains("no answer"));
        let get = text.lines().find(|line| line.contains("GET")).unwrap();
        assert!(get.contains('–'), "no rate yet: {get}");
    }

    /// 74.8 µs were shown as `4.8 µs`.
    #[test]
    fn a_number_is_whole_or_absent_however_small_the_terminal_is() {
        let wide = plain(&model(), PLAIN_SIZE);
        let words: Vec<&str> = wide.split_whitespace().collect();
        for (width, height) in [(50, 24), (50, 60), (64, 24), (80, 24), (120, 24)] {
            let size = Size::new(width, height);
            let text = plain(&model(), size);
            assert!(
                text.contains("74.8 µs") && text.contains("12.0 ms") && text.contains("4.1 KiB"),
                "{size:?}: {text}"
            );
            let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
            let cut: Vec<&str> =
                text.split_whitespace().filter(is_number).filter(|word| !words.contains(word)).collect();
            assert!(cut.is_empty(), "{size:?}: {cut:?} in {text}");
            for part in ["GET", "large", "mail", "SCAN", "?: help", "q: quit"] {
                assert!(text.contains(part), "{size:?}: no {part} in {text}");
            }
        }
    }

    #[test]
    fn a_small_terminal_is_no_fault() {
        for size in [(1, 1), (20, 5), (80, 24)] {
            let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
            terminal.draw(|frame| draw(frame, &model())).unwrap();
        }
    }
}
