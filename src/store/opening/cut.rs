//! The bytes behind the end of a log. They are of batches that were not whole when the process or the system ended.
//!
//! ```text
//! … batch │ batch │ end │ bytes of a batch, in part │ zeros
//!                 synced or not    CutOff
//! ```
//! A segment is laid out with zeros, so the last byte that is not zero ends them. The log continues in a new segment,
//! and the next opening does not find them again.
//!
//! This module looks for nothing: `batches.rs` does.

use std::fmt;

use crate::store::segment::name_of;

/// Bytes that an opening leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// The number of the segment.
    pub segment: u32,
    /// The offset of the end of the log.
    pub offset: u64,
    /// The bytes from there to the last one that was written.
    pub bytes: u64,
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes } = self;
        write!(f, "{bytes} bytes of {} from byte {offset} on", name_of(*segment))
    }
}
