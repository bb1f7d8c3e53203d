//! One queue: a pure state machine. It is told what to do and, for leases, until when; it does no I/O and reads no clock.
//!
//! ```text
//!            add                  lease                       settle Drop
//!     ─ ─ ─ ─ ─ ─ ─► Ready ─────────────────► Leased ──────────────────────► Dropped ◄─ ─ ─ append
//!                      ▲                        │ │                             │
//!                      ├── settle, another way ─┘ │      remove, from any state: gone
//!                      ├── the lease runs out ────┤
//!                      └── the lease is undone ───┘
//! ```
//! An undone lease puts the task back where it stood; the other two ways back make it enter anew (`order.rs` says where).
//! Keys, order and leases are in memory; values are not: the queue notes what is to be stored ([`Queue::drain`]) and
//! remembers no value beyond that.
//!
//! What is not here: who waits for a task, tokens (they come in), and the store.

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::order::{End, Order, Position, Settlement};
use super::record::{LeaseRecord, StateRecord, TaskRecord};
use crate::store::Value;
use crate::wheel::{TimerId, Wheel};

/// The place of a task in the memory of its queue, as long as it exists.
pub(super) type Spot = u32;

/// Which lease has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) queue: u32,
    pub(super) spot: Spot,
}

/// A lease as it is held.
#[derive(Clone, Copy, Debug)]
struct Lease {
    token: u64,
    /// Milliseconds of the wall clock.
    deadline: u64,
    timer: TimerId,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Ready,
    Leased(Lease),
    Dropped,
}

#[derive(Debug)]
struct Task {
    /// What the store knows it by: never given twice in a queue.
    number: u64,
    key: Box<[u8]>,
    position: Position,
    boost: u8,
    /// When it entered the queue, last time, in milliseconds of the wall clock.
    since: u64,
    state: State,
    /// Whether it is among the `touched`.
    touched: bool,
}

/// A task that has just been leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken<'q> {
    pub(super) number: u64,
    pub(super) key: &'q [u8],
}

/// What has to be stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect<'q> {
    /// The task is now so.
    Task(u64, TaskRecord<'q>),
    /// Its value is now so.
    Value(u64, Value),
    /// There is no such task any more, and no value of it.
    Gone(u64),
}

/// How many tasks are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// To be leased.
    pub ready: u64,
    /// Held by somebody.
    pub leased: u64,
    /// Out of the queue for good.
    pub dropped: u64,
    /// Leases that have run out since the server started.
    pub ran_out: u64,
}

/// One queue.
#[derive(Debug)]
pub(super) struct Queue {
    number: u32,
    order: Order,
    /// Grows with each entry; stored with the queue.
    serial: u64,
    /// The number of the task that was added last; stored with the queue.
    last: u64,
    tasks: Slab<Task>,
    /// The spots of the tasks, by their keys.
    keys: HashTable<Spot>,
    hasher: RandomState,
    ready: BTreeMap<Position, Spot>,
    /// The ready ones by when they entered, where that is another order.
    entries: BTreeMap<u64, Spot>,
    /// Milliseconds of the wall clock; written by [`Queue::tell`].
    now: u64,
    counts: Counts,
    /// Tasks whose record is to be stored.
    touched: Vec<Spot>,
    /// Numbers of tasks that are gone from the store with the next batch.
    gone: Vec<u64>,
    /// Values that are to be stored, by the number of their task.
    fresh: HashMap<u64, Value, RandomState>,
}

impl Queue {
    /// A queue without tasks. `serial` and `last` are those that were stored with it, 0 if it is new.
    pub(super) fn new(number: u32, order: Order, serial: u64, last: u64) -> Self {
        Self {
            number,
            order,
            serial,
            last,
            tasks: Slab::new(),
            keys: HashTable::new(),
            hasher: RandomState::new(),
            ready: BTreeMap::new(),
            entries: BTreeMap::new(),
            now: 0,
            counts: Counts::default(),
            touched: Vec::new(),
            gone: Vec::new(),
            fresh: HashMap::default(),
        }
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Brings a task back as it was stored. False: that cannot be, another has its key or its position.
    pub(super) fn restore(&mut self, number: u64, record: &TaskRecord<'_>, wheel: &mut Wheel<Due>) -> bool {
        let Position { priority, entered } = record.position;
        if self.find(record.key).is_some() || number > self.last || entered > self.serial || priority > self.serial {
            return false;
        }
        let spot = self.place(Task {
            number,
            key: record.key.into(),
            position: record.position,
            boost: record.boost,
            since: record.since,
            state: State::Dropped,
            touched: false,
        });
        match record.state {
            StateRecord::Ready => self.stand(spot, record.position),
            StateRecord::Leased(LeaseRecord { token, deadline }) => {
                self.hold(spot, token, deadline, wheel);
                true
            }
            StateRecord::Dropped => {
                self.counts.dropped += 1;
                true
            }
        }
    }

    /// Tells the time, in milliseconds of the wall clock.
    pub(super) fn tell(&mut self, now: u64) {
        self.now = now;
    }

    // ---------------------------------------------------------------------------------------------------------- verbs

    /// Adds a task. Its number; none if the key is known, and then nothing changes.
    pub(super) fn add(&mut self, key: &[u8], value: Value, end: End) -> Option<u64> {
        let (number, spot, position) = self.come(key, value, end)?;
        self.enter(spot, position);
        Some(number)
    }

    /// Adds a task at the tail under its own number, ready or dropped. Its number; none if somebody has added this key.
    pub(super) fn append(&mut self, value: Value, dropped: bool) -> Option<u64> {
        let (number, spot, position) = self.come((self.last + 1).to_string().as_bytes(), value, End::Tail)?;
        match dropped {
            true => self.counts.dropped += 1,
            false => self.enter(spot, position),
        }
        Some(number)
    }

    /// Replaces the value, whatever state the task is in. False: there is none of this key.
    pub(super) fn update(&mut self, key: &[u8], value: Value) -> bool {
        let Some(spot) = self.find(key) else { return false };
        let number = self.task(spot).number;
        self.fresh.insert(number, value);
        true
    }

    /// Leases the first ready task, if there is one.
    pub(super) fn lease(&mut self, token: u64, deadline: u64, wheel: &mut Wheel<Due>) -> Option<Taken<'_>> {
        let (&position, &spot) = self.ready.first_key_value()?;
        self.step_out(position);
        self.hold(spot, token, deadline, wheel);
        self.touch(spot);
        let task = self.task(spot);
        Some(Taken { number: task.number, key: &task.key })
    }

    /// Ends a lease as its holder says, and stores the value that it brings. False: this lease is not held, and nothing
    /// changes.
    pub(super) fn settle(
        &mut self,
        (key, token): (&[u8], u64),
        value: Option<Value>,
        how: Settlement,
        wheel: &mut Wheel<Due>,
    ) -> bool {
        let Some(spot) = self.release(key, token, wheel) else { return false };
        if how == Settlement::Drop {
            self.counts.dropped += 1;
            self.task_mut(spot).state = State::Dropped;
        } else {
            let front = self.ready.first_key_value().map_or(0, |(position, _)| position.priority);
            let serial = self.grow();
            let task = self.task(spot);
            let (boost, position) = self.order.settled(how, (task.boost, task.position), serial, front);
            self.task_mut(spot).boost = boost;
            self.enter(spot, position);
        }
        if let Some(value) = value {
            let number = self.task(spot).number;
            self.fresh.insert(number, value);
        }
        self.touch(spot);
        true
    }

    /// Gives a lease another deadline. False: this lease is not held.
    pub(super) fn extend(&mut self, (key, token): (&[u8], u64), deadline: u64, wheel: &mut Wheel<Due>) -> bool {
        let Some(spot) = self.release(key, token, wheel) else { return false };
        self.hold(spot, token, deadline, wheel);
        self.touch(spot);
        true
    }

    /// Ends a lease that nobody has heard of: the task is where it was. False: this lease is not held.
    pub(super) fn undo(&mut self, (key, token): (&[u8], u64), wheel: &mut Wheel<Due>) -> bool {
        let Some(spot) = self.release(key, token, wheel) else { return false };
        let position = self.task(spot).position;
        self.stand(spot, position);
        self.touch(spot);
        true
    }

    /// Removes the task of this key, whatever state it is in. False: there is none.
    pub(super) fn remove(&mut self, key: &[u8], wheel: &mut Wheel<Due>) -> bool {
        let Some(spot) = self.find(key) else { return false };
        self.leave(spot, wheel);
        let hash = self.hasher.hash_one(key);
        if let Ok(entry) = self.keys.find_entry(hash, |other| *other == spot) {
            entry.remove();
        }
        let task = self.tasks.remove(spot as usize);
        self.fresh.remove(&task.number);
        self.gone.push(task.number);
        true
    }

    /// Removes the task of this key if it is leased, whoever holds it. False: it is not.
    pub(super) fn finish(&mut self, key: &[u8], wheel: &mut Wheel<Due>) -> bool {
        let leased = self.find(key).is_some_and(|spot| self.lease_of(spot).is_some());
        leased && self.remove(key, wheel)
    }

    /// Whether there is no task in any state.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The number of the task of this key, and whether it is dropped.
    pub(super) fn standing(&self, key: &[u8]) -> Option<(u64, bool)> {
        let task = self.task(self.find(key)?);
        Some((task.number, matches!(task.state, State::Dropped)))
    }

    /// The value of a task if it is to be stored with the next batch.
    pub(super) fn fresh(&self, number: u64) -> Option<&Value> {
        self.fresh.get(&number)
    }

    /// When the task that has been ready the longest entered the queue, in milliseconds of the wall clock.
    pub(super) fn oldest(&self) -> Option<u64> {
        let first = match self.order {
            Order::Priority => self.entries.first_key_value().map(|(_, spot)| spot),
            Order::Fifo => self.ready.first_key_value().map(|(_, spot)| spot),
        };
        first.map(|&spot| self.task(spot).since)
    }

    /// The deadline and the token of a leased task: leases that come up together run out in this order.
    pub(super) fn lease_of(&self, spot: Spot) -> Option<(u64, u64)> {
        match self.task(spot).state {
            State::Leased(lease) => Some((lease.deadline, lease.token)),
            State::Ready | State::Dropped => None,
        }
    }

    /// Ends a lease as if it had run out. False: this lease is not held.
    pub(super) fn cut_short(&mut self, (key, token): (&[u8], u64), wheel: &mut Wheel<Due>) -> bool {
        let Some(spot) = self.release(key, token, wheel) else { return false };
        self.come_back(spot);
        true
    }

    /// The lease of this task has run out; its timer is out of the wheel.
    pub(super) fn run_out(&mut self, spot: Spot) {
        self.counts.leased -= 1;
        self.come_back(spot);
    }

    fn come_back(&mut self, spot: Spot) {
        self.counts.ran_out += 1;
        let serial = self.grow();
        let position = self.order.ran_out(self.task(spot).position, serial);
        self.enter(spot, position);
        self.touch(spot);
    }

    // -------------------------------------------------------------------------------------------------------- storing

    /// Hands over all that is to be stored, each task and value once, as it is now.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Effect<'_>)) {
        for number in self.gone.drain(..) {
            each(Effect::Gone(number));
        }
        for spot in self.touched.drain(..) {
            // A spot of a task that is gone may be empty, or another's that has been handed over.
            if let Some(task) = self.tasks.get_mut(spot as usize).filter(|task| task.touched) {
                task.touched = false;
                each(Effect::Task(task.number, task.record()));
            }
        }
        for (number, value) in self.fresh.drain() {
            each(Effect::Value(number, value));
        }
    }

    // --------------------------------------------------------------------------------------------------------- pieces

    fn grow(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn task(&self, spot: Spot) -> &Task {
        self.tasks.get(spot as usize).expect("a spot is kept no longer than its task")
    }

    fn task_mut(&mut self, spot: Spot) -> &mut Task {
        self.tasks.get_mut(spot as usize).expect("a spot is kept no longer than its task")
    }

    fn find(&self, key: &[u8]) -> Option<Spot> {
        self.keys.find(self.hasher.hash_one(key), |&spot| *self.task(spot).key == *key).copied()
    }

    /// A task comes, in no state that counts: its number, its spot, and where it would stand. None: its key is known.
    fn come(&mut self, key: &[u8], value: Value, end: End) -> Option<(u64, Spot, Position)> {
        if self.find(key).is_some() {
            return None;
        }
        self.last += 1;
        let (number, serial) = (self.last, self.grow());
        let position = self.order.added(end, serial);
        let (since, state) = (self.now, State::Dropped);
        let spot = self.place(Task { number, key: key.into(), position, boost: 0, since, state, touched: false });
        self.fresh.insert(number, value);
        self.touch(spot);
        Some((number, spot, position))
    }

    /// Keeps a task whose key is new.
    fn place(&mut self, task: Task) -> Spot {
        let hash = self.hasher.hash_one(&*task.key);
        let spot = Spot::try_from(self.tasks.insert(task)).expect("a queue has fewer than 2^32 tasks");
        let (tasks, hasher) = (&self.tasks, &self.hasher);
        self.keys.insert_unique(hash, spot, |&other| {
            tasks.get(other as usize).map_or(0, |task| hasher.hash_one(&*task.key))
        });
        spot
    }

    /// A task enters at `position`, now.
    fn enter(&mut self, spot: Spot, position: Position) {
        self.task_mut(spot).since = self.now;
        let stands = self.stand(spot, position);
        debug_assert!(stands, "a serial is given once");
    }

    /// Makes a task ready at `position`. False: another stands there.
    fn stand(&mut self, spot: Spot, position: Position) -> bool {
        let task = self.task_mut(spot);
        task.state = State::Ready;
        task.position = position;
        self.counts.ready += 1;
        let mut alone = self.ready.insert(position, spot).is_none();
        if self.order == Order::Priority {
            alone &= self.entries.insert(position.entered, spot).is_none();
        }
        alone
    }

    /// The task at `position` is ready no more.
    fn step_out(&mut self, position: Position) {
        self.ready.remove(&position);
        self.entries.remove(&position.entered);
        self.counts.ready -= 1;
    }

    /// Makes a task leased that is neither ready nor leased as far as the counts go.
    fn hold(&mut self, spot: Spot, token: u64, deadline: u64, wheel: &mut Wheel<Due>) {
        let timer = wheel.arm(deadline, Due { queue: self.number, spot });
        self.counts.leased += 1;
        self.task_mut(spot).state = State::Leased(Lease { token, deadline, timer });
    }

    /// Takes a task out of its lease; whoever calls it says what becomes of it. None: this lease is not held.
    fn release(&mut self, key: &[u8], token: u64, wheel: &mut Wheel<Due>) -> Option<Spot> {
        let spot = self.find(key)?;
        match self.task(spot).state {
            State::Leased(lease) if lease.token == token => {
                let _due = wheel.cancel(lease.timer);
                self.counts.leased -= 1;
                Some(spot)
            }
            State::Leased(_) | State::Ready | State::Dropped => None,
        }
    }

    /// Takes a task out of the state that it is in.
    fn leave(&mut self, spot: Spot, wheel: &mut Wheel<Due>) {
        match self.task(spot).state {
            State::Ready => {
                let position = self.task(spot).position;
                self.step_out(position);
            }
            State::Leased(lease) => {
                let _due = wheel.cancel(lease.timer);
                self.counts.leased -= 1;
            }
            State::Dropped => self.counts.dropped -= 1,
        }
    }

    fn touch(&mut self, spot: Spot) {
        if !std::mem::replace(&mut self.task_mut(spot).touched, true) {
            self.touched.push(spot);
        }
    }
}

impl Task {
    fn record(&self) -> TaskRecord<'_> {
        TaskRecord {
            position: self.position,
            boost: self.boost,
            since: self.since,
            state: match self.state {
                State::Ready => StateRecord::Ready,
                State::Leased(Lease { token, deadline, .. }) => StateRecord::Leased(LeaseRecord { token, deadline }),
                State::Dropped => StateRecord::Dropped,
            },
            key: &self.key,
        }
    }
}
