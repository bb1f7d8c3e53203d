//! The time of a start on a folder with many elements, and the memory that it takes meanwhile.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{FLAGS, VALUE_BYTES};
use crate::Plan;
use crate::report::Report;
use crate::side::{Side, words};

const KEYS: u32 = 10_000_000;

pub(crate) fn measure(_plan: &Plan, report: &mut Report) {
    report.write(&format!(
        "## Opening\n\n{KEYS} elements with keys of 16 bytes and values of {VALUE_BYTES}, files in the page cache: seconds from the start of the \
         process until it answers, and its memory in MiB: the highest until then, and what stays."
    ));
    let mut rows = vec![["", "seconds", "highest", "stays", "files, MiB"].map(str::to_owned).to_vec()];
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let serve = [&FLAGS[..], &["--durability", "soon", "--data", data]].concat();
    let side = Side::resp(&serve);
    side.fill(KEYS, VALUE_BYTES);
    side.end();
    rows.push(start("spindle, after a clean end", folder.path(), report, || Side::resp(&serve)));
    // Three bytes used for each live one, or as many as cleaning leaves.
    let side = Side::resp(&serve);
    let flags = format!("--mix set=1 --depth 64 --keys {KEYS} --value-size {VALUE_BYTES} --warm-up 0 --seconds 20");
    side.load(&words(&flags));
    drop(side);
    rows.push(start("spindle, after a kill under load", folder.path(), report, || Side::resp(&serve)));
    for (name, is_file) in [("redis 8, RDB", false), ("redis 8, AOF", true)] {
        let folder = tempfile::tempdir().unwrap();
        let Some(side) = Side::redis_in(folder.path(), is_file) else { continue };
        side.fill(KEYS, VALUE_BYTES);
        side.end();
        rows.push(start(name, folder.path(), report, || Side::redis_in(folder.path(), is_file).unwrap()));
    }
    report.table(&rows);
}

fn start(name: &str, folder: &std::path::Path, report: &mut Report, start: impl FnOnce() -> Side) -> Vec<String> {
    let files = files_of(folder);
    let begun = Instant::now();
    let side = start();
    let seconds = begun.elapsed().as_secs_f64();
    let highest = side.highest_bytes();
    // What was needed for the opening alone goes back.
    std::thread::sleep(Duration::from_secs(3));
    let stays = side.resident_bytes();
    report.raw(&json!({ "what": "opening", "of": name, "seconds": seconds, "highest": highest, "stays": stays, "files": files }));
    side.end();
    let mebibytes = |bytes: f64| format!("{:.0}", bytes / f64::from(1 << 20));
    vec![name.to_owned(), format!("{seconds:.2}"), mebibytes(highest), mebibytes(stays), mebibytes(files)]
}

/// Bytes of the files in a folder and in those within.
fn files_of(folder: &std::path::Path) -> f64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(
            |entry| {
                if entry.path().is_dir() { files_of(&entry.path()) } else { entry.metadata().unwrap().len() as f64 }
            },
        )
        .sum()
}
