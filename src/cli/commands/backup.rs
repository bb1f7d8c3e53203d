//! `spindle backup DIR`: has a running server write a backup of its stores.

use std::io::Write;
use std::path::{PathBuf, absolute};

use serde_json::json;

use crate::cli::show::Format;
use crate::cli::{CommandError, DATA_FOLDER};
use crate::clients::rust::operator::control::{BackedUp, backup};
use crate::clock::http_date;
use crate::store::BackupReport;

/// The operand and the flags of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArguments {
    /// Directory of the backup, on the host of the server: empty, or not there; then the server creates it
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Directory of the running server, which it was given as --data
    #[arg(long, value_name = "FOLDER", default_value = DATA_FOLDER)]
    data: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Asks for the backup, waits until it is on disk, and prints what it took.
///
/// # Errors
/// [`CommandError::Failed`] if there is no backup, or it lacks what is damaged.
pub(crate) fn run(arguments: &BackupArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let failed = |why: String| CommandError::Failed(why);
    // The server has another working directory.
    let to = absolute(&arguments.to).map_err(|error| failed(format!("{}: {error}", arguments.to.display())))?;
    let done = backup(&arguments.data, &to).map_err(|error| failed(error.to_string()))?;
    let json = json!({ "directory": to.to_string_lossy(), "stores": done.iter().map(shown).collect::<Vec<_>>() });
    Format::of(arguments.json).print(out, &done.iter().map(text).collect::<String>(), &json)?;
    match done.iter().map(|done| done.report.lost).sum() {
        0 => Ok(()),
        lost => Err(failed(format!(
            "{} lacks {} that cannot be read, or whose bytes have changed, and has all else: `spindle check` lists what a server on it would lose; look at the device of {}",
            to.display(),
            if lost == 1_u64 { "1 part".to_owned() } else { format!("{lost} parts") },
            arguments.data.display()
        ))),
    }
}

/// One store of a backup, for machines.
fn shown(BackedUp { what, folder, moment, report }: &BackedUp) -> serde_json::Value {
    let BackupReport { segments, linked, copied, bytes, lost, damages } = report;
    json!({
        "of": what,
        "directory": folder.to_string_lossy(),
        "moment": http_date(*moment),
        "moment_unix_millis": moment,
        "segments": segments,
        "linked_files": linked,
        "copied_files": copied,
        "copied_bytes": bytes,
        "lost_parts": lost,
        "damages": damages,
    })
}

fn text(BackedUp { what, folder, moment, report }: &BackedUp) -> String {
    let BackupReport { segments, linked, copied, bytes, damages, .. } = report;
    let counts = format!("{segments} segments; {linked} files linked, {copied} copied ({bytes} bytes)");
    let damages: String = damages.iter().map(|part| format!("damaged: {part}\n")).collect();
    format!("{}: {what} as of {}; {counts}\n{damages}", folder.display(), http_date(*moment))
}
