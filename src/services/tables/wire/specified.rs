//! The commands as `PROTOCOL.md` specifies them. Tests compare the code with this reading, so that a mistake in the list
//! of `request.rs` is found unless the page has it too. The page is also what the Python tests read.

use super::Command;
use crate::security::Access;

/// The page of the protocol.
const PAGE: &str = include_str!("../PROTOCOL.md");
const README: &str = include_str!("../../../../README.md");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::services::tables) enum SpecifiedField {
    Table,
    Key,
    Value,
    Ttl,
    TtlOrEmpty,
    Version,
    Delta,
    Cursor,
    Count,
    Fields,
    Options,
    DurabilityByte,
}

use SpecifiedField::{
    Count, Cursor, Delta, DurabilityByte, Fields, Key, Options, Table, Ttl, TtlOrEmpty, Value, Version,
};

impl SpecifiedField {
    fn named(name: &str) -> Self {
        match name {
            "table" => Table,
            "key" | "prefix" => Key,
            "value" => Value,
            "ttl" => Ttl,
            "ttl-or-empty" => TtlOrEmpty,
            "version" | "epoch" | "incarnation" | "sequence" => Version,
            "delta" => Delta,
            "cursor" => Cursor,
            "count" => Count,
            "fields" => Fields,
            "options" => Options,
            "durability" => DurabilityByte,
            _ => panic!("what is a {name}?"),
        }
    }

    /// A frame that is right.
    pub(in crate::services::tables) fn good(self) -> Vec<u8> {
        match self {
            Table => b"tab".to_vec(),
            Key => b"key".to_vec(),
            Value => b"val".to_vec(),
            TtlOrEmpty | Cursor => Vec::new(),
            Ttl | Version | Delta | Count => vec![0, 0, 0, 0, 0, 0, 0, 1],
            Fields | Options | DurabilityByte => vec![0],
        }
    }
}

/// A row of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::services::tables) struct SpecifiedCommand {
    pub(in crate::services::tables) code: u8,
    name: &'static str,
    arguments: &'static str,
    /// The fields that come once.
    pub(super) once: Vec<SpecifiedField>,
    /// A field that may come after them.
    pub(super) optional: Option<SpecifiedField>,
    /// The fields that come 1–1024 times at the end.
    pub(super) repeated: Vec<SpecifiedField>,
    pub(in crate::services::tables) access: Option<Access>,
}

impl SpecifiedCommand {
    /// The commands by their code.
    pub(in crate::services::tables) fn all() -> Vec<Self> {
        let table = PAGE.split_once("\n| code | command |").unwrap().1;
        table.lines().skip(2).take_while(|line| line.starts_with('|')).map(Self::of_row).collect()
    }

    pub(in crate::services::tables) fn of(command: Command) -> Self {
        let row = Self::all().into_iter().find(|row| row.code == command.code());
        row.unwrap_or_else(|| panic!("PROTOCOL.md has no row for {command:?}"))
    }

    fn of_row(line: &'static str) -> Self {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[_, code, name, arguments, access, _, _, _] = &cells[..] else { panic!("{line}") };
        let (mut once, mut optional, mut repeated) = (Vec::new(), None, Vec::new());
        for word in arguments.split_inclusive(['…', ']', ')', ' ']).map(str::trim).filter(|word| !word.is_empty()) {
            let field = |name: &str| SpecifiedField::named(name.trim_matches(['(', ')', '[', ']', '…']));
            match word {
                "…" => {}
                word if word.starts_with('[') => optional = Some(field(word)),
                word if word.ends_with(['…', ')']) || word.starts_with('(') => repeated.push(field(word)),
                word => once.push(field(word)),
            }
        }
        let access = match access {
            "" => None,
            "read" => Some(Access::Read),
            "write" => Some(Access::Write),
            "admin" => Some(Access::Admin),
            _ => panic!("{line}"),
        };
        Self { code: code.parse().unwrap(), name, arguments, once, optional, repeated, access }
    }

    /// The fields of this number of frames, if they can be a request of this command.
    pub(super) fn fields(&self, frames: usize) -> Option<Vec<SpecifiedField>> {
        let mut fields = self.once.clone();
        if frames == self.once.len() + 1 {
            fields.extend(self.optional);
        }
        if !self.repeated.is_empty() {
            let times = frames.saturating_sub(self.once.len()) / self.repeated.len();
            if times == 0 || times > 1024 {
                return None;
            }
            fields.extend(self.repeated.repeat(times));
        }
        (fields.len() == frames).then_some(fields)
    }

    /// The frames of a good request.
    pub(in crate::services::tables) fn body(&self) -> Vec<Vec<u8>> {
        let fields = self.once.iter().chain(&self.repeated);
        [vec![self.code]].into_iter().chain(fields.map(|field| field.good())).collect()
    }
}

#[test]
fn the_page_and_the_readme_list_the_commands_by_their_codes() {
    let specified = SpecifiedCommand::all();
    for (row, command) in specified.iter().zip(Command::ALL) {
        let listed = (command.code(), command.name(), command.access());
        assert_eq!((row.code, row.name, row.access), listed, "PROTOCOL.md and request.rs");
    }
    assert_eq!(specified.len(), Command::COUNT, "rows of PROTOCOL.md and of request.rs");
    let table = README.split_once("\n## Commands of tables\n").unwrap().1.split_once("\n## ").unwrap().0;
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells: Vec<&str> = rows.flat_map(|row| row.trim_matches('|').split('|').map(str::trim)).collect();
    let (cells, []) = cells.as_chunks::<2>() else { panic!("{table}") };
    let in_readme: Vec<_> =
        cells.iter().filter(|cell| **cell != ["", ""]).map(|cell| cell.map(str::to_owned)).collect();
    for (row, cells) in specified.iter().zip(&in_readme) {
        assert_eq!(*cells, [format!("{} {}", row.code, row.name), row.arguments.to_owned()], "README and PROTOCOL.md");
    }
    assert_eq!(in_readme.len(), specified.len(), "commands of README and of PROTOCOL.md");
}

/// The reading itself: a row that was read as less than it says would make the tests weaker.
#[test]
fn the_notation_of_the_page_is_read_in_full() {
    let fields = |command| {
        let row = SpecifiedCommand::of(command);
        (row.once, row.optional, row.repeated)
    };
    assert_eq!(fields(Command::Ping), (vec![], None, vec![]));
    assert_eq!(fields(Command::CreateTable), (vec![Table], Some(Options), vec![]));
    assert_eq!(fields(Command::CompareAndSwap), (vec![Table, Key, Version, Value], Some(Ttl), vec![]));
    assert_eq!(fields(Command::GetMany), (vec![Table], None, vec![Key]));
    assert_eq!(fields(Command::UpdateMany), (vec![Table, TtlOrEmpty], None, vec![Key, Value]));
    assert_eq!(fields(Command::Scan), (vec![Table, Cursor, Count, Fields], Some(Key), vec![]));
    assert_eq!(fields(Command::Changes), (vec![Table, Version, Version, Version], None, vec![]));
}
