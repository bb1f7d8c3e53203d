//! SCAN: the rows of a page, in the fields that the client asked for.

use super::HandlerContext;
use crate::services::tables::wire::{EntryRow, MirrorRow, Reply, RowMark, ScanFields, ScanRows};
use crate::tables::{Batch, Refusal, ScanContent, ScanPage, ScanProgress, ScannedElement};

/// The page that a request asks for.
pub(super) struct Page<'p> {
    pub(super) cursor: &'p [u8],
    pub(super) count: u32,
    pub(super) fields: ScanFields,
    pub(super) prefix: &'p [u8],
    pub(super) bytes_max: usize,
}

/// Reads a page.
pub(super) fn scan<'b>(
    batch: &'b mut Batch<'_>,
    table: &[u8],
    page: Page<'_>,
    context: &HandlerContext<'_>,
) -> Result<Reply<'b>, Refusal> {
    let Page { cursor, count, fields, prefix, bytes_max } = page;
    let content = match fields {
        ScanFields::Key => ScanContent::WithoutValues,
        ScanFields::Value | ScanFields::Entry => ScanContent::WithValues,
        ScanFields::Mirror => ScanContent::ForMirror,
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let of = ScanPage { cursor, count, bytes_max, prefix, content };
    let (next, rows) = match fields {
        ScanFields::Key => {
            let mut rows = Vec::new();
            (batch.scan(table, &of, |element| rows.push(element.key))?, ScanRows::Key(rows))
        }
        ScanFields::Value => {
            let mut rows = Vec::new();
            (batch.scan(table, &of, |element| rows.push([element.key, element.value]))?, ScanRows::Value(rows))
        }
        ScanFields::Entry => {
            let mut elements = Vec::new();
            let next = batch.scan(table, &of, |element| elements.push(element))?;
            (next, ScanRows::Entry(entries(&elements, context)))
        }
        ScanFields::Mirror => {
            let mut rows = Vec::new();
            (batch.scan(table, &of, |element| rows.push(mirror_row(element, context)))?, ScanRows::Mirror(rows))
        }
    };
    let next = next.map_or_else(Vec::new, |cursor| cursor.as_bytes().to_vec());
    Ok(Reply::Page { next, rows })
}

/// Rows with the remaining time to live. The clock is read after all of them were seen. So the rest is never more than
/// the time to live that was set, whichever thread set it and however late.
fn entries<'b>(elements: &[ScannedElement<'b>], context: &HandlerContext<'_>) -> Vec<EntryRow<'b>> {
    let now = (context.now)();
    let row = |element: &ScannedElement<'b>| EntryRow {
        key: element.key,
        value: element.value,
        version: element.version,
        remaining_millis: element.deadline.map(|deadline| now.millis_until(deadline)),
    };
    elements.iter().map(row).collect()
}

fn mirror_row<'b>(element: ScannedElement<'b>, context: &HandlerContext<'_>) -> MirrorRow<'b> {
    let mark = match element.progress {
        ScanProgress::Published => RowMark::Published,
        ScanProgress::Ahead => RowMark::Ahead,
        ScanProgress::Deleted => RowMark::Deleted,
    };
    MirrorRow {
        key: element.key,
        value: element.value,
        version: element.version,
        deadline_millis: element.deadline.map(|deadline| context.clock_start + deadline),
        mark,
    }
}
