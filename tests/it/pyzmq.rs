//! The same protocol as seen by pyzmq, from `PROTOCOL.md` alone: chapters of `conformance.py`, each with a server of
//! its own.

use crate::harness::{Server, run_python};

fn run_chapter(chapter: &str, flags: &[&str]) {
    let server = Server::start(flags);
    run_python("conformance.py", &[chapter, server.kv()]);
    server.stop();
}

#[test]
fn names_of_tables_at_their_edges() {
    run_chapter("tables", &[]);
}

#[test]
fn keys_and_values_at_their_edges() {
    run_chapter("elements", &[]);
}

#[test]
fn versions_grow_and_never_come_back() {
    run_chapter("versions", &[]);
}

#[test]
fn ttls_in_both_byte_orders_expire_and_never_early() {
    run_chapter("ttls", &[]);
}

#[test]
fn many_at_once_from_one_to_1024() {
    run_chapter("many", &[]);
}

#[test]
fn numbers_are_counted_in_their_one_spelling() {
    run_chapter("counters", &[]);
}

#[test]
fn values_are_read_and_touched_and_many_are_deleted() {
    run_chapter("touched", &[]);
}

#[test]
fn a_table_is_scanned_page_by_page_with_good_cursors_only() {
    run_chapter("scans", &["--workers", "2"]);
}

#[test]
fn pages_of_long_values_are_short_and_never_empty() {
    run_chapter("large_pages", &["--max-value", "2000000"]);
}

#[test]
fn the_first_fault_is_the_one_reported() {
    run_chapter("faults", &[]);
}

#[test]
fn every_envelope_comes_back_byte_for_byte() {
    run_chapter("envelopes", &[]);
}

#[test]
fn a_pipelining_connection_is_answered_in_order() {
    run_chapter("order", &["--workers", "4"]);
}

#[test]
fn every_change_is_announced_once_and_in_order() {
    let server = Server::start(&[]);
    run_python("conformance.py", &["notifications", server.kv(), server.publish()]);
    server.stop();
}

#[test]
fn nonsense_is_answered_and_harms_nobody() {
    run_chapter("nonsense", &[]);
}

#[test]
fn too_many_tables_are_refused() {
    run_chapter("max_tables", &["--max-tables", "3"]);
}

#[test]
fn values_may_be_as_large_as_the_flag_says() {
    run_chapter("max_value", &["--max-value", "2000000"]);
}

#[test]
fn what_does_not_fit_into_memory_is_refused() {
    run_chapter("max_memory", &["--max-memory", "8388608"]);
}
