//! The flags of `spindle serve` for the stores of tasks, jobs and events, and of durable tables.

use std::num::NonZeroU32;
use std::path::PathBuf;

use super::amount::bytes_within;
use super::duration::{BareUnit, whole};
use crate::cli::{CommandError, DATA_FOLDER};
use crate::server::{DurabilitySettings, StorageConfig, TABLES_SEGMENT_BYTES_MAX};
use crate::store::{SEGMENTS_MIN, StoreConfig};
use crate::tasks::Policy;

/// The size of a segment, unless a flag says otherwise, in bytes.
const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// The smallest segment, in bytes: a few batches of small records.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The largest segment, in bytes: offsets in it have 32 bits, and a single batch may need more.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The flags of the store, as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreFlags {
    /// Directory of tasks, jobs, events and durable tables, created when first needed
    #[arg(long, value_name = "DIR", default_value = DATA_FOLDER)]
    data: PathBuf,

    /// Sync of tasks (not jobs and events): always before the reply, MILLISECONDS later, or never except by the system
    #[arg(long, value_name = "always|never|MILLISECONDS", default_value = "always", value_parser = policy)]
    sync: Policy,

    /// Leases after which a task or job is dead if the last one fails, unless it or its queue says otherwise; 0 for no end
    #[arg(long, value_name = "N", default_value_t = 0)]
    tries: u32,

    /// Most tasks, jobs and events together, in any state; beyond them none is added [default: one for each KiB of memory of
    /// the host or its control group]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tasks: Option<u64>,

    /// Size of the files in --data, in bytes (K, M, G), 64K to 1G
    #[arg(long, value_name = "BYTES", default_value_t = SEGMENT_BYTES_DEFAULT, value_parser = bytes_within(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX))]
    segment_size: u64,

    /// Most bytes (K, M, G) in --data, at least five segments of tasks and five of tables; above three quarters nothing
    /// is added [default: 95 % of the file system]
    #[arg(long, value_name = "BYTES", value_parser = bytes_within(least_bytes(SEGMENT_BYTES_MIN), u64::MAX))]
    max_disk: Option<u64>,

    /// Start although --data is damaged: continue without what is lost; finished tasks may return
    #[arg(long)]
    repair: bool,

    /// Start on a copy of a folder whose server has gone on: lend keys and ids jump far above those in it; give it once
    #[arg(long)]
    copied: bool,
}

impl StoreFlags {
    pub(crate) fn sync(&self) -> Policy {
        self.sync
    }

    pub(crate) fn tries(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.tries)
    }

    pub(crate) fn tasks_max(&self) -> Option<u64> {
        self.max_tasks
    }

    /// # Errors
    /// [`CommandError::Usage`] if the folder cannot keep to `--max-disk`.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        let least = least_bytes(self.segment_size);
        match self.max_disk {
            Some(most) if most < least => Err(CommandError::Usage(format!(
                "--max-disk {most}: with --segment-size {} the logs of tasks and of durable tables take {least} bytes at least; raise --max-disk, or lower --segment-size to {} or less",
                self.segment_size,
                largest_segment(most)
            ))),
            _ => Ok(()),
        }
    }

    /// The configuration of all that is on disk.
    pub(crate) fn config(&self, tables: DurabilitySettings) -> StorageConfig {
        let store = StoreConfig {
            segment_bytes: self.segment_size,
            max_disk: self.max_disk,
            repair: self.repair,
            copied: self.copied,
        };
        StorageConfig { data: self.data.clone(), store, tables }
    }
}

/// The least bytes of both logs, with segments of this size for tasks. Those of durable tables are as large, or as they may
/// be.
const fn least_bytes(segment: u64) -> u64 {
    let of_tables = if segment < TABLES_SEGMENT_BYTES_MAX { segment } else { TABLES_SEGMENT_BYTES_MAX };
    SEGMENTS_MIN * (segment + of_tables)
}

/// The largest segment with which both logs take no more than so many bytes.
const fn largest_segment(most: u64) -> u64 {
    let equal = most / (2 * SEGMENTS_MIN);
    if equal < TABLES_SEGMENT_BYTES_MAX { equal } else { most / SEGMENTS_MIN - TABLES_SEGMENT_BYTES_MAX }
}

fn policy(typed: &str) -> Result<Policy, String> {
    match typed {
        "always" => Ok(Policy::Always),
        "never" => Ok(Policy::Never),
        millis => match whole(BareUnit::Millis, 0, u64::MAX, "")(millis) {
            Ok(0) => Ok(Policy::Always),
            Ok(millis) => Ok(Policy::Within(millis)),
            Err(_) => Err("it is always, never, or a number of milliseconds, or a time such as 1s".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::tables::Durability;

    const TABLES: DurabilitySettings =
        DurabilitySettings { durability: Durability::None, interval: Duration::from_secs(1) };

    #[derive(Debug, Parser)]
    struct StoreArguments {
        #[command(flatten)]
        flags: StoreFlags,
    }

    fn parsed(flags: &[&str]) -> Result<StoreConfig, clap::Error> {
        StoreArguments::try_parse_from([&["serve"], flags].concat()).map(|typed| typed.flags.config(TABLES).store)
    }

    #[test]
    fn a_bound_that_the_folder_cannot_keep_is_refused_with_the_least_one() {
        let check =
            |flags: &[&str]| StoreArguments::try_parse_from([&["serve"], flags].concat()).unwrap().flags.check();
        for good in [&["--max-disk", "400M"][..], &["--max-disk", "640K", "--segment-size", "64K"], &[]] {
            assert!(check(good).is_ok(), "{good:?}");
        }
        for (most, segment, least) in [("399M", "64M", 400_u64 << 20), ("99M", "10M", 100 << 20)] {
            let Err(CommandError::Usage(why)) = check(&["--max-disk", most, "--segment-size", segment]) else {
                panic!("{most} is too small")
            };
            assert!(why.contains(&format!("take {least} bytes at least")), "{why}");
            let lower = why.rsplit("--segment-size to ").next().unwrap().split(' ').next().unwrap().to_owned();
            assert!(check(&["--max-disk", most, "--segment-size", &lower]).is_ok(), "{why}");
        }
    }

    #[test]
    fn flags_of_the_store_have_defaults_and_bounds() {
        let plain = StoreConfig { segment_bytes: 64 << 20, max_disk: None, repair: false, copied: false };
        assert_eq!(parsed(&[]).unwrap(), plain);
        let other = parsed(&["--segment-size", "1M", "--max-disk", "2G", "--repair", "--copied"]).unwrap();
        assert_eq!(other, StoreConfig { segment_bytes: 1 << 20, max_disk: Some(2 << 30), repair: true, copied: true });
        for bad in [["--segment-size", "1K"], ["--segment-size", "2G"], ["--max-disk", "639K"], ["--sync", "often"]] {
            assert!(parsed(&bad).is_err(), "{bad:?}");
        }
    }
}
