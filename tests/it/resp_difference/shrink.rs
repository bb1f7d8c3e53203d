//! A smaller program that still shows a difference: fewer steps, fewer commands, no cuts, short arguments.
//!
//! ```text
//! drop halves, quarters, … of the steps ─► the same of commands ─► simpler forms ─► again, until none helps
//! ```
//! It only knows whether a program differs, not why.

use std::time::{Duration, Instant};

use super::command::{Action, Command, Form, Program, Step};

/// How long shrinking may take.
const TIME: Duration = Duration::from_secs(60);
/// An argument that is longer is tried at this length.
const SHORT_BYTES: usize = 8;

struct Shrinker<'a> {
    differs: &'a mut dyn FnMut(&Program) -> bool,
    begin: Instant,
    best: Program,
}

/// The smallest program found. `differs` runs a program.
pub(crate) fn shrink(program: &Program, differs: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut shrinker = Shrinker { differs, begin: Instant::now(), best: program.clone() };
    loop {
        let before = shrinker.best.clone();
        shrinker.steps();
        shrinker.commands();
        shrinker.forms();
        if shrinker.best == before || shrinker.is_late() {
            return shrinker.best;
        }
    }
}

impl Shrinker<'_> {
    fn is_late(&self) -> bool {
        self.begin.elapsed() > TIME
    }

    /// Keeps a candidate that still differs. Returns whether it does.
    fn attempt(&mut self, candidate: Program) -> bool {
        let is_smaller = candidate != self.best && !self.is_late() && (self.differs)(&candidate);
        if is_smaller {
            self.best = candidate;
        }
        is_smaller
    }

    /// Drops runs of steps.
    fn steps(&mut self) {
        let mut length = self.best.steps.len().div_ceil(2);
        while length > 0 {
            let mut start = 0;
            while start < self.best.steps.len() {
                let mut candidate = self.best.clone();
                let end = (start + length).min(candidate.steps.len());
                candidate.steps.drain(start..end);
                if !self.attempt(candidate) {
                    start += length;
                }
            }
            length /= 2;
        }
    }

    /// Drops runs of commands in each pipeline.
    fn commands(&mut self) {
        for place in 0..self.best.steps.len() {
            let mut length = self.best.steps[place].commands.len().div_ceil(2);
            while length > 0 {
                let mut start = 0;
                while start < self.best.steps[place].commands.len() {
                    let mut candidate = self.best.clone();
                    let commands = &mut candidate.steps[place].commands;
                    let end = (start + length).min(commands.len());
                    commands.drain(start..end);
                    let is_whole = candidate.steps[place].action != Action::Walk;
                    if !is_whole || !self.attempt(candidate) {
                        start += length;
                    }
                }
                length /= 2;
            }
        }
    }

    /// Makes what is left simpler.
    fn forms(&mut self) {
        for place in 0..self.best.begins_with_hello.len() {
            let mut candidate = self.best.clone();
            candidate.begins_with_hello[place] = false;
            self.attempt(candidate);
        }
        for place in 0..self.best.steps.len() {
            self.change(place, |step| step.cuts.clear());
            self.change(place, |step| step.connection = 0);
            for index in 0..self.best.steps[place].commands.len() {
                self.command(place, index);
            }
        }
    }

    fn command(&mut self, place: usize, index: usize) {
        self.change(place, |step| {
            let command = &mut step.commands[index];
            command.form = if command.form == Form::Raw { Form::Raw } else { Form::Array };
        });
        if self.best.steps[place].commands[index].form == Form::Raw {
            return;
        }
        self.change(place, |step| step.commands[index].arguments[0].make_ascii_uppercase());
        let count = self.best.steps[place].commands[index].arguments.len();
        // A digest or a text of a script is whole, or of no script.
        let is_script =
            ["EVAL", "EVALSHA", "SCRIPT"].iter().any(|name| self.best.steps[place].commands[index].has(0, name));
        for argument in if is_script { 3 } else { 1 }..count {
            self.change(place, |step| truncate(&mut step.commands[index], argument));
        }
    }

    fn change(&mut self, place: usize, change: impl Fn(&mut Step)) {
        let mut candidate = self.best.clone();
        change(&mut candidate.steps[place]);
        self.attempt(candidate);
    }
}

fn truncate(command: &mut Command, argument: usize) {
    command.arguments[argument].truncate(SHORT_BYTES);
}

#[test]
fn only_the_steps_that_matter_are_left() {
    let step = |name: &str| {
        let mut commands: Vec<Command> = (0..5).map(|_| Command::new(&["ping"])).collect();
        commands.push(Command::new(&[name]).with(vec![b'x'; 100]));
        Step { connection: 1, action: Action::Send, commands, cuts: vec![7] }
    };
    let steps = (0..20).map(|number| step(if number % 7 == 3 { "get" } else { "set" })).collect();
    let program = Program { begins_with_hello: vec![true, true], steps };
    let mut differs = |program: &Program| {
        let count =
            program.steps.iter().flat_map(|step| &step.commands).filter(|command| command.has(0, "get")).count();
        count >= 2
    };
    let small = shrink(&program, &mut differs);
    assert_eq!(small.commands(), 2);
    assert_eq!(small.shown(), "0> GET xxxxxxxx\n0> GET xxxxxxxx\n");
}
