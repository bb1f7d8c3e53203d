//! Names of tables and queues as text. This module knows no metrics.

use std::fmt::Write;

/// A name as text, or as `0x…` if it is not UTF-8.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap_or_else(|_| hexadecimal(name))
}

/// `0x` and two digits for each byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
