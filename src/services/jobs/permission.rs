//! What a user needs for each request about jobs: access to the queue that the request names.

use super::wire::Verb;
use crate::security::{Access, Identity, Resource};

impl Verb {
    /// The access that the request needs.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::In => Access::Read,
            Self::Add | Self::Get | Self::Ack => Access::Write,
            Self::AddX | Self::Wait | Self::Nack | Self::Touch => Access::Write,
        }
    }
}

/// Whether the user may have the request carried out, on the queue of this name.
#[must_use]
pub fn may(user: &Identity, verb: Verb, queue: &[u8]) -> bool {
    user.may(verb.access(), Resource::JobQueue(queue))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Permissions;

    #[test]
    fn a_question_reads_and_everything_else_writes() {
        for verb in Verb::ALL {
            let expected = if verb == Verb::In { Access::Read } else { Access::Write };
            assert_eq!(verb.access(), expected, "{verb:?}");
        }
    }

    #[test]
    fn every_verb_needs_its_permission_and_no_other_helps() {
        for verb in Verb::ALL {
            for granted in Access::ALL {
                let mut permissions =
                    Permissions { tasks: Some(granted), events: Some(granted), ..Permissions::default() };
                permissions.tables.grant(granted, b"");
                permissions.jobs.grant(granted, b"mail");
                let user = Identity::invented(permissions);
                assert_eq!(may(&user, verb, b"mail-2"), granted >= verb.access(), "{verb:?} {granted:?}");
                assert!(!may(&user, verb, b"mai"), "{verb:?} {granted:?}");
            }
        }
    }
}
