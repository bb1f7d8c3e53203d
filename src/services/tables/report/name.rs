//! Names of tables and queues as text. This module knows no metrics.

use std::fmt::Write;

/// The beginning of bytes in hexadecimal.
const HEX: &str = "0x";

/// A name as text, or as `0x…` if it is not UTF-8.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap_or_else(|_| hexadecimal(name))
}

/// Text, or `0x…` if the bytes are none or could be taken for that.
pub(crate) fn textual(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with(HEX) => text.to_owned(),
        _ => hexadecimal(bytes),
    }
}

/// `0x` and two digits for each byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(HEX.to_owned(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
