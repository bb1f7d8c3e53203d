//! The headings of the flags in `spindle serve --help`, in the order in which the help shows them.

pub(crate) const TABLES: &str = "Tables";
pub(crate) const TASKS: &str = "Tasks";
pub(crate) const JOBS: &str = "Jobs";
pub(crate) const EVENTS: &str = "Events";
pub(crate) const STORE: &str = "Storage of tasks, jobs and events";
pub(crate) const SECURITY: &str = "Users and encryption";
pub(crate) const OPERATION: &str = "Operation";
pub(crate) const TUNING: &str = "Tuning";
pub(crate) const LOCKSTEP: &str = "Tables in lock-step, for the first client";
