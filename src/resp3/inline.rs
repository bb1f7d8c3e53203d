//! The words of an inline command, as a person types them.
//!
//! ```text
//! SET key "two\nlines" 'it is \'quoted\''
//! ```
//! In double quotes `\n`, `\r`, `\t`, `\b`, `\a` and `\xHH` are bytes, and `\` before any other byte is that byte. In single
//! quotes only `\'` is special. A quote ends its word, so a space or the end of the line follows it. A word without its
//! quotes is never longer, so it is written over its own beginning.

use std::ops::Range;

use super::Fault;

/// Splits a line into words, unquotes them in place, and returns the place of each.
///
/// # Errors
/// [`Fault::Quotes`] if a quote does not end, or something follows it.
pub(super) fn split(line: &mut [u8], mut word: impl FnMut(Range<usize>)) -> Result<(), Fault> {
    let mut line = Line { bytes: line, read: 0, written: 0 };
    loop {
        while line.peek().is_some_and(is_space) {
            line.read += 1;
        }
        if line.peek().is_none() {
            return Ok(());
        }
        let start = line.read;
        line.written = start;
        line.unquote_word()?;
        word(start..line.written);
    }
}

/// The bytes that may stand before a word, and behind a quote.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// The bytes that end a word without a quote.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// A line whose first bytes are read. The word at work is written over its own beginning.
struct Line<'l> {
    bytes: &'l mut [u8],
    read: usize,
    written: usize,
}

impl Line<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.read).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.read += 1;
        Some(byte)
    }

    fn write(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.written) {
            *place = byte;
        }
        self.written += 1;
    }

    fn unquote_word(&mut self) -> Result<(), Fault> {
        while let Some(byte) = self.peek().filter(|byte| !ends_word(*byte)) {
            self.read += 1;
            match byte {
                b'"' => self.double_quoted()?,
                b'\'' => self.single_quoted()?,
                _ => {
                    self.write(byte);
                    continue;
                }
            }
            return if self.peek().is_none_or(is_space) { Ok(()) } else { Err(Fault::Quotes) };
        }
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), Fault> {
        loop {
            let byte = match self.next().ok_or(Fault::Quotes)? {
                b'"' => return Ok(()),
                b'\\' => match self.hexadecimal() {
                    Some(byte) => byte,
                    None => unescaped(self.next().ok_or(Fault::Quotes)?),
                },
                byte => byte,
            };
            self.write(byte);
        }
    }

    /// The byte of the two digits behind an `x`, if those come next.
    fn hexadecimal(&mut self) -> Option<u8> {
        let [b'x', high, low, ..] = *self.bytes.get(self.read..)? else { return None };
        let byte = digit(high)? << 4 | digit(low)?;
        self.read += 3;
        Some(byte)
    }

    fn single_quoted(&mut self) -> Result<(), Fault> {
        loop {
            let byte = match self.next().ok_or(Fault::Quotes)? {
                b'\'' => return Ok(()),
                b'\\' if self.peek() == Some(b'\'') => {
                    self.read += 1;
                    b'\''
                }
                byte => byte,
            };
            self.write(byte);
        }
    }
}

fn digit(hexadecimal: u8) -> Option<u8> {
    match hexadecimal {
        b'0'..=b'9' => Some(hexadecimal - b'0'),
        b'a'..=b'f' | b'A'..=b'F' => Some((hexadecimal | 0x20) - b'a' + 10),
        _ => None,
    }
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}
