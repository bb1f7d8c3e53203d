//! `spindle check DIR`: reads a store that no server uses, and changes nothing in it.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use super::CommandError;
use crate::store::{CheckReport, Folder, RealFolder, check, refuse_earlier};

/// The operand of the command.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArguments {
    /// Directory of a server that does not run, or a backup
    #[arg(value_name = "DIR")]
    data: PathBuf,
}

/// Checks the store and prints what was found.
///
/// # Errors
/// [`CommandError::Failed`] if it is damaged or cannot be read.
pub(super) fn run(arguments: &CheckArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let failed = |error: crate::store::Error| CommandError::Failed(error.to_string());
    refuse_earlier(&arguments.data).map_err(failed)?;
    let folder: Arc<dyn Folder> = Arc::new(RealFolder::lock_existing(&arguments.data).map_err(failed)?);
    let report = check(&folder).map_err(failed)?;
    print(&report, out)?;
    match report.damages.len() {
        0 => Ok(()),
        count => Err(CommandError::Failed(format!(
            "{} has {count} damaged parts: restore a backup, or start with --repair to go on without them",
            arguments.data.display()
        ))),
    }
}

fn print(report: &CheckReport, out: &mut impl Write) -> Result<(), CommandError> {
    let CheckReport { segments, batches, behind, records, live, dead, set_aside, bytes, live_bytes, .. } = report;
    writeln!(
        out,
        "{segments} segments, {bytes} bytes, {batches} batches, {behind} of them behind the last known sync"
    )?;
    writeln!(out, "{records} records: {live} live ({live_bytes} bytes), {dead} dead, {set_aside} set aside")?;
    if report.is_backup {
        writeln!(out, "a backup that no server has opened yet")?;
    }
    for damage in &report.damages {
        writeln!(out, "damaged: {damage}")?;
    }
    if report.damages.is_empty() {
        writeln!(out, "no damage")?;
    }
    Ok(())
}
