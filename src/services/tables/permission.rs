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
    use super::*;
    use crate::clock::Ttl;
    use crate::feed::FeedPosition;
    use crate::security::Permissions;
    use crate::services::tables::wire::{Command, ScanFields};

    const T: TableName<'static> = TableName::spelt(b"eu-t\0");
    const K: &[u8] = b"k";

    fn requests() -> [Request<'static>; Command::COUNT] {
        let position = FeedPosition { epoch: 1, incarnation: 1, sequence: 1 };
        [
            Request::CreateTable { table: T },
            Request::DeleteTable { table: T },
            Request::Update { table: T, key: K, value: K, ttl: None },
            Request::Delete { table: T, key: K },
            Request::Get { table: T, key: K },
            Request::Ping,
            Request::GetEntry { table: T, key: K },
            Request::CompareAndSwap { table: T, key: K, expected: 0, value: K, ttl: None },
            Request::CompareAndDelete { table: T, key: K, expected: 0 },
            Request::Touch { table: T, key: K, ttl: Ttl::NONE },
            Request::GetMany { table: T, keys: &[K] },
            Request::UpdateMany { table: T, ttl: None, pairs: &[[K, K]] },
            Request::ListTables,
            Request::Stats,
            Request::Scan { table: T, cursor: b"", count: 1, fields: ScanFields::Key, prefix: b"" },
            Request::Increment { table: T, key: K, delta: 1, ttl: None },
            Request::GetAndTouch { table: T, key: K, ttl: Ttl::NONE },
            Request::DeleteMany { table: T, keys: &[K] },
            Request::FeedState { table: T },
            Request::Changes { table: T, position },
            Request::Restore { table: T, key: K, value: K, version: 1, ttl: Ttl::NONE },
        ]
    }

    #[test]
    fn what_looks_reads_what_changes_writes_and_tables_have_owners() {
        use Access::{Admin, Read, Write};
        let needed = Command::ALL.map(|command| (command, command.access()));
        let expected = [
            (Command::CreateTable, Some(Admin)),
            (Command::DeleteTable, Some(Admin)),
            (Command::Update, Some(Write)),
            (Command::Delete, Some(Write)),
            (Command::Get, Some(Read)),
            (Command::Ping, None),
            (Command::GetEntry, Some(Read)),
            (Command::CompareAndSwap, Some(Write)),
            (Command::CompareAndDelete, Some(Write)),
            (Command::Touch, Some(Write)),
            (Command::GetMany, Some(Read)),
            (Command::UpdateMany, Some(Write)),
            (Command::ListTables, None),
            (Command::Stats, Some(Admin)),
            (Command::Scan, Some(Read)),
            (Command::Increment, Some(Write)),
            (Command::GetAndTouch, Some(Write)),
            (Command::DeleteMany, Some(Write)),
            (Command::FeedState, Some(Read)),
            (Command::Changes, Some(Read)),
            (Command::Restore, Some(Write)),
        ];
        assert_eq!(needed, expected);
    }

    #[test]
    fn every_command_needs_its_permission_and_no_other_helps() {
        for (request, command) in requests().iter().zip(Command::ALL) {
            assert_eq!(request.command(), command);
            let needed = command.access();
            for granted in Access::ALL {
                let suffices = needed.is_none_or(|needed| granted >= needed);
                let mut tables = Permissions::default();
                tables.tables.grant(granted, b"eu-");
                assert_eq!(
                    may(&Identity::invented(tables), request),
                    needed.is_none() || suffices && command != Command::Stats
                );
                let mut others = Permissions { tasks: Some(granted), events: Some(granted), ..Permissions::default() };
                others.tables.grant(granted, b"us-");
                others.tables.grant(granted, b"eu-t-2");
                others.jobs.grant(granted, b"");
                assert_eq!(may(&Identity::invented(others), request), needed.is_none(), "{command:?} {granted:?}");
            }
            assert!(may(&Identity::invented(Permissions { admin: true, ..Permissions::default() }), request));
        }
    }
}
