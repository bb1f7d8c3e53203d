//! SCAN: the elements of a table, page by page.
//!
//! ```text
//! cursor ─► position ─► bucket by bucket (`index/walk.rs`) ─► each slot ─► row ─► the page is full ─► next cursor
//! ```
//! # What a scan shows
//!
//! - **An element that is there from the first page to the last is shown at least once.** The walk goes up positions
//!   that no split, move, insertion or deletion changes, and meets its slot. An element that comes or goes meanwhile
//!   may be shown.
//! - **Each row is the state of its element at one moment** between the request and the reply, as with GET. The page as
//!   a whole is not of one moment.
//! - **No row is of an element whose deadline has passed** by this thread's clock, except for a mirror. The first thread
//!   to see a deadline pass marks the entry, as GET does (`lookup.rs`).
//! - **No page is of a table that is being taken down.** The caller asks at the end of the page whether the table is
//!   open. If it is, no slot that the page has read was sealed by the reaper: see `Table::is_closed`.
//!
//! # Bounds
//!
//! A page ends after so many elements, so many buckets or so many bytes, whichever comes first. It has one row at
//! least before it ends for its bytes. Elements of one position stay together, so that each page gets further.

use super::lookup::mark;
use super::ops::Ops;
use super::slot::{Announced, EntryRef, NEVER, SeenWord, SlotRef, SlotState};
use super::table::Table;
use crate::limits::SCAN_BUCKETS_MIN;

/// Bytes of a row on the wire beside its key and its value: two numbers, a mark, and the heads of the frames.
const ROW_BYTES: usize = 32;

/// The page that a client asks for.
#[derive(Clone, Copy, Debug)]
pub struct ScanPage<'p> {
    /// The cursor of the page before. Empty: the first page.
    pub cursor: &'p [u8],
    /// The number of elements to look at, at least 1.
    pub count: usize,
    /// The bytes of the rows after which the page ends.
    pub bytes_max: usize,
    /// The beginning of the keys to be shown.
    pub prefix: &'p [u8],
    /// What is shown of each element.
    pub content: ScanContent,
}

/// What a scan shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanContent {
    /// Elements, whose values the client does not need.
    WithoutValues,
    /// Elements with their values.
    WithValues,
    /// Elements with their values for a mirror: until their expiry is committed, and after their deletion until it is
    /// announced.
    ForMirror,
}

/// A row of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedElement<'b> {
    /// The key.
    pub key: &'b [u8],
    /// The value. Empty: deleted, or an empty value.
    pub value: &'b [u8],
    /// The version: of the deletion if it is deleted.
    pub version: u64,
    /// The deadline, in milliseconds since the server started. `None`: no deadline.
    pub deadline: Option<u64>,
    /// Whether the version was published. It is asked before the element is read.
    pub progress: ScanProgress,
}

/// Whether the version of the element in a row was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanProgress {
    /// This version was published last.
    Published,
    /// This version has not been published yet.
    Ahead,
    /// The element is deleted, and its deletion has not been published yet.
    Deleted,
}

/// What a page shows of a slot, for tables that are always on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanRead {
    /// This state was published, so it is on disk.
    Published,
    /// This state was not published yet.
    Ahead,
    /// The deadline of the element has passed, and its expiry is not committed.
    Overdue,
}

impl ScanProgress {
    /// Whether this version was published. `announced` was read before the version was.
    fn of(announced: Announced, version: u64) -> Self {
        if announced.is(version) { Self::Published } else { Self::Ahead }
    }
}

impl<'h> ScannedElement<'h> {
    fn live(slot: SlotRef<'h>, entry: EntryRef<'h>, progress: ScanProgress) -> Self {
        let deadline = entry.deadline();
        Self {
            key: slot.key(),
            value: entry.value(),
            version: entry.version(),
            deadline: (deadline != NEVER).then_some(deadline),
            progress,
        }
    }
}

impl<'h> Ops<'h> {
    /// Hands the rows from `position` on to `row`, until the page is full. Returns the position of the next page, in
    /// which the lowest `coarse` bits are 0. `None`: the table has no more.
    pub(super) fn scan(
        &mut self,
        table: &Table,
        page: &ScanPage<'_>,
        position: u64,
        coarse: u32,
        row: &mut dyn FnMut(ScannedElement<'h>),
    ) -> Option<u64> {
        let next = self.scan_elements(table, page, position, coarse, row);
        if table.is_always() {
            self.effects.await_life(table);
        }
        next
    }

    fn scan_elements(
        &mut self,
        table: &Table,
        page: &ScanPage<'_>,
        mut position: u64,
        coarse: u32,
        row: &mut dyn FnMut(ScannedElement<'h>),
    ) -> Option<u64> {
        let walk = table.index().walk(self.guard);
        let mut slots = Vec::new();
        let (mut looks, mut buckets, mut rows, mut bytes) = (0, 0, 0, 0);
        let buckets_max = (page.count / 4).max(SCAN_BUCKETS_MIN);
        loop {
            let next = walk.read(position, self.guard, |key| table.hash(key), &mut slots);
            let mut before = None;
            for (at, slot) in &slots {
                let place = *at >> coarse;
                let may_end = before.replace(place) != Some(place);
                if looks >= page.count && may_end {
                    return Some(place << coarse);
                }
                looks += 1;
                if !slot.key().starts_with(page.prefix) {
                    continue;
                }
                let Some(element) = self.scanned(table, *slot, page.content) else { continue };
                let value = if page.content == ScanContent::WithoutValues { 0 } else { element.value.len() };
                bytes += element.key.len() + value + ROW_BYTES;
                if bytes > page.bytes_max && rows > 0 && may_end {
                    return Some(place << coarse);
                }
                rows += 1;
                row(element);
            }
            position = next?;
            buckets += 1;
            if looks >= page.count || bytes >= page.bytes_max || buckets >= buckets_max {
                return Some(position);
            }
        }
    }

    /// The progress of the slot by the versions that the feed has published, and the word. `None`: there is no feed.
    ///
    /// A version may be published before its turn to be announced. The feed then knows the published version, as long as
    /// the announced version is lower. The lock makes this thread wait for the end of the publisher's batch. So if the
    /// feed knows no version here, the announced version that is read afterwards is at least the published version of
    /// that moment. The word is read last. If its version is one of the two, it was published before this moment, and the
    /// feed's state that a client asks for later has its sequence.
    fn judged_by_the_feed(&self, slot: SlotRef<'h>) -> Option<(ScanProgress, SeenWord<'h>)> {
        let ahead = self.shared.feed.as_ref()?.log().published_ahead(slot.address());
        let announced = slot.announced();
        let seen = slot.load(self.guard);
        let progress = if ahead == Some(seen.version()) {
            ScanProgress::Published
        } else {
            ScanProgress::of(announced, seen.version())
        };
        Some((progress, seen))
    }

    /// The page shows what was read in a slot. If the table is always on disk, and this state is not, the answer waits.
    fn await_read(&mut self, table: &Table, read: ScanRead) {
        match read {
            _ if !table.is_always() => {}
            ScanRead::Published => {}
            ScanRead::Ahead => self.effects.await_changes(table),
            ScanRead::Overdue => self.effects.await_expiry(table),
        }
    }

    /// The row of the element in this slot, if it has one.
    fn scanned(&mut self, table: &Table, mut slot: SlotRef<'h>, content: ScanContent) -> Option<ScannedElement<'h>> {
        loop {
            // Before the word: if the version that is read afterwards is the announced one, it was published before this
            // moment.
            let announced = slot.announced();
            let mut seen = slot.load(self.guard);
            // Without an audience nothing is published, and no change of the element is on the way.
            let mut progress = match seen.is_quiet() {
                true => ScanProgress::Published,
                false => ScanProgress::of(announced, seen.version()),
            };
            if progress == ScanProgress::Ahead && content == ScanContent::ForMirror {
                (progress, seen) = self.judged_by_the_feed(slot).unwrap_or((progress, seen));
            }
            let read = if progress == ScanProgress::Published { ScanRead::Published } else { ScanRead::Ahead };
            match seen.state() {
                SlotState::Live(entry) | SlotState::Expired(entry) if content == ScanContent::ForMirror => {
                    self.await_read(table, read);
                    return Some(ScannedElement::live(slot, entry, progress));
                }
                SlotState::Live(entry) if entry.deadline() > self.now.millis() => {
                    self.await_read(table, read);
                    return Some(ScannedElement::live(slot, entry, progress));
                }
                // The word has changed since the look, perhaps to a new element.
                SlotState::Live(_) if !mark(slot, seen) => {}
                SlotState::Live(_) | SlotState::Expired(_) => {
                    self.await_read(table, ScanRead::Overdue);
                    return None;
                }
                SlotState::Absent(version) => {
                    self.await_read(table, read);
                    let is_shown = content == ScanContent::ForMirror && progress == ScanProgress::Ahead;
                    let progress = ScanProgress::Deleted;
                    let row = ScannedElement { key: slot.key(), value: &[], version, deadline: None, progress };
                    return is_shown.then_some(row);
                }
                SlotState::Dead(_) => return None,
                SlotState::Moved(_) => slot = table.find_moved(table.hash(slot.key()), slot.key(), self.guard)?,
            }
        }
    }
}
