//! Decodes and encodes requests, and says whether one is complete.

use std::fmt;

use thiserror::Error;

use super::options::{has_white_space, read_options, whole};
use crate::limits::{JOB_DATA_BYTES_MAX, JOB_LINE_BYTES_MAX, JOB_QUEUE_BYTES_MAX};
use crate::tasks::REASON_BYTES_MAX;

/// Digits of an id: as many as the largest `u64` has.
const ID_DIGITS: usize = 20;
/// The request of some clients to have everything on disk.
const SAVE: &[u8] = b"SAVE";
/// Digits of the longest length, leading zeros included.
const LENGTH_DIGITS_MAX: usize = 20;

/// The most queues of a WAIT, and the most bytes of its line behind the word.
const WAIT_QUEUES_MAX: usize = 1_024;
const WAIT_BYTES_MAX: usize = 16 << 10;
/// The options of a job without any.
const NO_OPTIONS: &[u8] = b"-";
/// The word of a WAIT whose answer has the tries of the job.
const TRIES: &[u8] = b"tries";
/// The delay of a NACK that leaves it to the backoff.
const NO_DELAY: &[u8] = b"-";

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Adds a job.
    Add,
    /// Leases the next job of a queue.
    Get,
    /// Marks a job as done.
    Ack,
    /// Asks whether a job is in a queue.
    In,
    /// Adds a job with options.
    AddX,
    /// Leases the next job of some queues, and waits for one.
    Wait,
    /// Gives a job back, which has failed.
    Nack,
    /// Gives the lease of a job a new end.
    Touch,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 8] =
        [Self::Add, Self::Get, Self::Ack, Self::In, Self::AddX, Self::Wait, Self::Nack, Self::Touch];

    /// The word of the verb in the protocol.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Get => "GET",
            Self::Ack => "ACK",
            Self::In => "IN",
            Self::AddX => "ADDX",
            Self::Wait => "WAIT",
            Self::Nack => "NACK",
            Self::Touch => "TOUCH",
        }
    }
}

/// The id of a job, unique in its server for ever. It is written with 20 digits, so that no id is a part of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl JobId {
    /// Reads an id. None: no job has it.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != ID_DIGITS || !bytes.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(bytes).ok()?.parse().ok().map(Self)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}", self.0)
    }
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// Adds a job.
    Add {
        /// The queue: 1–255 bytes without white space.
        queue: &'b [u8],
        /// The data: at most 1,000,000 bytes.
        data: &'b [u8],
    },
    /// Leases the next job of a queue.
    Get {
        /// The queue.
        queue: &'b [u8],
    },
    /// Marks a job as done.
    Ack {
        /// The queue.
        queue: &'b [u8],
        /// The id: any bytes without white space.
        id: &'b [u8],
    },
    /// Asks whether a job is in a queue.
    In {
        /// The queue.
        queue: &'b [u8],
        /// The id: any bytes without white space.
        id: &'b [u8],
    },
    /// Adds a job with options.
    AddX {
        /// The queue.
        queue: &'b [u8],
        /// What [`read_options`] reads.
        options: &'b [u8],
        /// The data: at most 1,000,000 bytes.
        data: &'b [u8],
    },
    /// Leases the next job of the first of these queues that has one, and waits for one.
    Wait {
        /// Up to 1,024 queues, with commas between, so that none has one in its name.
        queues: &'b [u8],
        /// The longest time to wait. 0: not at all.
        seconds: u32,
        /// Whether the answer has the tries of the job.
        with_tries: bool,
    },
    /// Gives a job back, which has failed.
    Nack {
        /// The queue.
        queue: &'b [u8],
        /// The id: any bytes without white space.
        id: &'b [u8],
        /// The milliseconds until it is handed out again, in place of its backoff.
        delay: Option<u32>,
        /// Why it has failed, on one line: the server keeps up to 256 bytes. Empty: nobody says.
        reason: &'b [u8],
    },
    /// Gives the lease of a job a new end.
    Touch {
        /// The queue.
        queue: &'b [u8],
        /// The id: any bytes without white space.
        id: &'b [u8],
        /// From now on. 0: the lease ends as if it had run out.
        seconds: u32,
    },
}

/// Why a request is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The first word is no command.
    #[error("there is no such command")]
    Command,
    /// There are too few or too many fields, or bytes follow the request.
    #[error("the number of fields is wrong")]
    Fields,
    /// The name of the queue is empty, too long, or has white space.
    #[error("a queue has 1 to {JOB_QUEUE_BYTES_MAX} bytes without white space")]
    Queue,
    /// The length is no number, or above the limit.
    #[error("a length is a number up to {JOB_DATA_BYTES_MAX}")]
    Length,
    /// There are fewer or more bytes of data than the length says.
    #[error("there are not as many bytes of data as the length says")]
    Data,
    /// The options are none that the protocol knows.
    #[error("options are - or NAME=VALUE with commas between, as in delay=30s,tries=5")]
    Options,
    /// A time is no number.
    #[error("a time is a whole number up to {}", u32::MAX)]
    Time,
}

/// How complete a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'b> {
    /// The request is complete, and can be answered at once.
    Whole(Request<'b>),
    /// The whole request is the word SAVE, which asks for no queue.
    Save,
    /// The request may be complete or continue. The caller decodes it with `over` if no byte comes for a moment.
    Pausing,
    /// The request lacks `missing` bytes at least.
    Short {
        /// At least one.
        missing: usize,
    },
    /// The request is malformed, and no further byte can change that.
    Wrong(Fault),
}

/// Decodes a request as far as its bytes have come. With `over` no byte follows, so the request is complete or
/// malformed.
#[must_use]
pub fn decode(bytes: &[u8], over: bool) -> Decoded<'_> {
    let end = bytes.iter().position(|byte| matches!(byte, b' ' | b'\n'));
    let (word, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
    let Some(verb) = Verb::ALL.into_iter().find(|verb| verb.word().as_bytes() == word) else {
        let begins = end.is_none() && Verb::ALL.into_iter().any(|verb| verb.word().as_bytes().starts_with(word));
        return if begins && !over { Decoded::Short { missing: 1 } } else { save(bytes, over) };
    };
    let decoded = match (verb, rest) {
        (Verb::Add | Verb::AddX, []) => Decoded::Short { missing: 1 },
        (Verb::Add | Verb::AddX, [b' ', rest @ ..]) => add(verb, rest),
        (Verb::Add | Verb::AddX, _) => Decoded::Wrong(Fault::Fields),
        (_, []) => Decoded::Pausing,
        (Verb::Wait | Verb::Nack | Verb::Touch, [_, ..]) => return long_line(verb, rest, over),
        (_, [_, ..]) => return line(verb, rest, over),
    };
    match decoded {
        Decoded::Pausing if over => Decoded::Wrong(Fault::Fields),
        Decoded::Short { .. } if over => Decoded::Wrong(Fault::Data),
        other => other,
    }
}

/// Decodes bytes that begin with the word of no verb.
fn save(bytes: &[u8], over: bool) -> Decoded<'_> {
    match bytes.strip_prefix(SAVE) {
        Some(b"\n" | b"\r\n") => Decoded::Save,
        Some(b"" | b"\r") if over => Decoded::Save,
        Some(b"" | b"\r") => Decoded::Pausing,
        None if SAVE.starts_with(bytes) && !over => Decoded::Short { missing: 1 },
        _ => Decoded::Wrong(Fault::Command),
    }
}

/// Decodes the bytes behind `ADD ` or `ADDX `.
fn add(verb: Verb, bytes: &[u8]) -> Decoded<'_> {
    let short = Decoded::Short { missing: 1 };
    let Some((queue, rest)) = field(bytes, JOB_QUEUE_BYTES_MAX) else {
        return if bytes.is_empty() || is_queue(bytes) { short } else { Decoded::Wrong(Fault::Queue) };
    };
    if !is_queue(queue) {
        return Decoded::Wrong(Fault::Queue);
    }
    let with_options = if verb == Verb::Add { Some((NO_OPTIONS, rest)) } else { field(rest, JOB_LINE_BYTES_MAX) };
    let (options, rest) = match with_options {
        None if rest.len() <= JOB_LINE_BYTES_MAX && !has_white_space(rest) => return short,
        Some((options, rest)) if read_options(options).is_some() => (options, rest),
        _ => return Decoded::Wrong(Fault::Options),
    };
    let Some((length, rest)) = field(rest, LENGTH_DIGITS_MAX) else {
        return if is_length(rest) { short } else { Decoded::Wrong(Fault::Length) };
    };
    let length = std::str::from_utf8(length).ok().filter(|text| is_length(text.as_bytes()));
    let Some(length) = length.and_then(|text| text.parse().ok()).filter(|length| *length <= JOB_DATA_BYTES_MAX) else {
        return Decoded::Wrong(Fault::Length);
    };
    match rest.split_at_checked(length) {
        None => Decoded::Short { missing: length - rest.len() },
        // A CR alone is the first half of a CRLF that was cut.
        Some((data, b"" | b"\n" | b"\r\n" | b"\r")) => Decoded::Whole(match verb {
            Verb::AddX => Request::AddX { queue, options, data },
            _ => Request::Add { queue, data },
        }),
        Some(_) => Decoded::Wrong(Fault::Data),
    }
}

/// Decodes the bytes behind the word of another command, the space included.
fn line(verb: Verb, bytes: &[u8], over: bool) -> Decoded<'_> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (text, behind) = bytes.split_at(end.unwrap_or(bytes.len()));
    let ended = over || !behind.is_empty();
    if behind.len() > 1 {
        return Decoded::Wrong(Fault::Fields);
    }
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let mut fields = text.split(|byte| *byte == b' ').skip(1);
    let (queue, id, more) = (fields.next(), fields.next(), fields.next());
    let most = if verb == Verb::Get { 1 } else { 2 };
    if more.is_some() || (most == 1 && id.is_some()) || bytes.len() > JOB_LINE_BYTES_MAX {
        return Decoded::Wrong(Fault::Fields);
    }
    // A last field that is empty may still get bytes.
    let is_last_and_empty = |field: &[u8], last: bool| field.is_empty() && last && !ended;
    if queue.is_some_and(|queue| !is_queue(queue) && !is_last_and_empty(queue, id.is_none())) {
        return Decoded::Wrong(Fault::Queue);
    }
    if id.is_some_and(|id| has_white_space(id) || (id.is_empty() && ended)) {
        return Decoded::Wrong(Fault::Fields);
    }
    if !ended {
        return Decoded::Pausing;
    }
    match (verb, queue, id) {
        (Verb::Get, Some(queue), None) => Decoded::Whole(Request::Get { queue }),
        (Verb::Ack, Some(queue), Some(id)) => Decoded::Whole(Request::Ack { queue, id }),
        (Verb::In, Some(queue), Some(id)) => Decoded::Whole(Request::In { queue, id }),
        _ => Decoded::Wrong(Fault::Fields),
    }
}

/// Decodes the bytes behind the word of a command whose line is read at its end, the space included.
fn long_line(verb: Verb, bytes: &[u8], over: bool) -> Decoded<'_> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (text, behind) = bytes.split_at(end.unwrap_or(bytes.len()));
    let most = if verb == Verb::Wait { WAIT_BYTES_MAX } else { JOB_LINE_BYTES_MAX };
    if behind.len() > 1 || bytes.len() > most {
        return Decoded::Wrong(Fault::Fields);
    }
    if behind.is_empty() && !over {
        return Decoded::Pausing;
    }
    let mut fields = text.strip_suffix(b"\r").unwrap_or(text).splitn(5, |byte| *byte == b' ').skip(1);
    let (first, second, third, rest) = (fields.next(), fields.next(), fields.next(), fields.next());
    let decoded = match (verb, first, second, third, rest) {
        (Verb::Wait, Some(queues), Some(seconds), None, None) => wait(queues, seconds, false),
        (Verb::Wait, Some(queues), Some(seconds), Some(TRIES), None) => wait(queues, seconds, true),
        (Verb::Nack, Some(queue), Some(id), delay, reason) => nack(queue, id, delay, reason.unwrap_or_default()),
        (Verb::Touch, Some(queue), Some(id), Some(seconds), None) => touch(queue, id, seconds),
        _ => Err(Fault::Fields),
    };
    decoded.map_or_else(Decoded::Wrong, Decoded::Whole)
}

fn wait<'b>(queues: &'b [u8], seconds: &[u8], with_tries: bool) -> Result<Request<'b>, Fault> {
    let names = queues.split(|byte| *byte == b',');
    let are_queues = names.clone().count() <= WAIT_QUEUES_MAX && names.clone().all(is_queue);
    are_queues.then_some(()).ok_or(Fault::Queue)?;
    Ok(Request::Wait { queues, seconds: number(seconds)?, with_tries })
}

fn nack<'b>(queue: &'b [u8], id: &'b [u8], delay: Option<&[u8]>, reason: &'b [u8]) -> Result<Request<'b>, Fault> {
    check_job(queue, id)?;
    let delay = delay.filter(|delay| *delay != NO_DELAY).map(number).transpose()?;
    Ok(Request::Nack { queue, id, delay, reason })
}

fn touch<'b>(queue: &'b [u8], id: &'b [u8], seconds: &[u8]) -> Result<Request<'b>, Fault> {
    check_job(queue, id)?;
    Ok(Request::Touch { queue, id, seconds: number(seconds)? })
}

fn check_job(queue: &[u8], id: &[u8]) -> Result<(), Fault> {
    is_queue(queue).then_some(()).ok_or(Fault::Queue)?;
    (!id.is_empty() && !has_white_space(id)).then_some(()).ok_or(Fault::Fields)
}

/// A time of these digits.
fn number(digits: &[u8]) -> Result<u32, Fault> {
    whole(digits).ok_or(Fault::Time)
}

/// A field of at most so many bytes that ends with a space, and the bytes behind that space.
fn field(bytes: &[u8], most: usize) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().take(most + 1).position(|byte| *byte == b' ')?;
    let (field, rest) = bytes.split_at_checked(end)?;
    Some((field, rest.get(1..)?))
}

/// Whether these bytes may be the name of a queue.
pub(super) fn is_queue(bytes: &[u8]) -> bool {
    (1..=JOB_QUEUE_BYTES_MAX).contains(&bytes.len()) && !has_white_space(bytes)
}

/// Whether these bytes may be a length, or the beginning of one. Empty bytes may only be the beginning.
fn is_length(bytes: &[u8]) -> bool {
    bytes.len() <= LENGTH_DIGITS_MAX && bytes.iter().all(u8::is_ascii_digit)
}

impl<'b> Request<'b> {
    /// The verb of the request.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Self::Add { .. } => Verb::Add,
            Self::Get { .. } => Verb::Get,
            Self::Ack { .. } => Verb::Ack,
            Self::In { .. } => Verb::In,
            Self::AddX { .. } => Verb::AddX,
            Self::Wait { .. } => Verb::Wait,
            Self::Nack { .. } => Verb::Nack,
            Self::Touch { .. } => Verb::Touch,
        }
    }

    /// The first queue of the request.
    #[must_use]
    pub fn queue(&self) -> &'b [u8] {
        self.queues().next().unwrap_or_default()
    }

    /// The queues of the request, at least one.
    pub fn queues(&self) -> impl Iterator<Item = &'b [u8]> {
        let (names, is_list) = match *self {
            Self::Add { queue, .. } | Self::Get { queue } | Self::Ack { queue, .. } | Self::In { queue, .. } => {
                (queue, false)
            }
            Self::AddX { queue, .. } | Self::Nack { queue, .. } | Self::Touch { queue, .. } => (queue, false),
            Self::Wait { queues, .. } => (queues, true),
        };
        names.split(move |byte| is_list && *byte == b',')
    }

    /// Appends the encoded request, with an end that lets the server answer at once. It writes the queue and the id
    /// unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.verb().word().as_bytes());
        out.push(b' ');
        match *self {
            Self::Add { queue, data } => {
                out.extend(queue);
                out.extend(format!(" {} ", data.len()).as_bytes());
                out.extend(data);
                return;
            }
            Self::Get { queue } => out.extend(queue),
            Self::Ack { queue, id } | Self::In { queue, id } => {
                out.extend(queue);
                out.push(b' ');
                out.extend(id);
            }
            Self::AddX { queue, options, data } => {
                out.extend([queue, b" ", options, format!(" {} ", data.len()).as_bytes(), data].concat());
                return;
            }
            Self::Wait { queues, seconds, with_tries } => {
                let tries = if with_tries { [b" ", TRIES].concat() } else { Vec::new() };
                out.extend([queues, format!(" {seconds}").as_bytes(), &tries].concat());
            }
            Self::Nack { queue, id, delay, reason } => {
                let delay = delay.map_or_else(|| NO_DELAY.to_vec(), |delay| delay.to_string().into_bytes());
                let space = if reason.is_empty() { &b""[..] } else { b" " };
                out.extend([queue, b" ", id, b" ", &delay, space, reason].concat());
            }
            Self::Touch { queue, id, seconds } => {
                out.extend([queue, b" ", id, format!(" {seconds}").as_bytes()].concat());
            }
        }
        out.push(b'\n');
    }
}

/// Checks of a request before it is sent.
impl Request<'_> {
    /// Checks that the protocol can express the request as [`Request::encode`] writes it.
    ///
    /// # Errors
    /// The [`Fault`] that the server would find.
    pub fn check(&self) -> Result<(), Fault> {
        if !self.queues().all(is_queue) || self.queues().count() > WAIT_QUEUES_MAX {
            return Err(Fault::Queue);
        }
        match *self {
            Self::Add { data, .. } | Self::AddX { data, .. } if data.len() > JOB_DATA_BYTES_MAX => Err(Fault::Length),
            Self::AddX { options, .. } if read_options(options).is_none() => Err(Fault::Options),
            Self::Wait { queues, .. } if queues.len() > WAIT_BYTES_MAX - LENGTH_DIGITS_MAX => Err(Fault::Queue),
            Self::Nack { reason, .. } if reason.len() > REASON_BYTES_MAX || reason.contains(&b'\n') => {
                Err(Fault::Fields)
            }
            Self::Ack { id, .. } | Self::In { id, .. } | Self::Nack { id, .. } | Self::Touch { id, .. }
                if id.is_empty() || has_white_space(id) =>
            {
                Err(Fault::Fields)
            }
            _ => Ok(()),
        }
    }
}
