//! `spindle check DIR`: reads a store that no server uses, and changes nothing in it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::CommandError;
use crate::store::{
    CheckCounts, CheckReport, Error, Folder, RealFolder, TABLES_FOLDER, check, refuse_earlier, refuse_without_log,
};
use crate::tables::check_log;

/// The operand of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArguments {
    /// Directory of a server that does not run, or a backup
    #[arg(value_name = "DIR")]
    data: PathBuf,
}

/// Checks the store and prints what was found.
///
/// # Errors
/// [`CommandError::Failed`] if it is damaged, has lost a value or cannot be read.
pub(crate) fn run(arguments: &CheckArguments, out: &mut impl Write) -> Result<(), CommandError> {
    refuse_earlier(&arguments.data).map_err(failed)?;
    let tables = arguments.data.join(TABLES_FOLDER);
    let has_tables = refuse_without_log(&tables).is_ok() && tables.is_dir();
    let without_tasks = refuse_without_log(&arguments.data);
    let mut advised = Vec::new();
    if without_tasks.is_ok() || !has_tables {
        without_tasks.map_err(failed)?;
        advised.extend(check_one(&arguments.data, check, out)?);
    }
    if has_tables {
        writeln!(out, "durable tables, in {}:", tables.display())?;
        advised.extend(check_one(&tables, check_log, out)?);
    }
    if advised.is_empty() { Ok(()) } else { Err(CommandError::Failed(advised.join("\n"))) }
}

fn failed(error: Error) -> CommandError {
    CommandError::Failed(error.to_string())
}

/// Checks a store, and prints what was found. Returns what to do, if something is.
fn check_one(
    folder: &Path,
    check: fn(&Arc<dyn Folder>) -> Result<CheckReport, Error>,
    out: &mut impl Write,
) -> Result<Option<String>, CommandError> {
    let locked: Arc<dyn Folder> = Arc::new(RealFolder::lock_to_read(folder).map_err(failed)?);
    let report = check(&locked).map_err(failed)?;
    print(&report, out)?;
    Ok(advice(&report).map(|advice| format!("{} {advice}", folder.display())))
}

/// What the folder has, and what to do. `None`: nothing is to be done.
fn advice(CheckReport { counts, damages, lost_values, .. }: &CheckReport) -> Option<String> {
    match (damages.len(), lost_values.len()) {
        (0, 0) if counts.segments == 0 => {
            Some("holds no store yet: its first start was interrupted; start a server on it".to_owned())
        }
        (0, 0) => None,
        (0, values) => Some(format!(
            "has lost {}: restore a backup, or start as it is (without --repair) and write or remove what is set aside",
            counted(values, "value")
        )),
        (parts, 0) => Some(format!(
            "has {}: restore a backup, or start with --repair to continue without what is lost",
            counted(parts, "damaged part")
        )),
        (parts, values) => Some(format!(
            "has {} and has lost {}: restore a backup, or start with --repair to continue without what is lost",
            counted(parts, "damaged part"),
            counted(values, "value")
        )),
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn print(report: &CheckReport, out: &mut impl Write) -> Result<(), CommandError> {
    let CheckCounts { segments, batches, behind, records, live, set_aside, bytes, live_bytes } = report.counts;
    let dead = report.counts.dead();
    writeln!(
        out,
        "{segments} segments, {bytes} bytes, {batches} batches, {behind} of them behind the last known sync"
    )?;
    writeln!(out, "{records} records: {live} live ({live_bytes} bytes), {dead} dead, {set_aside} set aside")?;
    let kind = if report.is_backup { "a backup that no server has opened yet" } else { "the folder of a server" };
    writeln!(out, "{kind}")?;
    for cut in &report.cut {
        writeln!(out, "behind the end: {cut}, of a batch that was not whole when its server ended")?;
    }
    for damage in &report.damages {
        writeln!(out, "damaged: {damage}")?;
    }
    for damage in &report.harmless {
        writeln!(out, "damaged, nothing is lost by it: {damage}; look at the device")?;
    }
    for value in &report.lost_values {
        writeln!(out, "lost: {value}")?;
    }
    if report.dead_values > 0 {
        let changed = counted(usize::try_from(report.dead_values).unwrap_or(usize::MAX), "dead record");
        writeln!(out, "the device has changed {changed} that nothing needs: look at the device")?;
    }
    if advice(report).is_none() && report.harmless.is_empty() {
        writeln!(out, "no damage")?;
    }
    Ok(())
}
