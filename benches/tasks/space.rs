//! What the store costs on the disk, and when it comes back: jobs over TCP, 64 clients, each request over a connection
//! of its own.
//!
//! ```text
//! written      ADD, GET and ACK of 1 KiB: bytes of batches and copies for each byte of payload
//! cleaning     p99 of ADD, GET and ACK while the store copies jobs that nobody takes, and while it does not
//! drained      jobs of 100 KB until `--drain` bytes are added, all taken: the folder and the memory in the 30 s after it
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::Value;
use spindle::clients::rust::tables::Client;
use spindle::services::jobs::wire::{Reply, Request};

use crate::durable::{ask_job, crowd, repeat, start_and_find};
use crate::{MIB, SPINDLE, resident_bytes};

const CLIENTS: usize = 64;
const KIB: usize = 1 << 10;
/// The data of a job of the drain.
const LARGE: usize = 100_000;
/// The live bytes of jobs that nobody takes, while cleaning is measured.
const OLD_BYTES: u64 = 256 << 20;
/// The time in which the folder of a drained queue has to be small.
const PATIENCE: u64 = 30;

/// A server of jobs with its statistics.
struct Jobs {
    address: String,
    kv: String,
    child: Child,
    folder: tempfile::TempDir,
}

impl Jobs {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(SPINDLE);
        command.args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off", "--workers", "1", "--pin", "off"]);
        command.args(["--jobs", "0", "--lease", "86400", "--data"]).arg(folder.path().join("data"));
        let (child, [kv, address]) = start_and_find(&mut command, ["kv ", "jobs "]);
        Self { address, kv, child, folder }
    }

    fn ask(&self, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> bool) -> bool {
        ask_job(&self.address, request, read)
    }

    fn add(&self, queue: &[u8], data: &[u8]) -> bool {
        self.ask(&Request::Add { queue, data }, |reply| matches!(reply, Reply::Added(_)))
    }

    /// Takes a job and acknowledges it. False: there is none.
    fn take(&self, queue: &[u8]) -> bool {
        let mut taken = None;
        self.ask(&Request::Get { queue }, |reply| {
            if let Reply::Job { id, .. } = reply {
                taken = Some(id.to_string());
            }
            true
        });
        let Some(id) = taken else { return false };
        self.ask(&Request::Ack { queue, id: id.as_bytes() }, |reply| reply == Reply::Done(true))
    }

    /// ADD, GET and ACK of 1 KiB by all clients. Returns the rate of all three together, and their latencies.
    fn cycles(&self, seconds: f64) -> (f64, Histogram<u64>) {
        let data = [b'p'; KIB];
        crowd(vec![(); CLIENTS], seconds, |(), over| {
            repeat(over, || {
                let is_added = self.add(b"new", &data);
                // Another client may have taken it.
                self.take(b"new");
                is_added
            })
        })
    }

    /// The metrics of the store in STATS.
    fn store(&self) -> Value {
        let stats = Client::connect(&self.kv).unwrap().stats().unwrap();
        serde_json::from_str::<Value>(&stats).unwrap()["tasks"]["store"].take()
    }

    fn metric(&self, name: &str) -> u64 {
        self.store()[name].as_u64().unwrap_or_else(|| panic!("{name} is in STATS"))
    }

    /// The bytes that were written to the device of the folder, by all processes. (`/proc/PID/io` counts all pages of
    /// each folio that is made dirty, a hundred times as much.) See `Documentation/admin-guide/iostats.rst` of Linux.
    fn device_bytes(&self) -> u64 {
        let device = std::fs::metadata(self.folder.path()).unwrap().dev();
        let wanted = [(device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00)].map(|part| part.to_string());
        let all = std::fs::read_to_string("/proc/diskstats").unwrap();
        let fields = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut written = fields.filter(|fields| fields[..2] == wanted).map(|fields| fields[9].parse::<u64>().unwrap());
        written.next().unwrap_or(0) * 512
    }

    fn resident_bytes(&self) -> f64 {
        resident_bytes(&self.child)
    }

    fn folder_bytes(&self) -> u64 {
        blocks_in(&self.folder.path().join("data"))
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The bytes of all blocks of the files in a folder.
fn blocks_in(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().filter_map(|entry| entry.ok()?.metadata().ok());
    files.map(|file| file.blocks() * 512).sum()
}

/// Prints the bytes that are written for each byte of payload.
pub(crate) fn written(seconds: f64) {
    let jobs = Jobs::start();
    let (before, device) = (jobs.store(), jobs.device_bytes());
    let added = AtomicU64::new(0);
    let data = [b'p'; KIB];
    crowd(vec![(); CLIENTS], seconds, |(), over| {
        repeat(over, || {
            added.fetch_add(u64::from(jobs.add(b"new", &data)), Ordering::Relaxed);
            jobs.take(b"new");
            true
        })
    });
    let payload = (added.into_inner() * KIB as u64) as f64;
    let after = jobs.store();
    let more = |name: &str| (after[name].as_u64().unwrap() - before[name].as_u64().unwrap()) as f64;
    // Copies stand in batches: their bytes are among those of the batches.
    let (batches, copies) = (more("batch_bytes"), more("copied_bytes"));
    let laid_out = (more("removed_segments") + more_segments(&before, &after)) * (64 << 20) as f64;
    println!(
        "ADD, GET and ACK of 1 KiB by {CLIENTS} clients for {seconds} s, {:.0} MiB of payload: for each byte of it \
         {:.2} in batches (copies among them {:.2}), {:.2} zeros laid out, {:.2} written to the device; {:.1} requests a batch",
        payload / MIB,
        batches / payload,
        copies / payload,
        laid_out / payload,
        (jobs.device_bytes() - device) as f64 / payload,
        3.0 * payload / KIB as f64 / more("batches"),
    );
}

/// The segments that were begun and are still there.
fn more_segments(before: &Value, after: &Value) -> f64 {
    after["segments"].as_u64().unwrap() as f64 - before["segments"].as_u64().unwrap() as f64
}

/// Prints the latencies with and without cleaning.
pub(crate) fn cleaning(seconds: f64, rounds: usize) {
    let jobs = Jobs::start();
    let old = [b'o'; LARGE];
    (0..OLD_BYTES / LARGE as u64).for_each(|_| assert!(jobs.add(b"old", &old)));
    let mut without: Option<Histogram<u64>> = None;
    let mut with: Option<Histogram<u64>> = None;
    let (mut rates, mut rounds_with) = ([Vec::new(), Vec::new()], 0);
    // The store begins to clean when the dead bytes are more than the live ones.
    while rounds_with < rounds {
        let before = jobs.metric("copied_bytes");
        let (rate, latencies) = jobs.cycles(seconds);
        let copied = jobs.metric("copied_bytes") - before;
        let (place, side) = if copied > 0 { (1, &mut with) } else { (0, &mut without) };
        rounds_with += place;
        rates[place].push(rate);
        match side {
            Some(all) => all.add(latencies).unwrap(),
            None => *side = Some(latencies),
        }
    }
    let print = |name: &str, all: Option<Histogram<u64>>, rates: &[f64]| {
        let Some(all) = all else { return println!("{name}: no round") };
        let micros = |quantile| all.value_at_quantile(quantile) / 1_000;
        println!(
            "ADD, GET and ACK of 1 KiB, {CLIENTS} clients, {name}: {} rounds of {seconds} s, {:.0} cycles/s, p50 {} µs, p99 {} µs, p99.9 {} µs",
            rates.len(),
            rates.iter().sum::<f64>() / rates.len() as f64,
            micros(0.5),
            micros(0.99),
            micros(0.999),
        );
    };
    print("nothing copied", without, &rates[0]);
    print("while it cleans", with, &rates[1]);
}

/// Fills a queue with this many bytes, takes all of it, and prints how the space comes back.
pub(crate) fn drained(bytes: u64) {
    let jobs = Jobs::start();
    let empty = jobs.resident_bytes();
    let data = vec![b'd'; LARGE];
    let left = AtomicU64::new(bytes / LARGE as u64);
    let start = Instant::now();
    let fill = |(): (), over: &std::sync::atomic::AtomicBool| {
        repeat(over, || {
            let is_mine = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
            is_mine && jobs.add(b"drain", &data)
        })
    };
    crowd(vec![(); 16], f64::INFINITY, fill);
    let (filled, full) = (start.elapsed().as_secs_f64(), jobs.folder_bytes());
    let resident = jobs.resident_bytes();
    let start = Instant::now();
    crowd(vec![(); 16], f64::INFINITY, |(), over| repeat(over, || jobs.take(b"drain")));
    let taken = start.elapsed().as_secs_f64();
    print!(
        "{:.1} GB in jobs of {LARGE} bytes: added in {filled:.0} s (folder {:.0} MiB, resident {:.0} MiB, {:.0} when empty), taken in {taken:.0} s; folder after",
        bytes as f64 / 1e9,
        full as f64 / MIB,
        resident / MIB,
        empty / MIB,
    );
    let start = Instant::now();
    for after in [0, 1, 5, 10, PATIENCE] {
        std::thread::sleep(Duration::from_secs(after).saturating_sub(start.elapsed()));
        print!(" {after} s {:.0} MiB,", jobs.folder_bytes() as f64 / MIB);
    }
    println!(" resident {:.0} MiB", jobs.resident_bytes() / MIB);
}
