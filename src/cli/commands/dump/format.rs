//! The file of a dump. All integers are big-endian, all checksums are XXH3-64.
//!
//! ```text
//! dump    "spindle dump 2\n" head block… end
//! head    block, whose rows are the table's name, and what is       name:u8+bytes durability:u8
//!         on disk of it, if that is known
//! block   length:u32 rows:length×u8 checksum:u64                    1 to BLOCK_BYTES_MAX bytes of whole rows
//! row     key:u16+bytes value:u32+bytes version:u64 deadline:u64     milliseconds since 1970, 0: none
//! end     0:u32 rows:u64 checksum:u64                               the number of rows in the dump
//! ```
//! The seed of a checksum is the number of its block: the head is 0, and the end is counted too. So blocks that are
//! lost, doubled or swapped are found. A file that ends before its end is one whose writer was stopped.
//!
//! An older reader ignores the durability of the table. Format 1 has keys with one byte for their length. It is read, and no
//! longer written.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::byte_reader::ByteReader;
use crate::limits::FRAME_BYTES_MAX;
use crate::tables::Durability;

/// The first bytes of a dump, with the version of its format.
const MAGIC: &[u8] = b"spindle dump 2\n";
/// The first bytes of a dump of format 1.
const MAGIC_OF_1: &[u8] = b"spindle dump 1\n";
const _: () = assert!(MAGIC.len() == MAGIC_OF_1.len());
/// Bytes of the longest block: a page of a scan has about 1 MiB and at least one row. The rows of a longer page are in
/// several.
const BLOCK_BYTES_MAX: usize = FRAME_BYTES_MAX + (2 << 20);

/// The table of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DumpedTable {
    /// As CREATE_TABLE gave it.
    pub(super) name: Vec<u8>,
    /// What was on disk of it. `None`: the dump does not say.
    pub(super) durability: Option<Durability>,
}

/// An element in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DumpRow<'b> {
    /// The key.
    pub(super) key: &'b [u8],
    /// The value.
    pub(super) value: &'b [u8],
    /// The version that it had, which a load into a new table keeps.
    pub(super) version: u64,
    /// Milliseconds since 1970; `None` is without a deadline.
    pub(super) deadline_millis: Option<u64>,
}

impl DumpRow<'_> {
    /// Its bytes in a block.
    const fn bytes(&self) -> usize {
        2 + self.key.len() + 4 + self.value.len() + 2 * size_of::<u64>()
    }
}

/// Why a dump cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum DumpError {
    /// The input cannot be read.
    #[error("cannot read the dump: {0}")]
    Input(#[from] io::Error),
    /// The input begins with other bytes.
    #[error("this is no dump of a table: make one with `spindle dump TABLE > FILE`")]
    NoDump,
    /// The file has bytes behind the end of its dump.
    #[error("bytes follow the end of the dump: load each dump by itself, as it was written")]
    Joined,
    /// The writer was stopped, or the file was cut.
    #[error("the dump ends too early: it was not written to its end, so make it again")]
    Cut,
    /// The bytes are not those that were written.
    #[error("the dump is damaged in its block {0}: use another copy of it")]
    Damaged(u64),
}

/// Writes a dump, block by block.
pub(super) struct DumpWriter<W> {
    output: W,
    blocks: u64,
    rows: u64,
    /// The bytes of the block that is made, kept for its memory.
    block: Vec<u8>,
}

impl<W: Write> DumpWriter<W> {
    /// A writer of the dump of a table. It has written nothing yet.
    ///
    /// # Panics
    /// If the name is longer than that of any table.
    pub(super) fn new(output: W, DumpedTable { name, durability }: &DumpedTable) -> Self {
        let mut block = vec![u8::try_from(name.len()).expect("a name has at most 255 bytes")];
        block.extend(name);
        block.extend(durability.map(|durability| durability as u8));
        Self { output, blocks: 0, rows: 0, block }
    }

    /// Writes rows as one block, or as several if they do not fit one, and before the first one the head.
    ///
    /// # Errors
    /// If the output takes no bytes.
    ///
    /// # Panics
    /// If a key or a value is longer than any server sends.
    pub(super) fn write<'b>(&mut self, rows: impl Iterator<Item = DumpRow<'b>>) -> io::Result<()> {
        self.begin()?;
        for row in rows {
            if !self.block.is_empty() && self.block.len() + row.bytes() > BLOCK_BYTES_MAX {
                self.write_block()?;
            }
            let key_bytes = u16::try_from(row.key.len()).expect("a key has at most 4,096 bytes");
            self.block.extend(key_bytes.to_be_bytes());
            self.block.extend(row.key);
            self.block.extend(length(row.value));
            self.block.extend(row.value);
            self.block.extend(row.version.to_be_bytes());
            self.block.extend(row.deadline_millis.unwrap_or(0).to_be_bytes());
            self.rows += 1;
        }
        if self.block.is_empty() { Ok(()) } else { self.write_block() }
    }

    /// Ends the dump. Returns the number of its rows.
    ///
    /// # Errors
    /// If the output takes no bytes.
    pub(super) fn end(mut self) -> io::Result<u64> {
        self.begin()?;
        let rows = self.rows.to_be_bytes();
        self.output.write_all(&length(&[]))?;
        self.output.write_all(&rows)?;
        self.output.write_all(&xxh3_64_with_seed(&rows, self.blocks).to_be_bytes())?;
        self.output.flush()?;
        Ok(self.rows)
    }

    /// Writes the head, if it is not written yet.
    fn begin(&mut self) -> io::Result<()> {
        if self.blocks > 0 {
            return Ok(());
        }
        self.output.write_all(MAGIC)?;
        self.write_block()
    }

    fn write_block(&mut self) -> io::Result<()> {
        self.output.write_all(&length(&self.block))?;
        self.output.write_all(&self.block)?;
        self.output.write_all(&xxh3_64_with_seed(&self.block, self.blocks).to_be_bytes())?;
        self.block.clear();
        self.blocks += 1;
        Ok(())
    }
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("a page is shorter than 4 GiB").to_be_bytes()
}

/// Reads a dump, block by block.
pub(super) struct DumpReader<R> {
    input: R,
    /// Whether the dump has format 1.
    is_format_1: bool,
    blocks: u64,
    rows: u64,
    block: Vec<u8>,
}

impl<R: Read> DumpReader<R> {
    /// Begins to read a dump. Returns its table too.
    ///
    /// # Errors
    /// [`DumpError`]
    pub(super) fn begin(mut input: R) -> Result<(Self, DumpedTable), DumpError> {
        let mut magic = Vec::new();
        (&mut input).take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        let is_format_1 = magic == MAGIC_OF_1;
        if magic != MAGIC && !is_format_1 {
            return Err(DumpError::NoDump);
        }
        let mut reader = Self { input, is_format_1, blocks: 0, rows: 0, block: Vec::new() };
        if !reader.read_block()? {
            return Err(DumpError::Damaged(0));
        }
        let mut head = ByteReader::new(&reader.block);
        let name = head.run_u8().ok_or(DumpError::Damaged(0))?.to_vec();
        let durability = head.byte().and_then(Durability::of_number);
        Ok((reader, DumpedTable { name, durability }))
    }

    /// The rows of the next block; `None` at the end of the dump.
    ///
    /// # Errors
    /// [`DumpError`]. What was read before is right.
    pub(super) fn next(&mut self) -> Result<Option<Vec<DumpRow<'_>>>, DumpError> {
        if !self.read_block()? {
            return Ok(None);
        }
        let damaged = DumpError::Damaged(self.blocks - 1);
        let mut bytes = ByteReader::new(&self.block);
        let mut rows = Vec::new();
        while !bytes.is_empty() {
            match DumpRow::read(&mut bytes, self.is_format_1) {
                Some(row) => rows.push(row),
                None => return Err(damaged),
            }
        }
        self.rows += rows.len() as u64;
        Ok(Some(rows))
    }

    /// Reads a block, and `false` if it is the end.
    fn read_block(&mut self) -> Result<bool, DumpError> {
        let damaged = DumpError::Damaged(self.blocks);
        let count = u32::from_be_bytes(self.array()?) as usize;
        if count > BLOCK_BYTES_MAX {
            return Err(damaged);
        }
        if count == 0 {
            let rows: [u8; 8] = self.array()?;
            let is_right = u64::from_be_bytes(self.array()?) == xxh3_64_with_seed(&rows, self.blocks);
            return if is_right && u64::from_be_bytes(rows) == self.rows { self.end() } else { Err(damaged) };
        }
        // Read as it comes: a length that is wrong takes no memory.
        self.block.clear();
        (&mut self.input).take(count as u64).read_to_end(&mut self.block)?;
        let checksum = u64::from_be_bytes(self.array()?);
        if checksum != xxh3_64_with_seed(&self.block, self.blocks) {
            return Err(damaged);
        }
        self.blocks += 1;
        Ok(true)
    }

    /// Checks that the input ends where the dump does.
    fn end(&mut self) -> Result<bool, DumpError> {
        let more = (&mut self.input).take(1).read_to_end(&mut Vec::new())?;
        if more == 0 { Ok(false) } else { Err(DumpError::Joined) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DumpError> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(DumpError::Cut),
            Err(error) => Err(error.into()),
        }
    }
}

impl<'b> DumpRow<'b> {
    fn read(bytes: &mut ByteReader<'b>, is_format_1: bool) -> Option<Self> {
        Some(Self {
            key: if is_format_1 { bytes.run_u8() } else { bytes.run_u16_be() }?,
            value: bytes.run_u32_be()?,
            version: bytes.u64_be()?,
            deadline_millis: Some(bytes.u64_be()?).filter(|&millis| millis != 0),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use proptest::prelude::*;

    use super::*;

    type Owned = (Vec<u8>, Vec<u8>, u64, Option<u64>);

    fn row((key, value, version, deadline_millis): &Owned) -> DumpRow<'_> {
        DumpRow { key, value, version: *version, deadline_millis: deadline_millis.filter(|&millis| millis != 0) }
    }

    fn table() -> DumpedTable {
        DumpedTable { name: b"t\0".to_vec(), durability: Some(Durability::Always) }
    }

    fn dump(blocks: &[Vec<Owned>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = DumpWriter::new(&mut bytes, &table());
        for block in blocks {
            writer.write(block.iter().map(row)).unwrap();
        }
        assert_eq!(writer.end().unwrap(), blocks.iter().map(Vec::len).sum::<usize>() as u64);
        bytes
    }

    /// Reads a dump to its end: the rows that came before an error, and the error.
    fn load(bytes: &[u8]) -> (Vec<Owned>, Option<DumpError>) {
        let (mut reader, dumped) = match DumpReader::begin(bytes) {
            Ok(begun) => begun,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let durability = table().durability.filter(|_| !bytes.starts_with(MAGIC_OF_1));
        assert_eq!(dumped, DumpedTable { durability, ..table() });
        let mut rows = Vec::new();
        loop {
            match reader.next() {
                Ok(None) => return (rows, None),
                Ok(Some(block)) => rows.extend(
                    block.iter().map(|row| (row.key.to_vec(), row.value.to_vec(), row.version, row.deadline_millis)),
                ),
                Err(error) => return (rows, Some(error)),
            }
        }
    }

    fn element(number: u64) -> Owned {
        (number.to_be_bytes().to_vec(), vec![7; 20], number, None)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(blocks in proptest::collection::vec(proptest::collection::vec(
            (prop_oneof![9 => proptest::collection::vec(any::<u8>(), 0..65), 1 => proptest::collection::vec(any::<u8>(), 250..4_097)], proptest::collection::vec(any::<u8>(), 0..99),
             any::<u64>(), proptest::option::of(1..u64::MAX)), 0..5), 0..5))
        {
            let (rows, error) = load(&dump(&blocks));
            prop_assert!(error.is_none());
            prop_assert_eq!(rows, blocks.concat());
        }
    }

    #[test]
    fn a_dump_of_format_1_is_read() {
        let row = [&b"\x03ada"[..], b"\0\0\0\x08countess", &7_u64.to_be_bytes(), &9_u64.to_be_bytes()].concat();
        let block = |number: u64, bytes: &[u8]| {
            [&length(bytes)[..], bytes, &xxh3_64_with_seed(bytes, number).to_be_bytes()].concat()
        };
        let rows = 1_u64.to_be_bytes();
        let end = [&length(&[])[..], &rows, &xxh3_64_with_seed(&rows, 2).to_be_bytes()].concat();
        let (rows, error) = load(&[MAGIC_OF_1, &block(0, b"\x02t\0"), &block(1, &row), &end].concat());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(rows, [(b"ada".to_vec(), b"countess".to_vec(), 7, Some(9))]);
    }

    #[test]
    fn each_changed_bit_and_each_cut_is_found() {
        let blocks = [vec![element(1), element(2)], vec![element(3)]];
        let (bytes, whole) = (dump(&blocks), blocks.concat());
        for at in 0..bytes.len() {
            let (rows, error) = load(&bytes[..at]);
            assert!(whole.starts_with(&rows), "cut at {at}");
            assert!(matches!(error, Some(DumpError::NoDump | DumpError::Cut | DumpError::Damaged(_))), "cut at {at}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let (rows, error) = load(&changed);
                assert!(whole.starts_with(&rows), "bit {bit} of {at}");
                assert!(error.is_some(), "bit {bit} of {at}");
            }
        }
    }

    #[test]
    fn blocks_that_are_lost_doubled_or_swapped_are_found() {
        let (first, second) = (dump(&[vec![element(1)]]), dump(&[vec![element(1)], vec![element(2)]]));
        let end = 4 + 8 + 8;
        let head = dump(&[]).len() - end;
        let block = first.len() - head - end;
        let [one, two] = [0, 1].map(|number| second[head + number * block..][..block].to_vec());
        let rest = &second[head + 2 * block..];
        for wrong in [vec![], vec![&one], vec![&two], vec![&two, &one], vec![&one, &one, &two], vec![&one, &one]] {
            let blocks: Vec<u8> = wrong.into_iter().flatten().copied().collect();
            let (rows, error) = load(&[&second[..head], &blocks, rest].concat());
            assert!(matches!(error, Some(DumpError::Damaged(_))), "{rows:?}");
        }
        assert!(load(&second).1.is_none());
    }

    /// The first of two dumps was loaded, and the second was left out without a word.
    #[test]
    fn what_follows_the_end_of_a_dump_is_found() {
        let bytes = dump(&[vec![element(1)]]);
        for behind in [&b"\n"[..], b"\0", b"\0\0\0\0", &bytes] {
            let (rows, error) = load(&[&bytes, behind].concat());
            assert_eq!(rows, [element(1)]);
            assert!(matches!(error, Some(DumpError::Joined)), "{error:?}");
        }
    }

    #[test]
    fn a_length_beyond_all_blocks_is_damage_and_takes_no_memory() {
        let mut bytes = dump(&[]);
        let at = bytes.len() - 20;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(load(&bytes).1, Some(DumpError::Damaged(1))));
    }

    #[test]
    fn rows_that_do_not_fit_one_block_are_in_several() {
        let value = vec![7; 5 << 20];
        let keys: Vec<[u8; 1]> = (0..9).map(|key| [key]).collect();
        let row = |key| DumpRow { key, value: &value, version: 1, deadline_millis: None };
        let mut bytes = Vec::new();
        let mut writer = DumpWriter::new(&mut bytes, &table());
        writer.write(keys.iter().map(|key| row(key))).unwrap();
        writer.end().unwrap();
        let (rows, error) = load(&bytes);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(rows.len(), 9);
    }
}
