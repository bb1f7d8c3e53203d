//! The audiences of tables, those of names that have no table yet included.
//!
//! This file makes no table.

use std::ops::Bound;
use std::sync::Arc;

use crossbeam::epoch::Guard;

use super::{Catalog, TablesOfNames};
use crate::tables::Durability;
use crate::tables::table::{NameHistory, Table};
use crate::tables::table_audience::{AudienceKind, TableAudience};

impl Catalog {
    /// The audience of a table that takes the place of `old`, if there is one. The caller holds the lock of the admission.
    pub(super) fn audience_of_new(&self, old: Option<&Arc<Table>>, durability: Durability) -> TableAudience {
        let is_subscribed = self.expected.is_subscribed() || old.is_some_and(|old| old.audience.is_subscribed());
        TableAudience::new(is_subscribed, self.expected.has_ends(), durability == Durability::Always)
    }

    /// Whether a table that is created now has an audience.
    pub(in crate::tables) fn expects_audience(&self) -> bool {
        self.expected.is_subscribed()
    }

    /// Publisher: whether tables that are created from now on have an audience, and whether somebody receives their
    /// ends.
    pub(in crate::tables) fn expect_audience(&self, has_audience: bool, has_ends: bool) {
        let _admission = self.admission();
        if has_audience {
            self.expected.begin(AudienceKind::Changes);
        } else if self.expected.end_changes() {
            self.expected.note_ended();
        }
        self.expected.set_ends(has_ends);
    }

    /// Publisher: all tables that these topics touch have an audience of this kind from now on, and so have all that are
    /// created later, until [`Catalog::expect_audience`] says otherwise. Returns whether one had none.
    pub(in crate::tables) fn begin_audience<'t>(
        &self,
        topics: impl IntoIterator<Item = &'t [u8]>,
        kind: AudienceKind,
        guard: &Guard,
    ) -> bool {
        let admission = self.admission();
        self.expected.begin(kind);
        let mut is_new = false;
        for topic in topics {
            // What is behind the name says no more of the table.
            let name = topic.split(|byte| *byte == 0).next().unwrap_or_default();
            let is_whole = name.len() < topic.len();
            let from = admission.histories.range::<[u8], _>((Bound::Included(name), Bound::Unbounded));
            let fits = |other: &[u8]| if is_whole { other == name } else { other.starts_with(name) };
            for (name, history) in from.take_while(|(other, _)| fits(other)) {
                self.each_of_name(name, history, guard, |table| is_new |= table.audience.begin(kind));
            }
        }
        is_new
    }

    /// The tables of some names behind this one, in the order of their names, and the last of these names if there may
    /// be more.
    pub(in crate::tables) fn tables_behind(&self, name: Option<&[u8]>, names: usize, guard: &Guard) -> TablesOfNames {
        let admission = self.admission();
        let from = (name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let (mut tables, mut last) = (Vec::new(), None);
        for (count, (name, history)) in admission.histories.range::<[u8], _>(from).take(names).enumerate() {
            self.each_of_name(name, history, guard, |table| tables.extend(self.registry.keep(table, guard)));
            last = (count + 1 == names).then(|| name.clone());
        }
        TablesOfNames { tables, last }
    }

    /// Calls `each` with every table of this name, the open one and those that are being taken down. The caller holds
    /// the lock of the admission.
    fn each_of_name(&self, name: &[u8], history: &NameHistory, guard: &Guard, mut each: impl FnMut(&Table)) {
        let open = self.names.get(name).and_then(|number| self.registry.get(number, guard));
        open.into_iter().for_each(&mut each);
        history.predecessors(u64::MAX).iter().for_each(|table| each(table));
    }
}
