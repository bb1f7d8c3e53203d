//! ALTER_TABLE: a table in memory becomes durable, a durable one changes its promise, or is in memory again.
//!
//! ```text
//! begin: changes are recorded ─► walk: copies of what is there (`ops/copy.rs`) ─► record of the table ─► an opening knows it
//! ```
//! # Races
//!
//! Each step is made under the latch of the name, so that batches of before are over, and under the catalog's lock.
//!
//! - **A change between the walk and the record.** The change is recorded, in the epoch of the table's record or earlier.
//! - **DELETE_TABLE or another life meanwhile.** The record is made of the table that has the name. A later removal has a
//!   higher number. An opening ignores elements of a life without a record.
//! - **The server ends meanwhile.** There is no record, so the table is gone, as a table in memory is.
//! - **The client ends meanwhile.** The reaper makes the other steps, or undoes them (`reaper/finisher.rs`).
//! - **A second ALTER_TABLE.** All requests share one walk. The record has the durability of the latest request.
//! - **A table that was durable before.** Old records of its elements may be in the log, and its later removals are not. So
//!   its records have another incarnation each time.
//!
//! This file copies no element.

use std::sync::Arc;

use super::writer::EffectWriter;
use crate::tables::Durability;
use crate::tables::table::Table;

impl EffectWriter {
    /// Makes the next step towards this durability. `life` gives an incarnation that no table has. The caller leaves the
    /// epoch afterwards.
    pub(in crate::tables) fn alter(&mut self, table: &Arc<Table>, said: Durability, life: impl FnOnce() -> u64) {
        let state = &table.durability;
        match (state.is_recorded(), state.is_coming(), said) {
            (false, _, Durability::None) => {}
            (false, ..) => {
                let incarnation = if state.incarnation() == 0 { table.generation() } else { life() };
                table.reset_logged();
                state.begin(said, incarnation);
                self.epochs.enter_table(table);
                self.epochs.note_coming();
            }
            (true, is_coming, Durability::None) => {
                if is_coming {
                    self.epochs.leave_table(table);
                } else {
                    self.enter_large();
                    self.record_end(table);
                }
                state.leave();
            }
            (true, true, _) if state.walked().is_some() => state.say(said),
            (true, is_coming, _) if is_coming || state.said() != said => {
                self.enter_large();
                self.record_table(table, said);
            }
            (true, ..) => {}
        }
    }
}
