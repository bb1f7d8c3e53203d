//! `spindle flush`: deletes all tables, after a confirmation.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use serde_json::json;

use super::client::KvServer;
use super::refusal::failure;
use crate::cli::CommandError;
use crate::cli::show::counted;
use crate::clients::rust::tables::Error;
use crate::services::tables::wire::Reason;

#[derive(Debug, Args)]
pub(crate) struct FlushArguments {
    /// Delete without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    of: KvServer,
}

/// Deletes all tables that are there at the beginning.
///
/// # Errors
/// [`CommandError::Usage`] if nobody can confirm it, [`CommandError::Failed`] if it was not confirmed, or the server does
/// not answer. The line says how many tables were deleted.
pub(crate) fn run(arguments: &FlushArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let mut client = arguments.of.connect()?;
    let tables = client.list_tables().map_err(failure)?;
    if !arguments.yes && !tables.is_empty() {
        let elements: u64 = tables.iter().map(|table| table.elements).sum();
        let (tables, elements) = (counted(tables.len() as u64, "table"), counted(elements, "element"));
        let what = format!("{tables} with {elements} of {}", arguments.of.endpoint());
        confirm(&what)?;
    }
    let mut deleted = 0_u64;
    for table in &tables {
        match client.delete_table(&table.name) {
            Ok(()) => deleted += 1,
            // Another client was faster.
            Err(Error::Refused(Reason::TableNotFound)) => {}
            Err(error) => {
                let why = failure(error).sentence();
                return Err(CommandError::Failed(format!("{deleted} of {} tables are deleted: {why}", tables.len())));
            }
        }
    }
    let text = format!("{} deleted\n", counted(deleted, "table"));
    arguments.of.format.print(out, &text, &json!({ "deleted": deleted }))
}

/// Asks on the terminal.
fn confirm(what: &str) -> Result<(), CommandError> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        return Err(CommandError::Usage(format!("give --yes to delete {what}: there is no terminal to ask on")));
    }
    eprint!("Delete {what}? Type yes: ");
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(|error| CommandError::Failed(format!("cannot read the answer: {error}")))?;
    if answer.trim() == "yes" { Ok(()) } else { Err(CommandError::Failed("nothing is deleted".to_owned())) }
}
