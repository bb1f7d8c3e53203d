//! The words of a client of tasks that speak of many queues or many tasks: add, lend and nack.
//!
//! One queue without options is asked by the requests that every server knows.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{TaskAdd, TaskLend, TaskNack, TaskWork, no_lease};
use crate::cli::CommandError;
use crate::cli::commands::client::read_both;
use crate::cli::flags::terms::QueueOperand;
use crate::cli::show::Format;
use crate::clients::rust::tasks::LentOf;
use crate::security::DEFAULT_QUEUE;
use crate::services::tasks::wire::{AddMode, ItemResult, LIST_MAX, LeaseEnd, LendMode, NamedLease, QueueRequest};
use crate::worker::{WorkSource, WorkerError};

const SAME_KEY: &str = "there is a task of this key: see `spindle task lookup`, or change it with `update`";
const NO_ROOM: &str = "the server has no room for it: its disk or its --max-tasks is full";
const NOTHING: &str = "no task is ready: wait for one with --wait";

/// The names of the queues. None is the default one.
fn names(queues: &[QueueOperand], format: Format) -> Result<Vec<Vec<u8>>, CommandError> {
    if queues.len() > LIST_MAX {
        return Err(CommandError::Usage(format!("--queue is there {LIST_MAX} times at most")));
    }
    let mut names = queues.iter().map(|queue| queue.name(format.hex)).collect::<Result<Vec<_>, _>>()?;
    if names.is_empty() {
        names.push(DEFAULT_QUEUE.to_vec());
    }
    Ok(names)
}

/// Adds a task, to each queue that is named.
pub(super) fn add(add: TaskAdd, out: &mut impl Write) -> Result<(), CommandError> {
    let TaskAdd { key, value, head, terms, queue, of } = add;
    let (terms, names) = (terms.terms(of.format.hex)?, names(&queue, of.format)?);
    let (key, value) = read_both(key, value, of.format.hex, io::stdin())?;
    let mode = if head { AddMode::Head } else { AddMode::Tail };
    let mut client = of.connect()?;
    if terms.is_none() && queue.is_empty() {
        let added = client.add(&key, &value, mode).map_err(of.failure())?;
        return if added { of.format.done(out) } else { Err(CommandError::AlreadyThere(SAME_KEY.to_owned())) };
    }
    let queues: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let terms = terms.unwrap_or_default();
    let request = QueueRequest::AddMany { queues: queues.clone(), key: &key, value: &value, mode, terms };
    let items = client.add_many(request).map_err(of.failure())?;
    let without = |wanted: ItemResult| {
        let of_those = queues.iter().zip(&items).filter(|(_, item)| **item == wanted);
        of_those.map(|(queue, _)| of.format.hex.shown(queue)).collect::<Vec<_>>().join(", ")
    };
    let done = items.iter().filter(|item| **item == ItemResult::Done).count();
    let count = |what: &str| format!("{what}; {done} of {} queues have it now", queues.len());
    let (full, kept) = (without(ItemResult::NoRoom), without(ItemResult::Refused));
    match (full.is_empty(), kept.is_empty()) {
        (true, true) => of.format.done(out),
        (false, _) => Err(CommandError::Failed(count(&format!("queue {full}: {NO_ROOM}")))),
        (true, false) if queues.len() == 1 => Err(CommandError::AlreadyThere(SAME_KEY.to_owned())),
        (true, false) => Err(CommandError::AlreadyThere(count(&format!("queue {kept}: {SAME_KEY}")))),
    }
}

/// Leases the next task, or some.
pub(super) fn lend(lend: &TaskLend, out: &mut impl Write) -> Result<(), CommandError> {
    let TaskLend { timeout, wait, count, queue, raw, of } = lend;
    let (format, names) = (of.format, names(queue, of.format)?);
    let mut client = of.connect()?;
    let is_old = queue.is_empty() && *count == 1 && wait.is_none_or(|wait| wait == u64::MAX);
    let lent = if is_old {
        let mode = if wait.is_some() { LendMode::Block } else { LendMode::Poll };
        let lent = client.lend(*timeout, mode).map_err(of.failure())?;
        lent.map(|lent| LentOf { queue: 0, lend_key: lent.lend_key, tries: 0, key: lent.key, value: lent.value })
            .into_iter()
            .collect()
    } else {
        let queues: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        client.lend_many(&queues, *count, *timeout, wait.unwrap_or(0)).map_err(of.failure())?
    };
    if lent.is_empty() {
        return Err(CommandError::NotFound(NOTHING.to_owned()));
    }
    for task in &lent {
        let queue = names.get(task.queue).map_or(&[][..], Vec::as_slice);
        // Where several queues may have lent it, the line says which has.
        let from = if names.len() > 1 { format!(" {}", format.hex.shown(queue)) } else { String::new() };
        let head = format!("{} {}{from}\n", task.lend_key, format.hex.shown(&task.key));
        let json = || {
            let mut json = json!({
                "lend_key": task.lend_key,
                "key": format.hex.shown_in_json(&task.key),
                "value": format.hex.shown_in_json(&task.value),
            });
            if let (Value::Object(members), false) = (&mut json, is_old) {
                members.insert("queue".to_owned(), json!(format.hex.shown_in_json(queue)));
                members.insert("tries".to_owned(), json!(task.tries));
            }
            json
        };
        format.print_value(out, *raw, &head, &task.value, json)?;
    }
    Ok(())
}

/// Runs a command for each task.
pub(super) fn work(TaskWork { queue, flags, of }: TaskWork, out: &mut impl Write) -> Result<(), CommandError> {
    let queues = names(&queue, of.format)?;
    of.login.log_in()?;
    let of_client = of.failure();
    let failure = |error| match error {
        WorkerError::Server(error) => of_client(error),
        error => CommandError::Failed(error.to_string()),
    };
    flags.run(WorkSource::Tasks { endpoint: of.connect, queues }, of.format, failure, out)
}

/// Gives a task back that has failed, or was not begun.
pub(super) fn nack(nack: TaskNack, out: &mut impl Write) -> Result<(), CommandError> {
    let TaskNack { lend_key, key, reason, delay, dead, not_begun, of } = nack;
    let (format, queue) = (of.format(), of.name()?);
    let key = key.read(format.hex, io::stdin())?;
    let reason = reason.map_or(Ok(Vec::new()), |reason| format.hex.table(&reason))?;
    let end = match (not_begun, dead) {
        (true, _) => LeaseEnd::NotBegun,
        (_, true) => LeaseEnd::Bury { reason: &reason },
        _ => LeaseEnd::GiveBack { delay_ms: delay, reason: &reason },
    };
    let lease = NamedLease { queue: &queue, lend_key, key: &key };
    let items = of.server.connect()?.settle_many(vec![(lease, end)]).map_err(of.failure())?;
    if items.first() == Some(&ItemResult::Done) { format.done(out) } else { Err(no_lease()) }
}
