//! Durable tables on disks that are full, with more than the memory limit, and in a folder with tasks.

use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::{Reason, TableOptions};

use super::{MEMORY, TABLE, client, settle, start};
use crate::tasks_disk::Small;

#[test]
fn a_full_disk_refuses_what_is_stored_and_nothing_else() {
    let Some(small) = Small::mount("8m") else { return };
    let data = small.path().join("data");
    let flags = ["--durable-interval", "10ms", "--max-value", "1K"];
    let server = start(&data, &flags);
    let mut first = client(&server);
    first.create_table_with(TABLE, TableOptions::Soon).unwrap();
    first.create_table_with(MEMORY, TableOptions::InMemory).unwrap();
    let fill = |client: &mut Client| {
        (0_u64..).find(|number| match client.update(TABLE, &number.to_be_bytes(), &[7; 1_000], None) {
            Ok(()) => false,
            Err(Error::Refused(reason)) => {
                assert_eq!(reason, Reason::OutOfDisk);
                true
            }
            Err(error) => panic!("{error}"),
        })
    };
    let stored = fill(&mut first).unwrap();
    assert!(stored > 1_000, "{stored} KB in 8 MB");
    first.update(MEMORY, b"key", b"value", None).unwrap();
    assert_eq!(first.get(TABLE, &0_u64.to_be_bytes()).unwrap(), [7; 1_000]);
    for number in 0..stored {
        first.delete(TABLE, &number.to_be_bytes()).unwrap();
    }
    while first.update(TABLE, b"room", b"value", None).is_err() {}
    let again = fill(&mut first).unwrap();
    assert!(again > stored / 2, "{again} after {stored}");
    settle(&server);
    drop(server);
    let server = start(&data, &flags);
    let mut second = client(&server);
    assert_eq!(second.get(TABLE, b"room").unwrap(), b"value");
    assert_eq!(second.get(TABLE, &(again - 1).to_be_bytes()).unwrap(), [7; 1_000]);
    second.delete_table(TABLE).unwrap();
    second.create_table_with(TABLE, TableOptions::Soon).unwrap();
    while second.update(TABLE, b"room", b"value", None).is_err() {}
}

#[test]
fn a_folder_with_more_than_the_memory_limit_opens_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    let mut first = client(&server);
    first.create_table_with(TABLE, TableOptions::Soon).unwrap();
    for number in 0..2_000_u64 {
        first.update(TABLE, &number.to_be_bytes(), &[7; 1_000], None).unwrap();
    }
    server.stop();
    let server = start(folder.path(), &["--max-memory", "1M", "--admin", "127.0.0.1:0"]);
    let mut second = client(&server);
    assert_eq!(second.get(TABLE, &1_999_u64.to_be_bytes()).unwrap(), [7; 1_000]);
    assert!(matches!(second.update(TABLE, b"key", b"value", None), Err(Error::Refused(Reason::OutOfMemory))));
    for number in 0..1_900_u64 {
        second.delete(TABLE, &number.to_be_bytes()).unwrap();
    }
    while second.update(TABLE, b"key", b"value", None).is_err() {}
}

#[test]
fn tasks_and_tables_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--tasks", "tcp://127.0.0.1:*"];
    for first in [&flags[..], &[]] {
        let data = folder.path().join(first.len().to_string());
        for flags in [first, &flags] {
            let server = start(&data, flags);
            let mut client = client(&server);
            let made = client.create_table_with(TABLE, TableOptions::Soon);
            assert!(matches!(made, Ok(()) | Err(Error::Refused(Reason::TableExists))));
            client.update(TABLE, b"key", b"value", None).unwrap();
            server.stop();
        }
        let server = start(&data, &flags);
        assert_eq!(client(&server).get(TABLE, b"key").unwrap(), b"value");
    }
}
