//! A walk over all keys of a table that goes on from turn to turn, for a reply whose number of keys stands first.

/// What the walk of a connection has collected.
#[derive(Debug, Default)]
pub(super) struct KeyWalk {
    /// Where the next page begins.
    pub(super) cursor: u64,
    pub(super) keys: Vec<Box<[u8]>>,
    /// Bytes that the keys take.
    pub(super) bytes: usize,
}
