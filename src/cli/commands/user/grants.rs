//! The flags by which a user may do something.

use clap::{Args, ValueEnum};

use crate::security::{Access, Permissions, Prefixes};

/// What a user may do. A flag that is left out changes nothing.
#[derive(Debug, Args)]
pub(super) struct Grants {
    /// Read tables whose names begin so; "" for all; may be given several times
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    read: Option<Vec<String>>,
    /// Read and change tables whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    write: Option<Vec<String>>,
    /// Read, change, create and delete tables whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    own: Option<Vec<String>>,
    /// Do everything: all tables and queues, statistics, the end of the server
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) admin: Option<bool>,
    /// Use the queue of tasks
    #[arg(long, value_name = "none|read|write|admin")]
    tasks: Option<Level>,
    /// Look into queues of tasks whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    tasks_read: Option<Vec<String>>,
    /// Add, lend and repay tasks in queues whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    tasks_write: Option<Vec<String>>,
    /// Look into queues of jobs whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    jobs_read: Option<Vec<String>>,
    /// Add, get and finish jobs in queues whose names begin so
    #[arg(long, value_name = "PREFIX", num_args = 0..)]
    jobs_write: Option<Vec<String>>,
    /// Use the events
    #[arg(long, value_name = "none|read|write|admin")]
    events: Option<Level>,
}

/// A word of the flags.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    None,
    Read,
    Write,
    Admin,
}

impl Level {
    fn access(self) -> Option<Access> {
        match self {
            Self::None => None,
            Self::Read => Some(Access::Read),
            Self::Write => Some(Access::Write),
            Self::Admin => Some(Access::Admin),
        }
    }
}

impl Grants {
    /// The permissions, with those that flags name replaced.
    pub(super) fn applied_to(&self, before: &Permissions) -> Permissions {
        let granted = |before: &Prefixes, lists: &[(Access, &Option<Vec<String>>)]| {
            let mut prefixes = Prefixes::default();
            for (access, list) in lists {
                match list {
                    Some(list) => list.iter().for_each(|prefix| prefixes.grant(*access, prefix.as_bytes())),
                    None => before.granted(*access).for_each(|prefix| prefixes.grant(*access, prefix)),
                }
            }
            prefixes
        };
        let tables = [(Access::Read, &self.read), (Access::Write, &self.write), (Access::Admin, &self.own)];
        let task_queues = [(Access::Read, &self.tasks_read), (Access::Write, &self.tasks_write)];
        let jobs = [(Access::Read, &self.jobs_read), (Access::Write, &self.jobs_write)];
        Permissions {
            admin: self.admin.unwrap_or(before.admin),
            tables: granted(&before.tables, &tables),
            tasks: self.tasks.map_or(before.tasks, Level::access),
            task_queues: granted(&before.task_queues, &task_queues),
            jobs: granted(&before.jobs, &jobs),
            events: self.events.map_or(before.events, Level::access),
        }
    }

    /// Whether a list has no prefix, which takes a permission away.
    pub(super) fn has_empty_list(&self) -> bool {
        let of_tasks = [&self.tasks_read, &self.tasks_write];
        let lists = [&self.read, &self.write, &self.own, &self.jobs_read, &self.jobs_write];
        lists.into_iter().chain(of_tasks).any(|list| list.as_ref().is_some_and(Vec::is_empty))
    }
}
