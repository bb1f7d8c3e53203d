//! Commands: an array of bulk strings, or the words of a line. A [`CommandCutter`] cuts them out of the received bytes.
//!
//! ```text
//! bytes    │ *2 $3 GET $1 k │ PING\r\n │ *3 $3 SET $1 k $9000 vvv…
//!          └───── whole ────┴── whole ─┘ begun: the caller keeps it, and adds what comes
//! ```
//! Each command is a message, and its arguments are the frames. A command that has begun is not read again from its
//! beginning: the cutter knows how far it has come. Arguments count as they come, not as they are announced. An array
//! without elements and an empty line are no command, and have no reply.

use std::ops::Range;

use super::Fault;
use super::inline::split;
use crate::messages::{Messages, Unconsumed};

/// The longest line: a count, a length, or an inline command, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The most arguments of a peer that has not named its user, and the longest of them, in bytes.
const UNPROVEN_ARGUMENTS_MAX: i64 = 10;
const UNPROVEN_ARGUMENT_BYTES_MAX: i64 = 16 << 10;
/// The most arguments that can be announced.
const ARGUMENTS_MAX: i64 = i32::MAX as i64;
/// Arguments for which the cutter always keeps room.
const ARGUMENTS_KEPT: usize = 16;

/// The bounds of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandBounds {
    /// The longest argument, in bytes.
    pub argument_bytes: usize,
    /// A command with its counts and lengths, in bytes.
    pub bytes: usize,
    /// The peer has named its user, or need not.
    pub is_proven: bool,
}

/// Cuts commands out of received bytes. Keeps the state of a command that has not come whole.
#[derive(Debug, Default)]
pub struct CommandCutter {
    /// Arguments that have come, counted from the first byte of the command.
    arguments: Vec<Range<usize>>,
    /// Arguments that have not come. 0: no array has begun.
    left: usize,
    /// Where the first of them begins, or its length, counted from the first byte of the command.
    at: usize,
    /// Its length, if that has come.
    length: Option<usize>,
    /// Bytes behind `at` in which there is no end of the line.
    searched: usize,
}

impl CommandCutter {
    /// Cuts the bytes that were left before, followed by the new ones, into at most `most` commands. The words of a line
    /// are unquoted in place.
    ///
    /// # Errors
    /// The [`Fault`] that ends the connection. The commands before it are good.
    ///
    /// ```
    /// use spindle::messages::Messages;
    /// use spindle::resp3::{CommandBounds, CommandCutter};
    ///
    /// let bounds = CommandBounds { argument_bytes: 1_000, bytes: 2_000, is_proven: true };
    /// let (mut cutter, mut commands) = (CommandCutter::default(), Messages::default());
    /// let mut bytes = *b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n*1\r\n$4";
    /// let left = cutter.cut(&mut bytes, &bounds, 64, &mut commands).unwrap();
    /// let commands: Vec<Vec<&[u8]>> = commands.iter(&bytes).map(|command| command.frames().collect()).collect();
    /// assert_eq!(commands, [vec![&b"GET"[..], b"k"], vec![b"PING"]]);
    /// assert_eq!(left.rest, 26);
    /// ```
    pub fn cut(
        &mut self,
        bytes: &mut [u8],
        bounds: &CommandBounds,
        most: usize,
        commands: &mut Messages,
    ) -> Result<Unconsumed, Fault> {
        commands.clear();
        let mut start = 0;
        while commands.len() < most {
            let rest = bytes.get_mut(start..).unwrap_or_default();
            let length = match rest.first() {
                None => break,
                Some(b'*') => self.cut_array(rest, start, bounds, commands)?,
                Some(_) => self.cut_line(rest, start, commands)?,
            };
            let Some(length) = length else { break };
            start += length;
        }
        Ok(Unconsumed { begun: start..start, rest: start })
    }

    /// Bytes of memory that the positions of a command of many arguments take.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        let many = self.arguments.capacity() > ARGUMENTS_KEPT;
        if many { self.arguments.capacity() * size_of::<Range<usize>>() } else { 0 }
    }

    /// Cuts an array that begins with `bytes`. `start` is their place in what was received. Returns its length. `None`:
    /// it is not whole.
    fn cut_array(
        &mut self,
        bytes: &[u8],
        start: usize,
        bounds: &CommandBounds,
        commands: &mut Messages,
    ) -> Result<Option<usize>, Fault> {
        let first = commands.frames.len();
        if self.left == 0 && !self.begin(bytes, bounds)? {
            return Ok(None);
        }
        commands.frames.extend(self.arguments.drain(..).map(|place| place.start + start..place.end + start));
        if !self.advance(bytes, start, bounds, &mut commands.frames)? {
            self.arguments.extend(commands.frames.drain(first..).map(|place| place.start - start..place.end - start));
            return Ok(None);
        }
        self.arguments.shrink_to(ARGUMENTS_KEPT);
        end(commands, first);
        Ok(Some(std::mem::take(&mut self.at)))
    }

    /// Reads the number of arguments. False: its line is not whole.
    fn begin(&mut self, bytes: &[u8], bounds: &CommandBounds) -> Result<bool, Fault> {
        let Some(number) = self.line(bytes, Fault::LongArgumentCount)? else { return Ok(false) };
        let count = integer(number).filter(|count| *count <= ARGUMENTS_MAX).ok_or(Fault::ArgumentCount)?;
        if count > UNPROVEN_ARGUMENTS_MAX && !bounds.is_proven {
            return Err(Fault::UnprovenArgumentCount);
        }
        self.left = usize::try_from(count).unwrap_or(0);
        Ok(true)
    }

    /// Reads the arguments that have come. Returns whether the array is whole.
    fn advance(
        &mut self,
        bytes: &[u8],
        start: usize,
        bounds: &CommandBounds,
        arguments: &mut Vec<Range<usize>>,
    ) -> Result<bool, Fault> {
        while self.left > 0 {
            let length = match self.length {
                Some(length) => length,
                None => {
                    let first = bytes.get(self.at).copied();
                    let Some(number) = self.line(bytes, Fault::LongArgumentLength)? else { return Ok(false) };
                    if let Some(byte) = first.filter(|byte| *byte != b'$') {
                        return Err(Fault::NoArgument(byte));
                    }
                    *self.length.insert(argument_length(number, bounds)?)
                }
            };
            let end = self.at + length;
            if end > bounds.bytes {
                return Err(Fault::LongCommand);
            }
            // What ends an argument is not looked at, as in Redis.
            if bytes.len() < end + 2 {
                return Ok(false);
            }
            arguments.push(self.at + start..end + start);
            (self.at, self.length, self.left) = (end + 2, None, self.left - 1);
        }
        Ok(true)
    }

    /// The line that begins at `at`, without its first byte. Passes over it. `None`: it is not whole.
    fn line<'b>(&mut self, bytes: &'b [u8], fault: Fault) -> Result<Option<&'b [u8]>, Fault> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        let unsearched = rest.get(self.searched..).unwrap_or_default();
        let Some(length) = unsearched.iter().position(|byte| *byte == b'\r').map(|length| length + self.searched)
        else {
            if rest.len() > LINE_BYTES_MAX {
                return Err(fault);
            }
            self.searched = rest.len();
            return Ok(None);
        };
        self.searched = length;
        // Whatever follows is taken for the line feed.
        if rest.len() <= length + 1 {
            return Ok(None);
        }
        (self.at, self.searched) = (self.at + length + 2, 0);
        Ok(Some(rest.get(1..length).unwrap_or_default()))
    }

    /// Cuts a line of words. Returns its length. `None`: it is not whole.
    fn cut_line(&mut self, bytes: &mut [u8], start: usize, commands: &mut Messages) -> Result<Option<usize>, Fault> {
        let unsearched = bytes.get(self.searched..).unwrap_or_default();
        let Some(length) = unsearched.iter().position(|byte| *byte == b'\n').map(|length| length + self.searched)
        else {
            if bytes.len() > LINE_BYTES_MAX {
                return Err(Fault::LongInline);
            }
            self.searched = bytes.len();
            return Ok(None);
        };
        self.searched = 0;
        let line = bytes.get_mut(..length).unwrap_or_default();
        let first = commands.frames.len();
        let faulty = split(line, |word| commands.frames.push(word.start + start..word.end + start));
        faulty.inspect_err(|_| commands.frames.truncate(first))?;
        end(commands, first);
        Ok(Some(length + 1))
    }
}

/// The frames from the `first` on are a command, if there are any.
fn end(commands: &mut Messages, first: usize) {
    let last = commands.frames.len();
    if last > first {
        commands.ends.push((last, true));
    }
}

fn argument_length(number: &[u8], bounds: &CommandBounds) -> Result<usize, Fault> {
    let length = integer(number).ok_or(Fault::ArgumentLength)?;
    let bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= bounds.argument_bytes);
    let bytes = bytes.ok_or(Fault::ArgumentLength)?;
    if length > UNPROVEN_ARGUMENT_BYTES_MAX && !bounds.is_proven {
        return Err(Fault::UnprovenArgumentLength);
    }
    Ok(bytes)
}

/// The number that these digits are: no sign but `-`, no zero in front, within 64 bits.
#[must_use]
pub fn integer(digits: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match digits {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits == b"0" && !is_negative {
        return Some(0);
    }
    if !matches!(digits.first(), Some(b'1'..=b'9')) {
        return None;
    }
    digits.iter().try_fold(0_i64, |number, digit| {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit <= 9)?);
        let number = number.checked_mul(10)?;
        if is_negative { number.checked_sub(digit) } else { number.checked_add(digit) }
    })
}
