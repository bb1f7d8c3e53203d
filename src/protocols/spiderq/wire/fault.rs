//! What is wrong with a request, in the numbers of the protocol.

use thiserror::Error;

/// A field of a request, by the number that errors name it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Field {
    /// The first byte.
    Tag = 1,
    /// A first byte that no request has.
    UnknownTag = 2,
    /// Add: length of the key.
    AddKeyLength = 3,
    /// Add: the key.
    AddKey = 4,
    /// Add: length of the value.
    AddValueLength = 5,
    /// Add: the value.
    AddValue = 6,
    /// Lend: how long.
    LendTimeout = 7,
    /// Repay: the token.
    RepayLendKey = 8,
    /// Repay: length of the key.
    RepayKeyLength = 9,
    /// Repay: the key.
    RepayKey = 10,
    /// Repay: length of the value.
    RepayValueLength = 11,
    /// Repay: the value.
    RepayValue = 12,
    /// Repay: what becomes of the task.
    RepayStatus = 13,
    /// Repay: a status that there is not.
    BadRepayStatus = 14,
    /// Update: length of the key.
    UpdateKeyLength = 39,
    /// Update: the key.
    UpdateKey = 40,
    /// Update: length of the value.
    UpdateValueLength = 41,
    /// Update: the value.
    UpdateValue = 42,
    /// Heartbeat: the token.
    HeartbeatLendKey = 43,
    /// Heartbeat: length of the key.
    HeartbeatKeyLength = 44,
    /// Heartbeat: the key.
    HeartbeatKey = 45,
    /// Heartbeat: how long.
    HeartbeatTimeout = 46,
    /// Lookup: length of the key.
    LookupKeyLength = 47,
    /// Lookup: the key.
    LookupKey = 48,
    /// Lend: whether to wait.
    LendMode = 51,
    /// Lend: a mode that there is not.
    BadLendMode = 52,
    /// Add: a mode that there is not.
    BadAddMode = 54,
    /// Remove: length of the key.
    RemoveKeyLength = 57,
    /// Remove: the key.
    RemoveKey = 58,
}

impl Field {
    /// All of them.
    pub const ALL: [Self; 29] = [
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
    ];

    /// The number that errors name it by.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The field of this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.number() == number)
    }

    /// Whether errors about it bring the byte that was found, and not lengths.
    #[must_use]
    pub const fn is_offence(self) -> bool {
        matches!(self, Self::UnknownTag | Self::BadRepayStatus | Self::BadLendMode | Self::BadAddMode)
    }
}

/// Why a request is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The request ends within a field, or the field is longer than allowed: then `given` is what is allowed.
    #[error("{field:?} needs {required} bytes, and there are {given}")]
    Truncated {
        /// Which field.
        field: Field,
        /// Bytes of the field.
        required: u32,
        /// Bytes that are there, or allowed.
        given: u32,
    },
    /// A byte that stands for nothing.
    #[error("{field:?}: {offending:#04x}")]
    Offending {
        /// Which field.
        field: Field,
        /// The byte.
        offending: u8,
    },
}
