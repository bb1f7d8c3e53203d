//! A turn of commands answered.
//!
//! ```text
//! commands of one connection ─► find their rows, prefetch up to LOOK_AHEAD of them ─► carry out, one after the other ─► replies
//!                                                                                      └─► outcome: all, some, or it waits
//! ```
//! When the tables refuse a command as busy, the turn has to wait, and the worker serves other connections. A turn ends
//! when its replies together pass [`LARGE_REPLIES_BYTES`], and after a page of a walk over the keys.
//!
//! Two kinds of commands are not carried out: all of a user that has changed since the client named it, and the reads of
//! a connection that has ended.

use std::iter;

use super::answer::Failure;
use super::call::Call;
use super::carry_out::{Decoded, FEW_ARGUMENTS, Handled, admit, attempt};
use super::client::RespClient;
use super::command_info::flag;
use super::commands::{COMMANDS, find};
use super::context::RespContext;
use super::exec::exec;
use super::metrics::{CommandOutcome, RespMetrics, VERB_OFFSET};
use super::subscribers::WorkerSubscribers;
use crate::clock::Now;
use crate::limits::{BUFFER_KEPT_BYTES, LARGE_REPLIES_BYTES, LOOK_AHEAD};
use crate::messages::MessageView;
use crate::net::zeromq::{ReplyBuffer, TAKEN_AT_ONCE_BYTES, TimedReply, TurnOutcome};
use crate::resp3::{ReplyWriter, reply_length};
use crate::services::tables::turn::{ConnectionTurn, WorkerState};
use crate::tables::{Lack, ManyProgress};

/// What a worker needs to answer the commands of its connections.
pub(super) struct RespWorker<'w> {
    pub(super) state: &'w mut WorkerState,
    pub(super) context: &'w RespContext,
    pub(super) metrics: &'w RespMetrics,
    pub(super) subscribers: &'w mut WorkerSubscribers,
    pub(super) now: &'w dyn Fn() -> Now,
    /// The number of the last command that was answered.
    pub(super) last: Option<usize>,
}

impl RespWorker<'_> {
    /// Answers the commands of a turn, and times it.
    pub(super) fn answer_turn(
        &mut self,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        mut turn: ConnectionTurn<'_, RespClient>,
    ) -> TurnOutcome {
        if !turn.client.is_current() {
            // Its connection is about to be closed.
            turn.client.progress = ManyProgress::default();
            self.state.clients.dropped_requests.add(messages.len() as u64);
            return TurnOutcome::All;
        }
        let begun = self.state.clock.now();
        let arrived = outbox.arrived(begun);
        let replies_begin = outbox.end();
        let outcome = self.answer_commands(messages, outbox, &mut turn, [arrived, begun]);
        outbox.set_open(turn.client.has_partial_reply());
        let answered = outcome.count().unwrap_or(messages.len());
        let now = self.state.clock.now();
        if answered > 0 {
            turn.client.place.card.note(self.last, now);
        }
        turn.client.show_counts();
        let is_slow = self.state.report.slow.is_slow(arrived.nanos_until(now));
        if is_slow || outbox.len() as u64 > TAKEN_AT_ONCE_BYTES {
            let first = if is_slow { 0 } else { answered.saturating_sub(1) };
            let table = turn.client.table.clone();
            // Commands whose replies the client does not want take time too.
            let sizes: Vec<u64> = reply_sizes(outbox.since(replies_begin)).collect();
            for (message, size) in
                messages.iter().zip(sizes.into_iter().chain(iter::repeat(0))).take(answered).skip(first)
            {
                let verb = message.frames().next().and_then(find).unwrap_or(COMMANDS.len());
                outbox.time(TimedReply {
                    arrived,
                    begun: Some(begun),
                    answered: now,
                    verb: VERB_OFFSET + verb,
                    samples: 0,
                    request_bytes: message.frames().map(<[u8]>::len).sum(),
                    reply_bytes: size,
                    table: Some(table.clone()),
                });
            }
        }
        outcome
    }

    /// Answers commands in their order, up to one that has to wait, or until the replies are large together.
    fn answer_commands(
        &mut self,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        turn: &mut ConnectionTurn<'_, RespClient>,
        [arrived, begun]: [Now; 2],
    ) -> TurnOutcome {
        let Self { state, context, metrics, subscribers, now, last } = self;
        let WorkerState { session, clock, clients, picker, .. } = &mut **state;
        let mut batch = session.batch(begun);
        let replies_end = outbox.end() + LARGE_REPLIES_BYTES;
        let (mut answered, mut left) = (0, messages.iter());
        while answered < messages.len() {
            let mut few = [[&[][..]; FEW_ARGUMENTS]; LOOK_AHEAD];
            let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
            let mut decoded = [const { None::<Decoded<'_>> }; LOOK_AHEAD];
            let places = decoded.iter_mut().zip(few.iter_mut().zip(&mut many)).zip(&mut left);
            for ((place, (few, many)), message) in places {
                *place = Some(Decoded::of(&message, few, many));
            }
            let table = turn.client.table.clone();
            let fetched = batch.prefetch(decoded.iter().flatten().map(|command| Some((&*table, command.key()?))));
            for (command, number) in decoded.iter().flatten().zip(0..) {
                batch.expect(&fetched, number);
                let is_timed = picker.picks();
                if outbox.is_unread() && command.only_reads() && !turn.client.is_collecting() {
                    (turn.client.progress, turn.client.collected.walk) = (ManyProgress::default(), None);
                    clients.dropped_requests.add(1);
                    answered += 1;
                    continue;
                }
                let started = is_timed.then(|| clock.now().nanos());
                let is_held_up = turn.is_held_up(may_change(turn.client, command));
                let (reply_begin, is_rest) = (outbox.end(), turn.client.has_partial_reply());
                let mut call = Call {
                    batch: &mut batch,
                    id: turn.id(),
                    client: turn.client,
                    subscribers,
                    may_wait: true,
                    context,
                    metrics,
                    now: *now,
                };
                let step = match is_held_up {
                    true => Step::Busy(Lack::Credits),
                    false => answer(&mut call, *command, outbox),
                };
                outbox.wait_for_disk(batch.take_awaited(), reply_begin, || step.envelope(is_rest));
                let Step::Whole(outcome) = step else { return end(&step, turn, answered) };
                metrics.count(command.verb(), outcome);
                if let Some(started) = started {
                    metrics.record(command.verb(), clock.now().nanos() - started);
                    outbox.sample(VERB_OFFSET + command.verb(), arrived);
                }
                turn.note_answer();
                *last = command.number;
                answered += 1;
                clients.count(true, outbox.is_unread());
                if turn.client.ends {
                    return TurnOutcome::Last;
                }
                let is_walk = command.info().is_some_and(|info| matches!(info.name, "scan" | "keys" | "randomkey"));
                if (outbox.end() > replies_end || is_walk) && answered < messages.len() {
                    return TurnOutcome::Some(answered);
                }
            }
        }
        TurnOutcome::All
    }
}

/// Lets the processor fetch what the first commands of these turns read, so that their cache misses overlap.
pub(crate) fn prefetch_first<'b>(
    state: &mut WorkerState,
    turns: impl Iterator<Item = (&'b RespClient, MessageView<'b>)>,
    now: Now,
) {
    let mut few = [[&[][..]; FEW_ARGUMENTS]; LOOK_AHEAD];
    let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
    let mut firsts = [const { None::<(&[u8], Decoded<'_>)> }; LOOK_AHEAD];
    let turns = turns.filter_map(|(client, messages)| Some((client, messages.iter().next()?)));
    for ((place, (few, many)), (client, message)) in firsts.iter_mut().zip(few.iter_mut().zip(&mut many)).zip(turns) {
        *place = Some((&client.table, Decoded::of(&message, few, many)));
    }
    let elements = firsts.iter().flatten().map(|(table, command)| Some((*table, command.key()?)));
    let _places = state.session.batch(now).prefetch(elements);
}

/// Whether a command may change elements. Between MULTI and EXEC it is queued, and EXEC may change them.
fn may_change(client: &RespClient, command: &Decoded<'_>) -> bool {
    let queue = client.collected.transaction.as_ref().and_then(|transaction| transaction.queue.as_ref());
    match (queue, command.info()) {
        (Some(queue), Some(info)) => info.name == "exec" && any_changes(queue.commands.numbers()),
        _ => command.changes(),
    }
}

/// Whether one of the commands of these numbers may change elements.
fn any_changes(numbers: impl Iterator<Item = usize>) -> bool {
    let mut rows = numbers.filter_map(|number| COMMANDS.get(number));
    rows.any(|row| row.info.has(flag::WRITE | flag::MAY_WRITE))
}

/// What has come of an attempt to answer a command.
enum Step {
    Whole(CommandOutcome),
    /// A portion is done.
    InPart,
    /// Nothing is done: the reply is too long while memory is tight, or what was collected for it.
    Starved,
    /// It waits for the publisher.
    Waits,
    /// Nothing is done: the tables lack something.
    Busy(Lack),
}

impl Step {
    /// The bytes before the error that may take the place of a reply. `None`: none can. `is_rest`: it has begun before.
    fn envelope(&self, is_rest: bool) -> Option<usize> {
        (!is_rest && matches!(self, Self::Whole(_))).then_some(0)
    }
}

/// The turn ends before its next command is carried out whole.
fn end(step: &Step, turn: &mut ConnectionTurn<'_, RespClient>, answered: usize) -> TurnOutcome {
    match step {
        Step::Whole(_) | Step::InPart => TurnOutcome::Some(answered),
        Step::Starved => TurnOutcome::Starved(answered),
        Step::Waits => TurnOutcome::Parked(answered),
        Step::Busy(lack) => {
            turn.wait(*lack);
            TurnOutcome::Parked(answered)
        }
    }
}

/// Carries a command out, and appends its reply.
fn answer(call: &mut Call<'_, '_>, command: Decoded<'_>, outbox: &mut ReplyBuffer) -> Step {
    if let Some(subscriptions) = &mut call.client.subscriptions
        && !call.subscribers.has_caught_up(subscriptions)
    {
        return Step::InPart;
    }
    let bytes_max = outbox.is_tight().then_some(BUFFER_KEPT_BYTES);
    if let Some(most) = bytes_max
        && command.returns_value()
        && let Some(key) = command.key()
        && call.get(key).is_ok_and(|value| value.is_some_and(|value| value.len() > most))
    {
        return Step::Starved;
    }
    if bytes_max.is_some_and(|most| call.client.walk_bytes() > most) {
        return Step::Starved;
    }
    let begin = outbox.end();
    let handled = match command.info() {
        Some(info) if info.name == "exec" => match admit(call, command) {
            Ok(_) => {
                call.client.show_counts();
                exec(call, outbox)
            }
            Err(refusal) => refusal,
        },
        _ => attempt(call, command, bytes_max, outbox),
    };
    let is_pushed = matches!(handled, Handled::Pushed);
    let refusal = match handled {
        Handled::Rejected(_) => CommandOutcome::Rejected,
        _ => CommandOutcome::Failed,
    };
    let outcome = match handled {
        Handled::Whole | Handled::Pushed => CommandOutcome::Done,
        Handled::Queued => CommandOutcome::Queued,
        Handled::Executed => {
            call.client.take_reply();
            return Step::Whole(CommandOutcome::Done);
        }
        Handled::Portion { count, is_pushed } => {
            call.client.progress.advance(count);
            if !call.client.wants_replies() && !is_pushed {
                outbox.truncate(begin);
            }
            return Step::InPart;
        }
        Handled::TooLong => return Step::Starved,
        Handled::Failed(Failure::Busy) => return Step::Busy(call.batch.lack()),
        // The table was deleted again just after it was made: there is nothing to wait for.
        Handled::Failed(Failure::Unfinished | Failure::Claims | Failure::NoTable) => return Step::InPart,
        Handled::Failed(Failure::Waits) => return Step::Waits,
        Handled::Failed(Failure::Refused(words)) | Handled::Rejected(words) => {
            let version = call.client.version;
            outbox.encode(|out| ReplyWriter::new(out, version).error(&words));
            call.metrics.count_error(&words);
            refusal
        }
    };
    if command.info().is_some_and(|info| info.has(flag::SHOWN)) {
        call.client.show(command.arguments);
    }
    if call.client.progress.has_begun() {
        call.client.progress = ManyProgress::default();
    }
    if !call.client.take_reply() && !is_pushed {
        outbox.truncate(begin);
    }
    Step::Whole(outcome)
}

/// The length of each reply in these bytes.
fn reply_sizes(mut bytes: &[u8]) -> impl Iterator<Item = u64> {
    iter::from_fn(move || {
        let length = reply_length(bytes)?;
        bytes = bytes.get(length..).unwrap_or_default();
        Some(length as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EXEC overtook the changes that waited for credits, and took these credits each time.
    #[test]
    fn a_transaction_changes_elements_if_one_of_its_commands_may() {
        let mut numbers = Vec::new();
        for (name, changes) in [("ping", false), ("get", false), ("publish", false), ("eval", true), ("get", true)] {
            numbers.extend(find(name.as_bytes()));
            assert_eq!(any_changes(numbers.iter().copied()), changes, "behind {name}");
        }
        assert_eq!(numbers.len(), 5);
    }
}
