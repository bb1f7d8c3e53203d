//! A page of a scan: from the client's cursor to the next one.

use super::{Batch, repin};
use crate::tables::Refusal;
use crate::tables::cursor::{COARSE_BITS, ScanCursor};
use crate::tables::scan::{ScanPage, ScannedElement};

impl Batch<'_> {
    /// Hands the rows of a page to `row`. Returns the cursor of the next page. `None`: this was the last one.
    ///
    /// # Errors
    /// `TableNotFound`, also if the table is deleted meanwhile. `BadCursor` if another life of the table, another start
    /// of the server or no server made the cursor. `row` may then have had some rows.
    pub fn scan<'b>(
        &'b mut self,
        table: &[u8],
        page: &ScanPage<'_>,
        mut row: impl FnMut(ScannedElement<'b>),
    ) -> Result<Option<ScanCursor>, Refusal> {
        // A batch may have many pages. Memory that is retired while one is read can be freed before the next.
        repin(&mut self.guard);
        self.on_elements(table, |ops, table| {
            let cursors = &ops.shared.cursors;
            let generation = table.generation();
            let start = if page.cursor.is_empty() { Some(0) } else { cursors.open(generation, page.cursor) };
            let next = ops.scan(table, page, start.ok_or(Refusal::BadCursor)?, 0, &mut row);
            // After the last look at an element.
            if table.is_closed() {
                // None of its elements is in the life that took its place, so there is no more to return.
                return if table.is_replaced() { Ok(None) } else { Err(Refusal::TableNotFound) };
            }
            Ok(next.map(|position| cursors.seal(generation, position)))
        })
    }

    /// As [`Batch::scan`], for clients whose cursors are numbers below 2^48. The page's own cursor is not looked at. 0
    /// begins and ends a scan. Another number is some place in the table, whoever made it. A scan that began in an older
    /// life of the table goes on in the present one.
    ///
    /// # Errors
    /// `TableNotFound`, also if the table is deleted meanwhile. `row` may then have had some rows.
    pub fn scan_from<'b>(
        &'b mut self,
        table: &[u8],
        page: &ScanPage<'_>,
        cursor: u64,
        mut row: impl FnMut(ScannedElement<'b>),
    ) -> Result<u64, Refusal> {
        repin(&mut self.guard);
        self.on_elements(table, |ops, table| {
            let cursors = &ops.shared.cursors;
            let next = ops.scan(table, page, cursors.position(cursor), COARSE_BITS, &mut row);
            if table.is_closed() && !table.is_replaced() {
                return Err(Refusal::TableNotFound);
            }
            Ok(next.map_or(0, |position| cursors.number(position)))
        })
    }
}
