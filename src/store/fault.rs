//! Faults that the proof plants, to show that it finds each.

/// A fault of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only the proof plants faults"))]
pub(super) enum Fault {
    /// The sync of a file does nothing.
    NoSync,
    /// The sync of a folder does nothing.
    FolderUnsynced,
    /// A segment is removed before the batch that names a later oldest segment is synced.
    RemovedEarly,
    /// A copy is written behind the newer state of its key.
    CopyBehind,
    /// A segment is not synced before the next one begins.
    RotationUnsynced,
    /// The log counts batches behind the last known sync as durable and does not write them again.
    AppendBehindCut,
    /// The first number of a segment does not end the one before.
    EndIgnored,
    /// The marks begin anew.
    MarksForgotten,
    /// A segment ends the one before although its first batch is torn.
    TornFirstCounts,
    /// The cleaner continues although the copies were never written.
    CopiesLost,
    /// A repair names the new segment as the oldest before all copies are on disk.
    RepairNamedEarly,
    /// A segment's number of its first batch is not used: the head of that batch is.
    FirstIgnored,
    /// The log removes segments that are still read.
    ReadersIgnored,
    /// Adds are taken although the log has no room for them.
    AddsUnbounded,
    /// After a repair, and in a backup, the marks stay where they were.
    MarksNotJumped,
    /// An opening does not know the records that were set aside.
    SetAsideForgotten,
    /// Neither the files of a backup nor its folder are synced.
    BackupUnsynced,
    /// A backup is called whole before its files are there.
    BackupNamedEarly,
    /// The note of a backup that is removed goes before its files.
    BackupNoteRemovedEarly,
    /// A repair leaves no note of the files that it has replaced.
    RepairUnnoted,
    /// Before an opening writes another head, it removes the head that records that all earlier batches are synced.
    SyncedHeadRemoved,
    /// A first start notes that the log has a segment before it has one.
    BegunNotedEarly,
    /// A damaged piece of a table takes its batch.
    TableAsOne,
    /// The copy of a batch's head is not read.
    HeadOnce,
    /// The head of a segment is made anew from bytes that may be of another one.
    HeadsDisagree,
    /// The segments are retired although their copies are not written for want of a segment.
    RetiredWithoutRoom,
    /// A segment between others is retired before a head names it.
    GapUnnamed,
    /// The removals in a segment between others are not copied.
    RemovalsForgotten,
    /// The segment before a gap ends where the one behind it begins.
    GapEndIgnored,
    /// A segment that a backup has a link to becomes a spare.
    LinksIgnored,
    /// A segment of effects goes with the epoch in which it was judged.
    SegmentGoneEarly,
}

/// Whether this fault is planted in this thread.
#[cfg(not(test))]
pub(super) const fn planted(_fault: Fault) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(super) fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Plants a fault in this thread, or none.
#[cfg(test)]
pub(super) fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}
