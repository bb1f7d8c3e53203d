//! Whether memory that was replaced comes back: a million elements, then 20 million updates, deletes and re-creations.
//!
//! ```text
//! cargo bench --bench memory                               mimalloc
//! SPINDLE_ALLOCATOR=jemalloc cargo bench --bench memory    or system
//! ```
//! Prints the resident memory of the process as it goes. Values change their size within 48 to 80 bytes, one operation
//! in four deletes and creates anew, and one in eight carries a TTL of an hour, so that wheel records come and go too.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a bench that fails should say where")]

mod field;

use spindle::allocator::{Switch, in_use};
use spindle::tables::{Refusal, Session};

use field::{Field, KEY_BYTES, keys, resident_bytes};

#[global_allocator]
static ALLOCATOR: Switch = Switch;

const ELEMENTS: usize = 1_000_000;
const OPERATIONS: usize = 20_000_000;
const REPORT_EVERY: usize = 2_000_000;
const TTL_SECONDS: u32 = 3_600;

fn main() {
    let field = Field::filled(ELEMENTS);
    let filled = resident_bytes();
    println!("allocator {}: {ELEMENTS} elements take {} MiB", in_use(), filled >> 20);
    let order = keys(ELEMENTS, 1);
    let mut session = field.session();
    let mut most = filled;
    for done in 0..OPERATIONS {
        churn(&field, &mut session, &order[done % order.len()], done);
        if (done + 1) % REPORT_EVERY == 0 {
            let now = resident_bytes();
            most = most.max(now);
            let share = 100.0 * now as f64 / filled as f64;
            println!("after {:>10} operations  {:>5} MiB  {share:>6.1} %", done + 1, now >> 20);
        }
    }
    let census = field.census();
    println!("{} elements, {} timers, {} slots reaped", census.tables[0].elements, census.timers, census.reaped);
    println!("most {} MiB, {:.1} % of the start", most >> 20, 100.0 * most as f64 / filled as f64);
}

/// One operation: an update, or a delete and a re-creation.
fn churn(field: &Field, session: &mut Session, key: &[u8; KEY_BYTES], number: usize) {
    let value = &[7_u8; 80][..48 + number % 33];
    let ttl = match number % 8 {
        0 => Some(TTL_SECONDS),
        _ => Some(0),
    };
    loop {
        let mut batch = session.batch(field.now());
        let deleted = if number.is_multiple_of(4) { batch.delete(b"bench", key).map(drop) } else { Ok(()) };
        let stored = match deleted {
            Err(Refusal::Busy) => Err(Refusal::Busy),
            _ => batch.update(b"bench", key, value, ttl),
        };
        drop(batch);
        match stored {
            Ok(()) => return,
            Err(Refusal::Busy) => session.wait(),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}
