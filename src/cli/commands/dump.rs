//! `spindle dump` writes the elements of a table to standard output, and `spindle load-dump` reads them again.
//!
//! A dump is made of the pages of a scan while others may write. An element that is there from begin to end is in it.
//! A load into a new table keeps the versions, and one into a table that exists gives new ones: a version of a dump may
//! have been given out there already. A new table has as much on disk as the dumped one had. Deadlines are times of the wall
//! clock, and a load counts what is left of each to the millisecond.

mod format;

use std::io::{self, IsTerminal, Read, Write};

use clap::Args;
use serde_json::json;

use super::client::{KvServer, each_page};
use super::durabilities::Durabilities;
use super::refusal::failure;
use crate::cli::CommandError;
use crate::cli::flags::endpoint::Connect;
use crate::cli::flags::operand::{Hex, TableOperand, name, table};
use crate::cli::flags::tables::durability;
use crate::cli::show::{Format, counted};
use crate::clients::rust::tables::{Client, Error};
use crate::clock::{Ttl, wall_millis};
use crate::services::tables::wire::{EntryRow, Reason, Reply, Request, ScanFields, ScanRows, TableName};
use crate::tables::{Durability, Restored};
use format::{DumpReader, DumpRow, DumpWriter, DumpedTable};

/// Requests that a load has on their way, and the bytes of their values, at most.
const IN_FLIGHT_MAX: usize = 256;
const BYTES_IN_FLIGHT_MAX: usize = 1 << 20;

/// The table to dump.
#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    /// Name of the table: text, or 0x… for bytes with --hex
    #[arg(value_parser = table())]
    table: TableOperand,
    #[command(flatten)]
    hex: Hex,
    #[command(flatten)]
    server: Connect,
}

/// The table to load into.
#[derive(Debug, Args)]
pub(crate) struct LoadDumpArguments {
    /// Name of the table: text, or 0x… for bytes with --hex [default: the name that it had]
    #[arg(value_parser = table())]
    table: Option<TableOperand>,
    /// Load into a table that exists: elements of the same keys are replaced, all others stay, and versions are new
    #[arg(long)]
    merge: bool,
    /// What is on disk of a new table: nothing (none), all older than the server's --durable-interval (soon), or all that
    /// was answered (always) [default: as of the dumped table]
    #[arg(long, value_name = "none|soon|always", value_parser = durability)]
    durability: Option<Durability>,
    #[command(flatten)]
    of: KvServer,
}

/// What a load has done.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    /// Elements that were stored.
    elements: u64,
    /// Elements whose deadline has passed.
    expired: u64,
    /// Elements with new versions, since an element with a higher one had expired meanwhile.
    anew: u64,
    /// Their versions. The first reply of an older server makes them new.
    versions: LoadedVersions,
}

/// The versions of loaded elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadedVersions {
    /// Those of the dump.
    Kept,
    /// The server has given them.
    New,
}

/// Writes the dump of a table to standard output.
///
/// # Errors
/// [`CommandError::Usage`] if standard output is a terminal, [`CommandError::Failed`] if the server does not answer or
/// refuses, [`CommandError::Output`] if the dump cannot be written.
pub(crate) fn dump(arguments: &DumpArguments, out: &mut impl Write) -> Result<(), CommandError> {
    if io::stdout().is_terminal() {
        let file = "a dump is bytes for a file: `spindle dump TABLE > FILE`".to_owned();
        return Err(CommandError::Usage(file));
    }
    let Connect { connect, patience, login } = &arguments.server;
    login.log_in()?;
    let mut client = Client::connect_within(connect, patience.timeouts()).map_err(failure)?;
    let name = spelt(&mut client, &arguments.hex.table(&arguments.table)?)?;
    let durability = Durabilities::of(&mut client)?.get(&name);
    let table = DumpedTable { name, durability };
    // It writes the head with the first rows, so a table that is not there leaves an empty file.
    let mut writer = DumpWriter::new(out, &table);
    each_page(&mut client, &table.name, ScanFields::Entry, b"", |rows| {
        let now = wall_millis();
        let ScanRows::Entry(rows) = rows else {
            unreachable!("a page has the fields that were asked for");
        };
        Ok(writer.write(rows.iter().map(|row| dumped(row, now)))?)
    })?;
    writer.end()?;
    Ok(())
}

/// The name as the table was created with, with or without a NUL: notifications show it so.
fn spelt(client: &mut Client, table: &[u8]) -> Result<Vec<u8>, CommandError> {
    let tables = client.list_tables().map_err(failure)?;
    let same = tables.into_iter().find(|line| name(&line.name) == name(table));
    Ok(same.map_or_else(|| table.to_vec(), |line| line.name.into_vec()))
}

/// A row of a scan at a time of the wall clock, as a row of a dump.
fn dumped<'b>(row: &EntryRow<'b>, now: u64) -> DumpRow<'b> {
    let EntryRow { key, value, version, remaining_millis } = *row;
    DumpRow { key, value, version, deadline_millis: remaining_millis.map(|millis| now.saturating_add(millis)) }
}

/// Reads a dump from standard input into a table. If it cannot load the whole dump, it deletes its new table: a part of
/// a table could be taken for the whole.
///
/// # Errors
/// [`CommandError::Failed`] if the server does not answer or refuses, or the input is not exactly one whole dump. The line
/// says how many elements were loaded before, and whether they are gone again. [`CommandError::AlreadyThere`] if the
/// table exists.
pub(crate) fn load(arguments: &LoadDumpArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let (mut reader, DumpedTable { name: dumped, durability }) =
        DumpReader::begin(io::stdin().lock()).map_err(unreadable)?;
    let Format { hex, .. } = arguments.of.format;
    let table = arguments.table.as_ref().map(|table| hex.table(table)).transpose()?;
    let table = table.as_deref().unwrap_or(&dumped);
    let mut client = arguments.of.connect()?;
    let is_new = match client.create_table(table) {
        Err(Error::Refused(Reason::TableExists)) if arguments.merge => false,
        Err(Error::Refused(Reason::TableExists)) => {
            return Err(CommandError::AlreadyThere(
                "table exists: load into it with --merge, or give the name of another TABLE".to_owned(),
            ));
        }
        created => {
            created.map_err(failure)?;
            true
        }
    };
    let durability = arguments.durability.or(durability).filter(|_| is_new);
    let versions = if is_new { LoadedVersions::Kept } else { LoadedVersions::New };
    let mut loaded = Loaded { elements: 0, expired: 0, anew: 0, versions };
    let altered = durability.map_or(Ok(()), |durability| alter(&mut client, table, durability));
    let loading = altered.and_then(|()| load_all(&mut reader, table, &mut client, &mut loaded));
    loading.map_err(|error| {
        // The connection may have replies on the way.
        let is_deleted = is_new && arguments.of.connect().is_ok_and(|mut client| client.delete_table(table).is_ok());
        after(error, loaded, is_deleted)
    })?;
    let Loaded { elements, expired, anew, versions } = loaded;
    let (with, versions) = match versions {
        LoadedVersions::Kept => ("their", "kept"),
        LoadedVersions::New => ("new", "new"),
    };
    let (count, shown) = (counted(elements, "element"), hex.shown(name(table)));
    let but = if anew > 0 { format!(" ({anew} of them with new ones)") } else { String::new() };
    let text = format!("{count} loaded into {shown} with {with} versions{but}, {expired} had expired\n");
    let json = json!({
        "table": hex.shown_in_json(name(table)),
        "elements": elements,
        "versions": versions,
        "anew": anew,
        "expired": expired,
    });
    arguments.of.format.print(out, &text, &json)
}

/// Has as much on disk of a new table as this says. Without a word CREATE_TABLE leaves open what else the server decides.
fn alter(client: &mut Client, table: &[u8], durability: Durability) -> Result<(), CommandError> {
    match client.alter_table(table, durability) {
        // A server from before durable tables has all in memory.
        Err(Error::Refused(Reason::UnknownCommand)) if durability == Durability::None => Ok(()),
        altered => altered.map_err(failure),
    }
}

fn unreadable(error: format::DumpError) -> CommandError {
    CommandError::Failed(error.to_string())
}

/// The error of a load that had begun.
fn after(error: CommandError, loaded: Loaded, is_deleted: bool) -> CommandError {
    let gone = if is_deleted { ", and the table is deleted again" } else { "" };
    let verb = if loaded.elements == 1 { "was" } else { "were" };
    let with_count = |line| format!("{line} ({} {verb} loaded before{gone})", counted(loaded.elements, "element"));
    match error {
        CommandError::Failed(line) => CommandError::Failed(with_count(line)),
        CommandError::NotFound(line) => CommandError::NotFound(with_count(line)),
        other => other,
    }
}

/// Sends the rows, many at once. The first one goes alone: its reply says whether the server knows RESTORE.
fn load_all(
    reader: &mut DumpReader<impl Read>,
    table: &[u8],
    client: &mut Client,
    loaded: &mut Loaded,
) -> Result<(), CommandError> {
    let table = TableName::spelt(table);
    let mut is_first = true;
    while let Some(rows) = reader.next().map_err(unreadable)? {
        let mut bytes = 0;
        for row in rows {
            let Some(ttl) = ttl(row.deadline_millis, wall_millis()) else {
                loaded.expired += 1;
                continue;
            };
            if client.in_flight() >= IN_FLIGHT_MAX || bytes + row.value.len() > BYTES_IN_FLIGHT_MAX {
                receive_all(client, loaded).map_err(refusal)?;
                bytes = 0;
            }
            client.send(&storing(&row, table, ttl, loaded.versions)).map_err(failure)?;
            bytes += row.value.len();
            if std::mem::take(&mut is_first) {
                match receive_all(client, loaded) {
                    Err(Error::Refused(Reason::UnknownCommand)) if loaded.versions == LoadedVersions::Kept => {
                        loaded.versions = LoadedVersions::New;
                        client.send(&storing(&row, table, ttl, loaded.versions)).map_err(failure)?;
                    }
                    received => received.map_err(refusal)?,
                }
            }
        }
        receive_all(client, loaded).map_err(refusal)?;
    }
    Ok(())
}

/// The request that stores a row.
fn storing<'b>(row: &DumpRow<'b>, table: TableName<'b>, ttl: Ttl, versions: LoadedVersions) -> Request<'b> {
    let DumpRow { key, value, version, .. } = *row;
    match versions {
        LoadedVersions::Kept => Request::Restore { table, key, value, version, ttl },
        LoadedVersions::New => Request::Update { table, key, value, ttl: Some(ttl) },
    }
}

/// Waits for the replies to all requests. A row whose key has a version that is not lower is not stored: a scan may have
/// shown the element twice.
fn receive_all(client: &mut Client, loaded: &mut Loaded) -> Result<(), Error> {
    let mut refused = None;
    while client.in_flight() > 0 {
        match client.receive()? {
            Reply::Refused(reason) => refused = refused.or(Some(reason)),
            Reply::Restored(restored) => {
                loaded.elements += u64::from(restored != Restored::Not);
                loaded.anew += u64::from(restored == Restored::Anew);
            }
            _ => loaded.elements += 1,
        }
    }
    refused.map_or(Ok(()), |reason| Err(Error::Refused(reason)))
}

/// The error of a request that stores a row.
fn refusal(error: Error) -> CommandError {
    match error {
        Error::Refused(Reason::OutOfRange) => CommandError::Failed(
            "the server refuses the version of an element: another client writes to the table, or the dump is of a server \
             whose clock is more than a day ahead"
                .to_owned(),
        ),
        other => failure(other),
    }
}

/// The time from now to a deadline, at most the longest TTL. `None` for a deadline that has passed.
fn ttl(deadline_millis: Option<u64>, now: u64) -> Option<Ttl> {
    let Some(deadline) = deadline_millis else {
        return Some(Ttl::NONE);
    };
    let remaining = deadline.checked_sub(now).filter(|&remaining| remaining > 0)?;
    Some(Ttl::from_millis(remaining).unwrap_or(Ttl::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_deadline_is_kept_to_the_millisecond() {
        assert_eq!(ttl(None, 5), Some(Ttl::NONE));
        assert_eq!((ttl(Some(1), 1), ttl(Some(1), 2)), (None, None));
        assert_eq!((ttl(Some(1_001), 1), ttl(Some(1_502), 1)), (Ttl::from_millis(1_000), Ttl::from_millis(1_501)));
        assert_eq!(ttl(Some(2), 1), Ttl::from_millis(1));
        assert_eq!(ttl(Some(u64::MAX), 0), Some(Ttl::MAX));
    }
}
