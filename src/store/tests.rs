//! Tests of the store: a simulated disk with power failures and faults, histories on it, and what is planted to be found.

mod backups;
mod bounds;
mod damaged_parts;
mod effects;
pub(crate) mod fake_disk;
mod flipped_bits;
mod full_disk;
mod full_disk_patterns;
mod keyed_store;
mod kills;
mod model;
mod moved_folder;
mod owner;
mod proof;
mod regressions;
mod repairs;
pub(crate) mod simulated_disk;
mod simulated_pages;
