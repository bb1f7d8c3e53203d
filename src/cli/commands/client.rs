//! The commands that send one request about tables.

use std::io::{self, IsTerminal, Read, Write};

use clap::{Args, Subcommand};
use serde_json::json;

use super::durabilities::Durabilities;
use super::refusal::failure;
use super::session::{self, Session};
use crate::cli::CommandError;
use crate::cli::flags::endpoint::Connect;
use crate::cli::flags::number::{delta, version};
use crate::cli::flags::operand::{Hex, Operand, TableOperand, name, operand, table};
use crate::cli::flags::tables::durability;
use crate::cli::flags::time_to_live::time_to_live;
use crate::cli::show::{self, Format, Raw};
use crate::clients::rust::tables::Client;
use crate::clock::Ttl;
use crate::services::tables::wire::{EntryRow, ScanFields, ScanRows, TableLine};
use crate::tables::Durability;

/// Elements that a scan asks for at once: a page takes the server much less than a millisecond.
const ELEMENTS_PER_PAGE: u32 = 1_000;

/// A command about tables.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Create an empty table
    CreateTable(CreateArguments),
    /// Change what is on disk of a table
    AlterTable(AlterArguments),
    /// Delete a table with all its elements
    DeleteTable(TableArguments),
    /// List the tables and the number of elements of each
    Tables(KvServer),
    /// Add or replace an element
    Set(SetArguments),
    /// Print a value, as it is unless to a terminal; with --json also its version and remaining time to live
    Get(ElementArguments),
    /// Delete an element and print the value that it had
    Delete(DeleteArguments),
    /// Add to a number and print the sum; an absent element counts as 0
    Incr(IncrArguments),
    /// Set an element if it still has this version, and print the new version
    Cas(CasArguments),
    /// Print the keys of a table, in no order; with --values or --json also what is stored
    Scan(ScanArguments),
    /// Set the time to live of an element
    Touch(TouchArguments),
}

/// The server, and the format of the answer.
#[derive(Debug, Args)]
pub(crate) struct KvServer {
    #[command(flatten)]
    server: Connect,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    /// Name of the table: text, or 0x… for bytes with --hex
    #[arg(value_parser = table())]
    table: TableOperand,
    #[command(flatten)]
    of: KvServer,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    table: TableArguments,
    /// What is on disk: nothing (none), all that is older than the server's --durable-interval (soon), or all that was
    /// answered (always) [default: as the server says]
    #[arg(long, value_name = "none|soon|always", value_parser = durability)]
    durability: Option<Durability>,
}

#[derive(Debug, Args)]
pub(crate) struct AlterArguments {
    #[command(flatten)]
    table: TableArguments,
    /// What is on disk from now on: nothing (none), all that is older than the server's --durable-interval (soon), or
    /// all that was answered (always)
    #[arg(long, value_name = "none|soon|always", value_parser = durability)]
    durability: Durability,
}

#[derive(Debug, Args)]
pub(crate) struct ElementArguments {
    /// Name of the table: text, or 0x… for bytes with --hex
    #[arg(value_parser = table())]
    table: TableOperand,
    /// Key of the element: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_negative_numbers = true)]
    key: Operand,
    #[command(flatten)]
    of: KvServer,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    #[command(flatten)]
    element: ElementArguments,
    /// Delete it only if it has this version
    #[arg(long, value_name = "VERSION", value_parser = version(), allow_negative_numbers = true)]
    if_version: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct IncrArguments {
    #[command(flatten)]
    element: ElementArguments,
    /// Number to add
    #[arg(default_value_t = 1, value_parser = delta(), allow_negative_numbers = true)]
    delta: i64,
    /// Time to live of an element that this command makes: seconds, or a number with a unit such as 1500ms or 12h
    /// [default: none]
    #[arg(long, value_name = "TIME", value_parser = time_to_live(), allow_negative_numbers = true)]
    ttl: Option<Ttl>,
}

#[derive(Debug, Args)]
pub(crate) struct CasArguments {
    #[command(flatten)]
    element: ElementArguments,
    /// Version that the element must have; 0 if it must be absent
    #[arg(value_parser = version(), allow_negative_numbers = true)]
    version: u64,
    /// New value of the element: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_hyphen_values = true)]
    value: Operand,
    /// Time to live: seconds, or a number with a unit such as 1500ms or 12h; 0 for none [default: unchanged; none for a
    /// new element]
    #[arg(long, value_name = "TIME", value_parser = time_to_live(), allow_negative_numbers = true)]
    ttl: Option<Ttl>,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    /// Name of the table: text, or 0x… for bytes with --hex
    #[arg(value_parser = table())]
    table: TableOperand,
    /// Only keys that begin with this: text, - for standard input, or 0x… for bytes with --hex
    #[arg(long, value_parser = operand())]
    prefix: Option<Operand>,
    /// Print the values too, behind the keys
    #[arg(long)]
    values: bool,
    #[command(flatten)]
    of: KvServer,
}

#[derive(Debug, Args)]
pub(crate) struct SetArguments {
    /// Name of the table: text, or 0x… for bytes with --hex
    #[arg(value_parser = table())]
    table: TableOperand,
    /// Key of the element: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_negative_numbers = true)]
    key: Operand,
    /// New value of the element: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_hyphen_values = true)]
    value: Operand,
    /// Time to live: seconds, or a number with a unit such as 1500ms or 12h; 0 for none [default: unchanged; none for a
    /// new element]
    #[arg(long, value_name = "TIME", value_parser = time_to_live(), allow_negative_numbers = true)]
    ttl: Option<Ttl>,
    #[command(flatten)]
    of: KvServer,
}

/// An element to set: where, and its bytes.
pub(crate) struct SetOperands {
    pub(crate) server: Connect,
    pub(crate) format: Format,
    pub(crate) ttl: Option<Ttl>,
    pub(crate) table: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct TouchArguments {
    /// Name of the table: text, or 0x… for bytes with --hex
    #[arg(value_parser = table())]
    table: TableOperand,
    /// Key of the element: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_negative_numbers = true)]
    key: Operand,
    /// Time to live from now on: seconds, or a number with a unit such as 1500ms or 12h; 0 for none
    #[arg(long, value_name = "TIME", value_parser = time_to_live(), allow_negative_numbers = true)]
    ttl: Ttl,
    #[command(flatten)]
    of: KvServer,
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// [`CommandError`] if the server does not answer or refuses, or the answer cannot be printed.
pub(crate) fn run(command: TableCommand, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    match command {
        TableCommand::CreateTable(CreateArguments { table: TableArguments { table, of }, durability }) => {
            let (client, name) = (session.client(&of.server)?, of.table(&table)?);
            let created = match durability {
                None => client.create_table(&name),
                Some(durability) => client.create_table_with(&name, durability.into()),
            };
            created.map_err(failure)?;
            of.format.done(out)
        }
        TableCommand::AlterTable(AlterArguments { table: TableArguments { table, of }, durability }) => {
            session.client(&of.server)?.alter_table(&of.table(&table)?, durability).map_err(failure)?;
            of.format.done(out)
        }
        TableCommand::DeleteTable(TableArguments { table, of }) => {
            session.client(&of.server)?.delete_table(&of.table(&table)?).map_err(failure)?;
            of.format.done(out)
        }
        TableCommand::Tables(of) => tables(&of, session, out),
        TableCommand::Set(set) => {
            let SetOperands { server, format, ttl, table, key, value } = set.read(session)?;
            session.client(&server)?.update(&table, &key, &value, ttl).map_err(failure)?;
            format.done(out)
        }
        TableCommand::Get(get) => self::get(get, session, out),
        TableCommand::Delete(delete) => self::delete(delete, session, out),
        TableCommand::Incr(incr) => self::incr(incr, session, out),
        TableCommand::Cas(cas) => self::cas(cas, session, out),
        TableCommand::Scan(scan) => self::scan(scan, session, out),
        TableCommand::Touch(TouchArguments { table, key, ttl, of }) => {
            let (table, key) = of.element(&table, key, session)?;
            session.client(&of.server)?.touch(&table, &key, ttl).map_err(failure)?;
            of.format.done(out)
        }
    }
}

impl KvServer {
    /// The endpoint of the server.
    pub(crate) fn endpoint(&self) -> &str {
        &self.server.connect
    }

    pub(crate) fn connect(&self) -> Result<Client, CommandError> {
        session::connect(&self.server)
    }

    /// The name of a table.
    pub(crate) fn table(&self, typed: &TableOperand) -> Result<Vec<u8>, CommandError> {
        self.format.hex.table(typed)
    }

    /// The name of a table, and a key.
    fn element(
        &self,
        table: &TableOperand,
        key: Operand,
        session: &Session,
    ) -> Result<(Vec<u8>, Vec<u8>), CommandError> {
        Ok((self.table(table)?, key.read(self.format.hex, session.input())?))
    }
}

impl SetArguments {
    /// The element to set.
    ///
    /// # Errors
    /// [`CommandError`] as [`read_both`].
    pub(crate) fn read(self, session: &Session) -> Result<SetOperands, CommandError> {
        let table = self.of.table(&self.table)?;
        let KvServer { server, format } = self.of;
        let (key, value) = read_both(self.key, self.value, format.hex, session.input())?;
        Ok(SetOperands { server, format, ttl: self.ttl, table, key, value })
    }
}

/// Reads the key and the value. Only one of them can be standard input.
///
/// # Errors
/// [`CommandError`] if both are standard input, or if it cannot be read.
pub(crate) fn read_both(
    key: Operand,
    value: Operand,
    hex: Hex,
    mut input: impl Read,
) -> Result<(Vec<u8>, Vec<u8>), CommandError> {
    if key == Operand::StandardInput && value == Operand::StandardInput {
        let both = "only one of KEY and VALUE can be -, standard input".to_owned();
        return Err(CommandError::Usage(both));
    }
    Ok((key.read(hex, &mut input)?, value.read(hex, input)?))
}

fn tables(of: &KvServer, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    let client = session.client(&of.server)?;
    let tables = client.list_tables().map_err(failure)?;
    let durabilities = Durabilities::of(client)?;
    let tables: Vec<_> = tables.into_iter().map(|table| (durabilities.get(&table.name), table)).collect();
    let hex = of.format.hex;
    let line = |(durability, table): &(Option<Durability>, TableLine)| {
        let name = hex.shown_in_json(name(&table.name));
        json!({ "name": name, "elements": table.elements, "durability": durability.map(Durability::word) })
    };
    let json = tables.iter().map(line).collect();
    of.format.print(out, &show::tables(&tables, hex), &json)
}

fn get(get: ElementArguments, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    let ElementArguments { table, key, of } = get;
    let (table, key) = of.element(&table, key, session)?;
    let entry = session.client(&of.server)?.get_entry(&table, &key).map_err(failure)?;
    let Format { hex, .. } = of.format;
    let raw = Raw { raw: is_raw(of.format, io::stdout().is_terminal()) };
    let json = || {
        json!({
            "value": hex.shown_in_json(&entry.value),
            "version": entry.version,
            "remaining_millis": entry.remaining_millis,
        })
    };
    of.format.print_value(out, raw, "", &entry.value, json)?;
    if raw.raw && session.is_script() {
        // The values of a script would run together.
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

/// Whether a value is written as it is: to a file or a program that has not asked for another form.
fn is_raw(format: Format, is_terminal: bool) -> bool {
    !is_terminal && !format.is_json() && !format.hex.is_on()
}

fn delete(delete: DeleteArguments, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    let DeleteArguments { element: ElementArguments { table, key, of }, if_version } = delete;
    let (table, key) = of.element(&table, key, session)?;
    let client = session.client(&of.server)?;
    let deleted = match if_version {
        Some(version) => client.compare_and_delete(&table, &key, version),
        None => client.delete(&table, &key),
    };
    let value = deleted.map_err(failure)?;
    let hex = of.format.hex;
    let json = json!({ "value": hex.shown_in_json(&value) });
    of.format.print(out, &show::value(&value, hex), &json)
}

fn incr(incr: IncrArguments, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    let IncrArguments { element: ElementArguments { table, key, of }, delta, ttl } = incr;
    let (table, key) = of.element(&table, key, session)?;
    let (sum, version) = session.client(&of.server)?.increment(&table, &key, delta, ttl).map_err(failure)?;
    of.format.print(out, &format!("{sum}\n"), &json!({ "value": sum, "version": version }))
}

fn cas(cas: CasArguments, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    let CasArguments { element: ElementArguments { table, key, of }, version, value, ttl } = cas;
    let (table, (key, value)) = (of.table(&table)?, read_both(key, value, of.format.hex, session.input())?);
    let swapped = session.client(&of.server)?.compare_and_swap(&table, &key, version, &value, ttl);
    let version = swapped.map_err(failure)?;
    of.format.print(out, &format!("{version}\n"), &json!({ "version": version }))
}

fn scan(scan: ScanArguments, session: &mut Session, out: &mut impl Write) -> Result<(), CommandError> {
    let (format, table) = (scan.of.format, scan.of.table(&scan.table)?);
    let hex = format.hex;
    let prefix = scan.prefix.map_or(Ok(Vec::new()), |prefix| prefix.read(hex, session.input()))?;
    let fields = if scan.values || format.is_json() { ScanFields::Entry } else { ScanFields::Key };
    each_page(session.client(&scan.of.server)?, &table, fields, &prefix, |rows| match rows {
        ScanRows::Entry(rows) => format.print_all(out, rows.iter().map(|row| entry_line(row, format))),
        ScanRows::Key(rows) => format.print_all(out, rows.iter().map(|key| format!("{}\n", hex.shown(key)))),
        ScanRows::Value(_) | ScanRows::Mirror(_) => unreachable!("a page has the fields that were asked for"),
    })
}

/// Calls `each` with the rows of each page of a scan, up to an error.
pub(crate) fn each_page(
    client: &mut Client,
    table: &[u8],
    fields: ScanFields,
    prefix: &[u8],
    mut each: impl FnMut(&ScanRows<'_>) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut cursor = Vec::new();
    loop {
        let page = client.scan(table, &cursor, ELEMENTS_PER_PAGE, fields, prefix).map_err(failure)?;
        each(&page.rows)?;
        cursor = page.next;
        if cursor.is_empty() {
            return Ok(());
        }
    }
}

/// An element of a scan, as text or as JSON.
fn entry_line(row: &EntryRow<'_>, format: Format) -> String {
    let hex = format.hex;
    let text = || format!("{} {}\n", hex.shown(row.key), hex.shown(row.value));
    let json = || {
        json!({
            "key": hex.shown_in_json(row.key),
            "value": hex.shown_in_json(row.value),
            "version": row.version,
            "remaining_millis": row.remaining_millis,
        })
    };
    format.answer(text, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_input_is_key_or_value_and_not_both() {
        let both = read_both(Operand::StandardInput, Operand::StandardInput, Hex::OFF, io::empty());
        assert!(matches!(both, Err(CommandError::Usage(_))));
    }

    #[test]
    fn a_value_is_written_as_it_is_unless_a_person_reads_it_or_another_form_was_asked_for() {
        assert!(is_raw(Format::TEXT, false));
        assert!(!is_raw(Format::TEXT, true) && !is_raw(Format::JSON, false));
        assert!(!is_raw(Format::HEX, false));
    }
}
