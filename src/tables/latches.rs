//! The latches of all names: their holders, the claims that wait, and the sessions that have met them.
//!
//! ```text
//! claim ─► waits for earlier claims of its names, and for the turns that are owed ─► set ─► drained ─► held ─► released
//!                                       ▲                                                                        │
//!                   repaid, after a batch ◄── owed a turn ◄── met the latch, its request is Busy ◄───────────────┘
//! ```
//! - **Order.** Claims of the same name are set in the order in which they came, all names of a claim at once. So no two
//!   sessions wait for each other.
//! - **Fairness.** A session whose request has met a latch is owed a turn when the latch is released. The name is latched
//!   again only when the session has repaid it: each request that waited has then had a batch.
//!
//! The lock is held for a few steps, by those who take, release or meet a latch. Without a latch nobody takes it. `latch.rs`
//! has the races between a latch and a batch. This file looks at no element and waits for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::latch::{BatchWord, Drain, Edition};
use super::sleeper::Sleeper;
use crate::lock::{Mutex, MutexGuard};

/// All latches, and the edition of the catalog, which shows whether there is one.
pub(super) struct Latches {
    pub(super) edition: Edition,
    /// A bit for each latched name: its place follows from the name. Written under the lock of `queue`.
    filter: AtomicU64,
    queue: Mutex<LatchQueue>,
}

#[derive(Default)]
struct LatchQueue {
    /// The number of the last session.
    last: u64,
    sessions: Vec<SessionWord>,
    /// In the order in which they came.
    claims: Vec<Claim>,
    met: Vec<MetLatch>,
}

struct SessionWord {
    session: u64,
    word: Arc<BatchWord>,
}

/// The names that a session holds, or wants to hold.
struct Claim {
    session: u64,
    names: Vec<Box<[u8]>>,
    is_set: bool,
    sleeper: Arc<Sleeper>,
}

/// A session has met the latch of a name.
struct MetLatch {
    session: u64,
    name: Box<[u8]>,
    debt: Debt,
    sleeper: Arc<Sleeper>,
}

/// What a session is owed that has met a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Debt {
    /// The latch is held.
    None,
    /// It is released, and the session is owed a turn.
    Turn,
    /// The session tries its requests.
    Paying,
}

/// How far the claim of a session has come.
enum ClaimStage {
    /// It is not set.
    Waiting,
    /// It is set. Batches of other sessions had begun before.
    Draining(Drain),
    /// No other session is at work on the names.
    Held,
}

/// A session's own part of the latches.
pub(super) struct LatchSeat {
    session: u64,
    word: Arc<BatchWord>,
    /// The last content of `word`.
    count: u64,
    names: Vec<Box<[u8]>>,
    /// `None`: the session claims nothing.
    stage: Option<ClaimStage>,
    /// The session has met a latch and has not repaid the turn.
    has_met: bool,
    /// A transaction is being carried out: its memory is admitted.
    pub(super) is_in_transaction: bool,
}

impl LatchSeat {
    /// A batch begins. The caller pins afterwards.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        self.count += 1;
        self.word.begin(self.count);
    }

    /// The batch is over.
    #[inline]
    pub(super) fn end_batch(&mut self) {
        self.count += 1;
        self.word.end(self.count);
    }

    /// Whether the session claims a latch and does not hold it.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Some(ClaimStage::Waiting | ClaimStage::Draining(_)))
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.stage, Some(ClaimStage::Held))
    }

    /// Whether it claims all of these names.
    pub(super) fn covers(&self, names: &[&[u8]]) -> bool {
        self.stage.is_some() && names.iter().all(|name| self.claims(name))
    }

    fn claims(&self, name: &[u8]) -> bool {
        self.names.iter().any(|own| **own == *name)
    }
}

/// What a session that has met latches waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MetCounts {
    /// Latches that are held.
    pub(super) held: usize,
    /// Latches that are released.
    pub(super) owed: usize,
}

/// The bit of a name in the filter.
fn bit(name: &[u8]) -> u64 {
    1 << (name.iter().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte))) % 64)
}

impl Latches {
    pub(super) fn new() -> Self {
        Self { edition: Edition::new(), filter: AtomicU64::new(0), queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, LatchQueue> {
        self.queue.lock()
    }

    /// A new session.
    pub(super) fn seat(&self) -> LatchSeat {
        let word = Arc::new(BatchWord::new());
        let mut queue = self.queue();
        queue.last += 1;
        let session = queue.last;
        queue.sessions.push(SessionWord { session, word: Arc::clone(&word) });
        let names = Vec::new();
        LatchSeat { session, word, count: 0, names, stage: None, has_met: false, is_in_transaction: false }
    }

    /// The session ends. Its claim and what it is owed end with it.
    pub(super) fn leave(&self, seat: &mut LatchSeat) {
        self.release(seat);
        let mut queue = self.queue();
        queue.sessions.retain(|other| other.session != seat.session);
        queue.met.retain(|met| met.session != seat.session);
        self.set_claims(&mut queue, seat.session);
    }

    /// Whether a session holds the latch of this name, or another one than this.
    #[inline]
    pub(super) fn is_latched(&self, name: &[u8], own: Option<&LatchSeat>) -> bool {
        Edition::is_latched(self.edition.load())
            && self.may_be_latched(name)
            && self.queue().is_latched(name, own.map_or(0, |seat| seat.session))
    }

    /// The same for a request, which is then refused as `Busy`. `sleeper` is woken when it may be tried again.
    #[cold]
    pub(super) fn meet(&self, name: &[u8], seat: &mut LatchSeat, sleeper: &Arc<Sleeper>) -> bool {
        if !self.may_be_latched(name) || seat.is_held() && seat.claims(name) {
            return false;
        }
        let mut queue = self.queue();
        if !queue.is_latched(name, seat.session) {
            return false;
        }
        seat.has_met = true;
        let session = seat.session;
        if !queue.met.iter().any(|met| met.session == session && *met.name == *name) {
            queue.met.push(MetLatch { session, name: name.into(), debt: Debt::None, sleeper: Arc::clone(sleeper) });
        }
        true
    }

    fn may_be_latched(&self, name: &[u8]) -> bool {
        // Acquire: pairs with the Release in `set_claims`.
        self.filter.load(Ordering::Acquire) & bit(name) != 0
    }

    /// Claims the latches of these names. The session has no claim. `sleeper` is woken when the claim is set.
    pub(super) fn claim(&self, seat: &mut LatchSeat, names: &[&[u8]], sleeper: &Arc<Sleeper>) {
        debug_assert!(seat.stage.is_none(), "a session has one claim");
        seat.names = names.iter().map(|name| Box::from(*name)).collect();
        seat.stage = Some(ClaimStage::Waiting);
        let mut queue = self.queue();
        let (names, sleeper) = (seat.names.clone(), Arc::clone(sleeper));
        queue.claims.push(Claim { session: seat.session, names, is_set: false, sleeper });
        self.set_claims(&mut queue, seat.session);
    }

    /// Looks how far the claim has come. Returns whether the session holds the latches.
    pub(super) fn poll(&self, seat: &mut LatchSeat) -> bool {
        if matches!(seat.stage, Some(ClaimStage::Waiting)) {
            let queue = self.queue();
            if queue.claims.iter().any(|claim| claim.session == seat.session && claim.is_set) {
                let others = queue.sessions.iter().filter(|other| other.session != seat.session);
                seat.stage = Some(ClaimStage::Draining(Drain::new(others.map(|other| &other.word))));
            }
        }
        if let Some(ClaimStage::Draining(drain)) = &mut seat.stage
            && drain.is_over()
        {
            seat.stage = Some(ClaimStage::Held);
        }
        seat.is_held()
    }

    /// Releases the latches, or gives the claim up.
    pub(super) fn release(&self, seat: &mut LatchSeat) {
        if seat.stage.take().is_none() {
            return;
        }
        let mut queue = self.queue();
        queue.claims.retain(|claim| claim.session != seat.session);
        for met in queue.met.iter_mut().filter(|met| met.debt == Debt::None && seat.claims(&met.name)) {
            met.debt = Debt::Turn;
            met.sleeper.wake();
        }
        self.set_claims(&mut queue, seat.session);
    }

    /// The latches that the session has met and not repaid.
    pub(super) fn met(&self, seat: &LatchSeat) -> MetCounts {
        if !seat.has_met {
            return MetCounts::default();
        }
        let queue = self.queue();
        let own = || queue.met.iter().filter(|met| met.session == seat.session);
        let owed = own().filter(|met| met.debt != Debt::None).count();
        MetCounts { held: own().count() - owed, owed }
    }

    /// The session begins to try the requests that wait for released latches.
    pub(super) fn begin_to_repay(&self, seat: &LatchSeat) {
        if seat.has_met {
            let mut queue = self.queue();
            let own = queue.met.iter_mut().filter(|met| met.session == seat.session && met.debt == Debt::Turn);
            own.for_each(|met| met.debt = Debt::Paying);
        }
    }

    /// Each request that waited for a latch which was released before [`Latches::begin_to_repay`] has had a batch.
    pub(super) fn repay(&self, seat: &mut LatchSeat) {
        if !seat.has_met {
            return;
        }
        let mut queue = self.queue();
        queue.met.retain(|met| met.session != seat.session || met.debt != Debt::Paying);
        seat.has_met = queue.met.iter().any(|met| met.session == seat.session);
        self.set_claims(&mut queue, seat.session);
    }

    /// No request of the session waits for a latch: it is owed nothing.
    pub(super) fn forget_met(&self, seat: &mut LatchSeat) {
        if std::mem::take(&mut seat.has_met) {
            let mut queue = self.queue();
            queue.met.retain(|met| met.session != seat.session);
            self.set_claims(&mut queue, seat.session);
        }
    }

    /// Sets the claims that need not wait any more, and wakes their sessions, but not `caller`.
    fn set_claims(&self, queue: &mut LatchQueue, caller: u64) {
        let LatchQueue { claims, met, .. } = queue;
        for place in 0..claims.len() {
            let (before, [claim, ..]) = claims.split_at_mut(place) else { break };
            let waits = before.iter().any(|other| other.names.iter().any(|name| claim.names.contains(name)))
                || met.iter().any(|met| {
                    met.debt != Debt::None && met.session != claim.session && claim.names.contains(&met.name)
                });
            if !claim.is_set && !waits {
                claim.is_set = true;
                if claim.session != caller {
                    claim.sleeper.wake();
                }
            }
        }
        let names = claims.iter().filter(|claim| claim.is_set).flat_map(|claim| &claim.names);
        let filter = names.fold(0, |filter, name| filter | bit(name));
        // Relaxed: it is written under the lock, which is held.
        if self.filter.load(Ordering::Relaxed) == filter {
            return;
        }
        // Release: pairs with the Acquire in `may_be_latched`. A session that finds a bit gone sees the changes of the holder.
        // A session that misses a new bit has begun its batch before the drain, as with the edition.
        self.filter.store(filter, Ordering::Release);
        if filter == 0 {
            self.edition.unlatch();
        } else {
            self.edition.latch();
        }
    }
}

impl LatchQueue {
    fn is_latched(&self, name: &[u8], session: u64) -> bool {
        let set = self.claims.iter().filter(|claim| claim.is_set && claim.session != session);
        set.flat_map(|claim| &claim.names).any(|other| **other == *name)
    }
}
