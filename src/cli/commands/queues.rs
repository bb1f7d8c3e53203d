//! The words of an operator about queues: the same for those of tasks and those of jobs.
//!
//! ```text
//! spindle task list │ peek │ kick │ purge │ pause │ resume │ configure │ stats ─► spiderq      (queues/tasks.rs)
//! spindle job  list │ peek │ kick │ purge │ pause │ resume │ configure │ stats ─► --admin      (queues/jobs.rs)
//! ```
//! Both give queues and tasks as the same JSON, of which this module makes lines.

pub(super) mod jobs;
mod lines;
pub(super) mod tasks;

use std::io::Write;

use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::CommandError;
use crate::cli::flags::operand::{Hex, Operand, TableOperand, operand, table};
use crate::cli::flags::terms::{QueueOperand, queue, time};
use crate::cli::show::{Format, outline};
use crate::services::operator::admin::queues::words::{PAUSE_OFF, PAUSE_ON, read_setting, read_state, read_states};
use crate::tasks::{BrowsedState, QueueChange};

/// The flags of a server that has queues.
pub(crate) trait QueueServer: Args {
    /// What is in the queues, which is the word before the words about them.
    const WORD: &'static str;

    /// How its answers are shown.
    fn format(&self) -> Format;

    /// Its queues.
    fn operator(&self) -> Result<Box<dyn QueueOperator>, CommandError>;
}

/// The queues of a server, of one family.
pub(crate) trait QueueOperator {
    /// All queues that the user may see.
    fn queues(&mut self) -> Result<Vec<Value>, CommandError>;

    /// The queue with this name, if it is there.
    fn queue(&mut self, queue: &[u8]) -> Result<Option<Value>, CommandError> {
        let wanted = Hex::OFF.shown_in_json(queue);
        Ok(self.queues()?.into_iter().find(|queue| name(queue) == Some(&wanted)))
    }

    /// A page, and where the next one begins.
    fn page(&mut self, page: &WantedPage<'_>) -> Result<(Vec<Value>, Option<String>), CommandError>;

    /// Makes tasks ready. Returns their number.
    fn kick(&mut self, queue: &[u8], what: &KickedTasks) -> Result<u64, CommandError>;

    /// Removes tasks that have been for so many milliseconds in one of these states. Returns their number.
    fn purge(&mut self, queue: &[u8], states: &str, age_ms: u64) -> Result<u64, CommandError>;

    /// Changes settings, by their names.
    fn configure(&mut self, queue: &[u8], settings: &[(&'static str, String)]) -> Result<(), CommandError>;
}

/// The tasks that a page shows.
pub(crate) struct WantedPage<'q> {
    pub(super) queue: &'q [u8],
    pub(super) state: BrowsedState,
    /// `None`: of all groups.
    pub(super) group: Option<&'q [u8]>,
    /// Where the page before ended.
    pub(super) from: Option<String>,
    pub(super) most: u32,
    /// The most bytes of each value.
    pub(super) first_bytes: u32,
}

/// The tasks that are kicked.
pub(crate) enum KickedTasks {
    /// The one with this key or id.
    One(Vec<u8>),
    Dead(u64),
    Delayed(u64),
}

/// The most tasks on a page. The server may give fewer.
const PAGE_MAX: u32 = 1_000;
/// Tasks that are shown, unless a flag says otherwise.
const SHOWN_USUALLY: u32 = 20;
/// Bytes of each value that are shown, unless a flag says otherwise.
const FIRST_BYTES_USUALLY: u32 = 64;
/// The most bytes of each value that are shown.
const FIRST_BYTES_MAX: i64 = 1_024;

/// A word of an operator.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueWord<S: QueueServer> {
    /// List the queues: what is in each state, groups, the age of the oldest that is ready, and a pause
    List(#[command(flatten)] S),
    /// Show what is in a queue in a state, in order, with the reason of the last failure; nothing is taken
    Peek(PeekArguments<S>),
    /// Make what is dead or delayed ready again, with its tries anew
    Kick(KickArguments<S>),
    /// Remove all that is in these states, for good
    Purge(PurgeArguments<S>),
    /// Lend nothing of a queue until a time, or until it is resumed
    Pause(PauseArguments<S>),
    /// End the pause of a queue
    Resume(QueueArguments<S>),
    /// Set tries, backoff, a limit of groups or a rate of a queue; "none" takes a setting away
    Configure(ConfigureArguments<S>),
}

/// A queue.
#[derive(Debug, Args)]
pub(crate) struct QueueArguments<S: QueueServer> {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: QueueOperand,
    #[command(flatten)]
    of: S,
}

#[derive(Debug, Args)]
pub(crate) struct PeekArguments<S: QueueServer> {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: QueueOperand,
    /// State: ready, delayed, lent, dead or dropped
    #[arg(long, value_name = "STATE", default_value = "ready", value_parser = state())]
    state: BrowsedState,
    /// Of this group alone; empty for what has no group
    #[arg(long, value_name = "NAME", value_parser = table())]
    group: Option<TableOperand>,
    /// Show at most so many
    #[arg(long, value_name = "NUMBER", default_value_t = SHOWN_USUALLY, value_parser = clap::value_parser!(u32).range(1..))]
    most: u32,
    /// First bytes of each value to show
    #[arg(long, value_name = "BYTES", default_value_t = FIRST_BYTES_USUALLY, value_parser = clap::value_parser!(u32).range(0..=FIRST_BYTES_MAX))]
    bytes: u32,
    #[command(flatten)]
    of: S,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("kicked").required(true))]
pub(crate) struct KickArguments<S: QueueServer> {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: QueueOperand,
    /// Key of the task or id of the job
    #[arg(value_parser = operand(), group = "kicked")]
    key: Option<Operand>,
    /// All that is dead, in the order of the deaths
    #[arg(long, group = "kicked")]
    dead: bool,
    /// All that is delayed, in the order of the times
    #[arg(long, group = "kicked")]
    delayed: bool,
    /// At most so many of them
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX, hide_default_value = true, conflicts_with = "key")]
    most: u64,
    #[command(flatten)]
    of: S,
}

#[derive(Debug, Args)]
pub(crate) struct PurgeArguments<S: QueueServer> {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: QueueOperand,
    /// States: ready, delayed, dead or dropped, with commas between
    #[arg(long, value_name = "STATE,…", value_parser = states())]
    state: String,
    /// Only what has been in its state for so long, as in 7d
    #[arg(long, value_name = "TIME", value_parser = time())]
    older: Option<u64>,
    #[command(flatten)]
    of: S,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArguments<S: QueueServer> {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: QueueOperand,
    /// Length of the pause, as in 10m [default: until it is resumed]
    #[arg(long = "for", value_name = "TIME", value_parser = setting("pause"))]
    length: Option<String>,
    #[command(flatten)]
    of: S,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("setting").required(true).multiple(true))]
pub(crate) struct ConfigureArguments<S: QueueServer> {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: QueueOperand,
    /// Leases after which a task is dead if the last one fails; 0 for no bound, none for the server's --tries
    #[arg(long, value_name = "NUMBER|none", group = "setting", value_parser = setting("tries"))]
    tries: Option<String>,
    /// Time that a task waits after a lease that failed, as in 10s, or doubled each time as in 1s..10m
    #[arg(long, value_name = "TIME|none", group = "setting", value_parser = setting("backoff"))]
    backoff: Option<String>,
    /// Tasks of one group that may be lent at a time
    #[arg(long, value_name = "NUMBER|none", group = "setting", value_parser = setting("group-limit"))]
    group_limit: Option<String>,
    /// Tasks that are lent in a time, as in 10/s or 30/m, and at once after a time without any, as in 10/s,20
    #[arg(long, value_name = "RATE|none", group = "setting", value_parser = setting("rate"))]
    rate: Option<String>,
    /// When changes of a queue of tasks are on disk: always, never, or within a time as 50ms; jobs always are
    #[arg(long, value_name = "SYNC|none", group = "setting", value_parser = setting("sync"))]
    sync: Option<String>,
    #[command(flatten)]
    of: S,
}

fn state() -> impl TypedValueParser<Value = BrowsedState> {
    PossibleValuesParser::new(["ready", "delayed", "lent", "dead", "dropped"])
        .try_map(|typed| read_state(&typed).ok_or("there is no such state"))
}

fn states() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|typed| {
        read_states(&typed).map(|_| typed).ok_or("states are ready, delayed, dead and dropped, with commas between")
    })
}

/// Parses the value of a setting.
fn setting(name: &'static str) -> impl TypedValueParser<Value = String> {
    StringValueParser::new()
        .try_map(move |typed| read_setting(&mut QueueChange::default(), name, &typed).map(|()| typed))
}

impl<S: QueueServer> QueueWord<S> {
    /// Carries out the word, and prints the answer.
    ///
    /// # Errors
    /// [`CommandError`] if the server does not answer or refuses, or the answer cannot be printed.
    pub(super) fn run(self, out: &mut impl Write) -> Result<(), CommandError> {
        match self {
            Self::List(of) => list(&of, out),
            Self::Peek(arguments) => arguments.run(out),
            Self::Kick(arguments) => arguments.run(out),
            Self::Purge(PurgeArguments { queue, state, older, of }) => {
                let (format, queue) = (of.format(), queue.name(of.format().hex)?);
                let count = of.operator()?.purge(&queue, &state, older.unwrap_or(0))?;
                format.print(out, &format!("{count} removed\n"), &json!({ "removed": count }))
            }
            Self::Pause(PauseArguments { queue, length, of }) => {
                configure(&of, &queue, &[("pause", length.unwrap_or_else(|| PAUSE_ON.to_owned()))], out)
            }
            Self::Resume(QueueArguments { queue, of }) => {
                configure(&of, &queue, &[("pause", PAUSE_OFF.to_owned())], out)
            }
            Self::Configure(ConfigureArguments { queue, tries, backoff, group_limit, rate, sync, of }) => {
                let names = ["tries", "backoff", "group-limit", "rate", "sync"];
                let typed = names.into_iter().zip([tries, backoff, group_limit, rate, sync]);
                let settings: Vec<_> = typed.filter_map(|(name, value)| Some((name, value?))).collect();
                configure(&of, &queue, &settings, out)
            }
        }
    }
}

fn configure<S: QueueServer>(
    of: &S,
    queue: &QueueOperand,
    settings: &[(&'static str, String)],
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let queue = queue.name(of.format().hex)?;
    of.operator()?.configure(&queue, settings)?;
    of.format().done(out)
}

fn list<S: QueueServer>(of: &S, out: &mut impl Write) -> Result<(), CommandError> {
    let mut queues = of.operator()?.queues()?;
    queues.sort_by(|one, other| name(one).cmp(&name(other)));
    let format = of.format();
    let queues: Vec<Value> = queues.into_iter().map(|queue| in_format(queue, format.hex)).collect();
    print_lines(format, out, &queues, || lines::of_queues(&queues))
}

/// The name of a queue.
fn name(queue: &Value) -> Option<&str> {
    queue.get("name").and_then(Value::as_str)
}

/// Prints all that is known of a queue.
pub(super) fn stats<S: QueueServer>(of: &S, queue: &QueueOperand, out: &mut impl Write) -> Result<(), CommandError> {
    let format = of.format();
    let found = of.operator()?.queue(&queue.name(format.hex)?)?;
    let queue = found.ok_or_else(|| {
        let word = S::WORD;
        CommandError::NotFound(format!(
            "there is no queue of this name: it goes when it has neither a {word} nor a setting, see `spindle {word} list`"
        ))
    })?;
    let queue = in_format(queue, format.hex);
    format.print(out, &outline(&queue), &queue)
}

impl<S: QueueServer> QueueArguments<S> {
    /// Prints all that is known of the queue.
    ///
    /// # Errors
    /// [`CommandError`] if there is no such queue, or the server does not answer.
    pub(super) fn stats(&self, out: &mut impl Write) -> Result<(), CommandError> {
        stats(&self.of, &self.queue, out)
    }
}

impl<S: QueueServer> PeekArguments<S> {
    fn run(&self, out: &mut impl Write) -> Result<(), CommandError> {
        let (format, mut operator) = (self.of.format(), self.of.operator()?);
        let (queue, group) = (self.queue.name(format.hex)?, self.group.as_ref());
        let group = group.map(|group| format.hex.table(group)).transpose()?;
        let (mut shown, mut from) = (Vec::new(), None);
        loop {
            let rest = self.most.saturating_sub(u32::try_from(shown.len()).unwrap_or(u32::MAX));
            let page = WantedPage {
                queue: &queue,
                state: self.state,
                group: group.as_deref(),
                from,
                most: rest.min(PAGE_MAX),
                first_bytes: self.bytes,
            };
            let (tasks, next) = operator.page(&page)?;
            shown.extend(tasks.into_iter().take(rest as usize).map(|task| in_format(task, format.hex)));
            // A page may be short, and not the last one.
            if next.is_none() || shown.len() >= self.most as usize {
                break;
            }
            from = next;
        }
        print_lines(format, out, &shown, || lines::of_tasks(&shown))
    }
}

impl<S: QueueServer> KickArguments<S> {
    fn run(self, out: &mut impl Write) -> Result<(), CommandError> {
        let Self { queue, key, dead, most, of, .. } = self;
        let format = of.format();
        let queue = queue.name(format.hex)?;
        let what = match key {
            Some(key) => KickedTasks::One(key.read(format.hex, std::io::stdin())?),
            None if dead => KickedTasks::Dead(most),
            None => KickedTasks::Delayed(most),
        };
        let count = of.operator()?.kick(&queue, &what)?;
        if matches!(what, KickedTasks::One(_)) && count == 0 {
            let word = S::WORD;
            return Err(CommandError::NotFound(format!(
                "no {word} of this queue with this name is dead or delayed: see `spindle {word} peek`"
            )));
        }
        format.print(out, &format!("{count} kicked\n"), &json!({ "kicked": count }))
    }
}

/// Prints a line of JSON for each, or the text of all.
fn print_lines(
    format: Format,
    out: &mut impl Write,
    documents: &[Value],
    text: impl Fn() -> String,
) -> Result<(), CommandError> {
    if format.is_json() {
        return format.print_all(out, documents.iter().map(|document| format.answer(String::new, || document.clone())));
    }
    format.print_all(out, std::iter::once(text()))
}

/// The members that are bytes, or text.
const BYTES: [&str; 5] = ["name", "key", "group", "reason", "first"];

/// The document with its bytes in hexadecimal, if all are to be shown so.
fn in_format(mut document: Value, hex: Hex) -> Value {
    for name in BYTES.into_iter().filter(|_| hex.is_on()) {
        if let Some(Value::String(text)) = document.get_mut(name)
            && let Ok(bytes) = hex.bytes(text.clone().into_bytes())
        {
            *text = hex.shown(&bytes);
        }
    }
    document
}
