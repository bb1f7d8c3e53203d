//! Tables, keys and values as typed, and the same bytes as shown.
//!
//! ```text
//! typed     --hex    bytes                          shown      with --hex
//! ada                61 64 61                       ada        0x616461
//! ada       yes      61 64 61
//! 0x00ff    yes      00 ff                          0x00ff     0x00ff       not printable
//! 0x00      no       30 78 30 30, the text "0x00"   0x30783030 0x30783030   could be taken for bytes
//! -                  standard input, to its end     (keys and values only)
//! ```
//! A shown operand can be typed again with `--hex`.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;

use clap::Args;
use clap::builder::{OsStringValueParser, StringValueParser, TypedValueParser};

use crate::cli::CommandError;
use crate::limits::FRAME_BYTES_MAX;
use crate::services::tables::report::{hexadecimal, textual};

/// The prefix of bytes in hexadecimal.
const HEX: &str = "0x";
/// The operand for standard input.
const STANDARD_INPUT: &[u8] = b"-";

/// Parses a command for the shell. A blank one ends with status 0, so all work would be done without being looked at.
pub(crate) fn command() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|typed| {
        if typed.trim().is_empty() { Err("it is blank: name the program that does the work") } else { Ok(typed) }
    })
}

/// Whether operands may be bytes in hexadecimal.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Hex {
    /// Take arguments that begin with 0x as bytes in hexadecimal, and print names, keys and values as such
    #[arg(long)]
    hex: bool,
}

/// The name of a table, as typed.
#[derive(Clone, Debug)]
pub(crate) struct TableOperand(Vec<u8>);

/// A key or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// As typed.
    Given(Vec<u8>),
    /// Standard input, to be read.
    StandardInput,
}

/// Parses a table.
pub(crate) fn table() -> impl TypedValueParser<Value = TableOperand> {
    OsStringValueParser::new().map(|typed| TableOperand(typed.into_vec()))
}

/// Parses a key or a value.
pub(crate) fn operand() -> impl TypedValueParser<Value = Operand> {
    OsStringValueParser::new().map(|typed| match typed.into_vec() {
        typed if typed == STANDARD_INPUT => Operand::StandardInput,
        typed => Operand::Given(typed),
    })
}

impl Hex {
    /// Arguments as typed, text where it is readable.
    pub(crate) const OFF: Self = Self { hex: false };
    #[cfg(test)]
    pub(crate) const ON: Self = Self { hex: true };

    /// Whether keys and values are printed in hexadecimal.
    pub(crate) fn is_on(self) -> bool {
        self.hex
    }

    /// The name of a table.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if the hexadecimal digits are none.
    pub(crate) fn table(self, typed: &TableOperand) -> Result<Vec<u8>, CommandError> {
        self.bytes(typed.0.clone())
    }

    /// The bytes that were typed.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if the hexadecimal digits are none.
    pub(crate) fn bytes(self, typed: Vec<u8>) -> Result<Vec<u8>, CommandError> {
        let Some(digits) = typed.strip_prefix(HEX.as_bytes()).filter(|_| self.hex) else {
            return Ok(typed);
        };
        from_hex(digits).ok_or_else(|| {
            let typed = typed.escape_ascii();
            CommandError::Usage(format!("{typed}: with --hex, pairs of hexadecimal digits come after 0x"))
        })
    }

    /// The bytes of what was shown. `None`: it is no text, and its digits are none.
    pub(crate) fn of_shown(text: &str) -> Option<Vec<u8>> {
        text.strip_prefix(HEX).map_or_else(|| Some(text.as_bytes().to_vec()), |digits| from_hex(digits.as_bytes()))
    }

    /// As [`shown`], or always in hexadecimal.
    pub(crate) fn shown(self, bytes: &[u8]) -> String {
        if self.hex { hexadecimal(bytes) } else { shown(bytes) }
    }

    /// As [`shown_in_json`], or always in hexadecimal.
    pub(crate) fn shown_in_json(self, bytes: &[u8]) -> String {
        if self.hex { hexadecimal(bytes) } else { shown_in_json(bytes) }
    }
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_chunks() else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

impl Operand {
    /// The bytes, read from `input` as they are if the operand is standard input.
    ///
    /// # Errors
    /// If the input cannot be read, or is longer than any server accepts, or as [`Hex::bytes`].
    pub(crate) fn read(self, hex: Hex, input: impl Read) -> Result<Vec<u8>, CommandError> {
        let Self::StandardInput = self else {
            return hex.bytes(self.given());
        };
        let mut bytes = Vec::new();
        let limit = FRAME_BYTES_MAX as u64 + 1;
        input
            .take(limit)
            .read_to_end(&mut bytes)
            .map_err(|error| CommandError::Failed(format!("cannot read standard input: {error}")))?;
        if bytes.len() > FRAME_BYTES_MAX {
            let most = format!("standard input holds more than {FRAME_BYTES_MAX} bytes");
            return Err(CommandError::Usage(most));
        }
        Ok(bytes)
    }

    fn given(self) -> Vec<u8> {
        match self {
            Self::Given(bytes) => bytes,
            Self::StandardInput => Vec::new(),
        }
    }
}

/// Whether a terminal does something with the character in place of showing it: a control character, a separator of
/// lines, or a sign for the direction of the text, which can show it in another order.
pub(crate) fn steers(character: char) -> bool {
    let is_direction = matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}');
    character.is_control() || is_direction || matches!(character, '\u{2066}'..='\u{2069}')
}

/// Text if it is readable on one line and can be typed again, and `0x…` otherwise.
pub(crate) fn shown(bytes: &[u8]) -> String {
    shown_if(bytes, |character| !steers(character))
}

/// Like [`shown`], but a text may have several lines: for a value that stands alone.
pub(crate) fn shown_at_length(bytes: &[u8]) -> String {
    shown_if(bytes, |character| !steers(character) || matches!(character, '\n' | '\t'))
}

/// Like [`shown`], but any text is shown as text: JSON escapes it.
pub(crate) fn shown_in_json(bytes: &[u8]) -> String {
    textual(bytes)
}

/// The name of a table without the NUL that may end it.
pub(crate) fn name(spelling: &[u8]) -> &[u8] {
    spelling.strip_suffix(b"\0").unwrap_or(spelling)
}

fn shown_if(bytes: &[u8], readable: impl Fn(char) -> bool) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with(HEX) && text.chars().all(readable) => text.to_owned(),
        _ => hexadecimal(bytes),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::ffi::OsString;

    use proptest::prelude::*;

    use super::*;

    /// The bytes of an argument with `--hex`.
    fn typed(text: &str) -> Result<Vec<u8>, String> {
        match Hex::ON.bytes(text.as_bytes().to_vec()) {
            Ok(bytes) => Ok(bytes),
            Err(CommandError::Usage(why)) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn with_hex_text_is_taken_as_typed_and_bytes_after_0x() {
        assert_eq!(typed("ada"), Ok(b"ada".to_vec()));
        assert_eq!(typed(""), Ok(Vec::new()));
        assert_eq!(typed("0x"), Ok(Vec::new()));
        assert_eq!(typed("0x00fF"), Ok(vec![0, 255]));
        assert_eq!(typed("0X00"), Ok(b"0X00".to_vec()));
        for bad in ["0x0", "0xgg", "0x+1", "0x 1"] {
            assert!(typed(bad).unwrap_err().contains("--hex"), "{bad}");
        }
    }

    #[test]
    fn without_hex_every_argument_is_taken_as_typed() {
        for text in ["ada", "0x00ff", "0xgg"] {
            assert_eq!(Hex::OFF.bytes(text.as_bytes().to_vec()).unwrap(), text.as_bytes());
        }
        let no_utf8 = operand().parse_ref(&clap::Command::new("get"), None, &OsString::from_vec(vec![0xff])).unwrap();
        assert_eq!(no_utf8, Operand::Given(vec![0xff]));
    }

    #[test]
    fn with_hex_everything_is_shown_as_bytes() {
        assert_eq!((Hex::ON.shown(b"ada"), Hex::ON.shown_in_json(b"")), ("0x616461".to_owned(), "0x".to_owned()));
        assert_eq!(Hex::OFF.shown(b"ada"), "ada");
    }

    #[test]
    fn standard_input_is_read_to_its_end() {
        let read = |operand: Operand, input: &[u8]| operand.read(Hex::ON, input).unwrap();
        assert_eq!(read(Operand::StandardInput, b"all\nof it\n"), b"all\nof it\n");
        assert_eq!(read(Operand::Given(b"given".to_vec()), b"ignored"), b"given");
        let most = vec![0; FRAME_BYTES_MAX];
        assert_eq!(read(Operand::StandardInput, &most).len(), FRAME_BYTES_MAX);
        let more = vec![0; FRAME_BYTES_MAX + 1];
        assert!(matches!(Operand::StandardInput.read(Hex::ON, &*more), Err(CommandError::Usage(_))));
    }

    #[test]
    fn what_cannot_be_read_is_shown_as_bytes() {
        assert_eq!(shown("Zoë".as_bytes()), "Zoë");
        assert_eq!(shown(b"\xff"), "0xff");
        assert_eq!(shown(b"\x00\x09\x9a\xf0"), "0x00099af0");
        assert_eq!(shown(b"a\nb"), "0x610a62");
        assert_eq!(shown(b"0x"), "0x3078");
        assert_eq!(shown("a\u{9b}2J".as_bytes()), "0x61c29b324a");
        for direction in ["\u{202e}gpj.exe", "\u{2066}a", "a\u{200f}", "\u{61c}", "a\u{2028}b"] {
            assert!(shown(direction.as_bytes()).starts_with("0x"), "{direction:?}");
            assert!(shown_at_length(direction.as_bytes()).starts_with("0x"), "{direction:?}");
        }
        assert_eq!(shown("👩\u{200d}🚀".as_bytes()), "👩\u{200d}🚀");
        assert_eq!(shown(b""), "");
        assert_eq!(shown_at_length(b"a\nb"), "a\nb");
        assert_eq!(shown_at_length(b"a\x1bb"), "0x611b62");
        assert_eq!(shown_in_json(b"a\x1bb"), "a\x1bb");
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_typed_back(bytes: Vec<u8>) {
            prop_assert_eq!(typed(&shown(&bytes)), Ok(bytes.clone()));
            prop_assert_eq!(typed(&Hex::ON.shown(&bytes)), Ok(bytes.clone()));
            prop_assert_eq!(typed(&shown_in_json(&bytes)), Ok(bytes));
        }
    }
}
