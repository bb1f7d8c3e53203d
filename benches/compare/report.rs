//! The results, as a text for people (`README.md`) and as lines for machines (`raw.jsonl`).

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::side::rivals;

pub(crate) struct Report {
    folder: PathBuf,
    text: File,
    raw: File,
}

impl Report {
    /// Begins both files with the machine and the method.
    pub(crate) fn begin(folder: &Path) -> Self {
        let file = |name: &str| File::create(folder.join(name)).unwrap();
        let mut report = Self { folder: folder.to_owned(), text: file("README.md"), raw: file("raw.jsonl") };
        report.write(&format!(
            "# Spindle compared, {}\n\n{}\n\n{}",
            output("date", &["+%F"]),
            machine(),
            METHOD.trim()
        ));
        report
    }

    /// The folder of plots.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A paragraph.
    pub(crate) fn write(&mut self, text: &str) {
        println!("{text}\n");
        writeln!(self.text, "{text}\n").unwrap();
        self.text.flush().unwrap();
    }

    /// A table; the first row names the columns.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let line = |row: &Vec<String>| format!("| {} |", row.join(" | "));
        let mut lines: Vec<String> = rows.iter().map(line).collect();
        lines.insert(1, format!("|---{}|", "|---:".repeat(rows[0].len() - 1)));
        self.write(&lines.join("\n"));
    }

    /// One measurement, whole.
    pub(crate) fn raw(&mut self, what: &serde_json::Value) {
        writeln!(self.raw, "{what}").unwrap();
        self.raw.flush().unwrap();
    }
}

const METHOD: &str = "
Method: each server is a process with its defaults, but for what is said below; the load is that of `--bench load`, another process, the same
for all of them. The machine is shared by both. Sides take turns within each round, the others stopped meanwhile; a number is the
median of the rounds. A request's *cost* is the processor time of server and load together: on a machine that both fill, rates are to
each other as these, and they are less disturbed by the scheduler than the rate. Read `perf/README.md` for what not to conclude.
Every round is in `raw.jsonl`.
";

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpu.lines().find(|line| line.starts_with("model name")).unwrap_or("model name: unknown");
    let model = model.split(':').next_back().unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().unwrap();
    let kernel = output("uname", &["-sr"]);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load = load.split_whitespace().next().unwrap().to_owned();
    let versions = rivals().values().map(|program| {
        let version = output(program, &["--version"]);
        version.split(" sha").next().unwrap_or_default().to_owned()
    });
    let versions = versions.collect::<Vec<_>>().join("; ");
    format!("Machine: {cores} cores of {model}, {kernel}, load {load} before. Beside: {versions}.")
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The median of these numbers.
pub(crate) fn median(metrics: &[f64]) -> f64 {
    let mut sorted = metrics.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The number that this percentage of them does not exceed.
pub(crate) fn percentile(metrics: &[f64], percent: f64) -> f64 {
    let mut sorted = metrics.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
