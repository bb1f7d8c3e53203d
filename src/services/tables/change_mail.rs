//! Changes on their way from the publisher to workers that own subscribers of their own.
//!
//! ```text
//! worker: select ─► topics ──► publisher: a change of such a table ─► a batch, which all workers share ─► their mail
//!         └─► the tables: hold the audience ─► it has begun ─────────────────► behind the batch ─────────► their mail
//! ```
//! The publisher waits for no worker. A worker that leaves too much untaken (`net/mail.rs`) gets no further changes until
//! it notices the loss ([`ChangeInbox::take_loss`]). Then it closes the subscribers that have missed changes.
//!
//! This module knows no subscriber and encodes nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::feed::Cause;
use crate::lock::Mutex;
use crate::net::budget::Budget;
use crate::net::mail::{MailReceiver, MailSender, MailSize, mail};
use crate::net::sockets::WakeSignal;
use crate::tables::{AnnouncedChange, AudienceHold, AudienceKind, Batch, TopicCounts};

/// Bytes of a batch at which it is handed over, also in the middle of a drain.
const BATCH_BYTES: usize = 128 << 10;

/// A change of an element, for subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MailedChange<'b> {
    /// The name of the table.
    pub(crate) table: &'b [u8],
    pub(crate) key: &'b [u8],
    pub(crate) cause: Cause,
    /// As [`AnnouncedChange::sets_deadline`].
    pub(crate) sets_deadline: bool,
    /// As [`AnnouncedChange::is_in_order`].
    pub(crate) is_in_order: bool,
}

/// A change of a batch. Its bytes are the name of the table and the key.
#[derive(Clone, Copy, Debug)]
struct ChangeParts {
    table_bytes: u16,
    key_bytes: u16,
    cause: Cause,
    sets_deadline: bool,
    is_in_order: bool,
}

/// A place in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchPlace {
    change: usize,
    /// Where its bytes begin.
    byte: usize,
}

/// Changes that were drained together, in their order.
#[derive(Debug, Default)]
pub(crate) struct ChangeBatch {
    bytes: Vec<u8>,
    changes: Vec<ChangeParts>,
}

impl ChangeBatch {
    pub(crate) fn push(&mut self, change: MailedChange<'_>) {
        let MailedChange { table, key, cause, sets_deadline, is_in_order } = change;
        let [table_bytes, key_bytes] = [table, key].map(|bytes| u16::try_from(bytes.len()).unwrap_or(u16::MAX));
        self.bytes.extend_from_slice(table);
        self.bytes.extend_from_slice(key);
        self.changes.push(ChangeParts { table_bytes, key_bytes, cause, sets_deadline, is_in_order });
    }

    /// The change at a place, and the next place.
    pub(crate) fn at(&self, place: BatchPlace) -> Option<(MailedChange<'_>, BatchPlace)> {
        let ChangeParts { table_bytes, key_bytes, cause, sets_deadline, is_in_order } =
            *self.changes.get(place.change)?;
        let rest = self.bytes.get(place.byte..)?;
        let (table, behind) = rest.split_at_checked(table_bytes.into())?;
        let (key, behind) = behind.split_at_checked(key_bytes.into())?;
        let next = BatchPlace { change: place.change + 1, byte: self.bytes.len() - behind.len() };
        Some((MailedChange { table, key, cause, sets_deadline, is_in_order }, next))
    }

    /// The bytes and changes of the batch. If several workers share the batch, each worker's mail counts all of them.
    fn size(&self) -> MailSize {
        let parts = self.changes.capacity() * size_of::<ChangeParts>();
        MailSize { bytes: size_of::<Self>() + self.bytes.capacity() + parts, items: self.changes.len() }
    }
}

/// What the publisher sends to a worker.
#[derive(Debug)]
pub(crate) enum ChangeMail {
    Changes(Arc<ChangeBatch>),
    /// The audiences of a selection have begun. All that was committed before it was made has been sent.
    Begun(u64),
}

/// What a worker and the publisher share.
#[derive(Debug, Default)]
struct MailState {
    /// The topics that the worker selects. Written by the worker.
    topics: Mutex<TopicCounts>,
    /// Whether there are topics. Written with them, read by the publisher.
    has_topics: AtomicBool,
    /// The numbers of the selections that have begun in this drain. The publisher alone uses it.
    begun: Mutex<Vec<u64>>,
}

impl MailState {
    fn change_topics(&self, change: impl FnOnce(&mut TopicCounts)) {
        let mut topics = self.topics.lock();
        change(&mut topics);
        // Relaxed: the publisher begins the audience of a new topic after the lock of the audiences, which orders it.
        self.has_topics.store(!topics.is_empty(), Ordering::Relaxed);
    }
}

// ------------------------------------------------------------------------------------------------------------- worker

/// The tables that a subscription may match, as [`Audience::begin`](crate::tables::Audience::begin) takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelectedTables {
    pub(crate) topics: Vec<Box<[u8]>>,
    pub(crate) kind: AudienceKind,
}

/// A worker's end: the changes of the tables that it selects come here.
#[derive(Debug)]
pub(crate) struct ChangeInbox {
    mail: MailReceiver<ChangeMail>,
    state: Arc<MailState>,
}

/// Keeps changes coming until it is dropped.
pub(crate) struct ChangeSelection {
    tables: SelectedTables,
    state: Arc<MailState>,
    _holds: Vec<AudienceHold>,
}

impl fmt::Debug for ChangeSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeSelection").field("tables", &self.tables).finish_non_exhaustive()
    }
}

impl ChangeSelection {
    /// What it selects.
    pub(crate) fn tables(&self) -> &SelectedTables {
        &self.tables
    }
}

impl Drop for ChangeSelection {
    fn drop(&mut self) {
        let selected = &self.tables.topics;
        self.state.change_topics(|topics| {
            for topic in selected {
                topics.remove(topic);
            }
        });
    }
}

/// Counts down the audiences of several selections that have not begun.
#[derive(Debug)]
pub(crate) struct BeginCount {
    /// The number of the mail that says so.
    number: u64,
    left: AtomicUsize,
}

impl BeginCount {
    /// All selections that are made with it have begun when [`ChangeMail::Begun`] comes with this number.
    pub(crate) fn new<'s>(number: u64, selected: impl Iterator<Item = &'s SelectedTables>) -> Arc<Self> {
        Arc::new(Self { number, left: AtomicUsize::new(selected.map(|tables| tables.topics.len()).sum()) })
    }
}

impl ChangeInbox {
    /// The ends of a worker that this signal wakes, and of the publisher. So many workers share the budget.
    pub(crate) fn new(wake_signal: &WakeSignal, budget: &Arc<Budget>, workers: usize) -> (Self, WorkerMail) {
        let (sender, mail) = mail(wake_signal, budget, workers);
        let state = Arc::<MailState>::default();
        let of_publisher = WorkerMail { sender, state: Arc::clone(&state), is_concerned: false };
        (Self { mail, state }, of_publisher)
    }

    /// Selects tables: their changes come from when the last selection with this count has begun.
    pub(crate) fn select(
        &self,
        batch: &Batch<'_>,
        tables: &SelectedTables,
        count: &Arc<BeginCount>,
    ) -> ChangeSelection {
        // The publisher knows the topics before it begins their audiences.
        self.state.change_topics(|topics| tables.topics.iter().for_each(|topic| topics.add(topic)));
        let hold = |topic: &[u8]| {
            let (count, state) = (Arc::clone(count), Arc::clone(&self.state));
            let begun = move || {
                // Relaxed: the publisher alone counts.
                if count.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    state.begun.lock().push(count.number);
                }
            };
            batch.hold_audience(topic, tables.kind, Box::new(begun))
        };
        let holds = tables.topics.iter().map(|topic| hold(topic)).collect();
        ChangeSelection { tables: tables.clone(), state: Arc::clone(&self.state), _holds: holds }
    }

    /// The next mail.
    pub(crate) fn next(&self) -> Option<ChangeMail> {
        self.mail.next()
    }

    /// Whether there is mail.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.has_mail()
    }

    /// Whether changes were lost since the last call. All selections of before have missed some then.
    pub(crate) fn take_loss(&self) -> bool {
        self.mail.take_loss()
    }
}

// ---------------------------------------------------------------------------------------------------------- publisher

/// The publisher's end for a worker.
#[derive(Debug)]
pub(crate) struct WorkerMail {
    sender: MailSender<ChangeMail>,
    state: Arc<MailState>,
    /// A change of the present batch concerns the worker.
    is_concerned: bool,
}

impl WorkerMail {
    /// Whether the worker has selected a table, of which this is the name and a NUL. The publisher does not wait while the
    /// worker changes its topics: then the worker may get changes for nothing.
    fn selects(&self, table: &[u8]) -> bool {
        // Relaxed: see `MailState::change_topics`.
        self.state.has_topics.load(Ordering::Relaxed)
            && self.state.topics.try_lock().is_none_or(|topics| topics.touches(table))
    }
}

/// The publisher's part: it collects the changes of a drain, and hands them over.
#[derive(Debug, Default)]
pub(super) struct ChangeMailer {
    workers: Vec<WorkerMail>,
    batch: ChangeBatch,
    /// The table of the last change, as a topic, and the numbers of the workers that select it.
    last: (Vec<u8>, Vec<usize>),
}

impl ChangeMailer {
    pub(super) fn new(workers: Vec<WorkerMail>) -> Self {
        Self { workers, ..Self::default() }
    }

    /// A few changes follow. The publisher holds no guard now.
    pub(super) fn begin(&mut self) {
        // What a worker selects may be other tables by now.
        self.last.0.clear();
        if self.batch.bytes.len() >= BATCH_BYTES {
            self.hand_over_batch();
        }
    }

    pub(super) fn announce(&mut self, change: &AnnouncedChange<'_>) {
        let Self { workers, batch, last: (last, selecting) } = self;
        let AnnouncedChange { table, key, cause, sets_deadline, is_in_order, .. } = *change;
        let table = table.strip_suffix(b"\0").unwrap_or(table);
        if last.strip_suffix(b"\0") != Some(table) {
            last.clear();
            last.extend_from_slice(table);
            last.push(0);
            selecting.clear();
            selecting
                .extend(workers.iter().zip(0..).filter(|(worker, _)| worker.selects(last)).map(|(_, number)| number));
        }
        if selecting.is_empty() {
            return;
        }
        batch.push(MailedChange { table, key, cause, sets_deadline, is_in_order });
        for number in selecting {
            if let Some(worker) = workers.get_mut(*number) {
                worker.is_concerned = true;
            }
        }
    }

    /// Hands over what was collected, and behind it which audiences have begun.
    pub(super) fn hand_over(&mut self) {
        if !self.batch.changes.is_empty() {
            self.hand_over_batch();
        }
        for WorkerMail { sender, state, .. } in &self.workers {
            state.begun.lock().drain(..).for_each(|number| sender.send_always(ChangeMail::Begun(number)));
        }
    }

    fn hand_over_batch(&mut self) {
        let batch = Arc::new(std::mem::take(&mut self.batch));
        for worker in &mut self.workers {
            if std::mem::take(&mut worker.is_concerned) {
                worker.sender.send(ChangeMail::Changes(Arc::clone(&batch)), batch.size());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    fn change<'b>(table: &'b [u8], key: &'b [u8]) -> MailedChange<'b> {
        MailedChange { table, key, cause: Cause::Set, sets_deadline: key.is_empty(), is_in_order: !key.is_empty() }
    }

    #[test]
    fn a_batch_has_its_changes_in_their_order() {
        let changes = [change(b"0", b"key"), change(b"birds", b""), change(b"0", &[7; 4_096])];
        let mut batch = ChangeBatch::default();
        changes.iter().for_each(|change| batch.push(*change));
        let mut place = BatchPlace::default();
        let all = std::iter::from_fn(|| {
            let change;
            (change, place) = batch.at(place)?;
            Some(change)
        });
        assert_eq!(all.collect::<Vec<_>>(), changes);
    }

    #[test]
    fn a_batch_counts_with_all_its_changes() {
        let mut batch = ChangeBatch::default();
        (0..100).for_each(|_| batch.push(change(b"0", &[7; 4_096])));
        let MailSize { bytes, items } = batch.size();
        assert!(items == 100 && bytes > 100 * 4_096, "{bytes}");
    }
}
