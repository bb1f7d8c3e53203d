//! How a session reaches a table by its name, beside the latches of other sessions.
//!
//! This file changes no element.

use crossbeam::epoch::Guard;

use super::{Batch, LATCH, Session};
use crate::tables::Refusal;
use crate::tables::catalog::{KnownTable, Reached};
use crate::tables::latches::LatchSeat;
use crate::tables::prefetch::{Fetched, KeyRun};
use crate::tables::table::Table;

/// How a session reaches tables.
pub(super) struct TableAccess {
    /// The table that was used last. Most requests are for the same one.
    pub(super) known: Option<KnownTable>,
    pub(super) seat: LatchSeat,
}

impl Session {
    /// The table of this name. `Busy` if another session holds its latch.
    #[inline]
    pub(super) fn reach<'g>(&mut self, name: &[u8], guard: &'g Guard) -> Result<&'g Table, Refusal> {
        match self.shared.catalog.reach(&mut self.access.known, name, guard) {
            Reached::Table(table) => Ok(table),
            Reached::None => Err(self.miss(name)),
            Reached::Latched => self.reach_beside_latches(name, guard),
        }
    }

    /// The same while some name is latched.
    #[cold]
    fn reach_beside_latches<'g>(&mut self, name: &[u8], guard: &'g Guard) -> Result<&'g Table, Refusal> {
        if self.meets_latch(name) {
            return Err(Refusal::Busy);
        }
        match self.shared.catalog.find(name, guard) {
            Some(table) => Ok(table),
            None => Err(self.miss(name)),
        }
    }

    /// No table has the name.
    #[cold]
    fn miss(&mut self, name: &[u8]) -> Refusal {
        self.effects.await_name(name, None);
        Refusal::TableNotFound
    }

    /// Whether the latch of this name holds this session up. If so, it is woken when it may try again.
    pub(in crate::tables) fn meets_latch(&mut self, name: &[u8]) -> bool {
        let latches = &self.shared.catalog.latches;
        let seat = &mut self.access.seat;
        let meets = latches.is_latched(name, Some(seat)) && latches.meet(name, seat, self.writer.sleeper());
        if meets {
            self.wanted.resource = LATCH;
        }
        meets
    }
}

impl Batch<'_> {
    /// Asks the processor to fetch the memory that these requests read. Each is a table and a key, or `None` if it is not
    /// for one element. It changes no element. Returns where the slots of the first
    /// [`LOOK_AHEAD`](crate::limits::LOOK_AHEAD) requests were seen, for [`Batch::expect`]. Of a small table, and for a
    /// single request, nothing is fetched or noted.
    pub fn prefetch<'k>(&mut self, requests: impl Iterator<Item = Option<(&'k [u8], &'k [u8])>>) -> Fetched {
        let mut fetched = Fetched::NOTHING;
        let mut requests = requests.zip(0..).filter_map(|(request, number)| Some((request?, number))).peekable();
        while let Some(((table, _), _)) = requests.peek().copied() {
            let mut of_table = std::iter::from_fn(|| requests.next_if(|((other, _), _)| *other == table));
            let run = KeyRun::of(&mut of_table.by_ref().map(|((_, key), number)| (key, number)));
            if run.is_alone() {
                continue;
            }
            let Session { shared, access, .. } = &mut *self.session;
            if let Reached::Table(table) = shared.catalog.reach(&mut access.known, table, &self.guard) {
                run.fetch(table, &mut fetched, &self.guard);
            }
        }
        fetched
    }

    /// The next operation on an element is the one for this request. A hint, which spares the look-up: if the slot is no
    /// longer there, or the operation is for another key or table, the key is looked up as usual.
    #[inline]
    pub fn expect(&mut self, fetched: &Fetched, request: usize) {
        self.session.place = fetched.place(request);
    }
}
