//! Decides whether a history of one element is possible as one operation after the other.
//!
//! `search` looks for an order. This file has the model of an element, to which it applies the operations.
//!
//! It looks at one element at a time, which is sound since linearizability is local. CREATE_TABLE and DELETE_TABLE
//! belong to the history of every element of their table. The checker does not check that all elements see them at one
//! moment. It does not know sockets or tables. Another module records the history.
//!
//! ```text
//! operation   |── invoked ── the server reads its clock ── takes effect ── returned ──|
//! deadline    that reading + TTL, so it lies in a window; each answer that depends on it makes the window narrower:
//!             found at c: deadline > c        gone by c: deadline <= c        remaining r at c: deadline = c + r
//! ```

mod search;

use std::collections::HashSet;

use spindle::clock::Ttl;

use search::Search;
pub(crate) use search::{Sequential, is_linearizable_from};

/// Nanoseconds in a millisecond, to which deadlines are rounded up and readings of the clock down.
const MILLI: u64 = 1_000_000;

/// A value, by a number that each write of a history has to itself.
pub(crate) type Value = u64;

/// Set in the value of a counter. The other bits are its number.
pub(crate) const COUNTER: Value = 1 << 63;

/// The request. A TTL of `None` keeps the deadline, [`Ttl::NONE`] removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    CreateTable,
    DeleteTable,
    Update(Value, Option<Ttl>),
    /// A pair of an UPDATE_MANY, except its last one. A refusal because of the missing table may have come at a later
    /// pair.
    Pair(Value, Option<Ttl>),
    Delete,
    /// A key of a DELETE_MANY, except its last one. As [`Request::Pair`].
    DeletePart,
    Get,
    GetEntry,
    CompareAndSwap(u64, Value, Option<Ttl>),
    CompareAndDelete(u64),
    Touch(Ttl),
    GetAndTouch(Ttl),
    /// Adds 1. The TTL is for an element that this request makes.
    Increment(Option<Ttl>),
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    Value(Value),
    /// Of GET_ENTRY: the remaining time is in milliseconds, `None` if the element has no deadline.
    Entry(Value, u64, Option<u64>),
    /// The new version.
    Swapped(u64),
    /// The sum, and the new version.
    Counted(Value, u64),
    NotANumber,
    TableExists,
    TableNotFound,
    KeyNotFound,
    /// The current version.
    VersionMismatch(u64),
    /// None: the server was killed before. The operation may have happened, before its span ends.
    Lost,
}

/// The times of an operation. `invoked` and `returned` are stamps that only order operations. The other three are
/// nanoseconds of the clock that deadlines are measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) invoked: u64,
    pub(crate) returned: u64,
    /// The server read its clock at this time or later …
    pub(crate) clock_min: u64,
    /// … and at this time or earlier.
    pub(crate) clock_max: u64,
    /// The latest reading that any clock can have shown when the operation returned. An expiry by another thread
    /// happened no later.
    pub(crate) latest: u64,
}

/// One operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) span: Span,
    pub(crate) request: Request,
    pub(crate) answer: Answer,
}

/// The window of a deadline, in nanoseconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Window {
    earliest: u64,
    latest: u64,
}

impl Window {
    fn of_write(span: &Span, ttl: Ttl) -> Self {
        let ttl = ttl.millis() * MILLI;
        Self { earliest: span.clock_min + ttl, latest: span.clock_max + ttl + MILLI }
    }

    /// The intersection of both windows.
    fn meet(self, other: Self) -> Option<Self> {
        let earliest = self.earliest.max(other.earliest);
        let latest = self.latest.min(other.latest);
        (earliest <= latest).then_some(Self { earliest, latest })
    }
}

/// An element that is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Element {
    value: Value,
    /// Known if an answer contained it. Otherwise it is above the floor.
    version: Option<u64>,
    deadline: Option<Window>,
}

/// The model: a table that may exist, one element of it, and the used versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Model {
    table: bool,
    element: Option<Element>,
    /// All versions up to this one are used. The present element's version is above it.
    floor: u64,
}

impl Model {
    /// Without a table, and with all versions unused.
    const START: Self = Self { table: false, element: None, floor: 0 };

    /// The highest version that is certainly used, with that of the present element.
    fn used(&self) -> u64 {
        let present = self.element.map(|element| element.version.unwrap_or(self.floor + 1));
        present.unwrap_or(self.floor)
    }

    /// With a new state of the element. Its version is known only if an answer contains it.
    fn written(self, value: Value, version: Option<u64>, deadline: Option<Window>) -> Self {
        Self { floor: self.used(), element: Some(Element { value, version, deadline }), ..self }
    }

    /// Without the element. Its removal is a change with a version of its own.
    fn gone(self) -> Self {
        Self { floor: self.used() + 1, element: None, ..self }
    }

    /// The same model, with the version of the present element known. `None` if it cannot be that version.
    fn learning(self, version: u64) -> Option<Self> {
        let element = self.element?;
        let fits = element.version.map_or(version > self.floor, |known| known == version);
        let element = Some(Element { version: Some(version), ..element });
        fits.then_some(Self { element, ..self })
    }

    /// The same model, with the deadline of the present element in this window.
    fn narrowed(self, window: Window) -> Option<Self> {
        let element = self.element?;
        let deadline = Some(element.deadline?.meet(window)?);
        Some(Self { element: Some(Element { deadline, ..element }), ..self })
    }

    /// With a table, or without one and its elements.
    fn with_table(self, table: bool) -> Self {
        Self { table, element: None, floor: self.used() }
    }

    /// As a server sees it that starts again.
    fn restarted(self) -> Self {
        let later = |window: Window| Window { latest: window.latest + RESTART, ..window };
        let element = self.element.map(|element| Element { deadline: element.deadline.map(later), ..element });
        Self { element, ..self }
    }

    /// Whether a version that is new to the element can be this one.
    fn can_give(&self, version: u64) -> bool {
        version > self.used()
    }
}

/// A server that starts again may see deadlines later by so much: its clocks count whole milliseconds from its start on.
const RESTART: u64 = 2 * MILLI;

/// The possible models after the operation: none if the answer cannot have come from this model.
///
/// An element with a deadline was either still there when the server read its clock, or had expired when the answer
/// came.
fn successors(model: &Model, operation: &Operation) -> Vec<Model> {
    let part_of_many = match operation.request {
        Request::Pair(value, ttl) => Some((Request::Update(value, ttl), &[Answer::Ok][..])),
        Request::DeletePart => Some((Request::Delete, &[Answer::Ok, Answer::KeyNotFound][..])),
        _ => None,
    };
    if let Some((request, done)) = part_of_many {
        let alone = |answer| Operation { request, answer, span: operation.span };
        let done = if operation.answer == Answer::TableNotFound { done } else { &[] };
        let answers = done.iter().copied().chain([operation.answer]);
        return answers.flat_map(|answer| successors(model, &alone(answer))).collect();
    }
    if operation.answer == Answer::Lost {
        let happened = ages(model, &operation.span).into_iter().filter_map(|model| happen(&model, operation));
        return [*model].into_iter().chain(happened).collect();
    }
    let about_the_table = matches!(operation.request, Request::CreateTable | Request::DeleteTable);
    let models = if about_the_table { vec![*model] } else { ages(model, &operation.span) };
    models.into_iter().filter_map(|model| apply(&model, operation)).collect()
}

/// The models that an operation may find: an element with a deadline is there, or has expired.
fn ages(model: &Model, span: &Span) -> Vec<Model> {
    if model.element.is_none_or(|element| element.deadline.is_none()) {
        return vec![*model];
    }
    let alive = model.narrowed(Window { earliest: span.clock_min + 1, latest: u64::MAX });
    let expired = model.narrowed(Window { earliest: 0, latest: span.latest });
    [alive, expired.map(Model::gone)].into_iter().flatten().collect()
}

/// The model after an operation that has happened, whatever it has answered. `None`: it changes nothing.
fn happen(model: &Model, operation: &Operation) -> Option<Model> {
    let span = &operation.span;
    let kept = model.element.and_then(|element| element.deadline);
    let written = |model: Model, value, ttl| model.written(value, None, new_deadline(kept, ttl, span));
    match (operation.request, model.element) {
        (Request::CreateTable, _) => (!model.table).then(|| model.with_table(true)),
        (Request::DeleteTable, _) => model.table.then(|| model.with_table(false)),
        _ if !model.table => None,
        (Request::Update(value, ttl) | Request::Pair(value, ttl), _)
        | (Request::CompareAndSwap(0, value, ttl), None) => Some(written(*model, value, ttl)),
        (Request::CompareAndSwap(expected, value, ttl), Some(_)) => {
            model.learning(expected).map(|model| written(model, value, ttl))
        }
        (Request::Delete | Request::DeletePart, Some(_)) => Some(model.gone()),
        (Request::CompareAndDelete(expected), Some(_)) => model.learning(expected).map(Model::gone),
        (Request::Touch(ttl) | Request::GetAndTouch(ttl), Some(element)) => {
            Some(written(*model, element.value, Some(ttl)))
        }
        (Request::Increment(ttl), None) => Some(written(*model, COUNTER | 1, ttl)),
        (Request::Increment(_), Some(element)) if element.value & COUNTER != 0 => {
            Some(written(*model, element.value + 1, None))
        }
        _ => None,
    }
}

/// The model after the operation if it answers so. The caller has handled deadlines.
fn apply(model: &Model, operation: &Operation) -> Option<Model> {
    match (operation.request, operation.answer) {
        (Request::CreateTable, Answer::Ok) => (!model.table).then(|| model.with_table(true)),
        (Request::CreateTable, Answer::TableExists) => model.table.then_some(*model),
        (Request::DeleteTable, Answer::Ok) => model.table.then(|| model.with_table(false)),
        (_, Answer::TableNotFound) => (!model.table).then_some(*model),
        _ if !model.table => None,
        _ if model.element.is_some() => apply_to_present(model, operation),
        _ => apply_to_absent(model, operation),
    }
}

fn apply_to_present(model: &Model, operation: &Operation) -> Option<Model> {
    let element = model.element?;
    let span = &operation.span;
    let holds = |value: Value| (value == element.value).then_some(*model);
    match (operation.request, operation.answer) {
        (Request::Update(value, ttl), Answer::Ok) => {
            Some(model.written(value, None, new_deadline(element.deadline, ttl, span)))
        }
        (Request::Delete, Answer::Value(value)) => Some(holds(value)?.gone()),
        // Of DELETE_MANY, which does not return the value.
        (Request::Delete, Answer::Ok) => Some(model.gone()),
        (Request::Get, Answer::Value(value)) => holds(value),
        (Request::GetEntry, Answer::Entry(value, version, remaining)) => {
            let model = holds(value)?.learning(version)?;
            match remaining {
                Some(millis) => model.narrowed(window_of_remaining(span, millis)),
                None => element.deadline.is_none().then_some(model),
            }
        }
        (Request::CompareAndSwap(expected, value, ttl), Answer::Swapped(version)) => {
            let model = model.learning(expected)?;
            let deadline = new_deadline(element.deadline, ttl, span);
            let swapped = model.written(value, Some(version), deadline);
            model.can_give(version).then_some(swapped)
        }
        (Request::CompareAndDelete(expected), Answer::Value(value)) => Some(holds(value)?.learning(expected)?.gone()),
        (
            Request::CompareAndSwap(expected, ..) | Request::CompareAndDelete(expected),
            Answer::VersionMismatch(current),
        ) if current != expected => model.learning(current),
        (Request::Touch(seconds), Answer::Ok) => {
            let deadline = new_deadline(element.deadline, Some(seconds), span);
            Some(model.written(element.value, None, deadline))
        }
        (Request::GetAndTouch(seconds), Answer::Value(value)) => {
            let deadline = new_deadline(element.deadline, Some(seconds), span);
            Some(holds(value)?.written(value, None, deadline))
        }
        (Request::Increment(_), Answer::Counted(sum, version)) if element.value & COUNTER != 0 => {
            let counted = model.written(sum, Some(version), element.deadline);
            (sum == element.value + 1 && model.can_give(version)).then_some(counted)
        }
        (Request::Increment(_), Answer::NotANumber) => (element.value & COUNTER == 0).then_some(*model),
        _ => None,
    }
}

fn apply_to_absent(model: &Model, operation: &Operation) -> Option<Model> {
    let span = &operation.span;
    match (operation.request, operation.answer) {
        (Request::Update(value, ttl), Answer::Ok) => Some(model.written(value, None, new_deadline(None, ttl, span))),
        (Request::CompareAndSwap(0, value, ttl), Answer::Swapped(version)) => {
            let created = model.written(value, Some(version), new_deadline(None, ttl, span));
            model.can_give(version).then_some(created)
        }
        (Request::Increment(ttl), Answer::Counted(sum, version)) => {
            let created = model.written(sum, Some(version), new_deadline(None, ttl, span));
            (sum == (COUNTER | 1) && model.can_give(version)).then_some(created)
        }
        (Request::CompareAndSwap(expected, ..) | Request::CompareAndDelete(expected), Answer::VersionMismatch(0))
            if expected != 0 =>
        {
            Some(*model)
        }
        (
            Request::Delete
            | Request::Get
            | Request::GetEntry
            | Request::CompareAndDelete(0)
            | Request::Touch(_)
            | Request::GetAndTouch(_),
            Answer::KeyNotFound,
        ) => Some(*model),
        _ => None,
    }
}

/// The deadline after a write with this TTL.
fn new_deadline(kept: Option<Window>, ttl: Option<Ttl>, span: &Span) -> Option<Window> {
    match ttl {
        None => kept,
        Some(Ttl::NONE) => None,
        Some(ttl) => Some(Window::of_write(span, ttl)),
    }
}

/// The window of the deadline if this much was left of it, by a reading of the clock after the element was seen. Either
/// of the two may have been rounded to a millisecond.
fn window_of_remaining(span: &Span, millis: u64) -> Window {
    let remaining = millis * MILLI;
    Window { earliest: (span.clock_min + remaining).saturating_sub(MILLI), latest: span.latest + remaining + MILLI }
}

impl Sequential for Model {
    type Operation = Operation;

    fn times(operation: &Operation) -> (u64, u64) {
        (operation.span.invoked, operation.span.returned)
    }

    fn successors(&self, operation: &Operation) -> Vec<Self> {
        successors(self, operation)
    }
}

/// Whether the operations can have happened one after the other, each between its invocation and its return, starting
/// without a table.
pub(crate) fn is_linearizable(history: &[Operation]) -> bool {
    is_linearizable_from(&Model::START, history)
}

/// The part of a history that is known at this time: later answers are not.
fn known_at(history: &[Operation], time: u64) -> Vec<Operation> {
    let begun = history.iter().filter(|operation| operation.span.invoked <= time).copied();
    let known = |operation: Operation| match operation.span.returned <= time {
        true => operation,
        false => Operation { answer: Answer::Lost, ..operation },
    };
    begun.map(known).collect()
}

/// An element over the lives of a server that is killed and starts again.
#[derive(Debug)]
pub(crate) struct Lives {
    /// All that the element may be at the end of the last life.
    models: HashSet<Model>,
}

impl Lives {
    /// Before the first life there is no table.
    pub(crate) fn new() -> Self {
        Self { models: HashSet::from([Model::START]) }
    }

    /// A further life, with all operations that were invoked in it.
    ///
    /// # Errors
    /// They cannot have happened: the first of them that cannot.
    pub(crate) fn live(&mut self, history: &[Operation]) -> Result<(), Vec<Operation>> {
        let ends = self.ends(history);
        if ends.is_empty() {
            let until = |last: &Operation| known_at(history, last.span.returned);
            let mut last: Vec<_> = history.iter().collect();
            last.sort_by_key(|operation| operation.span.returned);
            let first = last.partition_point(|last| !self.ends(&until(last)).is_empty());
            return Err(until(last[first]));
        }
        self.models = ends;
        Ok(())
    }

    fn ends(&self, history: &[Operation]) -> HashSet<Model> {
        let mut search = Search::new(history);
        self.models.iter().flat_map(|model| search.ends(&model.restarted())).collect()
    }
}
