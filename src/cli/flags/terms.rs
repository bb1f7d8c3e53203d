//! The flags of a task or a job that is added: its class, a delay, its tries, and more.

use clap::Args;
use clap::builder::{StringValueParser, TypedValueParser};

use super::operand::{Hex, TableOperand, table};
use crate::cli::CommandError;
use crate::services::jobs::wire::read_options;
use crate::services::operator::admin::queues::words::read_millis;
use crate::tasks::AddTerms;

/// What a time is.
const TIME: &str = "a time is a whole number with a unit, as in 500ms, 30s, 10m, 2h or 7d";

/// The flags, as typed.
#[derive(Debug, Args)]
pub(crate) struct TermsFlags {
    /// Priority class: a smaller one is lent first [default: 65536]
    #[arg(long, value_name = "NUMBER")]
    class: Option<u32>,
    /// Time until it may be lent, as in 30s [default: at once]
    #[arg(long, value_name = "TIME", value_parser = time())]
    delay: Option<u64>,
    /// Leases after which it is dead if the last fails; 0 for no bound [default: as its queue says]
    #[arg(long, value_name = "NUMBER")]
    tries: Option<u32>,
    /// Time to wait after a lease that failed, as in 10s, or doubled each time as in 1s..10m [default: as its queue says]
    #[arg(long, value_name = "TIME", value_parser = option("backoff", "a backoff is a time as in 10s, or two as in 1s..10m"))]
    backoff: Option<String>,
    /// Group that it is of, such as the name of a customer
    #[arg(long, value_name = "NAME", value_parser = table())]
    group: Option<TableOperand>,
    /// Time after which it goes, unless it is lent, as in 2h [default: never]
    #[arg(long, value_name = "TIME", value_parser = time())]
    expires: Option<u64>,
}

/// Parses a time with a unit. Returns milliseconds.
pub(crate) fn time() -> impl TypedValueParser<Value = u64> {
    StringValueParser::new().try_map(|typed| read_millis(&typed).ok_or(TIME))
}

/// The wait that ends only with a task.
pub(crate) const FOREVER: &str = "forever";

/// Parses a time to wait, in milliseconds.
pub(crate) fn wait() -> impl TypedValueParser<Value = u64> {
    StringValueParser::new().try_map(|typed| {
        let forever = (typed == FOREVER).then_some(u64::MAX);
        forever.or_else(|| read_millis(&typed)).ok_or(TIME)
    })
}

/// Parses an option of a job. Any other text is refused with the sentence.
pub(crate) fn option(name: &'static str, sentence: &'static str) -> impl TypedValueParser<Value = String> {
    StringValueParser::new()
        .try_map(move |typed| read_options(format!("{name}={typed}").as_bytes()).map(|_| typed).ok_or(sentence))
}

impl TermsFlags {
    /// The terms of a task. `None`: no flag was typed.
    ///
    /// # Errors
    /// [`CommandError::Usage`] for a group that is none.
    pub(crate) fn terms(&self, hex: Hex) -> Result<Option<AddTerms>, CommandError> {
        let options = self.options(false, hex)?;
        let read = if options.is_empty() { None } else { read_options(options.join(",").as_bytes()) };
        let group = self.group(hex)?;
        if read.is_none() && group.is_empty() {
            return Ok(None);
        }
        Ok(Some(AddTerms { group: group.into(), ..read.unwrap_or_default() }))
    }

    /// The same as options of a job: `name=value`, but for the group if that is not asked for.
    ///
    /// # Errors
    /// [`CommandError::Usage`] for a group that is none.
    pub(crate) fn options(&self, with_group: bool, hex: Hex) -> Result<Vec<String>, CommandError> {
        let Self { class, delay, tries, backoff, expires, .. } = self;
        let mut options: Vec<String> = Vec::new();
        options.extend(class.map(|class| format!("class={class}")));
        options.extend(delay.map(|millis| format!("delay={millis}ms")));
        options.extend(tries.map(|tries| format!("tries={tries}")));
        options.extend(backoff.as_ref().map(|backoff| format!("backoff={backoff}")));
        options.extend(expires.map(|millis| format!("expires={millis}ms")));
        let group = if with_group { self.group(hex)? } else { Vec::new() };
        if !group.is_empty() {
            let group = String::from_utf8(group).ok().map(|group| format!("group={group}"));
            let option = group.filter(|group| read_options(group.as_bytes()).is_some());
            options.push(option.ok_or_else(|| {
                CommandError::Usage("the group of a job is text without white space and commas".to_owned())
            })?);
        }
        Ok(options)
    }

    fn group(&self, hex: Hex) -> Result<Vec<u8>, CommandError> {
        let group = self.group.as_ref().map_or(Ok(Vec::new()), |group| hex.table(group))?;
        if group.len() > usize::from(u8::MAX) {
            return Err(CommandError::Usage("the name of a group has at most 255 bytes".to_owned()));
        }
        Ok(group)
    }
}

/// The name of a queue, as typed.
#[derive(Clone, Debug)]
pub(crate) struct QueueOperand(TableOperand);

/// Parses the name of a queue.
pub(crate) fn queue() -> impl TypedValueParser<Value = QueueOperand> {
    table().map(QueueOperand)
}

impl QueueOperand {
    /// The name.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if it is the name of no queue.
    pub(crate) fn name(&self, hex: Hex) -> Result<Vec<u8>, CommandError> {
        let name = hex.table(&self.0)?;
        if (1..=usize::from(u8::MAX)).contains(&name.len()) {
            return Ok(name);
        }
        Err(CommandError::Usage("the name of a queue has 1 to 255 bytes".to_owned()))
    }
}
