//! Names, places and counts of a report.

use super::document::resident_bytes;
use super::name::printable;
use super::*;

#[test]
fn names_are_text_or_hexadecimal() {
    assert_eq!(printable(b"users\0"), "users\0");
    assert_eq!(printable(&[0xff, 0x01]), "0xff01");
}

#[test]
fn each_reason_has_its_place() {
    for (place, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(place_of(reason), place);
    }
    assert_eq!(place_of(Reason::VersionMismatch { current: 7 }), place_of(Reason::VersionMismatch { current: 0 }));
}

#[test]
fn a_worker_counts_by_command_and_reason() {
    let metrics = WorkerMetrics::new(Now::from_nanos(0), None);
    metrics.count(Some(Command::Get), Some(Reason::KeyNotFound));
    metrics.count(Some(Command::Get), None);
    metrics.count(None, Some(Reason::BadRequest));
    assert_eq!(metrics.requests(), 3);
    let get = metrics.of(Some(Command::Get));
    assert_eq!(get.requests.get(), 2);
    assert_eq!(get.refused.iter().map(Counter::get).sum::<u64>(), 1);
}

#[test]
fn the_process_is_in_memory() {
    assert!(resident_bytes().is_some_and(|bytes| bytes > 0));
}
