//! The faults of a request, by the numbers of the protocol.

use thiserror::Error;

/// A field of a request. Error replies name it by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Field {
    /// The first byte.
    Tag = 1,
    /// An unknown first byte.
    UnknownTag = 2,
    /// Add: length of the key.
    AddKeyLength = 3,
    /// Add: the key.
    AddKey = 4,
    /// Add: length of the value.
    AddValueLength = 5,
    /// Add: the value.
    AddValue = 6,
    /// Lend: the timeout.
    LendTimeout = 7,
    /// Repay: the lend key.
    RepayLendKey = 8,
    /// Repay: length of the key.
    RepayKeyLength = 9,
    /// Repay: the key.
    RepayKey = 10,
    /// Repay: length of the value.
    RepayValueLength = 11,
    /// Repay: the value.
    RepayValue = 12,
    /// Repay: the status.
    RepayStatus = 13,
    /// Repay: an unknown status.
    BadRepayStatus = 14,
    /// Update: length of the key.
    UpdateKeyLength = 39,
    /// Update: the key.
    UpdateKey = 40,
    /// Update: length of the value.
    UpdateValueLength = 41,
    /// Update: the value.
    UpdateValue = 42,
    /// Heartbeat: the lend key.
    HeartbeatLendKey = 43,
    /// Heartbeat: length of the key.
    HeartbeatKeyLength = 44,
    /// Heartbeat: the key.
    HeartbeatKey = 45,
    /// Heartbeat: the timeout.
    HeartbeatTimeout = 46,
    /// Lookup: length of the key.
    LookupKeyLength = 47,
    /// Lookup: the key.
    LookupKey = 48,
    /// Lend: the mode.
    LendMode = 51,
    /// Lend: an unknown mode.
    BadLendMode = 52,
    /// Add: an unknown mode.
    BadAddMode = 54,
    /// Remove: length of the key.
    RemoveKeyLength = 57,
    /// Remove: the key.
    RemoveKey = 58,
    /// The name of a queue.
    QueueName = 60,
    /// The number of entries of a list.
    List = 61,
    /// An option: an unknown tag, or a value that it cannot have.
    BadOption = 62,
    /// An option: its tag or value.
    Option = 63,
    /// A field of fixed length of a request about many tasks.
    Number = 64,
    /// A byte that chooses has no meaning.
    BadChoice = 65,
    /// The name of a group.
    Group = 66,
    /// The reason of a failure.
    Reason = 67,
    /// Length of a key in a request about many tasks.
    KeyLength = 68,
    /// A key in it.
    Key = 69,
    /// Length of a value in it.
    ValueLength = 70,
    /// A value in it.
    Value = 71,
    /// The server has no room for another queue.
    Queues = 72,
}

impl Field {
    /// All fields.
    pub const ALL: [Self; 42] = [
        Self::Tag,
        Self::UnknownTag,
        Self::AddKeyLength,
        Self::AddKey,
        Self::AddValueLength,
        Self::AddValue,
        Self::LendTimeout,
        Self::RepayLendKey,
        Self::RepayKeyLength,
        Self::RepayKey,
        Self::RepayValueLength,
        Self::RepayValue,
        Self::RepayStatus,
        Self::BadRepayStatus,
        Self::UpdateKeyLength,
        Self::UpdateKey,
        Self::UpdateValueLength,
        Self::UpdateValue,
        Self::HeartbeatLendKey,
        Self::HeartbeatKeyLength,
        Self::HeartbeatKey,
        Self::HeartbeatTimeout,
        Self::LookupKeyLength,
        Self::LookupKey,
        Self::LendMode,
        Self::BadLendMode,
        Self::BadAddMode,
        Self::RemoveKeyLength,
        Self::RemoveKey,
        Self::QueueName,
        Self::List,
        Self::BadOption,
        Self::Option,
        Self::Number,
        Self::BadChoice,
        Self::Group,
        Self::Reason,
        Self::KeyLength,
        Self::Key,
        Self::ValueLength,
        Self::Value,
        Self::Queues,
    ];

    /// The number of the field in error replies.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The field with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.number() == number)
    }

    /// Whether errors about this field carry the offending byte in place of lengths.
    #[must_use]
    pub const fn is_offence(self) -> bool {
        let is_old = matches!(self, Self::UnknownTag | Self::BadRepayStatus | Self::BadLendMode | Self::BadAddMode);
        is_old || matches!(self, Self::BadOption | Self::BadChoice)
    }
}

/// Why a request is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The request ends within a field, or the field is longer than its limit. In the second case `given` is the limit.
    #[error("{field:?} needs {required} bytes, and there are {given}")]
    Truncated {
        /// The field.
        field: Field,
        /// Bytes that the field needs.
        required: u32,
        /// Bytes that are there, or the limit.
        given: u32,
    },
    /// A byte without a meaning.
    #[error("{field:?}: {offending:#04x}")]
    Offending {
        /// The field.
        field: Field,
        /// The byte.
        offending: u8,
    },
}
