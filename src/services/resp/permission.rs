//! What a user needs for each command.
//!
//! A command that reads or writes needs that access to the client's table. FLUSHDB and FLUSHALL need `admin`, as
//! DELETE_TABLE does, and FLUSHALL needs it for each table that it empties. EVAL and EVALSHA need `read` and `write`.
//! SHUTDOWN needs `admin` of the server. A channel needs `read` of some table, and PUBLISH `write`. Events of keys reach
//! only who may read their table. Others
//! need none: clients send them when they connect.

use super::command_info::{CommandInfo, flag};
use crate::security::{Access, Identity, Resource};

/// Whether the user may have the command carried out in this table.
pub(super) fn may(user: &Identity, row: &CommandInfo, table: &[u8]) -> bool {
    match row.name {
        "flushdb" => user.may(Access::Admin, Resource::Table(table)),
        "flushall" => (0..16_u8).all(|table| user.may(Access::Admin, Resource::Table(table.to_string().as_bytes()))),
        "subscribe" | "psubscribe" => user.permissions().allow_some_table(Access::Read),
        "publish" => user.permissions().allow_some_table(Access::Write),
        _ if row.has(flag::ADMIN) => user.may(Access::Admin, Resource::Server),
        _ if row.has(flag::WRITE) => user.may(Access::Write, Resource::Table(table)),
        _ if row.has(flag::READONLY) => user.may(Access::Read, Resource::Table(table)),
        // A known script may do both.
        _ if row.has(flag::MAY_WRITE) => {
            [Access::Read, Access::Write].into_iter().all(|access| user.may(access, Resource::Table(table)))
        }
        // They look at a key.
        "object" | "memory" | "watch" => user.may(Access::Read, Resource::Table(table)),
        _ => true,
    }
}
