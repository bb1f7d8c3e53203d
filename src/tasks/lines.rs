//! All queues, by their place and by their name; and families, whose queues come with their first task and go with their last.
//!
//! ```text
//! place   0         1         2       3            names: name ─► place
//!         spiderq   jobs/a    free    jobs/b       free:  2, used before a new place
//! ```
//! The place of a queue is the number that the store knows it by. A queue that goes takes its record with it, and its place
//! is given to the next one, in a later batch: a batch never names a record twice.
//!
//! What is not here: what happens in a queue, and whose turn it is.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ahash::RandomState;

use super::figures::{FamilyFigures, Figures, QueueFigures};
use super::order::Order;
use super::queue::{Counts, Effect, Queue};
use super::record::{QueueRecord, queue_key, task_key};
use super::{Policy, Ticket};
use crate::limits::{QUEUES_LISTED, QUEUES_MAX};
use crate::store::{Batch, Space};

/// Who waits for a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    /// How long its lease is to be, in milliseconds.
    pub(super) timeout: u64,
}

/// A queue, and what is around it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) queue: Queue,
    name: Arc<[u8]>,
    pub(super) policy: Policy,
    /// First come, first served; empty while a task is ready.
    pub(super) waiters: VecDeque<Waiter>,
    /// Serial and last number as they are stored; none if the queue is not.
    stored: Option<(u64, u64)>,
    /// Whether it is among those in which something may have changed.
    pub(super) marked: bool,
    /// The place of its family, if it is of one.
    family: Option<usize>,
    /// What the figures of its family count of it.
    counted: Counts,
    /// None if it is not listed.
    figures: Option<Arc<QueueFigures>>,
}

/// Queues of one kind.
#[derive(Debug)]
struct Kind {
    /// How their names begin.
    prefix: Box<[u8]>,
    order: Order,
    policy: Policy,
    /// How many are listed in the figures.
    listed: usize,
    figures: Arc<FamilyFigures>,
}

/// All queues.
#[derive(Debug)]
pub(super) struct Lines {
    places: Vec<Option<Box<Line>>>,
    free: Vec<usize>,
    names: HashMap<Arc<[u8]>, usize, RandomState>,
    kinds: Vec<Kind>,
    figures: Arc<Figures>,
}

impl Lines {
    /// Without a queue.
    pub(super) fn new(figures: Arc<Figures>) -> Self {
        let (places, free, kinds) = (Vec::new(), Vec::new(), Vec::new());
        Self { places, free, names: HashMap::default(), kinds, figures }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Line> {
        self.places.iter().flatten().map(|line| &**line)
    }

    /// The places that are taken.
    pub(super) fn taken(&self) -> Vec<usize> {
        self.names.values().copied().collect()
    }

    pub(super) fn get(&self, place: usize) -> Option<&Line> {
        self.places.get(place)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut Line> {
        self.places.get_mut(place)?.as_deref_mut()
    }

    /// The place of the queue of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        self.names.get(name).copied()
    }

    // --------------------------------------------------------------------------------------------------------- coming

    /// Brings a queue back as it was stored. Queues come by growing numbers; false: this one cannot be.
    pub(super) fn restore(&mut self, number: u32, record: &QueueRecord<'_>) -> bool {
        let place = number as usize;
        if place < self.places.len() || place >= QUEUES_MAX || self.names.contains_key(record.name) {
            return false;
        }
        self.free.extend(self.places.len()..place);
        self.places.resize_with(place, || None);
        let &QueueRecord { order, serial, last, name } = record;
        self.put(place, Queue::new(number, order, serial, last), name, Some((serial, last)));
        true
    }

    /// The place of the queue of this name, which is made if there is none, and is listed. None: there are too many.
    pub(super) fn open(&mut self, name: &[u8], order: Order, policy: Policy) -> Option<usize> {
        let place = self.find(name).or_else(|| self.make(name, order))?;
        let figures = &self.figures;
        let line = self.places.get_mut(place)?.as_deref_mut()?;
        line.policy = policy;
        line.figures.get_or_insert_with(|| figures.list(name));
        Some(place)
    }

    /// Makes a family of all queues whose names begin so; there may be some. Its place, or none if one of these has another order.
    pub(super) fn family(&mut self, prefix: &[u8], order: Order, policy: Policy) -> Option<usize> {
        let figures = self.figures.family(prefix);
        let family = self.kinds.len();
        self.kinds.push(Kind { prefix: prefix.into(), order, policy, listed: 0, figures });
        for place in 0..self.places.len() {
            let Some(line) = self.get(place).filter(|line| line.name.starts_with(prefix)) else { continue };
            if line.queue.order() != order {
                return None;
            }
            self.join(place, family);
            self.report(place);
        }
        Some(family)
    }

    /// The queue of this name in a family, made if there is none. None: there are too many.
    pub(super) fn come(&mut self, family: usize, name: &[u8]) -> Option<usize> {
        if let Some(place) = self.find(name) {
            return Some(place);
        }
        let order = self.kinds.get(family)?.order;
        let place = self.make(name, order)?;
        self.join(place, family);
        Some(place)
    }

    fn make(&mut self, name: &[u8], order: Order) -> Option<usize> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < QUEUES_MAX => self.places.len(),
            None => return None,
        };
        self.put(place, Queue::new(number_of(place), order, 0, 0), name, None);
        Some(place)
    }

    fn put(&mut self, place: usize, queue: Queue, name: &[u8], stored: Option<(u64, u64)>) {
        let name: Arc<[u8]> = name.into();
        self.names.insert(Arc::clone(&name), place);
        let line = Box::new(Line {
            queue,
            name,
            policy: Policy::Always,
            waiters: VecDeque::new(),
            stored,
            marked: false,
            family: None,
            counted: Counts::default(),
            figures: None,
        });
        match self.places.get_mut(place) {
            Some(free) => *free = Some(line),
            None => self.places.push(Some(line)),
        }
    }

    fn join(&mut self, place: usize, family: usize) {
        let line = self.places.get_mut(place).and_then(|line| line.as_deref_mut());
        let (Some(line), Some(kind)) = (line, self.kinds.get_mut(family)) else { return };
        debug_assert!(line.name.starts_with(&kind.prefix), "a family knows its queues by their names");
        (line.family, line.policy) = (Some(family), kind.policy);
        kind.figures.queues.set(kind.figures.queues.get() + 1);
        if kind.listed < QUEUES_LISTED {
            kind.listed += 1;
            line.figures = Some(self.figures.list(&line.name));
        }
    }

    // ---------------------------------------------------------------------------------------------------------- going

    /// What was drained of this queue is stored: the figures may show it, and a queue that has gone is forgotten.
    pub(super) fn stored(&mut self, place: usize) {
        self.report(place);
        if self.get(place).is_some_and(Line::is_over) {
            self.forget(place);
        }
    }

    fn report(&mut self, place: usize) {
        let Some(line) = self.places.get_mut(place).and_then(|line| line.as_deref_mut()) else { return };
        let counts = line.queue.counts();
        if let Some(figures) = &line.figures {
            figures.set(counts, line.waiters.len(), line.queue.oldest());
        }
        if let Some(kind) = line.family.and_then(|family| self.kinds.get(family)) {
            kind.figures.recount(line.counted, counts);
            line.counted = counts;
        }
    }

    fn forget(&mut self, place: usize) {
        let Some(line) = self.places.get_mut(place).and_then(Option::take) else { return };
        self.names.remove(&line.name);
        self.free.push(place);
        let Some(kind) = line.family.and_then(|family| self.kinds.get_mut(family)) else { return };
        kind.figures.queues.set(kind.figures.queues.get() - 1);
        if let Some(figures) = line.figures {
            kind.listed -= 1;
            self.figures.strike(&figures);
        }
    }
}

/// What the store knows the queue at this place by.
pub(super) fn number_of(place: usize) -> u32 {
    u32::try_from(place).expect("there are fewer than 2^32 queues")
}

impl Line {
    /// Whether it goes: its last task has gone, and nobody waits for another.
    fn is_over(&self) -> bool {
        self.family.is_some() && self.queue.is_empty() && self.waiters.is_empty()
    }

    /// Hands over all that is to be stored.
    pub(super) fn drain(&mut self, number: u32, batch: &mut Batch) {
        self.marked = false;
        let state = Some((self.queue.serial(), self.queue.last())).filter(|_| !self.is_over());
        if self.stored != state {
            match state {
                Some((serial, last)) => {
                    let record = QueueRecord { order: self.queue.order(), serial, last, name: &self.name };
                    batch.put(Space::Meta, &queue_key(number), &record.encode());
                }
                None => batch.delete(Space::Meta, &queue_key(number)),
            }
            self.stored = state;
        }
        self.queue.drain(|effect| match effect {
            Effect::Task(task, record) => batch.put(Space::Tasks, &task_key(number, task), &record.encode()),
            Effect::Value(task, value) => batch.put_value(Space::Values, &task_key(number, task), value),
            Effect::Gone(task) => {
                batch.delete(Space::Tasks, &task_key(number, task));
                batch.delete(Space::Values, &task_key(number, task));
            }
        });
    }
}
