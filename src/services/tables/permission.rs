//! What a user needs for each command of the tables.
//!
//! A command about a table needs its access to that table. STATS needs its access to the server. PING and LIST_TABLES
//! need none: any user may send them, and LIST_TABLES names only tables that the user may read.

use std::ops::Deref;

use super::wire::{Request, TableName};
use crate::security::{Access, Identity, Resource};

/// Whether the user may have the request carried out.
#[must_use]
pub fn may<F: Deref<Target = [u8]>>(user: &Identity, request: &Request<'_, F>) -> bool {
    let resource = request.table().map_or(Resource::Server, |table| Resource::Table(table.name()));
    request.command().access().is_none_or(|access| user.may(access, resource))
}

/// Whether the user may read the table of this name, as it was spelt.
#[must_use]
pub fn may_read(user: &Identity, spelling: &[u8]) -> bool {
    user.may(Access::Read, Resource::Table(TableName::spelt(spelling).name()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::security::Permissions;
    use crate::services::tables::wire::specified::SpecifiedCommand;
    use crate::services::tables::wire::{Command, FieldLimits};

    #[test]
    fn every_command_needs_its_permission_and_no_other_helps() {
        for command in Command::ALL {
            let SpecifiedCommand { access: needed, .. } = SpecifiedCommand::of(command);
            let body = SpecifiedCommand::of(command).body();
            let request = &Request::decode(&body, FieldLimits::DEFAULT).unwrap();
            for granted in Access::ALL {
                let suffices = needed.is_none_or(|needed| granted >= needed);
                let mut tables = Permissions::default();
                tables.tables.grant(granted, b"ta");
                assert_eq!(
                    may(&Identity::invented(tables), request),
                    needed.is_none() || suffices && command != Command::Stats
                );
                let mut others = Permissions { tasks: Some(granted), events: Some(granted), ..Permissions::default() };
                others.tables.grant(granted, b"us-");
                others.tables.grant(granted, b"tab-2");
                others.jobs.grant(granted, b"");
                assert_eq!(may(&Identity::invented(others), request), needed.is_none(), "{command:?} {granted:?}");
            }
            assert!(may(&Identity::invented(Permissions { admin: true, ..Permissions::default() }), request));
        }
    }
}
