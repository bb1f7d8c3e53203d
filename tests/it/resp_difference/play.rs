//! A program on both servers, step by step, until the end or the first difference.
//!
//! ```text
//! FLUSHALL on both ─► step ─► messages ─► step ─► … ─► messages ─► close, and wait for both servers to close
//! ```
//! A connection that a server has closed is opened again by the next step on it.

use super::command::{Action, Program, Step};
use super::round::{Pair, Round, Stop};
use super::special;

/// How the servers differ.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The step at which the difference shows.
    pub(crate) step: usize,
    pub(crate) command: String,
    pub(crate) redis: String,
    pub(crate) other: String,
}

/// How a round ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Same,
    /// A difference on purpose made the rest incomparable.
    Ended,
    /// Neither server answered a step in time. The rest was left out.
    Stalled,
    Different(Box<Difference>),
}

/// Runs a program.
pub(crate) fn run(pair: &Pair<'_>, program: &Program) -> Outcome {
    let mut round = Round::new(pair, program.begins_with_hello.len());
    let stopped = round.clear().err().map(|stop| (0, stop));
    let stopped = stopped.or_else(|| {
        let mut steps = program.steps.iter().enumerate();
        steps.find_map(|(place, next)| step(&mut round, program, next).err().map(|stop| (place, stop)))
    });
    let stopped = stopped.or_else(|| round.messages().err().map(|stop| (program.steps.len(), stop)));
    round.close();
    match stopped {
        None => Outcome::Same,
        Some((_, Stop::Ended)) => Outcome::Ended,
        Some((_, Stop::Stalled)) => Outcome::Stalled,
        Some((step, Stop::Different { command, redis, other })) => {
            Outcome::Different(Box::new(Difference { step, command, redis, other }))
        }
    }
}

fn step(round: &mut Round<'_>, program: &Program, step: &Step) -> Result<(), Stop> {
    let place = step.connection;
    let mut line = round.take(place, program.begins_with_hello[place])?;
    let done = match &step.action {
        Action::Send => round.send(&mut line, &step.commands, &step.cuts),
        Action::Lapse { key } => {
            round.send(&mut line, &step.commands, &[]).and_then(|()| special::lapse(round, &mut line, key))
        }
        Action::Walk => special::walk(round, &mut line, &step.commands[0]),
        Action::RandomKey => special::random_key(round, &mut line),
        Action::Exchange { from, to } => special::exchange(round, &mut line, from, to),
    };
    round.put(place, line);
    done.and_then(|()| round.after(&step.commands))
}
