//! The commands: one row for each, which feeds decoding, COMMAND, permissions, metrics and the page.
//!
//! ```text
//! name   arguments   flags   keys   group   since   handler   summary
//! ```
//! Names, numbers of arguments, flags and places of keys are those of Redis 7.0, since clients read them.

use std::sync::LazyLock;

use super::answer::Answer;
use super::arguments::Arguments;
use super::call::Call;
use super::command_info::{
    ALL_KEYS, COUNTED, CommandIndex, CommandInfo, EVERY_SECOND, Group, NO_KEYS, ONE_KEY, TWO_KEYS, flag,
};
use super::handle::{
    channels, connection, counters, expiry, keys, many, names, objects, scripting, server, strings, transactions,
    versions,
};

/// Carries a command out. The number of arguments has been checked.
pub(super) type Handler = for<'b> fn(&'b mut Call<'_, '_>, Arguments<'b>) -> Answer<'b>;

/// A command.
pub(super) struct CommandRow {
    pub(super) info: CommandInfo,
    pub(super) handler: Handler,
}

macro_rules! rows {
    ($($name:literal $arity:literal ($($flag:ident)|+) $keys:ident $group:ident $since:literal $handler:path, $summary:literal;)*) => {
        /// All commands.
        pub(super) static COMMANDS: &[CommandRow] = &[$(CommandRow {
            info: CommandInfo {
                name: $name,
                arity: $arity,
                flags: $(flag::$flag)|+,
                keys: $keys,
                group: Group::$group,
                since: $since,
                summary: $summary,
            },
            handler: $handler,
        }),*];
    };
}

rows! {
    "get" 2 (READONLY | FAST) ONE_KEY String "1.0.0" strings::get, "Returns a value.";
    "set" -3 (WRITE | DENYOOM) ONE_KEY String "1.0.0" strings::set, "Stores a value, on conditions and for a time.";
    "setnx" 3 (WRITE | DENYOOM | FAST) ONE_KEY String "1.0.0" strings::setnx, "Stores a value if there is none.";
    "setex" 4 (WRITE | DENYOOM) ONE_KEY String "2.0.0" strings::setex, "Stores a value for so many seconds.";
    "psetex" 4 (WRITE | DENYOOM) ONE_KEY String "2.6.0" strings::psetex, "Stores a value for so many milliseconds.";
    "getset" 3 (WRITE | DENYOOM | FAST) ONE_KEY String "1.0.0" strings::getset, "Stores a value and returns the one before.";
    "getdel" 2 (WRITE | FAST) ONE_KEY String "6.2.0" strings::getdel, "Returns a value and deletes it.";
    "getex" -2 (WRITE | FAST) ONE_KEY String "6.2.0" strings::getex, "Returns a value and sets its time.";
    "mget" -2 (READONLY | FAST) ALL_KEYS String "1.0.0" many::mget, "Returns values of several keys.";
    "mset" -3 (WRITE | DENYOOM) EVERY_SECOND String "1.0.1" many::mset, "Stores values of several keys.";
    "msetnx" -3 (WRITE | DENYOOM) EVERY_SECOND String "1.0.1" names::msetnx, "Stores values of several keys if none has one.";
    "append" 3 (WRITE | DENYOOM | FAST) ONE_KEY String "2.0.0" strings::append, "Adds to the end of a value.";
    "strlen" 2 (READONLY | FAST) ONE_KEY String "2.2.0" strings::strlen, "Returns the length of a value.";
    "getrange" 4 (READONLY) ONE_KEY String "2.4.0" strings::getrange, "Returns a part of a value.";
    "substr" 4 (READONLY) ONE_KEY String "1.0.0" strings::getrange, "Returns a part of a value.";
    "setrange" 4 (WRITE | DENYOOM) ONE_KEY String "2.2.0" strings::setrange, "Replaces a part of a value.";
    "incr" 2 (WRITE | DENYOOM | FAST) ONE_KEY String "1.0.0" counters::incr, "Adds 1 to a number.";
    "decr" 2 (WRITE | DENYOOM | FAST) ONE_KEY String "1.0.0" counters::decr, "Subtracts 1 from a number.";
    "incrby" 3 (WRITE | DENYOOM | FAST) ONE_KEY String "1.0.0" counters::incrby, "Adds to a number.";
    "decrby" 3 (WRITE | DENYOOM | FAST) ONE_KEY String "1.0.0" counters::decrby, "Subtracts from a number.";
    "incrbyfloat" 3 (WRITE | DENYOOM | FAST) ONE_KEY String "2.6.0" counters::incrbyfloat, "Adds to a number with a fraction.";
    "del" -2 (WRITE | KEYSPACE) ALL_KEYS Generic "1.0.0" many::del, "Deletes keys.";
    "unlink" -2 (WRITE | FAST | KEYSPACE) ALL_KEYS Generic "4.0.0" many::del, "Deletes keys.";
    "exists" -2 (READONLY | FAST | KEYSPACE) ALL_KEYS Generic "1.0.0" many::exists, "Counts the keys that have a value.";
    "rename" 3 (WRITE | KEYSPACE) TWO_KEYS Generic "1.0.0" names::rename, "Moves a value to another key.";
    "renamenx" 3 (WRITE | FAST | KEYSPACE) TWO_KEYS Generic "1.0.0" names::renamenx, "Moves a value to another key if that has none.";
    "copy" -3 (WRITE | DENYOOM | KEYSPACE) TWO_KEYS Generic "6.2.0" names::copy, "Copies a value to another key.";
    "type" 2 (READONLY | FAST | KEYSPACE) ONE_KEY Generic "1.0.0" keys::kind, "Returns the kind of a value.";
    "touch" -2 (READONLY | FAST | KEYSPACE) ALL_KEYS Generic "3.2.1" many::exists, "Counts the keys that have a value.";
    "expire" -3 (WRITE | FAST | KEYSPACE) ONE_KEY Generic "1.0.0" expiry::expire, "Sets the time that is left, in seconds.";
    "pexpire" -3 (WRITE | FAST | KEYSPACE) ONE_KEY Generic "2.6.0" expiry::pexpire, "Sets the time that is left, in milliseconds.";
    "expireat" -3 (WRITE | FAST | KEYSPACE) ONE_KEY Generic "1.2.0" expiry::expireat, "Sets the end, in seconds since 1970.";
    "pexpireat" -3 (WRITE | FAST | KEYSPACE) ONE_KEY Generic "2.6.0" expiry::pexpireat, "Sets the end, in milliseconds since 1970.";
    "persist" 2 (WRITE | FAST | KEYSPACE) ONE_KEY Generic "2.2.0" expiry::persist, "Removes the end.";
    "ttl" 2 (READONLY | FAST | KEYSPACE) ONE_KEY Generic "1.0.0" expiry::ttl, "Returns the time that is left, in seconds.";
    "pttl" 2 (READONLY | FAST | KEYSPACE) ONE_KEY Generic "2.6.0" expiry::pttl, "Returns the time that is left, in milliseconds.";
    "expiretime" 2 (READONLY | FAST | KEYSPACE) ONE_KEY Generic "7.0.0" expiry::expiretime, "Returns the end, in seconds since 1970.";
    "pexpiretime" 2 (READONLY | FAST | KEYSPACE) ONE_KEY Generic "7.0.0" expiry::pexpiretime, "Returns the end, in milliseconds since 1970.";
    "keys" 2 (READONLY | DANGEROUS | KEYSPACE) NO_KEYS Generic "1.0.0" keys::keys, "Returns the keys that match a pattern.";
    "scan" -2 (READONLY | KEYSPACE) NO_KEYS Generic "2.8.0" keys::scan, "Returns keys page by page.";
    "randomkey" 1 (READONLY | KEYSPACE) NO_KEYS Generic "1.0.0" keys::randomkey, "Returns a random key.";
    "dbsize" 1 (READONLY | FAST | KEYSPACE) NO_KEYS Server "1.0.0" keys::dbsize, "Counts the keys.";
    "flushdb" -1 (WRITE | DANGEROUS | KEYSPACE) NO_KEYS Server "1.0.0" keys::flushdb, "Empties the table.";
    "flushall" -1 (WRITE | DANGEROUS | KEYSPACE) NO_KEYS Server "1.0.0" keys::flushall, "Empties the tables 0 to 15.";
    "object" -2 (SUBCOMMANDS) NO_KEYS Generic "2.2.3" objects::object, "Describes the value of a key.";
    "memory" -2 (SUBCOMMANDS) NO_KEYS Server "4.0.0" objects::memory, "Returns the memory of a key.";
    "dump" 2 (READONLY | KEYSPACE) ONE_KEY Generic "2.6.0" objects::dump, "Returns a value in the format of Redis.";
    "restore" -4 (WRITE | DENYOOM | DANGEROUS | KEYSPACE) ONE_KEY Generic "2.6.0" objects::restore, "Stores a value that DUMP has returned.";
    "eval" -3 (NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | MAY_WRITE) COUNTED Scripting "2.6.0" scripting::eval, "Carries out a known script, by its text.";
    "evalsha" -3 (NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | MAY_WRITE) COUNTED Scripting "2.6.0" scripting::evalsha, "Carries out a known script, by its digest.";
    "script" -2 (SUBCOMMANDS) NO_KEYS Scripting "2.6.0" scripting::script, "Returns which scripts are known.";
    "multi" 1 (NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY) NO_KEYS Transactions "1.2.0" transactions::multi, "Begins a transaction.";
    "exec" 1 (NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG) NO_KEYS Transactions "1.2.0" transactions::exec, "Carries a transaction out.";
    "discard" 1 (NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY) NO_KEYS Transactions "2.0.0" transactions::discard, "Drops a transaction.";
    "watch" -2 (NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY) ALL_KEYS Transactions "2.2.0" transactions::watch, "Has EXEC fail if keys change.";
    "unwatch" 1 (NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY) NO_KEYS Transactions "2.2.0" transactions::unwatch, "Watches no key any more.";
    "hello" -1 (SHOWN | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY) NO_KEYS Connection "6.0.0" connection::hello, "Chooses the version of the protocol, and names the user.";
    "auth" -2 (SHOWN | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY) NO_KEYS Connection "1.0.0" connection::auth, "Names the user.";
    "select" 2 (SHOWN | LOADING | STALE | FAST) NO_KEYS Connection "1.0.0" connection::select, "Chooses the table.";
    "ping" -1 (FAST) NO_KEYS Connection "1.0.0" connection::ping, "Answers.";
    "echo" 2 (LOADING | STALE | FAST) NO_KEYS Connection "1.0.0" connection::echo, "Returns its argument.";
    "quit" -1 (SHOWN | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY) NO_KEYS Connection "1.0.0" connection::quit, "Ends the connection.";
    "reset" 1 (SHOWN | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY) NO_KEYS Connection "6.2.0" connection::reset, "Makes the connection as it was when it began.";
    "client" -2 (SUBCOMMANDS) NO_KEYS Connection "2.4.0" connection::client, "Asks and sets what concerns the connection.";
    "subscribe" -2 (PUBSUB | NOSCRIPT | LOADING | STALE) NO_KEYS Pubsub "2.0.0" channels::subscribe, "Subscribes to channels.";
    "psubscribe" -2 (PUBSUB | NOSCRIPT | LOADING | STALE) NO_KEYS Pubsub "2.0.0" channels::psubscribe, "Subscribes to the channels that match patterns.";
    "unsubscribe" -1 (PUBSUB | NOSCRIPT | LOADING | STALE) NO_KEYS Pubsub "2.0.0" channels::unsubscribe, "Ends subscriptions to channels.";
    "punsubscribe" -1 (PUBSUB | NOSCRIPT | LOADING | STALE) NO_KEYS Pubsub "2.0.0" channels::punsubscribe, "Ends subscriptions to patterns.";
    "publish" 3 (PUBSUB | LOADING | STALE | FAST) NO_KEYS Pubsub "2.0.0" channels::publish, "Sends a message to the subscribers of a channel.";
    "pubsub" -2 (SUBCOMMANDS) NO_KEYS Pubsub "2.8.0" channels::pubsub, "Describes channels and their subscribers.";
    "command" -1 (SUBCOMMANDS | LOADING | STALE) NO_KEYS Server "2.8.13" server::command, "Describes the commands.";
    "info" -1 (LOADING | STALE | DANGEROUS) NO_KEYS Server "1.0.0" server::info, "Describes the server.";
    "config" -2 (SUBCOMMANDS) NO_KEYS Server "2.0.0" server::config, "Returns and sets settings.";
    "time" 1 (LOADING | STALE | FAST) NO_KEYS Server "2.6.0" server::time, "Returns the time.";
    "slowlog" -2 (SUBCOMMANDS) NO_KEYS Server "2.2.12" server::slowlog, "Returns slow commands.";
    "latency" -2 (SUBCOMMANDS) NO_KEYS Server "2.8.13" server::latency, "Describes slow events, of which none are kept.";
    "wait" 3 (NOSCRIPT) NO_KEYS Generic "3.0.0" server::wait, "Waits for replicas, of which there are none.";
    "waitaof" 4 (NOSCRIPT) NO_KEYS Generic "7.2.0" server::waitaof, "Waits until the client's writes are on disk.";
    "role" 1 (NOSCRIPT | LOADING | STALE | FAST | DANGEROUS) NO_KEYS Server "2.8.12" server::role, "Returns the role of the server.";
    "module" -2 (SUBCOMMANDS) NO_KEYS Server "4.0.0" server::module, "Lists the modules, of which there are none.";
    "acl" -2 (SUBCOMMANDS) NO_KEYS Server "6.0.0" server::acl, "Returns the user.";
    "shutdown" -1 (ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY | DANGEROUS) NO_KEYS Server "1.0.0" server::shutdown, "Ends the server.";
    "save" 1 (ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI | DANGEROUS) NO_KEYS Server "1.0.0" server::save, "Waits until all writes are on disk.";
    "bgsave" -1 (ADMIN | NOSCRIPT | NO_ASYNC_LOADING | DANGEROUS) NO_KEYS Server "1.0.0" server::bgsave, "Has all writes on disk soon.";
    "lastsave" 1 (LOADING | STALE | FAST | DANGEROUS) NO_KEYS Server "1.0.0" server::lastsave, "Returns the last moment that is on disk.";
    "cluster" -2 (SUBCOMMANDS) NO_KEYS Cluster "3.0.0" server::cluster, "Is refused: there is no cluster.";
    "getwithetag" 2 (READONLY | FAST) ONE_KEY String "1.0.0" versions::getwithetag, "Returns a version and its value.";
    "setwithetag" -3 (WRITE | DENYOOM) ONE_KEY String "1.0.0" versions::setwithetag, "Stores a value and returns its version.";
    "setifmatch" -4 (WRITE | DENYOOM) ONE_KEY String "1.0.0" versions::setifmatch, "Stores a value if the version is this one.";
    "delex" -2 (WRITE | FAST) ONE_KEY String "8.4.0" versions::delex, "Deletes a key, on a condition.";
    "post" -1 (LOADING | STALE | NO_AUTH) NO_KEYS Connection "1.0.0" connection::http, "Ends the connection of a browser.";
    "host:" -1 (LOADING | STALE | NO_AUTH) NO_KEYS Connection "1.0.0" connection::http, "Ends the connection of a browser.";
}

/// The index of all commands.
pub(super) static INDEX: LazyLock<CommandIndex> =
    LazyLock::new(|| CommandIndex::new(COMMANDS.iter().map(|row| &row.info)));

/// The number of a command, whatever the size of its letters.
pub(super) fn find(name: &[u8]) -> Option<usize> {
    INDEX.number(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::super::command_info::NAME_BYTES_MAX;
    use super::*;

    #[test]
    fn the_page_names_each_command() {
        let page = include_str!("PROTOCOL.md");
        let words: Vec<&str> = page.split(|letter: char| !letter.is_alphanumeric()).collect();
        for info in &INDEX.all {
            let name = info.name.to_uppercase();
            assert!(words.contains(&&*name) || info.name == "host:" && page.contains("Host:"), "{name}");
        }
    }

    #[test]
    fn each_command_is_found_by_its_name_in_letters_of_any_size() {
        for (number, row) in COMMANDS.iter().enumerate() {
            assert!(row.info.name.len() <= NAME_BYTES_MAX, "{}", row.info.name);
            assert_eq!(find(row.info.name.as_bytes()), Some(number), "{}", row.info.name);
            assert_eq!(find(row.info.name.to_uppercase().as_bytes()), Some(number));
        }
        for name in ["", "ge", "gett", "a name that is longer than any"] {
            assert_eq!(find(name.as_bytes()), None);
        }
    }

    #[test]
    fn keys_are_found_among_the_arguments() {
        let keys = |arguments: &[&'static [u8]]| {
            let number = find(arguments[0]).unwrap_or_default();
            COMMANDS[number].info.keys.keys(Arguments(arguments)).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(keys(&[b"get", b"a"]), [b"a"]);
        assert_eq!(keys(&[b"set", b"a", b"b", b"nx"]), [b"a"]);
        assert_eq!(keys(&[b"mget", b"a", b"b"]), [b"a", b"b"]);
        assert_eq!(keys(&[b"mset", b"a", b"1", b"b", b"2"]), [b"a", b"b"]);
        assert!(keys(&[b"ping", b"a"]).is_empty());
        assert_eq!(keys(&[b"evalsha", b"digest", b"2", b"a", b"b", b"c"]), [b"a", b"b"]);
        for count in [&b"0"[..], b"-1", b"4", b"x"] {
            assert!(keys(&[b"eval", b"text", count, b"a", b"b", b"c"]).is_empty());
        }
    }
}
