//! The disk of the machine: the time of a sync, and the rate of a long write.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use serde_json::json;

use crate::report::{Report, median};

const SYNCS: u64 = 200;
const BLOCK: usize = 4 << 10;
const LONG: usize = 512 << 20;

/// A sentence on the disk that holds the temporary files.
pub(super) fn describe(report: &mut Report) -> String {
    let folder = tempfile::tempdir().unwrap();
    let laid_out = File::create(folder.path().join("syncs")).unwrap();
    laid_out.write_all_at(&vec![0; BLOCK * SYNCS as usize], 0).unwrap();
    laid_out.sync_all().unwrap();
    let sync = |number: u64| {
        laid_out.write_all_at(&[7; BLOCK], number * BLOCK as u64).unwrap();
        let start = Instant::now();
        laid_out.sync_data().unwrap();
        start.elapsed().as_secs_f64() * 1e6
    };
    let syncs: Vec<f64> = (0..SYNCS).map(sync).collect();
    let mut long = File::create(folder.path().join("long")).unwrap();
    let (block, start) = (vec![7; 8 << 20], Instant::now());
    for _ in 0..LONG / block.len() {
        long.write_all(&block).unwrap();
    }
    long.sync_data().unwrap();
    let rate = LONG as f64 / start.elapsed().as_secs_f64() / 1e6;
    report.raw(&json!({ "what": "disk", "syncs_micros": syncs, "megabytes_a_second": rate }));
    format!(
        "The disk: a sync of 4 KiB takes {:.0} µs (median), and {rate:.0} MB a second are written in a row.",
        median(&syncs)
    )
}
