//! The program of a seed: connections, steps, and where each family may stand.
//!
//! ```text
//! seed ─► 1–3 connections ─► 10–40 steps: one command, a pipeline, or a step of its own kind ─► the end: all state
//! ```
//! It keeps a rough state for each connection: in MULTI, subscribed. A wrong guess costs time, never a false
//! difference. It does not know the servers.

use crate::seeded_rng::SeededRng;

use super::command::{Action, Command, Form, Program, Step};
use super::families::{
    CHANNELS_IN_TRANSACTIONS, EXCHANGES, Effect, FAMILIES, Family, LAPSES, OPEN_TRANSACTIONS, STEPS, WALKS,
    some_payload, walk,
};
use super::maker::Maker;

/// Commands of a pipeline, at most.
const PIPELINE_MAX: usize = 50;
/// One step in so many waits for a key that expires.
const STEPS_PER_LAPSE: u64 = 400;
/// The databases that programs select.
const DATABASES: [&str; 4] = ["0", "1", "9", "15"];

/// The families of a run.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    names: Vec<String>,
}

impl Selection {
    /// All families.
    pub(crate) fn all() -> Self {
        Self { names: FAMILIES.iter().map(|family| family.name).chain(STEPS).map(str::to_owned).collect() }
    }

    /// All families but these.
    pub(crate) fn without(absent: &[&str]) -> Self {
        let mut all = Self::all();
        all.names.retain(|name| !absent.contains(&name.as_str()));
        all
    }

    /// The families of this list: `strings,counters`. An unknown name panics.
    pub(crate) fn of(list: &str) -> Self {
        let all = Self::all();
        let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
        for name in &names {
            assert!(all.names.contains(name), "no family {name}, but {}", all.names.join(","));
        }
        Self { names }
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }

    fn families(&self) -> Vec<&'static Family> {
        FAMILIES.iter().filter(|family| self.has(family.name)).collect()
    }
}

/// What the generator believes of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    is_resp3: bool,
    in_multi: bool,
    is_subscribed: bool,
}

struct Generator<'a> {
    maker: Maker,
    selection: &'a Selection,
    families: Vec<&'static Family>,
    states: Vec<State>,
    steps: Vec<Step>,
}

/// The program of this seed.
pub(crate) fn program(seed: u64, selection: &Selection) -> Program {
    let mut maker = Maker::new(SeededRng(seed));
    maker.stores_expired = !selection.has("key_events");
    let connections = 1 + maker.rng.index(3);
    let states: Vec<State> = (0..connections)
        .map(|_| State { is_resp3: selection.has("hello") && maker.rng.one_in(2), ..State::default() })
        .collect();
    // The last connection is for the end.
    let begins_with_hello = states.iter().map(|state| state.is_resp3).chain([false]).collect();
    let families = selection.families();
    let mut generator = Generator { maker, selection, families, states, steps: Vec::new() };
    for _ in 0..10 + generator.maker.rng.below(30) {
        generator.step();
    }
    generator.end(connections);
    Program { begins_with_hello, steps: generator.steps }
}

impl Generator<'_> {
    fn step(&mut self) {
        let connection = self.maker.rng.index(self.states.len());
        let state = self.states[connection];
        let is_free = !state.in_multi && !state.is_subscribed;
        if state.is_subscribed && !state.is_resp3 && self.maker.rng.one_in(2) {
            let commands = vec![Command::new(&["UNSUBSCRIBE"]), Command::new(&["PUNSUBSCRIBE"])];
            self.states[connection].is_subscribed = false;
            return self.push(connection, Action::Send, commands);
        }
        if is_free && self.special(connection) {
            return;
        }
        if is_free && self.selection.has(OPEN_TRANSACTIONS) && self.maker.rng.one_in(20) {
            self.states[connection].in_multi = true;
            return self.push(connection, Action::Send, vec![Command::new(&["MULTI"])]);
        }
        let wanted = if self.maker.rng.one_in(4) { 1 } else { 1 + self.maker.rng.index(PIPELINE_MAX) };
        let mut commands = Vec::new();
        while commands.len() < wanted && self.add(connection, &mut commands) {}
        if state.in_multi && self.maker.rng.one_in(3) {
            self.states[connection].in_multi = false;
            commands.push(Command::new(&[self.maker.word(&["EXEC", "EXEC", "EXEC", "DISCARD"])]));
        }
        self.push(connection, Action::Send, commands);
    }

    /// Adds the commands of a family that may stand here. False if nothing should follow in the same write.
    fn add(&mut self, connection: usize, commands: &mut Vec<Command>) -> bool {
        let state = &mut self.states[connection];
        let weights: u64 = self.families.iter().map(|family| family.weight).sum();
        let mut choice = self.maker.rng.below(weights);
        let chosen = self.families.iter().find(|family| match choice.checked_sub(family.weight) {
            Some(rest) => {
                choice = rest;
                false
            }
            None => true,
        });
        let family = chosen.expect("some family is selected");
        if state.in_multi && family.effect != Effect::None {
            commands.push(Command::new(&["PING"]));
            return true;
        }
        state.is_subscribed |= family.effect == Effect::Subscribes;
        let made = (family.make)(&mut self.maker);
        for (place, command) in made.into_iter().enumerate() {
            // What follows in a family may be there to make the first command comparable.
            let is_fixed = place > 0 || family.effect != Effect::None || command.form == Form::Raw;
            let command = if is_fixed { command } else { self.maker.carelessly(command) };
            let state = &mut self.states[connection];
            if command.is_any(&["RESET", "QUIT"]) || command.form == Form::Raw {
                *state = State::default();
            } else if command.has(0, "HELLO") {
                state.is_resp3 = command.has(1, "3") || state.is_resp3 && !command.has(1, "2");
            } else if state.in_multi && command.arguments.len() == 1 && command.is_any(&["EXEC", "DISCARD"]) {
                state.in_multi = false;
            }
            commands.push(command);
        }
        family.effect != Effect::Connection && family.name != CHANNELS_IN_TRANSACTIONS
    }

    /// A step of its own kind. False if there is none now.
    fn special(&mut self, connection: usize) -> bool {
        let rng = &mut self.maker.rng;
        if self.selection.has(LAPSES) && rng.one_in(STEPS_PER_LAPSE) {
            let key = self.maker.key();
            let commands = self.lapse(&key);
            self.push(connection, Action::Lapse { key }, commands);
        } else if self.selection.has(WALKS) && rng.one_in(12) {
            let walk = walk(&mut self.maker);
            self.push(connection, Action::Walk, vec![walk]);
        } else if self.selection.has(WALKS) && rng.one_in(40) {
            self.push(connection, Action::RandomKey, Vec::new());
        } else if self.selection.has(EXCHANGES) && rng.one_in(20) {
            let (from, to) = (self.maker.key(), self.maker.key());
            self.push(connection, Action::Exchange { from, to }, Vec::new());
        } else {
            return false;
        }
        true
    }

    /// Commands after which this key may have a short deadline. The last command alone sets it.
    fn lapse(&mut self, key: &[u8]) -> Vec<Command> {
        let maker = &mut self.maker;
        let millis = maker.short_millis();
        let named = |name: &str| Command::new(&[name]).with(key);
        let set = named("SET").with(maker.value());
        match maker.rng.below(8) {
            0 => vec![set, named("PEXPIRE").with(millis)],
            1 => vec![named("PEXPIRE").with(millis)],
            2 => vec![set, named("GETEX").with("PX").with(millis)],
            3 => vec![named("PSETEX").with(millis).with(maker.value())],
            4 => vec![named("DEL"), named("RESTORE").with(millis).with(some_payload(maker))],
            5 => vec![set, named("PEXPIRE").with(millis).with(maker.word(&["NX", "XX", "GT", "LT"]))],
            6 if self.selection.has("watches") => vec![named("WATCH"), set.with("PX").with(millis)],
            _ => vec![set.with("PX").with(millis)],
        }
    }

    fn push(&mut self, connection: usize, action: Action, commands: Vec<Command>) {
        let rng = &mut self.maker.rng;
        let is_cut = action == Action::Send && rng.one_in(6);
        let count = if is_cut { 1 + rng.index(3) } else { 0 };
        let mut cuts: Vec<u16> =
            (0..count).map(|_| rng.next().to_le_bytes()).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        cuts.sort_unstable();
        self.steps.push(Step { connection, action, commands, cuts });
    }

    /// Ends open transactions, and compares all that the databases hold, on a connection of its own.
    fn end(&mut self, connections: usize) {
        for connection in 0..connections {
            if self.states[connection].in_multi {
                self.push(connection, Action::Send, vec![Command::new(&["EXEC"])]);
            }
        }
        let mut commands = Vec::new();
        let databases = if self.selection.has("select") { &DATABASES[..] } else { &DATABASES[..1] };
        for database in databases {
            if self.selection.has("select") {
                commands.push(Command::new(&["SELECT", database]));
            }
            if self.selection.has("all_keys") {
                commands.extend([Command::new(&["DBSIZE"]), Command::new(&["KEYS", "*"])]);
            }
            let names = Maker::all_keys().into_iter();
            if *database == "0" && self.selection.has("times") {
                commands.extend(names.clone().map(|key| Command::new(&["PTTL"]).with(key)));
            }
            if self.selection.has("several") {
                commands.push(names.fold(Command::new(&["MGET"]), Command::with));
            } else {
                commands.extend(names.map(|key| Command::new(&["GET"]).with(key)));
            }
        }
        self.steps.push(Step { connection: connections, action: Action::Send, commands, cuts: Vec::new() });
    }
}

#[test]
fn a_seed_has_one_program() {
    let all = Selection::all();
    assert_eq!(program(7, &all), program(7, &all));
    assert_ne!(program(7, &all), program(8, &all));
    assert!(program(7, &Selection::of("counters")).steps.iter().all(|step| step.action == Action::Send));
}
