//! Encodes and decodes requests.

use super::fault::{Fault, Field};
use super::fields::{Fields, encode_bytes};

/// The first bytes of requests.
pub mod tag {
    /// Count.
    pub const COUNT: u8 = 0x01;
    /// Add.
    pub const ADD: u8 = 0x02;
    /// Update.
    pub const UPDATE: u8 = 0x03;
    /// Lend.
    pub const LEND: u8 = 0x04;
    /// Repay.
    pub const REPAY: u8 = 0x05;
    /// Heartbeat.
    pub const HEARTBEAT: u8 = 0x06;
    /// Stats.
    pub const STATS: u8 = 0x07;
    /// Terminate.
    pub const TERMINATE: u8 = 0x08;
    /// Lookup.
    pub const LOOKUP: u8 = 0x09;
    /// Flush.
    pub const FLUSH: u8 = 0x0A;
    /// Ping.
    pub const PING: u8 = 0x0B;
    /// Remove.
    pub const REMOVE: u8 = 0x0C;
    /// Before the name of a queue and a request from Count to Remove.
    pub const IN_QUEUE: u8 = 0x20;
    /// Adds a task to each of some queues.
    pub const ADD_MANY: u8 = 0x21;
    /// Leases many tasks.
    pub const LEND_MANY: u8 = 0x22;
    /// Ends many leases.
    pub const SETTLE_MANY: u8 = 0x23;
    /// Gives many leases new deadlines.
    pub const EXTEND_MANY: u8 = 0x24;
    /// Shows tasks.
    pub const BROWSE: u8 = 0x25;
    /// Makes tasks ready.
    pub const KICK: u8 = 0x26;
    /// Removes tasks.
    pub const PURGE: u8 = 0x27;
    /// Changes the settings of a queue.
    pub const CONFIGURE: u8 = 0x28;
    /// Lists queues.
    pub const QUEUES: u8 = 0x29;
}

use tag::{ADD, COUNT, FLUSH, HEARTBEAT, LEND, LOOKUP, PING, REMOVE, REPAY, STATS, TERMINATE, UPDATE};
use tag::{ADD_MANY, BROWSE, CONFIGURE, EXTEND_MANY, KICK, LEND_MANY, PURGE, QUEUES, SETTLE_MANY};

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    /// Asks whether the server is there.
    Ping = PING,
    /// Counts the ready tasks.
    Count = COUNT,
    /// Adds a task.
    Add = ADD,
    /// Replaces the value of a task.
    Update = UPDATE,
    /// Leases the next task.
    Lend = LEND,
    /// Gives a task back.
    Repay = REPAY,
    /// Sets a new deadline for a lease.
    Heartbeat = HEARTBEAT,
    /// Reads the counters of answered requests.
    Stats = STATS,
    /// Ends the server.
    Terminate = TERMINATE,
    /// Reads the value of a task.
    Lookup = LOOKUP,
    /// Syncs everything to disk.
    Flush = FLUSH,
    /// Removes a task.
    Remove = REMOVE,
    /// Adds a task to each of some queues.
    AddMany = ADD_MANY,
    /// Leases many tasks.
    LendMany = LEND_MANY,
    /// Ends many leases.
    SettleMany = SETTLE_MANY,
    /// Gives many leases new deadlines.
    ExtendMany = EXTEND_MANY,
    /// Shows tasks.
    Browse = BROWSE,
    /// Makes tasks ready.
    Kick = KICK,
    /// Removes tasks.
    Purge = PURGE,
    /// Changes the settings of a queue.
    Configure = CONFIGURE,
    /// Lists queues.
    Queues = QUEUES,
}

impl Verb {
    /// The first byte of its requests.
    #[must_use]
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// Whether such a request is for its reply alone. A task that is lent to a client that is gone goes back.
    #[must_use]
    pub const fn only_reads(self) -> bool {
        let is_new = matches!(self, Self::LendMany | Self::Browse | Self::Queues);
        is_new || matches!(self, Self::Ping | Self::Count | Self::Lend | Self::Stats | Self::Lookup)
    }
}

/// The end of the queue at which a task is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddMode {
    /// 1: before all other tasks.
    Head,
    /// 2, and the default: behind all other tasks.
    Tail,
}

/// Whether a Lend waits for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LendMode {
    /// 1: it waits until a task is ready.
    Block,
    /// 2: it does not wait.
    Poll,
}

/// How a task is repaid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepayStatus {
    /// 1: back to the queue, twice as far from the front.
    Penalty,
    /// 2: back to the queue, half as far from the front.
    Reward,
    /// 3: back to the front of the queue.
    Front,
    /// 4: out of the queue for good. Key and value stay.
    Drop,
    /// 7: gone with its key and value. The value of the request is ignored.
    Done,
}

/// A request of a client. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// Asks whether the server is there.
    Ping,
    /// Counts the tasks that are ready to be lent.
    Count,
    /// Adds a task.
    Add {
        /// The key, at most 32 KiB.
        key: &'b [u8],
        /// The value, at most 16 MiB.
        value: &'b [u8],
        /// The end of the queue.
        mode: AddMode,
    },
    /// Replaces the value of a task.
    Update {
        /// The key of the task.
        key: &'b [u8],
        /// The new value.
        value: &'b [u8],
    },
    /// Leases the next task.
    Lend {
        /// The length of the lease.
        timeout_ms: u64,
        /// Whether to wait for a task.
        mode: LendMode,
    },
    /// Gives a task back.
    Repay {
        /// The lend key of the lease.
        lend_key: u64,
        /// The key of the task.
        key: &'b [u8],
        /// The new value of the task.
        value: &'b [u8],
        /// How the task is repaid.
        status: RepayStatus,
    },
    /// Sets a new deadline for a lease.
    Heartbeat {
        /// The lend key of the lease.
        lend_key: u64,
        /// The key of the task.
        key: &'b [u8],
        /// The time from now to the new deadline.
        timeout_ms: u64,
    },
    /// Reads how many requests of each kind were answered.
    Stats,
    /// Ends the server.
    Terminate,
    /// Reads the value of a task.
    Lookup {
        /// The key of the task.
        key: &'b [u8],
    },
    /// Syncs everything to disk.
    Flush,
    /// Removes a task.
    Remove {
        /// The key of the task.
        key: &'b [u8],
    },
}

impl<'b> Request<'b> {
    /// Decodes a request. It ignores bytes behind the request, except for the mode of an Add.
    ///
    /// # Errors
    /// The first [`Fault`], from left to right.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Fault> {
        Self::read(&mut Fields::new(bytes))
    }

    pub(super) fn read(fields: &mut Fields<'b>) -> Result<Self, Fault> {
        Ok(match fields.byte(Field::Tag)? {
            PING => Self::Ping,
            COUNT => Self::Count,
            ADD => Self::Add {
                key: fields.key(Field::AddKeyLength, Field::AddKey)?,
                value: fields.value(Field::AddValueLength, Field::AddValue)?,
                mode: fields.optional().map_or(Ok(AddMode::Tail), AddMode::decode)?,
            },
            UPDATE => Self::Update {
                key: fields.key(Field::UpdateKeyLength, Field::UpdateKey)?,
                value: fields.value(Field::UpdateValueLength, Field::UpdateValue)?,
            },
            LEND => Self::Lend {
                timeout_ms: fields.long(Field::LendTimeout)?,
                mode: fields.byte(Field::LendMode).and_then(LendMode::decode)?,
            },
            REPAY => Self::Repay {
                lend_key: fields.long(Field::RepayLendKey)?,
                key: fields.key(Field::RepayKeyLength, Field::RepayKey)?,
                value: fields.value(Field::RepayValueLength, Field::RepayValue)?,
                status: fields.byte(Field::RepayStatus).and_then(RepayStatus::decode)?,
            },
            HEARTBEAT => Self::Heartbeat {
                lend_key: fields.long(Field::HeartbeatLendKey)?,
                key: fields.key(Field::HeartbeatKeyLength, Field::HeartbeatKey)?,
                timeout_ms: fields.long(Field::HeartbeatTimeout)?,
            },
            STATS => Self::Stats,
            TERMINATE => Self::Terminate,
            LOOKUP => Self::Lookup { key: fields.key(Field::LookupKeyLength, Field::LookupKey)? },
            FLUSH => Self::Flush,
            REMOVE => Self::Remove { key: fields.key(Field::RemoveKeyLength, Field::RemoveKey)? },
            offending => return Err(Fault::Offending { field: Field::UnknownTag, offending }),
        })
    }

    /// Appends the encoded request. An Add at the tail is encoded without its mode, which every version understands.
    ///
    /// # Panics
    /// If the key or the value has 4 GiB or more.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.tag());
        match *self {
            Self::Ping | Self::Count | Self::Stats | Self::Terminate | Self::Flush => {}
            Self::Add { key, value, mode } => {
                encode_bytes(key, out);
                encode_bytes(value, out);
                out.extend((mode == AddMode::Head).then_some(1));
            }
            Self::Update { key, value } => {
                encode_bytes(key, out);
                encode_bytes(value, out);
            }
            Self::Lend { timeout_ms, mode } => {
                out.extend(timeout_ms.to_be_bytes());
                out.push(mode.encode());
            }
            Self::Repay { lend_key, key, value, status } => {
                out.extend(lend_key.to_be_bytes());
                encode_bytes(key, out);
                encode_bytes(value, out);
                out.push(status.encode());
            }
            Self::Heartbeat { lend_key, key, timeout_ms } => {
                out.extend(lend_key.to_be_bytes());
                encode_bytes(key, out);
                out.extend(timeout_ms.to_be_bytes());
            }
            Self::Lookup { key } | Self::Remove { key } => encode_bytes(key, out),
        }
    }

    /// The kind of the request.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Self::Ping => Verb::Ping,
            Self::Count => Verb::Count,
            Self::Add { .. } => Verb::Add,
            Self::Update { .. } => Verb::Update,
            Self::Lend { .. } => Verb::Lend,
            Self::Repay { .. } => Verb::Repay,
            Self::Heartbeat { .. } => Verb::Heartbeat,
            Self::Stats => Verb::Stats,
            Self::Terminate => Verb::Terminate,
            Self::Lookup { .. } => Verb::Lookup,
            Self::Flush => Verb::Flush,
            Self::Remove { .. } => Verb::Remove,
        }
    }

    /// The first byte.
    #[must_use]
    pub fn tag(&self) -> u8 {
        self.verb().tag()
    }
}

impl AddMode {
    pub(super) fn decode(byte: u8) -> Result<Self, Fault> {
        match byte {
            1 => Ok(Self::Head),
            2 => Ok(Self::Tail),
            offending => Err(Fault::Offending { field: Field::BadAddMode, offending }),
        }
    }

    pub(super) fn encode(self) -> u8 {
        match self {
            Self::Head => 1,
            Self::Tail => 2,
        }
    }
}

impl LendMode {
    fn decode(byte: u8) -> Result<Self, Fault> {
        match byte {
            1 => Ok(Self::Block),
            2 => Ok(Self::Poll),
            offending => Err(Fault::Offending { field: Field::BadLendMode, offending }),
        }
    }

    fn encode(self) -> u8 {
        match self {
            Self::Block => 1,
            Self::Poll => 2,
        }
    }
}

impl RepayStatus {
    pub(super) fn decode(byte: u8) -> Result<Self, Fault> {
        match byte {
            1 => Ok(Self::Penalty),
            2 => Ok(Self::Reward),
            3 => Ok(Self::Front),
            4 => Ok(Self::Drop),
            7 => Ok(Self::Done),
            offending => Err(Fault::Offending { field: Field::BadRepayStatus, offending }),
        }
    }

    pub(super) fn encode(self) -> u8 {
        match self {
            Self::Penalty => 1,
            Self::Reward => 2,
            Self::Front => 3,
            Self::Drop => 4,
            Self::Done => 7,
        }
    }
}
