//! One request against the tables: a decoded request goes in, a reply comes out.
//!
//! Any frontend may use this module. The frontend makes a batch, handles requests in it, and encodes each reply before
//! it handles the next, because replies borrow from the batch. A request that is [`NotDone`] has no reply yet: the
//! frontend drops the batch, waits or lets others have their turns, reads the clock and tries that request again.
//!
//! This module does not receive or send, and knows neither sockets nor frames.

mod scan;

use std::ops::Deref;

use super::wire::{FeedState, Payload, Reason, Reply, Request, TableLine, TableOptions};
use crate::clock::{Now, Ttl};
use crate::feed::LifeState;
use crate::tables::{
    Addition, Batch, Deadline, Durability, EvictionPolicy, ManyProgress, PORTION_BYTES, Refusal, TableSummary,
};
use scan::{Page, scan};

/// The functions that handling needs besides the tables.
pub struct HandlerContext<'c> {
    /// Renders STATS as JSON.
    pub stats: &'c dyn Fn() -> String,
    /// Reads the clock, for a request that had to wait halfway.
    pub now: &'c dyn Fn() -> Now,
    /// Bytes of the values or names in one reply. A longer one is refused. A page of SCAN ends earlier.
    pub reply_bytes_max: usize,
    /// Bytes of the rows in one page of SCAN, at most [`crate::limits::SCAN_BYTES_MAX`].
    pub page_bytes_max: usize,
    /// Bytes of a value.
    pub value_max: usize,
    /// The time of the clock of feed and log at the start of `now`, in milliseconds since 1970, for the deadlines in the rows of
    /// a mirror: the feed gives the same elements the same deadlines.
    pub clock_start: u64,
    /// Whether the user may read the table of this name, for a list of tables. None: it may read all.
    pub may_read: Option<&'c TableFilter<'c>>,
}

/// What the options of CREATE_TABLE say of the eviction and of the durability of the table.
fn settings(options: TableOptions) -> (Option<EvictionPolicy>, Option<Durability>) {
    match options {
        TableOptions::InMemory => (Some(EvictionPolicy::None), Some(Durability::None)),
        TableOptions::Soon => (None, Some(Durability::Soon)),
        TableOptions::Always => (None, Some(Durability::Always)),
        TableOptions::MayEvict => (Some(EvictionPolicy::Lru), Some(Durability::None)),
    }
}

/// Returns true for each table that the reply may list.
pub type TableFilter<'c> = dyn Fn(&[u8]) -> bool + 'c;

/// The request must be tried again in another batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// This thread's bound of unannounced changes is reached, memory is being given back, or an older table of the name
    /// must be taken down first. An element whose deadline has passed may have been removed on the way, and a request
    /// for many may have been carried out in part.
    Busy,
    /// A portion of it was carried out. Others have their turns first.
    Unfinished,
}

/// Carries out the request, or a portion of it. `progress` is that of this request, or new. The portion of a reply is
/// part of the progress when the caller says so ([`ManyProgress::advance`]).
///
/// # Errors
/// The [`Refusal`] of the tables. [`refused`] makes a reply of it, or says that the request must be tried again.
#[inline]
pub fn handle<'b, F: Deref<Target = [u8]>>(
    request: &Request<'_, F>,
    batch: &'b mut Batch<'_>,
    context: &HandlerContext<'_>,
    progress: &mut ManyProgress,
) -> Result<Reply<'b>, Refusal> {
    let now = batch.now();
    let deadline = |ttl: Option<Ttl>| Deadline::after(now, ttl);
    match *request {
        Request::CreateTable { table, options } => {
            let (eviction, durability) = options.map_or((None, None), settings);
            batch.create_table_with(table.name(), table.spelling(), eviction, durability).map(done)
        }
        Request::DeleteTable { table } => batch.delete_table(table.name()).map(done),
        Request::Update { table, key, value, ttl } => batch.update(table.name(), key, value, deadline(ttl)).map(done),
        Request::Delete { table, key } => batch.delete(table.name(), key).map(Reply::Value),
        Request::Get { table, key } => batch.get(table.name(), key).map(Reply::Value),
        Request::Ping => Ok(Reply::Done),
        Request::GetEntry { table, key } => batch.get_entry(table.name(), key, context.now).map(|entry| Reply::Entry {
            value: entry.value,
            version: entry.version,
            remaining_millis: entry.remaining_millis,
        }),
        Request::CompareAndSwap { table, key, expected, value, ttl } => {
            batch.compare_and_swap(table.name(), key, expected, value, deadline(ttl)).map(Reply::Version)
        }
        Request::CompareAndDelete { table, key, expected } => {
            batch.compare_and_delete(table.name(), key, expected).map(Reply::Value)
        }
        Request::Touch { table, key, ttl } => batch.touch(table.name(), key, deadline(Some(ttl))).map(done),
        Request::GetMany { table, keys } => get_many(batch, table.name(), keys, context.reply_bytes_max, progress),
        Request::UpdateMany { table, ttl, pairs } => {
            let pairs = pairs.iter().map(|[key, value]| (&**key, &**value));
            batch.update_many(table.name(), deadline(ttl), pairs, progress).map(done)
        }
        Request::ListTables => {
            let mut list = batch.list_tables();
            list.retain(|table| context.may_read.is_none_or(|may_read| may_read(&table.name)));
            Ok(tables(list, context.reply_bytes_max))
        }
        Request::Stats => Ok(Reply::Stats(batch.aside(context.stats))),
        Request::Scan { table, cursor, count, fields, prefix } => {
            let bytes_max = context.page_bytes_max.min(context.reply_bytes_max);
            scan(batch, table.name(), Page { cursor, count, fields, prefix, bytes_max }, context)
        }
        Request::Increment { table, key, delta, ttl } => {
            let addition = Addition { delta, deadline: deadline(ttl), value_max: context.value_max };
            batch.increment(table.name(), key, addition).map(|(sum, version)| Reply::Sum { sum, version })
        }
        Request::GetAndTouch { table, key, ttl } => {
            batch.get_and_touch(table.name(), key, deadline(Some(ttl))).map(Reply::Value)
        }
        Request::DeleteMany { table, keys } => {
            batch.delete_many(table.name(), keys.iter().map(|key| &**key), progress).map(Reply::Statuses)
        }
        Request::FeedState { table } => batch.feed_state(table.name()).map(feed_state),
        Request::Changes { table, position } => {
            let payloads = batch.changes(table.name(), position)?;
            Ok(Reply::Changes(payloads.into_iter().map(Payload::Kept).collect()))
        }
        Request::AlterTable { table, durability } => batch.alter_table(table.name(), durability, progress).map(done),
        Request::Restore { table, key, value, version, ttl } => {
            batch.restore(table.name(), key, value, version, deadline(Some(ttl))).map(Reply::Restored)
        }
    }
}

/// The values of all keys if they are short together. Otherwise the values of the next portion of keys. When the reply
/// has begun, an element that the table has lost meanwhile is absent.
fn get_many<'b, F: Deref<Target = [u8]>>(
    batch: &'b mut Batch<'_>,
    table: &[u8],
    keys: &[F],
    reply_bytes_max: usize,
    progress: &mut ManyProgress,
) -> Result<Reply<'b>, Refusal> {
    let (is_first, left) = (progress.done() == 0, keys.len() - progress.done());
    let mut values = Vec::with_capacity(left);
    let life = match batch.get_many(table, keys.iter().map(|key| &**key), progress, &mut values) {
        Ok(life) => life,
        Err(refusal) if is_first || refusal == Refusal::Busy => return Err(refusal),
        Err(_) => {
            values.clear();
            values.resize(left, None);
            0
        }
    };
    if progress.has_begun() {
        let is_last = values.len() == left;
        return Ok(Reply::SomeValues { values, is_first, is_last });
    }
    // The values are still borrowed from the table: a reply that is too long is refused before it is built.
    let (mut bytes, mut portion) = (0, 0);
    for value in &values {
        bytes += value.map_or(0, <[u8]>::len);
        portion += usize::from(bytes <= PORTION_BYTES || portion == 0);
    }
    if bytes > reply_bytes_max {
        return Ok(Reply::Refused(Reason::ReplyTooLong));
    }
    if bytes <= PORTION_BYTES {
        return Ok(Reply::Values(values));
    }
    progress.begin(life);
    values.truncate(portion);
    Ok(Reply::SomeValues { is_last: values.len() == left, values, is_first })
}

fn done<'b>((): ()) -> Reply<'b> {
    Reply::Done
}

fn feed_state<'b>(state: LifeState) -> Reply<'b> {
    let LifeState { next, oldest, digest } = state;
    Reply::FeedState(FeedState { next, oldest, elements: digest.elements, digest: digest.sum })
}

/// The reply to LIST_TABLES, refused if the names have more than `bytes_max` bytes together.
pub(super) fn tables(summaries: Vec<TableSummary>, bytes_max: usize) -> Reply<'static> {
    let line = |table: TableSummary| TableLine { name: table.name, elements: table.elements };
    let bytes: usize = summaries.iter().map(|table| table.name.len() + size_of::<u64>()).sum();
    if bytes > bytes_max {
        return Reply::Refused(Reason::ReplyTooLong);
    }
    Reply::Tables(summaries.into_iter().map(line).collect())
}

/// The reply to a request that the tables have refused.
///
/// # Errors
/// [`NotDone`] if the request must be tried again in another batch.
pub fn refused<'b>(refusal: Refusal) -> Result<Reply<'b>, NotDone> {
    let reason = match refusal {
        Refusal::TableExists => Reason::TableExists,
        Refusal::TableNotFound => Reason::TableNotFound,
        Refusal::KeyNotFound => Reason::KeyNotFound,
        Refusal::VersionMismatch { current } => Reason::VersionMismatch { current },
        Refusal::NotANumber => Reason::NotANumber,
        Refusal::OutOfRange | Refusal::VersionRefused => Reason::OutOfRange,
        Refusal::ValueTooLong => Reason::ValueTooLong,
        Refusal::BadCursor => Reason::BadCursor,
        Refusal::FeedOff => Reason::FeedOff,
        Refusal::Compacted { oldest } => Reason::Compacted { oldest },
        Refusal::OutOfMemory => Reason::OutOfMemory,
        Refusal::TooManyTables => Reason::TooManyTables,
        Refusal::OutOfDisk => Reason::OutOfDisk,
        Refusal::DiskFailed => Reason::DiskFailed,
        Refusal::Busy => return Err(NotDone::Busy),
        Refusal::Unfinished => return Err(NotDone::Unfinished),
    };
    Ok(Reply::Refused(reason))
}

#[cfg(test)]
mod tests;
