//! Mail to a thread for which nobody waits. What is beyond a bound is lost, and the thread learns of the loss.
//!
//! ```text
//! send: bytes and items within the bound? ─► the queue ─► the thread: next
//!           └─► no: a loss, and nothing is sent until the thread has noticed it: take_loss
//! ```
//! The bytes count in a budget until the thread takes them. This module does not know what is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam::channel::Receiver;

use super::budget::Budget;
use super::sockets::{WakeSignal, WakingSender};
use crate::limits::PUBLISH_HWM_DEFAULT;

/// Bytes of one kind of mail that may wait for a thread: it takes as many within a second.
const MAIL_BYTES_MAX: usize = 64 << 20;
/// Items of one kind of mail that may wait for a thread: as many as a subscriber may fall behind.
const MAIL_ITEMS_MAX: usize = PUBLISH_HWM_DEFAULT as usize;

/// What mail takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MailSize {
    pub(crate) bytes: usize,
    pub(crate) items: usize,
}

/// What a sender and the thread share.
#[derive(Debug)]
struct MailState {
    budget: Arc<Budget>,
    /// The most that may wait.
    most: MailSize,
    /// Bytes that wait. Senders add, the thread subtracts.
    bytes: AtomicUsize,
    /// Items that wait. Senders add, the thread subtracts.
    items: AtomicUsize,
    /// Something was not sent. Set by senders, taken by the thread.
    has_lost: AtomicBool,
}

impl MailState {
    /// Counts mail as waiting, if there is room. Mail that would wait alone always has room.
    fn take_in(&self, size: MailSize) -> bool {
        // Relaxed, all: bounds, which nothing else depends on.
        let bytes = self.bytes.fetch_add(size.bytes, Ordering::Relaxed);
        let items = self.items.fetch_add(size.items, Ordering::Relaxed);
        let has_room = items == 0 || (bytes + size.bytes <= self.most.bytes && items + size.items <= self.most.items);
        if has_room {
            self.budget.change(0, size.bytes as u64);
        } else {
            self.bytes.fetch_sub(size.bytes, Ordering::Relaxed);
            self.items.fetch_sub(size.items, Ordering::Relaxed);
        }
        has_room
    }

    fn let_go(&self, size: MailSize) {
        // Relaxed, both: see `take_in`.
        self.bytes.fetch_sub(size.bytes, Ordering::Relaxed);
        self.items.fetch_sub(size.items, Ordering::Relaxed);
        self.budget.change(size.bytes as u64, 0);
    }
}

#[derive(Debug)]
struct Mailed<T> {
    item: T,
    size: MailSize,
}

/// The senders' end.
#[derive(Debug)]
pub(crate) struct MailSender<T> {
    sender: WakingSender<Mailed<T>>,
    state: Arc<MailState>,
}

/// The thread's end.
#[derive(Debug)]
pub(crate) struct MailReceiver<T> {
    mail: Receiver<Mailed<T>>,
    state: Arc<MailState>,
}

/// Mail to the thread that this signal wakes. So many threads share the budget, and each has two kinds of mail: all mail
/// together takes at most half of the budget.
pub(crate) fn mail<T>(
    wake_signal: &WakeSignal,
    budget: &Arc<Budget>,
    threads: usize,
) -> (MailSender<T>, MailReceiver<T>) {
    let share = budget.most() / 4 / threads.max(1) as u64;
    let bytes = usize::try_from(share).unwrap_or(usize::MAX).min(MAIL_BYTES_MAX);
    let most = MailSize { bytes, items: MAIL_ITEMS_MAX };
    let [bytes, items] = [const { AtomicUsize::new(0) }; 2];
    let state = MailState { budget: Arc::clone(budget), most, bytes, items, has_lost: AtomicBool::new(false) };
    let (state, (sender, mail)) = (Arc::new(state), WakingSender::new(wake_signal));
    (MailSender { sender, state: Arc::clone(&state) }, MailReceiver { mail, state })
}

impl<T> MailSender<T> {
    /// Sends mail, unless some was lost and the thread has not noticed it. Returns whether it was sent.
    pub(crate) fn send(&self, item: T, size: MailSize) -> bool {
        let state = &self.state;
        // Relaxed, both: the flag carries no other data. Senders drop mail until the thread has noticed the loss.
        if state.has_lost.load(Ordering::Relaxed) {
            return false;
        }
        if !state.take_in(size) {
            state.has_lost.store(true, Ordering::Relaxed);
            return false;
        }
        self.sender.send(Mailed { item, size });
        true
    }

    /// Sends mail that is never lost, and takes no room.
    pub(crate) fn send_always(&self, item: T) {
        self.sender.send(Mailed { item, size: MailSize::default() });
    }
}

impl<T> MailReceiver<T> {
    /// The next mail.
    pub(crate) fn next(&self) -> Option<T> {
        let Mailed { item, size } = self.mail.try_recv().ok()?;
        self.state.let_go(size);
        Some(item)
    }

    /// Whether there is mail.
    pub(crate) fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    /// Whether mail was lost since the last call. Then nothing was sent behind the loss until now.
    pub(crate) fn take_loss(&self) -> bool {
        // Relaxed, both: see `send`.
        self.state.has_lost.load(Ordering::Relaxed) && self.state.has_lost.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    fn rig(bytes: u64) -> (MailSender<u32>, MailReceiver<u32>, Arc<Budget>) {
        let budget = Budget::new(bytes);
        let (sender, receiver) = mail(&WakeSignal::new().unwrap(), &budget, 1);
        (sender, receiver, budget)
    }

    fn sent(sender: &MailSender<u32>, item: u32, bytes: usize, items: usize) -> bool {
        sender.send(item, MailSize { bytes, items })
    }

    #[test]
    fn what_waits_counts_in_the_budget_and_what_is_beyond_the_bound_is_lost() {
        let (sender, receiver, budget) = rig(4_000);
        assert!(sent(&sender, 1, 600, 1) && sent(&sender, 2, 400, 1));
        assert_eq!(budget.held(), 1_000);
        assert!(!receiver.take_loss());
        assert!(!sent(&sender, 3, 1, 1));
        assert_eq!((receiver.next(), receiver.next(), receiver.next()), (Some(1), Some(2), None));
        assert_eq!(budget.held(), 0);
        assert!(!sent(&sender, 4, 1, 1), "nothing is sent behind a loss");
        sender.send_always(5);
        assert!(receiver.take_loss() && !receiver.take_loss());
        assert!(sent(&sender, 6, 1, 1));
        assert_eq!((receiver.next(), receiver.next(), receiver.has_mail()), (Some(5), Some(6), false));
    }

    #[test]
    fn mail_that_waits_alone_may_be_larger_than_the_bound() {
        let (sender, receiver, budget) = rig(4_000);
        assert!(sent(&sender, 1, 5_000, 1) && !sent(&sender, 2, 1, 1));
        assert_eq!((receiver.next(), budget.held()), (Some(1), 0));
        assert!(receiver.take_loss());
        assert!(sent(&sender, 3, 5_000, 1));
    }

    #[test]
    fn little_mail_is_bounded_by_its_number() {
        let (sender, receiver, _) = rig(u64::MAX);
        assert!(sent(&sender, 1, 1, MAIL_ITEMS_MAX - 1) && sent(&sender, 2, 1, 1));
        assert!(!sent(&sender, 3, 1, 1) && receiver.take_loss());
    }
}
