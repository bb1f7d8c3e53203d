//! Why an operation changed nothing, and what became of a restored element.

/// The reason why an operation changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A table of this name exists.
    TableExists,
    /// No table has this name.
    TableNotFound,
    /// The key has no element.
    KeyNotFound,
    /// The element has another version.
    VersionMismatch {
        /// The version of the element. 0: the key has no element.
        current: u64,
    },
    /// The value is no number in decimal, or one beyond 64 bits.
    NotANumber,
    /// The sum is beyond 64 bits.
    OutOfRange,
    /// A restored element cannot have this version: it was perhaps given out before, or no server can have given it by
    /// now.
    VersionRefused,
    /// The sum has more digits than a value may have bytes.
    ValueTooLong,
    /// The cursor is not one of this life of the table and this start of the server.
    BadCursor,
    /// There is no feed.
    FeedOff,
    /// The feed does not keep the change that was asked for.
    Compacted {
        /// The oldest sequence that is kept of the present life of the table.
        oldest: u64,
    },
    /// The limit of `memory_max` is reached. Reads and deletions continue.
    OutOfMemory,
    /// The table is durable, and its log has failed: nothing of it is stored any more until the next start.
    DiskFailed,
    /// The table is durable, and there is no room on the disk. Reads and deletions continue.
    OutOfDisk,
    /// The limit of `tables_max` is reached.
    TooManyTables,
    /// A portion of the request was carried out, and a reply follows later. The caller drops the batch, lets others have
    /// their turns, and continues in another batch.
    Unfinished,
    /// Nothing was done, for want of credits, of memory that may be given back, of a table that must be taken down first,
    /// or because another session holds the latch of the table. The caller drops the batch, calls [`Session::wait`], reads the clock and tries again.
    Busy,
}

/// What became of an element that was to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It has the version that was asked for.
    AsItWas,
    /// It has a new version. The one that was asked for was perhaps given out before.
    Anew,
    /// The key keeps its version, which is not lower, or the deletion of one that is not lower.
    Not,
}
