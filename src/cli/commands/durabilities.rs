//! What is on disk of tables, which STATS shows and LIST_TABLES does not.
//!
//! A user without the right to STATS, and a client of an older server, see none.

use std::collections::BTreeMap;

use serde_json::Value;

use super::refusal::failure;
use crate::cli::CommandError;
use crate::cli::flags::tables::durability;
use crate::clients::rust::tables::{Client, Error};
use crate::services::tables::report::printable;
use crate::tables::Durability;

/// What is on disk of tables, by their names as STATS shows them.
#[derive(Debug, Default)]
pub(super) struct Durabilities(BTreeMap<String, Durability>);

impl Durabilities {
    /// Asks a server.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if the server does not answer.
    pub(super) fn of(client: &mut Client) -> Result<Self, CommandError> {
        match client.stats() {
            Err(error @ Error::Disconnected { .. }) => Err(failure(error)),
            stats => Ok(Self::read(&serde_json::from_str(&stats.unwrap_or_default()).unwrap_or_default())),
        }
    }

    fn read(stats: &Value) -> Self {
        let tables = stats["tables"].as_array().into_iter().flatten();
        let shown = tables.filter_map(|table| {
            let word = table["durability"].as_str()?;
            Some((table["name"].as_str()?.to_owned(), durability(word).ok()?))
        });
        Self(shown.collect())
    }

    /// That of the table with this name, exactly as LIST_TABLES has it. `None`: it is not known.
    pub(super) fn get(&self, spelling: &[u8]) -> Option<Durability> {
        self.0.get(&printable(spelling)).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_are_found_by_the_names_that_they_have() {
        let line = |name: &str, durability: &str| json!({ "name": name, "durability": durability, "elements": 1 });
        let tables = [line("users\0", "soon"), line("0xff00", "always"), line("later", "twice")];
        let read = Durabilities::read(&json!({ "tables": tables }));
        let of = |name: &[u8]| read.get(name);
        assert_eq!([of(b"users\0"), of(b"users")], [Some(Durability::Soon), None]);
        assert_eq!([of(b"\xff\0"), of(b"later"), of(b"absent")], [Some(Durability::Always), None, None]);
        assert_eq!(Durabilities::read(&Value::Null).get(b"users"), None);
    }
}
