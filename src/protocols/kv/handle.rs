//! One request against the tables: a decoded request goes in, a reply comes out.
//!
//! Any frontend may use this module. The frontend makes a batch, handles requests in it, and encodes each reply before
//! it handles the next, because replies borrow from the batch. A request that is [`Busy`] has not been carried out: the
//! frontend drops the batch, waits, reads the clock and tries that request again.
//!
//! This module does not receive or send, and knows neither sockets nor frames.

mod scan;

use std::ops::Deref;

use super::wire::{FeedState, Payload, Reason, Reply, Request, TableLine};
use crate::clock::Now;
use crate::feed::LifeState;
use crate::tables::{Addition, Batch, Refusal, TableSummary};
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
    /// The wall clock at the start of the clock, in milliseconds since 1970, for the deadlines that mirrors are told.
    pub start_wall_millis: u64,
    /// Whether the user may read the table of this name, for a list of tables. None: it may read all.
    pub may_read: Option<&'c TableFilter<'c>>,
}

/// Says of the name of a table whether it is meant.
pub type TableFilter<'c> = dyn Fn(&[u8]) -> bool + 'c;

/// The request was not carried out: this thread's bound of unannounced changes is reached, memory is being given
/// back, or an older table of the name must be taken down first. An element whose deadline has passed may have been
/// removed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Carries out the request.
///
/// # Errors
/// [`Busy`] if the request must be tried again in another batch. All other results, refusals too, are replies.
#[inline]
pub fn handle<'b, F: Deref<Target = [u8]>>(
    request: &Request<'_, F>,
    batch: &'b mut Batch<'_>,
    context: &HandlerContext<'_>,
) -> Result<Reply<'b>, Busy> {
    answer(request, batch, context).or_else(|refusal| refused(refusal).map(Reply::Refused))
}

fn answer<'b, F: Deref<Target = [u8]>>(
    request: &Request<'_, F>,
    batch: &'b mut Batch<'_>,
    context: &HandlerContext<'_>,
) -> Result<Reply<'b>, Refusal> {
    match *request {
        Request::CreateTable { table } => batch.create_table(table.name(), table.spelling()).map(done),
        Request::DeleteTable { table } => batch.delete_table(table.name()).map(done),
        Request::Update { table, key, value, ttl } => batch.update(table.name(), key, value, ttl).map(done),
        Request::Delete { table, key } => batch.delete(table.name(), key).map(Reply::Value),
        Request::Get { table, key } => batch.get(table.name(), key).map(Reply::Value),
        Request::Ping => Ok(Reply::Done),
        Request::GetEntry { table, key } => batch.get_entry(table.name(), key, context.now).map(|entry| Reply::Entry {
            value: entry.value,
            version: entry.version,
            remaining_millis: entry.remaining_millis,
        }),
        Request::CompareAndSwap { table, key, expected, value, ttl } => {
            batch.compare_and_swap(table.name(), key, expected, value, ttl).map(Reply::Version)
        }
        Request::CompareAndDelete { table, key, expected } => {
            batch.compare_and_delete(table.name(), key, expected).map(Reply::Value)
        }
        Request::Touch { table, key, ttl } => batch.touch(table.name(), key, ttl).map(done),
        Request::GetMany { table, keys } => {
            let mut values = Vec::with_capacity(keys.len());
            let keys = keys.iter().map(|key| &**key);
            batch.get_many(table.name(), keys, &mut values)?;
            // The values are still borrowed from the table: a reply that is too long is refused before it is built.
            let bytes = values.iter().flatten().map(|value| value.len()).sum::<usize>();
            Ok(if bytes > context.reply_bytes_max {
                Reply::Refused(Reason::ReplyTooLong)
            } else {
                Reply::Values(values)
            })
        }
        Request::UpdateMany { table, ttl, pairs } => {
            let pairs = pairs.iter().map(|[key, value]| (&**key, &**value));
            batch.update_many(table.name(), ttl, pairs, context.now).map(done)
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
            let addition = Addition { delta, ttl, value_max: context.value_max };
            batch.increment(table.name(), key, addition).map(|(sum, version)| Reply::Sum { sum, version })
        }
        Request::GetAndTouch { table, key, ttl } => batch.get_and_touch(table.name(), key, ttl).map(Reply::Value),
        Request::DeleteMany { table, keys } => {
            let mut deleted = Vec::with_capacity(keys.len());
            batch.delete_many(table.name(), keys.iter().map(|key| &**key), &mut deleted, context.now)?;
            Ok(Reply::Statuses(deleted))
        }
        Request::FeedState { table } => batch.feed_state(table.name()).map(feed_state),
        Request::Changes { table, position } => {
            let payloads = batch.changes(table.name(), position)?;
            Ok(Reply::Changes(payloads.into_iter().map(Payload::Kept).collect()))
        }
    }
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

/// The reason on the wire for a refusal of the tables.
fn refused(refusal: Refusal) -> Result<Reason, Busy> {
    match refusal {
        Refusal::TableExists => Ok(Reason::TableExists),
        Refusal::TableNotFound => Ok(Reason::TableNotFound),
        Refusal::KeyNotFound => Ok(Reason::KeyNotFound),
        Refusal::VersionMismatch { current } => Ok(Reason::VersionMismatch { current }),
        Refusal::NotANumber => Ok(Reason::NotANumber),
        Refusal::OutOfRange => Ok(Reason::OutOfRange),
        Refusal::ValueTooLong => Ok(Reason::ValueTooLong),
        Refusal::BadCursor => Ok(Reason::BadCursor),
        Refusal::FeedOff => Ok(Reason::FeedOff),
        Refusal::Compacted { oldest } => Ok(Reason::Compacted { oldest }),
        Refusal::OutOfMemory => Ok(Reason::OutOfMemory),
        Refusal::TooManyTables => Ok(Reason::TooManyTables),
        Refusal::Busy => Err(Busy),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::limits::{REPLY_BYTES_MAX, SCAN_BYTES_MAX};
    use crate::protocols::kv::wire::{EntryRow, MirrorRow, RowMark, ScanFields, ScanRows, TableName};
    use crate::tables::{Session, Tables, TablesConfig};

    const NOW: Now = Now::from_millis(1_000);
    const T: TableName<'static> = TableName::spelt(b"t\0");
    const K: &[u8] = b"k";
    const V: &[u8] = b"v";

    fn session(changes_per_writer: usize) -> Session {
        let (tables, _backstage) = Tables::new(TablesConfig {
            expected_keys: 0,
            memory_max: 1 << 30,
            tables_max: 1,
            changes_per_writer,
            version_base: 0,
        });
        tables.session()
    }

    fn context<'c>(stats: &'c dyn Fn() -> String, now: &'c dyn Fn() -> Now) -> HandlerContext<'c> {
        HandlerContext {
            stats,
            now,
            reply_bytes_max: REPLY_BYTES_MAX,
            page_bytes_max: SCAN_BYTES_MAX,
            value_max: 1_024,
            start_wall_millis: 0,
            may_read: None,
        }
    }

    /// The replies to requests that are handled one after the other in one batch, as text.
    fn replies(requests: &[Request<'_>]) -> Vec<String> {
        let mut session = session(64);
        let mut batch = session.batch(NOW);
        let stats = || "{}".to_owned();
        let context = context(&stats, &|| NOW);
        requests.iter().map(|request| format!("{:?}", handle(request, &mut batch, &context).unwrap())).collect()
    }

    fn text(reply: &Reply<'_>) -> String {
        format!("{reply:?}")
    }

    #[test]
    fn every_command_has_its_reply() {
        let update = || Request::Update { table: T, key: K, value: V, ttl: Some(1) };
        let line = TableLine { name: Box::from(&b"t\0"[..]), elements: 1 };
        let page = |fields| Request::Scan { table: T, cursor: b"", count: 1, fields, prefix: b"" };
        let script: [(Request<'_>, Reply<'_>); 22] = [
            (Request::CreateTable { table: T }, Reply::Done),
            (update(), Reply::Done),
            (Request::Get { table: T, key: K }, Reply::Value(V)),
            (Request::Touch { table: T, key: K, ttl: 0 }, Reply::Done),
            (Request::GetMany { table: T, keys: &[b"j", K] }, Reply::Values(vec![None, Some(V)])),
            (Request::ListTables, Reply::Tables(vec![line])),
            (Request::Delete { table: T, key: K }, Reply::Value(V)),
            (Request::UpdateMany { table: T, ttl: None, pairs: &[[K, V]] }, Reply::Done),
            (Request::Get { table: T, key: K }, Reply::Value(V)),
            (Request::Ping, Reply::Done),
            (Request::Stats, Reply::Stats("{}".to_owned())),
            (page(ScanFields::Value), Reply::Page { next: Vec::new(), rows: ScanRows::Value(vec![[K, V]]) }),
            (Request::DeleteMany { table: T, keys: &[b"j", K] }, Reply::Statuses(vec![false, true])),
            (page(ScanFields::Key), Reply::Page { next: Vec::new(), rows: ScanRows::Key(Vec::new()) }),
            (Request::Increment { table: T, key: K, delta: 1, ttl: None }, Reply::Sum { sum: 1, version: 6 }),
            (Request::GetAndTouch { table: T, key: K, ttl: 0 }, Reply::Value(b"1")),
            (Request::GetAndTouch { table: T, key: b"j", ttl: 0 }, Reply::Refused(Reason::KeyNotFound)),
            (
                Request::Scan { table: T, cursor: b"forged", count: 1, fields: ScanFields::Key, prefix: b"" },
                Reply::Refused(Reason::BadCursor),
            ),
            (Request::DeleteTable { table: T }, Reply::Done),
            (update(), Reply::Refused(Reason::TableNotFound)),
            (Request::DeleteTable { table: T }, Reply::Refused(Reason::TableNotFound)),
            (Request::CreateTable { table: T }, Reply::Done),
        ];
        let (requests, expected): (Vec<_>, Vec<_>) = script.into_iter().unzip();
        assert_eq!(replies(&requests), expected.iter().map(text).collect::<Vec<_>>());
    }

    #[test]
    fn a_version_goes_out_and_comes_back() {
        let mut session = session(64);
        let mut batch = session.batch(NOW);
        let stats = String::new;
        let context = context(&stats, &|| NOW);
        let mut answer = |request: Request<'_>| match handle(&request, &mut batch, &context).unwrap() {
            Reply::Version(version) | Reply::Entry { version, .. } => version,
            Reply::Refused(Reason::VersionMismatch { current }) => current,
            Reply::Done | Reply::Value(_) => 0,
            other => panic!("{other:?}"),
        };
        let swap = |expected| Request::CompareAndSwap { table: T, key: K, expected, value: V, ttl: None };
        answer(Request::CreateTable { table: T });
        let absent = answer(swap(7));
        assert_eq!(absent, 0);
        let first = answer(swap(0));
        assert!(first > 0);
        assert_eq!(answer(swap(0)), first);
        assert_eq!(answer(Request::GetEntry { table: T, key: K }), first);
        let second = answer(swap(first));
        assert!(second > first);
        let delete = |expected| Request::CompareAndDelete { table: T, key: K, expected };
        assert_eq!(answer(delete(first)), second);
        assert_eq!(answer(delete(second)), 0);
    }

    #[test]
    fn a_page_has_the_fields_that_were_asked_for() {
        let mut session = session(64);
        let stats = String::new;
        let later = || Now::from_millis(1_500);
        let context = HandlerContext { start_wall_millis: 7_000, ..context(&stats, &later) };
        let mut batch = session.batch(NOW);
        let update: Request<'_> = Request::Update { table: T, key: K, value: V, ttl: Some(2) };
        for request in [Request::CreateTable { table: T }, update] {
            assert_eq!(text(&handle(&request, &mut batch, &context).unwrap()), text(&Reply::Done));
        }
        let entry = EntryRow { key: K, value: V, version: 1, remaining_millis: Some(1_500) };
        let mirror = MirrorRow { key: K, value: V, version: 1, deadline_millis: Some(10_000), mark: RowMark::Ahead };
        for (fields, rows) in [
            (ScanFields::Key, ScanRows::Key(vec![K])),
            (ScanFields::Value, ScanRows::Value(vec![[K, V]])),
            (ScanFields::Entry, ScanRows::Entry(vec![entry])),
            (ScanFields::Mirror, ScanRows::Mirror(vec![mirror])),
        ] {
            let request: Request<'_> = Request::Scan { table: T, cursor: b"", count: 10, fields, prefix: b"k" };
            let expected = text(&Reply::Page { next: Vec::new(), rows });
            assert_eq!(text(&handle(&request, &mut batch, &context).unwrap()), expected);
        }
    }

    #[test]
    fn a_reply_that_is_too_long_is_refused_before_it_is_built() {
        const VALUE: &[u8] = &[7; 16 << 20];
        let mut session = session(64);
        let mut batch = session.batch(NOW);
        let stats = String::new;
        let context = context(&stats, &|| NOW);
        let update: Request<'_> = Request::Update { table: T, key: K, value: VALUE, ttl: None };
        for request in [Request::CreateTable { table: T }, update] {
            assert_eq!(text(&handle(&request, &mut batch, &context).unwrap()), text(&Reply::Done));
        }
        let mut ask = |keys: &[&[u8]]| match handle(&Request::GetMany { table: T, keys }, &mut batch, &context) {
            Ok(Reply::Values(values)) => Ok(values.iter().flatten().count()),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(ask(&[K; 64]), Ok(64), "a gigabyte");
        assert_eq!(ask(&[K; 65]), Err(format!("{:?}", Ok::<_, Busy>(Reply::Refused(Reason::ReplyTooLong)))));
        assert_eq!(ask(&[&[&b"absent"[..]; 1023][..], &[K]].concat()), Ok(1));
    }

    /// The bound was a gigabyte, however little memory there was.
    #[test]
    fn a_reply_that_is_too_long_for_the_memory_is_refused() {
        let mut session = session(64);
        let mut batch = session.batch(NOW);
        let stats = String::new;
        let context = HandlerContext { reply_bytes_max: 30, ..context(&stats, &|| NOW) };
        let mut answer = |request: Request<'_>| text(&handle(&request, &mut batch, &context).unwrap());
        let too_long = text(&Reply::Refused(Reason::ReplyTooLong));
        answer(Request::CreateTable { table: T });
        answer(Request::Update { table: T, key: K, value: &[7; 15], ttl: None });
        assert_eq!(answer(Request::GetMany { table: T, keys: &[K; 2] }), text(&Reply::Values(vec![Some(&[7; 15]); 2])));
        assert_eq!(answer(Request::GetMany { table: T, keys: &[K; 3] }), too_long);
        assert_ne!(answer(Request::ListTables), too_long);
        let summary = TableSummary { name: Box::from([b'n'; 23]), elements: 1, bytes: 1 };
        assert_eq!(text(&tables(vec![summary], context.reply_bytes_max)), too_long);
    }

    #[test]
    fn the_name_is_one_however_it_is_spelt() {
        let bare = TableName::spelt(b"t");
        let requests = [
            Request::CreateTable { table: T },
            Request::CreateTable { table: bare },
            Request::Get { table: bare, key: K },
            Request::CreateTable { table: TableName::spelt(b"u") },
        ];
        let expected = [
            Reply::Done,
            Reply::Refused(Reason::TableExists),
            Reply::Refused(Reason::KeyNotFound),
            Reply::Refused(Reason::TooManyTables),
        ];
        assert_eq!(replies(&requests), expected.map(|reply| text(&reply)));
    }

    #[test]
    fn a_deadline_that_has_passed_is_absent() {
        let mut session = session(64);
        let stats = String::new;
        let context = context(&stats, &|| NOW);
        let mut at = |millis, request: Request<'_>| {
            let mut batch = session.batch(Now::from_millis(millis));
            text(&handle(&request, &mut batch, &context).unwrap())
        };
        at(1_000, Request::CreateTable { table: T });
        at(1_000, Request::Update { table: T, key: K, value: V, ttl: Some(2) });
        let get = || Request::Get { table: T, key: K };
        assert_eq!(at(2_999, get()), text(&Reply::Value(V)));
        assert_eq!(at(3_000, get()), text(&Reply::Refused(Reason::KeyNotFound)));
    }

    #[test]
    fn a_busy_request_has_not_been_looked_at() {
        let mut session = session(64);
        let stats = String::new;
        let context = context(&stats, &|| NOW);
        let mut batch = session.batch(NOW);
        let create: Request<'_> = Request::CreateTable { table: T };
        handle(&create, &mut batch, &context).unwrap();
        let values: Vec<[u8; 1]> = (0..=255).map(|number| [number]).collect();
        let mut last: &[u8] = &[];
        for value in &values {
            let update: Request<'_> = Request::Update { table: T, key: K, value, ttl: None };
            match handle(&update, &mut batch, &context) {
                Ok(reply) => assert_eq!(reply, Reply::Done),
                Err(Busy) => break,
            }
            last = value;
        }
        assert!(last.len() == 1 && last < &[255][..], "nobody announces, so the changes are used up");
        let get: Request<'_> = Request::Get { table: T, key: K };
        assert_eq!(handle(&get, &mut batch, &context), Ok(Reply::Value(last)));
    }
}
