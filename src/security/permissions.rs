//! The permissions of a user, and the one function that decides on them.
//!
//! ```text
//! Access     Read < Write < Admin                      the higher includes the lower
//! Resource   Table(name) │ TaskQueue(name) │ JobQueue(name) │ Events │ Server
//! ```
//! The verbs of each protocol say beside their types which access to which resource they need. A table or a queue is
//! granted by the beginning of its name; the empty prefix grants all. `admin = true` grants everything.
//!
//! This module knows no verb, no file and no connection.

/// How much of a resource is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Looks at it.
    Read,
    /// Changes its content.
    Write,
    /// Creates, removes or ends it.
    Admin,
}

impl Access {
    /// All of them, from the lowest.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Its word in the file of users.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// The access of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.word() == word)
    }
}

/// The queue of `--tasks` that requests without a name speak of.
pub const DEFAULT_QUEUE: &[u8] = b"default";

/// A part of the server that users may or may not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'n> {
    /// The table of this name, without a NUL at its end.
    Table(&'n [u8]),
    /// The queue of `--tasks` with this name.
    TaskQueue(&'n [u8]),
    /// The queue of `--jobs` with this name.
    JobQueue(&'n [u8]),
    /// The events and their queue.
    Events,
    /// The server as a whole: its statistics, its end.
    Server,
}

/// The beginnings of names, by the access that they grant.
#[derive(Clone, Debug, Default, Eq)]
pub struct Prefixes {
    /// For each access, the prefixes that grant exactly it. Indexed by [`Access`].
    exact: [Vec<Box<[u8]>>; 3],
    /// For each access, the prefixes that grant this access or a higher one: a request looks at one list.
    sufficient: [Vec<Box<[u8]>>; 3],
}

/// Prefixes with the same grants are equal: the other lists follow from the grants, in the order of granting.
impl PartialEq for Prefixes {
    fn eq(&self, other: &Self) -> bool {
        self.exact == other.exact
    }
}

impl Prefixes {
    /// Grants access to all names that begin with the prefix.
    pub fn grant(&mut self, access: Access, prefix: &[u8]) {
        if let Some(list) = self.exact.get_mut(access as usize) {
            list.push(prefix.into());
        }
        self.sufficient.iter_mut().take(access as usize + 1).for_each(|list| list.push(prefix.into()));
    }

    /// The prefixes that grant exactly this access.
    pub fn granted(&self, access: Access) -> impl ExactSizeIterator<Item = &[u8]> {
        self.exact.get(access as usize).map_or(&[][..], |list| list).iter().map(|prefix| &**prefix)
    }

    /// Whether a name may be used so.
    #[must_use]
    #[inline]
    pub fn allow(&self, access: Access, name: &[u8]) -> bool {
        self.at_least(access).iter().any(|prefix| name.starts_with(prefix))
    }

    /// The prefixes that grant this access or a higher one.
    #[must_use]
    #[inline]
    pub fn at_least(&self, access: Access) -> &[Box<[u8]>] {
        self.sufficient.get(access as usize).map_or(&[], |list| list)
    }
}

/// Everything that a user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Everything.
    pub admin: bool,
    /// Tables.
    pub tables: Prefixes,
    /// The queue [`DEFAULT_QUEUE`] of `--tasks`.
    pub tasks: Option<Access>,
    /// The queues of `--tasks` by name.
    pub task_queues: Prefixes,
    /// The queues of `--jobs`.
    pub jobs: Prefixes,
    /// The events and their queue.
    pub events: Option<Access>,
}

impl Permissions {
    /// Whether the resource may be used so.
    ///
    /// ```
    /// use spindle::security::{Access, Permissions, Resource};
    ///
    /// let mut permissions = Permissions::default();
    /// permissions.tables.grant(Access::Write, b"eu-");
    /// assert!(permissions.allow(Access::Read, Resource::Table(b"eu-orders")));
    /// assert!(!permissions.allow(Access::Admin, Resource::Table(b"eu-orders")));
    /// assert!(!permissions.allow(Access::Read, Resource::Table(b"us-orders")));
    /// ```
    #[must_use]
    #[inline]
    pub fn allow(&self, access: Access, resource: Resource<'_>) -> bool {
        let at_least = |granted: Option<Access>| granted.is_some_and(|granted| granted >= access);
        self.admin
            || match resource {
                Resource::Table(name) => self.tables.allow(access, name),
                Resource::JobQueue(name) => self.jobs.allow(access, name),
                Resource::TaskQueue(name) => {
                    name == DEFAULT_QUEUE && at_least(self.tasks) || self.task_queues.allow(access, name)
                }
                Resource::Events => at_least(self.events),
                Resource::Server => false,
            }
    }

    /// Whether some table may be used so.
    #[must_use]
    pub fn allow_some_table(&self, access: Access) -> bool {
        self.admin || !self.tables.at_least(access).is_empty()
    }

    /// How many of the tables whose names begin so, and have at most `longest` bytes, the user may read.
    ///
    /// ```
    /// use spindle::security::{Access, Coverage, Permissions};
    ///
    /// let mut permissions = Permissions::default();
    /// permissions.tables.grant(Access::Read, b"eu-");
    /// assert_eq!(permissions.readable_tables(b"eu-orders", 254), Coverage::All);
    /// assert_eq!(permissions.readable_tables(b"e", 254), Coverage::Some);
    /// assert_eq!(permissions.readable_tables(b"us", 254), Coverage::None);
    /// ```
    #[must_use]
    pub fn readable_tables(&self, beginning: &[u8], longest: usize) -> Coverage {
        if self.allow(Access::Read, Resource::Table(beginning)) {
            return Coverage::All;
        }
        let is_inside = |prefix: &[u8]| prefix.starts_with(beginning) && prefix.len() <= longest;
        if self.tables.at_least(Access::Read).iter().any(|prefix| is_inside(prefix)) {
            Coverage::Some
        } else {
            Coverage::None
        }
    }
}

/// How many of some things may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Each of them.
    All,
    /// Some, and not others: each has to be looked at.
    Some,
    /// None of them.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_access_includes_the_lower_and_no_other() {
        for granted in Access::ALL {
            let permissions = Permissions { tasks: Some(granted), events: Some(granted), ..Permissions::default() };
            for asked in Access::ALL {
                assert_eq!(
                    permissions.allow(asked, Resource::TaskQueue(DEFAULT_QUEUE)),
                    asked <= granted,
                    "{granted:?} {asked:?}"
                );
                assert_eq!(permissions.allow(asked, Resource::Events), asked <= granted);
                assert!(!permissions.allow(asked, Resource::Server));
                assert!(!permissions.allow(asked, Resource::TaskQueue(b"defaults")));
                assert!(
                    !permissions.allow(asked, Resource::Table(b""))
                        && !permissions.allow(asked, Resource::JobQueue(b""))
                );
            }
        }
    }

    #[test]
    fn a_name_is_granted_by_its_beginning_alone() {
        let mut permissions = Permissions::default();
        permissions.tables.grant(Access::Read, b"eu");
        permissions.tables.grant(Access::Admin, b"eu-own");
        permissions.jobs.grant(Access::Write, b"");
        permissions.task_queues.grant(Access::Write, b"de");
        let rows: [(Access, &[u8], bool); 7] = [
            (Access::Read, b"eu", true),
            (Access::Read, b"eu-orders", true),
            (Access::Read, b"e", false),
            (Access::Read, b"xeu", false),
            (Access::Write, b"eu-orders", false),
            (Access::Admin, b"eu-own", true),
            (Access::Write, b"eu-own-2", true),
        ];
        for (access, name, expected) in rows {
            assert_eq!(permissions.allow(access, Resource::Table(name)), expected, "{access:?} {name:?}");
        }
        assert!(permissions.allow(Access::Write, Resource::JobQueue(b"any")));
        assert!(!permissions.allow(Access::Admin, Resource::JobQueue(b"any")));
        assert!(permissions.allow(Access::Write, Resource::TaskQueue(DEFAULT_QUEUE)));
        assert!(!permissions.allow(Access::Read, Resource::TaskQueue(b"mail")));
    }

    #[test]
    fn an_admin_may_do_everything_and_a_user_without_permissions_nothing() {
        let (admin, none) = (Permissions { admin: true, ..Permissions::default() }, Permissions::default());
        let resources = [
            Resource::Table(b"t"),
            Resource::TaskQueue(b"q"),
            Resource::JobQueue(b"q"),
            Resource::Events,
            Resource::Server,
        ];
        for resource in resources {
            for access in Access::ALL {
                assert!(admin.allow(access, resource) && !none.allow(access, resource), "{access:?} {resource:?}");
            }
        }
        assert_eq!(admin.readable_tables(b"", 9), Coverage::All);
        assert_eq!(none.readable_tables(b"", 9), Coverage::None);
    }

    #[test]
    fn of_the_tables_with_a_beginning_all_some_or_none_may_be_read() {
        let mut permissions = Permissions::default();
        for prefix in [&b"eu"[..], b"eu-orders", b"us-stock"] {
            permissions.tables.grant(Access::Read, prefix);
        }
        permissions.tables.grant(Access::Write, b"w");
        let rows = [
            (&b""[..], 254, Coverage::Some),
            (b"us", 254, Coverage::Some),
            (b"us", 8, Coverage::Some),
            (b"us", 7, Coverage::None),
            (b"us-stock", 7, Coverage::All),
            (b"eu", 2, Coverage::All),
            (b"eu-x", 254, Coverage::All),
            (b"w-x", 254, Coverage::All),
            (b"asia", 254, Coverage::None),
            (b"u", 1, Coverage::None),
        ];
        for (beginning, longest, expected) in rows {
            assert_eq!(permissions.readable_tables(beginning, longest), expected, "{beginning:?} {longest}");
        }
        permissions.tables.grant(Access::Admin, b"");
        assert_eq!(permissions.readable_tables(b"", 0), Coverage::All);
    }
}
