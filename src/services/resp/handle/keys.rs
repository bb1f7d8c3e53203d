//! Commands about keys and about the table: what there is, and the end of all of it.

use crate::limits::SCAN_COUNT_MAX;
use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, refused};
use crate::services::resp::arguments::{Arguments, is, number, shown};
use crate::services::resp::call::{Call, present};
use crate::services::resp::pattern::Pattern;
use crate::services::resp::walk::KeyWalk;
use crate::tables::{Refusal, ScanContent, ScanPage, ScannedElement};

/// The elements that a page of SCAN looks at, if the client does not say.
const SCAN_COUNT: usize = 10;
/// The most elements that a page looks at.
const COUNT_MAX: usize = SCAN_COUNT_MAX as usize;

pub(in super::super) fn kind<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [key] = arguments.exactly()?;
    Ok(Reply::Simple(if call.get(key)?.is_some() { "string" } else { "none" }))
}

pub(in super::super) fn dbsize<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [] = arguments.exactly()?;
    let count = present(call.batch.count(&call.client.table))?.unwrap_or(0);
    Ok(Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX)))
}

/// Checks the options of FLUSHDB and FLUSHALL: both ways free in the background here.
fn check_flush(arguments: Arguments<'_>) -> Result<(), Failure> {
    match arguments.behind(1) {
        [] => Ok(()),
        [option] if is(option, "async") || is(option, "sync") => Ok(()),
        _ => Err(SYNTAX),
    }
}

pub(in super::super) fn flushdb<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    check_flush(arguments)?;
    present(call.batch.replace_table(&call.client.table))?;
    Ok(OK)
}

pub(in super::super) fn flushall<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    check_flush(arguments)?;
    // A table that was replaced before the command had to wait is replaced again: it is empty, or has new elements.
    for database in 0..16_u8 {
        present(call.batch.replace_table(database.to_string().as_bytes()))?;
    }
    Ok(OK)
}

/// What SCAN is asked for.
#[derive(Clone, Copy, Debug)]
struct ScanOptions<'b> {
    count: usize,
    pattern: Pattern<'b>,
    /// Elements of other kinds than strings are asked for: there are none.
    is_foreign: bool,
}

impl<'b> ScanOptions<'b> {
    fn parse(mut options: &'b [&'b [u8]]) -> Result<Self, Failure> {
        let mut parsed = Self { count: SCAN_COUNT, pattern: Pattern::ALL, is_foreign: false };
        while let [option, value, rest @ ..] = options {
            options = rest;
            if is(option, "count") {
                let count = usize::try_from(number(value)?).unwrap_or(0);
                parsed.count = Some(count).filter(|count| *count > 0).ok_or(SYNTAX)?.min(COUNT_MAX);
            } else if is(option, "match") {
                parsed.pattern = Pattern::new(value)?;
            } else if is(option, "type") {
                parsed.is_foreign = !is(value, "string");
            } else {
                return Err(SYNTAX);
            }
        }
        if options.is_empty() { Ok(parsed) } else { Err(SYNTAX) }
    }
}

/// The number of a cursor, as strtoul reads it.
fn cursor_of(cursor: &[u8]) -> Option<u64> {
    let (is_negative, digits) = match cursor {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let number = digits.parse::<u64>().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

/// A page of this many elements.
pub(in super::super) fn page<'p>(count: usize, pattern: Pattern<'p>) -> ScanPage<'p> {
    let content = ScanContent::WithoutValues;
    ScanPage { cursor: &[], count, bytes_max: pattern.page_bytes(), prefix: pattern.prefix(), content }
}

pub(in super::super) fn scan<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([cursor], options) = arguments.split()?;
    let cursor = cursor_of(shown(cursor, usize::MAX)).ok_or_else(|| refused("ERR invalid cursor"))?;
    let options = ScanOptions::parse(options)?;
    let mut keys = Vec::new();
    let Call { batch, client, .. } = call;
    let row = |row: ScannedElement<'b>| {
        if !options.is_foreign && options.pattern.is_match(row.key) {
            keys.push(Reply::bulk(row.key));
        }
    };
    let next = batch.scan_from(&client.table, &page(options.count, options.pattern), cursor, row);
    let next = match next {
        Ok(next) => next,
        Err(Refusal::TableNotFound) => 0,
        Err(refusal) => return Err(refusal.into()),
    };
    Ok(Reply::Array(vec![Reply::owned(next.to_string()), Reply::Array(keys)]))
}

/// The keys are collected in pages between the turns of others: their number stands first on the wire.
pub(in super::super) fn keys<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [pattern] = arguments.exactly()?;
    let pattern = Pattern::new(pattern)?;
    let Call { batch, client, context, .. } = call;
    let mut walk = client.collected.walk.take().unwrap_or_default();
    let KeyWalk { cursor, keys, bytes } = &mut *walk;
    let row = |row: ScannedElement<'_>| {
        if pattern.is_match(row.key) {
            *bytes += row.key.len() + size_of::<Box<[u8]>>();
            keys.push(row.key.into());
        }
    };
    let next = match present(batch.scan_from(&client.table, &page(COUNT_MAX, pattern), *cursor, row)) {
        Ok(next) => next.unwrap_or(0),
        Err(failure) => {
            client.collected.walk = Some(walk);
            return Err(failure);
        }
    };
    if *bytes > context.reply_bytes_max {
        return Err(refused(
            "ERR the keys are more than a client may have outstanding: use SCAN, or raise --client-bytes-max",
        ));
    }
    if next != 0 {
        *cursor = next;
        client.collected.walk = Some(walk);
        return Err(Failure::Unfinished);
    }
    // The walk meets a key twice only after a split on the way. A reply of KEYS has each once.
    walk.keys.sort_unstable();
    walk.keys.dedup();
    Ok(Reply::Array(walk.keys.into_iter().map(|key| Reply::bulk(key.into_vec())).collect()))
}

pub(in super::super) fn randomkey<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [] = arguments.exactly()?;
    let start = call.context.random_place();
    let Call { batch, client, .. } = call;
    let one = page(1, Pattern::ALL);
    // From a random place to the end, and then from the beginning.
    for mut cursor in [start, 0] {
        loop {
            let mut found = None;
            let row = |row: ScannedElement<'_>| found = found.take().or_else(|| Some(row.key.to_vec()));
            let next = present(batch.scan_from(&client.table, &one, cursor, row))?.unwrap_or(0);
            if let Some(key) = found {
                return Ok(Reply::bulk(key));
            }
            cursor = next;
            if next == 0 {
                break;
            }
        }
    }
    Ok(Reply::Null)
}
