//! A blocking client: one method for each command, a pipeline for many requests at once, and a [`Subscriber`].
//!
//! The client is a DEALER without delimiter, the cheapest form of the protocol. It matches replies to requests by their
//! order alone. After a timeout, a loss or a malformed reply the client drops the connection, and opens another one for
//! the next request. No reply of a server makes it panic, and it never
//! sends a request twice.
//!
//! ```text
//! call:      send ──► receive                                            one at a time, the methods of the commands
//! pipeline:  send ──► send ──► send ──► receive ──► receive ──► receive  replies in the order of the requests
//!                  lost or late: the connection is dropped, in_flight = 0, the error counts the unanswered requests
//! ```

mod error;
mod feed;
mod feed_subscriber;
mod mirror;
mod receiver;
mod subscriber;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use crate::clients::rust::socket::{ClientTimeouts, Disconnected, log_in};
use crate::clock::Ttl;
pub use error::Error;
pub use feed_subscriber::FeedSubscriber;
pub use mirror::{Mirror, MirrorChange, MirrorElement, MirrorEvent, MirrorMetrics, NotExact};
pub use subscriber::Subscriber;

use crate::clients::rust::socket::Pipeline;
use crate::services::tables::wire::{
    Malformed, Reply, ReplyShape, Request, ScanFields, ScanRows, TableLine, TableName, TableOptions, check_progress,
};
use crate::tables::{Durability, Restored};

/// How long a client waits for a connection, and for each reply, by default.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// A request that awaits its reply.
#[derive(Clone, Copy)]
struct AwaitedReply {
    shape: ReplyShape,
    /// The request had a delimiter for its envelope, so its reply has one too.
    delimited: bool,
}

/// An element as GET_ENTRY returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedEntry {
    /// Its value.
    pub value: Vec<u8>,
    /// Its version, which grows with every change.
    pub version: u64,
    /// The remaining time to live, in milliseconds; `None` is without a deadline.
    pub remaining_millis: Option<u64>,
}

/// A page of a SCAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedPage<'c> {
    /// The cursor of the next page. Empty: this is the last one.
    pub next: Vec<u8>,
    /// The rows.
    pub rows: ScanRows<'c>,
}

/// One connection to a server, which the crate's root has as `spindle::Client`.
///
/// An endpoint is `tcp://HOST:PORT`, with an address of IPv4, one of IPv6 in brackets, or a name, or `ipc://PATH`, or
/// `ipc://@NAME` for a Unix socket without a file. All addresses of a name are tried. [`log_in`] names a user.
///
/// ```no_run
/// use spindle::{Client, ClientError, Ttl};
///
/// # fn main() -> Result<(), ClientError> {
/// let mut client = Client::connect("tcp://127.0.0.1:5555")?;
/// client.create_table(b"users")?;
/// client.update(b"users", b"ada", b"countess", Some(Ttl::from_secs(60)))?;
/// assert_eq!(client.get(b"users", b"ada")?, b"countess");
/// # Ok(())
/// # }
/// ```
///
/// Any number of requests may be on the way at once. The server executes and answers them in order:
///
/// ```no_run
/// # use spindle::clients::rust::tables::{Client, Error};
/// use spindle::services::tables::wire::{Request, TableName};
///
/// # fn main() -> Result<(), Error> {
/// # let mut client = Client::connect("tcp://127.0.0.1:5555")?;
/// let table = TableName::spelt(b"users");
/// for key in [b"ada", b"bob"] {
///     client.send(&Request::Get { table, key })?;
/// }
/// for _ in 0..client.in_flight() {
///     println!("{:?}", client.receive()?);
/// }
/// # Ok(())
/// # }
/// ```
///
/// The methods of the commands wait for their own reply, so they panic if requests are in flight. Each of them may
/// return any [`Error`]; its documentation lists the refusals to expect.
pub struct Client {
    pipeline: Pipeline<AwaitedReply>,
}

impl Client {
    /// Connects, and waits up to [`TIMEOUT_DEFAULT`] for a server to be there.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect(endpoint: &str) -> Result<Self, Error> {
        Self::connect_within(endpoint, TIMEOUT_DEFAULT)
    }

    /// Connects, and waits so long for a server to be there.
    ///
    /// A `Duration` bounds the time to connect, and afterwards the wait for each reply. [`ClientTimeouts`] bounds each
    /// separately.
    ///
    /// # Errors
    /// [`Error::Disconnected`]
    pub fn connect_within(endpoint: &str, timeouts: impl Into<ClientTimeouts>) -> Result<Self, Error> {
        let mut pipeline = Pipeline::new(endpoint, timeouts);
        pipeline.connect()?;
        Ok(Self { pipeline })
    }

    /// Sets the time that a new connection and each reply may take from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.pipeline.set_timeout(timeout);
    }

    /// The number of requests that were sent and not answered yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pipeline.in_flight()
    }

    /// Sends a request without waiting for its reply.
    ///
    /// It returns when the system has taken the request. Meanwhile it receives replies, so any number of requests may be
    /// sent before the first reply is asked for, and the memory for those replies is the only bound.
    ///
    /// # Errors
    /// All but [`Error::Refused`] and [`Error::Malformed`]. After an error no request is in flight.
    pub fn send(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let delimited = request.needs_delimiter();
        let asked = AwaitedReply { shape: request.reply_shape(), delimited };
        let sent = self.pipeline.send(asked, |sink| {
            if delimited {
                sink(b"", true);
            }
            request.encode(sink);
        });
        Ok(sent?)
    }

    /// Waits for the reply to the oldest request in flight. A refusal is a reply.
    ///
    /// # Errors
    /// All but [`Error::Refused`]. After an error no request is in flight.
    ///
    /// # Panics
    /// If no request is in flight.
    pub fn receive(&mut self) -> Result<Reply<'_>, Error> {
        let timeout = self.pipeline.timeout();
        Ok(self.pipeline.receive(timeout, AwaitedReply::decode)?)
    }

    /// CREATE_TABLE: makes an empty table. Notifications and LIST_TABLES will show the name as it is spelt here.
    ///
    /// # Errors
    /// TABLE EXISTS, BAD TABLE NAME, TOO MANY TABLES
    pub fn create_table(&mut self, table: &[u8]) -> Result<(), Error> {
        self.done(&Request::CreateTable { table: TableName::spelt(table), options: None })
    }

    /// CREATE_TABLE with options: what is on disk of the table, or whether its elements may be evicted when the memory of
    /// the server is full.
    ///
    /// # Errors
    /// As [`Client::create_table`], and DISK FAILED. BAD REQUEST of a server from before these options.
    pub fn create_table_with(&mut self, table: &[u8], options: TableOptions) -> Result<(), Error> {
        self.done(&Request::CreateTable { table: TableName::spelt(table), options: Some(options) })
    }

    /// DELETE_TABLE: removes a table and all its elements. Once it returns, the name is free.
    ///
    /// # Errors
    /// TABLE NOT FOUND
    pub fn delete_table(&mut self, table: &[u8]) -> Result<(), Error> {
        self.done(&Request::DeleteTable { table: TableName::spelt(table) })
    }

    /// UPDATE: adds or replaces an element. A `ttl` of `None` keeps the deadline, [`Ttl::NONE`] removes it.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY TOO LONG, VALUE TOO LONG, OUT OF MEMORY
    pub fn update(&mut self, table: &[u8], key: &[u8], value: &[u8], ttl: Option<Ttl>) -> Result<(), Error> {
        self.done(&Request::Update { table: TableName::spelt(table), key, value, ttl })
    }

    /// DELETE: deletes an element and returns its value.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY NOT FOUND
    pub fn delete(&mut self, table: &[u8], key: &[u8]) -> Result<Vec<u8>, Error> {
        self.value(&Request::Delete { table: TableName::spelt(table), key })
    }

    /// GET: reads a value.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY NOT FOUND
    pub fn get(&mut self, table: &[u8], key: &[u8]) -> Result<Vec<u8>, Error> {
        self.value(&Request::Get { table: TableName::spelt(table), key })
    }

    /// PING: asks whether the server is there.
    ///
    /// # Errors
    /// No refusal.
    pub fn ping(&mut self) -> Result<(), Error> {
        self.done(&Request::Ping)
    }

    /// GET_ENTRY: reads a value with its version and its remaining time to live.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY NOT FOUND
    pub fn get_entry(&mut self, table: &[u8], key: &[u8]) -> Result<FetchedEntry, Error> {
        match self.call(&Request::GetEntry { table: TableName::spelt(table), key })? {
            Reply::Entry { value, version, remaining_millis } => {
                Ok(FetchedEntry { value: value.to_vec(), version, remaining_millis })
            }
            _ => Err(self.wrong_shape()),
        }
    }

    /// COMPARE_AND_SWAP: writes if the element has the version `expected` (0: if it is absent). Returns the new
    /// version.
    ///
    /// # Errors
    /// VERSION MISMATCH with the current version, TABLE NOT FOUND, KEY TOO LONG, VALUE TOO LONG, OUT OF MEMORY
    pub fn compare_and_swap(
        &mut self,
        table: &[u8],
        key: &[u8],
        expected: u64,
        value: &[u8],
        ttl: Option<Ttl>,
    ) -> Result<u64, Error> {
        match self.call(&Request::CompareAndSwap { table: TableName::spelt(table), key, expected, value, ttl })? {
            Reply::Version(version) => Ok(version),
            _ => Err(self.wrong_shape()),
        }
    }

    /// COMPARE_AND_DELETE: deletes the element if it has the version `expected`. Returns its value.
    ///
    /// # Errors
    /// VERSION MISMATCH with the current version, TABLE NOT FOUND, KEY NOT FOUND
    pub fn compare_and_delete(&mut self, table: &[u8], key: &[u8], expected: u64) -> Result<Vec<u8>, Error> {
        self.value(&Request::CompareAndDelete { table: TableName::spelt(table), key, expected })
    }

    /// TOUCH: sets the time to live. [`Ttl::NONE`] removes it. The element gets a new version.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY NOT FOUND, OUT OF MEMORY
    pub fn touch(&mut self, table: &[u8], key: &[u8], ttl: Ttl) -> Result<(), Error> {
        self.done(&Request::Touch { table: TableName::spelt(table), key, ttl })
    }

    /// GET_MANY: reads 1–1024 values, each of them separately. `None` is absent.
    ///
    /// # Errors
    /// TABLE NOT FOUND, BAD REQUEST (no keys, or too many)
    pub fn get_many(&mut self, table: &[u8], keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        match self.call(&Request::GetMany { table: TableName::spelt(table), keys })? {
            Reply::Values(values) if values.len() == keys.len() => {
                Ok(values.into_iter().map(|value| value.map(<[u8]>::to_vec)).collect())
            }
            _ => Err(self.wrong_shape()),
        }
    }

    /// UPDATE_MANY: adds or replaces 1–1024 elements, each of them separately. If any pair is refused, no element is
    /// changed.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY TOO LONG, VALUE TOO LONG, OUT OF MEMORY, BAD REQUEST (no pairs, or too many)
    pub fn update_many(&mut self, table: &[u8], ttl: Option<Ttl>, pairs: &[[&[u8]; 2]]) -> Result<(), Error> {
        self.done(&Request::UpdateMany { table: TableName::spelt(table), ttl, pairs })
    }

    /// LIST_TABLES: returns the tables' names and element counts.
    ///
    /// # Errors
    /// No refusal.
    pub fn list_tables(&mut self) -> Result<Vec<TableLine>, Error> {
        match self.call(&Request::ListTables)? {
            Reply::Tables(tables) => Ok(tables),
            _ => Err(self.wrong_shape()),
        }
    }

    /// STATS: describes the server as JSON.
    ///
    /// # Errors
    /// No refusal.
    pub fn stats(&mut self) -> Result<String, Error> {
        match self.call(&Request::Stats)? {
            Reply::Stats(json) => Ok(json),
            _ => Err(self.wrong_shape()),
        }
    }

    /// SCAN: reads a page of a table. `cursor` is that of the page before, and empty for the first page. `count` is the
    /// number of elements to look at, 1–10,000. Only keys that begin with `prefix` are in the page.
    ///
    /// Every element that is in the table from the first page to the last is in one of them at least.
    ///
    /// ```no_run
    /// # use spindle::clients::rust::tables::{Client, Error};
    /// use spindle::services::tables::wire::{ScanFields, ScanRows};
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let mut client = Client::connect("tcp://127.0.0.1:5555")?;
    /// let mut cursor = Vec::new();
    /// loop {
    ///     let page = client.scan(b"users", &cursor, 1_000, ScanFields::Key, b"")?;
    ///     if let ScanRows::Key(keys) = &page.rows {
    ///         println!("{keys:?}");
    ///     }
    ///     cursor = page.next;
    ///     if cursor.is_empty() {
    ///         break Ok(());
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// TABLE NOT FOUND, BAD CURSOR (of another life of the table, or of another start of the server), KEY TOO LONG
    pub fn scan(
        &mut self,
        table: &[u8],
        cursor: &[u8],
        count: u32,
        fields: ScanFields,
        prefix: &[u8],
    ) -> Result<ScannedPage<'_>, Error> {
        self.begin(&Request::Scan { table: TableName::spelt(table), cursor, count, fields, prefix })?;
        let timeout = self.pipeline.timeout();
        self.pipeline.receive(timeout, |awaited, frames| match awaited.decode(frames)? {
            Reply::Page { next, rows } => {
                check_progress(cursor, &next)?;
                Ok(Ok(ScannedPage { next, rows }))
            }
            Reply::Refused(reason) => Ok(Err(Error::Refused(reason))),
            _ => unreachable!("a granted SCAN is decoded as a page"),
        })?
    }

    /// INCREMENT: adds `delta` to the decimal number that the value is. An absent element counts as 0, and gets `ttl`.
    /// An element that exists keeps its deadline. Returns the sum and its version.
    ///
    /// # Errors
    /// TABLE NOT FOUND, NOT A NUMBER, OUT OF RANGE, KEY TOO LONG, OUT OF MEMORY
    pub fn increment(&mut self, table: &[u8], key: &[u8], delta: i64, ttl: Option<Ttl>) -> Result<(i64, u64), Error> {
        match self.call(&Request::Increment { table: TableName::spelt(table), key, delta, ttl })? {
            Reply::Sum { sum, version } => Ok((sum, version)),
            _ => Err(self.wrong_shape()),
        }
    }

    /// GET_AND_TOUCH: reads a value, and sets the time to live as TOUCH does.
    ///
    /// # Errors
    /// TABLE NOT FOUND, KEY NOT FOUND, OUT OF MEMORY
    pub fn get_and_touch(&mut self, table: &[u8], key: &[u8], ttl: Ttl) -> Result<Vec<u8>, Error> {
        self.value(&Request::GetAndTouch { table: TableName::spelt(table), key, ttl })
    }

    /// DELETE_MANY: deletes 1–1024 elements, each of them separately. Returns which of them there were.
    ///
    /// # Errors
    /// TABLE NOT FOUND, BAD REQUEST (no keys, or too many)
    pub fn delete_many(&mut self, table: &[u8], keys: &[&[u8]]) -> Result<Vec<bool>, Error> {
        match self.call(&Request::DeleteMany { table: TableName::spelt(table), keys })? {
            Reply::Statuses(statuses) if statuses.len() == keys.len() => Ok(statuses),
            _ => Err(self.wrong_shape()),
        }
    }

    /// ALTER_TABLE: changes what is on disk of a table. It returns when that holds.
    ///
    /// # Errors
    /// TABLE NOT FOUND, OUT OF DISK, DISK FAILED, UNKNOWN COMMAND of a server from before this command
    pub fn alter_table(&mut self, table: &[u8], durability: Durability) -> Result<(), Error> {
        self.done(&Request::AlterTable { table: TableName::spelt(table), durability })
    }

    /// RESTORE: stores an element with the version that it had elsewhere, such as in a dump. It is refused if the key
    /// has the same version or a higher one. It is for a new table that is filled in this way alone.
    ///
    /// # Errors
    /// TABLE NOT FOUND, OUT OF RANGE (the version may have been given out before, or no server can have given it), KEY
    /// TOO LONG, VALUE TOO LONG, OUT OF MEMORY
    pub fn restore(
        &mut self,
        table: &[u8],
        key: &[u8],
        value: &[u8],
        version: u64,
        ttl: Ttl,
    ) -> Result<Restored, Error> {
        match self.call(&Request::Restore { table: TableName::spelt(table), key, value, version, ttl })? {
            Reply::Restored(restored) => Ok(restored),
            _ => Err(self.wrong_shape()),
        }
    }

    /// Sends one request and waits for its reply.
    fn call(&mut self, request: &Request<'_>) -> Result<Reply<'_>, Error> {
        self.begin(request)?;
        match self.receive()? {
            Reply::Refused(reason) => Err(Error::Refused(reason)),
            reply => Ok(reply),
        }
    }

    fn begin(&mut self, request: &Request<'_>) -> Result<(), Error> {
        assert!(self.in_flight() == 0, "receive what is in flight first");
        self.send(request)
    }

    fn done(&mut self, request: &Request<'_>) -> Result<(), Error> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => Err(self.wrong_shape()),
        }
    }

    fn value(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Error> {
        match self.call(request)? {
            Reply::Value(value) => Ok(value.to_vec()),
            _ => Err(self.wrong_shape()),
        }
    }

    /// The server's reply is not one to the command that was sent.
    fn wrong_shape(&mut self) -> Error {
        self.pipeline.refuse(|given| Malformed { rule: "a reply has the frames of its command", given }).into()
    }
}

impl AwaitedReply {
    /// Decodes the reply, without its envelope.
    fn decode(self, message: &[Vec<u8>]) -> Result<Reply<'_>, Malformed> {
        let body = match message.split_first() {
            Some((delimiter, body)) if self.delimited && delimiter.is_empty() => body,
            _ => message,
        };
        Reply::decode(self.shape, body)
    }
}
