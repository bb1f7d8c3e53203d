//! Encodes and decodes requests about queues by name, and about many of their tasks: the tags from 0x21.
//!
//! ```text
//! name     length:u8 and 1 to 255 bytes      list   count:u16 and as many
//! options  count:u8, and as many pairs of a tag:u8 and a value
//! ```

use super::fault::{Fault, Field};
use super::fields::{Fields, encode_bytes, encode_name, encode_tagged};
use super::options::{NO_TIME, encode_change, encode_terms};
use super::request::{AddMode, RepayStatus};
use crate::limits::{TASK_KEY_BYTES_MAX, TASK_VALUE_BYTES_MAX};
use crate::tasks::{AddTerms, BrowsePlace, BrowsedState, QueueChange, REASON_BYTES_MAX, SweptStates};

/// The most entries of a list in a request.
pub const LIST_MAX: usize = 1_024;

/// The most bytes of keys and values that a request adds to all of its queues: a batch has them all.
const FAN_OUT_BYTES_MAX: usize = 2 * (TASK_KEY_BYTES_MAX + TASK_VALUE_BYTES_MAX);

/// The bytes of choices.
mod choice {
    pub(super) const GIVE_BACK: u8 = 8;
    pub(super) const BURY: u8 = 9;
    pub(super) const NOT_BEGUN: u8 = 10;
    pub(super) const KICK_ONE: u8 = 0;
    pub(super) const KICK_DEAD: u8 = 1;
    pub(super) const KICK_DELAYED: u8 = 2;
}

/// A lease, by the name of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedLease<'b> {
    /// The name of the queue.
    pub queue: &'b [u8],
    /// The lend key of the lease.
    pub lend_key: u64,
    /// The key of the task.
    pub key: &'b [u8],
}

/// How one of many leases ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd<'b> {
    /// As a Repay with this status and value. The value of [`RepayStatus::Done`] is left out.
    Repay(RepayStatus, &'b [u8]),
    /// 8: it has failed, and is tried again.
    GiveBack {
        /// The time until it is ready, in milliseconds. `None`: as its backoff says.
        delay_ms: Option<u64>,
        /// Why it has failed.
        reason: &'b [u8],
    },
    /// 9: it has failed, and is not tried again.
    Bury {
        /// Why it has failed.
        reason: &'b [u8],
    },
    /// 10: it was not begun, so this was no try.
    NotBegun,
}

/// What is kicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kicked<'b> {
    /// 0: the task with this key.
    One(&'b [u8]),
    /// 1: at most so many dead tasks.
    Dead(u64),
    /// 2: at most so many delayed tasks.
    Delayed(u64),
}

/// A request about queues by name. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueRequest<'b> {
    /// Adds a task to each of some queues.
    AddMany {
        /// The names of the queues.
        queues: Vec<&'b [u8]>,
        /// The key.
        key: &'b [u8],
        /// The value.
        value: &'b [u8],
        /// The end of the queue.
        mode: AddMode,
        /// The options.
        terms: AddTerms,
    },
    /// Leases tasks of some queues, in their order.
    LendMany {
        /// The names of the queues.
        queues: Vec<&'b [u8]>,
        /// The most tasks.
        count: u32,
        /// The length of each lease.
        timeout_ms: u64,
        /// The longest time to wait for a task. 0: not at all.
        wait_ms: u64,
    },
    /// Ends leases, each in its way.
    SettleMany(Vec<(NamedLease<'b>, LeaseEnd<'b>)>),
    /// Gives leases new deadlines.
    ExtendMany(Vec<(NamedLease<'b>, u64)>),
    /// Shows tasks.
    Browse {
        /// The name of the queue.
        queue: &'b [u8],
        /// In this state.
        state: BrowsedState,
        /// Of this group. Empty: of none. `None`: of all.
        group: Option<&'b [u8]>,
        /// Where the page before ended. All zeros: from the first one on.
        from: BrowsePlace,
        /// The most tasks.
        most: u32,
        /// The most bytes of each value.
        first_bytes: u32,
    },
    /// Makes tasks ready.
    Kick {
        /// The name of the queue.
        queue: &'b [u8],
        /// Which of them.
        what: Kicked<'b>,
    },
    /// Removes tasks.
    Purge {
        /// The name of the queue.
        queue: &'b [u8],
        /// In these states.
        states: SweptStates,
        /// That have been in it for so long.
        age_ms: u64,
    },
    /// Changes the settings of a queue.
    Configure {
        /// The name of the queue.
        queue: &'b [u8],
        /// What is changed.
        change: QueueChange,
    },
    /// Lists queues.
    Queues {
        /// Where the page before ended. 0: from the first one on.
        from: u32,
        /// The most queues.
        most: u32,
    },
}

impl<'b> Fields<'b> {
    /// The name of a queue.
    pub(super) fn name(&mut self) -> Result<&'b [u8], Fault> {
        let name = self.short_run(Field::QueueName)?;
        if name.is_empty() {
            return Err(Fault::Truncated { field: Field::QueueName, required: 1, given: 0 });
        }
        Ok(name)
    }

    /// A list of things, [`LIST_MAX`] at most.
    fn list<T>(&mut self, one: impl FnMut(&mut Self) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
        let count = self.short(Field::List)?;
        if !(1..=LIST_MAX).contains(&usize::from(count)) {
            let given = u32::try_from(LIST_MAX).unwrap_or(u32::MAX);
            return Err(Fault::Truncated { field: Field::List, required: u32::from(count), given });
        }
        std::iter::repeat_with({
            let mut one = one;
            move || one(self)
        })
        .take(usize::from(count))
        .collect()
    }

    fn task_key(&mut self) -> Result<&'b [u8], Fault> {
        self.key(Field::KeyLength, Field::Key)
    }

    fn lease(&mut self) -> Result<NamedLease<'b>, Fault> {
        Ok(NamedLease { queue: self.name()?, lend_key: self.long(Field::Number)?, key: self.task_key()? })
    }

    fn lease_end(&mut self) -> Result<LeaseEnd<'b>, Fault> {
        Ok(match self.byte(Field::Number)? {
            choice::GIVE_BACK => LeaseEnd::GiveBack {
                delay_ms: Some(self.long(Field::Number)?).filter(|delay| *delay != NO_TIME),
                reason: self.reason()?,
            },
            choice::BURY => LeaseEnd::Bury { reason: self.reason()? },
            choice::NOT_BEGUN => LeaseEnd::NotBegun,
            status => match RepayStatus::decode(status)? {
                RepayStatus::Done => LeaseEnd::Repay(RepayStatus::Done, &[]),
                status => LeaseEnd::Repay(status, self.value(Field::ValueLength, Field::Value)?),
            },
        })
    }

    /// The first bytes of it are kept.
    fn reason(&mut self) -> Result<&'b [u8], Fault> {
        let reason = self.long_run(Field::Reason)?;
        Ok(reason.get(..REASON_BYTES_MAX).unwrap_or(reason))
    }

    fn state(&mut self) -> Result<BrowsedState, Fault> {
        let offending = self.byte(Field::Number)?;
        let state = STATES.iter().find(|(_, number)| *number == offending).map(|(state, _)| *state);
        state.ok_or(Fault::Offending { field: Field::BadChoice, offending })
    }

    fn states(&mut self) -> Result<SweptStates, Fault> {
        let offending = self.byte(Field::Number)?;
        let has = |bit: u8| offending & bit != 0;
        if offending == 0 || offending > 15 {
            return Err(Fault::Offending { field: Field::BadChoice, offending });
        }
        Ok(SweptStates { ready: has(1), delayed: has(2), dead: has(4), dropped: has(8) })
    }
}

/// The states that are browsed, with their numbers.
const STATES: [(BrowsedState, u8); 5] = [
    (BrowsedState::Ready, 1),
    (BrowsedState::Delayed, 2),
    (BrowsedState::Lent, 3),
    (BrowsedState::Dead, 4),
    (BrowsedState::Dropped, 5),
];

impl<'b> QueueRequest<'b> {
    /// Decodes what is behind the tag. It ignores bytes behind the request.
    pub(super) fn decode(tag: u8, fields: &mut Fields<'b>) -> Result<Self, Fault> {
        use super::request::tag::{
            ADD_MANY, BROWSE, CONFIGURE, EXTEND_MANY, KICK, LEND_MANY, PURGE, QUEUES, SETTLE_MANY,
        };
        Ok(match tag {
            ADD_MANY => {
                let (queues, key) = (fields.list(Fields::name)?, fields.task_key()?);
                let value = fields.value(Field::ValueLength, Field::Value)?;
                let (all, most) = (queues.len() * (key.len() + value.len()), FAN_OUT_BYTES_MAX);
                if all > most {
                    let [required, given] = [all, most].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
                    return Err(Fault::Truncated { field: Field::Value, required, given });
                }
                let mode = fields.byte(Field::Number).and_then(AddMode::decode)?;
                Self::AddMany { queues, key, value, mode, terms: fields.terms()? }
            }
            LEND_MANY => Self::LendMany {
                queues: fields.list(Fields::name)?,
                count: fields.int(Field::Number)?.max(1),
                timeout_ms: fields.long(Field::Number)?,
                wait_ms: fields.long(Field::Number)?,
            },
            SETTLE_MANY => Self::SettleMany(fields.list(|fields| Ok((fields.lease()?, fields.lease_end()?)))?),
            EXTEND_MANY => Self::ExtendMany(fields.list(|fields| Ok((fields.lease()?, fields.long(Field::Number)?)))?),
            BROWSE => Self::Browse {
                queue: fields.name()?,
                state: fields.state()?,
                group: match fields.byte(Field::Number)? {
                    0 => None,
                    1 => Some(fields.short_run(Field::Group)?),
                    offending => return Err(Fault::Offending { field: Field::BadChoice, offending }),
                },
                from: {
                    let [first, second, third, fourth] = [(); 4].map(|()| fields.long(Field::Number));
                    BrowsePlace([first?, second?, third?, fourth?])
                },
                most: fields.int(Field::Number)?,
                first_bytes: fields.int(Field::Number)?,
            },
            KICK => Self::Kick {
                queue: fields.name()?,
                what: match fields.byte(Field::Number)? {
                    choice::KICK_ONE => Kicked::One(fields.task_key()?),
                    choice::KICK_DEAD => Kicked::Dead(fields.long(Field::Number)?),
                    choice::KICK_DELAYED => Kicked::Delayed(fields.long(Field::Number)?),
                    offending => return Err(Fault::Offending { field: Field::BadChoice, offending }),
                },
            },
            PURGE => {
                Self::Purge { queue: fields.name()?, states: fields.states()?, age_ms: fields.long(Field::Number)? }
            }
            CONFIGURE => Self::Configure { queue: fields.name()?, change: fields.change()? },
            QUEUES => Self::Queues { from: fields.int(Field::Number)?, most: fields.int(Field::Number)? },
            offending => return Err(Fault::Offending { field: Field::UnknownTag, offending }),
        })
    }

    /// Appends what is behind the tag.
    ///
    /// # Panics
    /// If a name has more than 255 bytes, or a list more than 65,535 entries.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::AddMany { queues, key, value, mode, terms } => {
                encode_list(queues, out, |queue, out| encode_name(queue, out));
                encode_bytes(key, out);
                encode_bytes(value, out);
                out.push(mode.encode());
                encode_terms(terms, out);
            }
            Self::LendMany { queues, count, timeout_ms, wait_ms } => {
                encode_list(queues, out, |queue, out| encode_name(queue, out));
                out.extend(count.to_be_bytes());
                out.extend([timeout_ms, wait_ms].map(|time| time.to_be_bytes()).as_flattened());
            }
            Self::SettleMany(ends) => encode_list(ends, out, |(lease, end), out| {
                encode_lease(lease, out);
                encode_end(end, out);
            }),
            Self::ExtendMany(leases) => encode_list(leases, out, |(lease, timeout_ms), out| {
                encode_lease(lease, out);
                out.extend(timeout_ms.to_be_bytes());
            }),
            Self::Browse { queue, state, group, from, most, first_bytes } => {
                encode_name(queue, out);
                out.extend(STATES.iter().find(|(other, _)| other == state).map(|(_, number)| *number));
                out.push(u8::from(group.is_some()));
                group.iter().for_each(|group| encode_name(group, out));
                out.extend(from.0.map(u64::to_be_bytes).as_flattened());
                out.extend([most, first_bytes].map(|number| number.to_be_bytes()).as_flattened());
            }
            Self::Kick { queue, what } => {
                encode_name(queue, out);
                match what {
                    Kicked::One(key) => {
                        out.push(choice::KICK_ONE);
                        encode_bytes(key, out);
                    }
                    Kicked::Dead(most) => encode_tagged(choice::KICK_DEAD, &most.to_be_bytes(), out),
                    Kicked::Delayed(most) => encode_tagged(choice::KICK_DELAYED, &most.to_be_bytes(), out),
                }
            }
            Self::Purge { queue, states: SweptStates { ready, delayed, dead, dropped }, age_ms } => {
                encode_name(queue, out);
                let bits = [(ready, 1), (delayed, 2), (dead, 4), (dropped, 8)];
                out.push(bits.into_iter().filter(|(is_set, _)| **is_set).map(|(_, bit)| bit).sum());
                out.extend(age_ms.to_be_bytes());
            }
            Self::Configure { queue, change } => {
                encode_name(queue, out);
                encode_change(change, out);
            }
            Self::Queues { from, most } => out.extend([from, most].map(|number| number.to_be_bytes()).as_flattened()),
        }
    }
}

fn encode_list<T>(list: &[T], out: &mut Vec<u8>, mut one: impl FnMut(&T, &mut Vec<u8>)) {
    out.extend(u16::try_from(list.len()).expect("a list has at most 65,535 entries").to_be_bytes());
    list.iter().for_each(|entry| one(entry, out));
}

fn encode_lease(NamedLease { queue, lend_key, key }: &NamedLease<'_>, out: &mut Vec<u8>) {
    encode_name(queue, out);
    out.extend(lend_key.to_be_bytes());
    encode_bytes(key, out);
}

fn encode_end(end: &LeaseEnd<'_>, out: &mut Vec<u8>) {
    let reason = |reason: &[u8], out: &mut Vec<u8>| {
        let reason = reason.get(..REASON_BYTES_MAX).unwrap_or(reason);
        out.extend(u16::try_from(reason.len()).unwrap_or(0).to_be_bytes());
        out.extend(reason);
    };
    match end {
        LeaseEnd::Repay(RepayStatus::Done, _) => out.push(RepayStatus::Done.encode()),
        LeaseEnd::Repay(status, value) => {
            out.push(status.encode());
            encode_bytes(value, out);
        }
        LeaseEnd::GiveBack { delay_ms, reason: why } => {
            encode_tagged(choice::GIVE_BACK, &delay_ms.unwrap_or(NO_TIME).to_be_bytes(), out);
            reason(why, out);
        }
        LeaseEnd::Bury { reason: why } => {
            out.push(choice::BURY);
            reason(why, out);
        }
        LeaseEnd::NotBegun => out.push(choice::NOT_BEGUN),
    }
}
