//! Decodes arbitrary messages. Decoding must not panic, each message must get an envelope and an answer, and the first
//! fault must be the one that a slow, plain reading of `PROTOCOL.md` finds.
//!
//! The slow reading is table-driven and shares no code with [`super::fields`]. Each command has the list of fields that
//! the page gives it, each field has a check of its own, and the faults are sorted by their position.

use std::sync::LazyLock;

use bolero::check;
use proptest::prelude::*;

use super::specified::SpecifiedField::{
    Count, Cursor, Delta, DurabilityByte, Fields, Key, Options, Table, Ttl, TtlOrEmpty, Value, Version,
};
use super::specified::{SpecifiedCommand, SpecifiedField};
use super::{Command, FieldLimits, Reason, Request, TtlField, split};
use crate::clock::Ttl as TimeToLive;
use crate::limits::TTL_MILLIS_MAX;

/// Few bytes for a value, so that generated messages often meet the limits. More for a key than by default, since each
/// field is to be compared with the limit of its server.
const LIMITS: FieldLimits = FieldLimits { key: 70, value: 3 };

/// The frames that an encoder hands out, in the form that the tests of this folder compare.
#[derive(Default)]
pub(super) struct EncodedFrames {
    frames: Vec<Vec<u8>>,
    complete: bool,
}

impl EncodedFrames {
    /// A sink that checks that exactly the last frame is marked as the last.
    pub(super) fn sink(&mut self) -> impl FnMut(&[u8], bool) {
        |frame, more| {
            assert!(!self.complete, "a frame after the last");
            self.frames.push(frame.to_vec());
            self.complete = !more;
        }
    }

    pub(super) fn slices(&self) -> Vec<&[u8]> {
        assert!(self.complete, "no last frame");
        self.frames.iter().map(Vec::as_slice).collect()
    }
}

/// The row of `PROTOCOL.md`.
fn row(command: Command) -> &'static SpecifiedCommand {
    static ROWS: LazyLock<[SpecifiedCommand; Command::COUNT]> =
        LazyLock::new(|| Command::ALL.map(SpecifiedCommand::of));
    &ROWS[command.index()]
}

fn fault_of(field: SpecifiedField, frame: &[u8]) -> Option<Reason> {
    let bytes = frame.len();
    match field {
        Table => {
            let nuls = frame.iter().filter(|byte| **byte == 0).count();
            let ends = usize::from(frame.last() == Some(&0));
            let good = nuls == ends && (1..=254).contains(&(bytes - ends));
            (!good).then_some(Reason::BadTableName)
        }
        Key => (bytes > LIMITS.key).then_some(Reason::KeyTooLong),
        Value => (bytes > LIMITS.value).then_some(Reason::ValueTooLong),
        TtlOrEmpty if bytes == 0 => None,
        Ttl | TtlOrEmpty => {
            let big = frame.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
            let little = frame.iter().rev().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
            let seconds = bytes == 8 && big.min(little) < 1 << 32;
            let good = seconds || bytes == 9 && big >> 64 == 1 && big & u128::from(u64::MAX) < 1 << 42;
            (!good).then_some(Reason::BadTtl)
        }
        Version | Delta => (bytes != 8).then_some(Reason::BadRequest),
        Cursor => (bytes > 32).then_some(Reason::BadCursor),
        Count => {
            let count = frame.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
            let good = bytes == 8 && (1..=10_000).contains(&count);
            (!good).then_some(Reason::BadRequest)
        }
        Fields => {
            let good = bytes == 1 && frame[0] < 4;
            (!good).then_some(Reason::BadRequest)
        }
        Options => (bytes != 1 || frame[0] > 3).then_some(Reason::BadRequest),
        DurabilityByte => (bytes != 1 || frame[0] > 2).then_some(Reason::BadRequest),
    }
}

/// The first fault of a body by `PROTOCOL.md`.
fn first_fault(body: &[Vec<u8>]) -> Option<Reason> {
    let mut faults = Vec::new();
    if body.first().is_none_or(|command| command.len() != 1) {
        return Some(Reason::BadRequest);
    }
    let Some(command) = Command::ALL.into_iter().find(|command| body[0] == [*command as u8]) else {
        return Some(Reason::UnknownCommand);
    };
    let Some(fields) = row(command).fields(body.len() - 1) else {
        return Some(Reason::BadRequest);
    };
    for (place, (field, frame)) in fields.into_iter().zip(&body[1..]).enumerate() {
        faults.extend(fault_of(field, frame).map(|reason| (place, reason)));
    }
    faults.into_iter().min_by_key(|(place, _)| *place).map(|(_, reason)| reason)
}

/// The number of frames of the envelope by `PROTOCOL.md`; `None` if there is neither envelope nor body.
fn envelope_frames(message: &[Vec<u8>]) -> Option<usize> {
    let bytes: Vec<usize> = message.iter().map(Vec::len).collect();
    let bare = bytes.first() == Some(&1) && bytes.get(1) != Some(&0);
    let delimiter = bytes.iter().position(|bytes| *bytes == 0);
    if bare { Some(0) } else { delimiter.map(|place| place + 1) }
}

/// A frame from one byte of the fuzzer: at a limit, past it, or below.
fn frame(choice: u8) -> Vec<u8> {
    match choice {
        0..=63 => vec![choice % 24],
        64..=95 => Vec::new(),
        96..=119 => b"tab".to_vec(),
        120..=127 => b"tab\0".to_vec(),
        128..=151 => vec![0, 0, 0, 0, choice, 2, 3, 4],
        152..=167 => vec![choice, 2, 3, 4, 0, 0, 0, 0],
        168..=175 => vec![0; 8],
        176..=183 => vec![0, 0, 0, 1, 0, 0, 0, 0],
        184..=187 => vec![1, 0, 0, 1, 0, 0, 0, 1],
        188..=189 => vec![0, 0, 0, 0, 0, 0, 0x27, 0x10],
        190..=191 => vec![0; 7],
        192 => vec![0; 9],
        193 => vec![1, 0, 0, 0, 0, 0, 0, 5, 220],
        194 => vec![1, 0, 0, 3, 255, 255, 255, 255, 255],
        195 => vec![1, 0, 0, 4, 0, 0, 0, 0, 0],
        196..=199 => vec![b'c'; 32],
        200..=203 => vec![b'c'; 33],
        204..=207 => vec![b'k'; LIMITS.key],
        208..=215 => vec![b'k'; LIMITS.key + 1],
        216..=223 => vec![b'v'; LIMITS.value],
        224..=231 => vec![b'v'; LIMITS.value + 1],
        232..=235 => vec![b't'; 254],
        236..=239 => vec![b't'; 255],
        240..=243 => [vec![b't'; 254], vec![0]].concat(),
        244..=247 => b"t\0b".to_vec(),
        248..=251 => b"t\0\0".to_vec(),
        _ => vec![0],
    }
}

/// Compares both readings of one message.
fn compare(message: &[Vec<u8>]) {
    let parts = split(message);
    let envelope = envelope_frames(message);
    assert_eq!(parts.envelope.len(), envelope.unwrap_or(0), "{message:?}");
    let body = envelope.map_or(&[][..], |frames| &message[frames..]);
    assert_eq!(parts.body, body);
    match Request::decode(parts.body, LIMITS) {
        Ok(request) => {
            assert_eq!(first_fault(body), None, "{body:?}");
            assert_eq!(request.command().code(), body[0][0]);
            decodes_again(&request);
        }
        Err(fault) => assert_eq!(first_fault(body), Some(fault.reason), "{body:?}"),
    }
}

/// A request that is decoded, encoded and decoded again is the same, though the form of its TTL may have changed.
fn decodes_again(request: &Request<'_, Vec<u8>>) {
    let mut frames = EncodedFrames::default();
    request.encode(frames.sink());
    let again = Request::decode(&frames.frames, LIMITS);
    assert_eq!(again.as_ref(), Ok(request));
}

#[test]
fn any_message_is_answered_as_the_specification_says() {
    check!().with_iterations(50_000).for_each(|bytes: &[u8]| {
        let message: Vec<Vec<u8>> = bytes.iter().copied().map(frame).collect();
        compare(&message);
    });
}

#[test]
fn a_request_with_one_frame_replaced_is_answered_as_the_specification_says() {
    for command in Command::ALL {
        for length in 0..8 {
            let fields = row(command).fields(length).unwrap_or_else(|| vec![Key; length]);
            let body = [vec![command.code()]].into_iter().chain(fields.into_iter().map(SpecifiedField::good));
            let body: Vec<Vec<u8>> = body.collect();
            compare(&body);
            for place in 0..body.len() {
                for choice in 0..=255 {
                    let mut body = body.clone();
                    body[place] = frame(choice);
                    compare(&body);
                }
            }
        }
    }
}

#[test]
fn raw_frames_of_any_content_are_answered_as_the_specification_says() {
    check!().with_iterations(20_000).with_type::<Vec<Vec<u8>>>().for_each(|message| compare(message));
}

proptest! {
    /// Also frame by frame: a field that is read and written in the place of another would come back in its own.
    #[test]
    fn what_is_decoded_is_encoded_as_it_was(
        bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=64), 8),
        numbers in prop::collection::vec(any::<u64>(), 8),
        times in 1..5_usize,
    ) {
        for command in Command::ALL {
            let row = row(command);
            let lengths = [row.once.len(), row.once.len() + 1, row.once.len() + times * row.repeated.len()];
            for fields in lengths.into_iter().filter_map(|frames| row.fields(frames)) {
                let frames = fields.into_iter().enumerate().map(|(place, field)| {
                    let (bytes, number) = (&bytes[place % 8], numbers[place % 8]);
                    match field {
                        Table => [&[b't'][..], &number.to_string().into_bytes()].concat(),
                        Key => if bytes.is_empty() { vec![7] } else { bytes.clone() },
                        Value => bytes.clone(),
                        Cursor => bytes[..bytes.len().min(32)].to_vec(),
                        TtlOrEmpty if number % 2 == 0 => Vec::new(),
                        Ttl | TtlOrEmpty => {
                            let millis = if number % 3 == 0 { number % 60 * 1_000 } else { number % TTL_MILLIS_MAX };
                            TtlField::new(TimeToLive::from_millis(millis).unwrap()).bytes().to_vec()
                        }
                        Version | Delta => number.to_be_bytes().to_vec(),
                        Count => (1 + number % 10_000).to_be_bytes().to_vec(),
                        Fields => vec![bytes.len().to_le_bytes()[0] % 4],
                        Options => vec![number.to_le_bytes()[0] % 4],
                        DurabilityByte => vec![number.to_le_bytes()[0] % 3],
                    }
                });
                let body: Vec<Vec<u8>> = [vec![command.code()]].into_iter().chain(frames).collect();
                let request = Request::decode(&body, FieldLimits::DEFAULT);
                let mut encoded = EncodedFrames::default();
                prop_assert!(request.is_ok(), "{:?} of {:?}", request, body);
                request.unwrap().encode(encoded.sink());
                prop_assert_eq!(&encoded.frames, &body);
            }
        }
    }
}
