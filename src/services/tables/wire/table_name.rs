//! The name of a table: its spelling, and the form by which tables are distinguished. And what a new table is asked to be.

use crate::tables::Durability;

/// The name of a table as it was spelt: `tab` and `tab\0` are one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableName<'m> {
    spelling: &'m [u8],
}

impl<'m> TableName<'m> {
    /// A name as a client spells it. Only the server checks whether the name is valid.
    #[must_use]
    pub const fn spelt(spelling: &'m [u8]) -> Self {
        Self { spelling }
    }

    /// The name exactly as the client gave it. Notifications and LIST_TABLES show this form.
    #[must_use]
    pub const fn spelling(self) -> &'m [u8] {
        self.spelling
    }

    /// The name without the NUL that may end it. Tables are distinguished by this form.
    #[must_use]
    pub fn name(self) -> &'m [u8] {
        self.spelling.strip_suffix(b"\0").unwrap_or(self.spelling)
    }
}

/// How CREATE_TABLE wants its table. The discriminant is the byte on the wire. The server refuses every other byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TableOptions {
    /// In memory. When the memory is full, its elements stay.
    InMemory = 0,
    /// On disk within `--durable-interval`.
    Soon = 1,
    /// On disk before it is answered, seen or announced.
    Always = 2,
    /// In memory. When the memory is full, elements may be evicted.
    MayEvict = 3,
}

impl TableOptions {
    /// All of them by their byte.
    pub const ALL: [Self; 4] = [Self::InMemory, Self::Soon, Self::Always, Self::MayEvict];

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The options of a frame, if it names some.
    #[must_use]
    pub fn decode(frame: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|options| *frame == [options.code()])
    }
}

impl From<Durability> for TableOptions {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::None => Self::InMemory,
            Durability::Soon => Self::Soon,
            Durability::Always => Self::Always,
        }
    }
}
