//! Faults of the simulated server that the proof plants, to show what finds them.

/// A fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A change is missing from its message. Its sequence is not given again.
    ChangeLost,
    /// A change is in the digest alone.
    ChangeUnnumbered,
    /// A change is twice in its message, and has one number.
    ChangeDoubled,
    /// A change is twice in its message, and has two numbers.
    ChangeRepeated,
    /// Two changes of a message are exchanged.
    ChangesSwapped,
    /// The digest keeps an element that expires.
    ExpiryNotInDigest,
    /// The announced version is not remembered, so later changes are announced again.
    AnnouncedForgotten,
    /// The mark is judged after the row was read.
    MarkedAfter,
    /// The mark is that of another reading of the slot, which was before the row was read.
    MarkOfAnother,
}
