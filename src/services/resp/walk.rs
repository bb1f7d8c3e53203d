//! A walk over all keys of a table, or all connections, that continues from turn to turn. The reply begins with their number
//! or their length.

/// What the walk of a connection has collected.
#[derive(Debug, Default)]
pub(super) struct KeyWalk {
    /// Where the next page begins.
    pub(super) cursor: u64,
    /// The keys, or the lines of the connections.
    pub(super) keys: Vec<Box<[u8]>>,
    /// Bytes that they take.
    pub(super) bytes: usize,
}
