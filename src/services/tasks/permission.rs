//! What a user needs for each request about tasks.
//!
//! Terminate ends the whole server, so it needs `admin` of the server. Ping needs nothing. The others need their access
//! to the queue: that of `--tasks`, or that of the events.

use super::wire::Verb;
use crate::security::{Access, Identity, Resource};

impl Verb {
    /// The access that the request needs. None: any user may send it.
    #[must_use]
    pub const fn access(self) -> Option<Access> {
        match self {
            Self::Ping => None,
            Self::Count | Self::Lookup | Self::Stats | Self::Browse | Self::Queues => Some(Access::Read),
            Self::Add | Self::Update | Self::Lend | Self::Repay | Self::Heartbeat | Self::Flush | Self::Remove => {
                Some(Access::Write)
            }
            Self::AddMany | Self::LendMany | Self::SettleMany | Self::ExtendMany | Self::Kick => Some(Access::Write),
            Self::Terminate | Self::Purge | Self::Configure => Some(Access::Admin),
        }
    }
}

/// Whether the user may have the request carried out, on this queue.
#[must_use]
pub fn may(user: &Identity, verb: Verb, queue: Resource<'_>) -> bool {
    let resource = if verb == Verb::Terminate { Resource::Server } else { queue };
    verb.access().is_none_or(|access| user.may(access, resource))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{DEFAULT_QUEUE, Permissions};

    const VERBS: [Verb; 21] = [
        Verb::Ping,
        Verb::Count,
        Verb::Add,
        Verb::Update,
        Verb::Lend,
        Verb::Repay,
        Verb::Heartbeat,
        Verb::Stats,
        Verb::Terminate,
        Verb::Lookup,
        Verb::Flush,
        Verb::Remove,
        Verb::AddMany,
        Verb::LendMany,
        Verb::SettleMany,
        Verb::ExtendMany,
        Verb::Browse,
        Verb::Kick,
        Verb::Purge,
        Verb::Configure,
        Verb::Queues,
    ];

    #[test]
    fn what_looks_reads_what_changes_writes_and_the_end_is_for_admins() {
        for verb in VERBS {
            let expected = match verb {
                Verb::Ping => None,
                Verb::Count | Verb::Lookup | Verb::Stats | Verb::Browse | Verb::Queues => Some(Access::Read),
                Verb::Terminate | Verb::Purge | Verb::Configure => Some(Access::Admin),
                _ => Some(Access::Write),
            };
            assert_eq!(verb.access(), expected, "{verb:?}");
        }
    }

    #[test]
    fn every_verb_needs_its_permission_and_no_other_helps() {
        for verb in VERBS {
            for granted in Access::ALL {
                let suffices = verb.access().is_none_or(|needed| granted >= needed) && verb != Verb::Terminate;
                let tasks = || Permissions { tasks: Some(granted), ..Permissions::default() };
                let events = || Permissions { events: Some(granted), ..Permissions::default() };
                for (permissions, queue, other) in [
                    (tasks(), Resource::TaskQueue(DEFAULT_QUEUE), Resource::Events),
                    (events(), Resource::Events, Resource::TaskQueue(DEFAULT_QUEUE)),
                ] {
                    let user = Identity::invented(permissions);
                    assert_eq!(may(&user, verb, queue), suffices, "{verb:?} {granted:?}");
                    assert_eq!(may(&user, verb, other), verb.access().is_none(), "{verb:?} {granted:?}");
                }
            }
            let admin = Identity::invented(Permissions { admin: true, ..Permissions::default() });
            assert!(may(&admin, verb, Resource::TaskQueue(DEFAULT_QUEUE)) && may(&admin, verb, Resource::Events));
        }
    }
}
