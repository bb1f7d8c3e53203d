//! The fields of a request: how each is read from its frames, and how it is written to them.
//!
//! ```text
//! first a command frame of one byte      BAD REQUEST
//! then  a known command                  UNKNOWN COMMAND
//! then  the number of frames             BAD REQUEST
//! then  the fields from left to right    BAD TABLE NAME, KEY TOO LONG, VALUE TOO LONG, BAD TTL, or
//!                                        BAD CURSOR, or BAD REQUEST for a number or a byte
//! ```
//! The tables check the rest after this: whether the table and the key exist, the version, and the memory.

use std::marker::PhantomData;
use std::ops::Deref;

use super::ttl::decode_ttl;
use super::{FieldLimits, Reason, ScanFields, TableName, TableOptions, TtlField, number};
use crate::clock::Ttl;
use crate::feed::FeedPosition;
use crate::limits::{CURSOR_BYTES_MAX, MANY_MAX, SCAN_COUNT_MAX, TABLE_NAME_BYTES_MAX};
use crate::tables::Durability;

/// The numbers of frames that fields may have: from `least` to `most` in steps.
#[derive(Clone, Copy)]
pub(super) struct FrameCount {
    least: usize,
    most: usize,
    step: usize,
}

impl FrameCount {
    pub(super) const NONE: Self = Self { least: 0, most: 0, step: 1 };
    const ONE: Self = Self { least: 1, most: 1, step: 1 };

    /// The number of these fields and of the next one, which ends the request if its number varies.
    pub(super) const fn and(self, next: Self) -> Self {
        Self { least: self.least + next.least, most: self.most + next.most, step: next.step }
    }

    pub(super) fn check(self, frames: usize) -> Result<(), Reason> {
        let fits = (self.least..=self.most).contains(&frames) && (frames - self.least).is_multiple_of(self.step);
        if fits { Ok(()) } else { Err(Reason::BadRequest) }
    }
}

/// Frames on their way into a sink, which is notified of the last one.
pub(super) struct FrameSink<S> {
    pub(super) sink: S,
    pub(super) left: usize,
}

impl<S: FnMut(&[u8], bool)> FrameSink<S> {
    pub(super) fn send(&mut self, frame: &[u8]) {
        self.left -= 1;
        (self.sink)(frame, self.left > 0);
    }
}

/// A kind of field. `F` is a frame.
pub(super) trait Field<'m, F: 'm> {
    /// The value that a request has of it.
    type Value: Copy;
    /// Its frames in a request.
    const FRAMES: FrameCount = FrameCount::ONE;

    /// The frames of this value.
    fn frames(_: Self::Value) -> usize {
        1
    }

    /// Takes its frames off the front. Their number was checked before.
    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<Self::Value, Reason>;

    fn encode<S: FnMut(&[u8], bool)>(value: Self::Value, sink: &mut FrameSink<S>);
}

/// A kind of field that always has one frame.
pub(super) trait OneFrame<'m> {
    type Value: Copy;

    fn read(frame: &'m [u8], limits: FieldLimits) -> Result<Self::Value, Reason>;

    fn write<R>(value: Self::Value, sink: impl FnOnce(&[u8]) -> R) -> R;
}

impl<'m, F: Deref<Target = [u8]> + 'm, K: OneFrame<'m>> Field<'m, F> for K {
    type Value = K::Value;

    #[inline]
    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<K::Value, Reason> {
        let (frame, rest) = frames.split_first().ok_or(Reason::BadRequest)?;
        *frames = rest;
        K::read(frame, limits)
    }

    #[inline]
    fn encode<S: FnMut(&[u8], bool)>(value: K::Value, sink: &mut FrameSink<S>) {
        K::write(value, |frame| sink.send(frame));
    }
}

/// Makes kinds of one frame: the value, how it is read, and how it is written.
macro_rules! one_frame {
    ($($(#[$doc:meta])* $kind:ident($value:ty): |$frame:ident, $limits:pat_param| $read:expr, |$own:ident| $bytes:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $kind;

            impl<'m> OneFrame<'m> for $kind {
                type Value = $value;

                #[inline]
                fn read($frame: &'m [u8], $limits: FieldLimits) -> Result<$value, Reason> {
                    $read
                }

                #[inline]
                fn write<R>($own: $value, sink: impl FnOnce(&[u8]) -> R) -> R {
                    sink($bytes)
                }
            }
        )*
    };
}

one_frame! {
    Table(TableName<'m>): |frame, _| decode_table(frame), |table| table.spelling();
    Key(&'m [u8]): |frame, limits| decode_key(frame, limits.key), |key| key;
    Value(&'m [u8]): |frame, limits| decode_value(frame, limits.value), |value| value;
    TimeToLive(Ttl): |frame, _| decode_ttl(frame), |ttl| TtlField::new(ttl).bytes();
    /// An empty frame is none.
    TtlOrEmpty(Option<Ttl>):
        |frame, _| if frame.is_empty() { Ok(None) } else { decode_ttl(frame).map(Some) },
        |ttl| ttl.map(TtlField::new).as_ref().map_or(&[], TtlField::bytes);
    Version(u64): |frame, _| number(frame).ok_or(Reason::BadRequest), |version| &version.to_be_bytes();
    Delta(i64):
        |frame, _| frame.try_into().map(i64::from_be_bytes).map_err(|_| Reason::BadRequest),
        |delta| &delta.to_be_bytes();
    Cursor(&'m [u8]): |frame, _| decode_cursor(frame), |cursor| cursor;
    Count(u32): |frame, _| decode_count(frame), |count| &u64::from(count).to_be_bytes();
    RowFields(ScanFields): |frame, _| decode_fields(frame), |fields| &[fields.code()];
    DurabilityByte(Durability):
        |frame, _| decode_durability(frame).ok_or(Reason::BadRequest),
        |durability| &[durability as u8];
    Options(TableOptions):
        |frame, _| TableOptions::decode(frame).ok_or(Reason::BadRequest),
        |options| &[options.code()];
}

/// A field that may be left out at the end.
pub(super) struct Optional<K>(PhantomData<K>);

impl<'m, F: Deref<Target = [u8]> + 'm, K: OneFrame<'m>> Field<'m, F> for Optional<K> {
    type Value = Option<K::Value>;
    const FRAMES: FrameCount = FrameCount { least: 0, most: 1, step: 1 };

    fn frames(value: Self::Value) -> usize {
        usize::from(value.is_some())
    }

    #[inline]
    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<Self::Value, Reason> {
        if frames.is_empty() { Ok(None) } else { <K as Field<'m, F>>::decode(frames, limits).map(Some) }
    }

    #[inline]
    fn encode<S: FnMut(&[u8], bool)>(value: Self::Value, sink: &mut FrameSink<S>) {
        if let Some(value) = value {
            <K as Field<'m, F>>::encode(value, sink);
        }
    }
}

/// The beginning of keys. An empty one may be left out at the end.
pub(super) struct Prefix;

impl<'m, F: Deref<Target = [u8]> + 'm> Field<'m, F> for Prefix {
    type Value = &'m [u8];
    const FRAMES: FrameCount = <Optional<Key> as Field<'m, F>>::FRAMES;

    fn frames(value: &'m [u8]) -> usize {
        usize::from(!value.is_empty())
    }

    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<&'m [u8], Reason> {
        <Optional<Key> as Field<'m, F>>::decode(frames, limits).map(Option::unwrap_or_default)
    }

    fn encode<S: FnMut(&[u8], bool)>(value: &'m [u8], sink: &mut FrameSink<S>) {
        let value = Some(value).filter(|value| !value.is_empty());
        <Optional<Key> as Field<'m, F>>::encode(value, sink);
    }
}

/// A place in the feed: epoch, incarnation and sequence.
pub(super) struct Position;

impl<'m, F: Deref<Target = [u8]> + 'm> Field<'m, F> for Position {
    type Value = FeedPosition;
    const FRAMES: FrameCount = FrameCount { least: 3, most: 3, step: 1 };

    fn frames(_: FeedPosition) -> usize {
        3
    }

    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<FeedPosition, Reason> {
        let mut next = || <Version as Field<'m, F>>::decode(frames, limits);
        Ok(FeedPosition { epoch: next()?, incarnation: next()?, sequence: next()? })
    }

    fn encode<S: FnMut(&[u8], bool)>(value: FeedPosition, sink: &mut FrameSink<S>) {
        for number in [value.epoch, value.incarnation, value.sequence] {
            sink.send(&number.to_be_bytes());
        }
    }
}

/// Keys at the end.
pub(super) struct Keys;

impl<'m, F: Deref<Target = [u8]> + 'm> Field<'m, F> for Keys {
    type Value = &'m [F];
    const FRAMES: FrameCount = FrameCount { least: 1, most: MANY_MAX, step: 1 };

    fn frames(keys: &'m [F]) -> usize {
        keys.len()
    }

    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<&'m [F], Reason> {
        let keys = std::mem::take(frames);
        keys.iter().try_for_each(|key| decode_key(key, limits.key).map(drop))?;
        Ok(keys)
    }

    fn encode<S: FnMut(&[u8], bool)>(keys: &'m [F], sink: &mut FrameSink<S>) {
        keys.iter().for_each(|key| sink.send(key));
    }
}

/// Keys at the end, each with a value.
pub(super) struct Pairs;

impl<'m, F: Deref<Target = [u8]> + 'm> Field<'m, F> for Pairs {
    type Value = &'m [[F; 2]];
    const FRAMES: FrameCount = FrameCount { least: 2, most: 2 * MANY_MAX, step: 2 };

    fn frames(pairs: &'m [[F; 2]]) -> usize {
        2 * pairs.len()
    }

    fn decode(frames: &mut &'m [F], limits: FieldLimits) -> Result<&'m [[F; 2]], Reason> {
        let (pairs, _) = std::mem::take(frames).as_chunks();
        for [key, value] in pairs {
            decode_key(key, limits.key)?;
            decode_value(value, limits.value)?;
        }
        Ok(pairs)
    }

    fn encode<S: FnMut(&[u8], bool)>(pairs: &'m [[F; 2]], sink: &mut FrameSink<S>) {
        pairs.as_flattened().iter().for_each(|frame| sink.send(frame));
    }
}

pub(crate) fn decode_table(frame: &[u8]) -> Result<TableName<'_>, Reason> {
    let table = TableName::spelt(frame);
    let name = table.name();
    if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX || name.contains(&0) {
        return Err(Reason::BadTableName);
    }
    Ok(table)
}

pub(crate) fn decode_key(frame: &[u8], key_max: usize) -> Result<&[u8], Reason> {
    if frame.len() > key_max {
        return Err(Reason::KeyTooLong);
    }
    Ok(frame)
}

pub(crate) fn decode_value(frame: &[u8], value_max: usize) -> Result<&[u8], Reason> {
    if frame.len() > value_max {
        return Err(Reason::ValueTooLong);
    }
    Ok(frame)
}

/// The tables check the content: only they know which cursors they made.
fn decode_cursor(frame: &[u8]) -> Result<&[u8], Reason> {
    if frame.len() > CURSOR_BYTES_MAX {
        return Err(Reason::BadCursor);
    }
    Ok(frame)
}

fn decode_count(frame: &[u8]) -> Result<u32, Reason> {
    let count = number(frame).and_then(|count| u32::try_from(count).ok());
    count.filter(|count| (1..=SCAN_COUNT_MAX).contains(count)).ok_or(Reason::BadRequest)
}

fn decode_durability(frame: &[u8]) -> Option<Durability> {
    match *frame {
        [number] => Durability::of_number(number),
        _ => None,
    }
}

fn decode_fields(frame: &[u8]) -> Result<ScanFields, Reason> {
    match *frame {
        [code] => ScanFields::by_code(code).ok_or(Reason::BadRequest),
        _ => Err(Reason::BadRequest),
    }
}
